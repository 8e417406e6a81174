// What a thread of a block calls: kernels, by CUDA's names for it, and the emulator, which defines it in block.cc.
#pragma once

#include <cstdint>

struct Dim3 {
    unsigned x, y, z;
    unsigned count() const { return x * y * z; }
};
struct Votes {
    unsigned yes, all;
};
extern "C" {
// Of each block in turn.
extern char emulated_shared[];

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
Votes emulated_vote(bool value);
}
