/*
 * A description of hardware: what a simulated device, communicator and store charge for.
 *
 * All figures are those of one rank: where ranks share a machine, each has its share of memory,
 * processors and drives. Rates are what real work reaches, not what a data sheet promises.
 * zr_hardware_read_json (zero/hardware_json.h) reads one from a file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

/** The device that a simulated one stands for: it has that one's properties and workspaces. */
typedef enum zr_hardware_kind {
    ZR_HARDWARE_HOST = 0, /* one memory, streams that run at once */
    ZR_HARDWARE_CUDA = 1  /* memory of its own, streams that run beside the processor */
} zr_hardware_kind_t;

/** "host" or "cuda". */
const char *zr_hardware_kind_name(zr_hardware_kind_t kind);

/** What computes. A kernel takes the longer of its operations and its bytes, and the latency;
 * matrix products that are small have more to move for each operation. */
typedef struct zr_processor {
    double matrix_fp32_ops_per_s; /* products with fp32 operands; an fma is two operations */
    double matrix_bf16_ops_per_s;
    double matrix_fp32_bytes_per_s; /* read plus written by a product and not hidden by its
                                       operations: a product takes the sum of both */
    double matrix_bf16_bytes_per_s;
    double attention_fraction; /* of those rates that attention reaches, above 0, at most 1 */
    double lm_head_ratio;      /* rate of the head's products to those, softmax included */
    double vector_ops_per_s;   /* everything else */
    double memory_bytes_per_s; /* read plus written */
    double update_bytes_per_s; /* likewise, by AdamW */
    double kernel_latency_s;
} zr_processor_t;

/** One direction of a connection: latency_s + bytes / bytes_per_s. */
typedef struct zr_link {
    double bytes_per_s;
    double latency_s;
} zr_link_t;

typedef struct zr_hardware {
    char name[64];
    zr_hardware_kind_t kind;
    int n_threads;        /* host: threads of a rank, which workspaces depend on */
    int cuda_major;       /* cuda: major compute capability, which workspaces depend on */
    size_t granule_bytes; /* mapping unit of memory, a power of two, at least 4096 */

    zr_processor_t device;
    zr_processor_t host; /* the rank's share of the machine's cores: updates of offloaded state.
                            Kind host: not used, the device is that */
    double launch_s;     /* the processor's time for queueing one piece of work; above 0 */
    double checksum_bytes_per_s;  /* making or verifying checksums, on one core */
    double disk_core_bytes_per_s; /* of a core that does nothing but start and end transfers */

    zr_link_t to_device, to_host;    /* kind host: not used, copies go through memory */
    zr_link_t disk_read, disk_write; /* a transfer each; both work side by side, */
    double disk_both_bytes_per_s;    /* and move no more than this together */
    zr_link_t within_node;           /* per rank */
    zr_link_t between_nodes;         /* per node: all its adapters together */
    double reduce_bytes_per_s;       /* that a rank takes in and adds up within a collective */
    int ranks_per_node;              /* at least 1 */
    size_t disk_block_bytes;         /* unit of what is moved, a power of two */
    size_t disk_align_bytes;         /* of memory, or the transfer is copied; likewise */

    size_t device_memory_bytes; /* kind host: not used, host memory is all there is */
    size_t device_in_use_bytes; /* of it, before a rank's first tensor: context, libraries; may be
                                   0, as where device_memory_bytes is without it */
    size_t host_memory_bytes;
    size_t disk_bytes;
} zr_hardware_t;

/**
 * A machine with two cores, as tests use it: kind host, 16 GiB of memory and 64 of disk, four ranks
 * to a node. Its rates are of the order that a core of a present server reaches.
 */
zr_hardware_t zr_hardware_default(void);

/** ZR_OK when all figures are possible; else ZR_ERR_ARGUMENT, and each that is not is logged. */
ZR_NODISCARD zr_status_t zr_hardware_check(const zr_hardware_t *hardware, const zr_log_t *log);
/** The same, where messages begin otherwise than with the name: with a file's. */
ZR_NODISCARD zr_status_t zr_hardware_check_of(const zr_hardware_t *hardware, const char *whose,
                                              const zr_log_t *log);

/** One figure of a description, for those who check, read or write them all. */
typedef enum zr_figure_type {
    ZR_FIGURE_RATE,     /* double, above 0 */
    ZR_FIGURE_SECONDS,  /* double, at least 0 */
    ZR_FIGURE_FRACTION, /* double, above 0, at most 1 */
    ZR_FIGURE_BYTES,    /* size_t */
    ZR_FIGURE_COUNT     /* int, at least 1 */
} zr_figure_type_t;

typedef struct zr_figure {
    const char *name; /* "device.memory_bytes_per_s" */
    zr_figure_type_t type;
    size_t offset;        /* in zr_hardware_t */
    bool is_power_of_two; /* BYTES */
    bool is_of_cuda;      /* not used by kind host */
    bool may_be_zero;     /* BYTES */
    const char *what;     /* for documents: what it says, and its unit */
} zr_figure_t;

/** All of them, in the order of zr_hardware_t; static. */
const zr_figure_t *zr_hardware_figures(size_t *n_figures_p);

/** Bytes of a device that a rank's tensors may have; kind cuda. */
size_t zr_hardware_device_room(const zr_hardware_t *hardware);

/** The value as a number, whatever its type. */
double zr_hardware_figure(const zr_hardware_t *hardware, const zr_figure_t *figure);
/** Set it; of types that are whole numbers the fraction is dropped. */
void zr_hardware_set_figure(zr_hardware_t *hardware, const zr_figure_t *figure, double value);

ZR_END_C
