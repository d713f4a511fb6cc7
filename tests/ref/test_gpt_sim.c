/*
 * The training of the model, run where nothing is moved, needs the same memory as where it is: for
 * configurations from a seed, every rank on a simulated device, communicator and store has the
 * byte counts of the same rank on the host, in each tier, tag, lifetime and class; sends the same;
 * moves the same to and from drives; and fails for lack of memory where the other does.
 *
 *   test_gpt_sim [cuda|beside] [N [FIRST]]   N configurations, from number FIRST; on a CUDA device,
 *                                            or on the host with collectives beside compute
 */
#include <inttypes.h>

#include "models/gpt2/gpt.h"
#include "kernels/simulation.h"
#include "tests/common/kept_log.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/ref/gpt_batch.h"

enum { N_STEPS = 3, MOST_RANKS = 3, MOST_TOKENS = 256, MOST_ACCUM = 4 };

static bool is_cuda;       /* the device that is simulated, and run on; otherwise the host */
static bool is_concurrent; /* the host, with collectives on a stream that has a thread */

/* What a rank has used. */
typedef struct used {
    zr_status_t status;
    zr_tier_statistics_t tiers[2];
    zr_comm_count_t sent[ZR_N_TRAFFICS][ZR_N_COLLECTIVES];
    zr_offload_report_t offload;
    bool has_store;
    zr_store_info_t store;
    zr_store_statistics_t moved;
    zr_stash_statistics_t stash;
    zr_device_info_t device;
    double loss, norm;
} used_t;

typedef struct sim_case {
    uint64_t seed;
    zr_gpt_shape_t shape;
    zr_transformer_options_t model;
    bool recompute;
    zr_config_t config;
    zr_offload_device_t activations;
    size_t b, t;
    bool varies; /* micro-batches have sequences of up to t */
    int n_ranks;
    used_t host[MOST_RANKS];
} sim_case_t;

/* ---- a run ---------------------------------------------------------------------------------- */

static zr_status_t train(const sim_case_t *c, zr_runtime_t *runtime, zr_model_t *gpt,
                         used_t *used) {
    int32_t tokens[MOST_TOKENS], targets[MOST_TOKENS];
    zr_host_batch_t batches[MOST_ACCUM];
    zr_step_report_t report;
    for (size_t i = 0; i < c->b * c->t; i++) {
        tokens[i] = (int32_t)((i * i + 3 * i) % c->shape.vocab);
        targets[i] = (int32_t)((i * i + 5 * i + 1) % c->shape.vocab);
    }
    for (size_t i = 0; i < c->config.grad_accum; i++) {
        size_t t = c->varies ? 1 + (c->t - 1) * (i + 1) / c->config.grad_accum : c->t;
        batches[i] =
            (zr_host_batch_t){c->b, t, {[ZR_PART_TOKENS] = tokens, [ZR_PART_TARGETS] = targets}};
    }
    for (size_t step = 0; step < N_STEPS; step++) {
        ZR_TRY(zr_model_train(gpt, batches, c->config.grad_accum));
        ZR_TRY(zr_model_take_loss(gpt, &used->loss));
        ZR_TRY(zr_runtime_average(runtime, used->loss, &used->loss));
        ZR_TRY(zr_runtime_step(runtime, &report));
        used->norm = report.gradient_norm;
    }
    return ZR_OK;
}

static zr_status_t build_and_train(const sim_case_t *c, zr_runtime_t *runtime, zr_model_t **gpt_p,
                                   used_t *used) {
    zr_activation_options_t activations = {
        .recompute = c->recompute, .device = c->activations, .most_rows = c->b * c->t};
    ZR_TRY(zr_gpt_create(runtime, &c->shape, &c->model, &activations, gpt_p));
    ZR_TRY(zr_model_commit(*gpt_p));
    return train(c, runtime, *gpt_p, used);
}

static void note(zr_runtime_t *runtime, used_t *used) {
    zr_comm_statistics_t comm;
    for (int tier = 0; tier < 2; tier++)
        zr_allocator_statistics(zr_runtime_allocator(runtime), (zr_tier_t)tier, &used->tiers[tier]);
    zr_comm_statistics(zr_runtime_comm(runtime), &comm);
    memcpy(used->sent, comm.count, sizeof(used->sent));
    zr_runtime_offload(runtime, &used->offload);
    if (zr_runtime_store(runtime) != NULL) {
        used->has_store = true;
        used->store = *zr_store_info(zr_runtime_store(runtime));
        zr_store_statistics(zr_runtime_store(runtime), &used->moved);
    }
}

/* The one training of this test, whatever it runs on. */
static zr_status_t run(const sim_case_t *c, const zr_config_t *config, test_rank_t *rank,
                       used_t *used) {
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    *used = (used_t){.device = *zr_device_info(rank->device)};
    zr_status_t status = zr_runtime_create(config, rank->comm, rank->device, &rank->log, &runtime);
    if (status == ZR_OK) {
        status = build_and_train(c, runtime, &gpt, used);
        if (gpt != NULL && !zr_model_activations_statistics(gpt, &used->stash))
            used->stash = (zr_stash_statistics_t){0};
        zr_model_destroy(&gpt); /* what it has begun to write is counted when it has ended */
        note(runtime, used);
    }
    used->status = status;
    zr_runtime_destroy(&runtime);
    return status;
}

static zr_status_t run_on_host(test_rank_t *rank) {
    sim_case_t *c = rank->context;
    return run(c, &c->config, rank, &c->host[rank->rank]);
}

/* The machine that the ranks of the host have run on. */
static zr_hardware_t this_machine(const used_t *host) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = is_cuda ? ZR_HARDWARE_CUDA : ZR_HARDWARE_HOST;
    hardware.device_memory_bytes = host->device.memory_bytes;
    hardware.host_memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    hardware.granule_bytes = host->device.granule_bytes;
    hardware.cuda_major = is_cuda ? host->device.cuda_major : 8;
    if (host->has_store) {
        hardware.disk_block_bytes = host->store.block_bytes;
        hardware.disk_align_bytes = host->store.buffer_align_bytes;
    }
    return hardware;
}

static void run_on_sim(const sim_case_t *c, int number, used_t *used) {
    zr_hardware_t hardware = this_machine(&c->host[number]);
    test_rank_t rank = {.rank = number, .log = {.sink = drop_message, .level = ZR_LOG_ERROR}};
    zr_device_options_t options = {
        .log = rank.log, .hardware = &hardware, .concurrent = is_concurrent};
    zr_comm_options_t comm_options = {.log = rank.log, .timeout_ms = 1000};
    zr_config_t config = c->config;
    config.nvme.store = "sim";
    assert_ok(zr_device_open("sim", &options, &rank.device));
    assert_ok(zr_comm_create_sim(number, c->n_ranks, &comm_options, &rank.comm));
    if (run(c, &config, &rank, used) == ZR_OK)
        assert_true(zr_device_now(rank.device) > 0.0);
    zr_comm_destroy(&rank.comm);
    zr_device_close(&rank.device);
}

/* ---- configurations -------------------------------------------------------------------------- */

typedef struct dice {
    uint64_t state;
} dice_t;

static size_t throw(dice_t * dice, size_t n) {
    dice->state += 0x9e3779b97f4a7c15u;
    uint64_t z = dice->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

static void choose_offload(dice_t *dice, zr_config_t *config) {
    zr_offload_options_t *optimizer = &config->offload_optimizer;
    optimizer->device = (zr_offload_device_t) throw(dice, 3);
    optimizer->ratio = throw(dice, 2) ? 1.0 : 0.6;
    optimizer->n_buffers = 1 + throw(dice, 4);
    optimizer->read_ahead = throw(dice, 4) != 0;
    optimizer->write_behind = throw(dice, 4) != 0;
    if (config->stage >= 2 && optimizer->device != ZR_OFFLOAD_NONE && throw(dice, 2))
        optimizer->gradients = (zr_offload_device_t) throw(dice, 3);
    if (throw(dice, 3) == 0)
        optimizer->gradients_ratio = 0.4;
    if (throw(dice, 3) == 0)
        optimizer->gradients_in_cpu_elems = 3000;
    if (config->stage == 3)
        config->offload_param.device = (zr_offload_device_t) throw(dice, 3);
    config->offload_param.n_buffers = 1 + throw(dice, 4);
    config->offload_param.buffer_elems = (size_t)2048 << throw(dice, 5);
    config->offload_param.max_in_cpu_elems = throw(dice, 3) ? 0 : 2000;
    config->sub_group_elems = (size_t)1024 << throw(dice, 4);
    if (zr_config_has_grads_on_nvme(config) && config->sub_group_elems == 1024)
        config->sub_group_elems = 2048; /* of bf16, whole blocks */
}

static void choose_config(dice_t *dice, sim_case_t *c) {
    zr_config_t *config = &c->config;
    *config = zr_config_default();
    config->stage = (int) throw(dice, 4);
    config->dtype = throw(dice, 2) ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    config->micro_batch = c->b;
    config->grad_accum = 1 + throw(dice, 2);
    config->reduce = throw(dice, 3) ? ZR_REDUCE_AUTO : ZR_REDUCE_EVERY_MICRO_BATCH;
    config->clip = throw(dice, 2) ? 1.0 : 0.0;
    config->overlap_comm = throw(dice, 3) != 0;
    config->check_overflow = config->clip > 0 || throw(dice, 2);
    if (config->stage >= 2 && throw(dice, 2)) {
        config->update_at = ZR_UPDATE_AT_BACKWARD;
        config->clip *= 1e6; /* no plan foresees updates that are made again */
    }
    config->prefetch_elems = throw(dice, 3) ? (size_t)1 << 30 : 0;
    config->reuse_elems = throw(dice, 3) ? 0 : 20000;
    config->plan_memory = throw(dice, 3) == 0;
    choose_offload(dice, config);
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), ".");
    config->nvme.verify = throw(dice, 2);
    config->nvme.request_bytes = (size_t)4096 << throw(dice, 6);
    config->nvme.files_per_path = 1 + throw(dice, 2);
}

static sim_case_t choose(uint64_t seed) {
    dice_t dice = {seed * 1000003};
    sim_case_t c = {.seed = seed};
    size_t heads = 1 + throw(&dice, 3);
    c.shape = (zr_gpt_shape_t){.n_layers = 1 + throw(&dice, 4),
                               .channels = heads * (4 + 4 * throw(&dice, 5)),
                               .heads = heads,
                               .seq = 16,
                               .vocab = 20 + throw(&dice, 300)};
    c.b = 1 + throw(&dice, 3);
    c.t = 1 + throw(&dice, 16);
    c.n_ranks = 1 + (int) throw(&dice, MOST_RANKS);
    choose_config(&dice, &c);
    if (c.n_ranks % 2 == 0 && throw(&dice, 2))
        c.config.shard_group_size = c.n_ranks / 2;
    c.recompute = throw(&dice, 2);
    c.model = (zr_transformer_options_t){
        .seed = seed, .freeze = throw(&dice, 4) ? NULL : "wte,h.0.mlp", .weight_decay = 0.1};
    if (c.recompute)
        c.activations = (zr_offload_device_t) throw(&dice, 3);
    if (throw(&dice, 4) == 0) /* often too little */
        c.config.device_memory_bytes = (size_t)100000 << throw(&dice, 4);
    if (throw(&dice, 6) == 0)
        c.config.host_memory_bytes = (size_t)200000 << throw(&dice, 3);
    if (throw(&dice, 6) == 0)
        c.config.nvme.capacity_bytes = (size_t)20000 << throw(&dice, 6);
    dice_t order = {seed * 7000003};
    if (throw(&order, 2)) { /* more micro-batches in every second one, in either order */
        c.config.grad_accum = 1 + throw(&order, MOST_ACCUM);
        c.config.order = throw(&order, 3) ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
        c.varies = throw(&order, 2);
    }
    /* Where it is faster is measured, and the simulated machine is another one. */
    dice_t place = {seed * 7000003};
    c.config.offload_optimizer.update_on =
        throw(&place, 2) ? ZR_UPDATE_ON_HOST : ZR_UPDATE_ON_DEVICE;
    dice_t messages = {seed * 9000011};
    if (throw(&messages, 3) == 0) {
        if (c.config.stage > 0)
            c.config.gather_encoding = (zr_message_as_t) throw(&messages, 3);
        if (c.config.reduce == ZR_REDUCE_AUTO)
            c.config.reduce_encoding = (zr_message_as_t) throw(&messages, 4);
        c.config.error_feedback = throw(&messages, 2);
        if (c.config.shard_group_size > 0 && throw(&messages, 2))
            c.config.outer_every = 1 + throw(&messages, 3);
    }
    assert_true(c.b * c.t <= MOST_TOKENS);
    assert_ok(zr_config_resolve(&c.config, c.n_ranks, NULL));
    return c;
}

static void describe(const sim_case_t *c) {
    const zr_config_t *o = &c->config;
    print_message("configuration %" PRIu64
                  ": %d ranks, stage %d, %s, accumulation %zu in order %d, "
                  "recompute %d, optimizer %d (gradients %d), params %d, activations %d, plan %d, "
                  "%zu layers, %zu channels\n",
                  c->seed, c->n_ranks, o->stage, zr_dtype_name(o->dtype), o->grad_accum,
                  (int)o->order, c->recompute, (int)o->offload_optimizer.device,
                  (int)o->offload_optimizer.gradients, (int)o->offload_param.device,
                  (int)c->activations, o->plan_memory, c->shape.n_layers, c->shape.channels);
}

/* ---- comparing ------------------------------------------------------------------------------ */

static size_t n_different;

static void same(const char *what, int index, uint64_t host, uint64_t sim) {
    if (host == sim)
        return;
    print_error("  %s %d: %" PRIu64 " on the host, %" PRIu64 " simulated\n", what, index, host,
                sim);
    n_different++;
}

static void compare_tier(const sim_case_t *c, const zr_tier_statistics_t *host,
                         const zr_tier_statistics_t *sim) {
    same("peak of live bytes", 0, host->live.peak, sim->live.peak);
    same("allocations", 0, host->n_allocations, sim->n_allocations);
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        same("peak of tag", tag, host->by_tag[tag].peak, sim->by_tag[tag].peak);
    for (int i = 0; i < ZR_N_LIFETIMES; i++)
        same("peak of lifetime", i, host->by_lifetime[i].peak, sim->by_lifetime[i].peak);
    if (is_cuda ||
        is_concurrent) /* what is pending there, and so what is mapped, depends on time */
        return;
    if (c->config.plan_memory) /* a plan may be lowered at some later time */
        return;
    same("peak of reserved bytes", 0, host->reserved.peak, sim->reserved.peak);
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        same("reserved bytes of class", i, host->by_class[i].reserved.peak,
             sim->by_class[i].reserved.peak);
        same("largest hole of class", i, host->by_class[i].largest_hole_bytes,
             sim->by_class[i].largest_hole_bytes);
    }
    same("map calls", 0, host->n_map_calls, sim->n_map_calls);
    same("unmap calls", 0, host->n_unmap_calls, sim->n_unmap_calls);
}

static void same_count(const char *what, int index, const zr_store_count_t *host,
                       const zr_store_count_t *sim) {
    same(what, index, host->bytes, sim->bytes);
    same(what, index, host->moved_bytes, sim->moved_bytes);
    same(what, index, host->n_transfers, sim->n_transfers);
}

/* An input of a block that is wanted before the device has said that its copy down is done is not
 * written, so on a device that works beside the CPU there may be fewer writes of them. */
static void same_writes(const used_t *host, const used_t *sim) {
    size_t written = host->stash.drive_bytes[ZR_STORE_PUT];
    size_t planned = sim->stash.drive_bytes[ZR_STORE_PUT];
    const zr_store_count_t *all = &host->moved.count[ZR_STORE_PUT];
    if (!is_cuda || written >= planned) {
        same("written bytes of the stash", 0, written, planned);
        same_count("put", 0, all, &sim->moved.count[ZR_STORE_PUT]);
        return;
    }
    same("put but for the stash", 0, all->moved_bytes - written,
         sim->moved.count[ZR_STORE_PUT].moved_bytes - planned);
}

/* By user: of what is read ahead of gathers, some is dropped, and how much depends on time. */
static void compare_moved(const used_t *host, const used_t *sim) {
    same("store", 0, host->has_store, sim->has_store);
    same("reserved bytes of the store", 0, host->store.reserved_bytes, sim->store.reserved_bytes);
    same("gathered parts", 0, host->offload.params.gathers.n_parts,
         sim->offload.params.gathers.n_parts);
    same("gathered bytes", 0, host->offload.params.gathers.moved_bytes,
         sim->offload.params.gathers.moved_bytes);
    same_count("put parameters", 0, &host->offload.params.updates, &sim->offload.params.updates);
    same_writes(host, sim);
    same("read bytes of the stash", 0, host->stash.drive_bytes[ZR_STORE_GET],
         sim->stash.drive_bytes[ZR_STORE_GET]);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        same_count("gradients", d, &host->offload.grads.all.count[d],
                   &sim->offload.grads.all.count[d]);
        same_count("state", d, &host->offload.all.count[d], &sim->offload.all.count[d]);
        same("bytes of the stash", d, host->stash.bytes[d], sim->stash.bytes[d]);
        same("bytes of updates", d, host->offload.updates[d].bytes, sim->offload.updates[d].bytes);
    }
    same("bytes to the device", 0, host->offload.params.copied_up_bytes,
         sim->offload.params.copied_up_bytes);
}

static void compare(const sim_case_t *c, const used_t *host, const used_t *sim) {
    for (int tier = 0; tier < 2; tier++)
        compare_tier(c, &host->tiers[tier], &sim->tiers[tier]);
    for (int traffic = 0; traffic < ZR_N_TRAFFICS; traffic++) {
        for (int i = 0; i < ZR_N_COLLECTIVES; i++) {
            same("calls of", i, host->sent[traffic][i].n_calls, sim->sent[traffic][i].n_calls);
            same("bytes sent by", i, host->sent[traffic][i].bytes_sent,
                 sim->sent[traffic][i].bytes_sent);
        }
    }
    compare_moved(host, sim);
    assert_true(sim->loss == 0.0 && sim->norm == 0.0); /* nothing, and no chance */
}

/* A rank that fails ends the others, so of the host's some rank has the status. */
static bool has_status(const sim_case_t *c, zr_status_t status) {
    for (int r = 0; r < c->n_ranks; r++)
        if (c->host[r].status == status)
            return true;
    return false;
}

static zr_status_t check(uint64_t seed) {
    sim_case_t c = choose(seed);
    used_t sim = {0};
    test_ranks_t ranks = {.n_ranks = c.n_ranks,
                          .device_name = is_cuda ? "cuda" : "host",
                          .concurrent = is_concurrent,
                          .quiet = true,
                          .run = run_on_host,
                          .context = &c};
    zr_status_t status = ZR_OK;
    size_t n_before = n_different;
    test_run_ranks(&ranks);
    bool fits = true;
    for (int r = 0; r < c.n_ranks; r++)
        fits = fits && c.host[r].status == ZR_OK;
    for (int r = 0; r < c.n_ranks; r++) {
        run_on_sim(&c, r, &sim);
        if (fits && sim.status == ZR_OK)
            compare(&c, &c.host[r], &sim);
        else if (fits || (sim.status != ZR_OK && !has_status(&c, sim.status)))
            same("status of rank", r, (uint64_t)-c.host[r].status, (uint64_t)-sim.status);
        status = status == ZR_OK ? sim.status : status;
    }
    if (!fits && status == ZR_OK)
        same("failure", 0, 1, 0);
    if (n_different > n_before)
        describe(&c);
    return status;
}

static size_t n_cases = 60, first_case = 1;

TEST(test_same_bytes) {
    size_t n_fitted = 0, n_short = 0;
    for (size_t i = 0; i < n_cases; i++) {
        zr_status_t status = check(first_case + i);
        n_fitted += status == ZR_OK;
        n_short += status == ZR_ERR_BUDGET;
        assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
    }
    print_message("%zu configurations fitted, %zu did not\n", n_fitted, n_short);
    assert_int_equal(n_different, 0);
    if (n_cases >= 60) { /* both must have been tried */
        assert_true(n_fitted >= n_cases / 2);
        assert_true(n_short >= n_cases / 20);
    }
}

/* Configurations that have found a mistake. 1214: no memory for the buffers of a store that is
 * there, and then a report. */
TEST(test_remembered) {
    static const uint64_t seeds[] = {1214};
    for (size_t i = 0; i < N_OF(seeds); i++)
        check(seeds[i]);
    assert_int_equal(n_different, 0);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* What the clock was told of updates. */
typedef struct updates {
    double host_end;   /* of the latest update on the host */
    size_t n_of_host;  /* updates there */
    size_t n_before;   /* work that has begun before that end, and was queued later */
    double longest[2]; /* seconds of an update, on the device and on the host */
} updates_t;

static void see(void *context, const zr_sim_span_t *span) {
    updates_t *seen = context;
    bool is_update = span->is_update;
    seen->n_before += span->begin < seen->host_end;
    if (!is_update)
        return;
    bool is_on_host = span->part == ZR_SIM_HOST;
    seen->n_of_host += is_on_host;
    if (is_on_host)
        seen->host_end = span->end;
    if (span->end - span->begin > seen->longest[is_on_host])
        seen->longest[is_on_host] = span->end - span->begin;
}

/* A model on one simulated GPU, whose clock is watched. */
static void watch(const zr_config_t *config, const zr_hardware_t *hardware, updates_t *seen,
                  used_t *used) {
    sim_case_t c = {.shape = {.n_layers = 2, .channels = 64, .heads = 2, .seq = 16, .vocab = 100},
                    .model = {.seed = 1},
                    .config = *config,
                    .b = 1,
                    .t = 8};
    test_rank_t rank = {.log = zr_log_default()};
    zr_device_options_t options = {.log = rank.log, .hardware = hardware};
    zr_comm_options_t comm_options = zr_comm_options_default();
    c.config.nvme.store = "sim";
    snprintf(c.config.nvme.paths, sizeof(c.config.nvme.paths), ".");
    c.config.micro_batch = c.config.grad_accum = 1;
    *seen = (updates_t){0};
    assert_ok(zr_device_open("sim", &options, &rank.device));
    assert_ok(zr_comm_create_sim(0, 1, &comm_options, &rank.comm));
    zr_sim_clock_observe(zr_sim_clock_of(rank.device), see, seen);
    assert_ok(run(&c, &c.config, &rank, used));
    zr_comm_destroy(&rank.comm);
    zr_device_close(&rank.device);
}

static zr_hardware_t one_gpu(void) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = ZR_HARDWARE_CUDA;
    hardware.device_memory_bytes = hardware.host_memory_bytes;
    return hardware;
}

/* The host's kernels hold the thread that queues all else, as they do where there is a GPU. */
TEST(test_updates_hold_the_host) {
    zr_hardware_t hardware = one_gpu();
    updates_t seen;
    used_t used;
    for (int optimizer = ZR_OFFLOAD_CPU; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
        for (int param = ZR_OFFLOAD_NONE; param <= ZR_OFFLOAD_NVME; param++) {
            zr_config_t config = zr_config_default();
            config.stage = 3;
            config.offload_optimizer.device = (zr_offload_device_t)optimizer;
            config.offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
            config.offload_param.device = (zr_offload_device_t)param;
            config.sub_group_elems = 4096;
            watch(&config, &hardware, &seen, &used);
            assert_true(seen.n_of_host > 10);
            assert_int_equal(seen.n_before, 0);
        }
}

/* Measuring which place is faster takes in all of an update, and of a copy: whichever of them is
 * slow, here a thousand times, is what the place's rate is. */
TEST(test_measured_rates) {
    zr_config_t config = zr_config_default();
    config.stage = 2;
    config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    config.offload_optimizer.update_on = ZR_UPDATE_ON_FASTER;
    for (int slow = 0; slow < 4; slow++) {
        zr_hardware_t hardware = one_gpu();
        double *rates[] = {&hardware.host.update_bytes_per_s, &hardware.device.update_bytes_per_s,
                           &hardware.to_device.bytes_per_s, &hardware.to_host.bytes_per_s};
        updates_t seen;
        used_t used;
        *rates[slow] = 10e6;
        watch(&config, &hardware, &seen, &used);
        const zr_offload_report_t *report = &used.offload;
        assert_true(report->was_measured);
        assert_int_equal(report->is_updated_on_device, slow == 0);
        double of_slow = slow == 0 ? report->host_elems_per_s : report->device_elems_per_s;
        assert_true(of_slow < 10e6);
    }
}

int main(int argc, char **argv) {
    is_cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    is_concurrent = argc > 1 && strcmp(argv[1], "beside") == 0;
    if (is_cuda || is_concurrent) {
        n_cases = is_cuda ? 12 : 60;
        argc--;
        argv++;
    }
    if (argc > 1)
        n_cases = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        first_case = strtoul(argv[2], NULL, 10);
    return run_all_tests(NULL, NULL);
}
