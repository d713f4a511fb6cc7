/*
 * The host device: memory of the process, and streams that run each piece of work
 * before the queueing call returns, but for those that are asked to run beside it
 * (host_concurrent.h). It is the reference for all others, and the one to copy when
 * writing a new one.
 *
 * Both tiers are the process's memory. A reserved range is inaccessible pages;
 * mapping makes granules accessible, and unmapping puts fresh inaccessible pages
 * over them, which gives both the memory and the system's promise of it back.
 * Moving takes pages and promise along (mremap). Where other processes are to map the memory, it
 * lies in a file instead (host_share.h).
 */
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/host/host_concurrent.h"
#include "kernels/host/host_device.h"

/* Linux 5.7. Older ones refuse it, and older headers do not have it. */
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* ---- the device ---------------------------------------------------------------- */

/* The device's ranges lie in a file; else NULL. Those of host memory of a CUDA device, whose handle
 * is not of this kind, come here, too. */
static zr_host_share_t *share_of(zr_device_t *device) {
    return device->backend == &zr_host_backend ? ((zr_host_device_t *)device)->share : NULL;
}

void zr_host_parallel_for(zr_device_t *device, size_t n_tasks,
                          void (*task)(void *context, size_t index), void *context) {
    const zr_host_device_t *host = (const zr_host_device_t *)device;
    zr_host_pool_run(host->pool, host->is_concurrent, n_tasks, task, context);
}

void zr_host_share_tasks(zr_device_t *device, size_t n_tasks,
                         void (*task)(void *context, size_t index), void *context) {
    if (device != NULL && device->backend == &zr_host_backend) {
        zr_host_pool_run(((const zr_host_device_t *)device)->pool, true, n_tasks, task, context);
        return;
    }
    for (size_t i = 0; i < n_tasks; i++)
        task(context, i);
}

/* Cores that this process may use, which a container or taskset makes fewer than there are. */
static int count_cores(void) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0)
        return CPU_COUNT(&cores);
    long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    return n_online > 0 && n_online <= ZR_HOST_MAX_THREADS ? (int)n_online : 1;
}

static void host_close(zr_device_t *device) {
    zr_host_device_t *host = (zr_host_device_t *)device;
    zr_host_pool_destroy(&host->pool);
    zr_host_share_destroy(&host->share);
    free(host);
}

static zr_status_t check_options(const zr_device_options_t *options) {
    if (options->index != 0)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT, "host device: index %d; must be 0",
                       options->index);
    if (options->n_threads < 0 || options->n_threads > ZR_HOST_MAX_THREADS)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "host device: %d threads; 0 (all cores) to %d are allowed",
                       options->n_threads, ZR_HOST_MAX_THREADS);
    return ZR_OK;
}

/* "AMD EPYC 9354, avx512, 2 threads". Where the system does not name the model: "host". */
static void describe(const zr_host_device_t *host, char *text, size_t text_bytes) {
    char line[256], model[96] = "host";
    FILE *cpuinfo = fopen("/proc/cpuinfo", "r");
    while (cpuinfo != NULL && fgets(line, sizeof(line), cpuinfo) != NULL) {
        if (sscanf(line, "model name : %95[^\n]", model) == 1)
            break;
    }
    if (cpuinfo != NULL)
        fclose(cpuinfo);
    int n_threads = host->base.info.n_threads;
    snprintf(text, text_bytes, "%s, %s, %s", model, host->isa->name,
             zr_count_text((uint64_t)n_threads, "thread").text);
}

/* What cannot be shared is private, which is slower for those who would map it, and right. */
static void share_memory(zr_host_device_t *host, const zr_log_t *log) {
    char why[512] = "";
    host->share = zr_host_share_create(host->base.info.memory_bytes, why, sizeof(why));
    host->base.info.shares_memory = host->share != NULL;
    if (host->share == NULL)
        zr_log_write(
            log, ZR_LOG_INFO,
            "host device: its memory cannot be mapped by other processes: %s; ranks of "
            "this machine copy it through the kernel, which is slower (docs/guide/clusters.md)",
            why);
}

static zr_status_t host_open(const zr_device_options_t *options, zr_device_t **device_p) {
    ZR_TRY(check_options(options));
    zr_host_device_t *host = calloc(1, sizeof(*host));
    if (host == NULL)
        return zr_fail(&options->log, ZR_ERR_MEMORY, "host device: no memory (%zu bytes)",
                       sizeof(*host));
    int n_threads = options->n_threads > 0 ? options->n_threads : count_cores();
    zr_status_t status = zr_host_isa_find(&options->log, options->isa, &host->isa);
    ZR_THEN(status, zr_host_pool_create(&options->log, n_threads, &host->pool));
    if (status != ZR_OK) {
        free(host);
        return status;
    }
    zr_device_info_t *info = &host->base.info;
    info->host_addressable = true;
    info->synchronous = !options->concurrent;
    info->computes_on_host = true;
    info->granule_bytes = (size_t)sysconf(_SC_PAGESIZE);
    info->memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    info->n_threads = n_threads;
    describe(host, info->description, sizeof(info->description));
    if (options->shares_memory)
        share_memory(host, &options->log);
    *device_p = &host->base;
    return ZR_OK;
}

/* ---- address ranges -------------------------------------------------------------- */

/*
 * Inaccessible pages at `address`, or anywhere when it is NULL. Huge pages are asked for, once they
 * become accessible: on a 124M GPT they save nine tenths of the time in the kernel and a quarter of
 * the step, and cost no memory, since a huge page lies in mapped granules only. It is an advice; a
 * system without them goes on with small ones.
 */
static void *reserve_pages(void *address, size_t size_bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (address != NULL ? MAP_FIXED : 0);
    void *pages = mmap(address, size_bytes, PROT_NONE, flags, -1, 0);
    if (pages != MAP_FAILED)
        madvise(pages, size_bytes, MADV_HUGEPAGE);
    return pages;
}

/*
 * Ranges that are a power of two of bytes apart, as those of ranks are that ask for the same, have
 * tensors at addresses that differ in high bits only. Some processors look such addresses up in
 * their first cache by the low bits (AMD's of the Zen family by 28 of them), so that reading two
 * ranks' tensors side by side, for their sum, was two to three times slower. So a range begins a
 * number of huge pages further on, which the high bits say; the addresses before it are given back.
 */
#define ZR_ALIKE_BITS 28
#define ZR_PLACES 31 /* a prime number */
#define ZR_PLACE_BYTES ((size_t)2 << 20)

void *zr_host_reserve_apart(size_t size_bytes) {
    size_t spare_bytes = ZR_PLACES * ZR_PLACE_BYTES;
    if (size_bytes > SIZE_MAX - spare_bytes) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    char *pages = reserve_pages(NULL, size_bytes + spare_bytes);
    if (pages == MAP_FAILED)
        return MAP_FAILED;
    size_t before_bytes = (0 - (uintptr_t)pages) % ZR_PLACE_BYTES;
    before_bytes += ((uintptr_t)pages >> ZR_ALIKE_BITS) % ZR_PLACES * ZR_PLACE_BYTES;
    char *base = pages + before_bytes;
    if (before_bytes > 0)
        munmap(pages, before_bytes);
    if (before_bytes < spare_bytes)
        munmap(base + size_bytes, spare_bytes - before_bytes);
    return base;
}

static zr_status_t host_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                      void **base_p) {
    zr_host_share_t *share = share_of(device);
    int error = 0;
    if (share != NULL) {
        error = zr_host_share_reserve(share, size_bytes, base_p);
    } else {
        void *base = zr_host_reserve_apart(size_bytes);
        error = base == MAP_FAILED ? errno : 0;
        *base_p = error == 0 ? base : *base_p;
    }
    if (error == 0)
        return ZR_OK;
    zr_log_write(&device->log, ZR_LOG_INFO, "%s memory: no range of %zu bytes of addresses: %s",
                 zr_tier_name(tier), size_bytes, strerror(error));
    return ZR_ERR_BUDGET;
}

static void host_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    zr_host_share_t *share = share_of(device);
    int error = 0;
    if (share != NULL)
        error = zr_host_share_release(share, base, size_bytes);
    else if (munmap(base, size_bytes) != 0)
        error = errno;
    if (error != 0)
        zr_log_write(&device->log, ZR_LOG_ERROR, "%s memory: releasing %zu bytes at %p: %s",
                     zr_tier_name(tier), size_bytes, base, strerror(error));
}

/* Fresh inaccessible pages over [address, address + size_bytes); errno or 0. */
static int put_nothing_behind(void *address, size_t size_bytes) {
    return reserve_pages(address, size_bytes) == MAP_FAILED ? errno : 0;
}

static int map_private(void *address, size_t size_bytes) {
    if (mprotect(address, size_bytes, PROT_READ | PROT_WRITE) == 0)
        return 0;
    int error = errno;
    put_nothing_behind(address, size_bytes); /* some pages may have been made accessible */
    return error;
}

static zr_status_t host_range_map(zr_device_t *device, zr_tier_t tier, void *base,
                                  size_t offset_bytes, size_t size_bytes) {
    zr_host_share_t *share = share_of(device);
    char *address = (char *)base + offset_bytes;
    int error = share != NULL ? zr_host_share_map(share, address, size_bytes)
                              : map_private(address, size_bytes);
    if (error == 0)
        return ZR_OK;
    if (error != ENOMEM)
        return zr_fail(&device->log, ZR_ERR_DEVICE, "%s memory: mapping %zu bytes: %s",
                       zr_tier_name(tier), size_bytes, strerror(error));
    zr_log_write(&device->log, ZR_LOG_INFO,
                 "%s memory: the machine cannot provide %zu more bytes: %s", zr_tier_name(tier),
                 size_bytes, strerror(error));
    return ZR_ERR_BUDGET;
}

static zr_status_t host_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                    size_t offset_bytes, size_t size_bytes) {
    zr_host_share_t *share = share_of(device);
    char *address = (char *)base + offset_bytes;
    int error = share != NULL ? zr_host_share_unmap(share, address, size_bytes)
                              : put_nothing_behind(address, size_bytes);
    if (error != 0)
        return zr_fail(&device->log, error == ENOMEM ? ZR_ERR_BUDGET : ZR_ERR_DEVICE,
                       "%s memory: giving back %s at offset %zu: %s", zr_tier_name(tier),
                       zr_count_text(size_bytes, "byte").text, offset_bytes, strerror(error));
    return ZR_OK;
}

/*
 * Move the pages at `from` to `to`, and leave empty ones, accessible, at `from`; errno or 0.
 *
 * In two steps, because a system may empty `to` before it finds a reason to refuse, and another
 * thread could then get those addresses. The first step, to where the system likes, fails without
 * consequences; the second is left without a reason. Leaving pages at `from` keeps its addresses
 * from others as well.
 */
static int move_pages(void *from, void *to, size_t size_bytes) {
    void *between = mremap(from, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (between == MAP_FAILED)
        return errno;
    if (mremap(between, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED)
        return 0;
    int error = errno;
    munmap(between, size_bytes);
    return error;
}

/*
 * The same in as few pieces as possible: what was moved before may be several mappings to the
 * system, and one call moves no more than one of them (EFAULT).
 */
static int move_in_pieces(char *from, char *to, size_t size_bytes, size_t granule_bytes) {
    int error = move_pages(from, to, size_bytes);
    if (error != EFAULT || size_bytes <= granule_bytes)
        return error;
    size_t half = size_bytes / granule_bytes / 2 * granule_bytes;
    error = move_in_pieces(from, to, half, granule_bytes);
    if (error == 0)
        error = move_in_pieces(from + half, to + half, size_bytes - half, granule_bytes);
    return error;
}

/* No system or tool knows all of this: without it, memory is unmapped and mapped. The source is
 * accessible in any case, though what has been moved so far is lost with the destination. A huge
 * page stays one where it has the same place in the new one; else it becomes small ones. */
static int move_private(char *from, char *to, size_t size_bytes, size_t granule_bytes) {
    int error = move_in_pieces(from, to, size_bytes, granule_bytes);
    if (error == 0)
        error = put_nothing_behind(from, size_bytes);
    if (error != 0)
        put_nothing_behind(to, size_bytes);
    return error;
}

static zr_status_t host_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                                   size_t size_bytes) {
    zr_host_share_t *share = share_of(device);
    int error = share != NULL ? zr_host_share_move(share, from, to, size_bytes)
                              : move_private(from, to, size_bytes, device->info.granule_bytes);
    if (error == 0)
        return ZR_OK;
    zr_log_write(&device->log, ZR_LOG_DEBUG, "%s memory: moving %zu bytes: %s", zr_tier_name(tier),
                 size_bytes, strerror(error));
    return ZR_ERR_UNSUPPORTED;
}

const zr_device_backend_t zr_host_backend = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .range_reserve = host_range_reserve,
    .range_release = host_range_release,
    .range_map = host_range_map,
    .range_unmap = host_range_unmap,
    .range_move = host_range_move,
    .stream_create = zr_host_stream_create,
    .stream_create_concurrent = zr_host_stream_create_concurrent,
    .stream_takes_calls = zr_host_stream_takes_calls,
    .stream_call = zr_host_stream_call,
    .wait_seconds = zr_host_wait_seconds,
    .stream_destroy = zr_host_stream_destroy,
    .stream_synchronize = zr_host_stream_synchronize,
    .event_create = zr_host_event_create,
    .event_destroy = zr_host_event_destroy,
    .event_record = zr_host_event_record,
    .stream_wait = zr_host_stream_wait,
    .event_synchronize = zr_host_event_synchronize,
    .event_query = zr_host_event_query,
    .copy_async = zr_host_copy_async,
    .has_update = zr_host_has_update,
    .run = zr_host_run,
    .has_spread = true,
};
