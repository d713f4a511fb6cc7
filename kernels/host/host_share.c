/* See host_share.h. */
#include "kernels/host/host_share.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/host/host_device.h"

#define ZR_HUGE_BYTES ((size_t)2 << 20)

typedef struct range {
    struct range *next;
    char *base;
    size_t size_bytes;
    size_t mapped_bytes;
    uint64_t offset_bytes; /* in the file, of what was not moved */
    bool has_moved;        /* any part of it */
    bool has_traded;       /* places with another range, which may be in its part of the file */
    uint32_t *moved_to;    /* [pages] page of the file behind it, + 1; 0: as by offset_bytes */
} range_t;

struct zr_host_share {
    int file;
    size_t page_bytes, most_bytes;
    pthread_mutex_t lock; /* guards what follows: a communicator may look from another thread */
    uint64_t file_bytes;
    size_t mapped_bytes; /* of all ranges */
    range_t *ranges;
    range_t *traded; /* released, their parts of the file in use by ranges that are there */
};

/* ---- places --------------------------------------------------------------------------------- */

static range_t *find_range(const zr_host_share_t *share, const void *address) {
    range_t *range = share->ranges;
    while (range != NULL && ((const char *)address < range->base ||
                             (const char *)address >= range->base + range->size_bytes))
        range = range->next;
    return range;
}

static uint64_t offset_of_page(const zr_host_share_t *share, const range_t *range, size_t page) {
    uint32_t moved_to = range->moved_to[page];
    return moved_to > 0 ? (uint64_t)(moved_to - 1) * share->page_bytes
                        : range->offset_bytes + page * share->page_bytes;
}

static size_t page_of(const zr_host_share_t *share, const range_t *range, const void *address) {
    return (size_t)((const char *)address - range->base) / share->page_bytes;
}

/* How many of `most` pages from one on lie one behind the other in the file. */
static size_t pages_in_one(const zr_host_share_t *share, const range_t *range, size_t page,
                           size_t most) {
    uint64_t first = offset_of_page(share, range, page);
    size_t n = 1;
    if (!range->has_moved)
        return most;
    while (n < most && offset_of_page(share, range, page + n) == first + n * share->page_bytes)
        n++;
    return n;
}

static void note_place(const zr_host_share_t *share, range_t *range, size_t page, uint64_t offset,
                       size_t n_pages) {
    range->has_moved = true;
    for (size_t i = 0; i < n_pages; i++)
        range->moved_to[page + i] = (uint32_t)(offset / share->page_bytes + i + 1);
}

/* Show a part of the file at an address. A child that is forked does not have it: it could change
 * it, and would keep it in memory. */
static int view(const zr_host_share_t *share, void *address, size_t size_bytes, int protection,
                uint64_t offset) {
    if (mmap(address, size_bytes, protection, MAP_SHARED | MAP_FIXED, share->file, (off_t)offset) ==
        MAP_FAILED)
        return errno;
    madvise(address, size_bytes, MADV_HUGEPAGE);
    madvise(address, size_bytes, MADV_DONTFORK);
    return 0;
}

/* ---- ranges --------------------------------------------------------------------------------- */

/* A range of the list that lies in a part of the file; or NULL. */
static range_t *find_in_file(range_t *ranges, uint64_t offset, size_t size_bytes) {
    while (ranges != NULL && (offset >= ranges->offset_bytes + ranges->size_bytes ||
                              ranges->offset_bytes >= offset + size_bytes))
        ranges = ranges->next;
    return ranges;
}

/* The first part of the file that no range has, as far behind a huge page's begin as in addresses.
 */
static uint64_t find_place(const zr_host_share_t *share, const range_t *range) {
    uint64_t behind_bytes = (uintptr_t)range->base % ZR_HUGE_BYTES, offset = behind_bytes;
    for (;;) {
        const range_t *other = find_in_file(share->ranges, offset, range->size_bytes);
        if (other == NULL)
            other = find_in_file(share->traded, offset, range->size_bytes);
        if (other == NULL)
            return offset;
        uint64_t end = other->offset_bytes + other->size_bytes;
        offset = (end + ZR_HUGE_BYTES - 1) / ZR_HUGE_BYTES * ZR_HUGE_BYTES + behind_bytes;
    }
}

static void free_places(const zr_host_share_t *share, range_t *range) {
    if (range->moved_to != MAP_FAILED)
        munmap(range->moved_to, range->size_bytes / share->page_bytes * sizeof(uint32_t));
    range->moved_to = MAP_FAILED;
}

static void free_range(const zr_host_share_t *share, range_t *range) {
    free_places(share, range);
    free(range);
}

static void free_ranges(const zr_host_share_t *share, range_t **ranges) {
    while (*ranges != NULL) {
        range_t *range = *ranges;
        *ranges = range->next;
        free_range(share, range);
    }
}

static int open_range(zr_host_share_t *share, range_t *range) {
    uint64_t offset = find_place(share, range);
    uint64_t end = offset + range->size_bytes;
    if (end / share->page_bytes >= UINT32_MAX)
        return EFBIG;
    if (end > share->file_bytes) {
        if (ftruncate(share->file, (off_t)end) != 0)
            return errno;
        share->file_bytes = end;
    }
    range->offset_bytes = offset;
    return view(share, range->base, range->size_bytes, PROT_NONE, offset);
}

int zr_host_share_reserve(zr_host_share_t *share, size_t size_bytes, void **base_p) {
    range_t *range = calloc(1, sizeof(*range));
    if (range == NULL)
        return ENOMEM;
    range->size_bytes = size_bytes;
    range->base = zr_host_reserve_apart(size_bytes);
    range->moved_to =
        mmap(NULL, size_bytes / share->page_bytes * sizeof(uint32_t), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int error = range->base == MAP_FAILED || range->moved_to == MAP_FAILED ? ENOMEM : 0;
    pthread_mutex_lock(&share->lock);
    if (error == 0)
        error = open_range(share, range);
    if (error == 0) {
        range->next = share->ranges;
        share->ranges = range;
        *base_p = range->base;
    }
    pthread_mutex_unlock(&share->lock);
    if (error == 0)
        return 0;
    if (range->base != MAP_FAILED)
        munmap(range->base, size_bytes);
    free_range(share, range);
    return error;
}

/* Give the pages behind a part of a range back to the machine, also where others have a view. */
static int punch(const zr_host_share_t *share, const range_t *range, size_t page, size_t n_pages) {
    while (n_pages > 0) {
        size_t n = pages_in_one(share, range, page, n_pages);
        if (fallocate(share->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      (off_t)offset_of_page(share, range, page),
                      (off_t)(n * share->page_bytes)) != 0)
            return errno;
        page += n;
        n_pages -= n;
    }
    return 0;
}

/* The part of the file of a range that has traded places with others is not used again before all
 * are released: that costs numbers, no memory. The file does not shrink, which others count on. */
int zr_host_share_release(zr_host_share_t *share, void *base, size_t size_bytes) {
    pthread_mutex_lock(&share->lock);
    range_t **link = &share->ranges;
    while ((*link)->base != base)
        link = &(*link)->next;
    range_t *range = *link;
    *link = range->next;
    int error = punch(share, range, 0, size_bytes / share->page_bytes);
    share->mapped_bytes -= range->mapped_bytes;
    if (munmap(base, size_bytes) != 0 && error == 0)
        error = errno;
    if (range->has_traded) {
        free_places(share, range);
        range->next = share->traded;
        share->traded = range;
    } else {
        free_range(share, range);
    }
    if (share->ranges == NULL)
        free_ranges(share, &share->traded);
    pthread_mutex_unlock(&share->lock);
    return error;
}

/* More, or, as the negative of a size, less. */
static void count_mapped(zr_host_share_t *share, range_t *range, size_t more_bytes) {
    range->mapped_bytes += more_bytes;
    share->mapped_bytes += more_bytes;
}

/* Of a file the system promises no memory: what it could not have is refused here. */
int zr_host_share_map(zr_host_share_t *share, void *address, size_t size_bytes) {
    pthread_mutex_lock(&share->lock);
    int error = size_bytes > share->most_bytes - share->mapped_bytes ? ENOMEM : 0;
    if (error == 0 && mprotect(address, size_bytes, PROT_READ | PROT_WRITE) != 0) {
        error = errno;
        (void)mprotect(address, size_bytes, PROT_NONE); /* some pages may be accessible */
    }
    if (error == 0)
        count_mapped(share, find_range(share, address), size_bytes);
    pthread_mutex_unlock(&share->lock);
    return error;
}

int zr_host_share_unmap(zr_host_share_t *share, void *address, size_t size_bytes) {
    pthread_mutex_lock(&share->lock);
    range_t *range = find_range(share, address);
    int error = mprotect(address, size_bytes, PROT_NONE) != 0 ? errno : 0;
    if (error == 0)
        error = punch(share, range, page_of(share, range, address), size_bytes / share->page_bytes);
    count_mapped(share, range, 0 - size_bytes);
    pthread_mutex_unlock(&share->lock);
    return error;
}

/* ---- moving --------------------------------------------------------------------------------- */

/* Pages of a range, and where they lie in the file. */
typedef struct stretch {
    range_t *range;
    size_t page;
} stretch_t;

static char *address_of(const zr_host_share_t *share, const stretch_t *at) {
    return at->range->base + at->page * share->page_bytes;
}

/* Exchange the places of `n_pages` that lie in one piece each. */
static int exchange(zr_host_share_t *share, const stretch_t *from, const stretch_t *to,
                    size_t n_pages) {
    size_t size_bytes = n_pages * share->page_bytes;
    uint64_t from_offset = offset_of_page(share, from->range, from->page);
    uint64_t to_offset = offset_of_page(share, to->range, to->page);
    int error = view(share, address_of(share, to), size_bytes, PROT_READ | PROT_WRITE, from_offset);
    if (error == 0)
        error = view(share, address_of(share, from), size_bytes, PROT_NONE, to_offset);
    if (error != 0) { /* for want of views: there were as many before */
        (void)view(share, address_of(share, to), size_bytes, PROT_NONE, to_offset);
        (void)view(share, address_of(share, from), size_bytes, PROT_READ | PROT_WRITE, from_offset);
        return error;
    }
    if (from->range != to->range)
        from->range->has_traded = to->range->has_traded = true;
    note_place(share, from->range, from->page, to_offset, n_pages);
    note_place(share, to->range, to->page, from_offset, n_pages);
    return 0;
}

/* Where it fails in between, what was moved goes back. */
int zr_host_share_move(zr_host_share_t *share, void *from, void *to, size_t size_bytes) {
    size_t n_pages = size_bytes / share->page_bytes, done = 0;
    int error = 0;
    pthread_mutex_lock(&share->lock);
    stretch_t source = {.range = find_range(share, from)},
              target = {.range = find_range(share, to)};
    size_t from_page = page_of(share, source.range, from),
           to_page = page_of(share, target.range, to);
    while (done < n_pages && error == 0) {
        source.page = from_page + done;
        target.page = to_page + done;
        size_t n = pages_in_one(share, source.range, source.page, n_pages - done);
        n = pages_in_one(share, target.range, target.page, n);
        error = exchange(share, &source, &target, n);
        done += error == 0 ? n : 0;
    }
    for (size_t page = 0; error != 0 && page < done; page++) {
        source.page = from_page + page;
        target.page = to_page + page;
        (void)exchange(share, &target, &source, 1);
    }
    if (error == 0) {
        source.range->mapped_bytes -= size_bytes;
        target.range->mapped_bytes += size_bytes;
    }
    pthread_mutex_unlock(&share->lock);
    return error;
}

/* ---- life ----------------------------------------------------------------------------------- */

zr_host_share_t *zr_host_share_create(size_t most_bytes, char *why, size_t why_bytes) {
    zr_host_share_t *share = calloc(1, sizeof(*share));
    if (share == NULL || pthread_mutex_init(&share->lock, NULL) != 0) {
        free(share);
        snprintf(why, why_bytes, "no memory");
        return NULL;
    }
    struct rlimit limit;
    share->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    share->most_bytes = most_bytes;
    share->file = -1;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(why, why_bytes, "the size of files is limited (ulimit -f)");
    else
        share->file = zr_host_open_huge_file(why, why_bytes);
    if (share->file < 0)
        zr_host_share_destroy(&share);
    return share;
}

void zr_host_share_destroy(zr_host_share_t **share) {
    if (*share == NULL)
        return;
    free_ranges(*share, &(*share)->ranges); /* that were not given back */
    free_ranges(*share, &(*share)->traded);
    if ((*share)->file >= 0)
        close((*share)->file);
    pthread_mutex_destroy(&(*share)->lock);
    free(*share);
    *share = NULL;
}

/* ---- for communicators ---------------------------------------------------------------------- */

static zr_host_share_t *share_of(zr_device_t *device) {
    return ((zr_host_device_t *)device)->share;
}

zr_host_file_t zr_host_shared_file(zr_device_t *device) {
    zr_host_share_t *share = share_of(device);
    zr_host_file_t file = {.descriptor = -1};
    struct stat status;
    if (share == NULL || fstat(share->file, &status) != 0)
        return file;
    pthread_mutex_lock(&share->lock);
    file = (zr_host_file_t){.descriptor = share->file,
                            .device = (uint64_t)status.st_dev,
                            .inode = (uint64_t)status.st_ino,
                            .size_bytes = share->file_bytes};
    pthread_mutex_unlock(&share->lock);
    return file;
}

bool zr_host_find_shared(zr_device_t *device, const void *address, size_t size_bytes,
                         uint64_t *offset_p) {
    zr_host_share_t *share = share_of(device);
    if (share == NULL || size_bytes == 0)
        return false;
    pthread_mutex_lock(&share->lock);
    range_t *range = find_range(share, address);
    bool is_found = range != NULL &&
                    size_bytes <= (size_t)(range->base + range->size_bytes - (const char *)address);
    if (is_found) {
        size_t page = page_of(share, range, address);
        size_t within = (size_t)((const char *)address - range->base) % share->page_bytes;
        size_t n_pages = (within + size_bytes - 1) / share->page_bytes + 1;
        *offset_p = offset_of_page(share, range, page) + within;
        is_found = pages_in_one(share, range, page, n_pages) == n_pages;
    }
    pthread_mutex_unlock(&share->lock);
    return is_found;
}

int zr_host_map_shared(const zr_host_file_t *file, int pid, void **view_p) {
    char path[64];
    struct stat status;
    int error = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, file->descriptor);
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0 || fstat(descriptor, &status) != 0)
        error = errno;
    else if ((uint64_t)status.st_dev != file->device || (uint64_t)status.st_ino != file->inode ||
             (uint64_t)status.st_size < file->size_bytes)
        error = ESTALE; /* another process has that number here */
    void *place = error == 0 ? zr_host_reserve_apart(file->size_bytes) : MAP_FAILED;
    if (error == 0 &&
        (place == MAP_FAILED || mmap(place, file->size_bytes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_FIXED, descriptor, 0) == MAP_FAILED))
        error = errno;
    if (error != 0 && place != MAP_FAILED)
        munmap(place, file->size_bytes);
    if (descriptor >= 0)
        close(descriptor);
    if (error != 0)
        return error;
    madvise(place, file->size_bytes, MADV_HUGEPAGE);
    madvise(place, file->size_bytes, MADV_DONTFORK);
    *view_p = place;
    return 0;
}
