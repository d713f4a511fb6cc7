/*
 * The communicator `nccl`: a GPU per rank, data through NCCL, agreement through control.h.
 *
 * NCCL does not notice ranks that are in different calls: it hangs, or mixes their data up. So
 * ranks agree on every call before it is queued, as those of the other communicators do, and meet
 * once more when it is: then all have queued it, or all know that one could not. Both happen
 * while the device still works on earlier calls.
 *
 * NCCL adds in an order that depends on the topology, and rounds after every addition. Sums in rank
 * order are made by ourselves: ranks send each other the slices that each of them owns, which is
 * as many bytes as NCCL's reduce-scatter moves over links between peers, and a kernel adds them.
 * What does not fit the workspace goes in pieces: while one is added, the next is exchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "allocator/allocator.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/kernels.h"
#include "zero/comm/mpi/machines.h"
#include "zero/comm/mpi/mpi_site.h"
#include "zero/comm/nccl/nccl_link.h"

/* Where pieces of a sum are added while the next ones are exchanged. */
typedef struct adder {
    zr_stream_t *stream;   /* NULL until a sum has two pieces */
    zr_event_t *exchanged; /* the piece that is queued next on `stream` */
    zr_event_t *added[2];  /* of every second piece, the last */
} adder_t;

typedef struct nccl_comm {
    zr_comm_t base;
    zr_mpi_site_t *site; /* by which processes have found each other; mostly NULL */
    zr_nccl_library_t nccl;
    zr_nccl_link_t *link; /* NULL until the first call with data */
    adder_t adder;
    zr_allocator_t *own_allocator; /* NULL until memory is needed that no other is there for */
    bool is_logged;                /* what has just failed was reported where it was found */
    ncclUniqueId *ids;             /* [n_ranks] of which rank 0's counts */
    const void *sources[];         /* [n_ranks] of zr_kernel_sum */
} nccl_comm_t;

static ncclDataType_t type_of(zr_dtype_t dtype) {
    switch (dtype) {
    case ZR_DTYPE_F32:
        return ncclFloat32;
    case ZR_DTYPE_BF16:
        return ncclBfloat16;
    case ZR_DTYPE_F64:
        return ncclFloat64;
    case ZR_DTYPE_I32:
        return ncclInt32;
    case ZR_DTYPE_U8:
        break;
    }
    return ncclUint8;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* A failure of the device's, which it has logged. */
static zr_status_t note_logged(nccl_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    self->is_logged = true;
    zr_control_kill_for_failure(self->base.control, call, status);
    return status;
}

/* The first meeting; at the first call with data, rank 0 gives the id of NCCL's communicator. */
static zr_status_t arrive(nccl_comm_t *self, const zr_comm_call_t *call) {
    ncclUniqueId own = {{0}};
    ncclResult_t result = ncclSuccess;
    if (self->link != NULL)
        return zr_control_arrive(&self->base, call, NULL, 0, NULL);
    if (self->base.rank == 0)
        result = self->nccl.ncclGetUniqueId_p(&own);
    if (result != ncclSuccess)
        zr_control_kill(self->base.control, "failed in ncclGetUniqueId: %s",
                        self->nccl.ncclGetErrorString_p(result));
    return zr_control_arrive(&self->base, call, &own, sizeof(own), self->ids);
}

/* ---- what moves data alone ------------------------------------------------------------------- */

/* A call, and which part of it is in the group that is being made. */
typedef struct parts {
    nccl_comm_t *self;
    const zr_comm_call_t *call;
    char *workspace;    /* [n_ranks - 1][piece_elems]: what the others send */
    size_t piece_elems; /* of each slice at most, in one group */
    size_t begin;       /* of the piece, in each slice */
    zr_stream_t *adds;  /* where the piece is added */
} parts_t;

/* What moves data alone, and sums as NCCL makes them. */
static ncclResult_t make_part(zr_nccl_link_t *link, void *context) {
    const zr_comm_call_t *call = ((const parts_t *)context)->call;
    const zr_nccl_library_t *nccl = &link->nccl;
    ncclDataType_t type = type_of(call->message.dtype);
    cudaStream_t stream = zr_cuda_queue(call->stream);
    const void *send = call->send;
    void *recv = call->recv;
    size_t n = call->n_elems;
    if (call->collective == ZR_ALL_GATHER)
        return nccl->ncclAllGather_p(send, recv, n, type, link->handle, stream);
    if (call->collective == ZR_BROADCAST)
        return nccl->ncclBroadcast_p(send, recv, n, type, call->root, link->handle, stream);
    if (call->collective == ZR_ALL_REDUCE)
        return nccl->ncclAllReduce_p(send, recv, n, type, ncclSum, link->handle, stream);
    return nccl->ncclReduceScatter_p(send, recv, n, type, ncclSum, link->handle, stream);
}

/* To each rank, this one, too, its block, and from each the one for this. */
static ncclResult_t exchange_blocks_part(zr_nccl_link_t *link, void *context) {
    const parts_t *parts = context;
    const zr_comm_call_t *call = parts->call;
    ncclDataType_t type = type_of(call->message.dtype);
    cudaStream_t stream = zr_cuda_queue(call->stream);
    size_t block_bytes = call->n_elems * zr_dtype_size(call->message.dtype);
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < parts->self->base.n_ranks; rank++) {
        size_t at = (size_t)rank * block_bytes;
        if (result == ncclSuccess || result == ncclInProgress)
            result = link->nccl.ncclSend_p((const char *)call->send + at, call->n_elems, type, rank,
                                           link->handle, stream);
        if (result == ncclSuccess || result == ncclInProgress)
            result = link->nccl.ncclRecv_p((char *)call->recv + at, call->n_elems, type, rank,
                                           link->handle, stream);
    }
    return result;
}

/* ---- sums in rank order --------------------------------------------------------------------- */

/* The slice that a rank adds: its block of reduce_scatter, its share of all_reduce. */
static size_t slice_begin(const parts_t *parts, int rank) {
    const zr_comm_call_t *call = parts->call;
    if (call->collective == ZR_REDUCE_SCATTER)
        return (size_t)rank * call->n_elems;
    return zr_comm_slice_begin(call->n_elems, rank, parts->self->base.n_ranks);
}

/* Elements of a rank's slice that are in the piece. */
static size_t piece_elems(const parts_t *parts, int rank) {
    size_t slice_elems = slice_begin(parts, rank + 1) - slice_begin(parts, rank);
    size_t left = slice_elems > parts->begin ? slice_elems - parts->begin : 0;
    return left < parts->piece_elems ? left : parts->piece_elems;
}

static const char *elem_at(const parts_t *parts, const void *base, size_t index) {
    return (const char *)base + index * zr_dtype_size(parts->call->message.dtype);
}

/* Where what a peer sends is kept: places are by rank, without this one's. */
static char *place_of(const parts_t *parts, int peer) {
    size_t place = (size_t)(peer < parts->self->base.rank ? peer : peer - 1);
    return (char *)elem_at(parts, parts->workspace, place * parts->piece_elems);
}

/* To each peer its slice of what this rank has, from each its part of this rank's slice. */
static ncclResult_t exchange_part(zr_nccl_link_t *link, void *context) {
    const parts_t *parts = context;
    const zr_comm_call_t *call = parts->call;
    const zr_comm_t *comm = &parts->self->base;
    ncclDataType_t type = type_of(call->message.dtype);
    cudaStream_t stream = zr_cuda_queue(call->stream);
    size_t own_elems = piece_elems(parts, comm->rank);
    for (int i = 1; i < comm->n_ranks; i++) {
        int to = (comm->rank + i) % comm->n_ranks;
        int from = (comm->rank + comm->n_ranks - i) % comm->n_ranks;
        size_t to_elems = piece_elems(parts, to);
        ncclResult_t result = ncclSuccess;
        if (to_elems > 0)
            result = link->nccl.ncclSend_p(
                elem_at(parts, call->send, slice_begin(parts, to) + parts->begin), to_elems, type,
                to, link->handle, stream);
        if (own_elems > 0 && (result == ncclSuccess || result == ncclInProgress))
            result = link->nccl.ncclRecv_p(place_of(parts, from), own_elems, type, from,
                                           link->handle, stream);
        if (result != ncclSuccess && result != ncclInProgress)
            return result;
    }
    return ncclSuccess;
}

/* This rank's slice of the piece: the ranks' in their order. */
static zr_status_t add_piece(const parts_t *parts) {
    nccl_comm_t *self = parts->self;
    const zr_comm_call_t *call = parts->call;
    int own_rank = self->base.rank;
    size_t n_elems = piece_elems(parts, own_rank);
    size_t own = slice_begin(parts, own_rank) + parts->begin;
    size_t result = call->collective == ZR_REDUCE_SCATTER ? parts->begin : own;
    if (n_elems == 0)
        return ZR_OK;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        self->sources[rank] =
            rank == own_rank ? elem_at(parts, call->send, own) : place_of(parts, rank);
    zr_status_t status =
        zr_kernel_sum(parts->adds, (void *)elem_at(parts, call->recv, result), self->sources,
                      self->base.n_ranks, call->message.dtype, n_elems);
    return status == ZR_OK ? ZR_OK : note_logged(self, call, status);
}

/* ---- pieces in flight ---- */

static zr_status_t prepare_adder(adder_t *adder, zr_device_t *device) {
    if (adder->stream == NULL)
        ZR_TRY(zr_stream_create_concurrent(device, "sums", &adder->stream));
    if (adder->exchanged == NULL)
        ZR_TRY(zr_event_create(device, &adder->exchanged));
    for (int i = 0; i < 2; i++)
        if (adder->added[i] == NULL)
            ZR_TRY(zr_event_create(device, &adder->added[i]));
    return ZR_OK;
}

static void destroy_adder(adder_t *adder) {
    zr_stream_destroy(&adder->stream);
    zr_event_destroy(&adder->exchanged);
    for (int i = 0; i < 2; i++)
        zr_event_destroy(&adder->added[i]);
}

/* Exchange piece i on the call's stream, once the one before the last has been added, whose room it
 * takes; then add it while the call's stream exchanges the next. */
static zr_status_t exchange_and_add(parts_t *parts, size_t i) {
    nccl_comm_t *self = parts->self;
    const adder_t *adder = &self->adder;
    const zr_comm_call_t *call = parts->call;
    zr_status_t status = ZR_OK;
    if (i >= 2)
        status = zr_stream_wait(call->stream, adder->added[i % 2]);
    if (status != ZR_OK)
        return note_logged(self, call, status);
    ZR_TRY(zr_nccl_link_queue(self->link, call, exchange_part, parts));
    status = zr_event_record(adder->exchanged, call->stream);
    ZR_THEN(status, zr_stream_wait(adder->stream, adder->exchanged));
    if (status != ZR_OK)
        return note_logged(self, call, status);
    ZR_TRY(add_piece(parts));
    status = zr_event_record(adder->added[i % 2], adder->stream);
    return status == ZR_OK ? ZR_OK : note_logged(self, call, status);
}

/* What comes on the call's stream comes after the sums; where that cannot be said, after now. */
static zr_status_t join_adder(const adder_t *adder, const zr_comm_call_t *call) {
    zr_status_t status = zr_event_record(adder->added[0], adder->stream);
    ZR_THEN(status, zr_stream_wait(call->stream, adder->added[0]));
    if (status != ZR_OK && zr_stream_synchronize(adder->stream) != ZR_OK)
        return status;
    return status;
}

static zr_status_t add_slices(parts_t *parts, const zr_comm_pieces_t *pieces) {
    nccl_comm_t *self = parts->self;
    const zr_comm_call_t *call = parts->call;
    char *workspace = parts->workspace;
    parts->adds = call->stream;
    if (pieces->n_in_flight == 1) {
        ZR_TRY(zr_nccl_link_queue(self->link, call, exchange_part, parts));
        return add_piece(parts);
    }
    zr_status_t status = prepare_adder(&self->adder, zr_stream_device(call->stream));
    if (status != ZR_OK)
        return note_logged(self, call, status);
    parts->adds = self->adder.stream;
    for (size_t i = 0; i < pieces->n_pieces && status == ZR_OK; i++) {
        parts->begin = i * pieces->n_elems;
        parts->workspace = workspace + i % 2 * (pieces->workspace_bytes / 2);
        status = exchange_and_add(parts, i);
    }
    zr_status_t joined = join_adder(&self->adder, call);
    return status != ZR_OK || joined == ZR_OK ? status : note_logged(self, call, joined);
}

/* The slices of all_reduce, which are not all of one length: from each its own, to each this. */
static ncclResult_t gather_slices_part(zr_nccl_link_t *link, void *context) {
    const parts_t *parts = context;
    const zr_comm_call_t *call = parts->call;
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < parts->self->base.n_ranks; rank++) {
        size_t begin = slice_begin(parts, rank), end = slice_begin(parts, rank + 1);
        char *slice = (char *)elem_at(parts, call->recv, begin);
        if (end > begin && (result == ncclSuccess || result == ncclInProgress))
            result =
                link->nccl.ncclBroadcast_p(slice, slice, end - begin, type_of(call->message.dtype),
                                           rank, link->handle, zr_cuda_queue(call->stream));
    }
    return result;
}

static ncclResult_t gather_even_slices_part(zr_nccl_link_t *link, void *context) {
    const parts_t *parts = context;
    const zr_comm_call_t *call = parts->call;
    return link->nccl.ncclAllGather_p(
        elem_at(parts, call->recv, slice_begin(parts, parts->self->base.rank)), call->recv,
        call->n_elems / (size_t)parts->self->base.n_ranks, type_of(call->message.dtype),
        link->handle, zr_cuda_queue(call->stream));
}

static zr_status_t gather_slices(parts_t *parts) {
    bool is_even = parts->call->n_elems % (size_t)parts->self->base.n_ranks == 0;
    return zr_nccl_link_queue(parts->self->link, parts->call,
                              is_even ? gather_even_slices_part : gather_slices_part, parts);
}

static zr_status_t find_allocator(nccl_comm_t *self, zr_allocator_t **allocator_p) {
    if (self->base.allocator == NULL && self->own_allocator == NULL) {
        zr_allocator_options_t options = zr_allocator_options_default();
        options.log = self->base.options.log;
        ZR_TRY(zr_allocator_create(self->base.device, &options, &self->own_allocator));
    }
    *allocator_p = self->base.allocator != NULL ? self->base.allocator : self->own_allocator;
    return ZR_OK;
}

static zr_status_t queue_sum_in_rank_order(nccl_comm_t *self, const zr_comm_call_t *call) {
    zr_comm_pieces_t pieces = zr_comm_cut_sum(&self->base, call);
    parts_t parts = {.self = self, .call = call, .piece_elems = pieces.n_elems};
    zr_allocator_t *allocator = NULL;
    void *workspace = NULL;
    zr_status_t status = find_allocator(self, &allocator);
    ZR_THEN(status, zr_comm_take_workspace(allocator, call, &pieces, &workspace));
    if (status != ZR_OK)
        return note_logged(self, call, status);
    parts.workspace = workspace;
    status = add_slices(&parts, &pieces);
    if (status == ZR_OK && call->collective == ZR_ALL_REDUCE)
        status = gather_slices(&parts);
    zr_free(allocator, &workspace, call->stream);
    return status;
}

/* ---- a collective ---------------------------------------------------------------------------- */

/* One rank's part, once all have agreed on the call. */
static zr_status_t queue_part(nccl_comm_t *self, const zr_comm_call_t *call) {
    bool is_sum = call->collective == ZR_REDUCE_SCATTER || call->collective == ZR_ALL_REDUCE;
    if (self->link == NULL)
        ZR_TRY(zr_nccl_link_open(&self->nccl, self->base.control, self->base.options.timeout_ms,
                                 call, &self->ids[0], &self->link));
    if (call->n_elems == 0)
        return ZR_OK;
    if (is_sum && self->base.options.sums == ZR_SUM_RANK_ORDER)
        return queue_sum_in_rank_order(self, call);
    parts_t parts = {.self = self, .call = call};
    return zr_nccl_link_queue(self->link, call,
                              call->collective == ZR_ALL_TO_ALL ? exchange_blocks_part : make_part,
                              &parts);
}

/*
 * The end of a call that failed here or elsewhere. Tensors may be freed after it, so nothing that
 * was queued may still be to run, here or on a rank that reaches into this one's memory.
 */
static zr_status_t give_up(nccl_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    if (self->link != NULL)
        zr_nccl_link_abort(self->link);
    if (zr_stream_synchronize(call->stream) != ZR_OK && status == ZR_OK)
        status = ZR_ERR_DEVICE;
    (void)zr_control_meet(&self->base, status);
    if (self->is_logged)
        return status;
    (void)zr_control_refuse(&self->base, call);
    return status != ZR_OK ? status : ZR_ERR_COMM;
}

static zr_status_t nccl_move(zr_comm_t *comm, const zr_comm_call_t *call) {
    nccl_comm_t *self = (nccl_comm_t *)comm;
    if (strcmp(zr_device_info(zr_stream_device(call->stream))->backend, "cuda") != 0)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                       "%s of \"%s\": the communicator \"nccl\" works on device \"cuda\", and the "
                       "stream is of device \"%s\"",
                       zr_collective_name(call->collective), call->message.tensor,
                       zr_device_info(zr_stream_device(call->stream))->backend);
    if (comm->n_ranks == 1)
        return zr_controlled_run_alone(comm, call);
    ZR_TRY(arrive(self, call));
    double start = zr_comm_clock();
    self->is_logged = false;
    zr_status_t status = queue_part(self, call);
    comm->statistics.move_seconds += zr_comm_clock() - start;
    zr_status_t outcome = zr_control_meet(comm, status);
    return outcome == ZR_OK ? ZR_OK : give_up(self, call, status);
}

/* ---- the table ------------------------------------------------------------------------------- */

static zr_status_t nccl_count_machines(zr_comm_t *comm, const zr_comm_call_t *call) {
    int rank = comm->control->origin_rank;
    uint64_t unknown = ~(uint64_t)rank; /* a machine of its own */
    return zr_machines_count(comm, call, zr_machine_identity(rank, 0, unknown));
}

static zr_status_t nccl_check(zr_comm_t *comm) {
    nccl_comm_t *self = (nccl_comm_t *)comm;
    if (!zr_control_has_failed(self->base.control))
        return ZR_OK;
    return zr_control_refuse(comm, NULL);
}

static void nccl_destroy(zr_comm_t *comm) {
    nccl_comm_t *self = (nccl_comm_t *)comm;
    zr_nccl_link_close(&self->link);
    destroy_adder(&self->adder);
    bool is_dead = zr_control_has_failed(self->base.control) && !self->base.control->is_nested;
    zr_control_destroy(&self->base.control);
    zr_mpi_site_leave(self->site, is_dead);
    zr_allocator_destroy(&self->own_allocator);
    free(self);
}

static const zr_comm_backend_t nccl_backend;

/* A handle at a place that it takes over. NULL: no memory; nothing is taken over. */
static zr_comm_t *create_comm(const zr_comm_options_t *options, zr_control_t *control) {
    size_t n_ranks = (size_t)control->n_ranks;
    nccl_comm_t *self =
        calloc(1, sizeof(*self) + n_ranks * (sizeof(void *) + sizeof(ncclUniqueId)));
    if (self == NULL)
        return NULL;
    zr_controlled_init(&self->base, &nccl_backend, options, control);
    self->ids = (ncclUniqueId *)(self->sources + n_ranks);
    return &self->base;
}

static zr_comm_t *adopt(zr_comm_t *parent, zr_control_t *place) {
    const nccl_comm_t *from = (const nccl_comm_t *)parent;
    nccl_comm_t *group = (nccl_comm_t *)create_comm(&parent->options, place);
    if (group == NULL)
        return NULL;
    group->nccl = from->nccl;
    group->site = from->site;
    zr_mpi_site_share(group->site);
    return &group->base;
}

static zr_status_t nccl_split(zr_comm_t *comm, const zr_comm_call_t *call) {
    return zr_control_split(comm, call, adopt);
}

bool zr_comm_has_nccl(void) {
    return true;
}

zr_status_t zr_comm_create_nccl_threads(int n_ranks, const zr_comm_options_t *options,
                                        zr_comm_t **comms) {
    zr_nccl_library_t library;
    ZR_TRY(zr_comm_create_in_process(n_ranks, options, create_comm, comms));
    zr_status_t status = zr_nccl_library_open(&comms[0]->options.log, &library);
    for (int rank = 0; rank < n_ranks; rank++) {
        if (status == ZR_OK)
            ((nccl_comm_t *)comms[rank])->nccl = library;
        else
            zr_comm_destroy(&comms[rank]);
    }
    return status;
}

zr_status_t zr_comm_create_nccl(const zr_launch_t *launch, const zr_comm_options_t *options,
                                zr_comm_t **comm_p) {
    zr_nccl_library_t library;
    zr_control_t *control = NULL;
    zr_mpi_site_t *site = NULL;
    zr_comm_options_t own = options != NULL ? *options : zr_comm_options_default();
    own.log = zr_log_with_rank(&own.log, launch->rank);
    ZR_TRY(zr_comm_check_options(&own, launch->n_ranks));
    ZR_TRY(zr_nccl_library_open(&own.log, &library));
    ZR_TRY(zr_mpi_site_find_ranks(launch, &own.log, own.timeout_ms, &site, &control));
    zr_comm_t *comm = create_comm(&own, control);
    if (comm == NULL) {
        zr_control_destroy(&control);
        zr_mpi_site_leave(site, true);
        return zr_fail(&own.log, ZR_ERR_MEMORY, "communicator: no memory for the state of %s",
                       zr_count_text((uint64_t)launch->n_ranks, "rank").text);
    }
    ((nccl_comm_t *)comm)->nccl = library;
    ((nccl_comm_t *)comm)->site = site;
    *comm_p = comm;
    return ZR_OK;
}

static const zr_comm_backend_t nccl_backend = {
    .name = "nccl",
    .destroy = nccl_destroy,
    .abort = zr_controlled_abort,
    .all_gather = nccl_move,
    .reduce_scatter = nccl_move,
    .all_reduce = nccl_move,
    .broadcast = nccl_move,
    .all_to_all = nccl_move,
    .barrier = zr_controlled_barrier,
    .count_machines = nccl_count_machines,
    .split = nccl_split,
    .check = nccl_check,
};
