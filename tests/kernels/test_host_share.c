/*
 * Memory of the host that other processes map: what they see, what stays of it where granules have
 * moved, and that what is unmapped is given back although they have a view of it.
 */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/device_fixture.h"
#include "kernels/host/host_share.h"

#define HUGE_BYTES ((size_t)2 << 20)

static long fail_mmap_at; /* the n-th call from now; 0: none */

WRAP(void *, mmap, void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (fail_mmap_at > 0 && --fail_mmap_at == 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(address, size, protection, flags, fd, offset);
}

/* All of the arena is there from the beginning: the system may make huge pages of parts at any
 * time, and what the file has is counted. */
static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, "shared", 1, NULL);
    memset(fixture.arena, 0, fixture.arena_bytes);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    return 0;
}

static uint64_t place_of(fixture_t *f, const void *address, size_t size_bytes) {
    uint64_t place = UINT64_MAX;
    assert_true(zr_host_find_shared(f->device, address, size_bytes, &place));
    return place;
}

static char *open_view(fixture_t *f, size_t *size_p) {
    zr_host_file_t file = zr_host_shared_file(f->device);
    void *view = NULL;
    assert_true(file.descriptor >= 0);
    assert_int_equal(zr_host_map_shared(&file, getpid(), &view), 0);
    *size_p = file.size_bytes;
    return view;
}

static size_t bytes_in_file(fixture_t *f) {
    struct stat status;
    assert_int_equal(fstat(zr_host_shared_file(f->device).descriptor, &status), 0);
    return (size_t)status.st_blocks * 512;
}

TEST(test_both_sides_see_what_is_written) {
    fixture_t *f = *state;
    size_t view_bytes, n = 3 * HUGE_BYTES + 12345;
    char *tensor = f->arena + 77, *view = open_view(f, &view_bytes);
    uint64_t place = place_of(f, tensor, n);
    assert_true(place + n <= view_bytes);
    memset(tensor, 5, n);
    assert_int_equal(memcmp(view + place, tensor, n), 0);
    view[place + n - 1] = 9;
    assert_int_equal(tensor[n - 1], 9);
    munmap(view, view_bytes);
}

/* Another process writes, and a child of fork's has nothing of it. */
TEST(test_processes) {
    fixture_t *f = *state;
    zr_host_file_t file = zr_host_shared_file(f->device);
    uint64_t place = place_of(f, f->arena, 1);
    int owner = getpid(), status = 0;
    f->arena[0] = 1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        void *view = NULL;
        if (mincore(f->arena, 4096, (void *)&status) == 0)
            _exit(2); /* it is mapped here */
        if (zr_host_map_shared(&file, owner, &view) != 0 || ((char *)view)[place] != 1)
            _exit(1);
        ((char *)view)[place] = 2;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(f->arena[0], 2);
}

TEST(test_what_is_not_there) {
    fixture_t *f = *state;
    uint64_t place = 0;
    int other = 0;
    zr_host_file_t file = zr_host_shared_file(f->device);
    void *view = NULL;
    assert_false(zr_host_find_shared(f->device, &other, sizeof(other), &place));
    assert_false(zr_host_find_shared(f->device, f->arena, f->arena_bytes + 1, &place));
    assert_false(zr_host_find_shared(f->device, f->arena - 1, 1, &place));
    file.inode++;
    assert_int_equal(zr_host_map_shared(&file, getpid(), &view), ESTALE);
    file.inode--;
    file.descriptor = 1000000;
    assert_int_equal(zr_host_map_shared(&file, getpid(), &view), ENOENT);
    fail_mmap_at = 1;
    file = zr_host_shared_file(f->device);
    assert_int_equal(zr_host_map_shared(&file, getpid(), &view), ENOMEM);
    fail_mmap_at = 2;
    assert_int_equal(zr_host_map_shared(&file, getpid(), &view), ENOMEM);
    fail_mmap_at = 0;
}

/* Memory that is unmapped or released is the machine's again, and not more than that is. */
TEST(test_memory_is_given_back) {
    fixture_t *f = *state;
    size_t view_bytes, n = 8 * HUGE_BYTES, before = bytes_in_file(f);
    void *base = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_HOST, n, &base));
    assert_ok(zr_range_map(f->device, ZR_TIER_HOST, base, 0, n));
    char *view = open_view(f, &view_bytes);
    memset(base, 1, n);
    memset(view + place_of(f, base, n), 2, n);
    assert_int_equal(bytes_in_file(f), before + n);
    assert_ok(zr_range_unmap(f->device, ZR_TIER_HOST, base, HUGE_BYTES, 4 * HUGE_BYTES));
    assert_int_equal(bytes_in_file(f), before + 4 * HUGE_BYTES);
    assert_int_equal(((char *)base)[HUGE_BYTES - 1], 2);
    assert_int_equal(((char *)base)[5 * HUGE_BYTES], 2);
    assert_ok(zr_range_map(f->device, ZR_TIER_HOST, base, HUGE_BYTES, HUGE_BYTES));
    assert_int_equal(((char *)base)[HUGE_BYTES], 0);
    zr_range_release(f->device, ZR_TIER_HOST, &base, n);
    assert_int_equal(bytes_in_file(f), before);
    munmap(view, view_bytes);
}

/* A device that outlives many runtimes: when all ranges are gone, their places are used again, and
 * a view of before shows what is there now. */
TEST(test_places_are_used_again) {
    fixture_t *f = *state;
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    size_t n = (size_t)1 << 42, granule = zr_device_info(f->device)->granule_bytes;
    void *view = NULL;
    uint64_t file_bytes = 0;
    options.shares_memory = true;
    assert_ok(zr_device_open("host", &options, &device));
    for (int i = 0; i < 8; i++) {
        void *base[2] = {NULL};
        for (int r = 0; r < 2; r++)
            assert_ok(zr_range_reserve(device, ZR_TIER_HOST, n, &base[r]));
        assert_ok(zr_range_map(device, ZR_TIER_HOST, base[1], 0, granule));
        zr_host_file_t file = zr_host_shared_file(device);
        if (i == 0) {
            file_bytes = file.size_bytes;
            assert_int_equal(zr_host_map_shared(&file, getpid(), &view), 0);
        }
        uint64_t place = 0;
        assert_true(zr_host_find_shared(device, base[1], granule, &place));
        *(char *)base[1] = (char)(i + 1);
        assert_int_equal(file.size_bytes, file_bytes);
        assert_int_equal(((char *)view)[place], i + 1);
        for (int r = 0; r < 2; r++)
            zr_range_release(device, ZR_TIER_HOST, &base[r], n);
    }
    munmap(view, file_bytes);
    zr_device_close(&device);
}

/* The same beside a range that lasts, one of whose granules has traded places with a range of
 * before. */
TEST(test_places_are_used_again_beside_others) {
    fixture_t *f = *state;
    size_t n = (size_t)1 << 42, granule = zr_device_info(f->device)->granule_bytes;
    void *lasting = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_HOST, 2 * granule, &lasting));
    assert_ok(zr_range_map(f->device, ZR_TIER_HOST, lasting, 0, granule));
    memset(lasting, 7, granule);
    for (int i = 0; i < 8; i++) {
        void *base = NULL;
        assert_ok(zr_range_reserve(f->device, ZR_TIER_HOST, n, &base));
        assert_ok(zr_range_map(f->device, ZR_TIER_HOST, base, 0, 2 * granule));
        memset(base, i + 8, 2 * granule);
        if (i == 1) { /* to and fro, with other granules */
            assert_ok(
                zr_range_move(f->device, ZR_TIER_HOST, base, granule, lasting, granule, granule));
            assert_ok(zr_range_move(f->device, ZR_TIER_HOST, lasting, 0, base, granule, granule));
            assert_ok(zr_range_move(f->device, ZR_TIER_HOST, base, granule, lasting, 0, granule));
        }
        zr_range_release(f->device, ZR_TIER_HOST, &base, n);
        for (size_t at = 0; at < (i < 1 ? 1 : 2) * granule; at += granule / 2)
            assert_int_equal(((char *)lasting)[at], at < granule ? 7 : 9);
    }
    zr_range_release(f->device, ZR_TIER_HOST, &lasting, 2 * granule);
    assert_true(zr_host_shared_file(f->device).size_bytes < 3 * n);
}

/* A system that promises everything would let one map it. */
TEST(test_no_more_than_the_machine_has) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    size_t most = zr_device_info(f->device)->memory_bytes / granule * granule;
    void *base = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, most, &base));
    assert_int_equal(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, most), ZR_ERR_BUDGET);
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, most - f->arena_bytes));
    assert_int_equal(zr_range_map(f->device, ZR_TIER_DEVICE, base, most - f->arena_bytes, granule),
                     ZR_ERR_BUDGET);
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, most);
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, granule, &base));
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, granule));
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, granule);
}

/* ---- moving: a model of which granule holds what -------------------------------------------- */

enum { N_GRANULES = 24 };

typedef struct model {
    char *base[2];
    int value[2][N_GRANULES]; /* 0: not mapped */
} model_t;

static void check_model(fixture_t *f, const model_t *model, const char *view) {
    size_t granule = zr_device_info(f->device)->granule_bytes;
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < N_GRANULES; i++) {
            const char *address = model->base[r] + (size_t)i * granule;
            if (model->value[r][i] == 0)
                continue;
            assert_int_equal(address[granule - 1], (char)model->value[r][i]);
            assert_int_equal(view[place_of(f, address, granule) + granule - 1],
                             (char)model->value[r][i]);
        }
    }
}

/* A run of granules in a state, and where it begins; 0: none from there. */
static int run_of(const int *values, int begin, bool is_mapped, int most) {
    int n = 0;
    while (begin + n < N_GRANULES && n < most && (values[begin + n] != 0) == is_mapped)
        n++;
    return n;
}

TEST(test_random_moves) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes, view_bytes;
    size_t range_bytes = N_GRANULES * granule, before = bytes_in_file(f);
    uint64_t seed = 7;
    model_t model = {.base = {NULL}};
    int n_moves = 0;
    for (int r = 0; r < 2; r++) {
        void *base = NULL;
        assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, range_bytes, &base));
        model.base[r] = base;
    }
    char *view = open_view(f, &view_bytes);
    for (int step = 1; step <= 3000; step++) {
        int from = (int)(random_bits(&seed) % 2), to = (int)(random_bits(&seed) % 2);
        int a = (int)(random_bits(&seed) % N_GRANULES);
        int b = (int)(random_bits(&seed) % N_GRANULES);
        int most = 1 + (int)(random_bits(&seed) % 6);
        int n = run_of(model.value[from], a, true, most);
        if (n > 0 && step % 4 == 0) {
            assert_ok(zr_range_unmap(f->device, ZR_TIER_DEVICE, model.base[from],
                                     (size_t)a * granule, (size_t)n * granule));
            memset(&model.value[from][a], 0, (size_t)n * sizeof(int));
        } else if (n > 0 && (n = run_of(model.value[to], b, false, n)) > 0) {
            fail_mmap_at = step % 5 == 0 ? 1 + step / 5 % (2 * n) : 0;
            zr_status_t status =
                zr_range_move(f->device, ZR_TIER_DEVICE, model.base[from], (size_t)a * granule,
                              model.base[to], (size_t)b * granule, (size_t)n * granule);
            assert_ok(status);
            bool has_failed = fail_mmap_at == 0 && step % 5 == 0; /* then it was mapped anew */
            fail_mmap_at = 0;
            for (int i = 0; i < n; i++) {
                int value = model.value[from][a + i];
                model.value[from][a + i] = 0;
                model.value[to][b + i] = value;
                if (has_failed)
                    memset(model.base[to] + (size_t)(b + i) * granule, value, granule);
            }
            n_moves++;
        } else if ((n = run_of(model.value[to], b, false, most)) > 0) {
            assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, model.base[to], (size_t)b * granule,
                                   (size_t)n * granule));
            for (int i = 0; i < n; i++) {
                model.value[to][b + i] = 1 + step % 120;
                memset(model.base[to] + (size_t)(b + i) * granule, 1 + step % 120, granule);
            }
        }
        check_model(f, &model, view);
    }
    assert_true(n_moves > 200);
    munmap(view, view_bytes);
    for (int r = 0; r < 2; r++) {
        void *base = model.base[r];
        zr_range_release(f->device, ZR_TIER_DEVICE, &base, range_bytes);
    }
    assert_int_equal(bytes_in_file(f), before);
}

/* What was moved apart is in one piece no more: a communicator is told so. */
TEST(test_pieces) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    uint64_t place = 0;
    void *base = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, 8 * granule, &base));
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, 4 * granule));
    assert_ok(
        zr_range_move(f->device, ZR_TIER_DEVICE, base, granule, base, 5 * granule, 2 * granule));
    char *tensor = (char *)base + 5 * granule;
    assert_true(zr_host_find_shared(f->device, tensor, 2 * granule, &place));
    assert_int_equal(place, place_of(f, base, 1) + granule);
    assert_false(zr_host_find_shared(f->device, tensor - 1, 2, &place));
    assert_false(zr_host_find_shared(f->device, (char *)base + granule - 1, 2, &place));
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, 8 * granule);
}

TEST(test_private_by_default) {
    fixture_t f;
    uint64_t place = 0;
    fixture_open(&f, "host", 1, NULL);
    assert_int_equal(zr_host_shared_file(f.device).descriptor, -1);
    assert_false(zr_host_find_shared(f.device, f.arena, 1, &place));
    fixture_close(&f);
}

int main(void) {
    if (fixture_probe("shared") != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
