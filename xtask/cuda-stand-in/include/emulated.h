// CUDA C++ for g++: what the kernels use of CUDA's headers, on top of the fibers that threads.h names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "threads.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ const
#define threadIdx (emulated_thread())
#define blockIdx (emulated_block())
#define blockDim (emulated_block_size())
#define gridDim (emulated_grid_size())
#define warpSize 32

// ------------------------------------------------------------------------------------- threads that wait for others
static inline void __syncthreads() { emulated_sync_block(); }
static inline void __syncwarp(unsigned = ~0u) { emulated_sync_warp(); }
// One thread of the host runs them all, in the order of the program.
static inline void __threadfence() {}
static inline unsigned __activemask() { return emulated_active(); }

template <class T>
static T emulated_shuffle(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = emulated_exchange(bits, lane);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T>
static T __shfl_sync(unsigned, T value, int lane, int = 32) {
    return emulated_shuffle(value, lane);
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return emulated_shuffle(value, emulated_lane() ^ mask);
}
template <class T>
static T __shfl_down_sync(unsigned, T value, unsigned delta, int = 32) {
    const unsigned lane = emulated_lane() + delta;
    return emulated_shuffle(value, lane < 32 ? lane : emulated_lane());
}
template <class T>
static T __shfl_up_sync(unsigned, T value, unsigned delta, int = 32) {
    return emulated_shuffle(value, delta <= emulated_lane() ? emulated_lane() - delta : emulated_lane());
}
static inline bool __all_sync(unsigned, bool value) {
    const Votes votes = emulated_vote(value);
    return votes.yes == votes.all;
}
static inline bool __any_sync(unsigned, bool value) { return emulated_vote(value).yes != 0; }
static inline unsigned __ballot_sync(unsigned, bool value) { return emulated_vote(value).yes; }

// ------------------------------------------------------------------------------------------------ types of 16 bits
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    // To the nearest, ties to even; a number that is none stays none.
    __nv_bfloat16(float value) {
        uint32_t x;
        memcpy(&x, &value, 4);
        const bool is_nan = (x & 0x7fffffff) > 0x7f800000;
        bits = is_nan ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
    }
    __nv_bfloat16(double value) : __nv_bfloat16(static_cast<float>(value)) {}
    __nv_bfloat16(int value) : __nv_bfloat16(static_cast<float>(value)) {}
    operator float() const {
        const uint32_t x = static_cast<uint32_t>(bits) << 16;
        float value;
        memcpy(&value, &x, 4);
        return value;
    }
};
typedef __nv_bfloat16 nv_bfloat16;
static inline float __bfloat162float(__nv_bfloat16 value) { return value; }
static inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
static inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float value) {
        const _Float16 half = value;
        memcpy(&bits, &half, 2);
    }
    operator float() const {
        _Float16 half;
        memcpy(&half, &bits, 2);
        return half;
    }
};
typedef __half half;

// ------------------------------------------------------------------------------------------------------- functions
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class A, class B>
static auto min(A a, B b) {
    return a < b ? a : b;
}
template <class A, class B>
static auto max(A a, B b) {
    return a > b ? a : b;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
static T __ldg(const T* pointer) {
    return *pointer;
}

// ------------------------------------------------------------------------------ the way in, for what loads a kernel
// The parameters are the host's, and no access of the kernel.
template <class... Parameters, size_t... I>
__attribute__((no_sanitize("thread"))) void emulated_unpack(void (*kernel)(Parameters...), void** parameters, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<Parameters>*>(parameters[I])...);
}
template <class... Parameters>
__attribute__((no_sanitize("thread"))) void emulated_call(void (*kernel)(Parameters...), void** parameters) {
    emulated_unpack(kernel, parameters, std::index_sequence_for<Parameters...>{});
}
template <class F>
struct EmulatedSignature;
template <class... Parameters>
struct EmulatedSignature<void (*)(Parameters...)> {
    static constexpr size_t count = sizeof...(Parameters);
    static constexpr size_t bytes[] = {sizeof(Parameters)..., 0};
};
#define EMULATED_KERNEL(kernel)                                                                       \
    extern "C" {                                                                                      \
    void kernel##_emulated(void** parameters) { emulated_call(&kernel, parameters); }                 \
    size_t kernel##_parameters() { return EmulatedSignature<decltype(&kernel)>::count; }              \
    const size_t* kernel##_parameter_bytes() { return EmulatedSignature<decltype(&kernel)>::bytes; }  \
    }

// The kernels make types of these names of their own.
#define uint8_t k_uint8_t
#define uint16_t k_uint16_t
#define uint32_t k_uint32_t
#define uint64_t k_uint64_t
#define int8_t k_int8_t
#define int16_t k_int16_t
#define int32_t k_int32_t
#define int64_t k_int64_t
