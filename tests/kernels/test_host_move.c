/*
 * Moving memory on the host, beyond what every device promises: the pages themselves go along, the
 * advice to use huge ones holds where they come to, no other thread can get an address of the range
 * in between, and every call to the system may fail.
 *
 * The linker sends mremap, mmap and mprotect of the library here (--wrap).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "kernels/device.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#define N_GRANULES 16
#define MAX_KEPT 20000

/* What is to fail: the n-th call from now of any kind, with this errno; and all mremap or mprotect.
 */
static struct {
    long fail_at;
    int error;
    bool no_mremap, no_mprotect;
} system_calls;

static bool fails(bool always) {
    bool is_next = system_calls.fail_at > 0 && --system_calls.fail_at == 0;
    if (!is_next && !always)
        return false;
    errno = system_calls.error;
    return true;
}

WRAP(void *, mremap, void *from, size_t old_size, size_t new_size, int flags, void *to) {
    if (fails(system_calls.no_mremap))
        return MAP_FAILED;
    return __real_mremap(from, old_size, new_size, flags, to);
}

WRAP(void *, mmap, void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (fails(false))
        return MAP_FAILED;
    return __real_mmap(address, size, protection, flags, fd, offset);
}

WRAP(int, mprotect, void *address, size_t size, int protection) {
    if (fails(system_calls.no_mprotect))
        return -1;
    return __real_mprotect(address, size, protection);
}

typedef struct fixture {
    zr_device_t *device;
    size_t granule;
    char *from, *to; /* N_GRANULES each; the first are mapped */
    int pipe[2];
} fixture_t;

static int setup(void **state) {
    fixture_t *f = calloc(1, sizeof(*f));
    memset(&system_calls, 0, sizeof(system_calls));
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    options.log = (zr_log_t){.sink = drop_message, .level = ZR_LOG_DEBUG, .rank = -1};
    assert_ok(zr_device_open("host", &options, &f->device));
    f->granule = zr_device_info(f->device)->granule_bytes;
    void *from = NULL, *to = NULL;
    size_t size = N_GRANULES * f->granule;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, size, &from));
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, size, &to));
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, from, 0, size));
    f->from = from;
    f->to = to;
    assert_int_equal(pipe(f->pipe), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture_t *f = *state;
    close(f->pipe[0]);
    close(f->pipe[1]);
    zr_device_close(&f->device);
    free(f);
    return 0;
}

/* Granules are counted, not bytes. */
static zr_status_t move(fixture_t *f, char *from_base, size_t from, char *to_base, size_t to,
                        size_t n) {
    return zr_range_move(f->device, ZR_TIER_DEVICE, from_base, from * f->granule, to_base,
                         to * f->granule, n * f->granule);
}

/* Ask the system, which does not crash. */
static bool is_accessible(fixture_t *f, const char *address) {
    char byte;
    if (write(f->pipe[1], address, 1) != 1) {
        assert_int_equal(errno, EFAULT);
        return false;
    }
    assert_int_equal(read(f->pipe[0], &byte, 1), 1);
    return true;
}

static void assert_accessible(fixture_t *f, char *base, size_t begin, size_t end, bool expected) {
    for (size_t i = begin; i < end; i++)
        assert_int_equal(is_accessible(f, base + i * f->granule), expected);
}

/* Whether this system can move pages and leave the addresses; older ones cannot. */
static bool system_can_move(const fixture_t *f) {
    void *page = __real_mmap(NULL, f->granule, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *there = __real_mremap(page, f->granule, f->granule, MREMAP_MAYMOVE | 4, NULL);
    munmap(page, f->granule);
    if (there != MAP_FAILED)
        munmap(there, f->granule);
    return there != MAP_FAILED;
}

TEST_WITH(test_the_pages_go_along, setup, teardown) {
    fixture_t *f = *state;
    if (!system_can_move(f))
        skip();
    for (size_t i = 0; i < N_GRANULES; i++)
        f->from[i * f->granule] = (char)(i + 1);
    assert_ok(move(f, f->from, 3, f->to, 9, 5));
    for (size_t i = 0; i < N_GRANULES; i++) {
        bool is_moved = i >= 3 && i < 8;
        assert_int_equal(is_accessible(f, f->from + i * f->granule), !is_moved);
        assert_int_equal(is_moved ? f->to[(i + 6) * f->granule] : f->from[i * f->granule], i + 1);
    }
    assert_accessible(f, f->to, 0, 9, false);
    assert_accessible(f, f->to, 14, N_GRANULES, false);
    /* Also in one call where they came in many and in another order. */
    for (size_t i = 0; i < 5; i++)
        assert_ok(move(f, f->to, 9 + i, f->from, 7 - i, 1));
    assert_ok(move(f, f->from, 0, f->to, 0, N_GRANULES));
    assert_accessible(f, f->from, 0, N_GRANULES, false);
    for (size_t i = 0; i < N_GRANULES; i++)
        assert_int_equal(f->to[i * f->granule], i >= 3 && i < 8 ? 11 - i : i + 1);
}

/* Whether the system was told to use huge pages at an address; -1: it does not say. */
static int is_advised(const char *address) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_in = false;
    int result = -1;
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_in = (uintptr_t)address >= begin && (uintptr_t)address < end;
        else if (is_in && strncmp(line, "VmFlags:", 8) == 0)
            result = strstr(line, " hg") != NULL;
    }
    if (maps != NULL)
        fclose(maps);
    return result;
}

TEST_WITH(test_the_advice_holds, setup, teardown) {
    fixture_t *f = *state;
    if (is_advised(f->from) != 1)
        skip(); /* a system without huge pages */
    assert_ok(move(f, f->from, 2, f->to, 4, 3));
    for (size_t i = 0; i < N_GRANULES; i++) {
        assert_int_equal(is_advised(f->from + i * f->granule), 1);
        assert_int_equal(is_advised(f->to + i * f->granule), 1);
    }
}

/* ---- other threads ------------------------------------------------------------------- */

typedef struct other {
    const fixture_t *f;
    atomic_bool is_ready, is_over;
    size_t n_kept, n_inside;
} other_t;

static bool is_inside(const fixture_t *f, const char *page) {
    size_t size = N_GRANULES * f->granule;
    return (page >= f->from && page < f->from + size) || (page >= f->to && page < f->to + size);
}

static char *take_page(const fixture_t *f) {
    return __real_mmap(NULL, f->granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Take any free page, again and again. The system gives the highest there is, so those above the
 * ranges are taken first, and kept: a hole in a range is the next. */
static void *take_pages(void *context) {
    other_t *other = context;
    const fixture_t *f = other->f;
    const char *lowest = f->from < f->to ? f->from : f->to;
    while (other->n_kept < MAX_KEPT && take_page(f) > lowest)
        other->n_kept++;
    atomic_store(&other->is_ready, true);
    while (!atomic_load(&other->is_over)) {
        char *page = take_page(f);
        if (is_inside(f, page))
            other->n_inside++;
        else
            munmap(page, f->granule);
    }
    return NULL;
}

TEST_WITH(test_nobody_gets_the_addresses, setup, teardown) {
    fixture_t *f = *state;
    other_t other = {.f = f};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_pages, &other), 0);
    while (!atomic_load(&other.is_ready))
        ;
    for (int i = 0; i < 2000; i++) {
        assert_ok(move(f, f->from, 4, f->to, 0, 8));
        assert_ok(move(f, f->to, 0, f->from, 4, 8));
    }
    atomic_store(&other.is_over, true);
    pthread_join(thread, NULL);
    assert_int_equal(other.n_inside, 0);
    memset(f->from, 1, N_GRANULES * f->granule);
}

/* ---- a system that refuses -------------------------------------------------------------- */

TEST_WITH(test_without_moving_memory_is_mapped_anew, setup, teardown) {
    fixture_t *f = *state;
    memset(f->from, 7, N_GRANULES * f->granule);
    system_calls.no_mremap = true;
    system_calls.error = EINVAL;
    assert_ok(move(f, f->from, 4, f->to, 0, 8));
    assert_accessible(f, f->from, 4, 12, false);
    assert_accessible(f, f->to, 8, N_GRANULES, false);
    memset(f->to, 1, 8 * f->granule);
    for (size_t i = 0; i < 4 * f->granule; i++)
        assert_true(f->from[i] == 7 && f->from[12 * f->granule + i] == 7);
}

TEST_WITH(test_memory_that_the_machine_keeps, setup, teardown) {
    fixture_t *f = *state;
    system_calls.no_mremap = system_calls.no_mprotect = true;
    system_calls.error = ENOMEM;
    assert_int_equal(move(f, f->from, 4, f->to, 0, 8), ZR_ERR_BUDGET);
    system_calls.no_mremap = system_calls.no_mprotect = false;
    assert_accessible(f, f->from, 0, 4, true);
    assert_accessible(f, f->from, 4, 12, false);
    assert_accessible(f, f->to, 0, 8, false);
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, f->from, 4 * f->granule, 8 * f->granule));
    memset(f->from, 1, N_GRANULES * f->granule);
}

/* Let [4, 12) be many mappings to the system, so that a move is many calls. */
static void scatter(fixture_t *f) {
    memset(f->from, 7, N_GRANULES * f->granule);
    for (size_t i = 0; i < 8; i++)
        assert_ok(move(f, f->from, 4 + i, f->to, 11 - i, 1));
    for (size_t i = 0; i < 8; i++)
        assert_ok(move(f, f->to, 4 + i, f->from, 4 + i, 1));
}

/* One move in which the n-th call fails; what the status says is so, and the neighbours keep
 * their bytes. False: there were fewer calls. */
static bool move_with_fault(fixture_t *f, long n) {
    system_calls.fail_at = n;
    zr_status_t status = move(f, f->from, 4, f->to, 3, 8);
    bool has_failed = system_calls.fail_at == 0;
    system_calls.fail_at = 0;
    bool is_moved = status == ZR_OK;
    assert_true(is_moved || status == ZR_ERR_DEVICE || status == ZR_ERR_BUDGET);
    assert_accessible(f, f->from, 0, 4, true);
    assert_accessible(f, f->from, 4, 12, status == ZR_ERR_DEVICE);
    assert_accessible(f, f->from, 12, N_GRANULES, true);
    assert_accessible(f, f->to, 0, 3, false);
    assert_accessible(f, f->to, 3, 11, is_moved);
    assert_accessible(f, f->to, 11, N_GRANULES, false);
    for (size_t i = 0; i < 4 * f->granule; i++)
        assert_true(f->from[i] == 7 && f->from[12 * f->granule + i] == 7);
    system_calls.no_mprotect = false;
    if (is_moved)
        assert_ok(move(f, f->to, 3, f->from, 4, 8));
    else if (status == ZR_ERR_BUDGET)
        assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, f->from, 4 * f->granule, 8 * f->granule));
    return has_failed;
}

TEST_WITH(test_any_call_may_fail, setup, teardown) {
    fixture_t *f = *state;
    static const int errors[] = {ENOMEM, EFAULT, EINVAL};
    size_t n_failed = 0;
    for (size_t e = 0; e < 3; e++) {
        for (int is_machine_full = 0; is_machine_full < 2; is_machine_full++) {
            bool has_failed = true;
            for (long n = 1; has_failed; n++) {
                scatter(f);
                system_calls.error = errors[e];
                system_calls.no_mprotect = is_machine_full != 0;
                has_failed = move_with_fault(f, n);
                n_failed += has_failed;
            }
        }
    }
    assert_true(n_failed >= 18);
}
