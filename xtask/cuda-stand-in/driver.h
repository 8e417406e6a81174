// What the files of the stand-in share: the driver's error numbers, a launch, and the log.
#pragma once

#include <cstddef>
#include <cstdint>

#include "include/threads.h"

// The driver's CUresult.
enum Status {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    NOT_SUPPORTED = 801,
};

// The shape of a launch.
struct Grid {
    Dim3 blocks, threads;
    unsigned shared_bytes;
};

// What this device poses as.
struct Device {
    const char* name;
    int major, minor;
    int processors;
    int shared_bytes_max;
    size_t memory_bytes;
};
const Device& device();

// A line of the log that CUDA_STAND_IN_LOG names, if it names one.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Ends the process with FAULT after saying what a kernel did that it must not.
constexpr int FAULT = 86;
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
