/* See comm_rank.h: whether the results of a collective are right. */
#include "examples/bench/comm_rank.h"

/* Small whole numbers, whose sums over all ranks are exact in bf16. */
static unsigned value_of(int rank, size_t index) {
    return (((uint32_t)index * 0x9e3779b1u) ^ ((uint32_t)(rank + 1) * 0x85ebca6bu)) >> 13 & 3u;
}

/* No value, and no sum of any that are exact. */
static const float untouched = -1.0f;

static float expected_at(const comm_rank_t *rank, const comm_row_t *row, size_t index) {
    int n_ranks = rank->options->n_ranks;
    unsigned sum = 0;
    if (row->collective == ZR_ALL_GATHER)
        return (float)value_of((int)(index / row->block_elems), index);
    if (row->collective == ZR_ALL_TO_ALL)
        return (float)value_of((int)(index / row->block_elems),
                               (size_t)rank->of->rank * row->block_elems +
                                   index % row->block_elems);
    if (row->collective == ZR_BROADCAST)
        return (float)value_of(n_ranks - 1, index);
    for (int other = 0; other < n_ranks; other++)
        sum += value_of(other, index);
    return (float)sum;
}

static void put(void *numbers, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_BF16)
        ((zr_bf16_t *)numbers)[i] = zr_bf16_from_f32(value);
    else
        ((float *)numbers)[i] = value;
}

static float get(const void *numbers, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_BF16 ? zr_bf16_to_f32(((const zr_bf16_t *)numbers)[i])
                                  : ((const float *)numbers)[i];
}

/* A part of a tensor: n_elems at data, the first of which is number `first` of the tensor. */
typedef struct part {
    char *data;
    size_t first, n_elems;
} part_t;

static part_t own_block(const comm_rank_t *rank, const comm_row_t *row) {
    return (part_t){.data = comm_block(rank, row),
                    .first = (size_t)rank->of->rank * row->block_elems,
                    .n_elems = row->block_elems};
}

static part_t whole_tensor(const comm_rank_t *rank, const comm_row_t *row) {
    return (part_t){.data = rank->whole, .n_elems = comm_tensor_elems(rank, row)};
}

static zr_status_t write_values(comm_rank_t *rank, part_t part) {
    zr_dtype_t dtype = rank->options->dtype;
    size_t elem_bytes = zr_dtype_size(dtype), most = COMM_STAGING_BYTES / elem_bytes;
    for (size_t done = 0; done < part.n_elems; done += most) {
        size_t n = part.n_elems - done < most ? part.n_elems - done : most;
        for (size_t i = 0; i < n; i++)
            put(rank->staging, dtype, i, (float)value_of(rank->of->rank, part.first + done + i));
        ZR_TRY(zr_copy_async(rank->on.stream, part.data + done * elem_bytes, rank->staging,
                             n * elem_bytes, ZR_COPY_HOST_TO_DEVICE));
        ZR_TRY(zr_stream_synchronize(rank->on.stream));
    }
    return ZR_OK;
}

static zr_status_t check_values(comm_rank_t *rank, const comm_row_t *row, int work, part_t part) {
    zr_dtype_t dtype = rank->options->dtype;
    size_t elem_bytes = zr_dtype_size(dtype), most = COMM_STAGING_BYTES / elem_bytes;
    for (size_t done = 0; done < part.n_elems; done += most) {
        size_t n = part.n_elems - done < most ? part.n_elems - done : most;
        ZR_TRY(zr_copy_async(rank->on.stream, rank->staging, part.data + done * elem_bytes,
                             n * elem_bytes, ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(rank->on.stream));
        for (size_t i = 0; i < n; i++) {
            size_t index = part.first + done + i;
            float value = get(rank->staging, dtype, i), wanted = expected_at(rank, row, index);
            if (value != wanted)
                return zr_fail(zr_device_log(rank->on.device), ZR_ERR_COMM,
                               "%s of %s: element %zu is %g instead of %g",
                               comm_work_name(rank, row, work),
                               zr_count_text(comm_tensor_elems(rank, row), "element").text, index,
                               (double)value, (double)wanted);
        }
    }
    return ZR_OK;
}

zr_status_t comm_check(comm_rank_t *rank, const comm_row_t *row, int work) {
    bool is_gather = row->collective == ZR_ALL_GATHER;
    size_t n = comm_tensor_elems(rank, row);
    zr_stream_t *stream = rank->on.stream;
    ZR_TRY(zr_kernel_fill(stream, rank->whole, rank->options->dtype, n, untouched));
    ZR_TRY(zr_kernel_fill(stream, rank->other, rank->options->dtype, n, untouched));
    ZR_TRY(write_values(rank, is_gather ? own_block(rank, row) : whole_tensor(rank, row)));
    ZR_TRY(comm_do_work(rank, row, work));
    ZR_TRY(zr_stream_synchronize(stream));
    ZR_TRY(zr_comm_check(rank->of->comm));
    part_t result = whole_tensor(rank, row);
    if (row->collective == ZR_REDUCE_SCATTER)
        result = own_block(rank, row);
    if (row->collective == ZR_ALL_TO_ALL)
        result.data = rank->other;
    if (row->collective == ZR_REDUCE_SCATTER && row->in_place && work >= COMM_WORK_MPI)
        result.data = rank->whole; /* where MPI has it */
    ZR_TRY(check_values(rank, row, work, result));
    /* What is summed again and again stays 0. */
    ZR_TRY(zr_kernel_fill(stream, rank->whole, rank->options->dtype, n, 0.0f));
    return zr_kernel_fill(stream, rank->other, rank->options->dtype, n, 0.0f);
}
