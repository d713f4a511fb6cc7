/*
 * What the AdamW benchmarks share: the options, and the step in memory.
 */
#ifndef EXAMPLES_BENCH_ADAM_H
#define EXAMPLES_BENCH_ADAM_H

#include "examples/bench/bench.h"
#include "examples/bench/stream.h"

typedef struct adam_options {
    bench_common_t common;
    size_t n_elems; /* 0: the default */
    size_t n_threads;
    zr_dtype_t dtype;
    const char *isa;
    double seconds;
    zr_offload_device_t offload;
    const char *paths;      /* of offload to NVMe; "dir,dir" */
    size_t sub_group_elems; /* of offload; 0: the runtime's */
    size_t n_buffers;       /* of offload to NVMe; 0: the runtime's */
    bool verify;
    const char *nvme_given; /* an option that means something with NVMe only; NULL: none */
    const zr_log_t *log;
} adam_options_t;

#define ADAM_MIN_ROUNDS 5

/** The step over arrays in memory, and a loop of the same reads and writes. */
typedef struct adam_bench {
    zr_device_t *device;
    zr_stream_t *queue;
    void *range;
    size_t range_bytes;
    zr_adamw_t args;
    stream_t *stream;
    bench_times_t adam_times, stream_times;
} adam_bench_t;

/** Open the device and make the arrays. Undo with adam_tear_down, also after an error. */
ZR_NODISCARD zr_status_t adam_set_up(adam_bench_t *bench, const adam_options_t *options);
void adam_tear_down(adam_bench_t *bench);
/** One step over all elements. */
ZR_NODISCARD zr_status_t adam_time(adam_bench_t *bench, double *seconds_p);

/**
 * Updates of offloaded state against the larger of what their bytes and their elements take.
 *
 * @return what the program exits with
 */
int adam_offload_run(const adam_options_t *options);

#endif
