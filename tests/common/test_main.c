/* For tests that have no main() of their own; the linker leaves it out of the others. */
#include "tests/common/test.h"

__attribute__((weak)) const test_group_t test_group = {NULL, NULL};

int main(void) {
    return run_all_tests(test_group.setup, test_group.teardown);
}
