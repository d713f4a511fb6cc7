/*
 * The memory of a process: tables of the library are planned as they are in the run, --memory has
 * room for them and for tensors of all ranks, and a run that does not fit is not begun, unless its
 * plan is not to be asked. So it is with memory that may be pinned.
 */
#include <linux/capability.h>
#include <sys/prctl.h>

#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

#define PROGRAM ((double)(64 << 20)) /* of --memory */
#define MODEL "--model layers=3,channels=64,heads=2,seq=16,vocab=256 --threads 1 "
#define RUN MODEL "--data text --steps 4 --device host "

/* What a rank has in tiers, which are host memory here. */
static double tensors(json_t *object) {
    return number(object, "peak_bytes.device.reserved") +
           number(object, "peak_bytes.host.reserved");
}

TEST(tables_are_planned) {
    static const char *const cases[] = {
        "--stage 0", "--stage 3 --ranks 4 --recompute unit",
        "--stage 2 --ranks 2 --grad-accum 3 --offload-optimizer cpu",
        "--stage 3 --ranks 2 --grad-accum 4 --order block --recompute unit "
        "--offload-activations cpu --offload-params cpu",
        "--stage 3 --ranks 2 --offload-optimizer nvme --offload-params nvme --offload-gradients "
        "nvme --sub-group 4096 --recompute unit --offload-activations nvme --nvme-path drive"};
    for (size_t i = 0; i < N_OF(cases) - !has_nvme(); i++) {
        json_t *object = run_json(0, RUN "%s", cases[i]);
        double live = number(object, "metadata_bytes.live");
        double peak = number(object, "metadata_bytes.peak");
        double planned_live = number(object, "planned_metadata_bytes.live");
        double planned = number(object, "planned_metadata_bytes.peak");
        if (live != planned_live || peak != planned)
            fail_msg("%s: %.0f bytes live, %.0f planned; at most %.0f, %.0f planned", cases[i],
                     live, planned_live, peak, planned);
    }
}

/* What is needed of it, and a byte for each rank less. */
TEST(a_process_has_a_budget) {
    static const char *const cases[] = {"--stage 1", "--stage 3 --ranks 2 --prefetch 1000000",
                                        "--stage 2 --ranks 3 --offload-optimizer cpu"};
    for (size_t i = 0; i < N_OF(cases); i++) {
        json_t *plain = run_json(0, RUN "%s", cases[i]);
        double n_ranks = number(plain, "ranks");
        double needed = number(plain, "planned_metadata_bytes.peak") + tensors(plain);
        double least = PROGRAM + n_ranks * needed;
        json_t *object = run_json(0, RUN "%s --memory %.0f", cases[i], least);
        assert_string_equal(text(object, "weights_xxh3"), text(plain, "weights_xxh3"));
        expect_fields(object, "planned_fits=true");
        object = run_json(1, RUN "%s --memory %.0f", cases[i], least - n_ranks);
        expect_fields(object, "result=failed error=ZR_ERR_BUDGET planned_fits=false steps=0 "
                              "device=absent");
        assert_has(text(object, "message"), "--memory");
        assert_has(text(object, "message"), "--plan-check off");
        json_t *planned = plan_json(1,
                                    MODEL "%s --recompute none --micro-batch 1 --device host "
                                          "--memory %.0f",
                                    cases[i], least - n_ranks);
        json_t *lack = field(json_array_get(field(planned, "plans"), 0), "lack");
        expect_fields(lack, "of_process=true needed=%.0f there=%.0f", needed, needed - 1);
    }
    expect_said(ZERO_TRAIN, 2, RUN "--memory 64MiB", "--memory|allowed: more than 67108864");
}

/* Tensors alone are too many: the run is refused where memory ends. */
TEST(a_run_ends_where_memory_does) {
    json_t *plain = run_json(0, RUN "--stage 0");
    double memory = PROGRAM + 0.7 * tensors(plain);
    json_t *object = run_json(1, RUN "--stage 0 --memory %.0f --plan-check off", memory);
    expect_fields(object, "result=failed error=ZR_ERR_BUDGET planned_fits=false");
    expect_parts("its message", text(object, "message"),
                 "the memory of the process is the cause|tables have|try a larger --memory");
}

/* Of sequences that grow longer, a late step is the first that does not fit. */
TEST(what_fits_for_some_steps_is_not_begun) {
#define GROWING                                                                                    \
    "--model layers=2,channels=32,heads=2,seq=64,vocab=256 --data text --threads 1 --seq-min 4 "   \
    "--steps 60 --device host --quiet "
    json_t *plain = run_json(0, GROWING);
    double budget = number(plain, "peak_bytes.device.reserved") - 4096;
    json_t *object = run_json(1, GROWING "--device-memory %.0f --plan-check off", budget);
    assert_true(number(object, "steps") > 0);
    object = run_json(1, GROWING "--device-memory %.0f", budget);
    expect_fields(object, "result=failed error=ZR_ERR_BUDGET steps=0");
}

/* What leaves the device does not leave the process, but for drives. */
TEST(auto_knows_of_it) {
    if (!has_nvme())
        skip();
#define AUTO RUN "--stage 3 --sub-group 1024 --offload-optimizer auto --offload-params auto "
#define DRIVE "--nvme-path drive --nvme-buffers 1 --param-buffers 1 --param-buffer 1024 "
    json_t *plain = run_json(0, RUN "--stage 3");
    double memory = PROGRAM + 0.75 * tensors(plain) + number(plain, "metadata_bytes.peak");
    assert_ran(1, AUTO "--memory %.0f", memory);
    assert_said(AUTO, "memory of the process");
    json_t *object = run_json(0, AUTO DRIVE "--memory %.0f", memory);
    assert_string_equal(text(object, "weights_xxh3"), text(plain, "weights_xxh3"));
    assert_true(number(object, "peak_bytes.nvme.live") > 0);
    assert_true(tensors(object) + number(object, "metadata_bytes.peak") <= memory - PROGRAM);
}

TEST(capacity_knows_of_it) {
    static const char *const arguments =
        "--hardware this --device host --layers 4 --seq 16 --vocab 256 --head-size 16 --stage 2 "
        "--ranks 2 --offload-optimizer cpu --offload-gradients cpu --verify off --memory ";
    double least = 0;
    for (int mib = 72; mib <= 96; mib += 24) {
        char text[512];
        snprintf(text, sizeof(text), "%s%dMiB", arguments, mib);
        json_t *found = program_json(ZERO_CAPACITY, 0, text);
        json_t *largest = field(json_array_get(field(found, "points"), 0), "largest");
        double needed = 2 * (tensors(largest) + number(largest, "metadata_bytes.peak"));
        assert_true(needed <= (mib - 64) * 1048576. && needed > 0.8 * (mib - 64) * 1048576.);
        assert_true(number(largest, "model.parameters") > least);
        least = number(largest, "model.parameters");
    }
}

#define PIN RUN "--ranks 2 --offload-optimizer nvme --sub-group 8192 --nvme-path drive --json "

/* With `kib` of RLIMIT_MEMLOCK for the user. */
static json_t *run_pinning(int expected, size_t kib, const char *arguments) {
    char before[64], text[512];
    snprintf(before, sizeof(before), "ulimit -l %zu;", kib);
    snprintf(text, sizeof(text), PIN "%s", arguments);
    if (run_after(before, text) != expected)
        fail_msg("%s %s", before, err);
    return kept_json(out);
}

TEST(pinned_memory_has_a_limit) {
    if (!has_nvme())
        skip();
    (void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK); /* refused: who may not needs not */
    json_t *one = run_pinning(0, 1 << 20, "--nvme-buffers 1");
    json_t *four = run_pinning(0, 1 << 20, "--nvme-buffers 4");
    double least = number(one, "pinned_bytes"), most = number(four, "pinned_bytes");
    assert_true(number(four, "planned_pinned_bytes") == most && most >= least);
    if (most == 0) {
        print_message("skipped: nothing is pinned here\n");
        skip();
    }
    size_t kib = (size_t)(least + most) / 1024; /* of two ranks, between the two */
    json_t *object = run_pinning(1, kib, "--nvme-buffers 4");
    expect_fields(object, "result=failed error=ZR_ERR_BUDGET planned_fits=false steps=0");
    expect_parts("its message", text(object, "message"),
                 "pinned memory|RLIMIT_MEMLOCK|ulimit -l|--nvme-buffers|--plan-check off");
    object = run_pinning(0, kib, "--nvme-buffers auto");
    expect_fields(object, "planned_fits=true pinned_bytes=%.0f planned_pinned_bytes=%.0f", least,
                  least);
    object = run_pinning(0, kib, "--nvme-buffers 4 --plan-check off");
    assert_string_equal(text(object, "weights_xxh3"), text(four, "weights_xxh3"));
    assert_has(err, "cannot be registered");
}

const test_group_t test_group = {make_folder, leave_test_folder};
