/*
 * What zero-train says when something is refused or goes wrong: it has to help the one who reads
 * it.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/examples/run_train.h"

#define NVME "--nvme-path drive "

static int prepare(void **state) {
    (void)state;
    return make_folder();
}

/* ---- budgets ---------------------------------------------------------------------------- */

/* The advice is for the tier that is full, and for what fills it. */
static void budgets(void **state) {
    static const struct {
        const char *arguments;
        const char *said[4];
        const char *not_said;
    } cases[] = {
        {TINY "--device-memory 64KiB",
         {"device memory", "try a larger --device-memory, --stage 1, 2 or 3"},
         "host-memory"},
        {TINY "--offload-optimizer cpu --host-memory 64KiB",
         {"host memory", "try a larger --host-memory", "--offload-optimizer nvme"},
         "--stage"},
        {TINY "--stage 3 --offload-params cpu --host-memory 100KiB",
         {"host memory", "a larger --host-memory", "--offload-params nvme"},
         "cpu"},
        {TINY NVME "--offload-optimizer nvme --host-memory 700KiB",
         {"host memory", "a larger --host-memory", "--nvme-buffers, --sub-group"},
         "cpu"},
        {TINY NVME "--offload-optimizer nvme --host-memory 80KiB",
         {"the store's bounce buffers", "a larger --host-memory", "request_bytes"},
         "--stage"},
        {TINY "--recompute unit --offload-activations cpu --micro-batch 64 --host-memory 140KiB",
         {"host memory", "a larger --host-memory", "--offload-activations nvme"},
         "--stage"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ran(cases[i].arguments, 1);
        for (size_t k = 0; k < 4 && cases[i].said[k] != NULL; k++)
            assert_said(cases[i].arguments, cases[i].said[k]);
        assert_not_said(cases[i].arguments, cases[i].not_said);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
