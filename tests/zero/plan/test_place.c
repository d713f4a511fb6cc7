/*
 * Where things live: what is chosen fits, by a plan within the budgets, where any of a grid of
 * placements does, and is at most a tenth slower than the fastest of them; on machines and with
 * budgets drawn at random. The problem that it solves has the answer that trying all corners has.
 */
#include <math.h>

#include "models/shape.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "zero/hardware_json.h"
#include "zero/plan/fit_internal.h"
#include "zero/plan/linear_internal.h"

/* ---- small problems ------------------------------------------------------------------------- */

enum { N = 3, M = 4 };

static double value_of(const double factors[], const double x[]) {
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += factors[i] * x[i];
    return sum;
}

static bool keeps_limits(const zr_linear_t *problem, const double x[]) {
    for (size_t i = 0; i < N; i++)
        if (x[i] < -1e-9)
            return false;
    for (size_t i = 0; i < problem->n_rows; i++) {
        double over = value_of(problem->rows[i].factors, x) - problem->rows[i].limit;
        if (over > 1e-7 || (problem->rows[i].is_equal && over < -1e-7))
            return false;
    }
    return true;
}

/* Plane `i` of a problem: a row, or x[i - n_rows] = 0. */
static double plane(const zr_linear_t *problem, size_t i, double factors[N]) {
    for (size_t k = 0; k < N; k++)
        factors[k] =
            i < problem->n_rows ? problem->rows[i].factors[k] : (double)(k == i - problem->n_rows);
    return i < problem->n_rows ? problem->rows[i].limit : 0;
}

static double determinant(double m[N][N]) {
    return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) -
           m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
           m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

/* Where three planes meet. */
static bool corner(const zr_linear_t *problem, const size_t planes[N], double x[N]) {
    double m[N][N], limits[N];
    for (int i = 0; i < N; i++)
        limits[i] = plane(problem, planes[i], m[i]);
    double all = determinant(m);
    for (int k = 0; k < N; k++) {
        double own[N][N];
        memcpy(own, m, sizeof(own));
        for (int i = 0; i < N; i++)
            own[i][k] = limits[i];
        x[k] = fabs(all) > 1e-9 ? determinant(own) / all : 0;
    }
    return fabs(all) > 1e-9;
}

/* The best of all corners; INFINITY: none keeps all limits. */
static double best_corner(const zr_linear_t *problem) {
    double best = INFINITY, x[N];
    size_t n = problem->n_rows + N, planes[N];
    for (planes[0] = 0; planes[0] < n; planes[0]++)
        for (planes[1] = planes[0] + 1; planes[1] < n; planes[1]++)
            for (planes[2] = planes[1] + 1; planes[2] < n; planes[2]++)
                if (corner(problem, planes, x) && keeps_limits(problem, x))
                    best = fmin(best, value_of(problem->costs, x));
    return best;
}

static double drawn(uint64_t *state) {
    return (double)(random_bits(state) % 41) / 10 - 2;
}

TEST(small_problems_have_the_answer_of_their_corners) {
    uint64_t bits = 1;
    size_t n_solved = 0, n_without = 0;
    for (int i = 0; i < 3000; i++) {
        zr_linear_t problem = {.n_variables = N};
        double x[N];
        for (int k = 0; k < N; k++)
            problem.costs[k] = drawn(&bits);
        zr_linear_row_t *bound = zr_linear_add(&problem, 10, false); /* so that there is a least */
        bound->factors[0] = bound->factors[1] = bound->factors[2] = 1;
        for (int row = 0; row < M; row++) {
            zr_linear_row_t *added = zr_linear_add(&problem, drawn(&bits), row == 0 && i % 3 == 0);
            for (int k = 0; k < N; k++)
                added->factors[k] = drawn(&bits);
        }
        double best = best_corner(&problem);
        bool is_solved = zr_linear_solve(&problem, x);
        assert_true(is_solved == isfinite(best));
        n_solved += is_solved;
        n_without += !is_solved;
        if (is_solved) {
            assert_true(keeps_limits(&problem, x));
            assert_true(fabs(value_of(problem.costs, x) - best) < 1e-6);
        }
    }
    assert_true(n_solved > 500 && n_without > 500);
}

/* ---- machines -------------------------------------------------------------------------------- */

typedef struct box {
    zr_run_request_t run;
    zr_run_open_t open;
    zr_model_shape_t shape;
} box_t;

static size_t below(uint64_t *state, size_t n) {
    return (size_t)(random_bits(state) % n);
}

/* A figure between least and most, as often in each order of magnitude. */
static double between(uint64_t *state, double least, double most) {
    return least * pow(most / least, (double)below(state, 1001) / 1000);
}

static zr_hardware_t draw_hardware(uint64_t *state) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = below(state, 5) == 0 ? ZR_HARDWARE_HOST : ZR_HARDWARE_CUDA;
    hardware.cuda_major = 8;
    hardware.device.matrix_bf16_ops_per_s = between(state, 1e11, 1e13);
    hardware.to_device.bytes_per_s = between(state, 1e9, 3e10);
    hardware.to_host.bytes_per_s = hardware.to_device.bytes_per_s;
    hardware.host.update_bytes_per_s = between(state, 1e9, 4e10);
    hardware.device.update_bytes_per_s = between(state, 2e10, 1e12);
    hardware.disk_read.bytes_per_s = between(state, 3e8, 6e9);
    hardware.disk_write.bytes_per_s = 0.6 * hardware.disk_read.bytes_per_s;
    hardware.disk_both_bytes_per_s = 1.3 * hardware.disk_read.bytes_per_s;
    return hardware;
}

static void draw(uint64_t *state, box_t *box) {
    char name[128];
    size_t channels = 64 * (2 + below(state, 3)), layers = 4 + below(state, 9);
    snprintf(name, sizeof(name), "layers=%zu,channels=%zu,heads=%zu,seq=64,vocab=300", layers,
             channels, channels / 64);
    assert_ok(zr_model_shape_read(name, NULL, &box->shape));
    zr_transformer_options_t model = {.seed = 1};
    int n_ranks = 1 + (int)below(state, 3);
    box->run = (zr_run_request_t){.model = zr_model_shape_maker(&box->shape, &model),
                                  .config = zr_config_default(),
                                  .recompute = true,
                                  .seq = 64,
                                  .n_steps = ZR_RUN_PLAN_STEPS,
                                  .n_ranks = n_ranks,
                                  .hardware = draw_hardware(state),
                                  .log = {.sink = drop_message, .level = ZR_LOG_ERROR}};
    zr_config_t *config = &box->run.config;
    config->stage = (int)below(state, 8) < 5 ? 3 : (int)below(state, 3);
    config->dtype = ZR_DTYPE_BF16;
    config->micro_batch = 1 + below(state, 3);
    config->grad_accum = 1 + below(state, 2);
    config->sub_group_elems = 4096;
    config->offload_param.buffer_elems = 8192;
    config->offload_optimizer.n_buffers = config->offload_param.n_buffers = 2;
    double all = 16.0 * (double)zr_model_shape_n_params(&box->shape) / n_ranks;
    config->device_memory_bytes = (size_t)(between(state, 0.2, 1.2) * all) + ((size_t)4 << 20);
    config->host_memory_bytes = (size_t)(between(state, 0.05, 1) * all) + ((size_t)1 << 20);
    if (below(state, 4) != 0)
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), ".");
    if (below(state, 4) == 0)
        config->nvme.capacity_bytes = (size_t)(between(state, 0.1, 1) * all);
    assert_ok(zr_config_resolve(config, n_ranks, NULL));
    box->open = (zr_run_open_t){.optimizer = true,
                                .params = config->stage == 3 && below(state, 4) != 0,
                                .gradients = below(state, 4) != 0};
}

/* Where inputs of layers wait is open as well, and they are large. */
static void open_inputs(uint64_t *state, box_t *box) {
    zr_config_t *config = &box->run.config;
    zr_run_plan_t plan;
    box->open.params = false;
    box->open.activations = true;
    config->micro_batch *= 8;
    config->train_batch = 0;
    assert_ok(zr_config_resolve(config, box->run.n_ranks, NULL));
    zr_run_request_t free = box->run;
    free.config.device_memory_bytes = free.config.host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    assert_ok(zr_run_plan(&free, &plan));
    double device = (double)plan.tiers[ZR_TIER_DEVICE].reserved.peak;
    double inputs = (double)plan.inputs_bytes;
    config->device_memory_bytes = (size_t)(device - between(state, 0.1, 0.9) * inputs);
    config->host_memory_bytes = (size_t)(between(state, 0.3, 2) * inputs) + ((size_t)1 << 20);
    config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
}

/* A place of state or of parameters: device, and how much of them. */
typedef struct place {
    zr_offload_device_t device;
    double ratio;
} place_t;
static const place_t places[] = {{ZR_OFFLOAD_NONE, 1},
                                 {ZR_OFFLOAD_CPU, 0.5},
                                 {ZR_OFFLOAD_CPU, 1},
                                 {ZR_OFFLOAD_NVME, 0.5},
                                 {ZR_OFFLOAD_NVME, 1}};

/* The fastest that fits of all placements with what is open in one of these places, and inputs of
 * layers where they are.
 * @return its seconds; infinite: none fits */
static double fastest_of_places(const box_t *box, const zr_log_t *log, size_t *n_plans_p) {
    double least = INFINITY;
    for (size_t state = 0; state < (box->open.optimizer ? N_OF(places) : 1); state++)
        for (size_t params = 0; params < (box->open.params ? N_OF(places) : 1); params++)
            for (int is_up = 0; is_up <= (box->open.gradients && state > 0); is_up++) {
                zr_run_request_t run = box->run;
                zr_config_t *config = &run.config;
                zr_run_fit_t fit;
                bool is_on_drive = places[state].device == ZR_OFFLOAD_NVME ||
                                   places[params].device == ZR_OFFLOAD_NVME;
                if (is_on_drive && config->nvme.paths[0] == '\0')
                    continue;
                config->offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
                config->offload_optimizer.device = places[state].device;
                config->offload_optimizer.ratio = places[state].ratio;
                config->offload_param.device = places[params].device;
                config->offload_param.ratio = places[params].ratio;
                if (is_up)
                    config->offload_optimizer.gradients = ZR_OFFLOAD_NONE;
                assert_ok(zr_run_fit(&run, log, &fit));
                ++*n_plans_p;
                if (fit.fits)
                    least = fmin(least, fit.plan.step_seconds);
            }
    return least;
}

static double fastest_of_all(const box_t *box, const zr_log_t *log, size_t *n_plans_p) {
    double least = INFINITY;
    bool has_drives = box->run.config.nvme.paths[0] != '\0';
    int most = box->open.activations ? ZR_OFFLOAD_CPU + has_drives : ZR_OFFLOAD_NONE;
    for (int activations = ZR_OFFLOAD_NONE; activations <= most; activations++) {
        box_t own = *box;
        own.run.activations = (zr_offload_device_t)activations;
        least = fmin(least, fastest_of_places(&own, log, n_plans_p));
    }
    return least;
}

/* What is chosen goes by estimates of times, and may be a little slower. */
static void compare_with_grid(bool opens_inputs, size_t n) {
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    uint64_t bits = 7;
    size_t n_fit = 0, n_more = 0, n_faster = 0, n_plans = 0, n_tried = 0, n_mixed = 0,
           n_planned = 0;
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        box_t box;
        zr_run_fit_t fit;
        draw(&bits, &box);
        if (opens_inputs)
            open_inputs(&bits, &box);
        double least = fastest_of_all(&box, &log, &n_tried);
        zr_run_plan_t planned;
        bool is_planned;
        assert_ok(
            zr_run_place_and_plan(&box.run, &box.open, &log, &n_plans, &planned, &is_planned));
        assert_ok(zr_run_fit(&box.run, &log, &fit));
        n_planned += is_planned;
        if (is_planned)
            assert_memory_equal(&planned, &fit.plan, sizeof(planned));
        assert_true(fit.fits || isinf(least));
        n_fit += fit.fits;
        n_more += fit.fits && isinf(least);
        if (isinf(least))
            continue;
        n_faster += fit.plan.step_seconds < 0.99 * least;
        n_mixed += box.run.activations_on_device + box.run.activations_in_host > 0;
        worst = fmax(worst, fit.plan.step_seconds / least);
    }
    print_message("%zu of %zu fit, %zu of them only so; %zu faster, the slowest %.3f times; %zu "
                  "with inputs in "
                  "several tiers; %zu plans, %zu of the grid\n",
                  n_fit, n, n_more, n_faster, worst, n_mixed, n_plans, n_tried);
    assert_true(n_fit >= n / 3 && n_faster >= n / 10 && worst < 1.1);
    assert_true(1.8 * (double)n_plans < (double)n_tried && 2 * n_planned > n_fit);
    assert_true(!opens_inputs || n_mixed > 0);
}

TEST(hardly_slower_than_any_of_a_grid) {
    compare_with_grid(false, TEST_IS_SLOW ? 12 : 40);
    compare_with_grid(true, TEST_IS_SLOW ? 8 : 25);
}

/* ---- plans of memory alone --------------------------------------------------------------------
 */

/* What is live is the same, and on a host, where no time decides what is mapped, so is that. */
static void compare_memory(const zr_run_fit_t *full, const zr_run_fit_t *alone, bool is_host) {
    assert_true(full->fits == alone->fits);
    assert_int_equal(full->plan.nvme_bytes, alone->plan.nvme_bytes);
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        const zr_tier_statistics_t *a = &full->plan.tiers[tier], *b = &alone->plan.tiers[tier];
        assert_int_equal(a->live.peak, b->live.peak);
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            assert_int_equal(a->by_tag[tag].peak, b->by_tag[tag].peak);
        if (is_host)
            assert_int_equal(a->reserved.peak, b->reserved.peak);
    }
    if (is_host)
        assert_int_equal(full->plan.metadata.peak, alone->plan.metadata.peak);
}

static const place_t *draw_place(uint64_t *state, bool has_drives) {
    return &places[below(state, has_drives ? N_OF(places) : 3)];
}

TEST(plans_of_memory_alone_have_the_memory_of_plans) {
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    uint64_t bits = 29;
    size_t n_fit = 0, n_shorter = 0, n = TEST_IS_SLOW ? 60 : 300;
    for (size_t i = 0; i < n; i++) {
        zr_run_fit_t full, alone;
        box_t box;
        draw(&bits, &box);
        zr_config_t *config = &box.run.config;
        bool has_drives = config->nvme.paths[0] != '\0';
        if (i % 3 != 0) /* all fit */
            config->device_memory_bytes = config->host_memory_bytes = config->nvme.capacity_bytes =
                ZR_CONFIG_NO_BUDGET;
        const place_t *state = draw_place(&bits, has_drives),
                      *params = draw_place(&bits, has_drives);
        config->offload_optimizer.update_on = (zr_update_on_t)below(&bits, 3);
        config->offload_optimizer.device = state->device;
        config->offload_optimizer.ratio = state->ratio;
        if (config->stage == 3) {
            config->offload_param.device = params->device;
            config->offload_param.ratio = params->ratio;
        }
        if (config->stage >= 2 && has_drives)
            config->offload_optimizer.gradients = (zr_offload_device_t)below(&bits, 3);
        if (config->stage >= 2 && below(&bits, 3) == 0)
            config->update_at = ZR_UPDATE_AT_BACKWARD;
        assert_ok(zr_run_fit(&box.run, &log, &full));
        box.run.memory_only = true;
        assert_ok(zr_run_fit(&box.run, &log, &alone));
        compare_memory(&full, &alone, box.run.hardware.kind == ZR_HARDWARE_HOST);
        n_fit += full.fits;
        n_shorter += full.fits && alone.plan.step_seconds < 0.9 * full.plan.step_seconds;
    }
    print_message("%zu of %zu fit, %zu took less than their time\n", n_fit, n, n_shorter);
    assert_true(n_fit > n / 2 && n_shorter > n_fit / 4); /* something was left out */
}

/* ---- split masters --------------------------------------------------------------------------- */

/* On a GPU no parameter may then stay on the device, which is what else auto would do with room. */
TEST(masters_are_split_where_they_do_not_fit_apart) {
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    zr_run_plan_t plan;
    uint64_t bits = 3;
    box_t box;
    size_t n_plans = 0;
    do
        draw(&bits, &box);
    while (box.run.hardware.kind == ZR_HARDWARE_HOST || box.run.config.stage != 3);
    zr_config_t *config = &box.run.config;
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), ".");
    config->master = ZR_MASTER_APART;
    config->device_memory_bytes = config->host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    config->offload_optimizer.device = config->offload_param.device = ZR_OFFLOAD_NVME;
    assert_ok(zr_run_plan(&box.run, &plan));
    size_t state_bytes = plan.nvme_by_tag[ZR_TAG_OPTIMIZER_STATE];
    config->device_memory_bytes = plan.tiers[ZR_TIER_DEVICE].reserved.peak + state_bytes / 4;
    config->host_memory_bytes = plan.tiers[ZR_TIER_HOST].reserved.peak + state_bytes / 4;
    config->nvme.capacity_bytes = plan.nvme_bytes - state_bytes * 12 / 20;
    static const struct {
        zr_master_t asked, chosen;
        bool fits;
    } cases[] = {{ZR_MASTER_APART, ZR_MASTER_APART, false},
                 {ZR_MASTER_AUTO, ZR_MASTER_SPLIT, true},
                 {ZR_MASTER_SPLIT, ZR_MASTER_SPLIT, true}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_run_request_t run = box.run;
        zr_run_open_t open = {.optimizer = true, .params = true, .gradients = true};
        run.config.master = cases[i].asked;
        assert_ok(zr_run_place(&run, &open, &log, &n_plans));
        assert_int_equal(run.config.master, cases[i].chosen);
        assert_int_equal(zr_run_fits(&run), cases[i].fits);
    }
}

/* ---- numbers of buffers that are left open --------------------------------------------------- */

/* A run with much on drives, inputs of layers in host memory or there, and little host memory. */
static void draw_drives(uint64_t *state, box_t *box) {
    draw(state, box);
    zr_config_t *config = &box->run.config;
    config->offload_optimizer = zr_config_default().offload_optimizer;
    config->offload_param = zr_config_default().offload_param;
    config->stage = 2 + (int)below(state, 2);
    config->update_at = below(state, 3) == 0 ? ZR_UPDATE_AT_END : ZR_UPDATE_AT_BACKWARD;
    config->order = below(state, 3) == 0 ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
    config->offload_optimizer.device = ZR_OFFLOAD_NVME;
    config->offload_optimizer.gradients = below(state, 2) == 0 ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_CPU;
    config->offload_param.device =
        config->stage == 3 && below(state, 2) == 0 ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_NONE;
    config->sub_group_elems = (size_t)4096 << below(state, 4);
    config->offload_param.buffer_elems = (size_t)4096 << below(state, 4);
    config->device_memory_bytes = config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), ".");
    box->run.activations = (zr_offload_device_t)below(state, 3);
    if (box->run.activations == ZR_OFFLOAD_CPU)
        config->micro_batch *= (size_t)1 << below(state, 6);
    config->train_batch = 0;
    assert_ok(zr_config_resolve(config, box->run.n_ranks, NULL));
    zr_run_request_t least = box->run;
    zr_run_plan_t plan;
    config = &least.config;
    config->offload_optimizer.n_buffers = config->offload_param.n_buffers = 1;
    config->host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    assert_ok(zr_run_plan(&least, &plan));
    box->run.config.host_memory_bytes =
        (size_t)(between(state, 0.9, 3) * (double)plan.tiers[ZR_TIER_HOST].reserved.peak);
}

static bool fits_with(const zr_run_request_t *asked, size_t n_buffers, size_t n_param_buffers) {
    zr_run_request_t run = *asked;
    zr_run_plan_t plan;
    run.config.offload_optimizer.n_buffers = n_buffers;
    run.config.offload_param.n_buffers = n_param_buffers;
    zr_status_t status = zr_run_plan(&run, &plan);
    assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
    assert_int_equal(plan.n_buffers, 0);
    return status == ZR_OK;
}

/* An open number is never the reason to refuse a run. */
TEST(what_fits_with_some_buffers_fits_with_an_open_number) {
    static const size_t numbers[][2] = {{4, 5}, {2, 2}, {1, 1}};
    uint64_t bits = 5;
    size_t n_fit = 0, n_held = 0, n_usual = 0;
    const size_t n = TEST_IS_SLOW ? 20 : 80;
    for (size_t i = 0; i < n; i++) {
        box_t box;
        draw_drives(&bits, &box);
        zr_run_request_t run = box.run;
        zr_run_plan_t plan;
        zr_status_t status = zr_run_plan(&run, &plan);
        bool any_fits = false;
        assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
        for (size_t k = 0; k < N_OF(numbers); k++)
            any_fits |= fits_with(&run, numbers[k][0], numbers[k][1]);
        assert_true(status == ZR_OK || !any_fits);
        n_fit += status == ZR_OK;
        if (status != ZR_OK || plan.n_buffers == 0)
            continue;
        n_held++;
        n_usual += plan.n_buffers == ZR_CONFIG_USUAL_BUFFERS;
        assert_true(fits_with(&run, plan.n_buffers, plan.n_param_buffers));
        zr_run_hold(&plan, &run.config);
        assert_int_equal(run.config.offload_optimizer.n_buffers, plan.n_buffers);
    }
    print_message("%zu of %zu fit, %zu with fewer buffers than they would choose, %zu with 4\n",
                  n_fit, n, n_held, n_usual);
    assert_true(n_held >= n / 10 && n_usual < n_held && (n_usual > 0 || TEST_IS_SLOW));
}

static size_t device_peak(const zr_run_request_t *run, size_t prefetch_elems) {
    zr_run_request_t own = *run;
    zr_run_plan_t plan;
    own.config.prefetch_elems = prefetch_elems;
    assert_ok(zr_run_plan(&own, &plan));
    assert_false(plan.lacks_prefetch);
    return plan.tiers[ZR_TIER_DEVICE].reserved.peak;
}

/* Nor is prefetch, unless units are said to be prefetched. */
TEST(what_fits_without_prefetch_fits_with_an_open_one) {
    uint64_t bits = 9;
    size_t n_held = 0;
    for (size_t i = 0; i < 20; i++) {
        box_t box;
        draw(&bits, &box);
        zr_run_request_t run = box.run;
        zr_config_t *config = &run.config;
        zr_run_plan_t plan, held;
        config->stage = 3;
        config->offload_param.device = i % 2 == 0 ? ZR_OFFLOAD_CPU : ZR_OFFLOAD_NONE;
        config->host_memory_bytes = config->device_memory_bytes = ZR_CONFIG_NO_BUDGET;
        config->device_memory_bytes = device_peak(&run, 0);
        run.hardware.host_memory_bytes = ZR_RUN_ENOUGH_BYTES;
        zr_run_request_t free = run;
        free.config.device_memory_bytes = ZR_CONFIG_NO_BUDGET;
        if (device_peak(&free, ZR_CONFIG_ALL) <= config->device_memory_bytes)
            continue;
        n_held++;
        assert_ok(zr_run_plan(&run, &plan));
        assert_true(plan.lacks_prefetch);
        config->prefetch_elems = (size_t)1 << 40;
        assert_int_equal(zr_run_plan(&run, &held), ZR_ERR_BUDGET);
        config->prefetch_elems = ZR_CONFIG_ALL;
        zr_run_hold(&plan, config);
        assert_int_equal(config->prefetch_elems, 0);
        assert_ok(zr_run_plan(&run, &held));
        held.lacks_prefetch = true;
        assert_memory_equal(&plan, &held, sizeof(plan));
    }
    print_message("%zu fit only without prefetch\n", n_held);
    assert_true(n_held >= 10);
}

/* The last step of a plan is like those that a longer run goes on with. */
TEST(steps_go_on_as_planned) {
    uint64_t bits = 3;
    double worst = 0;
    for (size_t i = 0; i < (TEST_IS_SLOW ? 20 : 100); i++) {
        box_t box;
        zr_run_plan_t plan, longer;
        draw(&bits, &box);
        zr_run_request_t run = box.run;
        zr_config_t *config = &run.config;
        config->host_memory_bytes = config->device_memory_bytes = ZR_CONFIG_NO_BUDGET;
        config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
        run.hardware.host_memory_bytes = run.hardware.disk_bytes = ZR_RUN_ENOUGH_BYTES;
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), ".");
        config->offload_optimizer.device = (zr_offload_device_t)below(&bits, 3);
        if (config->stage == 3)
            config->offload_param.device = (zr_offload_device_t)below(&bits, 3);
        run.n_steps = zr_run_steps_of_plan(config->stage);
        assert_ok(zr_run_plan(&run, &plan));
        run.n_steps += 1 + below(&bits, 3);
        assert_ok(zr_run_plan(&run, &longer));
        worst = fmax(worst, fabs(plan.step_seconds / longer.step_seconds - 1));
    }
    print_message("at most %.3g off\n", worst);
    assert_true(worst < 1e-9);
}

const test_group_t test_group = {NULL, NULL};
