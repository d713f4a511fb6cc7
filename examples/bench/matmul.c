/*
 * zero-bench matmul: operations per second of the products of a GPT layer, forward and backward, as
 * the model makes them, against the machine's own rate in the same run.
 */
#include <string.h>

#include "examples/bench/matrix_rate.h"
#include "examples/bench/products.h"

#define MAX_COUNT ((size_t)1 << 24)

typedef struct options {
    on_device_options_t on;
    size_t n_rows, channels, side;
    zr_dtype_t dtype;
} options_t;

typedef struct bench {
    on_device_t on;
    products_t of; /* a layer */
    matrix_rate_t *rate;
} bench_t;

/* ---- options -------------------------------------------------------------------------- */

static const command_option_t option_table[] = {
    {"tokens", "N", "rows of the activations (default 1024; on a GPU 16384)", COMMAND_COUNT,
     .field = offsetof(options_t, n_rows), 1, MAX_COUNT},
    {"channels", "C", "of the model (default 768)", COMMAND_COUNT,
     .field = offsetof(options_t, channels), 1, 65536},
    {"side", "N",
     "of the square matrices of the machine's own product (default 2048; on a GPU 8192)",
     COMMAND_COUNT, .field = offsetof(options_t, side), 16, 65536},
    {"dtype", "NAME", "of parameters: fp32 (default) or bf16", COMMAND_DTYPE,
     .field = offsetof(options_t, dtype)},
    ON_DEVICE_OPTIONS,
    {0},
};

static const bench_parser_t parser = {
    .name = "matmul",
    .options = option_table,
    .doc = "Operations per second of the products of a GPT layer, against the machine's own rate "
           "in the same run."};

static zr_status_t set_up(bench_t *b, const options_t *options) {
    ZR_TRY(on_device_open(&options->on, &b->on));
    size_t n_rows = options->n_rows;
    if (n_rows == 0)
        n_rows = on_device_is_host(&b->on) ? 1024 : 16384;
    ZR_TRY(products_make(&b->on, n_rows, options->channels, options->dtype, &b->of));
    return matrix_rate_create(&options->on, options->dtype, options->side, &b->rate);
}

static zr_status_t measure(bench_t *b, double seconds) {
    for (size_t i = 0; i < N_PRODUCTS; i++)
        ZR_TRY(work_warm_up(&b->of.works[i], b->on.stream));
    double end = bench_seconds() + seconds;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || bench_seconds() < end; round++) {
        for (size_t i = 0; i < N_PRODUCTS; i++) {
            if (i % PRODUCTS_OF_A_LINEAR == 0)
                ZR_TRY(matrix_rate_run(b->rate));
            ZR_TRY(work_time(&b->of.works[i], b->on.stream));
        }
    }
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

static double rate_of(work_t *work) {
    return work->cost.operations / bench_times_median(&work->times);
}

static void print_for_people(bench_t *b) {
    double machine = matrix_rate_per_s(b->rate);
    fprintf(stderr, "%s\n%s, %s, %s parameters, median of %s\n",
            zr_device_info(b->on.device)->description, zr_count_text(b->of.n_rows, "token").text,
            zr_count_text(b->of.channels, "channel").text, zr_dtype_name(b->of.param_dtype),
            zr_count_text(b->of.works[0].times.n_times, "round").text);
    for (size_t i = 0; i < N_PRODUCTS; i++)
        fprintf(stderr, "  %-14s %-15s %10.1f GFLOP/s  ratio %6.3f\n", b->of.products[i].layer,
                b->of.products[i].pass, 1e-9 * rate_of(&b->of.works[i]),
                rate_of(&b->of.works[i]) / machine);
    fprintf(stderr, "  %-30s %10.1f GFLOP/s  ratio %6.3f\n", "all", 1e-9 * products_per_s(&b->of),
            products_per_s(&b->of) / machine);
    fprintf(stderr, "  %-30s %10.1f GFLOP/s, this machine's own (%zu x %zu)\n",
            matrix_rate_name(b->rate), 1e-9 * machine, matrix_rate_side(b->rate),
            matrix_rate_side(b->rate));
}

static json_t *describe_product(bench_t *b, size_t i) {
    const product_t *product = &b->of.products[i];
    double rate = rate_of(&b->of.works[i]);
    json_t *object = json_object();
    json_put(&object, "layer", json_string(product->layer));
    json_put(&object, "pass", json_string(product->pass));
    json_put(&object, "m", json_count(product->args.m));
    json_put(&object, "n", json_count(product->args.n));
    json_put(&object, "k", json_count(product->args.k));
    json_put(&object, "seconds", json_number(bench_times_median(&b->of.works[i].times)));
    json_put(&object, "gflop_per_s", json_number(1e-9 * rate));
    json_put(&object, "ratio", json_number(rate / matrix_rate_per_s(b->rate)));
    return object;
}

static json_t *describe(bench_t *b) {
    json_t *object = json_object(), *list = json_array();
    double machine = matrix_rate_per_s(b->rate), all = products_per_s(&b->of);
    for (size_t i = 0; i < N_PRODUCTS; i++)
        json_append(&list, describe_product(b, i));
    json_put(&object, "products", list);
    json_put(&object, "command", json_string("matmul"));
    json_put(&object, "device", json_string(zr_device_info(b->on.device)->description));
    json_put(&object, "dtype", json_string(zr_dtype_name(b->of.param_dtype)));
    json_put(&object, "activation_dtype", json_string(zr_dtype_name(b->of.activation_dtype)));
    json_put(&object, "tokens", json_count(b->of.n_rows));
    json_put(&object, "channels", json_count(b->of.channels));
    json_put(&object, "rounds", json_count(b->of.works[0].times.n_times));
    json_put(&object, "gflop_per_s", json_number(1e-9 * all));
    json_put(&object, "machine", json_string(matrix_rate_name(b->rate)));
    json_put(&object, "machine_side", json_count(matrix_rate_side(b->rate)));
    json_put(&object, "machine_gflop_per_s", json_number(1e-9 * machine));
    json_put(&object, "ratio", json_number(all / machine));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {
        .on = on_device_options_default(log), .channels = 768, .dtype = ZR_DTYPE_F32};
    bench_t bench = {0};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.on.common, &code))
        return code;
    zr_status_t status = set_up(&bench, &options);
    if (status == ZR_OK)
        status = measure(&bench, options.on.seconds);
    code = on_device_exit_code(status);
    if (status == ZR_OK)
        print_for_people(&bench);
    if (status == ZR_OK && options.on.common.json)
        code = command_print(describe(&bench), BENCH_MEASURED, log);
    works_free(bench.of.works, N_PRODUCTS);
    matrix_rate_destroy(&bench.rate);
    on_device_close(&bench.on);
    return code;
}

const bench_command_t bench_matmul = {
    .name = "matmul",
    .summary = "the products of a GPT layer against the machine's own rate",
    .run = run};
