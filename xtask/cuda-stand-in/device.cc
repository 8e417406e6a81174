// What the device poses as, what is said of it, and how a fault ends.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace {

constexpr size_t MIB = 1024 * 1024;

// A GTX of this generation is one that CubeCL knows to be without tensor cores. Of the memory CubeCL takes half for its
// probes.
constexpr Device DEVICE{"Stand-in GTX", 7, 5, 4, 65'536, 512 * MIB};

FILE* open_log() {
    const char* path = getenv("CUDA_STAND_IN_LOG");
    FILE* file = path ? fopen(path, "a") : nullptr;
    if (file) setvbuf(file, nullptr, _IOLBF, 0);
    return file;
}

}  // namespace

const Device& device() {
    return DEVICE;
}

void note(const char* format, ...) {
    static FILE* log = open_log();
    if (!log) return;
    va_list values;
    va_start(values, format);
    vfprintf(log, format, values);
    va_end(values);
    fputc('\n', log);
}

void fault(const char* format, ...) {
    va_list values;
    va_start(values, format);
    fprintf(stderr, "\nemulated GPU: ");
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    _exit(FAULT);
}
