// Kernels that run: their modules are libraries that nvrtc.cc has compiled for this processor.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "block.h"
#include "engine.h"

const bool kernels_run = true;

namespace {
// What nvrtc.cc gives for PTX: this, and the path of the library.
constexpr char IMAGE[] = "emulated ";
}  // namespace

Status load_module(const char* image, void** module) {
    if (strncmp(image, IMAGE, strlen(IMAGE)) != 0) return INVALID_IMAGE;
    *module = dlopen(image + strlen(IMAGE), RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "the emulated NVRTC's library cannot be loaded: %s\n", dlerror());
    return *module ? OK : INVALID_IMAGE;
}

Status find_kernel(void* module, const char* name, Kernel** kernel) {
    const std::string stem = name;
    const auto symbol = [&](const char* end) { return dlsym(module, (stem + end).c_str()); };
    const auto entry = reinterpret_cast<void (*)(void**)>(symbol("_emulated"));
    const auto count = reinterpret_cast<size_t (*)()>(symbol("_parameters"));
    const auto bytes = reinterpret_cast<const size_t* (*)()>(symbol("_parameter_bytes"));
    if (!entry || !count || !bytes) return NOT_FOUND;
    *kernel = new Kernel{stem, {bytes(), bytes() + count()}, entry};
    return OK;
}

void run(const Kernel& kernel, const Grid& grid, void** parameters) {
    forget_recent();
    run_grid(kernel, grid, parameters);
}
