/*
 * What one rank measures of the machine while all others do the same.
 */
#pragma once

#include "examples/bench/machine.h"
#include "examples/bench/on_device.h"

/** A rate of what other work hides: it adds no time that could be seen. */
#define MACHINE_HIDDEN 1e18

/** What computes, as measured. */
typedef struct machine_processor {
    double matrix_ops_per_s[2]; /* of F32 and BF16 */
    double matrix_bytes_per_s[2];
    double attention_ratio[2]; /* of its operations' rate to that of products */
    double lm_head_ratio[2];
    double vector_per_s;
    double memory_bytes_per_s;
    double update_bytes_per_s;
    double queue_s, kernel_s; /* to queue a kernel that does nothing, and until it is done */
} machine_processor_t;

typedef struct machine_figures {
    machine_processor_t device;
    machine_processor_t host;   /* beside a device that is another */
    double gather_s, scatter_s; /* of sizes.comm_bytes */
    double small_gather_s;      /* of a few */
    double copy_bytes_per_s[2]; /* to the device, to the host */
    double copy_s[2];           /* of a few bytes */
    double disk_bytes_per_s[2]; /* of ZR_STORE_PUT, ZR_STORE_GET */
    double disk_both_bytes_per_s;
    double disk_s[2]; /* of a block */
    double checksum_bytes_per_s;
    double disk_core_bytes_per_s; /* of all ranks together, by the time of all processors */
} machine_figures_t;

/** A layer's products. */
typedef struct machine_layer {
    size_t n_rows, channels;
} machine_layer_t;

/** How much is worked on. */
typedef struct machine_sizes {
    machine_layer_t large, small; /* with more and with fewer operations for each byte: of a host by
                                     rows, of a GPU, which few rows do not fill, by channels */
    size_t n_rows;                /* of a micro-batch */
    size_t channels;
    size_t seq, vocab;
    size_t update_elems;
    size_t comm_bytes;   /* of all ranks together */
    size_t file_bytes;   /* of a rank */
    uint64_t pass_bytes; /* that it writes and reads */
} machine_sizes_t;
machine_sizes_t machine_sizes(const machine_options_t *options, bool is_host);

/** What all ranks look at. */
typedef struct machine_shared {
    size_t n_calls; /* rank 0's, who writes it between two barriers */
    bool goes_on;   /* likewise */
    double *begins; /* [n_ranks], each written by its rank before a barrier and read after it */
    double *ends;   /* likewise */
} machine_shared_t;

typedef struct machine_rank {
    int number;
    zr_comm_t *comm;
    const machine_options_t *options;
    machine_shared_t *shared;
    bool is_host; /* the device */
    machine_sizes_t sizes;
    const on_device_options_t *opened; /* the processor that is measured now */
    machine_figures_t figures;
} machine_rank_t;

/** A rank's work: its number and communicator are set. */
ZR_NODISCARD zr_status_t machine_rank_run(machine_rank_t *rank);

/*
 * For its files.
 */

/**
 * Warm up, then time in turns for about options->seconds, all ranks the same work at the same
 * time: from when the first begins until the last has ended, or ranks that wait for a processor
 * would not be seen to.
 *
 * @param works  freed by the caller
 */
ZR_NODISCARD zr_status_t machine_rank_time(machine_rank_t *rank, work_t *works, size_t n_works,
                                           zr_stream_t *stream);

/** Processors: kernels of a model, of memory, and the update (machine_kernels.c). */
ZR_NODISCARD zr_status_t machine_rank_processor(machine_rank_t *rank, const on_device_options_t *on,
                                                machine_processor_t *processor);
/** Drives (machine_disk.c). */
ZR_NODISCARD zr_status_t machine_rank_disk(machine_rank_t *rank);
