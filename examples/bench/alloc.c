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
#include "examples/common/files.h"

#define MAX_SECONDS 86400.0
#define MAX_PAIRS ((size_t)1000000)
#define DEFAULT_PAIRS ((size_t)20000)
/* Unless --seconds says otherwise. */
#define CAPACITY_SECONDS 60.0
#define LEAST_SECONDS 0.9
#define SECONDS_PER_BUFFER 0.0006

typedef struct options {
    bench_common_t common;
    const char *trace, *plan; /* files */
    size_t capacity_bytes, align_bytes;
    size_t n_pairs;
    bool has_capacity, has_pairs;
    double seconds; /* negative: by what there is to plan */
    const zr_log_t *log;
} options_t;

static zr_status_t take_align(const char *value, void *options) {
    options_t *o = options;
    ZR_TRY(args_size("--align", value, o->log, &o->align_bytes));
    size_t nearest = 1, align = o->align_bytes;
    while (nearest < ZR_PLAN_MAX_ALIGNMENT && align > nearest && align - nearest > nearest / 2)
        nearest *= 2;
    if (nearest == align)
        return ZR_OK;
    return zr_fail(o->log, ZR_ERR_ARGUMENT,
                   "--align %s: a power of two up to %zu is allowed; the nearest is %zu", value,
                   ZR_PLAN_MAX_ALIGNMENT, nearest);
}

static const command_option_t option_table[] = {
    {"trace", "FILE",
     "buffers as CSV: id,lower,upper,size; each lives at the times lower <= t < upper (default: "
     "those of a made-up training step)",
     COMMAND_TEXT, .field = offsetof(options_t, trace)},
    {"capacity", "SIZE",
     "stop as soon as the plan is no higher; exit with 1 if that is not reached", COMMAND_SIZE,
     .field = offsetof(options_t, capacity_bytes), .given = offsetof(options_t, has_capacity)},
    {"seconds", "S",
     "search for no longer than this (default: 60 with a capacity, else 0.9, or 0.0006 per buffer)",
     COMMAND_NUMBER, .field = offsetof(options_t, seconds), 0, MAX_SECONDS},
    {"align", "SIZE",
     "round sizes up to this power of two and place buffers at its multiples (default: 1)",
     COMMAND_OTHER, .take = take_align},
    {"plan", "FILE", "write the plan as CSV: id,lower,upper,size,offset", COMMAND_TEXT,
     .field = offsetof(options_t, plan)},
    {"pairs", "N",
     "time so many pairs of calls, allocate and free, per repetition; 0: none (default: 20000, "
     "with a trace 0)",
     COMMAND_COUNT, .field = offsetof(options_t, n_pairs), 0, MAX_PAIRS,
     .given = offsetof(options_t, has_pairs)},
    {0},
};

static const bench_parser_t parser = {
    .name = "alloc",
    .options = option_table,
    .doc = "Plan the offsets of a trace of buffers, and compare the height with the most bytes "
           "that are alive at once, and with what other allocators would reserve for them. Time "
           "pairs of calls, allocate and free, against malloc and the locks in them."};

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
    if (options->plan == NULL)
        return ZR_OK;
    if (options->trace != NULL && files_are_same(options->trace, options->plan))
        return zr_fail(options->log, ZR_ERR_ARGUMENT,
                       "--plan %s is the file that --trace reads; name another", options->plan);
    return files_check_writable("--plan", options->plan, options->log);
}

static zr_status_t get_trace(const options_t *options, trace_t *trace_p) {
    if (options->trace != NULL)
        return trace_read(options->trace, options->log, trace_p);
    calls_t step;
    ZR_TRY(calls_make_step(options->log, &step));
    zr_status_t status = calls_trace(&step, options->log, trace_p);
    calls_free(&step);
    return status;
}

static zr_status_t plan(alloc_bench_t *bench, const options_t *options) {
    zr_plan_options_t plan_options = zr_plan_options_default();
    size_t n = bench->trace.n_buffers;
    plan_options.log = *options->log;
    plan_options.capacity_bytes = options->capacity_bytes;
    plan_options.max_seconds = seconds_for(options, n);
    bench->offsets = calloc(n + 1, sizeof(*bench->offsets));
    if (bench->offsets == NULL)
        return zr_fail(options->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(n, "offset").text);
    ZR_TRY(zr_plan_offsets(bench->trace.buffers, n, &plan_options, bench->offsets, &bench->result));
    ZR_TRY(trace_check_plan(&bench->trace, bench->offsets, options->log, &bench->is_valid,
                            &bench->height_bytes));
    bench->is_valid = bench->is_valid && bench->height_bytes == bench->result.height_bytes;
    return ZR_OK;
}

static zr_status_t measure(alloc_bench_t *bench, const options_t *options) {
    ZR_TRY(check_files(options));
    ZR_TRY(get_trace(options, &bench->trace));
    trace_align(&bench->trace, options->align_bytes);
    ZR_TRY(plan(bench, options));
    ZR_TRY(sim_run(&bench->trace, options->log, bench->reserved_bytes));
    if (options->n_pairs > 0)
        ZR_TRY(pairs_measure(options->n_pairs, options->log, &bench->pairs));
    if (options->plan != NULL)
        return trace_write_plan(&bench->trace, bench->offsets, options->plan, options->log);
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

/* A line of the table of what is reserved for the trace. */
static void print_reserved(const alloc_bench_t *bench, const options_t *options, const char *name,
                           size_t reserved_bytes, const char *summary) {
    fprintf(stderr, "  %-18s %16zu %8.4f", name, reserved_bytes, ratio_of(bench, reserved_bytes));
    if (options->has_capacity)
        fprintf(stderr, "  %-8s",
                reserved_bytes <= options->capacity_bytes ? "within" : "exceeded");
    fprintf(stderr, "  %s\n", summary);
}

static void print_comparison(const alloc_bench_t *bench, const options_t *options) {
    fprintf(stderr, "  %-18s %16s %8s%s\n", "reserved for it", "bytes", "of live",
            options->has_capacity ? "  capacity" : "");
    print_reserved(bench, options, "plan", bench->height_bytes, "this one");
    for (int i = 0; i < SIM_N_KINDS; i++)
        print_reserved(bench, options, sim_kinds[i]->name, bench->reserved_bytes[i],
                       sim_kinds[i]->summary);
}

static void print_for_people(const alloc_bench_t *bench, const options_t *options) {
    const zr_plan_result_t *result = &bench->result;
    fprintf(stderr, "%s: %s", options->trace != NULL ? options->trace : "a made-up training step",
            zr_count_text(bench->trace.n_buffers, "buffer").text);
    if (options->align_bytes > 1)
        fprintf(stderr, ", their sizes rounded up to multiples of %zu bytes", options->align_bytes);
    fputc('\n', stderr);
    fprintf(stderr, "  max_live  %s alive at once\n",
            zr_count_text(result->max_live_bytes, "byte").text);
    fprintf(stderr, "  height    %s: %.4f of max_live, by %s%s\n",
            zr_count_text(bench->height_bytes, "byte").text, ratio_of(bench, bench->height_bytes),
            result->strategy, result->is_proven ? "; there is no lower plan" : "");
    fprintf(stderr, "  seconds   %.3f\n", result->seconds);
    fprintf(stderr, "  valid     %s\n", bench->is_valid ? "yes" : "NO");
    if (options->has_capacity)
        fprintf(stderr, "  capacity  %s: %s\n", zr_count_text(options->capacity_bytes, "byte").text,
                is_met(bench, options) ? "met" : "not met");
    print_comparison(bench, options);
    if (options->n_pairs > 0)
        pairs_print(&bench->pairs);
}

static json_t *describe_kind(const alloc_bench_t *bench, const options_t *options, int kind) {
    size_t reserved = bench->reserved_bytes[kind];
    json_t *object = json_object();
    json_put(&object, "name", json_string(sim_kinds[kind]->name));
    json_put(&object, "reserved_peak", json_count(reserved));
    json_put(&object, "ratio", json_number(ratio_of(bench, reserved)));
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
    json_t *object = json_object();
    json_put(&object, "command", json_string("alloc"));
    json_put(&object, "trace", options->trace != NULL ? json_text(options->trace) : json_null());
    json_put(&object, "buffers", json_count(bench->trace.n_buffers));
    json_put(&object, "align", json_count(options->align_bytes));
    json_put(&object, "max_live", json_count(result->max_live_bytes));
    json_put(&object, "bound", json_count(result->bound_bytes));
    json_put(&object, "height", json_count(bench->height_bytes));
    json_put(&object, "ratio", json_number(ratio_of(bench, bench->height_bytes)));
    json_put(&object, "seconds", json_number(result->seconds));
    json_put(&object, "valid", json_boolean(bench->is_valid));
    json_put(&object, "strategy", json_string(result->strategy));
    json_put(&object, "proven", json_boolean(result->is_proven));
    json_put(&object, "compare", describe_comparison(bench, options));
    if (options->n_pairs != 0)
        json_put(&object, "pairs", pairs_describe(&bench->pairs));
    if (options->has_capacity)
        json_put(&object, "capacity", json_count(options->capacity_bytes));
    if (options->has_capacity)
        json_put(&object, "met", json_boolean(is_met(bench, options)));
    return object;
}

static int report(const alloc_bench_t *bench, const options_t *options) {
    print_for_people(bench, options);
    int code = BENCH_MEASURED;
    if (options->common.json)
        code = command_print(describe(bench, options), BENCH_MEASURED, options->log);
    return bench->is_valid && is_met(bench, options) ? code : BENCH_FAILED;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.seconds = -1.0, .align_bytes = 1, .log = log};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (!options.has_pairs && options.trace == NULL)
        options.n_pairs = DEFAULT_PAIRS;
    alloc_bench_t bench = {0};
    zr_status_t status = measure(&bench, &options);
    code = BENCH_FAILED;
    if (status == ZR_OK)
        code = report(&bench, &options);
    else if (status == ZR_ERR_FORMAT || status == ZR_ERR_ARGUMENT ||
             (status == ZR_ERR_IO && bench.offsets == NULL))
        code = BENCH_BAD_INPUT;
    free(bench.offsets);
    trace_free(&bench.trace);
    return code;
}

const bench_command_t bench_alloc = {
    .name = "alloc",
    .summary = "plan the offsets of a trace of buffers; height against the most bytes alive",
    .run = run};
