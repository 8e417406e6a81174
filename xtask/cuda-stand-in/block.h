// The threads of one block, as fibers on one thread of the host. What kernels call of them is include/threads.h.
#pragma once

#include "driver.h"

constexpr unsigned WARP = 32;
constexpr size_t SHARED_BYTES_MAX = 256 * 1024;
constexpr size_t STACK_BYTES = 128 * 1024;

struct Kernel;

// Runs all blocks of a grid, one after the other.
void run_grid(const Kernel& kernel, const Grid& grid, void** parameters);

// Where a thread is: enough to say of two accesses whether a barrier lies between them.
struct Position {
    // Counts the intervals between barriers of all blocks of all launches.
    uint32_t phase;
    uint16_t thread;
    // Counts the barriers of its warp within the block.
    uint16_t warp_phase;
};

// What runs now; `stack` is null when nothing does.
struct Running {
    const Kernel* kernel;
    Position position;
    uint32_t launch_first_phase, block_first_phase;
    size_t shared_bytes;
    const char* stack;
};
extern Running running;
