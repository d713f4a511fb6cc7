/*
 * A checkpoint that is written while the run goes on has what there was when it was begun: here
 * nothing is written before the run has made another step.
 */
#include <stdatomic.h>

#include "tests/common/test.h"
#include "tests/zero/checkpoint/folder_fixture.h"
#include "tests/zero/toy.h"
#include "zero/checkpoint/save_internal.h"

#define N_STEPS 4
#define SAVED_STEP 2

static atomic_int n_steps_done; /* of all ranks */
static atomic_int n_written;    /* since, while the run went on */
static int n_wanted;
static int failing;       /* this one of them fails, from 1; 0: none */
static bool has_memory;   /* saves are expected */
static atomic_int n_took; /* calls that took memory of a rank's, or gave some back */

typedef struct memory {
    zr_tier_statistics_t tiers[2]; /* device, host */
} memory_t;

static memory_t memory_of(zr_runtime_t *runtime) {
    memory_t memory;
    for (int tier = 0; tier < 2; tier++)
        zr_allocator_statistics(zr_runtime_allocator(runtime), (zr_tier_t)tier,
                                &memory.tiers[tier]);
    return memory;
}

/* Nothing may have been allocated, freed or mapped since. */
static void compare_memory(zr_runtime_t *runtime, const memory_t *before) {
    memory_t now = memory_of(runtime);
    for (int i = 0; i < 2 && has_memory; i++) {
        const zr_tier_statistics_t *a = &before->tiers[i], *b = &now.tiers[i];
        if (a->live.live != b->live.live || a->n_allocations != b->n_allocations ||
            a->reserved.live != b->reserved.live)
            atomic_fetch_add(&n_took, 1);
    }
}

WRAP(zr_status_t, zr_runtime_save, zr_runtime_t *runtime, const zr_save_options_t *options,
     zr_save_report_t *report_p) {
    memory_t before = memory_of(runtime);
    zr_status_t status = __real_zr_runtime_save(runtime, options, report_p);
    compare_memory(runtime, &before);
    return status;
}

WRAP(zr_status_t, zr_runtime_save_begin, zr_runtime_t *runtime, const zr_save_options_t *options) {
    memory_t before = memory_of(runtime);
    zr_status_t status = __real_zr_runtime_save_begin(runtime, options);
    compare_memory(runtime, &before);
    return status;
}

WRAP(zr_status_t, zr_runtime_save_end, zr_runtime_t *runtime, bool wait, bool *ended_p,
     zr_save_report_t *report_p) {
    memory_t before = memory_of(runtime);
    zr_status_t status = __real_zr_runtime_save_end(runtime, wait, ended_p, report_p);
    compare_memory(runtime, &before);
    return status;
}

WRAP(zr_status_t, zr_runtime_step, zr_runtime_t *runtime, zr_step_report_t *report_p) {
    zr_status_t status = __real_zr_runtime_step(runtime, report_p);
    atomic_fetch_add(&n_steps_done, 1);
    return status;
}

WRAP(zr_status_t, zr_save_writer_finish, zr_save_writer_t *writer, zr_written_file_t *file_p) {
    while (atomic_load(&n_steps_done) < n_wanted)
        usleep(100);
    int number = atomic_fetch_add(&n_written, 1) + 1;
    return number == failing ? ZR_ERR_IO : __real_zr_save_writer_finish(writer, file_p);
}

static toy_options_t variant(int stage, unsigned flags) {
    static const zr_offload_device_t places[] = {ZR_OFFLOAD_NONE, ZR_OFFLOAD_CPU, ZR_OFFLOAD_NVME};
    toy_options_t options = toy_options_default(stage, 2);
    options.n_steps = N_STEPS;
    options.late = (flags & 1) != 0;
    options.frozen = true;
    options.config.offload_optimizer.device = places[flags / 2 % 3];
    options.config.offload_optimizer.ratio = 0.6;
    options.config.offload_optimizer.update_on =
        flags % 4 < 2 ? ZR_UPDATE_ON_HOST : ZR_UPDATE_ON_DEVICE;
    options.config.sub_group_elems = 2048;
    options.config.nvme.store = "uring";
    snprintf(options.config.nvme.paths, sizeof(options.config.nvme.paths), "%s", folder);
    return options;
}

/* What is written is that of SAVED_STEP, though a step more was made before. */
TEST(what_is_saved_is_of_its_step) {
    for (unsigned flags = 0; flags < 6; flags++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!ONE_OF(1, 5))
                continue;
            char path[128];
            toy_options_t options = variant(stage, flags);
            n_wanted = 0;
            uint64_t undisturbed = toy_hash(&options);
            options.save_to = saved;
            options.save_step = SAVED_STEP;
            options.save_goes_on = true;
            n_wanted = options.n_ranks * (SAVED_STEP + 1);
            atomic_store(&n_steps_done, 0);
            atomic_store(&n_written, 0);
            toy_expect_hash(&options, undisturbed);
            assert_int_equal(atomic_load(&n_written), 2 * options.n_ranks);
            snprintf(path, sizeof(path), "%s/step-%08d", saved, SAVED_STEP);
            options.save_to = NULL;
            options.restore_from = path;
            toy_expect_hash(&options, undisturbed);
            empty(saved);
        }
}

/* A save that is expected takes no memory and gives none back: what is live, and what is mapped,
 * does not depend on how long it takes. */
TEST(what_is_held_is_all_that_it_takes) {
    has_memory = true;
    n_wanted = 0;
    for (unsigned flags = 0; flags < 6; flags++)
        for (int goes_on = 0; goes_on < 2; goes_on++) {
            if (!ONE_OF(1, 5))
                continue;
            toy_options_t options = variant(flags < 3 ? 0 : 3, flags);
            options.save_to = saved;
            options.save_step = SAVED_STEP;
            options.save_goes_on = goes_on;
            options.expect_saves = true;
            atomic_store(&n_took, 0);
            toy_hash(&options);
            if (atomic_load(&n_took) != 0)
                fail_msg("flags %u, goes on %d: took memory", flags, goes_on);
            empty(saved);
        }
    has_memory = false;
}

/* What one rank could not write is told of by its step, though the run has come further. */
TEST(what_fails_is_named_by_its_step) {
    toy_result_t result;
    toy_options_t options = variant(1, 0);
    options.save_to = saved;
    options.save_step = SAVED_STEP;
    options.save_goes_on = options.quiet = true;
    n_wanted = options.n_ranks * (SAVED_STEP + 1);
    atomic_store(&n_steps_done, 0);
    atomic_store(&n_written, 0);
    failing = 1;
    toy_train(&options, &result);
    failing = 0;
    for (int r = 0; r < options.n_ranks; r++)
        assert_int_equal(result.status[r], ZR_OK);
    assert_true(strstr(result.last_error[0], "step 2 is not saved") != NULL ||
                strstr(result.last_error[1], "step 2 is not saved") != NULL);
    empty(saved);
}

/* A run that ends while one is written leaves it unfinished, and waits for its thread. */
TEST(a_run_may_end_meanwhile) {
    toy_options_t options = variant(2, 2);
    options.save_to = saved;
    options.save_goes_on = true;
    options.abandon_save = true;
    n_wanted = 0;
    toy_hash(&options);
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0;
    assert_ok(zr_checkpoint_list(saved, NULL, &entries, &n_entries));
    for (size_t i = 0; i < n_entries; i++)
        assert_false(entries[i].is_complete);
    free(entries);
    empty(saved);
}

const test_group_t test_group = {make_folder, remove_folder};
