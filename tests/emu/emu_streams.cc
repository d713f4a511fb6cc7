/*
 * Devices, streams, events and copies of the emulation, and the failures of calls and of work.
 *
 * What is queued runs when somebody waits: then the heads of all streams of all devices run, as
 * their events allow, in an order that is drawn for each wait: the waiter's stream before all
 * others, after them, or mixed. Now and then some of it runs when something is queued. A wait that
 * was forgotten lets a stream run ahead of what it needs, and the data shows it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "tests/emu/emu_internal.h"

struct CUevent_st {
    int device;
    uint64_t n_recorded = 0; /* records queued */
    uint64_t n_passed = 0;   /* the latest of them that has run */
    bool has_time = false;   /* it was made for it */
    double seconds = 0;      /* when that was */
};

namespace {

struct work_t {
    enum { RUN, RECORD, WAIT, GATE } kind = RUN;
    std::function<cudaError_t()> run;
    std::function<bool()> is_open; /* of a gate: whether it lets the stream pass */
    std::shared_ptr<CUevent_st> event;
    uint64_t ticket = 0;         /* which record of the event */
    bool is_for_waiters = false; /* it runs while somebody waits, not for who only asks */
};

} // namespace

struct CUstream_st {
    int device;
    std::deque<work_t> work;
    bool is_destroyed = false; /* goes when its work has run */
    int priority = 0;
};

namespace emu {

std::mutex mutex;
emu_options_t options = emu_options_default();

namespace {

struct machine_t {
    std::vector<cudaStream_t> streams;
    std::vector<std::shared_ptr<CUevent_st>> events;
    std::vector<cudaError_t> failed; /* of each device: what its work failed with */
    size_t n_misuses = 0;
    uint64_t draws = options.seed;
    bool ignores_waits = false;
    bool is_held = false;
    std::thread::id held_until;                         /* this one asks for an event */
    int n_waiting = 0;                                  /* threads, for work to be done */
    bool streams_run_alone = false, has_runner = false; /* a thread that makes them */
    std::map<std::pair<int, const void *>, size_t>
        shared_bytes; /* asked for, by device and kernel */
    struct {
        std::string name;
        int countdown = 0, error = 0;
    } call, kernel; /* that the test wants to fail */
};
machine_t &machine = *new machine_t; /* is looked at after the last destructor */

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

} // namespace

/* ---- failures ---- */

void misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("emulation: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    machine.n_misuses++;
}

template <typename F> static int count_down(F &wanted, const char *name) {
    bool is_it = wanted.name.empty() || strstr(name, wanted.name.c_str()) != NULL;
    if (wanted.countdown > 0 && is_it && --wanted.countdown == 0)
        return wanted.error;
    return 0;
}

cudaError_t called_always(const char *name) {
    return (cudaError_t)count_down(machine.call, name);
}

cudaError_t called(const char *name) {
    cudaError_t wanted = called_always(name);
    if (wanted != cudaSuccess)
        return wanted;
    size_t device = (size_t)device_of_thread;
    return device < machine.failed.size() ? machine.failed[device] : cudaSuccess;
}

cudaError_t returned(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

int current_device() {
    return device_of_thread;
}

unsigned draw(unsigned below) {
    machine.draws = machine.draws * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(machine.draws >> 33) % below;
}

/* ---- running ---- */

static void hold(bool is_held) {
    machine.is_held = is_held;
    machine.held_until = std::thread::id();
}

static bool is_ready(const CUstream_st *stream) {
    if (stream->work.empty() || machine.is_held)
        return false;
    const work_t &work = stream->work.front();
    if (work.is_for_waiters && machine.n_waiting == 0)
        return false;
    if (work.kind == work_t::GATE)
        return work.is_open();
    return work.kind != work_t::WAIT || machine.ignores_waits ||
           work.event->n_passed >= work.ticket;
}

static void forget_if_done(cudaStream_t stream) {
    if (!stream->is_destroyed || !stream->work.empty())
        return;
    machine.streams.erase(std::find(machine.streams.begin(), machine.streams.end(), stream));
    delete stream;
}

/* What a thread in wait_at_gate may be waiting for: each change is told. */
static std::condition_variable_any &gate_changed = *new std::condition_variable_any;
static uint64_t n_changes = 0;

void note_change() {
    n_changes++;
    gate_changed.notify_all();
}

/* Nothing can run. Where that is because of gates, another thread may open them: as on a GPU,
 * where a collective hangs until all ranks have come, this waits without a limit. */
static void wait_at_gate() {
    bool is_at_gate = false;
    for (cudaStream_t stream : machine.streams)
        is_at_gate |= !stream->work.empty() && stream->work.front().kind == work_t::GATE;
    if (!is_at_gate) {
        misuse("a stream waits for what nobody records");
        abort();
    }
    uint64_t seen = n_changes;
    while (n_changes == seen && !machine.streams_run_alone)
        gate_changed.wait(mutex);
    if (n_changes == seen)
        gate_changed.wait_for(mutex, std::chrono::microseconds(200)); /* for another process */
}

/* Of the host's clock, which the emulated device shares, from a zero of its own. */
static double clock_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - 1000.0;
}

static void run_first(cudaStream_t stream) {
    note_change();
    work_t work = std::move(stream->work.front());
    stream->work.pop_front();
    cudaError_t &failed = machine.failed[(size_t)stream->device];
    if (work.kind == work_t::RECORD) {
        work.event->n_passed = std::max(work.event->n_passed, work.ticket);
        work.event->seconds = clock_seconds();
    } else if (work.kind == work_t::RUN && failed == cudaSuccess)
        failed = work.run();
    forget_if_done(stream);
}

/* A ready stream, drawn; not `except` where there is another. NULL: none is ready. */
static cudaStream_t draw_ready(cudaStream_t except) {
    cudaStream_t drawn = NULL;
    unsigned n_ready = 0;
    for (cudaStream_t stream : machine.streams)
        if (stream != except && is_ready(stream) && draw(++n_ready) == 0)
            drawn = stream;
    return drawn;
}

enum order_t { TARGET_FIRST, TARGET_LAST, MIXED, N_ORDERS };

/* Run until `is_done`, or until nothing can: false. */
template <typename F>
static bool run_while_ready(const F &is_done, cudaStream_t target, order_t order) {
    access_t access;
    while (!is_done()) {
        uint64_t seen = n_changes;
        cudaStream_t next = NULL;
        if (order == TARGET_FIRST && target != NULL && is_ready(target))
            next = target;
        if (next == NULL)
            next = draw_ready(order == TARGET_LAST ? target : NULL);
        if (next == NULL && target != NULL && is_ready(target))
            next = target;
        if (next != NULL)
            run_first(next);
        else if (n_changes == seen) /* otherwise looking at one gate has opened another */
            return false;
    }
    return true;
}

/* Run until `is_done`, by way of a stream or of none (NULL). */
template <typename F> static void run_until(F is_done, cudaStream_t target) {
    order_t order = (order_t)draw(N_ORDERS);
    machine.n_waiting++;
    while (!is_done() && !run_while_ready(is_done, target, order))
        wait_at_gate();
    machine.n_waiting--;
}

/* One time in `rarity`, some pieces of work run before anybody waits. Rarely: a stream that is
 * never far behind finds few mistakes. */
static void run_some(unsigned rarity) {
    if (draw(rarity) != 0)
        return;
    access_t access;
    cudaStream_t next;
    for (unsigned i = 1 + draw(16); i > 0 && (next = draw_ready(NULL)) != NULL; i--)
        run_first(next);
}

/* Ends when nobody needs it any more. */
static void run_alone() {
    std::unique_lock<std::mutex> lock(mutex);
    while (machine.streams_run_alone) {
        run_some(1);
        lock.unlock();
        usleep(1000);
        lock.lock();
    }
    machine.has_runner = false;
}

void set_streams_run_alone(bool wanted) {
    if (wanted == machine.streams_run_alone)
        return;
    if (wanted && !machine.has_runner)
        std::thread(run_alone).detach();
    machine.has_runner |= wanted;
    machine.streams_run_alone = wanted;
    note_change();
}

static bool is_stream(cudaStream_t stream, const char *call) {
    if (std::count(machine.streams.begin(), machine.streams.end(), stream) > 0 &&
        !stream->is_destroyed)
        return true;
    misuse("%s: %p is no stream", call, (void *)stream);
    return false;
}

static std::shared_ptr<CUevent_st> find_event(cudaEvent_t event, const char *call) {
    for (auto &known : machine.events)
        if (known.get() == event)
            return known;
    misuse("%s: %p is no event", call, (void *)event);
    return nullptr;
}

static void queue(cudaStream_t stream, work_t work) {
    stream->work.push_back(std::move(work));
    note_change();
    run_some(100);
}

bool queue_work(cudaStream_t stream, const char *name, std::function<bool(int device)> run) {
    if (!is_stream(stream, name))
        return false;
    work_t work;
    work.run = [=] {
        if (int wanted = count_down(machine.kernel, name))
            return (cudaError_t)wanted;
        return run(stream->device) ? cudaSuccess : cudaErrorIllegalAddress;
    };
    queue(stream, std::move(work));
    return true;
}

cudaError_t queue_gate(cudaStream_t stream, const char *call, std::function<bool()> is_open) {
    if (!is_stream(stream, call))
        return cudaErrorInvalidResourceHandle;
    work_t work;
    work.kind = work_t::GATE;
    work.is_open = std::move(is_open);
    queue(stream, std::move(work));
    return cudaSuccess;
}

int device_of(cudaStream_t stream) {
    return stream->device;
}

void fail_device(int device, cudaError_t error) {
    if (machine.failed[(size_t)device] == cudaSuccess)
        machine.failed[(size_t)device] = error;
}

int failure_to_return(const char *name) {
    return count_down(machine.call, name);
}

} // namespace emu

using namespace emu;

/* Every call begins so: the lock, and the failure that it is to return. */
#define ENTER                                                                                      \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    cudaError_t failure = called(__func__);                                                        \
    if (failure != cudaSuccess)                                                                    \
    return returned(failure)

/* Of calls that give something back: they do, and then report. */
#define ENTER_TO_GIVE_BACK                                                                         \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    cudaError_t failure = called(__func__)

/* ---- names ---------------------------------------------------------------------------------- */

#define ERRORS(ERROR)                                                                              \
    ERROR(cudaSuccess, "no error")                                                                 \
    ERROR(cudaErrorInvalidValue, "invalid argument")                                               \
    ERROR(cudaErrorMemoryAllocation, "out of memory")                                              \
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument")                         \
    ERROR(cudaErrorInsufficientDriver, "the driver is insufficient for the runtime")               \
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")                                 \
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal")                                        \
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")                               \
    ERROR(cudaErrorNotReady, "device not ready")                                                   \
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered")                     \
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is already mapped")     \
    ERROR(cudaErrorHostMemoryNotRegistered, "the pointer is not to registered memory")             \
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure")

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(name, text)                                                                           \
    if (error == name)                                                                             \
        return #name;
    ERRORS(NAME)
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
#define TEXT(name, text)                                                                           \
    if (error == name)                                                                             \
        return text;
    ERRORS(TEXT)
    return "unrecognized error code";
}

/* The driver's numbers are the runtime's, as far as they are used. */
CUresult cuGetErrorName(CUresult result, const char **text) {
    *text = cudaGetErrorName((cudaError_t)result);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text) {
    *text = cudaGetErrorString((cudaError_t)result);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* ---- devices -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called_always(__func__);
    if (failure == cudaSuccess && !options.has_driver)
        failure = cudaErrorInsufficientDriver;
    if (failure == cudaSuccess && options.n_devices == 0)
        failure = cudaErrorNoDevice;
    *count = options.n_devices;
    return returned(failure);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    ENTER;
    *properties = {};
    snprintf(properties->name, sizeof(properties->name), "emulated device %d", device);
    properties->totalGlobalMem = options.memory_bytes;
    properties->major = options.major;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 256 << 10; /* so small that attention's heads are several groups */
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    ENTER;
    if (device < 0 || device >= options.n_devices)
        return returned(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : (int)shared_bytes_most;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called_always(__func__);
    if (device < 0 || device >= options.n_devices)
        return returned(cudaErrorInvalidDevice);
    device_of_thread = device;
    machine.failed.resize((size_t)options.n_devices, cudaSuccess);
    return returned(failure);
}

cudaError_t cudaDeviceCanAccessPeer(int *can_access, int device, int peer) {
    ENTER;
    *can_access = options.are_peers && device != peer;
    return cudaSuccess;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    *device = ordinal;
    return (CUresult)called(__func__);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED &&
             options.has_virtual_memory;
    return (CUresult)called(__func__);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    static const struct {
        const char *name;
        void *function;
    } calls[] = {
#define CALL(name) {#name, (void *)name}
        CALL(cuGetErrorName),
        CALL(cuGetErrorString),
        CALL(cuDeviceGet),
        CALL(cuMemAddressReserve),
        CALL(cuMemAddressFree),
        CALL(cuDeviceGetAttribute),
        CALL(cuMemCreate),
        CALL(cuMemRelease),
        CALL(cuMemGetAllocationGranularity),
        CALL(cuMemMap),
        CALL(cuMemUnmap),
        CALL(cuMemSetAccess),
    };
    ENTER;
    (void)version;
    (void)flags;
    (void)result;
    *function = NULL;
    for (auto &call : calls)
        if (strcmp(call.name, symbol) == 0)
            *function = call.function;
    return cudaSuccess;
}

/* ---- streams and events --------------------------------------------------------------------- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

/* What a GPU makes of a priority is a hint, and orders here are drawn: it is kept alone. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    ENTER;
    (void)flags;
    machine.streams.push_back(*stream = new CUstream_st{device_of_thread, {}, false, priority});
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    ENTER;
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER_TO_GIVE_BACK;
    if (!is_stream(stream, __func__))
        return returned(cudaErrorInvalidResourceHandle);
    stream->is_destroyed = true; /* CUDA does not wait either */
    forget_if_done(stream);
    return returned(failure);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER;
    if (!is_stream(stream, __func__))
        return returned(cudaErrorInvalidResourceHandle);
    run_until([=] { return stream->work.empty(); }, stream);
    return returned(machine.failed[(size_t)stream->device]);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ENTER;
    machine.events.push_back(std::make_shared<CUevent_st>(CUevent_st{device_of_thread}));
    machine.events.back()->has_time = (flags & cudaEventDisableTiming) == 0;
    *event = machine.events.back().get();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER_TO_GIVE_BACK;
    auto known = find_event(event, __func__);
    if (known == nullptr)
        return returned(cudaErrorInvalidResourceHandle);
    machine.events.erase(std::find(machine.events.begin(), machine.events.end(), known));
    return returned(failure);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER;
    auto known = find_event(event, __func__);
    if (known == nullptr || !is_stream(stream, __func__) || known->device != stream->device)
        return returned(cudaErrorInvalidResourceHandle);
    work_t work;
    work.kind = work_t::RECORD;
    work.event = known;
    work.ticket = ++known->n_recorded;
    queue(stream, std::move(work));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    ENTER;
    (void)flags;
    auto known = find_event(event, __func__);
    if (known == nullptr || !is_stream(stream, __func__))
        return returned(cudaErrorInvalidResourceHandle);
    work_t work;
    work.kind = work_t::WAIT;
    work.event = known;
    work.ticket = known->n_recorded;
    queue(stream, std::move(work));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER;
    auto known = find_event(event, __func__);
    if (known == nullptr)
        return returned(cudaErrorInvalidResourceHandle);
    uint64_t ticket = known->n_recorded;
    run_until([=] { return known->n_passed >= ticket; }, NULL);
    return returned(machine.failed[(size_t)known->device]);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER;
    auto known = find_event(event, __func__);
    if (known == nullptr)
        return returned(cudaErrorInvalidResourceHandle);
    if (machine.held_until == std::this_thread::get_id())
        hold(false);
    run_some(8);
    if (known->n_passed < known->n_recorded)
        return returned(cudaErrorNotReady);
    return returned(machine.failed[(size_t)known->device]);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER;
    auto first = find_event(start, __func__), last = find_event(end, __func__);
    if (first == nullptr || last == nullptr)
        return returned(cudaErrorInvalidResourceHandle);
    if (!first->has_time || !last->has_time || first->n_recorded == 0 || last->n_recorded == 0) {
        misuse("%s: %p, %p: made without timing, or never recorded", __func__, (void *)start,
               (void *)end);
        return returned(cudaErrorInvalidResourceHandle);
    }
    if (first->n_passed < first->n_recorded || last->n_passed < last->n_recorded)
        return returned(cudaErrorNotReady);
    *ms = (float)(1e3 * (last->seconds - first->seconds));
    return returned(machine.failed[(size_t)first->device]);
}

/* ---- work ----------------------------------------------------------------------------------- */

static bool is_to_fail(size_t size) {
    return size > 0 && size == options.fail_copy_bytes;
}

static cudaError_t run_copy(int device, void *dst, const void *src, size_t size) {
    if (is_to_fail(size))
        return cudaErrorLaunchFailure;
    if (!may_access(device, dst, size, true) || !may_access(device, src, size, true))
        return cudaErrorIllegalAddress;
    return run_guarded(device, [=] { memcpy(dst, src, size); }) ? cudaSuccess
                                                                : cudaErrorIllegalAddress;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER;
    (void)kind;
    if (!is_stream(stream, __func__))
        return returned(cudaErrorInvalidResourceHandle);
    /* Host memory has to be registered as one piece, or not at all. */
    if ((!is_device_address(dst) && !may_access(stream->device, dst, size, true)) ||
        (!is_device_address(src) && !may_access(stream->device, src, size, true)))
        return returned(cudaErrorInvalidValue);
    work_t work;
    work.run = [=] { return run_copy(stream->device, dst, src, size); };
    work.is_for_waiters = is_to_fail(size);
    queue(stream, std::move(work));
    return cudaSuccess;
}

static cudaError_t check_launch(const emu_launch_t &launch) {
    cudaError_t failure = called("cudaLaunchKernel");
    if (failure != cudaSuccess)
        return failure;
    if (!is_stream(launch.stream, launch.name) || launch.stream->device != device_of_thread)
        return cudaErrorInvalidResourceHandle;
    size_t n_threads = (size_t)launch.n_threads.x * launch.n_threads.y * launch.n_threads.z;
    size_t n_blocks = (size_t)launch.n_blocks.x * launch.n_blocks.y * launch.n_blocks.z;
    if (n_threads == 0 || n_threads > 1024 || n_blocks == 0)
        return cudaErrorInvalidConfiguration;
    auto asked = machine.shared_bytes.find({device_of_thread, launch.function});
    size_t shared_bytes = launch.shared_bytes + launch.static_bytes;
    if (shared_bytes > shared_bytes_unasked &&
        (shared_bytes > shared_bytes_most || asked == machine.shared_bytes.end() ||
         launch.shared_bytes > asked->second))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute,
                                 int value) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    if (failure != cudaSuccess)
        return returned(failure);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > shared_bytes_most)
        return returned(cudaErrorInvalidValue);
    size_t &allowed = machine.shared_bytes[{device_of_thread, function}];
    if ((size_t)value < allowed)
        misuse("%s: %zu bytes were allowed, and %d are now: a launch of another thread that needs "
               "more may come between",
               __func__, allowed, value);
    allowed = (size_t)value;
    return cudaSuccess;
}

void emu_queue_kernel(const emu_launch_t &launch, std::function<void()> thread,
                      std::vector<const void *> pointers) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (returned(check_launch(launch)) != cudaSuccess)
        return;
    work_t work;
    work.run = [=] {
        int device = launch.stream->device;
        if (int wanted = count_down(machine.kernel, launch.name))
            return (cudaError_t)wanted;
        for (const void *pointer : pointers)
            if (pointer != NULL && !may_access(device, pointer, 1, false))
                return cudaErrorIllegalAddress;
        return run_kernel(device, launch, thread) ? cudaSuccess : cudaErrorIllegalAddress;
    };
    queue(launch.stream, std::move(work));
}

/* ---- for tests ------------------------------------------------------------------------------ */

emu_options_t emu_options_default(void) {
    const char *seed = getenv("EMU_SEED"), *granule = getenv("EMU_GRANULE_BYTES");
    const char *major = getenv("EMU_MAJOR");
    const char *cudnn = getenv("EMU_CUDNN_VERSION");
    const char *devices = getenv("EMU_DEVICES"), *fail_copy = getenv("EMU_FAIL_COPY_BYTES");
    emu_options_t defaults = {};
    defaults.n_devices = devices != NULL ? atoi(devices) : 2;
    defaults.has_driver = true;
    defaults.major = major != NULL ? atoi(major) : 8;
    defaults.has_virtual_memory = getenv("EMU_NO_VIRTUAL_MEMORY") == NULL;
    defaults.are_peers = true;
    defaults.has_cublaslt = true;
    defaults.has_epilogues = getenv("EMU_NO_EPILOGUES") == NULL;
    defaults.cudnn_version = cudnn != NULL ? strtoull(cudnn, NULL, 0) : 91900;
    defaults.has_cudnn = defaults.cudnn_version > 0;
    defaults.granule_bytes = granule != NULL ? strtoull(granule, NULL, 0) : (size_t)1 << 20;
    defaults.memory_bytes = (size_t)1 << 30;
    defaults.in_use_bytes = (size_t)3 << 20;
    defaults.pinned_bytes = (size_t)1 << 30;
    defaults.fail_copy_bytes = fail_copy != NULL ? strtoull(fail_copy, NULL, 0) : 0;
    defaults.seed = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    return defaults;
}

static size_t n_streams() {
    return (size_t)std::count_if(machine.streams.begin(), machine.streams.end(),
                                 [](cudaStream_t stream) { return !stream->is_destroyed; });
}

static size_t n_live() {
    return n_streams() + machine.events.size() + n_live_memory() + n_live_blas() + n_live_dnn() +
           n_live_comms();
}

void emu_configure(const emu_options_t *wanted) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (n_live() > 0)
        misuse("another machine, while the old one is in use");
    options = *wanted;
    machine.draws = options.seed;
    machine.shared_bytes.clear();
    machine.failed.assign((size_t)options.n_devices, cudaSuccess);
}

void emu_fail_call(const char *name, int nth, int error) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    machine.call = {name != NULL ? name : "", nth, error};
}

bool emu_has_failed_call(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return machine.call.countdown == 0;
}

void emu_fail_kernel(const char *name, int nth, int error) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    machine.kernel = {name, nth, error};
}

void emu_hold(bool is_held) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    hold(is_held);
}

void emu_hold_until_asked(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    hold(true);
    machine.held_until = std::this_thread::get_id();
}

bool emu_is_held(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return machine.is_held;
}

void emu_ignore_waits(bool ignore) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    machine.ignores_waits = ignore;
}

void emu_forget_failures(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    machine.failed.assign((size_t)options.n_devices, cudaSuccess);
}

size_t emu_n_live(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return n_live();
}

size_t emu_n_misuses(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return machine.n_misuses;
}

__attribute__((destructor)) static void report() {
    if (n_live() > 0)
        misuse(
            "not given back at the end: %zu streams, %zu events, %zu of memory, %zu of cuBLASLt, "
            "%zu of cuDNN, %zu of NCCL",
            n_streams(), machine.events.size(), n_live_memory(), n_live_blas(), n_live_dnn(),
            n_live_comms());
    if (machine.n_misuses > 0)
        _exit(1);
}
