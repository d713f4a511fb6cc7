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

bool is_case_met(size_t every, size_t *n_seen) {
    return (*n_seen)++ % every == 0 || getenv("ZR_TESTS_ALL") != NULL;
}

void assert_has(const char *text, const char *parts) {
    char copy[2048], *rest = copy;
    assert_true(strlen(parts) < sizeof(copy));
    strcpy(copy, parts);
    for (char *part = strsep(&rest, "|"); part != NULL; part = strsep(&rest, "|"))
        if (strstr(text, part) == NULL)
            fail_msg("\"%s\" is not in: %s", part, text);
}

/* Steele, Lea and Flood 2014: SplitMix64. */
uint64_t random_bits(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
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
