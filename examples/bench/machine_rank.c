/*
 * A rank's part: groups of work, one after another, each on a device that is opened for it, so that
 * only one group's memory is there at a time.
 */
#include "examples/bench/machine_rank.h"

#include <string.h>

#include "examples/common/device.h"

/* ---- all ranks at once ----------------------------------------------------------------------- */

static zr_status_t meet(machine_rank_t *rank) {
    return zr_comm_barrier(rank->comm, "measuring the machine");
}

/* Threads that share cores take turns, and only in so many seconds all had as many. */
#define TURNS_SECONDS 0.1

/* As many calls as rank 0 queues: then all work for as long. */
static zr_status_t agree(machine_rank_t *rank, work_t *work, zr_stream_t *stream) {
    double begin = bench_seconds();
    ZR_TRY(work_call(work, stream));
    double seconds = bench_seconds() - begin;
    bool takes_turns = rank->options->n_ranks * rank->options->n_threads > device_cores();
    if (takes_turns && seconds < TURNS_SECONDS)
        work->n_calls = (size_t)((double)work->n_calls * TURNS_SECONDS / seconds) + 1;
    if (rank->number == 0)
        rank->shared->n_calls = work->n_calls;
    ZR_TRY(meet(rank));
    work->n_calls = rank->shared->n_calls;
    return meet(rank);
}

/* From the first rank's begin to the last one's end. */
static double span_of_all(const machine_rank_t *rank) {
    const machine_shared_t *shared = rank->shared;
    double begin = shared->begins[0], end = shared->ends[0];
    for (int i = 1; i < rank->options->n_ranks; i++) {
        begin = shared->begins[i] < begin ? shared->begins[i] : begin;
        end = shared->ends[i] > end ? shared->ends[i] : end;
    }
    return end - begin;
}

static zr_status_t time_at_once(machine_rank_t *rank, work_t *work, zr_stream_t *stream) {
    int number = rank->number;
    ZR_TRY(meet(rank));
    rank->shared->begins[number] = bench_seconds();
    ZR_TRY(work_call(work, stream));
    rank->shared->ends[number] = bench_seconds();
    ZR_TRY(meet(rank));
    ZR_TRY(bench_times_add(&work->times, span_of_all(rank) / (double)work->n_calls,
                           &rank->options->log));
    return meet(rank); /* all have read */
}

zr_status_t machine_rank_time(machine_rank_t *rank, work_t *works, size_t n_works,
                              zr_stream_t *stream) {
    for (size_t i = 0; i < n_works; i++) {
        ZR_TRY(meet(rank));
        ZR_TRY(work_warm_up(&works[i], stream));
        ZR_TRY(agree(rank, &works[i], stream));
    }
    double end = bench_seconds() + rank->options->seconds;
    for (bool goes_on = true; goes_on;) {
        for (size_t i = 0; i < n_works; i++)
            ZR_TRY(time_at_once(rank, &works[i], stream));
        if (rank->number == 0)
            rank->shared->goes_on = bench_seconds() < end;
        ZR_TRY(meet(rank));
        goes_on = rank->shared->goes_on;
    }
    return ZR_OK;
}

/* ---- collectives ---------------------------------------------------------------------------- */

typedef struct collective {
    zr_comm_t *comm;
    void *all;  /* of all ranks */
    void *part; /* of this one */
    size_t n_elems;
} collective_t;

static const zr_message_t message = {
    .tensor = "measuring", .dtype = ZR_DTYPE_F32, .traffic = ZR_TRAFFIC_CONTROL};

static zr_status_t queue_gather(void *context, zr_stream_t *stream) {
    const collective_t *c = context;
    return zr_comm_all_gather(c->comm, &message, c->part, c->all, c->n_elems, stream);
}

static zr_status_t queue_scatter(void *context, zr_stream_t *stream) {
    const collective_t *c = context;
    return zr_comm_reduce_scatter(c->comm, &message, c->all, c->part, c->n_elems, stream);
}

/* A collective is called by all ranks as often, which is agreed on before the first. */
static zr_status_t time_collective(machine_rank_t *rank, work_t *work, zr_stream_t *stream) {
    ZR_TRY(meet(rank));
    ZR_TRY(work->queue(work->context, stream));
    ZR_TRY(zr_stream_synchronize(stream));
    work->n_calls = 4;
    for (int round = 0; round < 2 * ON_DEVICE_MIN_ROUNDS; round++)
        ZR_TRY(time_at_once(rank, work, stream));
    return ZR_OK;
}

static zr_status_t time_collectives(machine_rank_t *rank, zr_comm_t *comm, on_device_t *on) {
    machine_figures_t *figures = &rank->figures;
    size_t n_ranks = (size_t)rank->options->n_ranks;
    size_t n_part = rank->sizes.comm_bytes / sizeof(float) / n_ranks;
    size_t part_bytes = n_part * sizeof(float);
    collective_t large = {.comm = comm, .n_elems = n_part};
    ZR_TRY(ON_DEVICE_TAKE(on, {&large.all, n_ranks * part_bytes}, {&large.part, part_bytes}));
    ZR_TRY(on_device_draw(on, large.all, ZR_DTYPE_F32, n_ranks * n_part));
    collective_t small = large;
    small.n_elems = 16;
    work_t works[] = {{.queue = queue_scatter, .context = &large},
                      {.queue = queue_gather, .context = &large},
                      {.queue = queue_gather, .context = &small}};
    double *const seconds[] = {&figures->scatter_s, &figures->gather_s, &figures->small_gather_s};
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < 3 && status == ZR_OK; i++) {
        status = time_collective(rank, &works[i], on->stream);
        *seconds[i] = bench_times_median(&works[i].times);
    }
    works_free(works, 3);
    return status == ZR_OK ? meet(rank) : status; /* nobody reads the memory any more */
}

/* By a group of all ranks, since a communicator has to go before a device that it has worked on. */
static zr_status_t measure_collectives(machine_rank_t *rank,
                                       const on_device_options_t *on_options) {
    on_device_t on = {0};
    zr_comm_t *group = NULL;
    ZR_TRY(zr_comm_split(rank->comm, 0, rank->number, &group));
    zr_status_t status = on_device_open(on_options, &on);
    ZR_THEN(status, time_collectives(rank, group, &on));
    if (status != ZR_OK)
        zr_comm_abort(group, zr_status_name(status));
    zr_comm_destroy(&group);
    on_device_close(&on);
    return status;
}

/* ---- the host link -------------------------------------------------------------------------- */

typedef struct link_copy {
    void *device, *host;
    size_t size_bytes;
    zr_copy_t kind;
} link_copy_t;

#define LINK_BYTES ((size_t)64 << 20)

static zr_status_t queue_copy(void *context, zr_stream_t *stream) {
    const link_copy_t *copy = context;
    bool is_up = copy->kind == ZR_COPY_HOST_TO_DEVICE;
    return zr_copy_async(stream, is_up ? copy->device : copy->host,
                         is_up ? copy->host : copy->device, copy->size_bytes, copy->kind);
}

static zr_status_t time_copies(machine_rank_t *rank, on_device_t *on, void *host) {
    machine_figures_t *figures = &rank->figures;
    link_copy_t copies[4];
    work_t works[4];
    void *device = NULL;
    ZR_TRY(ON_DEVICE_TAKE(on, {&device, LINK_BYTES}));
    for (int i = 0; i < 4; i++) {
        copies[i] =
            (link_copy_t){.device = device,
                          .host = host,
                          .size_bytes = i < 2 ? LINK_BYTES : 256,
                          .kind = i % 2 == 0 ? ZR_COPY_HOST_TO_DEVICE : ZR_COPY_DEVICE_TO_HOST};
        works[i] = (work_t){.queue = queue_copy, .context = &copies[i]};
    }
    zr_status_t status = machine_rank_time(rank, works, 4, on->stream);
    for (int i = 0; i < 2; i++) {
        figures->copy_s[i] = bench_times_median(&works[2 + i].times);
        figures->copy_bytes_per_s[i] = (double)LINK_BYTES / bench_times_median(&works[i].times);
    }
    works_free(works, 4);
    return status;
}

static zr_status_t measure_link(machine_rank_t *rank, const on_device_options_t *on_options) {
    on_device_t on = {0};
    void *host = NULL;
    zr_status_t status = on_device_open(on_options, &on);
    ZR_THEN(status, zr_range_reserve(on.device, ZR_TIER_HOST, LINK_BYTES, &host));
    ZR_THEN(status, zr_range_map(on.device, ZR_TIER_HOST, host, 0, LINK_BYTES));
    ZR_THEN(status, time_copies(rank, &on, host));
    if (on.device != NULL)
        zr_range_release(on.device, ZR_TIER_HOST, &host, LINK_BYTES);
    on_device_close(&on);
    return status;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

zr_status_t machine_rank_run(machine_rank_t *rank) {
    on_device_options_t device = on_device_options_default(&rank->options->log);
    on_device_options_t host = device;
    host.n_threads = (size_t)rank->options->n_threads;
    device.device = rank->options->device;
    if (rank->is_host)
        device = host;
    ZR_TRY(machine_rank_processor(rank, &device, &rank->figures.device));
    if (rank->options->n_ranks > 1)
        ZR_TRY(measure_collectives(rank, &device));
    if (!rank->is_host) {
        rank->sizes = machine_sizes(rank->options, true);
        ZR_TRY(machine_rank_processor(rank, &host, &rank->figures.host));
        ZR_TRY(measure_link(rank, &device));
    }
    return rank->options->paths == NULL ? ZR_OK : machine_rank_disk(rank);
}
