// Faults made on purpose, each of which the emulator has to notice, and next to each what is right and must pass.
//
// A fault ends the process, so that each case is one of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "driver.h"

extern "C" {
int cuMemAlloc_v2(uint64_t*, size_t);
int cuMemFree_v2(uint64_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void*, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, uint64_t, size_t, void*);
int cuModuleLoadData(void**, const void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuStreamCreate(void**, unsigned);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int cuStreamSynchronize(void*);
int cuGraphLaunch(void*, void*);
int nvrtcCreateProgram(void**, const char*, const char*, int, const char* const*, const char* const*);
int nvrtcCompileProgram(void*, int, const char* const*);
int nvrtcGetPTXSize(void*, size_t*);
int nvrtcGetPTX(void*, char*);
int nvrtcGetProgramLogSize(void*, size_t*);
int nvrtcGetProgramLog(void*, char*);
}

namespace {

constexpr int WRONG = 1;
void* stream;

// Ends a case that did not come to what it should have.
void expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "expected: %s\n", what);
    _exit(WRONG);
}

void* program_of(const std::string& source) {
    void* program;
    nvrtcCreateProgram(&program, source.c_str(), nullptr, 0, nullptr, nullptr);
    return program;
}

// The kernel `k` of a program that has been compiled.
void* load(void* program) {
    size_t bytes;
    nvrtcGetPTXSize(program, &bytes);
    std::vector<char> image(bytes);
    nvrtcGetPTX(program, image.data());
    void *module, *kernel;
    expect(cuModuleLoadData(&module, image.data()) == OK, "the module loads");
    expect(cuModuleGetFunction(&kernel, module, "k") == OK, "the kernel is found");
    return kernel;
}

// The kernel `k` with such parameters and such a body.
void* compile(const std::string& body) {
    void* program = program_of("extern \"C\" __global__ void __launch_bounds__(64) k(" + body);
    expect(nvrtcCompileProgram(program, 0, nullptr) == OK, "the kernel compiles");
    return load(program);
}

uint64_t buffer(const std::vector<float>& values) {
    uint64_t start;
    expect(cuMemAlloc_v2(&start, values.size() * 4) == OK, "there is memory");
    cuMemcpyHtoDAsync_v2(start, values.data(), values.size() * 4, stream);
    return start;
}

std::vector<float> numbers(size_t count) {
    std::vector<float> all(count);
    for (size_t i = 0; i < count; i++) all[i] = static_cast<float>(i);
    return all;
}

std::vector<float> read(uint64_t start, size_t count) {
    std::vector<float> all(count);
    cuMemcpyDtoHAsync_v2(all.data(), start, count * 4, stream);
    return all;
}

constexpr unsigned THREADS = 64;

int launch(void* kernel, unsigned blocks, std::vector<uint64_t> parameters, unsigned shared_bytes = 4 * THREADS) {
    std::vector<void*> pointers;
    for (uint64_t& one : parameters) pointers.push_back(&one);
    return cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, shared_bytes, stream, pointers.data(), nullptr);
}

// Sums of two blocks through shared memory, with what lies between filling it and the first step, and between steps.
void run_sum(const std::string& first, const std::string& each) {
    const uint64_t in = buffer(numbers(2 * THREADS)), out = buffer(numbers(2));
    const std::string body = R"(const float* in, float* out) {
    extern __shared__ __align__(16) char memory[];
    float* partial = reinterpret_cast<float*>(memory);
    partial[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
)" + first + R"(
    for (unsigned half = 32; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
)" + each + R"(
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
})";
    launch(compile(body), 2, {in, out});
    expect(read(out, 2) == std::vector<float>{2'016, 6'112}, "the sums of both blocks");
}

// One kernel over a buffer of 64 numbers in and out, one block unless said otherwise.
void run_on_64(const std::string& statements, unsigned blocks = 1, unsigned shared_bytes = 4 * THREADS) {
    const uint64_t in = buffer(numbers(THREADS)), out = buffer(numbers(THREADS));
    const std::string body = R"(const float* in, float* out) {
    extern __shared__ __align__(16) char memory[];
    float* shared = reinterpret_cast<float*>(memory);
    const unsigned i = threadIdx.x;
)" + statements + "}";
    expect(launch(compile(body), blocks, {in, out}, shared_bytes) == OK, "the launch is accepted");
}

void warps_exchange() {
    const uint64_t out = buffer(numbers(THREADS));
    launch(compile(R"(float* out) {
    float value = threadIdx.x;
    for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(__activemask(), value, mask);
    const unsigned odd = __ballot_sync(__activemask(), threadIdx.x & 1);
    const bool all = __all_sync(__activemask(), threadIdx.x >= 32), any = __any_sync(__activemask(), threadIdx.x == 40);
    out[threadIdx.x] = value + (odd == 0xaaaaaaaa) + 2 * all + 4 * any;
})"), 1, {out});
    const std::vector<float> found = read(out, THREADS);
    for (unsigned i = 0; i < THREADS; i++) expect(found[i] == (i < 32 ? 496 + 1 : 1'520 + 1 + 2 + 4), "a warp's sum");
}

void bf16_rounds_to_even() {
    const std::vector<float> in{1.0f, 1.00390625f, 1.01171875f, 1.0039064f, -2.5f, 3.4e38f, NAN, 65'280.0f};
    const std::vector<float> expected{1.0f, 1.0f, 1.015625f, 1.0078125f, -2.5f, INFINITY, NAN, 65'280.0f};
    const uint64_t from = buffer(in), to = buffer(in);
    launch(compile(R"(const float* in, float* out) {
    if (threadIdx.x < 8) out[threadIdx.x] = float(__nv_bfloat16(in[threadIdx.x]));
})"), 1, {from, to});
    const std::vector<float> found = read(to, in.size());
    for (size_t i = 0; i < in.size(); i++) {
        expect(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i])), "the nearest bf16");
    }
}

void nothing_is_no_number() {
    uint64_t fresh;
    cuMemAlloc_v2(&fresh, 4 * THREADS);
    expect(std::isnan(read(fresh, 1)[0]), "fresh memory holds no number");
    const uint64_t out = buffer(numbers(THREADS));
    launch(compile(R"(float* out) {
    extern __shared__ __align__(16) char memory[];
    out[threadIdx.x] = reinterpret_cast<float*>(memory)[threadIdx.x];
})"), 1, {out});
    expect(std::isnan(read(out, 1)[0]), "fresh shared memory holds no number");
}

void a_replay_runs_what_was_recorded() {
    void* kernel = compile("float* data) { data[threadIdx.x] += 1; }");
    const uint64_t data = buffer(numbers(THREADS));
    void* graph;
    expect(cuStreamBeginCapture_v2(stream, 0) == OK, "a recording begins");
    launch(kernel, 1, {data});
    launch(kernel, 1, {data});
    expect(cuStreamEndCapture(stream, &graph) == OK, "it ends");
    expect(read(data, 1)[0] == 0, "nothing runs while it is recorded");
    cuGraphLaunch(graph, stream);
    cuGraphLaunch(graph, stream);
    expect(read(data, 1)[0] == 4, "two replays of two launches");
}

void a_recording_is_spoilt_by(const std::function<int()>& call) {
    void* graph;
    cuStreamBeginCapture_v2(stream, 0);
    expect(call() == CAPTURE_UNSUPPORTED, "the call is refused");
    expect(cuStreamEndCapture(stream, &graph) == CAPTURE_INVALIDATED, "and the recording with it");
}

// Kernels whose parameters are of types of one name and of different sizes, as CubeCL's are.
void types_of_one_name_are_told_apart() {
    const uint64_t out = buffer(numbers(2));
    for (const char* last : {"1", "3"}) {
        void* program = program_of(std::string("struct Info { float all[") + last + R"(]; };
extern "C" __global__ void k(float* out, const __grid_constant__ Info info) { out[1] = info.all[)" + last + "- 1]; }");
        expect(nvrtcCompileProgram(program, 0, nullptr) == OK, "the kernel compiles");
        void* kernel = load(program);
        float info[]{5, 6, 7};
        uint64_t start = out;
        void* parameters[] = {&start, info};
        cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    }
    expect(read(out, 2)[1] == 7, "the last number of the larger type");
}

void a_compiler_says_what_is_wrong() {
    void* program = program_of("extern \"C\" __global__ void k(float* out) { out[0] = no_such_thing; }");
    expect(nvrtcCompileProgram(program, 0, nullptr) != OK, "it does not compile");
    size_t bytes;
    nvrtcGetProgramLogSize(program, &bytes);
    std::vector<char> log(bytes);
    nvrtcGetProgramLog(program, log.data());
    expect(strstr(log.data(), "no_such_thing"), "the compiler's own words");
}

// What a case has to come to: nothing wrong, or a fault that says these words.
struct Case {
    const char* name;
    const char* fault;
    std::function<void()> run;
};

const std::vector<Case> CASES{
    {"sums with barriers", nullptr, [] { run_sum("__syncthreads();", "__syncthreads();"); }},
    {"a missing barrier", "race", [] { run_sum("__syncthreads();", ""); }},
    {"a warp's barrier where the block's is needed", "race", [] { run_sum("__syncwarp();", "__syncthreads();"); }},
    {"a barrier that some threads never come to", "divergent barrier",
     [] { run_on_64("if (i < 7) __syncwarp(); else __syncthreads(); out[i] = in[i];"); }},
    {"warps that exchange values", nullptr, warps_exchange},
    {"a warp that shares memory with its barrier", nullptr,
     [] { run_on_64("shared[i] = in[i]; __syncwarp(); out[i] = shared[i ^ 1];"); }},
    {"a warp that shares memory without its barrier", "race",
     [] { run_on_64("shared[i] = in[i]; out[i] = shared[i ^ 1];"); }},
    {"rows of two blocks that overlap", "race", [] { run_on_64("out[(blockIdx.x * 32 + i) % 64] += in[i];", 2); }},
    {"a stride that leads past the end", "out of bounds",
     [] { run_on_64("out[i] = in[(i % 8) * 16 + i / 8];"); }},
    {"a read one past the end", "out of bounds", [] { run_on_64("out[i] = in[i + 1];"); }},
    {"a write one before the start", "out of bounds", [] { run_on_64("out[int(i) - 1] = in[i];"); }},
    {"a vector that is half past the end", "out of bounds",
     [] { run_on_64("struct alignas(16) Four { float a, b, c, d; }; if (i == 0) out[0] = ((const Four*)(in + 62))->d;"); }},
    {"a read beyond the shared memory that was asked for", "out of bounds",
     [] { run_on_64("out[i] = shared[i];", 1, 4 * THREADS - 4); }},
    {"a buffer that was freed", "out of bounds",
     [] {
         const uint64_t data = buffer(numbers(THREADS));
         void* kernel = compile("float* data) { data[threadIdx.x] = 1; }");
         cuMemFree_v2(data);
         launch(kernel, 1, {data});
     }},
    {"a copy that is longer than its buffer", "out of bounds",
     [] { cuMemcpyHtoDAsync_v2(buffer(numbers(4)), numbers(8).data(), 32, stream); }},
    {"memory that nobody has written", nullptr, nothing_is_no_number},
    {"numbers of 16 bits", nullptr, bf16_rounds_to_even},
    {"a replay", nullptr, a_replay_runs_what_was_recorded},
    {"an allocation in a recording", nullptr,
     [] { a_recording_is_spoilt_by([] { uint64_t start; return cuMemAlloc_v2(&start, 64); }); }},
    {"a wait in a recording", nullptr, [] { a_recording_is_spoilt_by([] { return cuStreamSynchronize(stream); }); }},
    {"a module in a recording", nullptr,
     [] { a_recording_is_spoilt_by([] { void* module; return cuModuleLoadData(&module, ""); }); }},
    {"a grid that is too large", nullptr,
     [] {
         void* kernel = compile("float* out) {}");
         uint64_t out = buffer(numbers(1));
         void* parameters[] = {&out};
         expect(cuLaunchKernel(kernel, 1, 70'000, 1, 1, 1, 1, 0, stream, parameters, nullptr) == INVALID_VALUE,
                "it is refused");
     }},
    {"parameters of one name and of two sizes", nullptr, types_of_one_name_are_told_apart},
    {"a kernel that does not compile", nullptr, a_compiler_says_what_is_wrong},
};

// Runs a case in a process of its own; what is wrong with how it ended, or nothing.
std::string judge(const Case& one) {
    int ends[2];
    if (pipe(ends)) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        cuStreamCreate(&stream, 0);
        one.run();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char part[512];
    for (ssize_t count; (count = ::read(ends[0], part, sizeof part)) > 0;) said.append(part, count);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (one.fault) {
        return code == FAULT && said.find(one.fault) != std::string::npos ? "" : "not noticed: " + said;
    }
    return code == 0 ? "" : "ended with " + std::to_string(code) + ": " + said;
}

}  // namespace

int main() {
    int failed = 0;
    for (const Case& one : CASES) {
        const std::string wrong = judge(one);
        printf("%-8s%s%s%s\n", wrong.empty() ? "ok" : "FAILED", one.name, one.fault ? ": noticed" : "", wrong.c_str());
        failed += !wrong.empty();
    }
    printf("%zu cases, %d failed\n", CASES.size(), failed);
    return failed ? 1 : 0;
}
