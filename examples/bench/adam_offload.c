/*
 * zero-bench adam --offload: the update of state in host memory or on NVMe, as a step of the
 * runtime makes it, against the larger of two limits that are measured in the same run: its bytes
 * at the bandwidth that the store reaches when nothing is computed, and its elements at the rate
 * that the step reaches in memory. All three take turns, because shared drives swing.
 */
#include <stdlib.h>
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
    char *paths;    /* copy of the option, cut at commas */
    const char *folders[IO_MAX_FILES];
    size_t n_folders;

    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_unit_t *units[N_UNITS];
    zr_param_t *params[N_UNITS];
    bench_times_t times[N_PARTS], cpu_times[N_PARTS];
} offload_bench_t;

/* ---- the runtime -------------------------------------------------------------------------------
 */

/* Of the optimizer, of all units. */
static size_t state_bytes(const offload_bench_t *b) {
    return zr_state_bytes(&b->options->optimizer->rule, b->n_elems);
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = 0.5f + 1e-6f * (float)((first + i) % 1000);
}

static zr_status_t make_config(const adam_options_t *o, zr_config_t *config) {
    *config = zr_config_default();
    config->dtype = o->dtype;
    zr_config_set_optimizer(config, o->optimizer);
    config->offload_optimizer.device = o->offload;
    config->nvme.verify = o->verify;
    if (o->sub_group_elems > 0)
        config->sub_group_elems = o->sub_group_elems;
    if (o->n_buffers > 0)
        config->offload_optimizer.n_buffers = o->n_buffers;
    if (strlen(o->paths) >= sizeof(config->nvme.paths))
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "--path: %zu bytes; allowed are up to %zu",
                       strlen(o->paths), sizeof(config->nvme.paths) - 1);
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", o->paths);
    return zr_config_resolve(config, 1, o->log);
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
    comm_options.log = *b->options->log;
    ZR_TRY(make_config(b->options, &config));
    ZR_TRY(zr_comm_create_threads(1, &comm_options, &b->comm));
    ZR_TRY(zr_runtime_create(&config, b->comm, b->memory.on.device, b->options->log, &b->runtime));
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

/* ---- the store alone
 * ----------------------------------------------------------------------------- */

/* With the settings that the runtime has, and as many bytes, rounded up to whole requests. */
static zr_status_t open_io(offload_bench_t *b) {
    zr_store_options_t usual = zr_store_options_default();
    io_setting_t setting = {.request_bytes = usual.request_bytes,
                            .depth = usual.depth,
                            .submit_batch = usual.submit_batch,
                            .n_files = 1};
    io_place_t place = {.verify = b->options->verify, .log = *b->options->log};
    if (b->options->offload != ZR_OFFLOAD_NVME)
        return ZR_OK;
    place.n_paths = b->n_folders;
    memcpy(place.paths, b->folders, sizeof(place.paths));
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

/* ---- measuring
 * --------------------------------------------------------------------------------------- */

/* The folders of --path, which have to be there. */
static zr_status_t find_folders(offload_bench_t *b) {
    const adam_options_t *o = b->options;
    b->paths = strdup(o->paths);
    if (b->paths == NULL)
        return zr_fail(o->log, ZR_ERR_MEMORY, "no memory for --path");
    for (char *rest = b->paths, *path; (path = strsep(&rest, ",")) != NULL;) {
        if (path[0] == '\0' || b->n_folders == IO_MAX_FILES)
            return zr_fail(o->log, ZR_ERR_ARGUMENT,
                           "--path \"%s\": 1 to %d folders are possible, none of them empty",
                           o->paths, IO_MAX_FILES);
        ZR_TRY(bench_check_folder("--path", path, o->log));
        b->folders[b->n_folders++] = path;
    }
    return ZR_OK;
}

static zr_status_t set_up(offload_bench_t *b) {
    if (b->options->offload == ZR_OFFLOAD_NVME)
        ZR_TRY(find_folders(b));
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
    free(b->paths);
    zr_runtime_destroy(&b->runtime);
    zr_comm_destroy(&b->comm);
    adam_tear_down(&b->memory);
}

static zr_status_t run_round(offload_bench_t *b, bool counts) {
    spent_t spent[N_PARTS] = {{0}};
    ZR_TRY(time_update(b, &spent[UPDATE]));
    if (b->io != NULL)
        ZR_TRY(time_io(b, &spent[IO]));
    ZR_TRY(time_adam(b, &spent[ADAM]));
    for (int part = 0; part < N_PARTS && counts; part++) {
        if (!bench_times_add(&b->times[part], spent[part].seconds) ||
            !bench_times_add(&b->cpu_times[part], spent[part].cpu_seconds))
            return zr_fail(b->options->log, ZR_ERR_MEMORY, "no memory for times");
    }
    return ZR_OK;
}

static zr_status_t measure(offload_bench_t *b) {
    double end = bench_seconds() + b->options->seconds;
    ZR_TRY(run_round(b, false)); /* it meets cold memory */
    while (b->times[UPDATE].n_times < ADAM_MIN_ROUNDS || bench_seconds() < end)
        ZR_TRY(run_round(b, true));
    return ZR_OK;
}

/* ---- the report
 * --------------------------------------------------------------------------------------- */

typedef struct medians {
    spent_t of[N_PARTS]; /* IO 0: none */
    double ratio;        /* of the update to the larger of the others */
} medians_t;

static medians_t take_medians(offload_bench_t *b) {
    medians_t m;
    for (int part = 0; part < N_PARTS; part++)
        m.of[part] = (spent_t){.seconds = bench_times_median(&b->times[part]),
                               .cpu_seconds = bench_times_median(&b->cpu_times[part])};
    double io = m.of[IO].seconds, adam = m.of[ADAM].seconds;
    m.ratio = m.of[UPDATE].seconds / (io > adam ? io : adam);
    return m;
}

static void print_for_people(const offload_bench_t *b, const medians_t *m) {
    double n_elems = (double)b->n_elems, bytes = 2 * (double)state_bytes(b);
    const spent_t *update = &m->of[UPDATE], *adam = &m->of[ADAM], *io = &m->of[IO];
    fprintf(stderr, "%s\n%s on %s, %s gradients and parameters, median of %s\n",
            zr_device_info(b->memory.on.device)->description,
            zr_count_text(b->n_elems, "element").text, b->io != NULL ? "nvme" : "cpu",
            zr_dtype_name(b->options->dtype),
            zr_count_text(b->times[UPDATE].n_times, "round").text);
    fprintf(stderr,
            "  update        %8.1f ms  %8.1f million elements/s  %8.1f ms of processor, with the "
            "norm\n",
            1e3 * update->seconds, 1e-6 * n_elems / update->seconds, 1e3 * update->cpu_seconds);
    fprintf(stderr, "  adam alone    %8.1f ms  %8.1f million elements/s  %8.1f ms of processor\n",
            1e3 * adam->seconds, 1e-6 * n_elems / adam->seconds, 1e3 * adam->cpu_seconds);
    if (b->io != NULL)
        fprintf(stderr,
                "  bytes alone   %8.1f ms  %8.2f GB/s, read and written  %8.1f ms of processor\n",
                1e3 * io->seconds, 1e-9 * bytes / io->seconds, 1e3 * io->cpu_seconds);
    fprintf(stderr, "  ratio         %8.3f  of the update to the larger of these\n", m->ratio);
}

static void put_spent(json_t **object_p, const medians_t *m, bool with_io) {
    static const char *const names[N_PARTS][2] = {{"update_seconds", "step_cpu_seconds"},
                                                  {"adam_seconds", "adam_cpu_seconds"},
                                                  {"io_seconds", "io_cpu_seconds"}};
    for (int part = 0; part < (with_io ? N_PARTS : IO); part++) {
        json_put(object_p, names[part][0], json_number(m->of[part].seconds));
        json_put(object_p, names[part][1], json_number(m->of[part].cpu_seconds));
    }
}

static json_t *describe(const offload_bench_t *b, const medians_t *m) {
    const zr_device_info_t *info = zr_device_info(b->memory.on.device);
    json_t *object = json_object();
    json_put(&object, "command", json_string("adam"));
    json_put(&object, "offload", json_string(b->io != NULL ? "nvme" : "cpu"));
    json_put(&object, "device", json_string(info->description));
    json_put(&object, "threads", json_count((uint64_t)info->n_threads));
    json_put(&object, "dtype", json_string(zr_dtype_name(b->options->dtype)));
    json_put(&object, "elems", json_count(b->n_elems));
    const zr_config_t *config = zr_runtime_config(b->runtime);
    zr_offload_report_t moved;
    zr_runtime_offload(b->runtime, &moved);
    json_put(&object, "largest_group_elems", json_count(moved.largest_group_elems));
    json_put(&object, "buffers", json_count(config->offload_optimizer.n_buffers));
    json_put(&object, "rounds", json_count(b->times[UPDATE].n_times));
    put_spent(&object, m, b->io != NULL);
    if (b->io != NULL) {
        double bytes = 2 * (double)state_bytes(b);
        json_put(&object, "io_bytes_per_s", json_number(bytes / m->of[IO].seconds));
    }
    json_put(&object, "ratio", json_number(m->ratio));
    return object;
}

static int report(offload_bench_t *b) {
    medians_t m = take_medians(b);
    print_for_people(b, &m);
    return b->options->common.json ? command_print(describe(b, &m), BENCH_MEASURED, b->options->log)
                                   : BENCH_MEASURED;
}

int adam_offload_run(const adam_options_t *options) {
    offload_bench_t bench = {.options = options};
    int code = BENCH_FAILED;
    zr_status_t status = set_up(&bench);
    if (status == ZR_OK)
        status = measure(&bench);
    if (status == ZR_OK)
        code = report(&bench);
    else if (status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_ARGUMENT)
        code = BENCH_BAD_INPUT;
    tear_down(&bench);
    return code;
}
