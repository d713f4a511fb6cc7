/*
 * Store "uring": files, by io_uring; and "posix", which is the same with a ring of its own
 * (plain_ring_internal.h), for systems that have none or forbid it.
 *
 * One file per path, striped; one ring, which belongs to the rank's thread, so that there is no
 * lock. Transfers go past the page cache, because each byte is used once per step and would only
 * push others out. Whatever the system refuses of this is said, with what it costs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/base/heap_internal.h"
#include "offload/uring_internal.h"

#define PROBE_TIMEOUT_MS 60000
#define MAX_REGISTERED_BYTES ((size_t)1 << 30) /* the kernel's limit for one buffer */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define MOST_PARTS(size_bytes) ((size_bytes) / MAX_REGISTERED_BYTES + 3)

/* ---- the ring ---------------------------------------------------------------------------- */

static zr_size_text_t memlock_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return (zr_size_text_t){"no limit"};
    return zr_size_text(limit.rlim_cur);
}

static const char *ring_advice(int error) {
    switch (error) {
    case ENOSYS:
        return "this kernel has no io_uring, or a container hides it (Linux 5.15 or later; with "
               "docker: --security-opt seccomp=...)";
    case EPERM:
    case EACCES:
        return "it is forbidden here: sysctl kernel.io_uring_disabled must be 0, and a container's "
               "seccomp profile must allow it";
    case ENOMEM:
        return "raise RLIMIT_MEMLOCK (ulimit -l), or lower depth";
    case EMFILE:
    case ENFILE:
        return "raise RLIMIT_NOFILE (ulimit -n)";
    }
    return "keep these states in memory instead";
}

static zr_status_t fail_ring(const zr_store_t *store, int error) {
    return zr_fail(&store->options.log, ZR_ERR_UNSUPPORTED,
                   "store: io_uring for %s is not available: %s (errno %d); %s",
                   zr_count_text(store->options.depth, "request").text, strerror(error), error,
                   ring_advice(error));
}

/* One block there and back through the ring, polled for. 0, or an errno. */
static int try_polling(zr_uring_store_t *uring, zr_ring_t *ring) {
    const zr_uring_file_t *file = &uring->files[0];
    zr_ring_completion_t completion = {0};
    void *memory = NULL;
    if (!file->is_direct)
        return EOPNOTSUPP;
    /* More than a block: mimalloc 2.0 aligns no 256, 512 or 1024 bytes to more than 128. */
    if (posix_memalign(&memory, file->block_bytes, 4096 + file->block_bytes) != 0)
        return ENOMEM;
    memset(memory, 0, file->block_bytes);
    zr_ring_request_t request = {.is_write = true,
                                 .file = file->fd,
                                 .buffer = -1,
                                 .memory = memory,
                                 .size_bytes = (uint32_t)file->block_bytes};
    int result = (int)file->block_bytes;
    for (int i = 0; i < 2 && result == (int)file->block_bytes; i++, request.is_write = false) {
        result = zr_ring_queue(ring, &request);
        if (result == 0)
            result = zr_ring_submit(ring) == 1 ? 0 : -EIO;
        if (result == 0 && zr_ring_next(ring, PROBE_TIMEOUT_MS, &completion) == 1)
            result = completion.result;
    }
    free(memory);
    if (result == (int)file->block_bytes)
        return 0;
    return result < 0 ? -result : EIO;
}

/* A ring that polls can be had where it then fails, so the probe is a real transfer. */
static void open_polling(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    zr_ring_t *ring = NULL;
    int error = -zr_ring_open((unsigned)store->options.depth, true, &ring);
    if (error == 0)
        error = try_polling(uring, ring);
    if (error == 0) {
        zr_ring_close(&uring->ring);
        uring->ring = ring;
        store->info.is_polled = true;
        return;
    }
    zr_ring_close(&ring);
    zr_log_write(&store->options.log, ZR_LOG_WARNING,
                 "store: no polling for completions at %s: %s (errno %d); using interrupts "
                 "(polling requires the kernel option nvme.poll_queues)",
                 uring->files[0].name, strerror(error), error);
}

static zr_status_t open_ring(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    unsigned depth = (unsigned)store->options.depth;
    int error = uring->is_plain ? zr_ring_open_plain(depth, &uring->ring)
                                : zr_ring_open(depth, false, &uring->ring);
    return error == 0 ? ZR_OK : fail_ring(store, -error);
}

/* Not registered, files cost a lookup per request and nothing else: no reason to stop. */
static void register_files(zr_uring_store_t *uring) {
    int files[ZR_STORE_MAX_PATHS];
    for (size_t i = 0; i < uring->n_files; i++)
        files[i] = uring->files[i].fd;
    if (zr_ring_register_files(uring->ring, files, (unsigned)uring->n_files) == 0)
        uring->has_registered_files = true;
}

/* ---- files and where extents lie in them --------------------------------------------------- */

static zr_status_t open_files(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    const zr_store_options_t *o = &store->options;
    if (o->paths == NULL || o->n_paths < 1 || o->n_paths > ZR_STORE_MAX_PATHS)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "store: %zu paths; 1 to %d folders are allowed (--nvme-path)",
                       o->paths == NULL ? (size_t)0 : o->n_paths, ZR_STORE_MAX_PATHS);
    if (o->file_name != NULL && o->n_paths != 1)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "store: %zu paths for the one file \"%s\"",
                       o->n_paths, o->file_name);
    store->info.is_direct = true;
    for (size_t i = 0; i < o->n_paths; i++) {
        zr_uring_file_t *file = &uring->files[i];
        if (o->paths[i] == NULL || o->paths[i][0] == '\0')
            return zr_fail(&o->log, ZR_ERR_ARGUMENT, "store: path %zu of %zu is empty", i + 1,
                           o->n_paths);
        uring->n_files = i + 1;
        zr_uring_name_t name = {o->paths[i], o->file_name, o->overwrites};
        ZR_TRY(zr_uring_file_open(&name, &o->log, file));
        if (file->block_bytes > store->info.block_bytes)
            store->info.block_bytes = file->block_bytes;
        if (file->align_bytes > store->info.buffer_align_bytes)
            store->info.buffer_align_bytes = file->align_bytes;
        store->info.is_direct &= file->is_direct;
    }
    if (o->chunk_bytes % store->info.block_bytes != 0)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "store: chunk_bytes is %zu, but must be a multiple of the block size of the "
                       "drives, %zu",
                       o->chunk_bytes, store->info.block_bytes);
    return ZR_OK;
}

static uint64_t round_up(uint64_t size_bytes, uint64_t unit) {
    return (size_bytes + unit - 1) / unit * unit;
}

/* The file that has got least: small extents spread, too. */
static size_t shortest(const uint64_t *lengths, size_t n_files) {
    size_t least = 0;
    for (size_t i = 1; i < n_files; i++)
        least = lengths[i] < lengths[least] ? i : least;
    return least;
}

/* Place extent after extent, and find the lengths of the files. */
static void lay_out(zr_uring_store_t *uring) {
    uint64_t *lengths = uring->lengths;
    const zr_store_t *store = &uring->base;
    uint64_t stripe = store->options.request_bytes;
    uint64_t unit = zr_store_layout_bytes(store->info.block_bytes);
    for (size_t e = 0; e < store->info.n_extents; e++) {
        size_t first = shortest(lengths, uring->n_files);
        uint64_t size = round_up(store->extents[e].size_bytes, unit);
        uring->first_file[e] = (unsigned char)first;
        for (size_t i = 0; i < uring->n_files; i++) {
            /* File `first + i` has stripes i, i + n_files, ...; the last may be shorter. */
            size_t file = (first + i) % uring->n_files;
            uint64_t round = stripe * uring->n_files, rest = size % round, begin = stripe * i;
            uint64_t last = rest > begin ? rest - begin : 0;
            uring->begins[e * uring->n_files + file] = lengths[file];
            lengths[file] += size / round * stripe + (last < stripe ? last : stripe);
        }
    }
}

static zr_status_t reserve(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    lay_out(uring);
    for (size_t i = 0; i < uring->n_files; i++) {
        uint64_t length = uring->lengths[i];
        if (length > 0)
            ZR_TRY(zr_uring_file_reserve(&uring->files[i], length, &store->options.log));
        store->info.reserved_bytes += length;
    }
    return ZR_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

static zr_status_t make_uring_tables(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    size_t depth = store->options.depth, n_bounces = store->options.n_bounce_buffers;
    size_t n_extents = store->info.n_extents;
    uring->first_file = zr_heap_alloc(store->heap, n_extents, sizeof(*uring->first_file));
    uring->begins = zr_heap_alloc(store->heap, n_extents * uring->n_files, sizeof(*uring->begins));
    uring->requests = zr_heap_alloc(store->heap, depth, sizeof(*uring->requests));
    uring->free_requests = zr_heap_alloc(store->heap, depth, sizeof(*uring->free_requests));
    uring->free_bounces = zr_heap_alloc(store->heap, n_bounces, sizeof(*uring->free_bounces));
    if (uring->first_file == NULL || uring->begins == NULL || uring->requests == NULL ||
        uring->free_requests == NULL || uring->free_bounces == NULL)
        return zr_fail(
            &store->options.log, ZR_ERR_MEMORY, "store: no memory for the tables of %s and %s",
            zr_count_text(depth, "request").text, zr_count_text(n_extents, "extent").text);
    for (size_t i = 0; i < depth; i++)
        uring->free_requests[i] = (uint32_t)(depth - 1 - i);
    uring->n_free_requests = depth;
    for (size_t i = 0; i < n_bounces; i++)
        uring->free_bounces[i] = (uint32_t)(n_bounces - 1 - i);
    uring->n_free_bounces = n_bounces;
    store->info.host_bytes += depth * (sizeof(*uring->requests) + sizeof(uint32_t)) +
                              n_extents * (1 + uring->n_files * sizeof(*uring->begins));
    return ZR_OK;
}

size_t zr_store_uring_table_bytes(const zr_store_t *store) {
    const zr_store_options_t *o = &store->options;
    const zr_uring_store_t *uring = NULL; /* for the sizes of what it has */
    size_t n_chunks = 0;
    for (size_t i = 0; i < store->info.n_extents && o->verify; i++)
        n_chunks += store->chunks[i].n_chunks;
    return sizeof(*uring) + n_chunks * sizeof(*store->sums) +
           store->info.n_extents * (1 + o->n_paths * sizeof(*uring->begins)) +
           o->depth * (sizeof(*uring->requests) + sizeof(*uring->free_requests)) +
           o->n_bounce_buffers * sizeof(*uring->free_bounces);
}

size_t zr_store_extent_table_bytes(const zr_store_extent_t *extent, size_t chunk_bytes,
                                   bool verify) {
    const zr_store_t *store = NULL; /* for the sizes of what it has */
    const zr_uring_store_t *uring = NULL;
    size_t n_chunks = (extent->size_bytes + chunk_bytes - 1) / chunk_bytes;
    return sizeof(*store->extents) + sizeof(*store->chunks) + strlen(extent->name) + 1 +
           sizeof(*uring->first_file) + sizeof(*uring->begins) +
           n_chunks * (sizeof(*store->is_present) + (verify ? sizeof(*store->sums) : 0));
}

static struct iovec part_of(uintptr_t begin, uintptr_t end) {
    return (struct iovec){.iov_base = (void *)begin, .iov_len = end - begin};
}

/*
 * Cut a caller's buffer into the parts that are registered. Memory of the runtime lies in huge
 * pages but for its ends, and the kernel takes a part by huge pages only if it has no others in
 * between: a request of 512 KiB is then one segment for the drive, not 128, and its neighbours are
 * merged with it. So the ends are parts of their own; they reach a request beyond their border, so
 * that each request lies in one part as a whole. At most MOST_PARTS(size_bytes).
 */
static size_t cut_buffer(const zr_store_buffer_t *buffer, size_t request_bytes,
                         struct iovec *parts) {
    uintptr_t begin = (uintptr_t)buffer->base, end = begin + buffer->size_bytes;
    uintptr_t huge_begin = (begin + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    uintptr_t huge_end = end & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    size_t n = 0;
    if (huge_begin >= huge_end)
        huge_begin = huge_end = end; /* none: all of it is the end before them */
    for (uintptr_t at = huge_begin; at < huge_end; at += MAX_REGISTERED_BYTES)
        parts[n++] = part_of(at, huge_end - at < MAX_REGISTERED_BYTES ? huge_end
                                                                      : at + MAX_REGISTERED_BYTES);
    if (begin < huge_begin)
        parts[n++] =
            part_of(begin, end - huge_begin < request_bytes ? end : huge_begin + request_bytes);
    if (huge_end < end)
        parts[n++] =
            part_of(huge_end - begin < request_bytes ? begin : huge_end - request_bytes, end);
    return n;
}

/* The table never shrinks, so that there is always room for fewer. */
static zr_status_t make_room_for_parts(zr_uring_store_t *uring, size_t n_parts) {
    if (n_parts <= uring->registered_capacity)
        return ZR_OK;
    struct iovec *grown =
        zr_heap_resize(uring->base.heap, uring->registered, n_parts, sizeof(*grown));
    if (grown == NULL)
        return zr_fail(&uring->base.options.log, ZR_ERR_MEMORY,
                       "store: no memory for the table of %s",
                       zr_count_text(n_parts, "buffer").text);
    uring->registered = grown;
    uring->registered_capacity = n_parts;
    return ZR_OK;
}

/* The bounce buffers, then the users'; returns how many parts that are. */
static size_t list_parts(zr_uring_store_t *uring) {
    const zr_store_t *store = &uring->base;
    const zr_store_options_t *o = &store->options;
    size_t n = 0;
    uring->registered[n++] = (struct iovec){.iov_base = uring->bounce_memory.base,
                                            .iov_len = o->n_bounce_buffers * o->request_bytes};
    for (size_t i = 0; i < store->n_buffers; i++)
        n += cut_buffer(&store->buffers[i], o->request_bytes, uring->registered + n);
    return n;
}

/* Once, and again when they become more: who raises the limit has to know how far. */
static void warn_unregistered(zr_uring_store_t *uring, size_t n_parts, int error) {
    const zr_store_t *store = &uring->base;
    size_t size_bytes = 0;
    for (size_t i = 0; i < n_parts; i++)
        size_bytes += uring->registered[i].iov_len;
    if (size_bytes <= uring->refused_bytes)
        return;
    uring->refused_bytes = size_bytes;
    const char *advice = error == ENOMEM || error == EPERM
                             ? "raise RLIMIT_MEMLOCK (ulimit -l; \"memlock\" in "
                               "/etc/security/limits.conf; LimitMEMLOCK= of a systemd unit)"
                             : "use plain host memory for them";
    zr_log_write(
        &store->options.log, ZR_LOG_WARNING,
        "store: %s of buffers cannot be registered: %s (errno %d), RLIMIT_MEMLOCK is %s; "
        "continuing without: they are pinned again at every request, which costs CPU time; %s",
        zr_size_text(size_bytes).text, strerror(error), error, memlock_limit().text, advice);
}

int zr_uring_find_registered(const zr_uring_store_t *uring, const void *memory, size_t size_bytes) {
    uintptr_t begin = (uintptr_t)memory;
    for (size_t i = 0; i < uring->n_registered; i++) {
        uintptr_t base = (uintptr_t)uring->registered[i].iov_base;
        if (begin >= base && size_bytes <= uring->registered[i].iov_len &&
            begin - base <= uring->registered[i].iov_len - size_bytes)
            return (int)i;
    }
    return -1;
}

size_t zr_store_uring_most_parts(const zr_store_t *store) {
    size_t most_parts = 1;
    for (size_t i = 0; i < store->n_buffers; i++)
        most_parts += MOST_PARTS(store->buffers[i].size_bytes);
    return most_parts;
}

size_t zr_store_uring_buffer_bytes(const zr_store_t *store) {
    size_t size_bytes = store->options.n_bounce_buffers * store->options.request_bytes;
    for (size_t i = 0; i < store->n_buffers; i++)
        size_bytes += store->buffers[i].size_bytes;
    return size_bytes;
}

static zr_status_t register_buffers(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    ZR_TRY(make_room_for_parts(uring, zr_store_uring_most_parts(store)));
    size_t n_parts = list_parts(uring);
    int error = zr_ring_register_buffers(uring->ring, uring->registered, (unsigned)n_parts);
    if (error != 0)
        warn_unregistered(uring, n_parts, -error);
    uring->n_registered = error == 0 ? n_parts : 0;
    store->info.is_registered = error == 0;
    bool is_pinned = error == 0 && !uring->is_plain;
    (void)zr_store_count_pinned(store, is_pinned ? zr_store_uring_buffer_bytes(store) : 0);
    return ZR_OK;
}

/* ---- the backend ---------------------------------------------------------------------------- */

static zr_status_t open_uring(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = store->options.depth;
    ZR_TRY(open_ring(store));
    ZR_TRY(open_files(store));
    if (store->options.poll && !uring->is_plain)
        open_polling(store);
    ZR_TRY(make_uring_tables(store));
    ZR_TRY(reserve(store));
    ZR_TRY(zr_store_bounce_allocate(store, &uring->bounce_memory));
    register_files(uring);
    return register_buffers(store);
}

static zr_status_t open_posix(zr_store_t *store) {
    ((zr_uring_store_t *)store)->is_plain = true;
    return open_uring(store);
}

static void close_files(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    for (size_t i = 0; i < uring->n_files; i++)
        zr_uring_file_close(&uring->files[i]);
}

static void close_uring(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    zr_ring_close(&uring->ring);
    close_files(store);
    zr_store_memory_free(store, &uring->bounce_memory);
}

static zr_status_t sync_files(zr_store_t *store) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    for (size_t i = 0; i < uring->n_files; i++)
        ZR_TRY(zr_uring_file_sync(&uring->files[i], uring->lengths[i], &store->options.log));
    return ZR_OK;
}

const zr_store_backend_t zr_store_uring_backend = {
    .name = "uring",
    .handle_bytes = sizeof(zr_uring_store_t),
    .open = open_uring,
    .close = close_uring,
    .forget = close_files,
    .start = zr_uring_start,
    .progress = zr_uring_progress,
    .locate = zr_uring_locate,
    .sync = sync_files,
    .register_buffers = register_buffers,
};

const zr_store_backend_t zr_store_posix_backend = {
    .name = "posix",
    .handle_bytes = sizeof(zr_uring_store_t),
    .open = open_posix,
    .close = close_uring,
    .forget = close_files,
    .start = zr_uring_start,
    .progress = zr_uring_progress,
    .locate = zr_uring_locate,
    .sync = sync_files,
    .register_buffers = register_buffers,
};

const char *zr_store_drive_backend(const zr_log_t *log) {
    zr_ring_t *ring = NULL;
    int error = -zr_ring_open(1, false, &ring);
    zr_ring_close(&ring);
    if (error != ENOSYS && error != EPERM && error != EACCES)
        return zr_store_uring_backend.name;
    if (log != NULL)
        zr_log_write(log, ZR_LOG_WARNING,
                     "store: io_uring is not available: %s (errno %d); using pread and pwrite, one "
                     "blocking request at a time; %s",
                     strerror(error), error, ring_advice(error));
    return zr_store_posix_backend.name;
}
