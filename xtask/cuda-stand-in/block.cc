// One block at a time; its threads are fibers, which run from one barrier to the next.
//
// The order of blocks, and of threads between barriers, is whatever the hardware likes. Here it is that of their numbers,
// or with CUDA_STAND_IN_SEED a new order each time: what depends on the order comes out differently.
#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "engine.h"

Running running;
alignas(1024) char emulated_shared[SHARED_BYTES_MAX];

namespace {

enum class State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };

struct Fiber {
    void* stack_pointer;
    State state;
    Dim3 index;
    unsigned thread;
    unsigned lane() const { return thread % WARP; }
    unsigned warp() const { return thread / WARP; }
};

struct Warp {
    uint16_t phase;
    // The lanes that have neither ended nor wait for the block.
    unsigned active;
    // The lanes that the last barrier has let go.
    unsigned released;
    // What lanes bring to an exchange, for two in turn: who is at the next one has read what was brought to the last.
    uint64_t slots[2][WARP];
    uint64_t* slots_now() { return slots[phase % 2]; }
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
// The threads of each warp in the order in which they run.
std::vector<unsigned> orders[1'024 / WARP];
std::vector<char*> stacks;
Fiber* current = nullptr;
void* scheduler_stack;
Dim3 block_index, block_size, grid_size;
void (*kernel_entry)(void**);
void** kernel_parameters;
uint32_t phases = 0;

const char* const seed = getenv("CUDA_STAND_IN_SEED");
std::mt19937 random_bits(seed ? atoi(seed) : 0);

template <class T>
void shuffle(std::vector<T>& all) {
    if (seed) std::shuffle(all.begin(), all.end(), random_bits);
}

// Saves the callee's registers on this stack, `*from` becomes its top, and goes on where the stack `to` was left.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.globl emulated_switch
emulated_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
constexpr int SAVED_REGISTERS = 6;

void leave(State state) {
    current->state = state;
    if (state != State::AT_WARP_BARRIER) warps[current->warp()].active &= ~(1u << current->lane());
    emulated_switch(&current->stack_pointer, scheduler_stack);
}

void fiber_main() {
    kernel_entry(kernel_parameters);
    leave(State::ENDED);
    abort();
}

// A stack on which the first switch finds registers to restore and then the start of the fiber.
void* new_stack(char* stack) {
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(fiber_main);
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    return top;
}

void start_block(const Grid& grid) {
    const unsigned threads = grid.threads.count();
    // Shared memory holds what the block before has left: no number.
    memset(emulated_shared, 0xff, grid.shared_bytes);
    while (stacks.size() < threads) stacks.push_back(static_cast<char*>(aligned_alloc(64, STACK_BYTES)));
    fibers.resize(threads);
    warps.assign((threads + WARP - 1) / WARP, Warp{});
    for (unsigned i = 0; i < threads; i++) {
        const Dim3 index{i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
        fibers[i] = {new_stack(stacks[i]), State::READY, index, i};
        warps[i / WARP].active |= 1u << i % WARP;
    }
    running.block_first_phase = running.position.phase = ++phases;
}

void resume(Fiber& fiber) {
    current = &fiber;
    running.position.thread = static_cast<uint16_t>(fiber.thread);
    running.position.warp_phase = warps[fiber.warp()].phase;
    running.stack = stacks[fiber.thread];
    emulated_switch(&scheduler_stack, fiber.stack_pointer);
    running.stack = nullptr;
    current = nullptr;
}

// The threads of a warp, as a range of numbers.
struct Lanes {
    unsigned first, last;
};
Lanes lanes_of(unsigned warp) {
    return {warp * WARP, std::min<unsigned>((warp + 1) * WARP, fibers.size())};
}

// Lets a warp go if its threads have all come to the warp's barrier or ended.
bool release_warp(unsigned number) {
    Warp& warp = warps[number];
    const Lanes lanes = lanes_of(number);
    unsigned waiting = 0;
    for (unsigned i = lanes.first; i < lanes.last; i++) {
        if (fibers[i].state == State::AT_WARP_BARRIER) waiting |= 1u << fibers[i].lane();
        else if (fibers[i].state != State::ENDED) return false;
    }
    if (!waiting) return false;
    warp.phase++;
    warp.released = waiting;
    for (unsigned i = lanes.first; i < lanes.last; i++) {
        if (fibers[i].state == State::AT_WARP_BARRIER) fibers[i].state = State::READY;
    }
    return true;
}

// Runs a warp as far as it comes by itself.
void run_warp(unsigned number) {
    const Lanes lanes = lanes_of(number);
    std::vector<unsigned>& order = orders[number];
    if (order.size() != lanes.last - lanes.first) {
        order.clear();
        for (unsigned i = lanes.first; i < lanes.last; i++) order.push_back(i);
    }
    do {
        shuffle(order);
        for (unsigned i : order) {
            if (fibers[i].state == State::READY) resume(fibers[i]);
        }
    } while (release_warp(number));
}

// Lets the block go when all its threads have come to the block's barrier or ended.
bool release_block() {
    const auto waits = [](const Fiber& f) { return f.state == State::AT_BLOCK_BARRIER; };
    const auto is_settled = [&](const Fiber& f) { return waits(f) || f.state == State::ENDED; };
    if (std::none_of(fibers.begin(), fibers.end(), waits)) return false;
    if (!std::all_of(fibers.begin(), fibers.end(), is_settled)) return false;
    for (Fiber& fiber : fibers) {
        if (!waits(fiber)) continue;
        fiber.state = State::READY;
        warps[fiber.warp()].active |= 1u << fiber.lane();
    }
    running.position.phase = ++phases;
    return true;
}

void run_block(const Kernel& kernel, const Grid& grid) {
    start_block(grid);
    std::vector<unsigned> order(warps.size());
    for (unsigned w = 0; w < order.size(); w++) order[w] = w;
    do {
        shuffle(order);
        for (unsigned w : order) run_warp(w);
    } while (release_block());
    const auto has_ended = [](const Fiber& f) { return f.state == State::ENDED; };
    if (!std::all_of(fibers.begin(), fibers.end(), has_ended)) {
        fault("divergent barrier: kernel %s, block %u %u %u: some threads wait for others that wait elsewhere",
              kernel.name.c_str(), block_index.x, block_index.y, block_index.z);
    }
}

}  // namespace

void run_grid(const Kernel& kernel, const Grid& grid, void** parameters) {
    kernel_entry = kernel.entry;
    kernel_parameters = parameters;
    block_size = grid.threads;
    grid_size = grid.blocks;
    running.kernel = &kernel;
    running.shared_bytes = grid.shared_bytes;
    running.launch_first_phase = phases + 1;
    std::vector<Dim3> blocks;
    for (unsigned z = 0; z < grid.blocks.z; z++) {
        for (unsigned y = 0; y < grid.blocks.y; y++) {
            for (unsigned x = 0; x < grid.blocks.x; x++) blocks.push_back({x, y, z});
        }
    }
    shuffle(blocks);
    for (const Dim3& block : blocks) {
        block_index = block;
        run_block(kernel, grid);
    }
}

extern "C" {

Dim3 emulated_thread() { return current->index; }
Dim3 emulated_block() { return block_index; }
Dim3 emulated_block_size() { return block_size; }
Dim3 emulated_grid_size() { return grid_size; }
unsigned emulated_lane() { return current->lane(); }

void emulated_sync_block() { leave(State::AT_BLOCK_BARRIER); }
void emulated_sync_warp() { leave(State::AT_WARP_BARRIER); }

unsigned emulated_active() { return warps[current->warp()].active; }

uint64_t emulated_exchange(uint64_t value, unsigned lane) {
    uint64_t* slots = warps[current->warp()].slots_now();
    slots[current->lane()] = value;
    emulated_sync_warp();
    return slots[lane % WARP];
}

Votes emulated_vote(bool value) {
    const Warp& warp = warps[current->warp()];
    uint64_t* slots = warps[current->warp()].slots_now();
    slots[current->lane()] = value;
    emulated_sync_warp();
    Votes votes{0, warp.released};
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (votes.all >> lane & 1 && slots[lane]) votes.yes |= 1u << lane;
    }
    return votes;
}
}
