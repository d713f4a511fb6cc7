/*
 * A device under test: opened by the name that the program was given, with a stream,
 * one arena of mapped device memory, and copies to and from it. Tests that use it
 * never touch device memory themselves, so they run on any device.
 */
#pragma once

#include "kernels/kernels.h"
#include "tests/common/test.h"

#define FIXTURE_SKIPPED 77

typedef struct fixture {
    zr_device_t *device;
    zr_stream_t *stream;
    char *arena;
    size_t arena_bytes, used_bytes;
    int n_errors; /* logged so far */
    char last_error[4096];
} fixture_t;

/** The device to test: the program's first argument, otherwise "host". "beside" is the host, with
 * the fixture's stream beside the calling thread; "shared", with memory that other processes may
 * map. */
const char *fixture_device_name(int argc, char **argv);
/** Its name for zr_device_open. */
const char *fixture_backend(const char *device_name);
/** 0, or FIXTURE_SKIPPED, having said why, when this build or machine has no such device. */
int fixture_probe(const char *device_name);
/** The program's tests on the device that its arguments name: each has a fixture for its state,
 * with two threads. @return the program's exit code */
int fixture_run_tests(int argc, char **argv);

/** Open; n_threads and isa as in zr_device_options_t. Fails the test when it cannot. */
void fixture_open(fixture_t *fixture, const char *device_name, int n_threads, const char *isa);
void fixture_close(fixture_t *fixture);

/** Device memory of the arena, `skip_bytes` after a multiple of 256. */
void *fixture_take(fixture_t *fixture, size_t size_bytes, size_t skip_bytes);
/** Take everything back. */
void fixture_reset(fixture_t *fixture);
/** Copy, and wait for it. */
void fixture_upload(fixture_t *fixture, void *dst, const void *src, size_t size_bytes);
void fixture_download(fixture_t *fixture, void *dst, const void *src, size_t size_bytes);
/** fixture_take and fixture_upload. */
void *fixture_place(fixture_t *fixture, const void *src, size_t size_bytes, size_t skip_bytes);

/** A log that counts the fixture's errors and prints nothing. */
zr_log_t fixture_log(fixture_t *fixture);
/** In [-1, 1), the same everywhere. */
float fixture_random_float(uint64_t *state);
/** Values of the dtype, of magnitude up to `scale`. */
void fixture_random_values(void *values, zr_dtype_t dtype, size_t n, float scale, uint64_t *state);

/** The call is refused with this status, and says so once. */
#define assert_refused(fixture, expected, call)                                                    \
    do {                                                                                           \
        int n_errors_before = (fixture)->n_errors;                                                 \
        assert_int_equal((call), (expected));                                                      \
        assert_int_equal((fixture)->n_errors, n_errors_before + 1);                                \
        assert_true((fixture)->last_error[0] != '\0');                                             \
    } while (0)
