/*
 * The end of a process's way to MPI: the last communicator closes it, and what comes of that is
 * said. The module is one of the test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/log.h"
#include "zero/comm/mpi/mpi_site.h"

static int n_closed, closed_after_ms;
static bool was_dead;
static char said[512];

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context;
    snprintf(said, sizeof(said), "%s %d %s", zr_log_level_name(level), rank, message);
}

static bool close_well(bool is_dead, int timeout_ms, char *error) {
    (void)error;
    n_closed++;
    was_dead = is_dead;
    closed_after_ms = timeout_ms;
    return true;
}

static bool close_late(bool is_dead, int timeout_ms, char *error) {
    (void)is_dead;
    n_closed++;
    snprintf(error, ZR_MPI_ERROR_BYTES, "MPI_Finalize has not returned for %d ms", timeout_ms);
    return false;
}

static zr_mpi_site_t *make_site(const zr_mpi_module_t *module, int n_users) {
    zr_mpi_site_t *site = calloc(1, sizeof(*site));
    assert_non_null(site);
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING, .rank = 3};
    *site = (zr_mpi_site_t){.module = module, .log = log, .n_users = n_users, .timeout_ms = 1234};
    n_closed = 0;
    said[0] = '\0';
    return site;
}

static void the_last_user_closes(void **state) {
    const zr_mpi_module_t module = {.close = close_well};
    (void)state;
    zr_mpi_site_leave(NULL, true);
    zr_mpi_site_t *site = make_site(&module, 2);
    zr_mpi_site_leave(site, true);
    assert_int_equal(n_closed, 0);
    zr_mpi_site_leave(site, false);
    assert_int_equal(n_closed, 1);
    assert_true(was_dead);
    assert_int_equal(closed_after_ms, 1234);
    assert_string_equal(said, "");
}

static void an_end_that_fails_is_said(void **state) {
    const zr_mpi_module_t module = {.close = close_late};
    (void)state;
    zr_mpi_site_leave(make_site(&module, 1), false);
    assert_int_equal(n_closed, 1);
    assert_non_null(strstr(said, "warning 3 MPI was not ended in this process: MPI_Finalize has "
                                 "not returned for 1234 ms"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_user_closes),
        cmocka_unit_test(an_end_that_fails_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
