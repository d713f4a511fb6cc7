#include "examples/bench/on_device.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/device.h"

/* What is queued at once takes about so long: much more than launching it and waiting does. */
#define BATCH_SECONDS 0.01
#define MAX_CALLS 200
#define DRAWN_ELEMS ((size_t)1000003)

/* ---- options -------------------------------------------------------------------------- */

on_device_options_t on_device_options_default(const zr_log_t *log) {
    on_device_options_t options = ON_DEVICE_DEFAULTS;
    options.common.log = log;
    return options;
}

static zr_status_t take_device(void *object, const char *label, const char *text,
                               const zr_log_t *log) {
    (void)label;
    ZR_TRY(device_check(text, log));
    ((on_device_options_t *)object)->device = text;
    return ZR_OK;
}

#define AT(member) .offset = offsetof(on_device_options_t, member)

static const zr_option_t rows[] = {
    {"device", AT(device), .type = ZR_OPTION_STRING, .arg = "host|cuda[:N]|auto",
     .take = take_device, .help = "where it runs"},
    {"threads", AT(n_threads), .type = ZR_OPTION_COUNT, .least = 1, .most = ON_DEVICE_MAX_THREADS,
     .arg = "N", .initial = "all cores", .help = "threads of the host"},
    {"seconds", AT(seconds), .type = ZR_OPTION_NUMBER, .most = 3600, .arg = "S",
     .help = "measure for about this long"}};

const options_table_t on_device_table = {
    .own = rows, .n_own = sizeof(rows) / sizeof(rows[0]), .base = &command_base};

static const options_use_t of_ranks[] = {
    {"device", 1, "of all ranks (default host)"},
    {"threads", 1, "threads of each rank (default: all cores, shared out)"},
    {"json", 2, NULL},
    {"help", 2, NULL},
    {"version", 2, NULL},
    {"word", 2, NULL}};

const options_table_t on_ranks_table = {
    .base = &on_device_table, .uses = of_ranks, .n_uses = sizeof(of_ranks) / sizeof(of_ranks[0])};

/* ---- the device ------------------------------------------------------------------------- */

zr_status_t on_device_open(const on_device_options_t *options, on_device_t *on) {
    zr_device_options_t device_options = zr_device_options_default();
    device_choice_t choice;
    ZR_TRY(device_choose(options->device, options->common.log, &choice));
    const char *given = options->isa != NULL ? "--isa" : options->n_threads > 0 ? "--threads" : "";
    if (strcmp(choice.name, "host") != 0 && given[0] != '\0')
        return zr_fail(options->common.log, ZR_ERR_ARGUMENT,
                       "%s is for --device host: GPUs do not support it; leave it out", given);
    device_options.log = *options->common.log;
    device_options.index = choice.index;
    device_options.n_threads = (int)options->n_threads;
    device_options.isa = options->isa;
    ZR_TRY(zr_device_open(choice.name, &device_options, &on->device));
    return zr_stream_create(on->device, "bench", &on->stream);
}

zr_status_t on_device_borrow(zr_device_t *device, on_device_t *on) {
    *on = (on_device_t){.device = device, .is_borrowed = true};
    return zr_stream_create(device, "bench", &on->stream);
}

void on_device_close(on_device_t *on) {
    zr_stream_destroy(&on->stream);
    for (size_t i = 0; i < on->n_ranges; i++)
        zr_range_release(on->device, ZR_TIER_DEVICE, &on->ranges[i].base, on->ranges[i].size_bytes);
    on->n_ranges = 0;
    if (!on->is_borrowed)
        zr_device_close(&on->device);
}

bool on_device_is_host(const on_device_t *on) {
    return strcmp(zr_device_info(on->device)->backend, "host") == 0;
}

static size_t bytes_with_gap(size_t size_bytes) {
    return (size_bytes + 5 * 4096 + 832 + 255) / 256 * 256;
}

zr_status_t on_device_take(on_device_t *on, const on_device_array_t *arrays, size_t n) {
    size_t granule = zr_device_info(on->device)->granule_bytes, bytes = granule - 1;
    size_t most = sizeof(on->ranges) / sizeof(on->ranges[0]);
    void *base = NULL;
    for (size_t i = 0; i < n; i++)
        bytes += bytes_with_gap(arrays[i].size_bytes);
    bytes = bytes / granule * granule;
    if (on->n_ranges == most)
        return zr_fail(zr_device_log(on->device), ZR_ERR_STATE, "more than %zu ranges", most);
    ZR_TRY(zr_range_reserve(on->device, ZR_TIER_DEVICE, bytes, &base));
    on->ranges[on->n_ranges].base = base;
    on->ranges[on->n_ranges++].size_bytes = bytes;
    ZR_TRY(zr_range_map(on->device, ZR_TIER_DEVICE, base, 0, bytes));
    char *at = base;
    for (size_t i = 0; i < n; at += bytes_with_gap(arrays[i++].size_bytes))
        memcpy(arrays[i].pointer, &at, sizeof(at));
    return ZR_OK;
}

/* BF16 is the upper half of an fp32. */
static void draw(void *numbers, zr_dtype_t dtype, size_t n_elems) {
    uint64_t state = 1;
    for (size_t i = 0; i < n_elems; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        float number = (float)(state >> 40) / (float)(1 << 23) - 1.0f;
        uint32_t bits;
        memcpy(&bits, &number, sizeof(bits));
        if (dtype == ZR_DTYPE_BF16)
            ((uint16_t *)numbers)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)numbers)[i] = number;
    }
}

zr_status_t on_device_draw(on_device_t *on, void *array, zr_dtype_t dtype, size_t n_elems) {
    size_t n_drawn = n_elems < DRAWN_ELEMS ? n_elems : DRAWN_ELEMS, size = zr_dtype_size(dtype);
    void *numbers = malloc(n_drawn * size);
    if (numbers == NULL)
        return zr_fail(zr_device_log(on->device), ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(n_drawn, "number").text);
    draw(numbers, dtype, n_drawn);
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < n_elems && status == ZR_OK; i += n_drawn) {
        size_t n = n_elems - i < n_drawn ? n_elems - i : n_drawn;
        status = zr_copy_async(on->stream, (char *)array + i * size, numbers, n * size,
                               ZR_COPY_HOST_TO_DEVICE);
    }
    zr_status_t passed = zr_stream_synchronize(on->stream);
    free(numbers);
    return status != ZR_OK ? status : passed;
}

/* ---- work that is timed ------------------------------------------------------------------- */

static zr_status_t make_calls(const work_t *work, zr_stream_t *stream, size_t n_calls) {
    for (size_t i = 0; i < n_calls; i++)
        ZR_TRY(work->queue(work->context, stream));
    return zr_stream_synchronize(stream);
}

static zr_status_t time_calls(const work_t *work, zr_stream_t *stream, size_t n_calls,
                              double *seconds_p) {
    double begin = bench_seconds();
    ZR_TRY(make_calls(work, stream, n_calls));
    *seconds_p = (bench_seconds() - begin) / (double)n_calls;
    return ZR_OK;
}

zr_status_t work_call(const work_t *work, zr_stream_t *stream) {
    return make_calls(work, stream, work->n_calls);
}

zr_status_t work_warm_up(work_t *work, zr_stream_t *stream) {
    zr_cost_t before, after;
    double seconds = 0.0;
    ZR_TRY(zr_stream_synchronize(stream));
    ZR_TRY(time_calls(work, stream, 1, &seconds));
    ZR_TRY(zr_stream_cost(stream, &before));
    ZR_TRY(time_calls(work, stream, 1, &seconds));
    ZR_TRY(zr_stream_cost(stream, &after));
    work->cost.bytes = after.bytes - before.bytes;
    work->cost.operations = after.operations - before.operations;
    double n_calls = BATCH_SECONDS / (seconds + 1e-9);
    work->n_calls = n_calls >= MAX_CALLS ? MAX_CALLS : n_calls < 1.0 ? 1 : (size_t)n_calls;
    return ZR_OK;
}

zr_status_t work_time(work_t *work, zr_stream_t *stream) {
    double seconds = 0.0;
    ZR_TRY(time_calls(work, stream, work->n_calls, &seconds));
    return bench_times_add(&work->times, seconds, zr_device_log(zr_stream_device(stream)));
}

zr_status_t works_measure(work_t *works, size_t n_works, zr_stream_t *stream, double seconds) {
    for (size_t i = 0; i < n_works; i++)
        ZR_TRY(work_warm_up(&works[i], stream));
    double end = bench_seconds() + seconds;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || bench_seconds() < end; round++) {
        for (size_t i = 0; i < n_works; i++)
            ZR_TRY(work_time(&works[i], stream));
    }
    return ZR_OK;
}

void works_free(work_t *works, size_t n_works) {
    for (size_t i = 0; i < n_works; i++)
        bench_times_free(&works[i].times);
}
