/*
 * zero-bench adam --offload: the update of state in host memory or on NVMe, as a step of the
 * runtime makes it, against the larger of two limits that are measured in the same run: its bytes
 * at the bandwidth that the store reaches when nothing is computed, and its elements at the rate
 * that the step reaches in memory. All three take turns, because shared drives swing.
 */
#include <math.h>
#include <string.h>

#include "examples/bench/adam.h"
#include "examples/bench/io_run.h"

#define DEFAULT_ELEMS ((size_t)4 << 20)
#define N_UNITS 4 /* as a model has them: a sub-group ends with its unit */

/* What takes turns. Processor time of the update is that of the step, with the norm. */
enum { UPDATE, ADAM, IO, N_PARTS };

/* How long it took. */
typedef struct spent {
    double seconds, cpu_seconds;
} spent_t;

typedef struct offload_bench {
    const adam_options_t *options;
    size_t n_elems; /* of all units */
    adam_bench_t memory;
    io_store_t *io; /* NULL without NVMe */
    bench_folders_t folders;

    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_unit_t *units[N_UNITS];
    zr_param_t *params[N_UNITS];
    bench_times_t times[N_PARTS], cpu_times[N_PARTS];
} offload_bench_t;

/* ---- the runtime ---------------------------------------------------------------------------- */

/* Of the optimizer, of all units. */
static size_t state_bytes(const offload_bench_t *b) {
    zr_update_rule_t rule = zr_update_rule_in(&b->options->type->rule, b->options->state);
    return zr_state_bytes(&rule, b->n_elems);
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = 0.5f + 1e-6f * (float)((first + i) % 1000);
}

static zr_status_t make_config(const adam_options_t *o, zr_config_t *config) {
    *config = zr_config_default();
    config->dtype = o->dtype;
    zr_config_set_optimizer(config, o->type);
    config->state_form = o->state;
    config->offload_optimizer.device = o->offload;
    config->nvme.verify = o->verify;
    if (o->sub_group_elems > 0)
        config->sub_group_elems = o->sub_group_elems;
    if (o->n_buffers > 0)
        config->offload_optimizer.n_buffers = o->n_buffers;
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", o->paths);
    return zr_config_resolve(config, 1, o->on.common.log);
}

static zr_status_t add_unit(offload_bench_t *b, size_t number) {
    char name[32];
    size_t first = b->n_elems * number / N_UNITS, end = b->n_elems * (number + 1) / N_UNITS;
    snprintf(name, sizeof(name), "unit %zu", number);
    zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {end - first}, .fill = fill};
    ZR_TRY(zr_runtime_add_unit(b->runtime, name, &b->units[number]));
    return zr_unit_add_param(b->units[number], &desc, &b->params[number]);
}

static zr_status_t make_runtime(offload_bench_t *b) {
    zr_config_t config;
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = *b->options->on.common.log;
    ZR_TRY(make_config(b->options, &config));
    ZR_TRY(zr_comm_create_threads(1, &comm_options, &b->comm));
    ZR_TRY(zr_runtime_create(&config, b->comm, b->memory.on.device, b->options->on.common.log,
                             &b->runtime));
    for (size_t i = 0; i < N_UNITS; i++)
        ZR_TRY(add_unit(b, i));
    return zr_runtime_commit(b->runtime);
}

static zr_status_t make_gradients(offload_bench_t *b, size_t number) {
    void *grad = NULL;
    bool accumulate = false;
    zr_stream_t *stream = zr_runtime_stream(b->runtime);
    ZR_TRY(zr_unit_acquire(b->units[number], ZR_GRADIENTS));
    ZR_TRY(zr_param_grad(b->params[number], &grad, &accumulate));
    ZR_TRY(zr_kernel_fill(stream, grad, b->options->dtype, zr_param_n_elems(b->params[number]),
                          0.01f));
    ZR_TRY(zr_unit_reduce(b->units[number]));
    return zr_unit_release(b->units[number]);
}

static zr_status_t time_update(offload_bench_t *b, spent_t *spent_p) {
    zr_offload_report_t before, after;
    ZR_TRY(zr_runtime_begin_micro_batch(b->runtime));
    for (size_t i = 0; i < N_UNITS; i++)
        ZR_TRY(make_gradients(b, i));
    zr_runtime_offload(b->runtime, &before);
    double cpu_begin = bench_cpu_seconds();
    ZR_TRY(zr_runtime_step(b->runtime, NULL));
    spent_p->cpu_seconds = bench_cpu_seconds() - cpu_begin;
    zr_runtime_offload(b->runtime, &after);
    spent_p->seconds = after.update_seconds - before.update_seconds;
    return ZR_OK;
}

static zr_status_t time_adam(offload_bench_t *b, spent_t *spent_p) {
    double cpu_begin = bench_cpu_seconds();
    ZR_TRY(adam_time(&b->memory, &spent_p->seconds));
    spent_p->cpu_seconds = bench_cpu_seconds() - cpu_begin;
    return ZR_OK;
}

/* ---- the store alone ------------------------------------------------------------------------ */

/* With the settings that the runtime has, and as many bytes, rounded up to whole requests. */
static zr_status_t open_io(offload_bench_t *b) {
    zr_store_options_t usual = zr_store_options_default();
    io_setting_t setting = {.request_bytes = usual.request_bytes,
                            .depth = usual.depth,
                            .submit_batch = usual.submit_batch,
                            .n_files = 1};
    io_place_t place = {.verify = b->options->verify, .log = *b->options->on.common.log};
    if (b->options->offload != ZR_OFFLOAD_NVME)
        return ZR_OK;
    place.n_paths = b->folders.n;
    memcpy(place.paths, b->folders.paths, sizeof(place.paths));
    size_t unit = setting.request_bytes, size_bytes = state_bytes(b);
    place.size_bytes = (size_bytes + unit - 1) / unit * unit;
    return io_store_open(&place, &setting, &b->io);
}

static zr_status_t time_io(offload_bench_t *b, spent_t *spent_p) {
    io_speed_t speed;
    uint64_t n_bytes = 2 * state_bytes(b);
    ZR_TRY(io_store_pass(b->io, IO_MIXED, n_bytes, &speed));
    *spent_p = (spent_t){.seconds = (double)n_bytes / speed.bytes_per_s,
                         .cpu_seconds = (double)n_bytes * speed.cpu_seconds_per_byte};
    return ZR_OK;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static zr_status_t set_up(offload_bench_t *b) {
    if (b->options->offload == ZR_OFFLOAD_NVME)
        ZR_TRY(bench_folders("--path", b->options->paths, b->options->on.common.log, &b->folders));
    adam_options_t memory_options = *b->options;
    b->n_elems = b->options->n_elems > 0 ? b->options->n_elems : DEFAULT_ELEMS;
    memory_options.n_elems = b->n_elems;
    ZR_TRY(adam_set_up(&b->memory, &memory_options));
    ZR_TRY(make_runtime(b));
    return open_io(b);
}

static void tear_down(offload_bench_t *b) {
    for (int part = 0; part < N_PARTS; part++) {
        bench_times_free(&b->times[part]);
        bench_times_free(&b->cpu_times[part]);
    }
    io_store_close(&b->io);
    zr_runtime_destroy(&b->runtime);
    zr_comm_destroy(&b->comm);
    adam_tear_down(&b->memory);
}

static zr_status_t run_round(offload_bench_t *b, bool counts) {
    const zr_log_t *log = b->options->on.common.log;
    spent_t spent[N_PARTS] = {{0}};
    ZR_TRY(time_update(b, &spent[UPDATE]));
    if (b->io != NULL)
        ZR_TRY(time_io(b, &spent[IO]));
    ZR_TRY(time_adam(b, &spent[ADAM]));
    for (int part = 0; part < N_PARTS && counts; part++) {
        ZR_TRY(bench_times_add(&b->times[part], spent[part].seconds, log));
        ZR_TRY(bench_times_add(&b->cpu_times[part], spent[part].cpu_seconds, log));
    }
    return ZR_OK;
}

static zr_status_t measure(offload_bench_t *b) {
    double end = bench_seconds() + b->options->on.seconds;
    ZR_TRY(run_round(b, false)); /* it meets cold memory */
    while (b->times[UPDATE].n_times < ADAM_MIN_ROUNDS || bench_seconds() < end)
        ZR_TRY(run_round(b, true));
    return ZR_OK;
}

/* ---- the report ----------------------------------------------------------------------------- */

static json_t *describe(offload_bench_t *b) {
    static const char *const names[N_PARTS][2] = {{"update_seconds", "step_cpu_seconds"},
                                                  {"adam_seconds", "adam_cpu_seconds"},
                                                  {"io_seconds", "io_cpu_seconds"}};
    const zr_device_info_t *info = zr_device_info(b->memory.on.device);
    double seconds[N_PARTS];
    zr_offload_report_t moved;
    json_t *object = json_object();
    zr_runtime_offload(b->runtime, &moved);
    JSON_PUT(&object, {"command", json_string("adam")},
             {"offload", json_string(b->io != NULL ? "nvme" : "cpu")},
             {"device", json_string(info->description)},
             {"threads", json_count((uint64_t)info->n_threads)},
             {"dtype", json_string(zr_dtype_name(b->options->dtype))},
             {"state", json_string(zr_state_form_name(b->options->state))},
             {"elems", json_count(b->n_elems)},
             {"largest_group_elems", json_count(moved.largest_group_elems)},
             {"buffers", json_count(zr_runtime_config(b->runtime)->offload_optimizer.n_buffers)},
             {"rounds", json_count(b->times[UPDATE].n_times)});
    for (int part = 0; part < N_PARTS; part++) {
        seconds[part] = bench_times_median(&b->times[part]);
        if (part == IO && b->io == NULL)
            continue;
        JSON_PUT(&object, {names[part][0], json_number(seconds[part])},
                 {names[part][1], json_number(bench_times_median(&b->cpu_times[part]))});
    }
    if (b->io != NULL)
        json_put(&object, "io_bytes_per_s", json_number(2 * (double)state_bytes(b) / seconds[IO]));
    json_put(&object, "ratio", json_number(seconds[UPDATE] / fmax(seconds[IO], seconds[ADAM])));
    return object;
}

int adam_offload_run(const adam_options_t *options) {
    offload_bench_t bench = {.options = options};
    zr_status_t status = set_up(&bench);
    ZR_THEN(status, measure(&bench));
    int code = status == ZR_OK ? bench_report(&options->on.common, describe(&bench), COMMAND_DONE)
                               : command_code(status);
    tear_down(&bench);
    return code;
}
