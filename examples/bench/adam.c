/*
 * zero-bench adam: elements per second of the fused AdamW step, against a streaming loop of
 * the same reads and writes on the same arrays and as many threads. The two take turns, so
 * that whatever else the machine does meets both.
 */

#include "examples/bench/adam.h"

#define MAX_THREADS 1024
#define MAX_ELEMS ((size_t)1 << 36)
#define DEFAULT_ELEMS ((size_t)20000003)

/* ---- options -------------------------------------------------------------------------- */

enum {
    KEY_ELEMS = BENCH_KEY_FIRST_OWN,
    KEY_THREADS,
    KEY_DTYPE,
    KEY_ISA,
    KEY_SECONDS,
    KEY_OFFLOAD,
    KEY_PATH,
    KEY_SUB_GROUP,
    KEY_BUFFERS,
    KEY_VERIFY
};

static const struct argp_option option_table[] = {
    {"elems", KEY_ELEMS, "N", 0, "elements of each array (default 20000003)", 0},
    {"threads", KEY_THREADS, "N", 0, "threads of the device and of the loop (default: all cores)",
     0},
    {"dtype", KEY_DTYPE, "NAME", 0, "of gradients and parameters: fp32 (default) or bf16", 0},
    {"isa", KEY_ISA, "NAME", 0, "of the step: avx512, avx2, baseline (default: the best here)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "measure for about so long (default 2)", 0},
    {"offload", KEY_OFFLOAD, "PLACE", 0,
     "measure updates of state that is offloaded to cpu or nvme (default none; then --elems is "
     "4194304 if it is not given)",
     0},
    {"path", KEY_PATH, "DIR[,DIR...]", 0, "folders of --offload nvme (default: the current one)",
     0},
    {"sub-group", KEY_SUB_GROUP, "ELEMS", 0, "of what is offloaded (default 1048576)", 0},
    {"buffers", KEY_BUFFERS, "N", 0, "sub-groups in host memory, of --offload nvme (default 4)", 0},
    {"verify", KEY_VERIFY, "on|off", 0, "make and verify checksums (default on)", 0},
    BENCH_COMMON_OPTIONS,
    {0},
};

static zr_status_t take_option(int key, const char *value, void *options) {
    adam_options_t *o = options;
    static const char *const dtypes[] = {"fp32", "bf16"};
    static const char *const isas[] = {"avx512", "avx2", "baseline"};
    static const char *const places[] = {"none", "cpu", "nvme"}, *const switches[] = {"off", "on"};
    size_t choice = 0;
    switch (key) {
    case KEY_OFFLOAD:
        ZR_TRY(args_choice("--offload", value, places, 3, o->log, &choice));
        o->offload = (zr_offload_device_t)choice;
        return ZR_OK;
    case KEY_PATH:
        o->nvme_given = "--path";
        o->paths = value;
        return ZR_OK;
    case KEY_SUB_GROUP:
        return args_count("--sub-group", value, 1, MAX_ELEMS, o->log, &o->sub_group_elems);
    case KEY_BUFFERS:
        o->nvme_given = "--buffers";
        return args_count("--buffers", value, 1, ZR_SWAP_MAX_BUFFERS, o->log, &o->n_buffers);
    case KEY_VERIFY:
        o->nvme_given = "--verify";
        ZR_TRY(args_choice("--verify", value, switches, 2, o->log, &choice));
        o->verify = choice == 1;
        return ZR_OK;
    case KEY_ELEMS:
        return args_count("--elems", value, 1, MAX_ELEMS, o->log, &o->n_elems);
    case KEY_THREADS:
        return args_count("--threads", value, 1, MAX_THREADS, o->log, &o->n_threads);
    case KEY_DTYPE:
        ZR_TRY(args_choice("--dtype", value, dtypes, 2, o->log, &choice));
        o->dtype = choice == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16;
        return ZR_OK;
    case KEY_ISA:
        ZR_TRY(args_choice("--isa", value, isas, 3, o->log, &choice));
        o->isa = isas[choice];
        return ZR_OK;
    case KEY_SECONDS:
        return args_number("--seconds", value, 0.0, 3600.0, o->log, &o->seconds);
    }
    return ZR_ERR_UNSUPPORTED;
}

static const bench_parser_t parser = {
    .name = "adam",
    .options = option_table,
    .take = take_option,
    .doc = "Elements per second of the AdamW step, against a streaming loop of the same reads and "
           "writes in the same run."};

/* ---- what is measured ---------------------------------------------------------------------- */

/* Arrays that begin at the same place of a page, or a power of two apart, compete for the same
 * places in caches; in a runtime they seldom do. */
static size_t array_bytes(size_t n_elems, size_t granule) {
    size_t skew_bytes = 5 * granule + 832;
    return (n_elems * sizeof(float) + skew_bytes + 63) / 64 * 64;
}

static zr_status_t make_arrays(adam_bench_t *bench, const adam_options_t *options) {
    size_t granule = zr_device_info(bench->device)->granule_bytes;
    size_t each = array_bytes(options->n_elems, granule), n = options->n_elems;
    bench->range_bytes = (5 * each + granule - 1) / granule * granule;
    ZR_TRY(zr_range_reserve(bench->device, ZR_TIER_DEVICE, bench->range_bytes, &bench->range));
    ZR_TRY(zr_range_map(bench->device, ZR_TIER_DEVICE, bench->range, 0, bench->range_bytes));
    char *base = bench->range;
    bench->args = (zr_adamw_t){.n_elems = n,
                               .master = (float *)base,
                               .m = (float *)(base + each),
                               .v = (float *)(base + 2 * each),
                               .grad = base + 3 * each,
                               .param = base + 4 * each,
                               .grad_dtype = options->dtype,
                               .param_dtype = options->dtype,
                               .grad_scale = 0.5f,
                               .lr = 1e-4f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .epsilon = 1e-8f,
                               .weight_decay = 0.1f,
                               .step = 1};
    ZR_TRY(zr_kernel_fill(bench->queue, bench->args.master, ZR_DTYPE_F32, n, 0.5f));
    ZR_TRY(zr_kernel_fill(bench->queue, bench->args.m, ZR_DTYPE_F32, n, 0.0f));
    ZR_TRY(zr_kernel_fill(bench->queue, bench->args.v, ZR_DTYPE_F32, n, 0.0f));
    ZR_TRY(zr_kernel_fill(bench->queue, base + 3 * each, options->dtype, n, 0.01f));
    ZR_TRY(zr_kernel_fill(bench->queue, bench->args.param, options->dtype, n, 0.5f));
    return zr_stream_synchronize(bench->queue);
}

static zr_status_t make_stream(adam_bench_t *bench, const adam_options_t *options) {
    stream_arrays_t arrays = {.n_elems = options->n_elems,
                              .a = bench->args.master,
                              .b = bench->args.m,
                              .c = bench->args.v,
                              .grad = bench->args.grad,
                              .param = bench->args.param,
                              .half = options->dtype == ZR_DTYPE_BF16};
    int n_threads = zr_device_info(bench->device)->n_threads;
    bench->stream = stream_create(&arrays, n_threads);
    return bench->stream != NULL ? ZR_OK
                                 : zr_fail(options->log, ZR_ERR_MEMORY,
                                           "no memory for a loop on %d threads", n_threads);
}

zr_status_t adam_set_up(adam_bench_t *bench, const adam_options_t *options) {
    zr_device_options_t device_options = zr_device_options_default();
    device_options.log = *options->log;
    device_options.n_threads = (int)options->n_threads;
    device_options.isa = options->isa;
    ZR_TRY(zr_device_open("host", &device_options, &bench->device));
    ZR_TRY(zr_stream_create(bench->device, "bench", &bench->queue));
    ZR_TRY(make_arrays(bench, options));
    return make_stream(bench, options);
}

void adam_tear_down(adam_bench_t *bench) {
    bench_times_free(&bench->adam_times);
    bench_times_free(&bench->stream_times);
    stream_destroy(&bench->stream);
    zr_stream_destroy(&bench->queue);
    if (bench->device != NULL)
        zr_range_release(bench->device, ZR_TIER_DEVICE, &bench->range, bench->range_bytes);
    zr_device_close(&bench->device);
}

zr_status_t adam_time(adam_bench_t *bench, double *seconds_p) {
    double begin = bench_seconds();
    ZR_TRY(zr_kernel_adamw(bench->queue, &bench->args));
    ZR_TRY(zr_stream_synchronize(bench->queue));
    *seconds_p = bench_seconds() - begin;
    bench->args.step++;
    return ZR_OK;
}

static double time_stream(adam_bench_t *bench) {
    double begin = bench_seconds();
    stream_run(bench->stream);
    return bench_seconds() - begin;
}

/* Both in turns; the first round, which meets cold memory, does not count. */
static zr_status_t measure(adam_bench_t *bench, const adam_options_t *options) {
    double end = bench_seconds() + options->seconds, seconds = 0.0;
    ZR_TRY(adam_time(bench, &seconds));
    time_stream(bench);
    while (bench->adam_times.n_times < ADAM_MIN_ROUNDS || bench_seconds() < end) {
        ZR_TRY(adam_time(bench, &seconds));
        if (!bench_times_add(&bench->adam_times, seconds) ||
            !bench_times_add(&bench->stream_times, time_stream(bench)))
            return zr_fail(options->log, ZR_ERR_MEMORY, "no memory for %zu times",
                           2 * bench->adam_times.n_times);
    }
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *describe_loop(double seconds, const zr_adamw_t *args) {
    json_t *object = json_object();
    if (json_put(object, "seconds", json_number(seconds)) &&
        json_put(object, "elems_per_s", json_number((double)args->n_elems / seconds)) &&
        json_put(object, "bytes_per_s", json_number(zr_adamw_cost(args).bytes / seconds)))
        return object;
    json_decref(object);
    return NULL;
}

static void print_for_people(const adam_bench_t *bench, const adam_options_t *options, double adam,
                             double stream) {
    double n_elems = (double)options->n_elems, bytes = zr_adamw_cost(&bench->args).bytes;
    fprintf(stderr, "%s\n%zu elements, %s gradients and parameters, median of %zu rounds\n",
            zr_device_info(bench->device)->description, options->n_elems,
            zr_dtype_name(options->dtype), bench->adam_times.n_times);
    fprintf(stderr, "  adam    %8.1f million elements/s  %6.2f GB/s\n", 1e-6 * n_elems / adam,
            1e-9 * bytes / adam);
    fprintf(stderr, "  stream  %8.1f million elements/s  %6.2f GB/s\n", 1e-6 * n_elems / stream,
            1e-9 * bytes / stream);
    fprintf(stderr, "  ratio   %8.3f\n", stream / adam);
}

static int report(adam_bench_t *bench, const adam_options_t *options) {
    const zr_device_info_t *info = zr_device_info(bench->device);
    double adam = bench_times_median(&bench->adam_times);
    double stream = bench_times_median(&bench->stream_times);
    print_for_people(bench, options, adam, stream);
    if (!options->common.json)
        return BENCH_MEASURED;
    json_t *object = json_object();
    if (json_put(object, "command", json_string("adam")) &&
        json_put(object, "device", json_string(info->description)) &&
        json_put(object, "threads", json_count((uint64_t)info->n_threads)) &&
        json_put(object, "dtype", json_string(zr_dtype_name(options->dtype))) &&
        json_put(object, "elems", json_count(options->n_elems)) &&
        json_put(object, "rounds", json_count(bench->adam_times.n_times)) &&
        json_put(object, "adam", describe_loop(adam, &bench->args)) &&
        json_put(object, "stream", describe_loop(stream, &bench->args)) &&
        json_put(object, "ratio", json_number(stream / adam)))
        return bench_print(object, options->log);
    json_decref(object);
    return bench_print(NULL, options->log);
}

/* What is said about offload that is not measured is a slip. */
static zr_status_t check_offload(const adam_options_t *o) {
    if (o->offload != ZR_OFFLOAD_NVME && o->nvme_given != NULL)
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "%s means something with --offload nvme only",
                       o->nvme_given);
    if (o->offload == ZR_OFFLOAD_NONE && o->sub_group_elems > 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--sub-group means something with --offload cpu or nvme only");
    return ZR_OK;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    adam_options_t options = {
        .dtype = ZR_DTYPE_F32, .seconds = 2.0, .paths = ".", .verify = true, .log = log};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (check_offload(&options) != ZR_OK)
        return BENCH_BAD_INPUT;
    if (options.offload != ZR_OFFLOAD_NONE)
        return adam_offload_run(&options);
    if (options.n_elems == 0)
        options.n_elems = DEFAULT_ELEMS;

    adam_bench_t bench = {0};
    zr_status_t status = adam_set_up(&bench, &options);
    if (status == ZR_OK)
        status = measure(&bench, &options);
    bool is_bad_input = status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_ARGUMENT;
    code = is_bad_input ? BENCH_BAD_INPUT : BENCH_FAILED;
    if (status == ZR_OK)
        code = report(&bench, &options);
    adam_tear_down(&bench);
    return code;
}

const bench_command_t bench_adam = {
    .name = "adam",
    .summary = "AdamW elements/s against a streaming loop of the same reads and writes",
    .run = run};
