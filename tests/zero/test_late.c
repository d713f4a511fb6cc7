/*
 * The runtime on devices whose streams run late and in any order that events allow: every stage
 * has to end in the bits that the host device, which does everything at once, ends in. With a
 * device's name as its argument, on that one. There, and under sanitizers, which need a way through
 * the code once, not with every mixture of numbers, it meets fewer of the mixtures. With "beside",
 * on the host device, with collectives on a stream that has a thread.
 */
#include <sys/wait.h>

#include "tests/common/late_device.h"
#include "tests/common/test.h"
#include "tests/zero/toy.h"

/* The smallest there is. */
#define SMALL_BUFFER(options) (ZR_CONFIG_LEAST_BUFFER_BYTES / zr_dtype_size((options).config.dtype))

static const char *device_name; /* NULL: late_device.h */
static bool is_concurrent;      /* "host", and streams beside */

/* Where each mixture takes long, which of them are met: one way through the code for each value. */
#if defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = true, SOME = 29 };
#elif defined(__SANITIZE_ADDRESS__)
enum { IS_SANITIZED = true, SOME = 7 };
#else
enum { IS_SANITIZED = false, SOME = 7 };
#endif

/* Whether each mixture takes long: what sanitizers watch does, and emulated kernels. */
static bool is_slow(void) {
    return IS_SANITIZED || device_name != NULL;
}

/* Of beside: only what has threads to watch. */
static bool is_watched(void) {
    return IS_SANITIZED && is_concurrent;
}

/* Whether the next mixture is. */
#define IS_MET() (is_slow() ? ONE_OF(SOME, SOME) : ONE_OF(5, 5))

/* From one variant to the next: `fast`, or `slow` where each takes long. */
static unsigned stride(unsigned fast, unsigned slow) {
    return is_slow() ? slow : fast;
}

static int least_ranks(void) {
    return is_watched() ? 2 : 1;
}

static void be_late(toy_options_t *options) {
    options->device_name = device_name;
    options->late = device_name == NULL;
    options->concurrent = is_concurrent;
}

static toy_options_t variant(int stage, int n_ranks, unsigned flags) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    options.config.dtype = flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    options.config.grad_accum = flags & 2 ? 2 : 1;
    options.config.reduce = flags & 4 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
    options.config.order =
        (flags / 2 + (unsigned)n_ranks) % 3 == 0 ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
    options.config.reuse_elems = flags & 8 ? 1000000000 : 0;
    options.frozen = (flags & 16) != 0;
    options.tied = (flags & 32) != 0;
    options.config.clip = 0.5;
    options.n_steps = 3;
    options.spoil = flags % 3 != 0;
    options.config.plan_memory = flags % 5 != 0;
    options.config.shard_group_size = n_ranks == 4 ? 2 : -1;
    toy_set_optimizer(&options, flags % 7);
    return options;
}

/* Of the optimizer's state. */
static size_t elem_bytes(const toy_options_t *options) {
    return zr_state_bytes(&zr_config_optimizer(&options->config)->rule, 1);
}

TEST(late_streams_change_nothing) {
    for (int stage = 0; stage <= 3; stage++)
        for (int n_ranks = least_ranks(); n_ranks <= 4; n_ranks++)
            for (unsigned flags = 0; flags < 64; flags += stride(3, 11)) {
                if (!IS_MET())
                    continue;
                toy_options_t options = variant(stage, n_ranks, flags);
                uint64_t reference = toy_hash(&options);
                be_late(&options);
                toy_expect_hash(&options, reference);
            }
}

/* Gradients come down and parameters go up on streams of their own. */
TEST(late_streams_with_offload) {
    unsigned flags = 0;
    for (int stage = 0; stage <= 3; stage++)
        for (int n_ranks = least_ranks(); n_ranks <= 4; n_ranks++)
            for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++)
                for (int is_part = 0; is_part < 2; is_part++) {
                    flags = (flags + 13) % 64;
                    if (!IS_MET())
                        continue;
                    bool keeps_grads = n_ranks != 2;
                    toy_options_t options = variant(stage, n_ranks, flags);
                    options.config.grad_accum = keeps_grads ? 2 : options.config.grad_accum;
                    uint64_t reference = toy_hash(&options);
                    be_late(&options);
                    options.spoil = true;
                    options.config.plan_memory = n_ranks != 3;
                    options.config.offload_optimizer.device = (zr_offload_device_t)device;
                    const char *kept = (n_ranks + is_part) % 2 != 0 ? "cpu" : "nvme";
                    toy_set(&options,
                            "offload-gradients=%s offload-gradients-ratio=%g gradients-in-host=%d",
                            keeps_grads ? kept : "none", n_ranks > 2 ? 0.5 : 1.0,
                            stage == 3 ? 4000 : 0);
                    toy_set(&options, "offload-ratio=%g sub-group=%d state-in-host=%d",
                            is_part ? 0.3 : 1.0, is_part || kept[0] == 'n' ? 2048 : 1024,
                            is_part ? 6000 : 0);
                    options.config.nvme.store = "memory";
                    for (int place = ZR_UPDATE_ON_FASTER; place <= ZR_UPDATE_ON_DEVICE; place++) {
                        if (is_slow() && place != (is_watched() ? ZR_UPDATE_ON_HOST : stage % 3))
                            continue;
                        options.config.offload_optimizer.update_on = (zr_update_on_t)place;
                        toy_expect_hash(&options, reference);
                    }
                }
}

/* Shards go up through buffers, which are read into again, and new parameters come down. */
TEST(late_streams_with_offloaded_params) {
    unsigned flags = 0;
    for (int n_ranks = least_ranks(); n_ranks <= 3; n_ranks++)
        for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++)
            for (int optimizer = ZR_OFFLOAD_NONE; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
                for (size_t n_buffers = 1; n_buffers <= 6; n_buffers += 5)
                    for (int is_part = 0; is_part < 2; is_part++) {
                        if (is_slow() && is_part != (n_buffers == 1))
                            continue; /* small buffers and few, or large ones and many */
                        flags = (flags + 29) % 64;
                        if (!IS_MET())
                            continue;
                        toy_options_t options = variant(3, n_ranks, flags);
                        uint64_t reference = toy_hash(&options);
                        be_late(&options);
                        options.evaluate = n_buffers == 1;
                        options.config.offload_param.device = (zr_offload_device_t)device;
                        options.config.offload_param.buffer_elems =
                            is_part ? SMALL_BUFFER(options) : 8192;
                        options.config.offload_param.n_buffers = n_buffers;
                        options.config.offload_param.ratio = flags % 3 * 0.5;
                        options.config.offload_optimizer.device = (zr_offload_device_t)optimizer;
                        toy_set(&options, "offload-ratio=%g sub-group=%d", is_part ? 0.4 : 1.0,
                                is_part ? 2048 : 1024);
                        options.config.nvme.store = "memory";
                        toy_expect_hash(&options, reference);
                    }
}

/* Where memory is one, nothing is copied. */
static void skip_without_copies(void) {
    if (is_concurrent)
        skip();
}

/* New parameters come down from what is updated on the device, and from nothing else. */
TEST(copies_of_params_are_exact) {
    skip_without_copies();
    for (int optimizer = ZR_OFFLOAD_NONE; optimizer <= ZR_OFFLOAD_CPU; optimizer++) {
        toy_options_t options = variant(3, 2, 1);
        toy_result_t result;
        be_late(&options);
        options.config.offload_param.device = ZR_OFFLOAD_NVME;
        options.config.offload_param.buffer_elems = SMALL_BUFFER(options);
        options.config.offload_optimizer.device = (zr_offload_device_t)optimizer;
        options.config.offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
        options.config.nvme.store = "memory";
        toy_train(&options, &result);
        assert_int_equal(result.status[0], ZR_OK);
        const zr_offload_report_t *report = &result.offload[0];
        uint64_t bytes = report->params.bytes[ZR_TIER_NVME] * options.n_steps;
        assert_int_equal(report->params.copied_up_bytes, 2 * bytes);
        assert_int_equal(report->params.copied_down_bytes,
                         optimizer == ZR_OFFLOAD_NONE ? bytes : 0);
        assert_int_equal(report->copied_up_bytes, 0);
        /* On the device, what is on its way is no larger than a buffer. */
        size_t own = 16384 * sizeof(float);
        size_t peak = result.device_memory.by_tag[ZR_TAG_STAGING].peak;
        assert_true(peak >= own && peak < own + 16 * 4096);
    }
}

/* What is copied of what is not on the device: gradients down once, parameters up once. Where
 * gradients wait in host memory, they go down in each micro-batch and come up in each but the
 * first.
 */
static void expect_exact_copies(int stage, zr_offload_device_t gradients, size_t grad_accum) {
    toy_options_t options = variant(stage, 2, 1);
    toy_result_t result;
    be_late(&options);
    options.config.grad_accum = grad_accum;
    toy_set(&options, "offload-optimizer=cpu update-on=host offload-ratio=0.5 sub-group=1024");
    options.config.offload_optimizer.gradients = gradients;
    toy_train_well(&options, &result);
    const zr_offload_report_t *report = &result.offload[0];
    bool is_in_host = gradients == ZR_OFFLOAD_CPU && stage >= 2;
    uint64_t n_down = is_in_host ? grad_accum : 1, n_up = is_in_host ? grad_accum : 1;
    uint64_t elems = report->state_bytes[ZR_TIER_HOST] / elem_bytes(&options);
    assert_true(elems > 0 && report->has_copies);
    assert_int_equal(report->copied_down_bytes,
                     n_down * options.n_steps * elems * sizeof(zr_bf16_t));
    assert_int_equal(report->copied_up_bytes, n_up * options.n_steps * elems * sizeof(zr_bf16_t));
    assert_int_equal(result.host_memory.by_tag[ZR_TAG_GRADIENTS].peak,
                     is_in_host ? elems * sizeof(zr_bf16_t) : 0);
    /* Two pieces of gradients, where they are not there, and two of parameters; and what parameters
     * are looked at with. */
    assert_int_equal(result.host_memory.by_tag[ZR_TAG_STAGING].peak,
                     (is_in_host ? 2 : 4) * 1024 * sizeof(zr_bf16_t) + 16384 * sizeof(float));
}

TEST(copies_are_exact) {
    skip_without_copies();
    for (int stage = 0; stage <= 3; stage++)
        for (int gradients = ZR_OFFLOAD_NONE; gradients <= ZR_OFFLOAD_CPU; gradients++)
            for (size_t grad_accum = 1; grad_accum <= 3; grad_accum++)
                if (IS_MET())
                    expect_exact_copies(stage, (zr_offload_device_t)gradients, grad_accum);
}

/* What is updated on the device goes up and back; no host buffers are needed for it. */
TEST(copies_for_updates_on_the_device_are_exact) {
    skip_without_copies();
    for (int stage = 0; stage <= 3; stage++)
        for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++) {
            toy_options_t options = variant(stage, 2, 1);
            toy_result_t result;
            be_late(&options);
            options.config.nvme.store = "memory";
            options.config.offload_optimizer.device = (zr_offload_device_t)device;
            options.config.offload_optimizer.update_on = ZR_UPDATE_ON_DEVICE;
            options.config.sub_group_elems = 1024;
            toy_train(&options, &result);
            assert_int_equal(result.status[0], ZR_OK);
            const zr_offload_report_t *report = &result.offload[0];
            uint64_t state_bytes =
                report->state_bytes[ZR_TIER_HOST] + report->state_bytes[ZR_TIER_NVME];
            uint64_t grads_bytes =
                stage >= 2 ? state_bytes / elem_bytes(&options) * sizeof(zr_bf16_t) : 0;
            assert_true(report->is_updated_on_device && !report->was_measured);
            assert_int_equal(report->copied_up_bytes,
                             options.n_steps * (state_bytes + grads_bytes));
            assert_int_equal(report->copied_down_bytes,
                             options.n_steps * (state_bytes + grads_bytes));
            size_t staging = result.device_memory.by_tag[ZR_TAG_STAGING].peak;
            assert_int_equal(
                staging, 2 * 1024 * (elem_bytes(&options) + (stage >= 2 ? sizeof(zr_bf16_t) : 0)) +
                             16384 * sizeof(float));
        }
}

/* Each unit is updated behind the next one's reduction, wherever anything lives, and taken back
 * where the norm asks for it; of one micro-batch no gradients are kept that are not clipped. */
TEST(updates_in_backward_change_nothing) {
    unsigned flags = 0;
    for (int stage = 2; stage <= 3; stage++)
        for (int n_ranks = least_ranks(); n_ranks <= 4; n_ranks++)
            for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_NVME; device++)
                for (int param = 0; param <= (stage == 3 ? ZR_OFFLOAD_NVME : 0); param++)
                    for (int place = ZR_UPDATE_ON_HOST; place <= ZR_UPDATE_ON_DEVICE; place++) {
                        flags = (flags + 13) % 64;
                        if (!IS_MET())
                            continue;
                        toy_options_t options = variant(stage, n_ranks, flags);
                        toy_result_t result;
                        toy_set_clipping(&options, flags / 5 + (unsigned)n_ranks);
                        uint64_t reference = toy_hash(&options);
                        be_late(&options);
                        options.spoil = true;
                        options.config.offload_optimizer.device = (zr_offload_device_t)device;
                        options.config.offload_optimizer.update_on = (zr_update_on_t)place;
                        options.config.offload_param.device = (zr_offload_device_t)param;
                        options.config.offload_param.buffer_elems = SMALL_BUFFER(options)
                                                                    << flags % 3;
                        options.config.nvme.store = "memory";
                        toy_set(&options, "update-at=backward offload-ratio=%g sub-group=2048",
                                flags % 3 ? 1 : 0.5);
                        static const char *const kept[] = {"none", "cpu", "nvme"};
                        toy_set(&options, "offload-gradients=%s", kept[flags % 5 % 3]);
                        toy_train_well(&options, &result);
                        if (result.hash != reference)
                            fail_msg("stage %d, %d ranks, state %d, parameters %d: other weights",
                                     stage, n_ranks, device, param);
                        if (options.config.grad_accum == 1 && options.config.clip == 0) {
                            const size_t *bytes = result.offload[0].grads.bytes;
                            assert_int_equal(bytes[0] + bytes[1] + bytes[2], 0);
                            assert_int_equal(result.device_memory.by_tag[ZR_TAG_GRADIENTS].peak +
                                                 result.host_memory.by_tag[ZR_TAG_GRADIENTS].peak,
                                             0);
                        }
                    }
}

/* What would compute with parameters that are new by then is refused. */
TEST(units_are_used_before_their_last_reduction) {
    toy_options_t options = variant(2, 1, 0);
    be_late(&options);
    options.peek = true;
    toy_set(&options, "clip=0 check-overflow=off update-at=backward");
    toy_expect_error(&options, ZR_ERR_STATE, "is acquired after its last reduction in the step");
}

/* A norm that is not finite is then an error at every stage, with updates in backward or without.
 */
TEST(overflow_that_is_not_checked_for_ends_the_run) {
    for (int stage = 0; stage <= 3; stage++)
        for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_CPU; device++) {
            toy_options_t options = variant(stage, 2, 0);
            toy_result_t result;
            be_late(&options);
            toy_set(&options, "update-at=%s", stage == 3 ? "backward" : "end");
            options.quiet = true;
            options.nan_step = 1;
            options.config.clip = 0;
            options.config.check_overflow = false;
            options.config.offload_optimizer.device = (zr_offload_device_t)device;
            options.config.offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
            toy_train(&options, &result);
            assert_int_equal(result.status[0], ZR_ERR_STATE);
            assert_has(result.last_error[0], "--check-overflow");
        }
}

/* A measurement decides, says what it found, and leaves nothing behind. */
TEST(the_faster_place_is_chosen) {
    skip_without_copies();
    toy_options_t options = variant(2, 1, 0);
    toy_result_t result;
    be_late(&options);
    options.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    toy_train_well(&options, &result);
    const zr_offload_report_t *report = &result.offload[0];
    assert_true(report->was_measured);
    assert_true(report->host_elems_per_s > 0 && report->device_elems_per_s > 0);
    assert_int_equal(report->is_updated_on_device,
                     report->device_elems_per_s > report->host_elems_per_s);
}

TEST(a_new_order_is_dropped_late_too) {
    for (unsigned flags = 0; flags < 64; flags += stride(5, 13)) {
        toy_options_t options = variant(3, 2, flags);
        uint64_t reference = toy_hash(&options);
        be_late(&options);
        options.reorder_step = 2;
        toy_expect_hash(&options, reference);
    }
}

/* What was gathered ahead and is dropped may still be on its way when its memory is free. */
TEST(what_is_gathered_ahead_may_be_dropped) {
    for (int n_ranks = least_ranks(); n_ranks <= 3; n_ranks++)
        for (unsigned flags = 8; flags < 64; flags += stride(5, 29)) {
            toy_options_t options = variant(3, n_ranks, flags | 8);
            uint64_t reference = toy_hash(&options);
            be_late(&options);
            options.again_step = 1;
            toy_expect_hash(&options, reference);
            options =
                variant(3, n_ranks, flags & ~8u); /* nothing stays gathered for its next use */
            options.config.grad_accum = 2;
            reference = toy_hash(&options);
            be_late(&options);
            options.glance = true;
            toy_expect_hash(&options, reference);
            options.glance = false;
            options.grads_alone = true;
            toy_expect_hash(&options, reference);
        }
}

/* A run that ends somewhere, with work queued on all streams, gives nothing back that it uses: late
 * devices look at what is freed. */
TEST(runs_end_anywhere) {
    if (device_name != NULL)
        skip(); /* only late devices fail so */
    for (int stage = 2; stage <= 3; stage++)
        for (int stream = 0; stream < TOY_N_STREAMS; stream++)
            for (unsigned place = ZR_UPDATE_ON_HOST; place <= ZR_UPDATE_ON_DEVICE; place++) {
                toy_options_t options = variant(stage, 1, 2);
                toy_result_t result;
                be_late(&options);
                options.quiet = true;
                options.n_steps = 2;
                options.peek = true;
                toy_set(&options, "offload-optimizer=cpu offload-gradients=cpu offload-ratio=0.5");
                toy_set(&options, "offload-params=%s sub-group=2048", stage == 3 ? "cpu" : "none");
                options.config.offload_optimizer.update_on = (zr_update_on_t)place;
                options.fail_stream = stream;
                options.fail_nth = 0;
                do {
                    options.fail_nth += 1 + options.fail_nth / 8;
                    toy_train(&options, &result);
                } while (result.status[0] == ZR_ERR_DEVICE);
                assert_int_equal(result.status[0], ZR_OK);
            }
}

/* Whether training went wrong: other weights, an error, or a crash, which a process of its own
 * keeps from us. */
static bool goes_wrong_without_waits(const toy_options_t *options, uint64_t reference,
                                     unsigned seed) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        toy_result_t result;
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(0);
        late_device_ignore_waits(true);
        late_device_draw_anew(seed);
        toy_train(options, &result);
        _exit(result.status[0] != ZR_OK || result.hash != reference);
    }
    int outcome;
    assert_int_equal(waitpid(child, &outcome, 0), child);
    return outcome != 0;
}

/* The control: late streams that do not wait are noticed, in one order at least. */
TEST(without_waits_it_goes_wrong) {
    if (device_name != NULL)
        skip(); /* only late devices can be told to */
    toy_options_t options = variant(3, 2, 0);
    uint64_t reference = toy_hash(&options);
    be_late(&options);
    options.quiet = true;
    bool goes_wrong = false;
    for (unsigned seed = 0; seed < 60 && !goes_wrong; seed++)
        goes_wrong = goes_wrong_without_waits(&options, reference, seed);
    assert_true(goes_wrong);
}

int main(int argc, char **argv) {
    is_concurrent = argc > 1 && strcmp(argv[1], "beside") == 0;
    if (argc > 1)
        device_name = is_concurrent ? "host" : argv[1];
    return run_all_tests(NULL, NULL);
}
