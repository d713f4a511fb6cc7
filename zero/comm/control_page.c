/* See control_page_internal.h. */
#include "zero/comm/control_page_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/pause_internal.h"
#include "zero/comm/peer_internal.h"

/* Numbers of meetings have 31 bits and begin again at 0, a while after the first meeting, so that
 * it is nothing rare. */
#define ZR_PAGE_ENDED 0x80000000u
#define ZR_PAGE_NUMBERS 0x7FFFFFFFu
#define ZR_PAGE_FIRST (ZR_PAGE_NUMBERS - 9)

enum {
    MANY_LOOKS = 2000,
    FEW_LOOKS = 20,
    LINE_BYTES = 64,
    SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW /* a page that has become smaller cannot be read */
};

typedef struct seat {
    _Alignas(LINE_BYTES) atomic_uint came_to; /* the latest meeting that it came to */
    atomic_uint n_posts;                      /* calls, of whose first meetings those are */
    int32_t statuses[2];                      /* brought to meetings of even and odd numbers */
    zr_post_t posts[2];                       /* likewise */
    atomic_size_t count;
} seat_t;

typedef struct shared {
    atomic_uint state; /* the latest that is complete; with ZR_PAGE_ENDED: no more will be. Who
                          waits for it sleeps on it */
    atomic_uint n_sleepers;
    seat_t seats[];
} shared_t;

struct zr_page {
    shared_t *shared;
    size_t size_bytes;
    int n_ranks, rank, n_looks;
    int file; /* of who has made it, until it is sealed; else -1 */
};

int zr_looks_count(int n_ranks) {
    cpu_set_t cores;
    bool has_core =
        sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= n_ranks;
    return has_core ? MANY_LOOKS : FEW_LOOKS;
}

/* Not before it, of two numbers that are close. */
static bool has_reached(unsigned number, unsigned other) {
    return ((number - other) & ZR_PAGE_NUMBERS) < ZR_PAGE_NUMBERS / 2;
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t shared_bytes(int n_ranks) {
    return sizeof(shared_t) + (size_t)n_ranks * sizeof(seat_t);
}

/* NULL: errno says why. */
static zr_page_t *map_page(int file, int n_ranks, int rank) {
    zr_page_t *page = calloc(1, sizeof(*page));
    if (page == NULL)
        return NULL;
    page->size_bytes = shared_bytes(n_ranks);
    page->n_ranks = n_ranks;
    page->rank = rank;
    page->n_looks = zr_looks_count(n_ranks);
    page->file = -1;
    page->shared = mmap(NULL, page->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page->shared == MAP_FAILED) {
        free(page);
        return NULL;
    }
    return page;
}

zr_page_t *zr_page_create(int n_ranks, int rank, zr_page_place_t *place_p) {
    struct stat status;
    zr_page_t *page = NULL;
    int file = memfd_create("zero-meetings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return NULL;
    if (ftruncate(file, (off_t)shared_bytes(n_ranks)) == 0 && fstat(file, &status) == 0 &&
        fcntl(file, F_ADD_SEALS, SIZE_SEALS) == 0)
        page = map_page(file, n_ranks, rank);
    if (page == NULL) {
        close(file);
        return NULL;
    }
    page->file = file;
    atomic_store(&page->shared->state, ZR_PAGE_FIRST);
    for (int other = 0; other < n_ranks; other++)
        atomic_store(&page->shared->seats[other].came_to, ZR_PAGE_FIRST);
    *place_p = (zr_page_place_t){.pid = getpid(),
                                 .descriptor = file,
                                 .device = (uint64_t)status.st_dev,
                                 .inode = (uint64_t)status.st_ino};
    return page;
}

int zr_page_open(const zr_page_place_t *place, int n_ranks, int rank, zr_page_t **page_p) {
    char path[64];
    struct stat status;
    int error = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", place->pid, place->descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        error = errno;
    else if ((uint64_t)status.st_dev != place->device || (uint64_t)status.st_ino != place->inode ||
             status.st_size != (off_t)shared_bytes(n_ranks) ||
             (fcntl(file, F_GET_SEALS) & SIZE_SEALS) != SIZE_SEALS)
        error = ESTALE; /* another process has that number here, or it is another file */
    zr_page_t *page = error == 0 ? map_page(file, n_ranks, rank) : NULL;
    if (error == 0 && page == NULL)
        error = errno;
    if (file >= 0)
        close(file);
    if (error == 0)
        *page_p = page;
    return error;
}

void zr_page_seal(zr_page_t *page) {
    if (page->file >= 0)
        close(page->file);
    page->file = -1;
}

void zr_page_close(zr_page_t **page) {
    if (*page == NULL)
        return;
    zr_page_seal(*page);
    munmap((*page)->shared, (*page)->size_bytes);
    free(*page);
    *page = NULL;
}

/* ---- meetings -------------------------------------------------------------------------------- */

static void wake_all(shared_t *shared) {
    if (atomic_load(&shared->n_sleepers) > 0)
        syscall(SYS_futex, &shared->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool zr_page_has_come(const zr_page_t *page, int rank, unsigned meeting) {
    return has_reached(atomic_load(&page->shared->seats[rank].came_to), meeting);
}

static bool have_all_come(const zr_page_t *page, unsigned meeting) {
    for (int rank = 0; rank < page->n_ranks; rank++)
        if (!zr_page_has_come(page, rank, meeting))
            return false;
    return true;
}

atomic_size_t *zr_page_count(zr_page_t *page, int rank) {
    return &page->shared->seats[rank].count;
}

void zr_page_show(zr_page_t *page, const zr_post_t *post) {
    seat_t *seat = &page->shared->seats[page->rank];
    unsigned n_posts = atomic_load(&seat->n_posts);
    seat->posts[n_posts % 2] = *post;
    atomic_store(&seat->n_posts, n_posts + 1);
}

unsigned zr_page_arrive(zr_page_t *page, const zr_post_t *post, zr_status_t status) {
    shared_t *shared = page->shared;
    seat_t *seat = &shared->seats[page->rank];
    unsigned before = atomic_load(&seat->came_to);
    unsigned meeting = (before + 1) & ZR_PAGE_NUMBERS;
    seat->statuses[meeting % 2] = (int32_t)status;
    if (post != NULL)
        zr_page_show(page, post);
    atomic_store(&seat->came_to, meeting);
    /* Who comes last sees all others here; two may, and one of them is first. */
    if (have_all_come(page, meeting) &&
        atomic_compare_exchange_strong(&shared->state, &before, meeting))
        wake_all(shared);
    return meeting;
}

bool zr_page_is_complete(const zr_page_t *page, unsigned meeting) {
    return has_reached(atomic_load(&page->shared->state) & ZR_PAGE_NUMBERS, meeting);
}

bool zr_page_has_ended(const zr_page_t *page) {
    return (atomic_load(&page->shared->state) & ZR_PAGE_ENDED) != 0;
}

void zr_page_wait(zr_page_t *page, unsigned meeting, int ms) {
    shared_t *shared = page->shared;
    struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    unsigned waiting = (meeting - 1) & ZR_PAGE_NUMBERS;
    for (int i = 0; i < page->n_looks; i++) {
        if (atomic_load(&shared->state) != waiting)
            return;
        zr_pause();
    }
    atomic_fetch_add(&shared->n_sleepers, 1);
    syscall(SYS_futex, &shared->state, FUTEX_WAIT, waiting, &limit, NULL, 0);
    atomic_fetch_sub(&shared->n_sleepers, 1);
}

bool zr_page_end_meeting(zr_page_t *page, unsigned meeting) {
    unsigned before = (meeting - 1) & ZR_PAGE_NUMBERS;
    if (!atomic_compare_exchange_strong(&page->shared->state, &before, before | ZR_PAGE_ENDED))
        return false;
    wake_all(page->shared);
    return true;
}

void zr_page_end(zr_page_t *page) {
    atomic_fetch_or(&page->shared->state, ZR_PAGE_ENDED);
    wake_all(page->shared);
}

/* ---- what was brought ------------------------------------------------------------------------ */

void zr_page_post(const zr_page_t *page, int rank, zr_post_t *post_p) {
    unsigned n_posts = atomic_load(&page->shared->seats[page->rank].n_posts);
    *post_p = page->shared->seats[rank].posts[(n_posts - 1) % 2];
}

int32_t zr_page_status(const zr_page_t *page, int rank, unsigned meeting) {
    return page->shared->seats[rank].statuses[meeting % 2];
}

void zr_page_latest(const zr_page_t *page, int rank, zr_post_t *post_p) {
    const seat_t *seat = &page->shared->seats[rank];
    unsigned n_posts = atomic_load(&seat->n_posts);
    char why[ZR_PEER_WHY_BYTES];
    if (n_posts > 0)
        *post_p = seat->posts[(n_posts - 1) % 2];
    if (n_posts == 0 || !zr_peer_check_post(post_p, page->n_ranks, why))
        *post_p = (zr_post_t){.sequence = 0};
}
