// What a kernel reads and writes, looked at access by access.
//
// Kernels are compiled with -fsanitize=thread, which calls a function before each access to memory. The functions are
// here, and not those of the sanitizer, as only they know what is memory of the device and what a barrier of a block is.
// An access has to lie within one buffer, or within the shared memory that was asked for; and of two threads that touch
// the same bytes, one of them writing, a barrier of both has to lie between. That two blocks write the same is allowed,
// as rows of padding do it: one of both is left, and the order of blocks decides which.
#include <dlfcn.h>

#include <cstdlib>

#include "block.h"
#include "engine.h"
#include "memory.h"

// The last accesses to a granule. Of the readers two are kept, of different threads: more would only be needed where
// several read what one writes at once, and any of them shows that.
struct Marks {
    Position written, read, read_before;
};

namespace {

// The smallest scalar that kernels share between threads.
constexpr size_t GRANULE = 2;

Marks shared_marks[SHARED_BYTES_MAX / GRANULE];

// What was found last, as kernels go over a few buffers again and again.
constexpr unsigned RECENT = 16;
const Allocation* recent[RECENT];
unsigned next_recent;

const Allocation* find(uint64_t address, size_t bytes) {
    for (const Allocation* one : recent) {
        if (one && one->holds(address, bytes)) return one;
    }
    const Allocation* found = allocation_of(address);
    if (found) recent[next_recent++ % RECENT] = found;
    return found;
}

const char* verb(bool is_write) { return is_write ? "writes" : "reads"; }

[[noreturn]] void out_of_bounds(uint64_t address, size_t bytes, bool is_write, const char* what, size_t offset,
                                size_t size) {
    const Dim3 block = emulated_block(), thread = emulated_thread();
    fault("out of bounds: kernel %s, block %u %u %u, thread %u %u %u %s %zu bytes at %#lx, %zu bytes into %s of %zu",
          running.kernel->name.c_str(), block.x, block.y, block.z, thread.x, thread.y, thread.z, verb(is_write), bytes,
          static_cast<unsigned long>(address), offset, what, size);
}

// Who may touch a piece of memory at a time: the threads of a block, or those of a launch.
enum class Scope { BLOCK, LAUNCH };

// Whether a barrier, or the end of a block or launch that has the memory for itself, lies between an access and this moment.
bool is_ordered(const Position& then, Scope scope) {
    const Position& now = running.position;
    if (then.phase < (scope == Scope::BLOCK ? running.block_first_phase : running.launch_first_phase)) return true;
    // Another block of the same launch: nothing orders them.
    if (then.phase < running.block_first_phase) return false;
    if (then.phase != now.phase || then.thread == now.thread) return true;
    return then.thread / WARP == now.thread / WARP && then.warp_phase != now.warp_phase;
}

[[noreturn]] void race(const Position& then, bool was_write, bool is_write, const char* what, size_t offset) {
    const Dim3 block = emulated_block();
    const bool same_block = then.phase >= running.block_first_phase;
    fault("race: kernel %s, block %u %u %u: thread %u %s what thread %u of %s block %s, %zu bytes into %s, and no barrier "
          "lies between",
          running.kernel->name.c_str(), block.x, block.y, block.z, running.position.thread, verb(is_write), then.thread,
          same_block ? "the same" : "another", verb(was_write), offset, what);
}

void mark(Marks* marks, size_t offset, size_t bytes, bool is_write, Scope scope) {
    const Position& now = running.position;
    const char* what = scope == Scope::BLOCK ? "shared memory" : "a buffer";
    for (size_t at = offset / GRANULE; at <= (offset + bytes - 1) / GRANULE; at++) {
        Marks& last = marks[at];
        const bool by_other_block = last.written.phase < running.block_first_phase;
        if (!is_ordered(last.written, scope) && !(is_write && by_other_block)) race(last.written, true, is_write, what, offset);
        if (is_write) {
            if (!is_ordered(last.read, scope)) race(last.read, false, true, what, offset);
            if (!is_ordered(last.read_before, scope)) race(last.read_before, false, true, what, offset);
            last.written = now;
        } else {
            if (last.read.phase != now.phase || last.read.thread != now.thread) last.read_before = last.read;
            last.read = now;
        }
    }
}

void look_at(const void* pointer, size_t bytes, bool is_write) {
    if (!running.stack) return;
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (address - reinterpret_cast<uint64_t>(running.stack) < STACK_BYTES) return;
    const uint64_t in_shared = address - reinterpret_cast<uint64_t>(emulated_shared);
    if (in_shared < SHARED_BYTES_MAX) {
        if (in_shared + bytes > running.shared_bytes) {
            out_of_bounds(address, bytes, is_write, "shared memory", in_shared, running.shared_bytes);
        }
        return mark(shared_marks, in_shared, bytes, is_write, Scope::BLOCK);
    }
    if (const Allocation* found = find(address, bytes)) {
        const size_t offset = address - reinterpret_cast<uint64_t>(found->start);
        if (!found->holds(address, bytes)) {
            out_of_bounds(address, bytes, is_write, "a buffer", offset, found->bytes);
        }
        return mark(found->marks, offset, bytes, is_write, Scope::LAUNCH);
    }
    // Constants lie in the compiled kernel itself.
    Dl_info library;
    if (!is_write && dladdr(pointer, &library)) return;
    out_of_bounds(address, bytes, is_write, "nothing", 0, 0);
}

}  // namespace

size_t marks_bytes(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * sizeof(Marks); }

// Before a launch: buffers may have come and gone.
void forget_recent() {
    for (const Allocation*& one : recent) one = nullptr;
}

// What the compiler calls.
extern "C" {
#define ACCESS(bytes)                                                                     \
    void __tsan_read##bytes(const void* at) { look_at(at, bytes, false); }                \
    void __tsan_write##bytes(const void* at) { look_at(at, bytes, true); }                \
    void __tsan_unaligned_read##bytes(const void* at) { look_at(at, bytes, false); }      \
    void __tsan_unaligned_write##bytes(const void* at) { look_at(at, bytes, true); }      \
    void __tsan_volatile_read##bytes(const void* at) { look_at(at, bytes, false); }       \
    void __tsan_volatile_write##bytes(const void* at) { look_at(at, bytes, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(const void* at, size_t bytes) { look_at(at, bytes, false); }
void __tsan_write_range(const void* at, size_t bytes) { look_at(at, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
