/*
 * zero-bench alloc: plan the offsets of a trace of buffers. The limit that a plan is measured
 * against is the most bytes alive at once; no plan is lower. Whether the plan is valid is
 * checked here, without the planner. Beside it stands what other allocators, which do not know
 * the lives in advance, would reserve for the same trace. Without a trace that is a made-up
 * training step, and the time that a pair of calls takes is measured as well.
 */
#include "examples/bench/alloc_pairs.h"
#include "examples/bench/alloc_sim.h"
#include "examples/bench/bench.h"
#include "examples/bench/trace.h"
#include "examples/common/args.h"
#include "examples/common/files.h"

#define MAX_SECONDS 86400.0
#define MAX_PAIRS ((size_t)1000000)
#define DEFAULT_PAIRS ((size_t)20000)
/* Unless --seconds says otherwise. */
#define CAPACITY_SECONDS 60.0
#define LEAST_SECONDS 0.9
#define SECONDS_PER_BUFFER 0.0006

typedef struct options {
    command_common_t common;
    const char *trace, *plan; /* files */
    size_t capacity_bytes, align_bytes;
    size_t n_pairs;
    bool has_capacity;
    double seconds; /* negative: by what there is to plan */
} options_t;

static zr_status_t take_align(void *options, const char *label, const char *text,
                              const zr_log_t *log) {
    options_t *o = options;
    ZR_TRY(args_size(label, text, log, &o->align_bytes));
    size_t nearest = 1, align = o->align_bytes;
    while (nearest < ZR_PLAN_MAX_ALIGNMENT && align > nearest && align - nearest > nearest / 2)
        nearest *= 2;
    if (nearest == align)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--align %s: a power of two up to %zu is allowed; the nearest is %zu", text,
                   ZR_PLAN_MAX_ALIGNMENT, nearest);
}

#define AT(member) .offset = offsetof(options_t, member)

static const zr_option_t rows[] = {
    {"trace", AT(trace), .type = ZR_OPTION_STRING, .arg = "FILE",
     .initial = "those of a synthetic training step",
     .help = "buffers as CSV: id,lower,upper,size; each lives at the times lower <= t < upper"},
    {"capacity", AT(capacity_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE", .initial = "",
     .help = "stop as soon as the plan is no higher; exit with 1 if that is not reached"},
    {"seconds", AT(seconds), .type = ZR_OPTION_NUMBER, .most = MAX_SECONDS, .arg = "S",
     .initial = "60 with a capacity, else 0.9, or 0.0006 per buffer",
     .help = "maximum search time"},
    {"align", AT(align_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE", .take = take_align,
     .help = "round sizes up to this power of two and place buffers at its multiples"},
    {"plan", AT(plan), .type = ZR_OPTION_STRING, .arg = "FILE",
     .help = "write the plan as CSV: id,lower,upper,size,offset"},
    {"pairs", AT(n_pairs), .type = ZR_OPTION_COUNT, .most = MAX_PAIRS, .arg = "N",
     .initial = "20000, with a trace 0",
     .help = "number of timed pairs of allocate and free per repetition; 0: none"}};

/* ---- planning -------------------------------------------------------------------------------- */

typedef struct alloc_bench {
    trace_t trace;
    size_t *offsets;
    zr_plan_result_t result;
    size_t height_bytes; /* as counted here */
    bool is_valid;
    size_t reserved_bytes[SIM_N_KINDS]; /* by other allocators */
    pairs_result_t pairs;               /* where n_pairs is not 0 */
} alloc_bench_t;

static double seconds_for(const options_t *options, size_t n_buffers) {
    double by_count = SECONDS_PER_BUFFER * (double)n_buffers;
    if (options->seconds >= 0.0)
        return options->seconds > 0.0 ? options->seconds : 1e-9;
    if (options->has_capacity)
        return CAPACITY_SECONDS;
    return by_count > LEAST_SECONDS ? by_count : LEAST_SECONDS;
}

/* A plan must not be written over the trace it is made from, nor made in vain. */
static zr_status_t check_files(const options_t *options) {
    const files_named_t plan = {"--plan", options->plan}, trace = {"--trace", options->trace};
    if (options->plan == NULL)
        return ZR_OK;
    ZR_TRY(files_check_apart(plan, &trace, 1, options->common.log));
    return files_check_writable("--plan", options->plan, options->common.log);
}

static zr_status_t get_trace(const options_t *options, trace_t *trace_p) {
    if (options->trace != NULL)
        return trace_read(options->trace, options->common.log, trace_p);
    calls_t step;
    ZR_TRY(calls_make_step(options->common.log, &step));
    zr_status_t status = calls_trace(&step, options->common.log, trace_p);
    calls_free(&step);
    return status;
}

static zr_status_t plan(alloc_bench_t *bench, const options_t *options) {
    zr_plan_options_t plan_options = zr_plan_options_default();
    size_t n = bench->trace.n_buffers;
    plan_options.log = *options->common.log;
    plan_options.capacity_bytes = options->capacity_bytes;
    plan_options.max_seconds = seconds_for(options, n);
    bench->offsets = calloc(n + 1, sizeof(*bench->offsets));
    if (bench->offsets == NULL)
        return zr_fail(options->common.log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(n, "offset").text);
    ZR_TRY(zr_plan_offsets(bench->trace.buffers, n, &plan_options, bench->offsets, &bench->result));
    ZR_TRY(trace_check_plan(&bench->trace, bench->offsets, options->common.log, &bench->is_valid,
                            &bench->height_bytes));
    bench->is_valid = bench->is_valid && bench->height_bytes == bench->result.height_bytes;
    return ZR_OK;
}

static zr_status_t measure(alloc_bench_t *bench, const options_t *options) {
    ZR_TRY(check_files(options));
    ZR_TRY(get_trace(options, &bench->trace));
    trace_align(&bench->trace, options->align_bytes);
    ZR_TRY(plan(bench, options));
    ZR_TRY(sim_run(&bench->trace, options->common.log, bench->reserved_bytes));
    if (options->n_pairs > 0)
        ZR_TRY(pairs_measure(options->n_pairs, options->common.log, &bench->pairs));
    if (options->plan != NULL)
        return trace_write_plan(&bench->trace, bench->offsets, options->plan, options->common.log);
    return ZR_OK;
}

/* ---- the report ------------------------------------------------------------------------------ */

static bool is_met(const alloc_bench_t *bench, const options_t *options) {
    return !options->has_capacity || bench->height_bytes <= options->capacity_bytes;
}

static double ratio_of(const alloc_bench_t *bench, size_t size_bytes) {
    size_t max_live = bench->result.max_live_bytes;
    return max_live == 0 ? 1.0 : (double)size_bytes / (double)max_live;
}

static json_t *describe_kind(const alloc_bench_t *bench, const options_t *options, int kind) {
    size_t reserved = bench->reserved_bytes[kind];
    json_t *object = JSON_OBJECT({"name", json_string(sim_kinds[kind]->name)},
                                 {"reserved_peak", json_count(reserved)},
                                 {"ratio", json_number(ratio_of(bench, reserved))},
                                 {"of", json_string(sim_kinds[kind]->summary)});
    if (options->has_capacity)
        json_put(&object, "within", json_boolean(reserved <= options->capacity_bytes));
    return object;
}

static json_t *describe_comparison(const alloc_bench_t *bench, const options_t *options) {
    json_t *array = json_array();
    for (int i = 0; i < SIM_N_KINDS; i++)
        json_append(&array, describe_kind(bench, options, i));
    return array;
}

static json_t *describe(const alloc_bench_t *bench, const options_t *options) {
    const zr_plan_result_t *result = &bench->result;
    json_t *object = JSON_OBJECT(
        {"command", json_string("alloc")},
        {"trace", options->trace != NULL ? json_text(options->trace) : json_null()},
        {"buffers", json_count(bench->trace.n_buffers)},
        {"align", json_count(options->align_bytes)},
        {"max_live", json_count(result->max_live_bytes)},
        {"bound", json_count(result->bound_bytes)}, {"height", json_count(bench->height_bytes)},
        {"ratio", json_number(ratio_of(bench, bench->height_bytes))},
        {"seconds", json_number(result->seconds)}, {"valid", json_boolean(bench->is_valid)},
        {"strategy", json_string(result->strategy)}, {"proven", json_boolean(result->is_proven)},
        {"compare", describe_comparison(bench, options)});
    if (options->n_pairs != 0)
        json_put(&object, "pairs", pairs_describe(&bench->pairs));
    if (options->has_capacity)
        json_put(&object, "capacity", json_count(options->capacity_bytes));
    if (options->has_capacity)
        json_put(&object, "met", json_boolean(is_met(bench, options)));
    return object;
}

static int run(void *argument) {
    options_t *options = argument;
    const options_given_t *given = &options->common.given;
    options->has_capacity = options_value(given, "capacity") != NULL;
    if (options_value(given, "pairs") == NULL && options->trace == NULL)
        options->n_pairs = DEFAULT_PAIRS;
    alloc_bench_t bench = {0};
    zr_status_t status = measure(&bench, options);
    int code = COMMAND_FAILED;
    if (status == ZR_OK)
        code =
            bench_report(&options->common, describe(&bench, options),
                         bench.is_valid && is_met(&bench, options) ? COMMAND_DONE : COMMAND_FAILED);
    else if (status == ZR_ERR_FORMAT || status == ZR_ERR_ARGUMENT ||
             (status == ZR_ERR_IO && bench.offsets == NULL))
        code = COMMAND_BAD_INPUT;
    free(bench.offsets);
    trace_free(&bench.trace);
    return code;
}

static const options_t defaults = {.seconds = -1.0, .align_bytes = 1};

const command_t bench_alloc = {
    .name = "alloc",
    .summary = "plan the offsets of a trace of buffers; height against the peak of live bytes",
    .doc = "Plan the offsets of a trace of buffers, and compare the height with the peak of live "
           "bytes and with the memory that other allocators would reserve. Time "
           "pairs of calls, allocate and free, against malloc and the locks in them.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
