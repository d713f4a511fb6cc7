/*
 * zero-bench adam: elements per second of the fused step of AdamW, or of another optimizer, on the
 * host against a streaming loop of the same reads and writes on the same arrays and as many
 * threads, on a GPU against its own copy of as many bytes. The two take turns, so that whatever
 * else the machine does meets both.
 */

#include "examples/bench/adam.h"

#include <string.h>

#include "examples/common/device.h"

#define MAX_ELEMS ((size_t)1 << 36)
#define DEFAULT_ELEMS ((size_t)20000003)

/* ---- options -------------------------------------------------------------------------- */

static zr_status_t take_offload(const char *value, void *options) {
    adam_options_t *o = options;
    static const char *const places[] = {"none", "cpu", "nvme"};
    size_t choice = 0;
    ZR_TRY(args_choice("--offload", value, places, 3, o->log, &choice));
    o->offload = (zr_offload_device_t)choice;
    return ZR_OK;
}

static zr_status_t take_isa(const char *value, void *options) {
    adam_options_t *o = options;
    static const char *const isas[] = {"avx512", "avx2", "baseline"};
    size_t choice = 0;
    ZR_TRY(args_choice("--isa", value, isas, 3, o->log, &choice));
    o->isa = isas[choice];
    return ZR_OK;
}

static zr_status_t take_optimizer(const char *value, void *options) {
    adam_options_t *o = options;
    static const char *const optimizers[] = {"adamw", "lion", "sgd"};
    size_t choice = 0;
    ZR_TRY(args_choice("--optimizer", value, optimizers, 3, o->log, &choice));
    o->optimizer = zr_optimizer_find(optimizers[choice]);
    return ZR_OK;
}

static const command_option_t option_table[] = {
    {"elems", "N", "elements of each array (default 20000003)", COMMAND_COUNT,
     .field = offsetof(adam_options_t, n_elems), 1, MAX_ELEMS},
    {"device", "host|cuda[:N]|auto", "where it runs (default host)", COMMAND_DEVICE,
     .field = offsetof(adam_options_t, device)},
    {"threads", "N", "threads of the host and of the loop (default: all cores)", COMMAND_COUNT,
     .field = offsetof(adam_options_t, n_threads), 1, ON_DEVICE_MAX_THREADS},
    {"dtype", "NAME", "of gradients and parameters: fp32 (default) or bf16", COMMAND_DTYPE,
     .field = offsetof(adam_options_t, dtype)},
    {"optimizer", "NAME", "adamw (default), lion or sgd", COMMAND_OTHER, .take = take_optimizer},
    {"isa", "NAME", "of the step: avx512, avx2, baseline (default: the best here)", COMMAND_OTHER,
     .take = take_isa},
    {"seconds", "S", "measure for about so long (default 2)", COMMAND_NUMBER,
     .field = offsetof(adam_options_t, seconds), 0, 3600},
    {"offload", "PLACE",
     "measure updates of state that is offloaded to cpu or nvme (default none; then --elems is "
     "4194304 if it is not given)",
     COMMAND_OTHER, .take = take_offload},
    {"path", "DIR[,DIR...]", "folders of --offload nvme (default: the current one)", COMMAND_TEXT,
     .field = offsetof(adam_options_t, paths), .given = offsetof(adam_options_t, path_given)},
    {"sub-group", "ELEMS", "of what is offloaded (default 1048576)", COMMAND_COUNT,
     .field = offsetof(adam_options_t, sub_group_elems), 1, MAX_ELEMS},
    {"buffers", "N", "sub-groups in host memory, of --offload nvme (default 4)", COMMAND_COUNT,
     .field = offsetof(adam_options_t, n_buffers), 1, ZR_SWAP_MAX_BUFFERS,
     .given = offsetof(adam_options_t, buffers_given)},
    {"verify", "on|off", "make and verify checksums (default on)", COMMAND_SWITCH,
     .field = offsetof(adam_options_t, verify), .given = offsetof(adam_options_t, verify_given)},
    {0},
};

static const bench_parser_t parser = {
    .name = "adam",
    .options = option_table,
    .doc = "Elements per second of an optimizer's step, against a streaming loop of the same reads "
           "and "
           "writes, on a GPU against its own copy of as many bytes, in the same run."};

/* ---- what is measured ---------------------------------------------------------------------- */

static zr_status_t queue_adam(void *context, zr_stream_t *stream) {
    adam_bench_t *bench = context;
    ZR_TRY(zr_kernel_update(stream, bench->rule, &bench->args));
    bench->args.step++;
    return ZR_OK;
}

/* The host's work is done when it has been queued, so that this comes in its turn. */
static zr_status_t queue_loop(void *context, zr_stream_t *stream) {
    adam_bench_t *bench = context;
    (void)stream;
    stream_run(bench->stream);
    return ZR_OK;
}

static size_t copied_bytes(const adam_bench_t *bench) {
    return (size_t)(zr_update_cost(bench->rule, &bench->args).bytes / 2.0);
}

static zr_status_t queue_copy(void *context, zr_stream_t *stream) {
    adam_bench_t *bench = context;
    return zr_copy_async(stream, bench->copy_to, bench->copy_from, copied_bytes(bench),
                         ZR_COPY_DEVICE_TO_DEVICE);
}

static zr_status_t fill_arrays(adam_bench_t *bench) {
    zr_stream_t *stream = bench->on.stream;
    const zr_update_t *args = &bench->args;
    size_t n = args->n_elems;
    ZR_TRY(zr_kernel_fill(stream, args->arrays[0], ZR_DTYPE_F32, n, 0.5f));
    for (size_t i = 1; i < bench->rule->n_arrays; i++)
        ZR_TRY(zr_kernel_fill(stream, args->arrays[i], ZR_DTYPE_F32, n, 0.0f));
    ZR_TRY(zr_kernel_fill(stream, (void *)args->grad, args->grad_dtype, n, 0.01f));
    ZR_TRY(zr_kernel_fill(stream, args->param, args->param_dtype, n, 0.5f));
    if (bench->copy_from != NULL)
        ZR_TRY(
            zr_kernel_fill(stream, bench->copy_from, ZR_DTYPE_BF16, copied_bytes(bench) / 2, 0.5f));
    return zr_stream_synchronize(stream);
}

static zr_status_t make_arrays(adam_bench_t *bench, const adam_options_t *options) {
    on_device_t *on = &bench->on;
    size_t n = options->n_elems, elem_bytes = zr_dtype_size(options->dtype);
    bool has_copy = !on_device_is_host(on);
    bench->rule = &options->optimizer->rule;
    bench->args = (zr_update_t){.n_elems = n,
                                .grad_dtype = options->dtype,
                                .param_dtype = options->dtype,
                                .grad_scale = 0.5f,
                                .lr = 1e-4f,
                                .weight_decay = 0.1f,
                                .step = 1};
    for (size_t i = 0; i < bench->rule->n_hypers; i++)
        bench->args.hyper[i] = (float)bench->rule->hypers[i].usual;
    size_t copy_bytes = has_copy ? copied_bytes(bench) : 0;
    ZR_TRY(on_device_map(on, bench->rule->n_arrays * on_device_array_bytes(n * sizeof(float)) +
                                 2 * on_device_array_bytes(n * elem_bytes) +
                                 2 * on_device_array_bytes(copy_bytes)));
    for (size_t i = 0; i < bench->rule->n_arrays; i++)
        bench->args.arrays[i] = on_device_take(on, n * sizeof(float));
    bench->args.grad = on_device_take(on, n * elem_bytes);
    bench->args.param = on_device_take(on, n * elem_bytes);
    if (has_copy) {
        bench->copy_from = on_device_take(on, copy_bytes);
        bench->copy_to = on_device_take(on, copy_bytes);
    }
    return fill_arrays(bench);
}

static zr_status_t make_stream(adam_bench_t *bench, const adam_options_t *options) {
    stream_arrays_t arrays = {.n_elems = options->n_elems,
                              .a = bench->args.arrays[0],
                              .b = bench->args.arrays[1],
                              .c = bench->args.arrays[2],
                              .grad = bench->args.grad,
                              .param = bench->args.param,
                              .half = options->dtype == ZR_DTYPE_BF16};
    int n_threads = zr_device_info(bench->on.device)->n_threads;
    bench->stream = stream_create(&arrays, n_threads);
    return bench->stream != NULL
               ? ZR_OK
               : zr_fail(options->log, ZR_ERR_MEMORY, "no memory for a loop on %s",
                         zr_count_text((uint64_t)n_threads, "thread").text);
}

zr_status_t adam_set_up(adam_bench_t *bench, const adam_options_t *options) {
    on_device_options_t on_options = on_device_options_default(options->log);
    on_options.device = options->device;
    on_options.n_threads = options->n_threads;
    on_options.isa = options->isa;
    ZR_TRY(on_device_open(&on_options, &bench->on));
    ZR_TRY(make_arrays(bench, options));
    bench->works[0] = (work_t){.queue = queue_adam, .context = bench};
    bench->works[1] = (work_t){.queue = queue_copy, .context = bench};
    if (bench->copy_from != NULL)
        return ZR_OK;
    bench->works[1].queue = queue_loop;
    return make_stream(bench, options);
}

void adam_tear_down(adam_bench_t *bench) {
    works_free(bench->works, 2);
    stream_destroy(&bench->stream);
    on_device_close(&bench->on);
}

zr_status_t adam_time(adam_bench_t *bench, double *seconds_p) {
    double begin = bench_seconds();
    ZR_TRY(queue_adam(bench, bench->on.stream));
    ZR_TRY(zr_stream_synchronize(bench->on.stream));
    *seconds_p = bench_seconds() - begin;
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *describe_loop(double seconds, const adam_bench_t *bench) {
    json_t *object = json_object();
    json_put(&object, "seconds", json_number(seconds));
    json_put(&object, "elems_per_s", json_number((double)bench->args.n_elems / seconds));
    json_put(&object, "bytes_per_s",
             json_number(zr_update_cost(bench->rule, &bench->args).bytes / seconds));
    return object;
}

/* What the step is measured against: "stream", the host's loop, or "copy". */
static const char *limit_name(const adam_bench_t *bench) {
    return bench->copy_from != NULL ? "copy" : "stream";
}

static void print_for_people(const adam_bench_t *bench, const adam_options_t *options, double adam,
                             double stream) {
    double n_elems = (double)options->n_elems,
           bytes = zr_update_cost(bench->rule, &bench->args).bytes;
    fprintf(stderr, "%s\n%s, %s gradients and parameters, median of %s\n",
            zr_device_info(bench->on.device)->description,
            zr_count_text(options->n_elems, "element").text, zr_dtype_name(options->dtype),
            zr_count_text(bench->works[0].times.n_times, "round").text);
    fprintf(stderr, "  adam    %8.1f million elements/s  %6.2f GB/s\n", 1e-6 * n_elems / adam,
            1e-9 * bytes / adam);
    fprintf(stderr, "  %-6s  %8.1f million elements/s  %6.2f GB/s\n", limit_name(bench),
            1e-6 * n_elems / stream, 1e-9 * bytes / stream);
    fprintf(stderr, "  ratio   %8.3f\n", stream / adam);
}

static int report(adam_bench_t *bench, const adam_options_t *options) {
    const zr_device_info_t *info = zr_device_info(bench->on.device);
    double adam = bench_times_median(&bench->works[0].times);
    double stream = bench_times_median(&bench->works[1].times);
    print_for_people(bench, options, adam, stream);
    if (!options->common.json)
        return BENCH_MEASURED;
    json_t *object = json_object();
    json_put(&object, "command", json_string("adam"));
    json_put(&object, "device", json_string(info->description));
    json_put(&object, "threads", json_count((uint64_t)info->n_threads));
    json_put(&object, "dtype", json_string(zr_dtype_name(options->dtype)));
    json_put(&object, "optimizer", json_string(options->optimizer->name));
    json_put(&object, "elems", json_count(options->n_elems));
    json_put(&object, "rounds", json_count(bench->works[0].times.n_times));
    json_put(&object, "adam", describe_loop(adam, bench));
    json_put(&object, limit_name(bench), describe_loop(stream, bench));
    json_put(&object, "ratio", json_number(stream / adam));
    return command_print(object, BENCH_MEASURED, options->log);
}

/* What is said about offload that is not measured is a slip. */
static zr_status_t check_offload(const adam_options_t *o) {
    if (o->offload != ZR_OFFLOAD_NONE && strcmp(o->device, "host") != 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--device %s: updates of offloaded state are measured on the host; leave "
                       "--device or --offload out",
                       o->device);
    const char *of_nvme = o->path_given      ? "--path"
                          : o->buffers_given ? "--buffers"
                          : o->verify_given  ? "--verify"
                                             : NULL;
    if (o->offload != ZR_OFFLOAD_NVME && of_nvme != NULL)
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "%s means something with --offload nvme only",
                       of_nvme);
    if (o->offload == ZR_OFFLOAD_NONE && o->sub_group_elems > 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--sub-group means something with --offload cpu or nvme only");
    return ZR_OK;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    adam_options_t options = {.device = "host",
                              .dtype = ZR_DTYPE_F32,
                              .optimizer = &zr_adamw,
                              .seconds = 2.0,
                              .paths = ".",
                              .verify = true,
                              .log = log};
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
        status = works_measure(bench.works, 2, bench.on.stream, options.seconds);
    code = status == ZR_OK ? report(&bench, &options) : on_device_exit_code(status);
    adam_tear_down(&bench);
    return code;
}

const bench_command_t bench_adam = {
    .name = "adam",
    .summary = "AdamW elements/s against what its reads and writes alone take",
    .run = run};
