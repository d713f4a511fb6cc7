/*
 * A ring of io_uring. The one file that knows liburing; it uses what version 2.1 has.
 */
#include "offload/uring_ring_internal.h"

#include <errno.h>
#include <stdlib.h>

#include <liburing.h>

#include "kernels/base/lived_internal.h"
#include "offload/plain_ring_internal.h"

struct zr_ring {
    struct io_uring ring;
    zr_plain_ring_t *plain; /* instead of it, or NULL */
    bool has_files;
    bool has_buffers;
    bool is_polled;
};

/* Completions wait until this thread enters the kernel anyway, instead of interrupting it. */
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
#define QUIET_FLAGS (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#else
#define QUIET_FLAGS 0u
#endif

/*
 * liburing maps a ring by system calls of its own, which ThreadSanitizer does not see: to it, a
 * ring at addresses where another thread's was before is the same memory. Each ring is said to
 * come after all that were closed.
 */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char all_rings;
#define COME_AFTER_CLOSED_RINGS() __tsan_acquire(&all_rings)
#define COME_BEFORE_LATER_RINGS() __tsan_release(&all_rings)
#else
#define COME_AFTER_CLOSED_RINGS() ((void)0)
#define COME_BEFORE_LATER_RINGS() ((void)0)
#endif

int zr_ring_open(unsigned depth, bool poll, zr_ring_t **ring_p) {
    zr_ring_t *ring = calloc(1, sizeof(*ring));
    unsigned flags = poll ? IORING_SETUP_IOPOLL : 0;
    if (ring == NULL)
        return -ENOMEM;
    int error = io_uring_queue_init(depth, &ring->ring, flags | QUIET_FLAGS);
    if (error == -EINVAL && QUIET_FLAGS != 0) /* Linux before 5.19 */
        error = io_uring_queue_init(depth, &ring->ring, flags);
    if (error != 0) {
        free(ring);
        return error;
    }
    COME_AFTER_CLOSED_RINGS();
    ring->is_polled = poll;
    *ring_p = ring;
    return 0;
}

int zr_ring_open_plain(unsigned depth, zr_ring_t **ring_p) {
    zr_ring_t *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return -ENOMEM;
    ring->plain = zr_plain_ring_create(depth);
    if (ring->plain == NULL) {
        free(ring);
        return -ENOMEM;
    }
    *ring_p = ring;
    return 0;
}

static void close_plain(zr_ring_t **ring) {
    zr_plain_ring_destroy((*ring)->plain);
    free(*ring);
    *ring = NULL;
}

void zr_ring_close(zr_ring_t **ring) {
    if (*ring == NULL)
        return;
    if ((*ring)->plain != NULL) {
        close_plain(ring);
        return;
    }
    COME_BEFORE_LATER_RINGS();
    /* The kernel ends a ring some time after this returns. What it holds is given back now: the
     * room of files without names, and memory that counts towards RLIMIT_MEMLOCK. */
    if ((*ring)->has_files)
        io_uring_unregister_files(&(*ring)->ring);
    if ((*ring)->has_buffers)
        io_uring_unregister_buffers(&(*ring)->ring);
    io_uring_queue_exit(&(*ring)->ring);
    free(*ring);
    *ring = NULL;
}

int zr_ring_register_files(zr_ring_t *ring, const int *files, unsigned n_files) {
    if (ring->plain != NULL)
        return -EOPNOTSUPP; /* requests name them by their descriptors then */
    int error = io_uring_register_files(&ring->ring, files, n_files);
    ring->has_files = error == 0;
    return error;
}

int zr_ring_register_buffers(zr_ring_t *ring, const struct iovec *buffers, unsigned n_buffers) {
    if (ring->plain != NULL)
        return 0; /* they need not be pinned */
    if (ring->has_buffers)
        io_uring_unregister_buffers(&ring->ring);
    int error = io_uring_register_buffers(&ring->ring, buffers, n_buffers);
    ring->has_buffers = error == 0;
    return error;
}

int zr_ring_queue(zr_ring_t *ring, const zr_ring_request_t *request) {
    if (ring->plain != NULL)
        return zr_plain_ring_queue(ring->plain, request);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
    if (sqe == NULL)
        return -EBUSY;
    int file = request->file, buffer = request->buffer;
    void *memory = request->memory;
    uint32_t size_bytes = request->size_bytes;
    uint64_t offset_bytes = request->offset_bytes;
    if (request->is_write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, file, memory, size_bytes, offset_bytes, buffer);
    else if (request->is_write)
        io_uring_prep_write(sqe, file, memory, size_bytes, offset_bytes);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, file, memory, size_bytes, offset_bytes, buffer);
    else
        io_uring_prep_read(sqe, file, memory, size_bytes, offset_bytes);
    if (ring->has_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    sqe->user_data = request->tag;
    return 0;
}

int zr_ring_submit(zr_ring_t *ring) {
    return ring->plain != NULL ? zr_plain_ring_submit(ring->plain) : io_uring_submit(&ring->ring);
}

static int wait_for_completion(zr_ring_t *ring, int timeout_ms, struct io_uring_cqe **cqe_p) {
    struct __kernel_timespec timeout = {.tv_sec = timeout_ms / 1000,
                                        .tv_nsec = (long long)(timeout_ms % 1000) * 1000000};
    /* Without the feature liburing would put a request of its own into the ring; and a poll that
     * has found nothing counts as a time that is up. */
    if (!(ring->ring.features & IORING_FEAT_EXT_ARG) || ring->is_polled)
        return io_uring_wait_cqe(&ring->ring, cqe_p);
    return io_uring_wait_cqe_timeout(&ring->ring, cqe_p, &timeout);
}

int zr_ring_next(zr_ring_t *ring, int timeout_ms, zr_ring_completion_t *completion_p) {
    struct io_uring_cqe *cqe = NULL;
    int error = 0;
    if (ring->plain != NULL)
        return zr_plain_ring_next(ring->plain, completion_p);
    zr_lived_t clock = {0};
    int slice_ms = timeout_ms < ZR_LIVED_SLICE_MS ? timeout_ms : ZR_LIVED_SLICE_MS;
    do
        error = timeout_ms > 0 ? wait_for_completion(ring, slice_ms, &cqe)
                               : io_uring_peek_cqe(&ring->ring, &cqe);
    while (error == -EINTR || (error == -ETIME && zr_lived_ms(&clock) < timeout_ms));
    if (error == -EAGAIN || error == -ETIME)
        return 0;
    if (error != 0)
        return error;
    *completion_p = (zr_ring_completion_t){.tag = cqe->user_data, .result = cqe->res};
    io_uring_cqe_seen(&ring->ring, cqe);
    return 1;
}
