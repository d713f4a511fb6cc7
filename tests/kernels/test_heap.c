/* Heaps of tables: what they give, what they count, and that nothing is left of them, whichever
 * thread asks, frees and ends them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/base/heap_internal.h"
#include "tests/common/test.h"

static zr_heap_t *create(zr_heap_t *counted_in) {
    zr_heap_t *heap = zr_heap_create(counted_in);
    assert_non_null(heap);
    return heap;
}

static void assert_count(const zr_heap_t *heap, size_t bytes, size_t peak) {
    zr_heap_count_t count = zr_heap_count(heap);
    assert_int_equal(count.bytes, bytes);
    assert_int_equal(count.peak, peak);
}

static bool is_zero(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

TEST(test_arrays_are_zeros_aligned_and_apart) {
    zr_heap_t *heap = create(NULL);
    unsigned char *arrays[400];
    for (int round = 0; round < 2; round++) { /* the second is given what the first has dirtied */
        for (size_t i = 0; i < 400; i++) {
            size_t n = i < 390 ? i : i * 1000;
            arrays[i] = zr_heap_alloc(heap, n, 3);
            assert_non_null(arrays[i]);
            assert_int_equal((uintptr_t)arrays[i] % 16, 0);
            assert_true(is_zero(arrays[i], n * 3));
            memset(arrays[i], (int)i, n * 3);
        }
        for (size_t i = 0; i < 400; i++) {
            for (size_t k = 0, n = i < 390 ? i : i * 1000; k < n * 3; k++)
                assert_int_equal(arrays[i][k], (unsigned char)i);
            zr_heap_free(heap, arrays[i]);
        }
    }
    zr_heap_free(heap, NULL);
    assert_int_equal(zr_heap_count(heap).bytes, 0);
    zr_heap_destroy(&heap);
    assert_null(heap);
    zr_heap_destroy(&heap);
}

TEST(test_resized_arrays_keep_what_they_have) {
    zr_heap_t *heap = create(NULL);
    uint32_t *array = NULL;
    size_t sizes[] = {1, 5, 4, 1000, 1001, 100000, 7, 0, 9};
    for (size_t s = 0, before = 0; s < N_OF(sizes); before = sizes[s++]) {
        array = zr_heap_resize(heap, array, sizes[s], sizeof(*array));
        assert_non_null(array);
        for (size_t i = 0; i < sizes[s]; i++)
            assert_int_equal(array[i], i < before ? i + 1 : 0);
        for (size_t i = 0; i < sizes[s]; i++)
            array[i] = (uint32_t)i + 1;
        assert_int_equal(zr_heap_count(heap).bytes, sizes[s] * sizeof(*array));
    }
    assert_count(heap, 36, 400000);
    zr_heap_destroy(&heap);
}

TEST(test_room_is_made_by_doubling) {
    zr_heap_t *heap = create(NULL);
    size_t *array = NULL, capacity = 0;
    for (size_t n = 0; n < 1000; n++) {
        assert_true(zr_heap_make_room(heap, &array, n, &capacity, sizeof(*array)));
        assert_true(capacity > n && capacity < 2 * n + 17);
        array[n] = n;
    }
    for (size_t n = 0; n < 1000; n++)
        assert_int_equal(array[n], n);
    zr_heap_destroy(&heap);
}

TEST(test_texts) {
    zr_heap_t *heap = create(NULL);
    assert_string_equal(zr_heap_text(heap, "a text"), "a text");
    assert_string_equal(zr_heap_text(heap, ""), "");
    assert_null(zr_heap_text(heap, NULL));
    assert_string_equal(zr_heap_printf(heap, "%s %d %0300d", "unit", 7, 1) + 306, "1");
    assert_count(heap, 7 + 1 + 308, 7 + 1 + 308);
    zr_heap_destroy(&heap);
}

TEST(test_sizes_that_overflow_or_are_too_large_change_nothing) {
    zr_heap_t *heap = create(NULL);
    char *array = zr_heap_text(heap, "kept");
    size_t sizes[][2] = {{SIZE_MAX, 1},        {SIZE_MAX / 2 + 1, 2}, {SIZE_MAX / 8, 9},
                         {SIZE_MAX, SIZE_MAX}, {PTRDIFF_MAX, 1},      {PTRDIFF_MAX / 4, 4}};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        assert_null(zr_heap_alloc(heap, sizes[i][0], sizes[i][1]));
        assert_null(zr_heap_resize(heap, array, sizes[i][0], sizes[i][1]));
        assert_null(zr_heap_resize(heap, NULL, sizes[i][0], sizes[i][1]));
    }
    void *large = array;
    size_t capacity = SIZE_MAX / 16;
    assert_false(zr_heap_make_room(heap, &large, capacity, &capacity, 16));
    assert_ptr_equal(large, array);
    assert_int_equal(capacity, SIZE_MAX / 16);
    assert_string_equal(array, "kept");
    assert_count(heap, 5, 5);
    zr_heap_destroy(&heap);
}

TEST(test_counts_of_several_heaps_are_one) {
    zr_heap_t *all = create(NULL), *a = create(all), *b = create(a);
    void *of_a = zr_heap_alloc(a, 10, 10);
    assert_non_null(of_a);
    assert_non_null(zr_heap_alloc(b, 1, 50));
    assert_count(all, 150, 150);
    zr_heap_free(a, of_a);
    assert_count(all, 50, 150);
    assert_non_null(zr_heap_alloc(all, 1, 7));
    zr_heap_destroy(&b);
    assert_count(all, 7, 150);
    assert_non_null(zr_heap_alloc(a, 1, 200));
    assert_count(all, 207, 207);
    zr_heap_destroy(&a);
    assert_count(all, 7, 207);
    zr_heap_destroy(&all);
}

/* ---- threads --------------------------------------------------------------------------- */

#define N_THREADS 4
#define N_ROUNDS 200

/* A rank's life, several times: tables come, grow and go, and the rest ends with its heap. */
static void *live(void *context) {
    for (size_t round = 0; round < N_ROUNDS; round++) {
        zr_heap_t *heap = zr_heap_create(context);
        size_t *table = NULL, capacity = 0;
        for (size_t i = 0; heap != NULL && i < 300; i++) {
            if (!zr_heap_make_room(heap, &table, i, &capacity, sizeof(*table)))
                return "make room";
            table[i] = i * round;
            char *name = zr_heap_printf(heap, "unit %zu", i);
            if (name == NULL || strncmp(name, "unit ", 5) != 0)
                return "a name";
            if (i % 3 == 0)
                zr_heap_free(heap, name);
        }
        for (size_t i = 0; heap != NULL && i < 300; i++)
            if (table[i] != i * round)
                return "another's table";
        if (heap == NULL || zr_heap_count(heap).bytes < 300 * sizeof(*table))
            return "a count";
        zr_heap_destroy(&heap);
    }
    return NULL;
}

TEST(test_ranks_that_are_threads_have_heaps_that_count_together) {
    zr_heap_t *all = create(NULL);
    pthread_t threads[N_THREADS];
    for (size_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, live, all), 0);
    for (size_t i = 0; i < N_THREADS; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        if (wrong != NULL)
            fail_msg("%s", (char *)wrong);
    }
    zr_heap_count_t count = zr_heap_count(all);
    assert_int_equal(count.bytes, 0);
    assert_true(count.peak >= 512 * sizeof(size_t) && count.peak < N_THREADS * 100000);
    zr_heap_destroy(&all);
}

typedef struct handed {
    zr_heap_t *heap;
    char *text, *grown;
} handed_t;

static void run_in_thread(void *(*function)(void *), void *context) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, context), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *create_there(void *context) {
    handed_t *handed = context;
    handed->heap = zr_heap_create(NULL);
    handed->text = zr_heap_text(handed->heap, "of the first thread");
    handed->grown = zr_heap_text(handed->heap, "grown");
    for (size_t i = 0; i < 1000; i++)
        if (zr_heap_alloc(handed->heap, i, 10) == NULL)
            handed->text = NULL;
    return NULL;
}

/* Several threads follow each other, so that a new one may have an ended one's place. */
static void *use_there(void *context) {
    handed_t *handed = context;
    char *own = zr_heap_text(handed->heap, "of another thread");
    handed->grown = zr_heap_resize(handed->heap, handed->grown, 5000, 1);
    zr_heap_free(handed->heap, handed->text);
    handed->text = own;
    return NULL;
}

static void *destroy_there(void *context) {
    zr_heap_destroy(&((handed_t *)context)->heap);
    return NULL;
}

TEST(test_a_heap_outlives_its_thread_and_ends_in_any) {
    for (int where = 0; where < 4; where++) {
        handed_t handed = {0};
        if ((where & 1) != 0)
            create_there(&handed);
        else
            run_in_thread(create_there, &handed);
        for (int i = 0; i < 3; i++) {
            run_in_thread(use_there, &handed);
            use_there(&handed);
        }
        assert_string_equal(handed.text, "of another thread");
        assert_string_equal(handed.grown, "grown");
        assert_true(is_zero((unsigned char *)handed.grown + 5, 4995));
        assert_int_equal(zr_heap_count(handed.heap).bytes, 18 + 5000 + 10 * 999 * 500);
        if ((where & 2) != 0)
            destroy_there(&handed);
        else
            run_in_thread(destroy_there, &handed);
        assert_null(handed.heap);
    }
}

enum { N_LEFT = 4000, LEFT_BYTES = 1000 };

/* Blocks of malloc's, which stay when their thread has ended. */
static void *leave_blocks(void *context) {
    unsigned char **blocks = context;
    for (size_t i = 0; i < N_LEFT; i++) {
        blocks[i] = malloc(LEFT_BYTES);
        if (blocks[i] != NULL)
            memset(blocks[i], 1, LEFT_BYTES);
    }
    return NULL;
}

/* mimalloc gives pages that an ended thread has left to a heap that needs some. */
TEST(test_the_end_of_a_heap_leaves_what_others_have) {
    static unsigned char *left[N_LEFT], *later[N_LEFT];
    for (int round = 0; round < 4; round++) {
        run_in_thread(leave_blocks, left);
        zr_heap_t *heap = create(NULL);
        for (size_t i = 0; i < 80000; i++) /* more than a segment of mimalloc's */
            assert_non_null(zr_heap_alloc(heap, LEFT_BYTES, 1));
        zr_heap_destroy(&heap);
        for (size_t i = 0; i < N_LEFT; i++) {
            later[i] = malloc(LEFT_BYTES);
            assert_non_null(later[i]);
            memset(later[i], 2, LEFT_BYTES);
        }
        for (size_t i = 0; i < N_LEFT; i++) {
            assert_non_null(left[i]);
            assert_int_equal(left[i][0], 1);
            assert_int_equal(left[i][LEFT_BYTES - 1], 1);
        }
        for (size_t i = 0; i < N_LEFT; i++) {
            free(left[i]);
            free(later[i]);
        }
    }
}

/* ---- nothing is left -------------------------------------------------------------------- */

static size_t resident_bytes(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %zu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

static void *fill_and_leave(void *context) {
    zr_heap_t *heap = zr_heap_create(NULL);
    for (size_t i = 0; i < 1000; i++) {
        size_t n = i % 10 == 0 ? 100000 : 1000;
        unsigned char *table = zr_heap_alloc(heap, n, 1);
        if (table != NULL)
            memset(table, 1, n);
    }
    if (context != NULL)
        zr_heap_destroy(&heap);
    return heap;
}

/* 11 MB a time; what stays would be 2 GB. AddressSanitizer keeps some for a while. */
TEST(test_nothing_is_left_of_heaps_that_ended) {
    size_t before = resident_bytes();
    for (int i = 0; i < 100; i++) {
        fill_and_leave("");
        pthread_t thread;
        void *heap = NULL; /* begins in a thread that has ended, and ends in this one */
        assert_int_equal(pthread_create(&thread, NULL, fill_and_leave, NULL), 0);
        assert_int_equal(pthread_join(thread, &heap), 0);
        zr_heap_destroy((zr_heap_t **)&heap);
    }
    size_t after = resident_bytes();
    if (after > before + 1000000000)
        fail_msg("%zu bytes are resident, %zu were at first", after, before);
}

TEST(test_programs_of_this_build_have_mimallocs_malloc) {
    Dl_info info;
    assert_true(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) != 0);
    bool is_mimallocs = strstr(info.dli_fname, "libmimalloc") != NULL;
#ifdef ZR_HAVE_MIMALLOC
    assert_true(is_mimallocs);
#else
    assert_false(is_mimallocs);
#endif
}
