/* See ../comm_mpi.h. Nothing else of the programs includes mpi.h. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "examples/bench/comm_mpi.h"

typedef struct ranks {
    MPI_Comm comm;
} ranks_t;

static bool is_fine(int code, const char *what, char *error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return true;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", code);
    snprintf(error, COMM_MPI_ERROR_BYTES, "%s: %.200s", what, text);
    return false;
}

static void *begin(char *error) {
    ranks_t *ranks = calloc(1, sizeof(*ranks));
    if (ranks == NULL) {
        snprintf(error, COMM_MPI_ERROR_BYTES, "no memory for a communicator of MPI");
        return NULL;
    }
    if (is_fine(MPI_Comm_dup(MPI_COMM_WORLD, &ranks->comm), "MPI_Comm_dup", error) &&
        is_fine(MPI_Comm_set_errhandler(ranks->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler",
                error))
        return ranks;
    free(ranks);
    return NULL;
}

/* Sums know fp32 alone; what is only moved may be of two bytes, too. */
static MPI_Datatype type_of(zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_F32 ? MPI_FLOAT : MPI_UINT16_T;
}

static const char *name(const comm_mpi_call_t *call, int way) {
    bool is_sum = call->collective == ZR_REDUCE_SCATTER || call->collective == ZR_ALL_REDUCE;
    if (call->block_elems > (size_t)INT_MAX / (size_t)call->n_ranks ||
        (call->dtype != ZR_DTYPE_F32 && (is_sum || zr_dtype_size(call->dtype) != 2)) ||
        (way > 0 && call->collective != ZR_REDUCE_SCATTER))
        return NULL;
    switch (call->collective) {
    case ZR_ALL_GATHER:
        return "MPI_Allgather";
    case ZR_REDUCE_SCATTER:
        return way == 0 ? "MPI_Reduce_scatter" : "MPI_Reduce_scatter_block";
    case ZR_ALL_REDUCE:
        return "MPI_Allreduce";
    case ZR_BROADCAST:
        return "MPI_Bcast";
    case ZR_ALL_TO_ALL:
        return "MPI_Alltoall";
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return NULL;
}

static int reduce_scatter(MPI_Comm comm, const comm_mpi_call_t *call, int way) {
    int counts[ZR_MAX_SUM_SOURCES], n = (int)call->block_elems;
    const void *send = call->in_place ? MPI_IN_PLACE : call->whole;
    void *recv = call->in_place ? call->whole : call->block;
    for (int rank = 0; rank < call->n_ranks; rank++)
        counts[rank] = n;
    return way == 0 ? MPI_Reduce_scatter(send, recv, counts, MPI_FLOAT, MPI_SUM, comm)
                    : MPI_Reduce_scatter_block(send, recv, n, MPI_FLOAT, MPI_SUM, comm);
}

static bool call_mpi(void *argument, const comm_mpi_call_t *call, int way, char *error) {
    MPI_Comm comm = ((ranks_t *)argument)->comm;
    MPI_Datatype type = type_of(call->dtype);
    int n = (int)call->block_elems, n_all = n * call->n_ranks, code = MPI_ERR_OTHER;
    switch (call->collective) {
    case ZR_ALL_GATHER:
        code = MPI_Allgather(call->in_place ? MPI_IN_PLACE : call->block, n, type, call->whole, n,
                             type, comm);
        break;
    case ZR_REDUCE_SCATTER:
        code = reduce_scatter(comm, call, way);
        break;
    case ZR_ALL_REDUCE:
        code = MPI_Allreduce(MPI_IN_PLACE, call->whole, n_all, type, MPI_SUM, comm);
        break;
    case ZR_BROADCAST:
        code = MPI_Bcast(call->whole, n_all, type, call->root, comm);
        break;
    case ZR_ALL_TO_ALL:
        code = MPI_Alltoall(call->whole, n, type, call->block, n, type, comm);
        break;
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return is_fine(code, name(call, way), error);
}

static void end(void *argument) {
    ranks_t *ranks = argument;
    (void)MPI_Comm_free(&ranks->comm);
    free(ranks);
}

__attribute__((visibility("default"))) extern const comm_mpi_module_t comm_mpi_module;

const comm_mpi_module_t comm_mpi_module = {
    .version = COMM_MPI_MODULE_VERSION, .begin = begin, .name = name, .call = call_mpi, .end = end};
