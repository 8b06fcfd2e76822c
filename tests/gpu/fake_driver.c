// A GPU's driver without a GPU. The vendors' own headers are included, so the compiler holds every function to its prototype.
//
// "Device" memory is the host's, at addresses that the host cannot use; work waits in its stream until somebody waits for it; a call that a
// real driver would refuse, or would be undefined, is refused and written down. What a kernel does is up to the test (`Run`).
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HIP
#include <hip/hip_runtime_api.h>
#define WAVE 64
#define SHARED (64 * 1024)
#else
#include <cuda.h>
#define WAVE 32
#define SHARED (227 * 1024)
#endif

enum { OK, INVALID, MEMORY, UNREADY_DRIVER, CONTEXT = 201, HANDLE = 400, STATE = 401, MISSING = 500, UNREADY = 600, CAPTURE = 900 };
enum Kind { NONE, CONTEXTS, STREAMS, MODULES, FUNCTIONS, GRAPHS, EXECUTABLES, EVENTS };
static const char *const KINDS[] = {"", "context", "stream", "module", "function", "graph", "graph's executable", "event"};

// Sizes of the kernel's parameters in the binary, and their number; less than 0: the status that refuses it. entry NULL: the whole binary.
typedef int (*Layout)(const void *image, const char *entry, unsigned *sizes);
// A launch at the time when it runs; the milliseconds that it takes.
typedef double (*Run)(const char *entry, const unsigned *shape, const uint64_t *values);

enum { FILL, UP, DOWN, LAUNCH, RECORD };
struct Op {
  int type, function, event;
  uint64_t device;
  void *host;
  size_t size;
  unsigned char value;
  unsigned shape[5];  // grid, threads, shared
  int count;
  uint64_t values[64];
};
struct Thing {
  enum Kind kind;
  int owner, capturing, shared, count;  // owner: a function's module; count: parameters or references
  unsigned sizes[64];
  char name[64];
  const void *image;
  struct Op *ops;
  size_t number;
  double time;  // of an event; less than 0 until it has happened
};
struct Block {
  uint64_t device;
  char *host;
  size_t size;
};
#define MOST 65536
static struct Thing things[MOST];
static struct Block blocks[MOST];
static int made, given;
static const uint64_t HANDLES = 1ull << 44, DEVICE = 1ull << 52;
static char report[8192];
static Layout layout;
static Run run;
static double now;
static _Thread_local int current;
static struct {
  int64_t devices, major, minor, room, fail, refuse, strict;
} settings;
static struct {
  int64_t live, up, down, direct, captured, executed, graphs, replays, allocations, references, ready;
} counts;
static char arch[64];

static int complain(int status, const char *form, ...) {
  va_list given_list;
  size_t used = strlen(report);
  va_start(given_list, form);
  vsnprintf(report + used, sizeof report - used, form, given_list);
  va_end(given_list);
  used = strlen(report);
  snprintf(report + used, sizeof report - used, "\n");
  return status;
}

static int make(enum Kind kind, void **out) {
  int index = ++made;
  if (index >= MOST) abort();
  memset(&things[index], 0, sizeof things[index]);
  things[index].kind = kind;
  *out = (void *)(uintptr_t)(HANDLES + 4096ull * (uint64_t)index);
  return index;
}

static struct Thing *find(enum Kind kind, const void *handle) {
  uint64_t at = (uint64_t)(uintptr_t)handle - HANDLES;
  uint64_t index = at / 4096;
  if (at % 4096 || !index || index > (uint64_t)made || things[index].kind != kind) {
    complain(HANDLE, "%p is no %s", handle, KINDS[kind]);
    return NULL;
  }
  return &things[index];
}

static int bound(void) {
  if (!counts.ready) return complain(UNREADY_DRIVER, "the driver was not initialized");
#ifndef HIP
  if (!current || things[current].kind != CONTEXTS) return complain(CONTEXT, "no context is current in this thread");
#endif
  return OK;
}

static int waiting(void) {
  int64_t all = 0;
  for (int i = 1; i <= made; i++)
    if (things[i].kind == STREAMS) all += (int64_t)things[i].number;
  return all != 0;
}

static char *host_of(uint64_t device, size_t size) {
  for (int i = 0; i < given; i++)
    if (blocks[i].host && device >= blocks[i].device && device + size <= blocks[i].device + blocks[i].size)
      return blocks[i].host + (device - blocks[i].device);
  return NULL;
}

static void push(struct Thing *to, const struct Op *op) {
  to->ops = realloc(to->ops, (to->number + 1) * sizeof *op);
  to->ops[to->number++] = *op;
}

static void perform(const struct Op *op) {
  char *memory = op->type < LAUNCH ? host_of(op->device, op->size) : NULL;
  if (op->type < LAUNCH && !memory) {
    complain(INVALID, "memory was freed before the work on it was done");
    return;
  }
  if (op->type == FILL) memset(memory, op->value, op->size);
  if (op->type == UP) memcpy(memory, op->host, op->size), free(op->host);
  if (op->type == DOWN) memcpy(op->host, memory, op->size);
  if (op->type == RECORD) things[op->event].time = now;
  if (op->type == LAUNCH) {
    const struct Thing *function = &things[op->function];
    if (function->kind != FUNCTIONS) complain(HANDLE, "a launch of a function whose module is gone");
    for (int i = 0; i < op->count; i++)
      if (function->sizes[i] == 8 && op->values[i] && !host_of(op->values[i], 1))
        complain(INVALID, "parameter %d of %s is %#llx, which is no memory of the device", i, function->name, (unsigned long long)op->values[i]);
    counts.executed++;
    now += run ? run(function->name, op->shape, op->values) : 0.5;
  }
}

static void drain(struct Thing *stream) {
  for (size_t i = 0; i < stream->number; i++) perform(&stream->ops[i]);
  stream->number = 0;
}

static int init(unsigned flags) { return flags ? complain(INVALID, "flags %u", flags) : (counts.ready = 1, OK); }
static int device(int *out, int ordinal) {
  if (ordinal < 0 || ordinal >= settings.devices) return complain(101, "there is no GPU %d", ordinal);
  *out = ordinal;
  return OK;
}
static int name(char *out, int size, int which) {
  if (which >= settings.devices) return complain(101, "there is no GPU %d", which);
  snprintf(out, (size_t)size, "Fake GPU");
  return OK;
}
static int stream(void **out, unsigned flags) {
  if (bound()) return CONTEXT;
  if (flags != 1) return complain(INVALID, "stream flags %u", flags);
  make(STREAMS, out);
  return OK;
}
static int synchronize(const void *handle) {
  struct Thing *one = find(STREAMS, handle);
  if (bound() || !one) return HANDLE;
  if (one->capturing) return complain(CAPTURE, "waiting for a stream that is capturing");
  drain(one);
  return OK;
}
static int end_stream(const void *handle) {
  struct Thing *one = find(STREAMS, handle);
  if (bound() || !one) return HANDLE;
  if (one->number || one->capturing) complain(STATE, "a stream ends with work in it");
  one->kind = NONE;
  return OK;
}
static int allocate(uint64_t *out, size_t size) {
  if (bound()) return CONTEXT;
  if (!size) return complain(INVALID, "an allocation of 0 bytes");
  for (int i = 1; i <= made; i++)
    if (things[i].kind == STREAMS && things[i].capturing) return complain(CAPTURE, "an allocation while a stream captures");
  if (++counts.allocations == settings.fail || counts.live + (int64_t)size > settings.room) return MEMORY;
  struct Block *block = &blocks[given++];
  if (given >= MOST) abort();
  block->host = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(block->host, 0xa5, size);  // fresh memory holds anything
  block->size = size;
  block->device = DEVICE + (uint64_t)(uintptr_t)block->host;
  counts.live += (int64_t)size;
  *out = block->device;
  return OK;
}
static int release(uint64_t address) {
  if (bound()) return CONTEXT;
  if (waiting()) complain(STATE, "memory is freed while work waits");
  for (int i = 0; i < given; i++)
    if (blocks[i].host && blocks[i].device == address) {
      free(blocks[i].host);
      blocks[i].host = NULL;
      counts.live -= (int64_t)blocks[i].size;
      return OK;
    }
  return complain(INVALID, "%#llx is freed, but is not allocated", (unsigned long long)address);
}
static int move(int type, uint64_t at, void *host, unsigned char value, size_t size, const void *handle) {
  struct Thing *one = find(STREAMS, handle);
  if (bound() || !one) return HANDLE;
  if (!size || !host_of(at, size)) return complain(INVALID, "%zu bytes at %#llx are not in one piece of memory", size, (unsigned long long)at);
  if (one->capturing) return complain(CAPTURE, "a copy of ordinary memory while the stream captures");
  struct Op op = {.type = type, .device = at, .host = host, .value = value, .size = size};
  if (type == UP) op.host = memcpy(malloc(size), host, size), counts.up += (int64_t)size;
  if (type == DOWN) counts.down += (int64_t)size;
  push(one, &op);
  return OK;
}
static int load(void **out, const void *image) {
  if (bound()) return CONTEXT;
  int status = layout(image, NULL, NULL);
  if (status < 0) return -status;
  things[make(MODULES, out)].image = image;
  return OK;
}
static int function(void **out, const void *handle, const char *entry) {
  struct Thing *module = find(MODULES, handle);
  if (bound() || !module) return HANDLE;
  unsigned sizes[64];
  int count = layout(module->image, entry, sizes);
  if (count < 0) return MISSING;
  int index = make(FUNCTIONS, out);
  things[index].owner = (int)(module - things), things[index].count = count, things[index].shared = 48 * 1024;
#ifdef HIP
  things[index].shared = SHARED;
#endif
  memcpy(things[index].sizes, sizes, sizeof sizes);
  snprintf(things[index].name, sizeof things[index].name, "%s", entry);
  return OK;
}
static int unload(const void *handle) {
  struct Thing *module = find(MODULES, handle);
  if (bound() || !module) return HANDLE;
  if (waiting()) complain(STATE, "a module is unloaded while work waits");
  for (int i = 1; i <= made; i++)
    if (things[i].kind == FUNCTIONS && things[i].owner == (int)(module - things)) things[i].kind = NONE;
  module->kind = NONE;
  return OK;
}
static int set(const void *handle, int attribute, int value) {
  struct Thing *one = find(FUNCTIONS, handle);
  if (bound() || !one) return HANDLE;
  if (attribute != 8 || value <= 0 || value > SHARED) return complain(INVALID, "attribute %d of %s is set to %d", attribute, one->name, value);
  one->shared = value;
  return OK;
}
static int launch(const void *handle, const unsigned *grid, const unsigned *block, unsigned shared, const void *where, void **parameters, void **extra) {
  struct Thing *one = find(FUNCTIONS, handle), *to = find(STREAMS, where);
  if (bound() || !one || !to) return HANDLE;
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
    return complain(INVALID, "%s has a grid of %u x %u x %u", one->name, grid[0], grid[1], grid[2]);
  if (block[1] != 1 || block[2] != 1 || !block[0] || block[0] > 1024 || block[0] % WAVE)
    return complain(INVALID, "%s has blocks of %u x %u x %u", one->name, block[0], block[1], block[2]);
  if (shared > (unsigned)one->shared) return complain(INVALID, "%s asks for %u bytes of shared memory, of %d", one->name, shared, one->shared);
  if (!parameters || extra) return complain(INVALID, "%s has no parameters, or extra ones", one->name);
  struct Op op = {.type = LAUNCH, .function = (int)(one - things), .count = one->count};
  memcpy(op.shape, grid, 3 * sizeof *grid);
  op.shape[3] = block[0], op.shape[4] = shared;
  for (int i = 0; i < one->count; i++) {
    if (!parameters[i]) return complain(INVALID, "parameter %d of %s is missing", i, one->name);
    memcpy(&op.values[i], parameters[i], one->sizes[i]);
  }
  push(to->capturing ? &things[to->capturing] : to, &op);
  to->capturing ? counts.captured++ : counts.direct++;
  return OK;
}
static int capture(const void *handle, int mode) {
  struct Thing *one = find(STREAMS, handle);
  if (bound() || !one) return HANDLE;
  if (one->capturing || mode < 0 || mode > 2) return complain(STATE, "a capture begins in a capture, or of mode %d", mode);
  void *ignored;
  one->capturing = make(GRAPHS, &ignored);
  return OK;
}
static int end_capture(const void *handle, void **out) {
  struct Thing *one = find(STREAMS, handle);
  if (bound() || !one) return HANDLE;
  if (!one->capturing) return complain(STATE, "a capture ends that never began");
  *out = (void *)(uintptr_t)(HANDLES + 4096ull * (uint64_t)one->capturing);
  one->capturing = 0;
  return OK;
}
static int instantiate(void **out, const void *handle, unsigned long long flags) {
  struct Thing *graph = find(GRAPHS, handle);
  if (bound() || !graph || flags) return HANDLE;
  if (settings.refuse == 1) return MEMORY;
  struct Thing *made_one = &things[make(EXECUTABLES, out)];
  for (size_t i = 0; i < graph->number; i++) push(made_one, &graph->ops[i]);
  counts.graphs++;
  return OK;
}
static int replay(const void *handle, const void *where) {
  struct Thing *one = find(EXECUTABLES, handle), *to = find(STREAMS, where);
  if (bound() || !one || !to) return HANDLE;
  if (to->capturing) return complain(CAPTURE, "a graph is launched while the stream captures");
  for (size_t i = 0; i < one->number; i++) push(to, &one->ops[i]);
  counts.replays++;
  return OK;
}
static int end(enum Kind kind, const void *handle) {
  struct Thing *one = find(kind, handle);
  if (bound() || !one) return HANDLE;
  free(one->ops);
  one->ops = NULL, one->number = 0, one->kind = NONE;
  return OK;
}
static int event(void **out, unsigned flags) {
  if (bound() || flags) return CONTEXT;
  things[make(EVENTS, out)].time = -1;
  return OK;
}
static int record(const void *handle, const void *where) {
  struct Thing *one = find(EVENTS, handle), *to = find(STREAMS, where);
  if (bound() || !one || !to) return HANDLE;
  one->time = -1;
  struct Op op = {.type = RECORD, .event = (int)(one - things)};
  push(to, &op);
  return OK;
}
static int await(const void *handle) {
  if (bound() || !find(EVENTS, handle)) return HANDLE;
  for (int i = 1; i <= made; i++)
    if (things[i].kind == STREAMS && !things[i].capturing) drain(&things[i]);
  return OK;
}
static int elapsed(float *out, const void *first, const void *last) {
  struct Thing *a = find(EVENTS, first), *b = find(EVENTS, last);
  if (bound() || !a || !b) return HANDLE;
  if (a->time < 0 || b->time < 0) return complain(UNREADY, "the time of an event that has not happened");
  *out = (float)(b->time - a->time);
  return OK;
}
static int error(int status, const char **out) {
  *out = status == 200 ? "invalid image" : status == MISSING ? "not found" : "refused";
  return OK;
}

// For the test.
void fake_reset(Layout given_layout, Run given_run) {
  for (int i = 0; i < given; i++) free(blocks[i].host);
  for (int i = 1; i <= made; i++) free(things[i].ops), things[i].ops = NULL;
  memset(blocks, 0, sizeof blocks);
  memset(&counts, 0, sizeof counts);
  memset(&settings, 0, sizeof settings);
  made = given = current = 0, now = 0, layout = given_layout, run = given_run, *report = 0;
  settings.devices = 1, settings.major = 9, settings.room = 1 << 30;
  snprintf(arch, sizeof arch, "gfx942:sramecc+:xnack-");
}
#define NAMED(record, field) \
  if (!strcmp(which, #field)) return &record.field;
static int64_t *setting(const char *which) {
  NAMED(settings, devices) NAMED(settings, major) NAMED(settings, minor) NAMED(settings, room) NAMED(settings, fail) NAMED(settings, refuse) NAMED(settings, strict)
  NAMED(counts, live) NAMED(counts, up) NAMED(counts, down) NAMED(counts, direct) NAMED(counts, captured) NAMED(counts, executed)
  NAMED(counts, graphs) NAMED(counts, replays) NAMED(counts, allocations) NAMED(counts, references)
  abort();
}
void fake_set(const char *which, int64_t value) { *setting(which) = value; }
int64_t fake_get(const char *which) { return *setting(which); }
void fake_arch(const char *value) { snprintf(arch, sizeof arch, "%s", value); }
void *fake_host(uint64_t address) { return host_of(address, 1); }
uint64_t fake_size(uint64_t address) {
  for (int i = 0; i < given; i++)
    if (blocks[i].host && address >= blocks[i].device && address < blocks[i].device + blocks[i].size)
      return blocks[i].size - (address - blocks[i].device);
  return 0;
}
// What was wrong, and what is left.
const char *fake_report(void) {
  for (int i = 1; i <= made; i++)
    if (things[i].kind != NONE && things[i].kind != CONTEXTS) complain(0, "a %s is left", KINDS[things[i].kind]);
  if (counts.live) complain(0, "%lld bytes are left", (long long)counts.live);
  if (counts.references) complain(0, "%lld references to the context are left", (long long)counts.references);
  return report;
}

#ifdef HIP
#define E(call) return (hipError_t)(call)
hipError_t hipInit(unsigned int flags) { E(init(flags)); }
hipError_t hipGetDeviceCount(int *out) { E((*out = (int)settings.devices, settings.devices ? 0 : 100)); }
hipError_t hipDeviceGet(hipDevice_t *out, int ordinal) { E(device(out, ordinal)); }
hipError_t hipDeviceGetName(char *out, int size, hipDevice_t which) { E(name(out, size, which)); }
hipError_t hipGetDeviceProperties(hipDeviceProp_t *out, int which) {
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "Fake GPU");
  snprintf(out->gcnArchName, sizeof out->gcnArchName, "%s", arch);
  E(which < settings.devices ? OK : 101);
}
hipError_t hipDrvGetErrorString(hipError_t status, const char **out) { E(error((int)status, out)); }
hipError_t hipSetDevice(int which) { E(which >= 0 && which < settings.devices ? OK : complain(101, "there is no GPU %d", which)); }
hipError_t hipStreamCreateWithFlags(hipStream_t *out, unsigned int flags) { E(stream((void **)out, flags)); }
hipError_t hipStreamSynchronize(hipStream_t one) { E(synchronize(one)); }
hipError_t hipStreamDestroy(hipStream_t one) { E(end_stream(one)); }
hipError_t hipMalloc(void **out, size_t size) { E(allocate((uint64_t *)out, size)); }
hipError_t hipFree(void *at) { E(release((uint64_t)(uintptr_t)at)); }
hipError_t hipMemsetD8Async(hipDeviceptr_t at, unsigned char value, size_t size, hipStream_t one) { E(move(FILL, (uint64_t)(uintptr_t)at, NULL, value, size, one)); }
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t at, const void *host, size_t size, hipStream_t one) { E(move(UP, (uint64_t)(uintptr_t)at, (void *)host, 0, size, one)); }
hipError_t hipMemcpyDtoHAsync(void *host, hipDeviceptr_t at, size_t size, hipStream_t one) { E(move(DOWN, (uint64_t)(uintptr_t)at, host, 0, size, one)); }
hipError_t hipModuleLoadData(hipModule_t *out, const void *image) { E(load((void **)out, image)); }
hipError_t hipModuleGetFunction(hipFunction_t *out, hipModule_t module, const char *entry) { E(function((void **)out, module, entry)); }
hipError_t hipModuleUnload(hipModule_t module) { E(unload(module)); }
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                                 unsigned int bz, unsigned int shared, hipStream_t one, void **parameters, void **extra) {
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  E(launch(f, grid, block, shared, one, parameters, extra));
}
hipError_t hipStreamBeginCapture(hipStream_t one, hipStreamCaptureMode mode) { E(capture(one, (int)mode)); }
hipError_t hipStreamEndCapture(hipStream_t one, hipGraph_t *out) { E(end_capture(one, (void **)out)); }
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *out, hipGraph_t graph, unsigned long long flags) { E(instantiate((void **)out, graph, flags)); }
hipError_t hipGraphLaunch(hipGraphExec_t graph, hipStream_t one) { E(replay(graph, one)); }
hipError_t hipGraphDestroy(hipGraph_t graph) { E(end(GRAPHS, graph)); }
hipError_t hipGraphExecDestroy(hipGraphExec_t graph) { E(end(EXECUTABLES, graph)); }
hipError_t hipEventCreateWithFlags(hipEvent_t *out, unsigned flags) { E(event((void **)out, flags)); }
hipError_t hipEventRecord(hipEvent_t one, hipStream_t where) { E(record(one, where)); }
hipError_t hipEventSynchronize(hipEvent_t one) { E(await(one)); }
hipError_t hipEventElapsedTime(float *out, hipEvent_t first, hipEvent_t last) { E(elapsed(out, first, last)); }
hipError_t hipEventDestroy(hipEvent_t one) { E(end(EVENTS, one)); }
#else
#define E(call) return (CUresult)(call)
CUresult CUDAAPI cuInit(unsigned int flags) { E(init(flags)); }
CUresult CUDAAPI cuDeviceGetCount(int *out) { E((*out = (int)settings.devices, OK)); }
CUresult CUDAAPI cuDeviceGet(CUdevice *out, int ordinal) { E(device(out, ordinal)); }
CUresult CUDAAPI cuDeviceGetName(char *out, int size, CUdevice which) { E(name(out, size, which)); }
CUresult CUDAAPI cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice one) {
  if (one >= settings.devices) E(complain(101, "there is no GPU %d", one));
  if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *out = (int)settings.major;
  else if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *out = (int)settings.minor;
  else if (which == CU_DEVICE_ATTRIBUTE_CLOCK_RATE) *out = 1980000;
  else if (which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *out = 132;
  else if (which == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) *out = 2619000;
  else if (which == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) { if (!settings.strict) *out = 5120; else E(INVALID); }
  else E(complain(INVALID, "attribute %d", (int)which));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceTotalMem(size_t *out, CUdevice one) { E((*out = 80ull << 30, one < settings.devices ? OK : 101)); }
CUresult CUDAAPI cuGetErrorString(CUresult status, const char **out) { E(error((int)status, out)); }
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice one) {
  static int primary;
  static void *handle;
  if (one >= settings.devices) E(complain(101, "there is no GPU %d", one));
  if (!counts.references++) primary = make(CONTEXTS, &handle);
  *out = handle;
  (void)primary;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice one) {
  if (one >= settings.devices || counts.references <= 0) E(complain(CONTEXT, "a context is given back that was not taken"));
  counts.references--;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext one) {
  struct Thing *found = find(CONTEXTS, one);
  if (!found || counts.references <= 0) E(CONTEXT);
  current = (int)(found - things);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned int flags) { E(stream((void **)out, flags)); }
CUresult CUDAAPI cuStreamSynchronize(CUstream one) { E(synchronize(one)); }
CUresult CUDAAPI cuStreamDestroy(CUstream one) { E(end_stream(one)); }
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *out, size_t size) { E(allocate((uint64_t *)out, size)); }
CUresult CUDAAPI cuMemFree(CUdeviceptr at) { E(release(at)); }
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t size, CUstream one) { E(move(FILL, at, NULL, value, size, one)); }
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr at, const void *host, size_t size, CUstream one) { E(move(UP, at, (void *)host, 0, size, one)); }
CUresult CUDAAPI cuMemcpyDtoHAsync(void *host, CUdeviceptr at, size_t size, CUstream one) { E(move(DOWN, at, host, 0, size, one)); }
CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *image) { E(load((void **)out, image)); }
CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule module, const char *entry) { E(function((void **)out, module, entry)); }
CUresult CUDAAPI cuModuleUnload(CUmodule module) { E(unload(module)); }
CUresult CUDAAPI cuFuncSetAttribute(CUfunction one, CUfunction_attribute which, int value) { E(set(one, (int)which, value)); }
CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                                unsigned int bz, unsigned int shared, CUstream one, void **parameters, void **extra) {
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  E(launch(f, grid, block, shared, one, parameters, extra));
}
CUresult CUDAAPI cuStreamBeginCapture(CUstream one, CUstreamCaptureMode mode) { E(capture(one, (int)mode)); }
CUresult CUDAAPI cuStreamEndCapture(CUstream one, CUgraph *out) { E(end_capture(one, (void **)out)); }
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) { E(instantiate((void **)out, graph, flags)); }
CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream one) { E(replay(graph, one)); }
CUresult CUDAAPI cuGraphDestroy(CUgraph graph) { E(end(GRAPHS, graph)); }
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) { E(end(EXECUTABLES, graph)); }
CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned int flags) { E(event((void **)out, flags)); }
CUresult CUDAAPI cuEventRecord(CUevent one, CUstream where) { E(record(one, where)); }
CUresult CUDAAPI cuEventSynchronize(CUevent one) { E(await(one)); }
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *out, CUevent first, CUevent last) { E(elapsed(out, first, last)); }
CUresult CUDAAPI cuEventDestroy(CUevent one) { E(end(EVENTS, one)); }
#endif
