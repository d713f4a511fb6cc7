/*
 * New values of parameters after commit: at every stage and placement they are there when they are
 * looked at, gathered or not, and training goes on from them in the same bits. On devices whose
 * streams run late, too. What cannot be written is refused. And a step that is given up.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

static toy_options_t variant(int stage, int n_ranks, unsigned flags) {
    toy_options_t options =
        toy_mixture(stage, n_ranks, flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, flags & ~8u);
    options.write_step = (int)flags % 3;
    options.config.shard_group_size = n_ranks == 4 ? 2 : -1;
    options.n_passes = flags % 2;
    options.config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
    options.config.nvme.store = "memory";
    toy_set_optimizer(&options, flags);
    return options;
}

/* All of what may lie elsewhere does, in pieces so small that a parameter has many. */
static void offload(toy_options_t *options, int device, unsigned flags) {
    bool has_params = options->config.stage == 3;
    options->config.offload_optimizer.device = (zr_offload_device_t)device;
    toy_set(options, "sub-group=1024 offload-ratio=%g update-on=%s", flags % 3 ? 1.0 : 0.5,
            flags % 2 ? "device" : "host");
    if (!has_params)
        return;
    options->config.offload_param.device =
        (zr_offload_device_t)(flags % 2 ? device : ZR_OFFLOAD_CPU);
    options->config.offload_param.buffer_elems =
        ZR_CONFIG_LEAST_BUFFER_BYTES / zr_dtype_size(options->config.dtype);
    options->config.offload_param.ratio = flags % 5 ? 1.0 : 0.5;
}

TEST(every_stage_and_placement_goes_on_from_new_values) {
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (unsigned flags = (unsigned)n_ranks % 2; flags < 32; flags += 9) {
            toy_options_t options = variant(0, n_ranks, flags);
            uint64_t reference = toy_hash(&options);
            options.write_step = -1;
            assert_true(toy_hash(&options) != reference);
            for (int stage = 0; stage <= 3; stage++)
                for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_NVME; device++) {
                    if (!ONE_OF(1, 5))
                        continue;
                    options = variant(stage, n_ranks, flags);
                    if (device != ZR_OFFLOAD_NONE)
                        offload(&options, device, flags + (unsigned)stage);
                    options.late = flags % 2;
                    toy_expect_hash(&options, reference);
                }
        }
}

/* A step that is given up, even behind its last micro-batch, leaves nothing. */
TEST(a_step_that_is_given_up_changes_nothing) {
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++)
        for (unsigned flags = (unsigned)n_ranks; flags < 32; flags += 7) {
            toy_options_t options = variant(0, n_ranks, flags);
            options.write_step = -1;
            uint64_t reference = toy_hash(&options);
            for (int stage = 0; stage <= 3; stage++)
                for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_NVME; device++) {
                    if (!ONE_OF(1, 5))
                        continue;
                    options = variant(stage, n_ranks, flags);
                    options.write_step = -1;
                    options.drop_step = (int)flags % 3;
                    if (device != ZR_OFFLOAD_NONE)
                        offload(&options, device, flags + (unsigned)stage);
                    options.late = flags % 2;
                    toy_expect_hash(&options, reference);
                }
        }
}

/* ---- refused ---- */

static zr_status_t expect_refusals(zr_runtime_t *runtime, zr_param_t *param) {
    float values[4] = {0};
    assert_int_equal(zr_param_write(param, 2, 3, values, 0), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(zr_last_error(), "3 elements from element 2 of parameter \"p\""));
    assert_int_equal(zr_param_write(param, 0, 4, NULL, 0), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_param_write(param, 0, 4, values, 1), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(zr_last_error(), "ranks 0 to 0"));
    ZR_TRY(zr_param_write(param, 4, 0, NULL, 0));
    ZR_TRY(zr_runtime_begin_micro_batch(runtime));
    assert_int_equal(zr_param_write(param, 0, 4, values, 0), ZR_ERR_STATE);
    return ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    zr_config_t config = zr_config_default();
    zr_runtime_t *runtime = NULL;
    zr_unit_t *unit = NULL;
    zr_param_t *param = NULL;
    zr_param_desc_t desc = {.name = "p", .n_dims = 1, .dims = {4}};
    ZR_TRY(zr_config_resolve(&config, 1, &rank->log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = zr_runtime_add_unit(runtime, "u", &unit);
    ZR_THEN(status, zr_unit_add_param(unit, &desc, &param));
    if (status == ZR_OK)
        assert_int_equal(zr_param_write(param, 0, 4, (float[4]){0}, 0), ZR_ERR_STATE);
    ZR_THEN(status, zr_runtime_commit(runtime));
    ZR_THEN(status, expect_refusals(runtime, param));
    zr_runtime_destroy(&runtime);
    return status;
}

TEST(what_cannot_be_written_is_refused) {
    test_ranks_t ranks = {.n_ranks = 1, .run = run_rank, .quiet = true};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
}
