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

#define AT(member) .offset = offsetof(options_t, shape.member), .type = ZR_OPTION_COUNT, .least = 1

static const zr_option_t rows[] = {
    {"tokens", AT(n_rows), .most = MAX_COUNT, .arg = "N", .help = "rows of the arrays"},
    {"channels", AT(channels), .most = 65536, .arg = "C", .help = "columns of the arrays"},
    {"vocab", AT(vocab), .most = 1 << 24, .arg = "V", .help = "rows of the table of tokens"},
    {"dtype", .offset = offsetof(options_t, shape.dtype), .type = ZR_OPTION_CHOICE,
     .choices = command_dtypes, .help = "of parameters"}};

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

static json_t *describe_kernel(const char *name, pair_t *pair) {
    figures_t figures = figures_of(pair);
    return JSON_OBJECT({"name", json_string(name)}, {"bytes", json_number(pair->kernel.cost.bytes)},
                       {"seconds", json_number(figures.seconds)},
                       {"bytes_per_s", json_number(figures.bytes_per_s)},
                       {"copy_bytes_per_s", json_number(figures.copy_bytes_per_s)},
                       {"ratio", json_number(figures.ratio)});
}

static json_t *describe(const memory_kernels_t *b, pair_t *pairs) {
    json_t *object = json_object(), *list = json_array();
    double least = figures_of(&pairs[0]).ratio;
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++) {
        double ratio = figures_of(&pairs[i]).ratio;
        least = ratio < least ? ratio : least;
        json_append(&list, describe_kernel(memory_kernels_all[i].name, &pairs[i]));
    }
    JSON_PUT(&object, {"kernels", list}, {"command", json_string("kernels")},
             {"device", json_string(zr_device_info(b->on->device)->description)},
             {"dtype", json_string(zr_dtype_name(b->param_dtype))},
             {"activation_dtype", json_string(zr_dtype_name(b->activation_dtype))},
             {"tokens", json_count(b->n_rows)}, {"channels", json_count(b->channels)},
             {"vocab", json_count(b->vocab)}, {"rounds", json_count(pairs[0].kernel.times.n_times)},
             {"ratio", json_number(least)});
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(void *options) {
    const options_t *o = options;
    memory_kernels_t bench = {0};
    on_device_t on = {0};
    pair_t pairs[N_MEMORY_KERNELS] = {0};
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++) {
        pairs[i].kernel = (work_t){.queue = memory_kernels_all[i].queue, .context = &bench};
        pairs[i].copy = (work_t){.queue = memory_kernels_copy, .context = &bench};
    }
    zr_status_t status = on_device_open(&o->on, &on);
    ZR_THEN(status, memory_kernels_make(&on, &o->shape, &bench));
    if (status == ZR_OK)
        status = works_measure(&pairs[0].kernel, 2 * N_MEMORY_KERNELS, on.stream, o->on.seconds);
    int code = status == ZR_OK ? bench_report(&o->on.common, describe(&bench, pairs), COMMAND_DONE)
                               : command_code(status);
    works_free(&pairs[0].kernel, 2 * N_MEMORY_KERNELS);
    on_device_close(&on);
    return code;
}

static const options_t defaults = {
    .on = ON_DEVICE_DEFAULTS,
    .shape = {.n_rows = 16384, .channels = 768, .vocab = 50257, .dtype = ZR_DTYPE_F32}};

const command_t bench_kernels = {
    .name = "kernels",
    .summary = "bytes/s of the kernels that memory bounds, against the device's own copy",
    .doc = "Bytes per second of the kernels that memory bounds, against the device's own copy in "
           "the same run.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .base = &on_device_table,
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
