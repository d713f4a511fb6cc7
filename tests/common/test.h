/*
 * What every test begins with: cmocka, and tests that need no list. A program of tests is
 * functions,
 *
 *     TEST(name) {
 *         assert_int_equal(...);
 *     }
 *
 * which test_main.c's main() runs in the order in which the file has them. A file that has
 * something to do before has a main() of its own, and calls run_all_tests() there.
 */
#pragma once

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/** The exit code of a program that had nothing to test here, and has said why. */
#define TEST_SKIPPED 77

#define TEST(name) TEST_WITH(name, NULL, NULL)

/** A test between these two functions of cmocka's, or NULL: `*state` is what the first left there.
 */
#define TEST_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        add_test((struct CMUnitTest){#name, name, setup, teardown, NULL}, __LINE__);               \
    }                                                                                              \
    static void name(void **state)

/** A call of the library has to succeed. */
#define assert_ok(call) assert_int_equal(call, 0)

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/** Whether the next case of a grid is met: one of `every`, or one of `slow` in a build whose cases
 * take several times as long; all of them where ZR_TESTS_ALL is set. With a prime that none of the
 * grid's options has as its number of values, each value of each is met. The place that asks
 * counts. */
#define ONE_OF(every, slow)                                                                        \
    is_case_met(TEST_IS_SLOW ? (slow) : (every), ({                                                \
                    static size_t n_seen_;                                                         \
                    &n_seen_;                                                                      \
                }))
bool is_case_met(size_t every, size_t *n_seen);

/** Of a test's own file, which may be on emulated kernels. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(ZR_TESTS_EMULATED)
#define TEST_IS_SLOW true
#else
#define TEST_IS_SLOW false
#endif

/** The texts that stand between bars are all in this one. */
void assert_has(const char *text, const char *parts);

/** The function that calls of `name` go to where the linker is told so (--wrap=name); what it
 * stands for is __real_name. */
#define WRAP(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

/** 64 bits that are the same everywhere for the same state, which moves on. */
uint64_t random_bits(uint64_t *state);

/** What TEST does with a test: remember it, before main(). */
void add_test(struct CMUnitTest test, int line);

/** Run them all, between these two functions or NULL: how many failed. */
int run_all_tests(CMFixtureFunction setup, CMFixtureFunction teardown);

/** For tests that leave files: into a new folder below /tmp, and out of it when it has been
 * removed. 0, or the tests are not run. */
int enter_test_folder(void **state);
int leave_test_folder(void **state);

/** The functions around all tests of a file without main(); it defines this where it has some. */
typedef struct test_group {
    CMFixtureFunction setup, teardown;
} test_group_t;
extern const test_group_t test_group;
