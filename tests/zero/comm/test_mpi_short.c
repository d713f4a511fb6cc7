/*
 * A message that comes through MPI and is shorter than was expected: who waits for it is told, and
 * takes nothing for what has not come. Called with nothing but mpirun, this program becomes that
 * with two ranks; rank 1 sends less.
 */
#include "tests/common/test.h"
#include "zero/comm/mpi/mpi_site.h"

enum { TIMEOUT_MS = 60000, SENT_BYTES = 8, EXPECTED_BYTES = 16 };

static zr_launch_t launch;

TEST(a_short_message_is_told) {
    char buffer[EXPECTED_BYTES] = "", error[ZR_MPI_ERROR_BYTES] = "";
    zr_log_t log = zr_log_default();
    zr_mpi_site_t *site = NULL;
    zr_control_t *control = NULL;
    size_t n_left = 1;
    assert_ok(zr_mpi_site_find_ranks(&launch, &log, TIMEOUT_MS, &site, &control));
    bool is_sender = launch.rank == 1;
    zr_mpi_transfer_t transfer = {.buffer = buffer,
                                  .size_bytes = is_sender ? SENT_BYTES : EXPECTED_BYTES,
                                  .peer = 1 - launch.rank,
                                  .is_send = is_sender};
    site->module->post(&transfer, 1);
    bool is_fine = site->module->wait(&transfer, 1, TIMEOUT_MS, &n_left, error);
    assert_int_equal(is_fine, is_sender);
    assert_int_equal(n_left, is_sender ? 0 : 1);
    if (!is_sender)
        assert_string_equal(error, "rank 1 has sent 8 of 16 bytes");
    assert_ok(control->backend->meet(control, ZR_OK)); /* both have looked */
    zr_control_destroy(&control);
    zr_mpi_site_leave(site, true);
}

int main(int argc, char **argv) {
    char command[4096], line[1024];
    zr_log_t log = zr_log_default();
    bool is_launched = false;
    if (argc == 1)
        return zr_launch_from_environment(&log, &launch, &is_launched) != ZR_OK || !launch.by_mpi ||
               run_all_tests(NULL, NULL) != 0;
    if (argv[1][0] == '\0') {
        printf("skipped: this build is without MPI, or mpirun is not found\n");
        return TEST_SKIPPED;
    }
    snprintf(command, sizeof(command), "%s -n 2 '%s' 2>&1", argv[1], argv[0]);
    FILE *output = popen(command, "r");
    int n_passed = 0;
    while (output != NULL && fgets(line, sizeof(line), output) != NULL) {
        printf("%s", line);
        n_passed += strstr(line, "[  PASSED  ] 1 test") != NULL;
    }
    if (output != NULL)
        pclose(output); /* MPI is given up after such a message, which mpirun does not like */
    return n_passed != 2;
}
