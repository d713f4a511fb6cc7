/*
 * The end of a process's way to MPI: the last communicator closes it, and what comes of that is
 * said; a rank 0 that nobody can reach; and transfers that fail, or take too long. The module is
 * one of the test's own.
 */
#include <ifaddrs.h>

#include "kernels/base/log.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "zero/comm/mpi/mpi_site.h"

static int n_closed, closed_after_ms;
static bool was_dead;
static char said[512];

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    snprintf(said, sizeof(said), "%s %d %s", zr_log_level_name(level), rank, message);
}

static bool close_well(bool is_dead, int timeout_ms, char *error) {
    n_closed++;
    was_dead = is_dead;
    closed_after_ms = timeout_ms;
    return true;
}

static bool close_late(bool is_dead, int timeout_ms, char *error) {
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

TEST(the_last_user_closes) {
    const zr_mpi_module_t module = {.close = close_well};
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

TEST(an_end_that_fails_is_said) {
    const zr_mpi_module_t module = {.close = close_late};
    zr_mpi_site_leave(make_site(&module, 1), false);
    assert_int_equal(n_closed, 1);
    assert_has(said, "warning 3 MPI was not finalised in this process: MPI_Finalize has "
                     "not returned for 1234 ms");
}

/* ---- rank 0's place -------------------------------------------------------------------------- */

/* In place of the system's: of a machine without a network. */
int getifaddrs(struct ifaddrs **list_p) {
    *list_p = NULL;
    return 0;
}

void freeifaddrs(struct ifaddrs *list) {
    assert_null(list);
}

/* At once, by rank 0 itself, rather than by those who look for it until their time is up. */
TEST(a_machine_without_an_address_is_said) {
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING, .rank = 0};
    for (int is_told = 0; is_told < 2; is_told++) {
        zr_place_t place = {0};
        zr_launch_t launch = {.rank = 0};
        snprintf(launch.host, sizeof(launch.host), "%s", is_told ? "10.0.0.7" : "");
        zr_status_t status = zr_launch_listen(&log, &launch, &place);
        assert_int_equal(status, is_told ? ZR_OK : ZR_ERR_COMM);
        assert_int_equal(place.port > 0, is_told);
        assert_int_equal(place.n_addresses, is_told);
        assert_int_equal(launch.has_socket, is_told);
        assert_int_equal(launch.port, place.port);
        zr_launch_drop(&launch);
    }
    assert_has(said, "rank 0 cannot be reached by the others: no network interface of "
                     "its machine that is up has an IPv4 address");
}

/* ---- transfers ------------------------------------------------------------------------------- */

static int n_given_up;

static void give_up(void) {
    n_given_up++;
}

/* One transfer more is done in each wait. */
static bool wait_well(zr_mpi_transfer_t *transfers, size_t n_transfers, int wait_ms,
                      size_t *n_left_p, char *error) {
    (void)wait_ms, (void)error;
    size_t i = 0;
    while (transfers[i].is_done)
        i++;
    transfers[i].is_done = true;
    *n_left_p = n_transfers - i - 1;
    return true;
}

/* The second stays. */
static bool wait_in_vain(zr_mpi_transfer_t *transfers, size_t n_transfers, int wait_ms,
                         size_t *n_left_p, char *error) {
    (void)wait_ms, (void)error;
    transfers[0].is_done = true;
    *n_left_p = n_transfers - 1;
    return true;
}

static bool wait_badly(zr_mpi_transfer_t *transfers, size_t n_transfers, int wait_ms,
                       size_t *n_left_p, char *error) {
    (void)transfers, (void)wait_ms;
    *n_left_p = n_transfers;
    snprintf(error, ZR_MPI_ERROR_BYTES, "MPI_Testsome: out of order");
    return false;
}

/* What comes of waiting, and why the communicator has ended, or "". */
static zr_status_t wait_for_two(const zr_mpi_module_t *module, char reason[512]) {
    zr_mpi_transfer_t transfers[2] = {{.peer = 1, .is_send = true}, {.peer = 2}};
    zr_control_t *control = NULL;
    zr_mpi_site_t *site = make_site(module, 1);
    site->timeout_ms = 1;
    n_given_up = 0;
    assert_ok(zr_control_create_memory(1, 1000, &control));
    zr_status_t status = zr_mpi_site_wait(site, control, transfers, 2);
    const char *death = control->backend->death(control, NULL);
    snprintf(reason, 512, "%s", death != NULL ? death : "");
    zr_control_destroy(&control);
    zr_mpi_site_leave(site, true);
    return status;
}

TEST(transfers_are_waited_for) {
    const zr_mpi_module_t module = {.wait = wait_well, .give_up = give_up, .close = close_well};
    char reason[512];
    assert_ok(wait_for_two(&module, reason));
    assert_string_equal(reason, "");
    assert_int_equal(n_given_up, 0);
}

TEST(a_transfer_that_does_not_end_is_named) {
    const zr_mpi_module_t module = {.wait = wait_in_vain, .give_up = give_up, .close = close_well};
    char reason[512];
    assert_int_equal(wait_for_two(&module, reason), ZR_ERR_COMM);
    assert_string_equal(reason, "rank 0 has waited 1 ms for rank 2 to send data through MPI");
    assert_int_equal(n_given_up, 1);
}

TEST(an_error_of_mpi_is_said) {
    const zr_mpi_module_t module = {.wait = wait_badly, .give_up = give_up, .close = close_well};
    char reason[512];
    assert_int_equal(wait_for_two(&module, reason), ZR_ERR_COMM);
    assert_string_equal(reason,
                        "rank 0 cannot exchange data through MPI: MPI_Testsome: out of order");
    assert_int_equal(n_given_up, 1);
}
