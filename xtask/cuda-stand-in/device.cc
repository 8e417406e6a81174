// What the device poses as, what is said of it, and how a fault ends.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace {

constexpr size_t MIB = 1024 * 1024;

// By compute capability. The first is what kernels run on: a GTX, which CubeCL knows to be without tensor cores. Of the memory
// CubeCL takes half for its probes.
constexpr Device DEVICES[] = {
    {"Stand-in GTX", 7, 5, 4, 65'536, 512 * MIB},
    {"Stand-in A100", 8, 0, 108, 166'912, 40'000 * MIB},
    {"Stand-in L4", 8, 9, 58, 101'376, 23'000 * MIB},
    {"Stand-in H200", 9, 0, 132, 232'448, 143'000 * MIB},
    {"Stand-in B200", 10, 0, 148, 232'448, 180'000 * MIB},
};

FILE* open_log() {
    const char* path = getenv("CUDA_STAND_IN_LOG");
    FILE* file = path ? fopen(path, "a") : nullptr;
    if (file) setvbuf(file, nullptr, _IOLBF, 0);
    return file;
}

}  // namespace

const Device& device() {
    static const Device& chosen = []() -> const Device& {
        const char* wanted = getenv("CUDA_STAND_IN_SM");
        for (const Device& one : DEVICES) {
            if (wanted && atoi(wanted) == 10 * one.major + one.minor) return one;
        }
        return DEVICES[0];
    }();
    return chosen;
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
