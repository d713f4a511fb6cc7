/*
 * What the benchmarks of optimizers share: the options, and the step in memory.
 */
#ifndef EXAMPLES_BENCH_ADAM_H
#define EXAMPLES_BENCH_ADAM_H

#include "examples/bench/on_device.h"
#include "examples/bench/stream.h"

typedef struct adam_options {
    on_device_options_t on;
    size_t n_elems; /* 0: the default */
    zr_dtype_t dtype;
    int optimizer, isa; /* of their choices; isa 0: the best */
    const zr_optimizer_type_t *type;
    zr_state_form_t state;
    zr_offload_device_t offload;
    const char *paths;      /* of offload to NVMe; "dir,dir" */
    size_t sub_group_elems; /* of offload; 0: the runtime's */
    size_t n_buffers;       /* of offload to NVMe; 0: the runtime's */
    bool verify;
} adam_options_t;

#define ADAM_MIN_ROUNDS ON_DEVICE_MIN_ROUNDS

/** The step over arrays in memory, and what its reads and writes alone take: on the host a loop
 * that does them, elsewhere the device's copy of half as many bytes, which moves as many. */
typedef struct adam_bench {
    on_device_t on;
    zr_update_rule_t rule;
    zr_update_t args;
    stream_t *stream;          /* of the host */
    void *copy_from, *copy_to; /* elsewhere */
    work_t works[2];           /* the step, and its limit */
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
