#include "tests/common/test.h"

#define MOST_TESTS 128

static struct CMUnitTest tests[MOST_TESTS];
static int lines[MOST_TESTS];
static size_t n_tests;

void add_test(struct CMUnitTest test, int line) {
    if (n_tests == MOST_TESTS) {
        fprintf(stderr, "%s: a program has %d tests at the most\n", test.name, MOST_TESTS);
        abort();
    }
    /* By line: nothing promises in which order the functions before main() are called. */
    size_t at = n_tests++;
    for (; at > 0 && lines[at - 1] > line; at--) {
        tests[at] = tests[at - 1];
        lines[at] = lines[at - 1];
    }
    tests[at] = test;
    lines[at] = line;
}

int run_all_tests(CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (n_tests == 0)
        return 1; /* a file without a test has not passed */
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

static char folder[] = "/tmp/zr-test-XXXXXX";

int enter_test_folder(void **state) {
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

int leave_test_folder(void **state) {
    char command[64];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return chdir("/") | system(command);
}
