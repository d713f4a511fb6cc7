/* See comm_rank.h: what ranks do in turns, and how many bytes it has to move. */
#include "examples/bench/comm_rank.h"

double comm_least_bytes(zr_collective_t collective, bool in_place, double tensor_bytes,
                        int n_ranks) {
    double n = (double)n_ranks;
    switch (collective) {
    case ZR_ALL_GATHER: /* each block is read once; in place no rank writes its own */
        return tensor_bytes + (in_place ? n - 1.0 : n) * tensor_bytes;
    case ZR_REDUCE_SCATTER: /* all tensors are read, and a block written on each rank */
        return n * tensor_bytes + tensor_bytes;
    case ZR_ALL_REDUCE: /* all tensors are read and written */
        return 2.0 * n * tensor_bytes;
    case ZR_BROADCAST: /* root's is read, the others' are written */
        return n * tensor_bytes;
    case ZR_ALL_TO_ALL: /* all are read and written */
        return 2.0 * n * tensor_bytes;
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return 0.0;
}

size_t comm_block_bytes(const comm_rank_t *rank, const comm_row_t *row) {
    return row->block_elems * zr_dtype_size(rank->options->dtype);
}

size_t comm_tensor_elems(const comm_rank_t *rank, const comm_row_t *row) {
    return row->block_elems * (size_t)rank->options->n_ranks;
}

char *comm_block(const comm_rank_t *rank, const comm_row_t *row) {
    size_t offset = (size_t)rank->of->rank * comm_block_bytes(rank, row);
    return row->in_place ? rank->whole + offset : rank->other;
}

static zr_status_t call(comm_rank_t *rank, const comm_row_t *row) {
    const zr_message_t message = {
        .tensor = "measured", .dtype = rank->options->dtype, .traffic = ZR_TRAFFIC_MODEL};
    zr_stream_t *stream = rank->on.stream;
    char *block = comm_block(rank, row);
    size_t n = row->block_elems, n_all = comm_tensor_elems(rank, row);
    switch (row->collective) {
    case ZR_ALL_GATHER:
        return zr_comm_all_gather(rank->of->comm, &message, block, rank->whole, n, stream);
    case ZR_REDUCE_SCATTER:
        return zr_comm_reduce_scatter(rank->of->comm, &message, rank->whole, block, n, stream);
    case ZR_ALL_REDUCE:
        return zr_comm_all_reduce(rank->of->comm, &message, rank->whole, n_all, stream);
    case ZR_BROADCAST:
        return zr_comm_broadcast(rank->of->comm, &message, rank->whole, n_all,
                                 rank->options->n_ranks - 1, stream);
    case ZR_ALL_TO_ALL:
        return zr_comm_all_to_all(rank->of->comm, &message, rank->whole, rank->other, n, stream);
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return ZR_ERR_UNSUPPORTED;
}

/* A rank's share of copies that read and write as much as the collective has to. Forth and back, so
 * that what is read was not read just before, and no more of it is in caches than of the tensors.
 */
static zr_status_t copy(comm_rank_t *rank, const comm_row_t *row, comm_copy_t way) {
    size_t n_bytes = (size_t)(row->bytes / 2.0 / rank->options->n_ranks);
    bool is_back = rank->n_copies++ % 2 == 1;
    char *dst = is_back ? rank->whole : rank->other, *src = is_back ? rank->other : rank->whole;
    if (!rank->is_host)
        return zr_copy_async(rank->on.stream, dst, src, n_bytes, ZR_COPY_DEVICE_TO_DEVICE);
    comm_copy_run(way, rank->crew, rank->options->n_threads, dst, src, n_bytes);
    return ZR_OK;
}

/* A rank's share of reading all tensors: its own. */
static zr_status_t read_tensor(comm_rank_t *rank, const comm_row_t *row) {
    size_t n_bytes = comm_block_bytes(rank, row) * (size_t)rank->options->n_ranks;
    comm_read_run(rank->crew, rank->options->n_threads, rank->whole, n_bytes);
    return ZR_OK;
}

static comm_mpi_call_t mpi_call_of(const comm_rank_t *rank, const comm_row_t *row) {
    return (comm_mpi_call_t){.collective = row->collective,
                             .in_place = row->in_place,
                             .dtype = rank->options->dtype,
                             .whole = rank->whole,
                             .block = rank->other,
                             .block_elems = row->block_elems,
                             .n_ranks = rank->options->n_ranks,
                             .root = rank->options->n_ranks - 1};
}

static zr_status_t call_mpi(comm_rank_t *rank, const comm_row_t *row, int way) {
    comm_mpi_call_t call = mpi_call_of(rank, row);
    char error[COMM_MPI_ERROR_BYTES] = "";
    if (rank->mpi->call(rank->mpi_ranks, &call, way, error))
        return ZR_OK;
    return zr_fail(zr_device_log(rank->on.device), ZR_ERR_COMM, "%s", error);
}

const char *comm_work_name(const comm_rank_t *rank, const comm_row_t *row, int work) {
    comm_mpi_call_t call = mpi_call_of(rank, row);
    return work < COMM_WORK_MPI ? zr_collective_name(row->collective)
                                : rank->mpi->name(&call, work - COMM_WORK_MPI);
}

/* On a device all copies are the same. A reduce-scatter reads as many times what it writes as there
 * are ranks: there, reading may be what takes the time. */
bool comm_has_work(const comm_rank_t *rank, const comm_row_t *row, int work) {
    if (work == COMM_WORK_OURS || work == COMM_COPY_MEMCPY)
        return true;
    if (work == COMM_WORK_READ)
        return rank->is_host && row->collective == ZR_REDUCE_SCATTER;
    if (work >= COMM_WORK_MPI)
        return rank->mpi != NULL && comm_work_name(rank, row, work) != NULL;
    return rank->is_host && comm_copy_exists((comm_copy_t)work);
}

zr_status_t comm_do_work(comm_rank_t *rank, const comm_row_t *row, int work) {
    if (work >= COMM_WORK_MPI)
        return call_mpi(rank, row, work - COMM_WORK_MPI);
    if (work == COMM_WORK_READ)
        return read_tensor(rank, row);
    return work == COMM_WORK_OURS ? call(rank, row) : copy(rank, row, (comm_copy_t)work);
}
