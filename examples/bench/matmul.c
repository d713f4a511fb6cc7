/*
 * zero-bench matmul: operations per second of the products of a GPT layer, forward and backward, as
 * the model makes them, against the machine's own rate in the same run.
 */
#include <string.h>

#include "examples/bench/matmul_choose.h"
#include "examples/bench/matrix_rate.h"
#include "examples/common/matmul_choices.h"

#define MAX_COUNT ((size_t)1 << 24)

typedef struct options {
    on_device_options_t on;
    size_t n_rows, channels, side;
    zr_dtype_t dtype;
    matmul_choose_t choose;
} options_t;

typedef struct bench {
    on_device_t on;
    products_t of; /* a layer */
    matrix_rate_t *rate;
    json_t *choices; /* of --save-choices; NULL: none */
} bench_t;

#define AT(member) .offset = offsetof(options_t, member), .type = ZR_OPTION_COUNT

static const zr_option_t rows[] = {
    {"tokens", AT(n_rows), .least = 1, .most = MAX_COUNT, .arg = "N",
     .initial = "1024; on a GPU 16384", .help = "rows of the activations"},
    {"channels", AT(channels), .least = 1, .most = 65536, .arg = "C", .help = "of the model"},
    {"side", AT(side), .least = 16, .most = 65536, .arg = "N", .initial = "2048; on a GPU 8192",
     .help = "of the square matrices of the machine's own product"},
    {"dtype", .offset = offsetof(options_t, dtype), .type = ZR_OPTION_CHOICE,
     .choices = command_dtypes, .help = "of parameters"},
    {"save-choices", .offset = offsetof(options_t, choose.path), .type = ZR_OPTION_STRING,
     .arg = "FILE",
     .help = "on a GPU: time the algorithms that cuBLASLt proposes for each product, and write the "
             "fastest for zero-train --matmul-choices FILE"},
    {"workspace", .offset = offsetof(options_t, choose.limit_bytes), .type = ZR_OPTION_BYTES,
     .most = (double)MATMUL_CHOICES_MOST_WORKSPACE, .arg = "SIZE", .initial = "128MiB",
     .help = "that these algorithms may need; a run takes as much as those that were chosen"}};

static zr_status_t set_up(bench_t *b, options_t *options) {
    ZR_TRY(on_device_open(&options->on, &b->on));
    ZR_TRY(matmul_choose_begin(&options->choose, b->on.device));
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

static json_t *describe_product(bench_t *b, size_t i) {
    const product_t *product = &b->of.products[i];
    double rate = rate_of(&b->of.works[i]);
    return JSON_OBJECT({"layer", json_string(product->layer)}, {"pass", json_string(product->pass)},
                       {"m", json_count(product->args.m)}, {"n", json_count(product->args.n)},
                       {"k", json_count(product->args.k)},
                       {"seconds", json_number(bench_times_median(&b->of.works[i].times))},
                       {"gflop_per_s", json_number(1e-9 * rate)},
                       {"ratio", json_number(rate / matrix_rate_per_s(b->rate))});
}

static json_t *describe(bench_t *b) {
    json_t *object = json_object(), *list = json_array();
    double machine = matrix_rate_per_s(b->rate), all = products_per_s(&b->of);
    for (size_t i = 0; i < N_PRODUCTS; i++)
        json_append(&list, describe_product(b, i));
    if (b->choices != NULL)
        json_put(&object, "choices", b->choices);
    JSON_PUT(&object, {"products", list}, {"command", json_string("matmul")},
             {"device", json_string(zr_device_info(b->on.device)->description)},
             {"dtype", json_string(zr_dtype_name(b->of.param_dtype))},
             {"activation_dtype", json_string(zr_dtype_name(b->of.activation_dtype))},
             {"tokens", json_count(b->of.n_rows)}, {"channels", json_count(b->of.channels)},
             {"rounds", json_count(b->of.works[0].times.n_times)},
             {"gflop_per_s", json_number(1e-9 * all)},
             {"machine", json_string(matrix_rate_name(b->rate))},
             {"machine_side", json_count(matrix_rate_side(b->rate))},
             {"machine_gflop_per_s", json_number(1e-9 * machine)},
             {"ratio", json_number(all / machine)});
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(void *options) {
    options_t *o = options;
    bench_t bench = {0};
    zr_status_t status = set_up(&bench, o);
    ZR_THEN(status, measure(&bench, o->on.seconds));
    if (o->choose.path != NULL)
        ZR_THEN(status, matmul_choose_save(&o->choose, &bench.of, o->on.seconds, &bench.choices));
    int code = status == ZR_OK ? bench_report(&o->on.common, describe(&bench), COMMAND_DONE)
                               : command_code(status);
    works_free(bench.of.works, N_PRODUCTS);
    matrix_rate_destroy(&bench.rate);
    on_device_close(&bench.on);
    return code;
}

static const options_t defaults = {
    .on = ON_DEVICE_DEFAULTS, .channels = 768, .dtype = ZR_DTYPE_F32};

const command_t bench_matmul = {
    .name = "matmul",
    .summary = "the products of a GPT layer against the machine's own rate",
    .doc = "Operations per second of the products of a GPT layer, against the machine's own rate "
           "in the same run.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .base = &on_device_table,
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
