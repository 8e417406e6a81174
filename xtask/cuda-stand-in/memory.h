// Memory of the device: each allocation lies alone between pages that nobody may touch.
//
// Callers hold the driver's lock.
#pragma once

#include <cstddef>
#include <cstdint>

// Who touched a granule last; see access.h.
struct Marks;

struct Allocation {
    char* start;
    size_t bytes;
    // One for each granule; null where kernels are not run.
    Marks* marks;
    size_t marks_bytes;

    bool holds(uint64_t address, size_t count) const {
        const uint64_t offset = address - reinterpret_cast<uint64_t>(start);
        return offset < bytes && count <= bytes - offset;
    }
};

// Makes an allocation; with room for marks if kernels are run, and then filled with what is no number. Null when the device
// has no room.
const Allocation* allocate(size_t bytes, size_t marks_bytes);
// Whether there was an allocation that starts there.
bool release(uint64_t start);
// The allocation that an address lies in, its end not included; null when there is none.
const Allocation* allocation_of(uint64_t address);
// Whether a run of memory lies in one allocation.
bool is_within_one(uint64_t start, size_t bytes);
size_t allocated_bytes();
