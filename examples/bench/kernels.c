/*
 * zero-bench kernels: bytes per second of the kernels that move memory and hardly compute, against
 * the device's own copy in the same run: kernel and copy take turns. Bytes are those that a kernel
 * has to read and write, as it charges them to its stream.
 */
#include "examples/bench/memory_kernels.h"

#define MAX_COUNT ((size_t)1 << 31)

typedef struct options {
    on_device_options_t on;
    memory_kernels_shape_t shape;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static const command_option_t option_table[] = {
    {"tokens", "N", "rows of the arrays (default 16384)", COMMAND_COUNT,
     .field = offsetof(options_t, shape.n_rows), 1, MAX_COUNT},
    {"channels", "C", "columns of the arrays (default 768)", COMMAND_COUNT,
     .field = offsetof(options_t, shape.channels), 1, 65536},
    {"vocab", "V", "rows of the table of tokens (default 50257)", COMMAND_COUNT,
     .field = offsetof(options_t, shape.vocab), 1, 1 << 24},
    {"dtype", "NAME", "of parameters: fp32 (default) or bf16", COMMAND_DTYPE,
     .field = offsetof(options_t, shape.dtype)},
    ON_DEVICE_OPTIONS,
    {0},
};

static const bench_parser_t parser = {
    .name = "kernels",
    .options = option_table,
    .doc = "Bytes per second of the kernels that memory bounds, against the device's own copy in "
           "the same run."};

/* ---- the report -------------------------------------------------------------------------- */

/* A kernel, and the copy that took turns with it. */
typedef struct pair {
    work_t kernel, copy;
} pair_t;

typedef struct figures {
    double seconds, bytes_per_s, copy_bytes_per_s, ratio;
} figures_t;

static figures_t figures_of(pair_t *pair) {
    figures_t figures = {.seconds = bench_times_median(&pair->kernel.times)};
    figures.bytes_per_s = pair->kernel.cost.bytes / figures.seconds;
    figures.copy_bytes_per_s = pair->copy.cost.bytes / bench_times_median(&pair->copy.times);
    figures.ratio = figures.bytes_per_s / figures.copy_bytes_per_s;
    return figures;
}

static void print_for_people(const memory_kernels_t *b, pair_t *pairs) {
    fprintf(stderr, "%s\n%zu x %zu, %s parameters, %s activations, median of %s\n",
            zr_device_info(b->on->device)->description, b->n_rows, b->channels,
            zr_dtype_name(b->param_dtype), zr_dtype_name(b->activation_dtype),
            zr_count_text(pairs[0].kernel.times.n_times, "round").text);
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++) {
        figures_t figures = figures_of(&pairs[i]);
        fprintf(stderr, "  %-20s %9.1f us  %8.2f GB/s  copy %8.2f GB/s  ratio %6.3f\n",
                memory_kernels_all[i].name, 1e6 * figures.seconds, 1e-9 * figures.bytes_per_s,
                1e-9 * figures.copy_bytes_per_s, figures.ratio);
    }
}

static json_t *describe_kernel(const char *name, pair_t *pair) {
    figures_t figures = figures_of(pair);
    json_t *object = json_object();
    json_put(&object, "name", json_string(name));
    json_put(&object, "bytes", json_number(pair->kernel.cost.bytes));
    json_put(&object, "seconds", json_number(figures.seconds));
    json_put(&object, "bytes_per_s", json_number(figures.bytes_per_s));
    json_put(&object, "copy_bytes_per_s", json_number(figures.copy_bytes_per_s));
    json_put(&object, "ratio", json_number(figures.ratio));
    return object;
}

static json_t *describe(const memory_kernels_t *b, pair_t *pairs) {
    json_t *object = json_object(), *list = json_array();
    double least = figures_of(&pairs[0]).ratio;
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++) {
        double ratio = figures_of(&pairs[i]).ratio;
        least = ratio < least ? ratio : least;
        json_append(&list, describe_kernel(memory_kernels_all[i].name, &pairs[i]));
    }
    json_put(&object, "kernels", list);
    json_put(&object, "command", json_string("kernels"));
    json_put(&object, "device", json_string(zr_device_info(b->on->device)->description));
    json_put(&object, "dtype", json_string(zr_dtype_name(b->param_dtype)));
    json_put(&object, "activation_dtype", json_string(zr_dtype_name(b->activation_dtype)));
    json_put(&object, "tokens", json_count(b->n_rows));
    json_put(&object, "channels", json_count(b->channels));
    json_put(&object, "vocab", json_count(b->vocab));
    json_put(&object, "rounds", json_count(pairs[0].kernel.times.n_times));
    json_put(&object, "ratio", json_number(least));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {
        .on = on_device_options_default(log),
        .shape = {.n_rows = 16384, .channels = 768, .vocab = 50257, .dtype = ZR_DTYPE_F32}};
    memory_kernels_t bench = {0};
    on_device_t on = {0};
    pair_t pairs[N_MEMORY_KERNELS] = {0};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.on.common, &code))
        return code;
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++) {
        pairs[i].kernel = (work_t){.queue = memory_kernels_all[i].queue, .context = &bench};
        pairs[i].copy = (work_t){.queue = memory_kernels_copy, .context = &bench};
    }
    zr_status_t status = on_device_open(&options.on, &on);
    if (status == ZR_OK)
        status = memory_kernels_make(&on, &options.shape, &bench);
    if (status == ZR_OK)
        status =
            works_measure(&pairs[0].kernel, 2 * N_MEMORY_KERNELS, on.stream, options.on.seconds);
    code = on_device_exit_code(status);
    if (status == ZR_OK)
        print_for_people(&bench, pairs);
    if (status == ZR_OK && options.on.common.json)
        code = command_print(describe(&bench, pairs), BENCH_MEASURED, log);
    works_free(&pairs[0].kernel, 2 * N_MEMORY_KERNELS);
    on_device_close(&on);
    return code;
}

const bench_command_t bench_kernels = {
    .name = "kernels",
    .summary = "bytes/s of the kernels that memory bounds, against the device's own copy",
    .run = run};
