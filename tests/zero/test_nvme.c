/*
 * One store per rank: what a trainer keeps there beside optimizer state and parameters, what is
 * counted for whom, and the one message about room on the drives, which names what is there and
 * advises what helps that.
 */
#include "tests/common/one_thing.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"

#define N_ELEMS 20000
#define UNIT_BYTES ((size_t)8192)
#define N_OWN 3
static const size_t own_bytes[N_OWN] = {3 * UNIT_BYTES + 100, 0, UNIT_BYTES};

typedef struct nvme_case {
    zr_config_t config;
    bool has_own;
    size_t unit_bytes;
    char said[2048];
    size_t chunk_bytes;
    zr_status_t (*use)(struct nvme_case *c, zr_runtime_t *runtime, const zr_extents_t *own);
} nvme_case_t;

static nvme_case_t a_case(zr_offload_device_t state, zr_offload_device_t params, bool has_own) {
    nvme_case_t c = {.config = zr_config_default(), .has_own = has_own, .unit_bytes = UNIT_BYTES};
    c.config.micro_batch = c.config.grad_accum = c.config.train_batch = 1;
    c.config.stage = 3;
    c.config.offload_optimizer.device = state;
    c.config.offload_param.device = params;
    c.config.nvme.store = "memory";
    c.config.master = ZR_MASTER_APART; /* 12 bytes of state wherever parameters are */
    return c;
}

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    nvme_case_t *c = context;
    if (level == ZR_LOG_ERROR)
        snprintf(c->said, sizeof(c->said), "%s", message);
}

static zr_status_t add_model(zr_runtime_t *runtime) {
    zr_unit_t *unit = NULL;
    zr_param_t *param = NULL;
    ZR_TRY(zr_runtime_add_unit(runtime, "u", &unit));
    const zr_param_desc_t desc = {.name = "p", .n_dims = 1, .dims = {N_ELEMS}};
    return zr_unit_add_param(unit, &desc, &param);
}

static zr_status_t add_own(nvme_case_t *c, zr_runtime_t *runtime, zr_extents_t *own_p) {
    static const char *const advice[] = {"fewer things", "more --ranks", NULL};
    zr_store_extent_t extents[N_OWN];
    char name[] = "a thing";
    for (size_t i = 0; i < N_OWN; i++)
        extents[i] = (zr_store_extent_t){.name = name, .size_bytes = own_bytes[i], .account = 5};
    const zr_extents_desc_t desc = {.name = "things",
                                    .extents = extents,
                                    .n_extents = N_OWN,
                                    .unit_bytes = c->unit_bytes,
                                    .max_transfers = 2,
                                    .advice = advice};
    zr_status_t status = zr_runtime_add_extents(runtime, &desc, own_p);
    memset(name, 'x', sizeof(name) - 1); /* it is copied */
    return status;
}

static zr_status_t build(nvme_case_t *c, zr_runtime_t *runtime) {
    zr_extents_t own = {0};
    ZR_TRY(add_model(runtime));
    if (c->has_own)
        ZR_TRY(add_own(c, runtime, &own));
    ZR_TRY(zr_runtime_commit(runtime));
    return c->use != NULL ? c->use(c, runtime, &own) : ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    nvme_case_t *c = rank->context;
    zr_runtime_t *runtime = NULL;
    zr_log_t log = {.sink = keep, .context = c, .level = ZR_LOG_ERROR};
    ZR_TRY(zr_runtime_create(&c->config, rank->comm, rank->device, &log, &runtime));
    zr_status_t status = build(c, runtime);
    zr_runtime_destroy(&runtime);
    return status;
}

static zr_status_t run(nvme_case_t *c) {
    test_ranks_t ranks = {.n_ranks = 1, .run = run_rank, .context = c};
    test_run_ranks(&ranks);
    return ranks.status[0];
}

/* ---- one store ----------------------------------------------------------------------------- */

/* The trainer's extents are where it was told, in an account that nobody else uses. */
static zr_status_t use_own(nvme_case_t *c, zr_runtime_t *runtime, const zr_extents_t *own) {
    static unsigned char out[3 * UNIT_BYTES + 100], in[sizeof(out)];
    zr_store_t *store = zr_runtime_store(runtime);
    zr_store_ticket_t ticket;
    zr_store_statistics_t mine, all;
    zr_offload_report_t report;
    assert_non_null(store);
    c->chunk_bytes = zr_store_info(store)->chunk_bytes;
    assert_true(zr_store_info(store)->reserved_bytes <= c->config.nvme.capacity_bytes);
    assert_int_equal(own->n_extents, N_OWN);
    for (size_t i = 0; i < N_OWN; i++) {
        const zr_store_extent_t *extent = zr_store_extent(store, own->first + i);
        assert_int_equal(extent->size_bytes, own_bytes[i]);
        assert_int_equal(extent->account, own->account);
        assert_string_equal(extent->name, "a thing");
    }
    memset(out, 7, sizeof(out));
    ZR_TRY(zr_store_put(store, own->first, 0, sizeof(out), out, &ticket));
    ZR_TRY(zr_store_wait(store, ticket));
    ZR_TRY(zr_store_get(store, own->first, 0, sizeof(in), in, &ticket));
    ZR_TRY(zr_store_wait(store, ticket));
    assert_memory_equal(in, out, sizeof(out));
    zr_store_account_statistics(store, own->account, &mine);
    zr_store_statistics(store, &all);
    zr_runtime_offload(runtime, &report);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        assert_int_equal(mine.count[d].bytes, sizeof(out));
        assert_int_equal(all.count[d].bytes, sizeof(out) + report.all.count[d].bytes +
                                                 report.params.all.count[d].bytes);
    }
    assert_int_equal(report.has_store, report.all.count[ZR_STORE_PUT].bytes > 0);
    assert_true(all.wait_seconds[ZR_STORE_GET] >= mine.wait_seconds[ZR_STORE_GET]);
    return ZR_OK;
}

TEST(all_share_one_store) {
    for (int optimizer = ZR_OFFLOAD_NONE; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
        for (int params = ZR_OFFLOAD_NONE; params <= ZR_OFFLOAD_NVME; params++) {
            nvme_case_t c =
                a_case((zr_offload_device_t)optimizer, (zr_offload_device_t)params, true);
            c.use = use_own;
            if (run(&c) != ZR_OK)
                fail_msg("optimizer state %d, parameters %d: %s", optimizer, params, c.said);
            assert_int_equal(c.chunk_bytes, UNIT_BYTES); /* the smallest that anybody needs */
        }
}

static zr_status_t expect_none(nvme_case_t *c, zr_runtime_t *runtime, const zr_extents_t *own) {
    (void)c, (void)own;
    assert_null(zr_runtime_store(runtime));
    return ZR_OK;
}

/* Not even a ring, where nobody needs one; "floppy" cannot be opened. */
TEST(there_is_none_without_need) {
    nvme_case_t c = a_case(ZR_OFFLOAD_CPU, ZR_OFFLOAD_CPU, false);
    c.config.nvme.store = "floppy";
    c.use = expect_none;
    assert_ok(run(&c));
}

static zr_status_t add_more(nvme_case_t *c, zr_runtime_t *runtime, const zr_extents_t *own) {
    zr_extents_t more;
    return add_own(c, runtime, &more);
}

TEST(what_cannot_be_is_said) {
    nvme_case_t c = a_case(ZR_OFFLOAD_CPU, ZR_OFFLOAD_CPU, true);
    c.use = add_more;
    assert_int_equal(run(&c), ZR_ERR_STATE);
    assert_has(c.said, "zr_runtime_add_extents after zr_runtime_commit");
    c.unit_bytes = 5000;
    assert_int_equal(run(&c), ZR_ERR_ARGUMENT);
    assert_has(c.said, "things: transfers begin at multiples of 5000 bytes");
}

/* ---- room ------------------------------------------------------------------------------------ */

static void assert_says(const nvme_case_t *c, const char *part, bool says) {
    if ((strstr(c->said, part) != NULL) != says)
        fail_msg("\"%s\" is%s in: %s", part, says ? " not" : "", c->said);
}

/* Each extent begins at a block of its file. */
static size_t blocks(size_t size_bytes) {
    return (size_bytes + 4095) / 4096 * 4096;
}

/* What fits to the byte is taken; a byte less is refused, with what needs how much. */
TEST(one_message_about_room) {
    for (unsigned parts = 1; parts < 8; parts++) {
        bool has_state = parts & 1, has_params = parts & 2, has_own = parts & 4;
        nvme_case_t c = a_case(has_state ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_CPU,
                               has_params ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_CPU, has_own);
        size_t padded = N_ELEMS; /* for one rank it is aligned already */
        size_t need = (has_state ? blocks(12 * padded) : 0) +
                      (has_params ? blocks(4 * padded) : 0) +
                      (has_own ? blocks(own_bytes[0]) + blocks(own_bytes[2]) : 0);
        char text[64];
        c.config.nvme.capacity_bytes = need;
        if (run(&c) != ZR_OK)
            fail_msg("parts %u: %s", parts, c.said);
        c.config.nvme.capacity_bytes--;
        assert_int_equal(run(&c), ZR_ERR_BUDGET);
        snprintf(text, sizeof(text), "(%zu bytes) do not fit", need);
        assert_says(&c, text, true);
        assert_says(&c, "optimizer state 236.0 KiB", has_state);
        assert_says(&c, "parameters 80.0 KiB", has_params);
        assert_says(&c, "things 36.0 KiB", has_own);
        assert_says(&c, "a larger --nvme-capacity", true);
        assert_says(&c, "--offload-ratio", has_state);
        assert_says(&c, "--offload-optimizer cpu", has_state);
        assert_says(&c, "--offload-params cpu", has_params);
        assert_says(&c, "fewer things", has_own);
        assert_says(&c, " 0.0 ", false);
        const char *once = strstr(c.said, "more --ranks");
        assert_true(once != NULL && strstr(once + 1, "more --ranks") == NULL);
    }
}
