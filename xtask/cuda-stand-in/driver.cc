// A libcuda.so.1 that loads like the driver's: one device, memory on the host, streams that are done with each call
// before it returns, and recordings of them. What the driver refuses during a recording is refused.
//
// It has the functions that cubecl-cuda and cudarc call, and no others.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine.h"
#include "memory.h"

namespace {

using Pointer = uint64_t;

// What a recorded stream does when it is replayed.
struct Node {
    std::function<void()> act;
};

struct Graph {
    std::vector<Node> nodes;
};

struct Stream {
    std::unique_ptr<Graph> recording;
    bool is_invalid = false;
    // How long its launches have taken.
    double clock_us = 0;
};

struct Event {
    double clock_us = 0;
    bool is_recorded_in_graph = false;
};

// One at a time, whichever thread calls: a device that is shared by threads is no faster for it here.
std::mutex driver_lock;
Stream* recording = nullptr;

using Locked = std::lock_guard<std::mutex>;

// What would disturb a recording, on whichever stream: refused, and the recording is spoilt, as the driver has it for
// recordings in global mode.
Status refuse_while_recording(const char* what) {
    if (!recording) return OK;
    note("refused during a recording: %s", what);
    recording->is_invalid = true;
    return CAPTURE_UNSUPPORTED;
}

// Does it now, or has a recording of the stream do it at each replay.
Status act(Stream* stream, const char* what, std::function<void()> action) {
    if (stream && stream->recording) {
        note("recorded %s", what);
        stream->recording->nodes.push_back({std::move(action)});
    } else {
        action();
    }
    return OK;
}

Status allocate_device(Pointer* out, size_t bytes, const char* what) {
    if (const Status status = refuse_while_recording(what)) return status;
    if (bytes == 0) return INVALID_VALUE;
    const Allocation* made = allocate(bytes, marks_bytes(bytes));
    note("%s %zu%s", what, bytes, made ? "" : " out of memory");
    if (!made) return OUT_OF_MEMORY;
    *out = reinterpret_cast<Pointer>(made->start);
    return OK;
}

Status free_device(Pointer start, const char* what) {
    if (const Status status = refuse_while_recording(what)) return status;
    return release(start) ? OK : INVALID_VALUE;
}

// Runs a kernel and says how long that took, in microseconds: the same for all, so that tuning comes to the same choices
// each time. CubeCL's own probes of how fast a GPU is go on until they have taken long enough, and nobody reads what they
// compute.
double timed_run(const Kernel& kernel, const Grid& grid, void** parameters) {
    for (const char* probe : {"_throughput_", "launch_overhead_", "prime_buffer_"}) {
        if (kernel.name.find(probe) != std::string::npos) return 20'000;
    }
    run(kernel, grid, parameters);
    return 5;
}

void* host(Pointer pointer) { return reinterpret_cast<void*>(pointer); }

// A copy of which `device_side` is checked, the part that lies on the device. Where no kernel runs, large ones are not made:
// the weights of a real model would take the host's memory, and nothing reads them.
Status copy(Stream* stream, void* to, const void* from, size_t bytes, Pointer device_side, const char* what) {
    if (!is_within_one(device_side, bytes)) fault("out of bounds: %s of %zu bytes leaves its buffer", what, bytes);
    constexpr size_t WORTH_KEEPING_MAX = 1 << 20;
    if (!kernels_run && bytes > WORTH_KEEPING_MAX) return act(stream, what, [] {});
    return act(stream, what, [=] { memcpy(to, from, bytes); });
}

bool fits(const Grid& grid) {
    const Dim3 &blocks = grid.blocks, &threads = grid.threads;
    return blocks.count() > 0 && blocks.y <= 65'535 && blocks.z <= 65'535 && threads.count() > 0 &&
           threads.count() <= 1'024 && threads.z <= 64 &&
           grid.shared_bytes <= static_cast<unsigned>(device().shared_bytes_max);
}

int attribute(int which) {
    switch (which) {
        case 1: return 1'024;                        // threads of a block
        case 2: case 3: return 1'024;                // along x, y
        case 4: return 64;                           // along z
        case 5: return 2'147'483'647;                // blocks along x
        case 6: case 7: return 65'535;               // along y, z
        case 8: return 49'152;                       // shared memory of a block, bytes
        case 10: return 32;                          // threads of a warp
        case 12: case 82: return 65'536;             // registers of a block, of a multiprocessor
        case 13: return 1'980'000;                   // clock, kHz
        case 16: return device().processors;
        case 36: return 3'201'000;                   // clock of the memory, kHz
        case 37: return 6'144;                       // width of the memory's bus, bits
        case 38: return 60 << 20;                    // L2 cache, bytes
        case 39: return 2'048;                       // threads of a multiprocessor
        case 75: return device().major;
        case 76: return device().minor;
        case 81: return device().shared_bytes_max + 1'024;
        case 97: return device().shared_bytes_max;   // shared memory of a block that asks for more
        default: note("attribute %d is 1", which); return 1;
    }
}

}  // namespace

// A copy of a rectangle, as the driver's header lays it out.
struct Copy2D {
    size_t from_x, from_y;
    unsigned from_kind;
    const void* from_host;
    Pointer from_device;
    void* from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void* to_host;
    Pointer to_device;
    void* to_array;
    size_t to_pitch;
    size_t width_bytes, height;
};
constexpr unsigned ON_HOST = 1;

extern "C" {

// ---------------------------------------------------------------------------------------------- device and context
// What CUDA_STAND_IN_INIT says, to see what is made of a driver that does not work.
int cuInit(unsigned) {
    const char* status = getenv("CUDA_STAND_IN_INIT");
    return status ? atoi(status) : OK;
}
int cuDriverGetVersion(int* version) { return *version = 13'000, OK; }
int cuDeviceGetCount(int* count) { return *count = 1, OK; }
int cuDeviceGet(int* out, int number) { return *out = number, number == 0 ? OK : INVALID_DEVICE; }
int cuDeviceGetName(char* out, int bytes, int) { return snprintf(out, bytes, "%s", device().name), OK; }
int cuDeviceGetUuid_v2(void* out, int) { return memset(out, 1, 16), OK; }
int cuDeviceGetUuid(void* out, int) { return memset(out, 1, 16), OK; }
int cuDeviceTotalMem_v2(size_t* out, int) { return *out = device().memory_bytes, OK; }
int cuDeviceGetPCIBusId(char* out, int bytes, int) { return snprintf(out, bytes, "0000:01:00.0"), OK; }
int cuDeviceGetAttribute(int* out, int which, int) { return *out = attribute(which), OK; }
int cuDevicePrimaryCtxRetain(void** out, int) { return *out = host(0x1000), OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(void*) { return OK; }
int cuCtxGetCurrent(void** out) { return *out = host(0x1000), OK; }
int cuCtxGetDevice(int* out) { return *out = 0, OK; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, OK; }
int cuCtxSynchronize() {
    Locked locked(driver_lock);
    return refuse_while_recording("cuCtxSynchronize");
}
int cuPointerGetAttribute(void*, int, Pointer) { return INVALID_VALUE; }
int cuGetExportTable(const void** out, const void*) { return *out = nullptr, NOT_FOUND; }

static const char* name_of(int status) {
    switch (status) {
        case OK: return "CUDA_SUCCESS";
        case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
        case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
        case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
        case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
        case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
        case CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
        case CAPTURE_ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
        default: return "an error of the stand-in";
    }
}
int cuGetErrorName(int status, const char** out) { return *out = name_of(status), OK; }
int cuGetErrorString(int status, const char** out) { return *out = name_of(status), OK; }

// ---------------------------------------------------------------------------------------------------------- memory
int cuMemAlloc_v2(Pointer* out, size_t bytes) {
    Locked locked(driver_lock);
    return allocate_device(out, bytes, "cuMemAlloc");
}
int cuMemAllocAsync(Pointer* out, size_t bytes, Stream*) {
    Locked locked(driver_lock);
    return allocate_device(out, bytes, "cuMemAllocAsync");
}
int cuMemFree_v2(Pointer start) {
    Locked locked(driver_lock);
    return free_device(start, "cuMemFree");
}
int cuMemFreeAsync(Pointer start, Stream*) {
    Locked locked(driver_lock);
    return free_device(start, "cuMemFreeAsync");
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    Locked locked(driver_lock);
    *total = device().memory_bytes;
    *free = *total - allocated_bytes();
    return OK;
}
int cuMemAllocHost_v2(void** out, size_t bytes) {
    Locked locked(driver_lock);
    if (const Status status = refuse_while_recording("cuMemAllocHost")) return status;
    *out = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *out == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
int cuMemHostAlloc(void** out, size_t bytes, unsigned) { return cuMemAllocHost_v2(out, bytes); }
int cuMemFreeHost(void*) {
    Locked locked(driver_lock);
    return refuse_while_recording("cuMemFreeHost");
}
int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, Stream* stream) {
    Locked locked(driver_lock);
    return copy(stream, host(to), from, bytes, to, "cuMemcpyHtoDAsync");
}
int cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, Stream* stream) {
    Locked locked(driver_lock);
    return copy(stream, to, host(from), bytes, from, "cuMemcpyDtoHAsync");
}
int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Stream* stream) {
    Locked locked(driver_lock);
    if (!is_within_one(from, bytes)) fault("out of bounds: cuMemcpyDtoDAsync of %zu bytes reads past its buffer", bytes);
    return copy(stream, host(to), host(from), bytes, to, "cuMemcpyDtoDAsync");
}
int cuMemcpy2DAsync_v2(const Copy2D* how, Stream* stream) {
    Locked locked(driver_lock);
    const bool from_host = how->from_kind == ON_HOST, to_host = how->to_kind == ON_HOST;
    const char* from = from_host ? static_cast<const char*>(how->from_host) : static_cast<char*>(host(how->from_device));
    char* to = static_cast<char*>(to_host ? how->to_host : host(how->to_device));
    from += how->from_y * how->from_pitch + how->from_x;
    to += how->to_y * how->to_pitch + how->to_x;
    for (size_t row = 0; row < how->height; row++) {
        const char* row_from = from + row * how->from_pitch;
        char* row_to = to + row * how->to_pitch;
        const char* on_device = from_host ? row_to : row_from;
        copy(stream, row_to, row_from, how->width_bytes, reinterpret_cast<Pointer>(on_device), "a row of cuMemcpy2DAsync");
    }
    return OK;
}
int cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, Stream* stream) {
    Locked locked(driver_lock);
    if (!is_within_one(to, bytes)) fault("out of bounds: cuMemsetD8Async of %zu bytes leaves its buffer", bytes);
    return act(stream, "cuMemsetD8Async", [=] { memset(host(to), value, bytes); });
}

// ---------------------------------------------------------------------------------------------- streams and events
int cuStreamCreate(Stream** out, unsigned) { return *out = new Stream, OK; }
int cuStreamCreateWithPriority(Stream** out, unsigned flags, int) { return cuStreamCreate(out, flags); }
int cuStreamDestroy_v2(Stream*) { return OK; }
int cuStreamQuery(Stream*) { return OK; }
int cuStreamSynchronize(Stream* stream) {
    Locked locked(driver_lock);
    return stream->recording ? refuse_while_recording("cuStreamSynchronize") : OK;
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    Locked locked(driver_lock);
    if (!stream->recording || event->is_recorded_in_graph) return OK;
    note("refused during a recording: a wait for what is not recorded");
    stream->is_invalid = true;
    return CAPTURE_ISOLATION;
}
int cuEventCreate(Event** out, unsigned) { return *out = new Event{}, OK; }
int cuEventDestroy_v2(Event* event) { return delete event, OK; }
int cuEventRecord(Event* event, Stream* stream) {
    Locked locked(driver_lock);
    event->clock_us = stream->clock_us;
    event->is_recorded_in_graph = stream->recording != nullptr;
    return OK;
}
int cuEventSynchronize(Event* event) {
    Locked locked(driver_lock);
    return event->is_recorded_in_graph ? CAPTURE_UNSUPPORTED : OK;
}
int cuEventQuery(Event*) { return OK; }
int cuEventElapsedTime_v2(float* ms, Event* from, Event* to) {
    *ms = static_cast<float>((to->clock_us - from->clock_us) / 1e3);
    return OK;
}
int cuEventElapsedTime(float* ms, Event* from, Event* to) { return cuEventElapsedTime_v2(ms, from, to); }

// --------------------------------------------------------------------------------------------------------- kernels
int cuModuleLoadData(void** module, const void* image) {
    Locked locked(driver_lock);
    if (const Status status = refuse_while_recording("cuModuleLoadData")) return status;
    return load_module(static_cast<const char*>(image), module);
}
int cuModuleUnload(void*) { return OK; }
int cuModuleGetFunction(Kernel** out, void* module, const char* name) {
    Locked locked(driver_lock);
    return find_kernel(module, name, out);
}
int cuFuncSetAttribute(Kernel*, int which, int value) {
    constexpr int SHARED_BYTES = 8;
    return which == SHARED_BYTES && value > device().shared_bytes_max ? INVALID_VALUE : OK;
}
int cuFuncGetAttribute(int* out, int, Kernel*) { return *out = 0, OK; }
int cuLaunchKernel(Kernel* kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                   unsigned threads_y, unsigned threads_z, unsigned shared_bytes, Stream* stream, void** parameters,
                   void**) {
    Locked locked(driver_lock);
    const Grid grid{{blocks_x, blocks_y, blocks_z}, {threads_x, threads_y, threads_z}, shared_bytes};
    note("launch%s %s blocks %u %u %u threads %u %u %u shared %u", stream->recording ? " recorded" : "",
         kernel->name.c_str(), blocks_x, blocks_y, blocks_z, threads_x, threads_y, threads_z, shared_bytes);
    if (!fits(grid)) return note("refused: no such grid"), INVALID_VALUE;
    // A recorded launch keeps its parameters as they are now.
    std::vector<std::vector<char>> values;
    for (size_t i = 0; i < kernel->parameter_bytes.size(); i++) {
        const char* value = static_cast<const char*>(parameters[i]);
        values.emplace_back(value, value + kernel->parameter_bytes[i]);
    }
    return act(stream, kernel->name.c_str(), [=, values = std::move(values)]() mutable {
        std::vector<void*> pointers;
        for (std::vector<char>& value : values) pointers.push_back(value.data());
        stream->clock_us += timed_run(*kernel, grid, pointers.data());
    });
}
int cuTensorMapEncodeTiled(void*, ...) { return NOT_SUPPORTED; }
int cuTensorMapEncodeIm2col(void*, ...) { return NOT_SUPPORTED; }

// ------------------------------------------------------------------------------------------------------ recordings
int cuStreamBeginCapture_v2(Stream* stream, int) {
    Locked locked(driver_lock);
    if (recording) return CAPTURE_UNSUPPORTED;
    note("recording begins");
    stream->recording = std::make_unique<Graph>();
    stream->is_invalid = false;
    recording = stream;
    return OK;
}
int cuStreamEndCapture(Stream* stream, Graph** out) {
    Locked locked(driver_lock);
    if (!stream->recording) return INVALID_VALUE;
    *out = nullptr;
    const std::unique_ptr<Graph> graph = std::move(stream->recording);
    recording = nullptr;
    note("recording ends: %zu nodes%s", graph->nodes.size(), stream->is_invalid ? ", invalid" : "");
    if (stream->is_invalid) return CAPTURE_INVALIDATED;
    *out = new Graph(*graph);
    return OK;
}
int cuGraphGetNodes(Graph* graph, void** out, size_t* count) {
    if (!out) return *count = graph->nodes.size(), OK;
    for (size_t i = 0; i < *count; i++) out[i] = host(i + 1);
    return OK;
}
// Allocations are refused during a recording, so that no node is one.
int cuGraphNodeGetType(void*, int* out) { return *out = 0, OK; }
int cuGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) { return *out = new Graph(*graph), OK; }
int cuGraphUpload(Graph*, Stream*) { return OK; }
int cuGraphLaunch(Graph* graph, Stream*) {
    Locked locked(driver_lock);
    note("replay of %zu nodes", graph->nodes.size());
    for (const Node& node : graph->nodes) node.act();
    return OK;
}
int cuGraphDestroy(Graph* graph) { return delete graph, OK; }
int cuGraphExecDestroy(Graph* graph) { return delete graph, OK; }
}
