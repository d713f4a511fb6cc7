/*
 * What an out-of-memory error advises: ways out that help the tier which is full, given what this
 * run keeps where, and none that helps another.
 */
#include "tests/common/test.h"
#include "zero/base_internal.h"

static const char *said(const zr_config_t *config, zr_tier_t tier, zr_tag_t tag) {
    const char *text = zr_base_advice(config, 2).by_tag[tier][tag];
    return text == NULL ? "" : text;
}

static void assert_says(const char *text, const char *part) {
    assert_has(text, part);
}

static void assert_silent(const char *text, const char *part) {
    if (strstr(text, part) != NULL)
        fail_msg("\"%s\" is in: %s", part, text);
}

TEST(a_larger_budget_of_the_same_tier) {
    zr_config_t config = zr_config_default();
    for (config.stage = 0; config.stage <= 3; config.stage++) {
        zr_allocator_advice_t advice = zr_base_advice(&config, 2);
        assert_string_equal(advice.budget[ZR_TIER_DEVICE], "a larger --device-memory");
        assert_string_equal(advice.budget[ZR_TIER_HOST], "a larger --host-memory");
        assert_non_null(advice.any[ZR_TIER_DEVICE]);
        assert_null(advice.any[ZR_TIER_HOST]); /* a stage is no way out of a full host alone */
    }
}

/* Sharding over one rank leaves it everything. */
TEST(one_rank_has_nothing_to_shard) {
    zr_config_t config = zr_config_default();
    for (config.stage = 0; config.stage < 3; config.stage++) {
        const char *text = zr_base_advice(&config, 1).any[ZR_TIER_DEVICE];
        assert_says(text, "--stage 3 with --offload-params");
        assert_silent(text, "1, 2");
        assert_silent(zr_base_advice(&config, 2).any[ZR_TIER_DEVICE], "--offload-params");
    }
    assert_string_equal(zr_base_advice(&config, 1).any[ZR_TIER_DEVICE], "more --ranks");
}

/* What is on the device may leave it, and what has left it is no longer told to. */
TEST(on_the_device) {
    zr_config_t config = zr_config_default();
    config.stage = 3;
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_OPTIMIZER_STATE), "--offload-optimizer cpu");
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_GRADIENTS), "--offload-optimizer cpu");
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_PARAMETERS), "--offload-params cpu");
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_GATHERED_PARAMETERS), "--prefetch 0");
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_ACTIVATIONS), "--recompute unit");
    config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    config.offload_param.device = ZR_OFFLOAD_CPU;
    config.prefetch_elems = 0;
    assert_string_equal(said(&config, ZR_TIER_DEVICE, ZR_TAG_OPTIMIZER_STATE), "");
    assert_string_equal(said(&config, ZR_TIER_DEVICE, ZR_TAG_PARAMETERS), "");
    assert_string_equal(said(&config, ZR_TIER_DEVICE, ZR_TAG_GATHERED_PARAMETERS), "");
    assert_string_equal(said(&config, ZR_TIER_DEVICE, ZR_TAG_GRADIENTS), "");
    config.offload_optimizer.gradients = ZR_OFFLOAD_NONE;
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_GRADIENTS), "--offload-gradients cpu");
    config.offload_optimizer.ratio = 0.5;
    assert_says(said(&config, ZR_TIER_DEVICE, ZR_TAG_OPTIMIZER_STATE), "--offload-ratio");
    config.stage = 2;
    config.offload_param.device = ZR_OFFLOAD_NONE;
    assert_string_equal(said(&config, ZR_TIER_DEVICE, ZR_TAG_PARAMETERS), ""); /* --stage 3 is */
}

/* Nothing on the host says cpu: that is where it is full. */
TEST(on_the_host) {
    zr_config_t config = zr_config_default();
    config.stage = 3;
    assert_string_equal(said(&config, ZR_TIER_HOST, ZR_TAG_STAGING), ""); /* there are no files */
    strcpy(config.nvme.paths, "/drive");
    for (int i = 0; i < 9; i++) {
        config.offload_optimizer.device = (zr_offload_device_t)(i % 3);
        config.offload_param.device = (zr_offload_device_t)(i / 3);
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            assert_silent(said(&config, ZR_TIER_HOST, (zr_tag_t)tag), "cpu");
        const char *staging = said(&config, ZR_TIER_HOST, ZR_TAG_STAGING);
        bool state_through = config.offload_optimizer.device == ZR_OFFLOAD_NVME;
        bool params_through = config.offload_param.device == ZR_OFFLOAD_NVME;
        assert_int_equal(strstr(staging, "--sub-group") != NULL, state_through);
        assert_int_equal(strstr(staging, "--param-buffers") != NULL, params_through);
        assert_says(staging, "request_bytes"); /* the store's own buffers */
        assert_says(staging,
                    state_through || !params_through ? "--nvme-buffers" : "--param-buffer");
    }
    config.offload_optimizer.device = config.offload_param.device = ZR_OFFLOAD_CPU;
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_OPTIMIZER_STATE), "--offload-optimizer nvme");
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_GRADIENTS), "--offload-gradients nvme or none");
    config.offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_GRADIENTS), "a smaller --gradients-in-host");
    config.offload_optimizer.gradients = ZR_OFFLOAD_CPU;
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_PARAMETERS), "--offload-params nvme");
    config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_OPTIMIZER_STATE), "--state-in-host");
    config.offload_param.device = ZR_OFFLOAD_NVME;
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_PARAMETERS), "--params-in-host");
    assert_says(said(&config, ZR_TIER_HOST, ZR_TAG_ACTIVATIONS), "--offload-activations nvme");
}
