// The threads of one block, as fibers on one thread of the host. Kernels call these; so does what checks their accesses.
#pragma once

#include "driver.h"

extern "C" {
// Of the thread that runs.
Dim3 emulated_thread();
Dim3 emulated_block();
Dim3 emulated_block_size();
Dim3 emulated_grid_size();
unsigned emulated_lane();

// Waits for the block, for the warp.
void emulated_sync_block();
void emulated_sync_warp();
// The lanes of this warp that have neither ended nor wait for the block.
unsigned emulated_active();
// The value that another lane of the warp brings to the same call.
uint64_t emulated_exchange(uint64_t value, unsigned lane);
// The lanes that bring a true value to the same call, and all that come to it.
struct Votes {
    unsigned yes, all;
};
Votes emulated_vote(bool value);
}

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

// Of each block in turn.
extern "C" char emulated_shared[SHARED_BYTES_MAX];
