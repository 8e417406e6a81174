// Memory of the device, kept on the host.
#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "driver.h"

namespace {

constexpr size_t PAGE = 4096;
// Bytes 0xff are no number in any type of floating point, and an index far outside of everything.
constexpr int POISON = 0xff;

// By their start. Entries stay where they are when others come and go.
std::map<uint64_t, Allocation> allocations;
size_t allocated = 0;

size_t to_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

char* map_pages(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

const Allocation* allocate(size_t bytes, size_t marks_bytes) {
    if (bytes > device().memory_bytes - allocated) return nullptr;
    const size_t whole = to_pages(bytes) + 2 * PAGE;
    char* memory = map_pages(whole);
    if (!memory) return nullptr;
    mprotect(memory, PAGE, PROT_NONE);
    mprotect(memory + whole - PAGE, PAGE, PROT_NONE);
    Allocation made{memory + PAGE, bytes, nullptr, marks_bytes};
    if (marks_bytes) {
        // Pages of zeros, which take no memory until they are touched.
        made.marks = reinterpret_cast<Marks*>(map_pages(to_pages(marks_bytes)));
        if (!made.marks) return nullptr;
        memset(made.start, POISON, bytes);
    }
    allocated += bytes;
    const uint64_t start = reinterpret_cast<uint64_t>(made.start);
    return &(allocations[start] = made);
}

bool release(uint64_t start) {
    const auto found = allocations.find(start);
    if (found == allocations.end()) return false;
    const Allocation& old = found->second;
    // Its pages go, its addresses stay out of reach, so that an access through an old pointer is noticed.
    mmap(old.start, to_pages(old.bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (old.marks) munmap(old.marks, to_pages(old.marks_bytes));
    allocated -= old.bytes;
    allocations.erase(found);
    return true;
}

const Allocation* allocation_of(uint64_t address) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) return nullptr;
    const Allocation& before = (--next)->second;
    return before.holds(address, 1) ? &before : nullptr;
}

bool is_within_one(uint64_t start, size_t bytes) {
    const Allocation* found = allocation_of(start);
    return bytes == 0 || (found && found->holds(start, bytes));
}

size_t allocated_bytes() { return allocated; }
