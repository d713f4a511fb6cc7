#include "tests/offload/fault_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "offload/uring_ring_internal.h"
#include "tests/common/test.h"

#define MAX_TAGS 1024
#define MAX_FILES 16
#define BLOCK 4096u /* that every file takes */

fault_t fault;
size_t fault_n_unregistered;
void (*fault_event)(int file);

static _Thread_local bool is_spared;
static int registered_files[MAX_FILES];
static unsigned n_registered_files;

/* What is to happen to the requests that are with the system, by tag. */
static struct {
    fault_kind_t kind;
    zr_ring_request_t request;
} armed[MAX_TAGS];
static zr_ring_completion_t late[MAX_TAGS];
static size_t n_late, n_queued, n_outstanding;

void fault_arm(fault_kind_t kind, long result, size_t at, size_t n_times) {
    fault = (fault_t){.kind = kind, .result = result, .at = at, .n_times = n_times};
    memset(armed, 0, sizeof(armed));
    n_late = n_queued = n_outstanding = 0;
}

void fault_spare_thread(bool spared) {
    is_spared = spared;
}

static bool hits(fault_kind_t kind) {
    if (is_spared || fault.kind != kind || ++fault.n_calls < fault.at ||
        fault.n_calls >= fault.at + fault.n_times)
        return false;
    fault.n_hits++;
    return true;
}

/* ---- the ring ---------------------------------------------------------------------------- */

WRAP(int, zr_ring_open, unsigned depth, bool poll, zr_ring_t **ring_p) {
    if (hits(FAULT_OPEN_RING))
        return (int)fault.result;
    return __real_zr_ring_open(depth, poll, ring_p);
}

WRAP(int, zr_ring_register_files, zr_ring_t *ring, const int *files, unsigned n_files) {
    if (hits(FAULT_REGISTER_FILES)) {
        n_registered_files = 0;
        return (int)fault.result;
    }
    int error = __real_zr_ring_register_files(ring, files, n_files);
    if (!is_spared) {
        n_registered_files = error == 0 && n_files <= MAX_FILES ? n_files : 0;
        memcpy(registered_files, files, n_registered_files * sizeof(*files));
    }
    return error;
}

WRAP(int, zr_ring_register_buffers, zr_ring_t *ring, const struct iovec *buffers, unsigned n) {
    /* Were the real one called with nothing to unregister, it would do that. */
    if (hits(FAULT_REGISTER_BUFFERS))
        return (int)fault.result;
    return __real_zr_ring_register_buffers(ring, buffers, n);
}

/* Whether a fault of requests is for one of this direction. */
static bool fits(const zr_ring_request_t *request) {
    switch (fault.kind) {
    case FAULT_NONE:
    case FAULT_RESULT:
    case FAULT_SHORT:
    case FAULT_LATE:
    case FAULT_EVENT:
        return true;
    case FAULT_LOST:
    case FAULT_MISPLACED:
        return request->is_write;
    case FAULT_FLIP:
        return !request->is_write;
    default:
        return false;
    }
}

/* What a short transfer says that it has moved: all of it if it cannot be so short. */
static uint32_t said_of_short(const zr_ring_request_t *request) {
    uint32_t less = (uint32_t)fault.result;
    return request->size_bytes > less ? request->size_bytes - less : request->size_bytes;
}

/* What it moves: that, up to the end of its last block, and nothing of the rest. */
static uint32_t moved_of_short(const zr_ring_request_t *request) {
    uint32_t moved = (said_of_short(request) + BLOCK - 1) / BLOCK * BLOCK;
    return moved < request->size_bytes ? moved : request->size_bytes;
}

WRAP(int, zr_ring_queue, zr_ring_t *ring, const zr_ring_request_t *request) {
    zr_ring_request_t changed = *request;
    if (is_spared)
        return __real_zr_ring_queue(ring, request);
    armed[request->tag].kind = FAULT_NONE;
    armed[request->tag].request = *request;
    if (fits(request) && hits(fault.kind) && fault.kind != FAULT_NONE) {
        armed[request->tag].kind = fault.kind;
        if (fault.kind == FAULT_LOST)
            changed.size_bytes = 0;
        if (fault.kind == FAULT_MISPLACED)
            changed.offset_bytes = 0;
        if (fault.kind == FAULT_SHORT)
            changed.size_bytes = moved_of_short(request);
        if (fault.kind == FAULT_EVENT)
            fault_event(n_registered_files > 0 ? registered_files[request->file] : request->file);
    }
    n_queued++;
    fault_n_unregistered += request->buffer < 0;
    return __real_zr_ring_queue(ring, &changed);
}

WRAP(int, zr_ring_submit, zr_ring_t *ring) {
    if (hits(FAULT_SUBMIT))
        return (int)fault.result;
    int n = __real_zr_ring_submit(ring);
    if (n > 0 && !is_spared)
        n_outstanding += (size_t)n;
    return n;
}

static void spoil(zr_ring_completion_t *completion) {
    const zr_ring_request_t *request = &armed[completion->tag].request;
    switch (armed[completion->tag].kind) {
    case FAULT_RESULT:
        completion->result = (int)fault.result;
        break;
    case FAULT_SHORT:
        if (completion->result > (int)said_of_short(request))
            completion->result = (int)said_of_short(request);
        break;
    case FAULT_LOST:
        completion->result = (int)request->size_bytes;
        break;
    case FAULT_FLIP:
        /* No padding lies at its beginning. */
        ((unsigned char *)request->memory)[(size_t)fault.result % request->size_bytes] ^= 4;
        break;
    default:
        break;
    }
}

WRAP(int, zr_ring_next, zr_ring_t *ring, int timeout_ms, zr_ring_completion_t *completion_p) {
    if (is_spared)
        return __real_zr_ring_next(ring, timeout_ms, completion_p);
    if (timeout_ms > 0 && hits(FAULT_NEXT))
        return (int)fault.result;
    while (n_outstanding > 0) {
        int result = __real_zr_ring_next(ring, timeout_ms, completion_p);
        if (result != 1)
            return result;
        n_outstanding--;
        spoil(completion_p);
        if (armed[completion_p->tag].kind != FAULT_LATE)
            return 1;
        late[n_late++] = *completion_p;
    }
    if (n_late == 0)
        return __real_zr_ring_next(ring, timeout_ms, completion_p);
    *completion_p = late[--n_late];
    return 1;
}

/* ---- the system, when a file is made ------------------------------------------------------- */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);

static int fail_with(long error) {
    errno = (int)error;
    return -1;
}

WRAP(int, fallocate, int fd, int mode, off_t offset, off_t length) {
    if (fault.kind == FAULT_SPARSE)
        return ftruncate(fd, offset + length);
    return hits(FAULT_FALLOCATE) ? fail_with(fault.result)
                                 : __real_fallocate(fd, mode, offset, length);
}

WRAP(ssize_t, pwrite, int fd, const void *memory, size_t size_bytes, off_t offset) {
    if (!is_spared && fault.kind == FAULT_BLOCK && size_bytes % (size_t)fault.result != 0)
        return fail_with(EINVAL);
    if (!is_spared && fault.kind == FAULT_ALIGN && (uintptr_t)memory % (size_t)fault.result != 0)
        return fail_with(EINVAL);
    if (hits(FAULT_PWRITE))
        return fail_with(fault.result);
    return __real_pwrite(fd, memory, size_bytes, offset);
}

int __wrap_open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return hits(FAULT_OPEN) ? fail_with(fault.result) : __real_open(path, flags, mode);
}

int __wrap_fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    int argument = va_arg(arguments, int);
    va_end(arguments);
    return command == F_SETFL && hits(FAULT_SET_FLAGS) ? fail_with(fault.result)
                                                       : __real_fcntl(fd, command, argument);
}
