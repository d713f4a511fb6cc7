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

static const zr_option_choice_t isa_choices[] = {
    {"avx512", 1, NULL}, {"avx2", 2, NULL}, {"baseline", 3, NULL}, {NULL, 0, NULL}};
static const zr_option_choice_t state_forms[] = {{"fp32", ZR_STATE_FP32, NULL},
                                                 {"bf16", ZR_STATE_BF16, NULL},
                                                 {"8bit", ZR_STATE_8BIT, NULL},
                                                 {NULL, 0, NULL}};
static const zr_option_choice_t optimizers[] = {
    {"adamw", 0, NULL}, {"lion", 1, NULL}, {"sgd", 2, NULL}, {NULL, 0, NULL}};

#define AT(member) .offset = offsetof(adam_options_t, member)

static const zr_option_t rows[] = {
    {"elems", AT(n_elems), .type = ZR_OPTION_COUNT, .least = 1, .most = MAX_ELEMS, .arg = "N",
     .initial = "20000003; with --offload 4194304", .help = "elements of each array"},
    {"dtype", AT(dtype), .type = ZR_OPTION_CHOICE, .choices = command_dtypes,
     .help = "of gradients and parameters"},
    {"optimizer", AT(optimizer), .type = ZR_OPTION_CHOICE, .choices = optimizers,
     .help = "whose step is measured"},
    {"state", AT(state), .type = ZR_OPTION_CHOICE, .choices = state_forms,
     .help = "precision of the optimizer state, except the master"},
    {"isa", AT(isa), .type = ZR_OPTION_CHOICE, .choices = isa_choices, .initial = "the best here",
     .help = "of the step"},
    {"offload", AT(offload), .type = ZR_OPTION_CHOICE, .choices = command_places,
     .help = "measure updates of state that is offloaded"},
    {"path", AT(paths), .type = ZR_OPTION_STRING, .arg = "DIR[,DIR...]",
     .help = "folders of --offload nvme"},
    {"sub-group", AT(sub_group_elems), .type = ZR_OPTION_COUNT, .least = 1, .most = MAX_ELEMS,
     .arg = "ELEMS", .initial = "1048576", .help = "of what is offloaded"},
    {"buffers", AT(n_buffers), .type = ZR_OPTION_COUNT, .least = 1, .most = ZR_SWAP_MAX_BUFFERS,
     .arg = "N", .initial = "4", .help = "sub-groups in host memory, of --offload nvme"},
    {"verify", AT(verify), .type = ZR_OPTION_SWITCH, .help = "compute and verify checksums"}};

/* ---- what is measured ---------------------------------------------------------------------- */

static zr_status_t queue_adam(void *context, zr_stream_t *stream) {
    adam_bench_t *bench = context;
    ZR_TRY(zr_kernel_update(stream, &bench->rule, &bench->args));
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
    return (size_t)(zr_update_cost(&bench->rule, &bench->args).bytes / 2.0);
}

static zr_status_t queue_copy(void *context, zr_stream_t *stream) {
    adam_bench_t *bench = context;
    return zr_copy_async(stream, bench->copy_to, bench->copy_from, copied_bytes(bench),
                         ZR_COPY_DEVICE_TO_DEVICE);
}

static size_t array_bytes(const adam_bench_t *bench, size_t array) {
    return zr_encoding_bytes(bench->rule.arrays[array].encoding, bench->args.n_elems);
}

static zr_status_t fill_arrays(adam_bench_t *bench) {
    zr_stream_t *stream = bench->on.stream;
    const zr_update_t *args = &bench->args;
    size_t n = args->n_elems;
    ZR_TRY(zr_kernel_fill(stream, args->arrays[0], ZR_DTYPE_F32, n, 0.5f));
    for (size_t i = 1; i < bench->rule.n_arrays; i++)
        ZR_TRY(zr_kernel_fill(stream, args->arrays[i], ZR_DTYPE_BF16, array_bytes(bench, i) / 2,
                              0.0f));
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
    bench->rule = zr_update_rule_in(&options->type->rule, options->state);
    bench->args = (zr_update_t){.n_elems = n,
                                .grad_dtype = options->dtype,
                                .param_dtype = options->dtype,
                                .grad_scale = 0.5f,
                                .lr = 1e-4f,
                                .weight_decay = 0.1f,
                                .step = 1};
    for (size_t i = 0; i < bench->rule.n_hypers; i++)
        bench->args.hyper[i] = (float)bench->rule.hypers[i].usual;
    size_t copy_bytes = has_copy ? copied_bytes(bench) : 0;
    on_device_array_t arrays[ZR_MAX_STATE_ARRAYS + 4] = {
        {&bench->args.grad, n * elem_bytes},
        {&bench->args.param, n * elem_bytes},
        {&bench->copy_from, copy_bytes},
        {&bench->copy_to, copy_bytes},
    };
    size_t first = has_copy ? 4 : 2;
    for (size_t i = 0; i < bench->rule.n_arrays; i++)
        arrays[first + i] = (on_device_array_t){&bench->args.arrays[i], array_bytes(bench, i)};
    ZR_TRY(on_device_take(on, arrays, first + bench->rule.n_arrays));
    return fill_arrays(bench);
}

static zr_status_t make_stream(adam_bench_t *bench, const adam_options_t *options) {
    stream_arrays_t arrays = {.n_elems = options->n_elems,
                              .a = bench->args.arrays[0],
                              .b = bench->args.arrays[1],
                              .c = bench->args.arrays[2],
                              .grad = bench->args.grad,
                              .param = bench->args.param,
                              .half = options->dtype == ZR_DTYPE_BF16,
                              .b_floats = zr_encoding_bytes(bench->rule.arrays[1].encoding, 256) /
                                          sizeof(float)};
    int n_threads = zr_device_info(bench->on.device)->n_threads;
    bench->stream = stream_create(&arrays, n_threads);
    return bench->stream != NULL
               ? ZR_OK
               : zr_fail(options->on.common.log, ZR_ERR_MEMORY, "no memory for a loop on %s",
                         zr_count_text((uint64_t)n_threads, "thread").text);
}

zr_status_t adam_set_up(adam_bench_t *bench, const adam_options_t *options) {
    on_device_options_t on_options = options->on;
    on_options.isa = options->isa > 0 ? isa_choices[options->isa - 1].name : NULL;
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
    return JSON_OBJECT(
        {"seconds", json_number(seconds)},
        {"elems_per_s", json_number((double)bench->args.n_elems / seconds)},
        {"bytes_per_s", json_number(zr_update_cost(&bench->rule, &bench->args).bytes / seconds)});
}

static json_t *describe(adam_bench_t *bench, const adam_options_t *options) {
    const zr_device_info_t *info = zr_device_info(bench->on.device);
    double adam = bench_times_median(&bench->works[0].times);
    double stream = bench_times_median(&bench->works[1].times);
    json_t *object =
        JSON_OBJECT({"command", json_string("adam")}, {"device", json_string(info->description)},
                    {"threads", json_count((uint64_t)info->n_threads)},
                    {"dtype", json_string(zr_dtype_name(options->dtype))},
                    {"optimizer", json_string(options->type->name)},
                    {"state", json_string(zr_state_form_name(options->state))},
                    {"elems", json_count(options->n_elems)},
                    {"rounds", json_count(bench->works[0].times.n_times)},
                    {"adam", describe_loop(adam, bench)});
    /* What the step is measured against: the host's loop, or a device's own copy. */
    JSON_PUT(&object, {bench->copy_from != NULL ? "copy" : "stream", describe_loop(stream, bench)},
             {"ratio", json_number(stream / adam)});
    return object;
}

/* What is said about offload that is not measured is a slip. */
static zr_status_t check_offload(const adam_options_t *o) {
    static const char *const of_nvme[] = {"path", "buffers", "verify"};
    const zr_log_t *log = o->on.common.log;
    if (o->offload != ZR_OFFLOAD_NONE && strcmp(o->on.device, "host") != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--device %s: updates of offloaded state are measured on the host; leave "
                       "--device or --offload out",
                       o->on.device);
    for (size_t i = 0; i < 3 && o->offload != ZR_OFFLOAD_NVME; i++)
        if (options_value(&o->on.common.given, of_nvme[i]) != NULL)
            return zr_fail(log, ZR_ERR_ARGUMENT, "--%s means something with --offload nvme only",
                           of_nvme[i]);
    if (o->offload == ZR_OFFLOAD_NONE && o->sub_group_elems > 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--sub-group means something with --offload cpu or nvme only");
    return ZR_OK;
}

static int run(void *options) {
    adam_options_t *o = options;
    o->type = zr_optimizer_find(optimizers[o->optimizer].name);
    if (check_offload(o) != ZR_OK)
        return COMMAND_BAD_INPUT;
    if (o->offload != ZR_OFFLOAD_NONE)
        return adam_offload_run(o);
    if (o->n_elems == 0)
        o->n_elems = DEFAULT_ELEMS;

    adam_bench_t bench = {0};
    zr_status_t status = adam_set_up(&bench, o);
    ZR_THEN(status, works_measure(bench.works, 2, bench.on.stream, o->on.seconds));
    int code = status == ZR_OK ? bench_report(&o->on.common, describe(&bench, o), COMMAND_DONE)
                               : command_code(status);
    adam_tear_down(&bench);
    return code;
}

static const adam_options_t defaults = {
    .on = ON_DEVICE_DEFAULTS, .dtype = ZR_DTYPE_F32, .paths = ".", .verify = true};

const command_t bench_adam = {
    .name = "adam",
    .summary = "AdamW elements/s against what its reads and writes alone take",
    .doc = "Elements per second of an optimizer's step, against a streaming loop of the same reads "
           "and writes, on a GPU against its own copy of as many bytes, in the same run.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .base = &on_device_table,
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
