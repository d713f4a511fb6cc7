/* Descriptions of hardware: see hardware.h. One table has all figures, for every use of them. */
#include "kernels/base/hardware.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define FIELD(field) .name = #field, .offset = offsetof(zr_hardware_t, field)
#define RATE(field, of_cuda, text)                                                                 \
    { FIELD(field), .type = ZR_FIGURE_RATE, .is_of_cuda = (of_cuda), .what = (text) }
#define SECONDS(field, of_cuda, text)                                                              \
    { FIELD(field), .type = ZR_FIGURE_SECONDS, .is_of_cuda = (of_cuda), .what = (text) }
#define BYTES(field, of_cuda, power, text)                                                         \
    {                                                                                              \
        FIELD(field), .type = ZR_FIGURE_BYTES, .is_power_of_two = (power),                         \
                      .is_of_cuda = (of_cuda), .what = (text)                                      \
    }
#define COUNT(field, text)                                                                         \
    { FIELD(field), .type = ZR_FIGURE_COUNT, .what = (text) }

static const zr_figure_t figures[] = {
    COUNT(n_threads, "threads of a rank's host device"),
    {FIELD(cuda_major), .type = ZR_FIGURE_COUNT, .is_of_cuda = true,
     .what = "major compute capability"},
    BYTES(granule_bytes, false, true, "mapping unit of memory, at least 4096"),
    RATE(device.matrix_fp32_ops_per_s, false, "matrix products with fp32 operands; fma is two"),
    RATE(device.matrix_bf16_ops_per_s, false, "matrix products with bf16 operands"),
    RATE(device.matrix_fp32_bytes_per_s, false,
         "bytes of products with fp32 operands, not overlapped by operations"),
    RATE(device.matrix_bf16_bytes_per_s, false, "the same with bf16 operands"),
    {FIELD(device.attention_fraction), .type = ZR_FIGURE_FRACTION,
     .what = "part of these rates that attention reaches"},
    RATE(device.lm_head_ratio, false,
         "rate of the language model head to that of products, softmax included"),
    RATE(device.vector_ops_per_s, false, "other operations"),
    RATE(device.memory_bytes_per_s, false, "read plus written"),
    RATE(device.update_bytes_per_s, false, "likewise, by AdamW"),
    SECONDS(device.kernel_latency_s, false, "least time of a kernel"),
    RATE(host.matrix_fp32_ops_per_s, true, "the same of a rank's share of the processors"),
    RATE(host.matrix_bf16_ops_per_s, true, "the same"),
    RATE(host.matrix_fp32_bytes_per_s, true, "the same"),
    RATE(host.matrix_bf16_bytes_per_s, true, "the same"),
    {FIELD(host.attention_fraction), .type = ZR_FIGURE_FRACTION, .is_of_cuda = true,
     .what = "the same"},
    RATE(host.lm_head_ratio, true, "the same"),
    RATE(host.vector_ops_per_s, true, "the same"),
    RATE(host.memory_bytes_per_s, true, "the same"),
    RATE(host.update_bytes_per_s, true, "the same"),
    SECONDS(host.kernel_latency_s, true, "the same"),
    RATE(launch_s, false, "CPU time to queue a piece of work"),
    RATE(checksum_bytes_per_s, false, "checksums on one core"),
    RATE(disk_core_bytes_per_s, false, "transfers that one core starts and ends"),
    RATE(to_device.bytes_per_s, true, "copies from host memory to the device"),
    SECONDS(to_device.latency_s, true, "of one such copy"),
    RATE(to_host.bytes_per_s, true, "copies from the device to host memory"),
    SECONDS(to_host.latency_s, true, "of one such copy"),
    RATE(disk_read.bytes_per_s, false, "a rank's share of its drives"),
    SECONDS(disk_read.latency_s, false, "of one transfer"),
    RATE(disk_write.bytes_per_s, false, "a rank's share of its drives"),
    SECONDS(disk_write.latency_s, false, "of one transfer"),
    RATE(disk_both_bytes_per_s, false, "both directions together"),
    RATE(within_node.bytes_per_s, false, "of a rank to others of its node, one direction"),
    SECONDS(within_node.latency_s, false, "of one step of a collective"),
    RATE(between_nodes.bytes_per_s, false, "of a node to others, one direction"),
    SECONDS(between_nodes.latency_s, false, "of one step of a collective"),
    RATE(reduce_bytes_per_s, false, "data that a rank receives and adds in a collective"),
    COUNT(ranks_per_node, "ranks that share a machine"),
    BYTES(disk_block_bytes, false, true, "unit of transfers to and from a drive"),
    BYTES(disk_align_bytes, false, true, "alignment of memory for transfers without a copy"),
    BYTES(device_memory_bytes, true, false, "of a rank's device"),
    {FIELD(device_in_use_bytes), .type = ZR_FIGURE_BYTES, .is_of_cuda = true, .may_be_zero = true,
     .what = "part of it used by context and libraries"},
    BYTES(host_memory_bytes, false, false, "a rank's share"),
    BYTES(disk_bytes, false, false, "a rank's share"),
};
#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))

const zr_figure_t *zr_hardware_figures(size_t *n_figures_p) {
    *n_figures_p = N_FIGURES;
    return figures;
}

const char *zr_hardware_kind_name(zr_hardware_kind_t kind) {
    return kind == ZR_HARDWARE_HOST ? "host" : "cuda";
}

zr_hardware_t zr_hardware_default(void) {
    const zr_processor_t core = {.matrix_fp32_ops_per_s = 60e9,
                                 .matrix_bf16_ops_per_s = 60e9,
                                 .matrix_fp32_bytes_per_s = 1e18,
                                 .matrix_bf16_bytes_per_s = 1e18,
                                 .attention_fraction = 0.5,
                                 .lm_head_ratio = 1.0,
                                 .vector_ops_per_s = 5e9,
                                 .memory_bytes_per_s = 10e9,
                                 .update_bytes_per_s = 10e9,
                                 .kernel_latency_s = 2e-6};
    return (zr_hardware_t){.name = "two cores, as tests use them",
                           .kind = ZR_HARDWARE_HOST,
                           .n_threads = 1,
                           .cuda_major = 8,
                           .granule_bytes = 4096,
                           .device = core,
                           .host = core,
                           .launch_s = 1e-6,
                           .checksum_bytes_per_s = 10e9,
                           .disk_core_bytes_per_s = 1e15,
                           .to_device = {10e9, 5e-6},
                           .to_host = {10e9, 5e-6},
                           .disk_read = {1e9, 100e-6},
                           .disk_write = {1e9, 100e-6},
                           .disk_both_bytes_per_s = 2e9,
                           .within_node = {5e9, 2e-6},
                           .between_nodes = {1e9, 20e-6},
                           .reduce_bytes_per_s = 5e9,
                           .ranks_per_node = 4,
                           .disk_block_bytes = 4096,
                           .disk_align_bytes = 4096,
                           .device_memory_bytes = (size_t)16 << 30,
                           .host_memory_bytes = (size_t)16 << 30,
                           .disk_bytes = (size_t)64 << 30,
                           .pinned_bytes = SIZE_MAX};
}

size_t zr_hardware_device_room(const zr_hardware_t *hardware) {
    size_t all = hardware->device_memory_bytes, in_use = hardware->device_in_use_bytes;
    return all > in_use ? all - in_use : 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

double zr_hardware_figure(const zr_hardware_t *hardware, const zr_figure_t *figure) {
    const char *place = (const char *)hardware + figure->offset;
    switch (figure->type) {
    case ZR_FIGURE_BYTES:
        return (double)*(const size_t *)place;
    case ZR_FIGURE_COUNT:
        return (double)*(const int *)place;
    default:
        return *(const double *)place;
    }
}

void zr_hardware_set_figure(zr_hardware_t *hardware, const zr_figure_t *figure, double value) {
    char *place = (char *)hardware + figure->offset;
    switch (figure->type) {
    case ZR_FIGURE_BYTES:
        *(size_t *)place = (size_t)value;
        break;
    case ZR_FIGURE_COUNT:
        *(int *)place = (int)value;
        break;
    default:
        *(double *)place = value;
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

typedef struct range {
    double least, most;
    const char *text;
} range_t;

static range_t range_of(const zr_figure_t *figure) {
    switch (figure->type) {
    case ZR_FIGURE_RATE:
        return (range_t){DBL_MIN, 1e30, "above 0"};
    case ZR_FIGURE_SECONDS:
        return (range_t){0.0, 1e9, "at least 0"};
    case ZR_FIGURE_FRACTION:
        return (range_t){DBL_MIN, 1.0, "above 0 and at most 1"};
    case ZR_FIGURE_COUNT:
        return (range_t){1.0, 1 << 20, "1 to 1048576"};
    case ZR_FIGURE_BYTES:
        break;
    }
    return figure->may_be_zero ? (range_t){0.0, 0x1p52, "0 to 2^52"}
                               : (range_t){1.0, 0x1p52, "1 to 2^52"};
}

static zr_status_t check_figure(const zr_hardware_t *hardware, const zr_figure_t *figure,
                                const char *whose, const zr_log_t *log) {
    double value = zr_hardware_figure(hardware, figure);
    range_t range = range_of(figure);
    if (figure->is_of_cuda && hardware->kind == ZR_HARDWARE_HOST)
        return ZR_OK;
    if (!(value >= range.least && value <= range.most))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s is %g; it must be %s", whose, figure->name,
                       value, range.text);
    size_t bytes = figure->is_power_of_two ? (size_t)value : 1;
    if ((bytes & (bytes - 1)) != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s is %zu; it must be a power of two", whose,
                       figure->name, bytes);
    return ZR_OK;
}

zr_status_t zr_hardware_check_of(const zr_hardware_t *hardware, const char *whose,
                                 const zr_log_t *log) {
    zr_status_t first = ZR_OK;
    if (hardware->kind != ZR_HARDWARE_HOST && hardware->kind != ZR_HARDWARE_CUDA)
        first = zr_fail(log, ZR_ERR_ARGUMENT, "%s: kind %d; it must be host or cuda", whose,
                        (int)hardware->kind);
    for (size_t i = 0; i < N_FIGURES; i++) {
        zr_status_t status = check_figure(hardware, &figures[i], whose, log);
        first = first == ZR_OK ? status : first;
    }
    if (hardware->granule_bytes < 4096)
        first = zr_fail(log, ZR_ERR_ARGUMENT, "%s: granule_bytes is %zu; it must be at least 4096",
                        whose, hardware->granule_bytes);
    return first;
}

zr_status_t zr_hardware_check(const zr_hardware_t *hardware, const zr_log_t *log) {
    char whose[sizeof(hardware->name) + 16];
    snprintf(whose, sizeof(whose), "hardware \"%.63s\"", hardware->name);
    return zr_hardware_check_of(hardware, whose, log);
}
