// What the driver does with kernels: emulate.cc and access.cc run them, record.cc keeps their code and runs nothing.
#pragma once

#include <string>
#include <vector>

#include "driver.h"

struct Kernel {
    std::string name;
    // Bytes of each parameter; empty where kernels are not run.
    std::vector<size_t> parameter_bytes;
    void (*entry)(void** parameters) = nullptr;
};

// Whether kernels are run, so that what is in memory matters.
extern const bool kernels_run;

// A compiled module as cuModuleLoadData takes it.
Status load_module(const char* image, void** module);
Status find_kernel(void* module, const char* name, Kernel** kernel);
// Runs a kernel to its end.
void run(const Kernel& kernel, const Grid& grid, void** parameters);

// Bytes of marks that an allocation of so many bytes needs.
size_t marks_bytes(size_t bytes);
// To be called before a launch, as buffers may have come and gone since the last.
void forget_recent();
