/*
 * A description of hardware, used by simulated devices, communicators and stores.
 *
 * All figures are per rank: ranks of one machine share its memory, processors and drives. Rates are
 * measured ones, not those of a data sheet. zr_hardware_read_json (zero/hardware_json.h) reads one
 * from a file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

/** The kind of the simulated device, which determines its properties and workspaces. */
typedef enum zr_hardware_kind {
    ZR_HARDWARE_HOST = 0, /* one memory, synchronous streams */
    ZR_HARDWARE_CUDA = 1  /* separate memory, asynchronous streams */
} zr_hardware_kind_t;

/** "host" or "cuda". */
const char *zr_hardware_kind_name(zr_hardware_kind_t kind);

/** A processor. A kernel takes its latency plus the time of its operations or of its bytes,
 * whichever is longer. */
typedef struct zr_processor {
    double matrix_fp32_ops_per_s; /* products with fp32 operands; an fma is two operations */
    double matrix_bf16_ops_per_s;
    double matrix_fp32_bytes_per_s; /* rate for bytes of a product, which do not overlap with its
                                       operations: a product takes the sum of both */
    double matrix_bf16_bytes_per_s;
    double attention_fraction; /* fraction of those rates that attention reaches, > 0, at most 1 */
    double lm_head_ratio;      /* rate of the head's products relative to those, softmax included */
    double vector_ops_per_s;   /* everything else */
    double memory_bytes_per_s; /* read plus written */
    double update_bytes_per_s; /* read plus written by AdamW */
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
    int n_threads;                 /* host: threads of a rank; workspaces depend on it */
    int cuda_major;                /* cuda: major compute capability; workspaces depend on it */
    size_t matmul_workspace_bytes; /* cuda: as zr_device_info_t has it; in no file of hardware */
    size_t granule_bytes;          /* unit of mapping, a power of two, at least 4096 */

    zr_processor_t device;
    zr_processor_t host; /* the rank's share of the machine's cores: updates of offloaded state.
                            Kind host: not used, the device is the host */
    double launch_s;     /* CPU time to queue one piece of work; > 0 */
    double checksum_bytes_per_s;  /* computing or verifying checksums, on one core */
    double disk_core_bytes_per_s; /* rate of transfers that one core can start and complete */

    zr_link_t to_device, to_host; /* kind host: not used, copies go through memory */
    zr_link_t disk_read,
        disk_write; /* rates of single transfers; reads and writes run concurrently, */
    double disk_both_bytes_per_s; /* limited by this total rate */
    zr_link_t within_node;        /* per rank */
    zr_link_t between_nodes;      /* per node: all its adapters together */
    double reduce_bytes_per_s;    /* rate at which a rank receives and adds data in a collective */
    int ranks_per_node;           /* at least 1 */
    size_t disk_block_bytes;      /* unit of transfers, a power of two */
    size_t disk_align_bytes; /* memory alignment for transfers without a copy, a power of two */

    size_t device_memory_bytes; /* kind host: not used, host memory is all there is */
    size_t device_in_use_bytes; /* part of it used before a rank's first tensor, by context and
                                   libraries; 0 if device_memory_bytes excludes it */
    size_t host_memory_bytes;
    size_t disk_bytes;
    size_t
        pinned_bytes; /* most that drives' buffers may pin, a rank's share of RLIMIT_MEMLOCK; 0:
                         they are not pinned. Of the process, and in no description of a machine */
} zr_hardware_t;

/**
 * A small machine for tests: two cores, kind host, 16 GiB of memory, 64 GiB of disk, four ranks per
 * node. Rates are roughly those of a current server core.
 */
zr_hardware_t zr_hardware_default(void);

/** ZR_OK if all figures are valid; else ZR_ERR_ARGUMENT, and each invalid one is logged. */
ZR_NODISCARD zr_status_t zr_hardware_check(const zr_hardware_t *hardware, const zr_log_t *log);
/** The same, but messages begin with `whose`, such as a file name. */
ZR_NODISCARD zr_status_t zr_hardware_check_of(const zr_hardware_t *hardware, const char *whose,
                                              const zr_log_t *log);

/** One figure of a description, for code that handles all of them. */
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
    const char *what;     /* meaning and unit, for documents */
} zr_figure_t;

/** All figures, in the order of zr_hardware_t; static. */
const zr_figure_t *zr_hardware_figures(size_t *n_figures_p);

/** Device memory available for a rank's tensors; kind cuda. */
size_t zr_hardware_device_room(const zr_hardware_t *hardware);

/** The value as a number, whatever its type. */
double zr_hardware_figure(const zr_hardware_t *hardware, const zr_figure_t *figure);
/** Set it; integer types drop the fraction. */
void zr_hardware_set_figure(zr_hardware_t *hardware, const zr_figure_t *figure, double value);

ZR_END_C
