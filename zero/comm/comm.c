/*
 * The communicator's front: what every backend shares.
 *
 * Arguments are checked here once, so that a rank's own mistake is refused on that rank
 * with its numbers before any other rank hears of the call; traffic is counted here, so
 * that it is the same formula for every backend.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "allocator/allocator.h"
#include "kernels/base/owner_internal.h"
#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "zero/comm/comm_backend.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/queued_internal.h"

const char *zr_collective_name(zr_collective_t collective) {
    switch (collective) {
    case ZR_ALL_GATHER:
        return "all_gather";
    case ZR_REDUCE_SCATTER:
        return "reduce_scatter";
    case ZR_ALL_REDUCE:
        return "all_reduce";
    case ZR_BROADCAST:
        return "broadcast";
    case ZR_ALL_TO_ALL:
        return "all_to_all";
    case ZR_BARRIER:
        return "barrier";
    case ZR_SPLIT:
        return "split";
    }
    return "?";
}

zr_comm_options_t zr_comm_options_default(void) {
    return (zr_comm_options_t){.log = zr_log_default(),
                               .timeout_ms = 60000,
                               .sums = ZR_SUM_RANK_ORDER,
                               .workspace_bytes = (size_t)64 << 20};
}

zr_status_t zr_comm_check_options(const zr_comm_options_t *options, int n_ranks) {
    if (n_ranks < 1 || n_ranks > ZR_MAX_SUM_SOURCES)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator: %d ranks; 1 to %d are allowed", n_ranks, ZR_MAX_SUM_SOURCES);
    if (options->timeout_ms <= 0)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator: timeout_ms is %d; must be at least 1", options->timeout_ms);
    return ZR_OK;
}

void zr_comm_init(zr_comm_t *comm, const zr_comm_backend_t *backend,
                  const zr_comm_options_t *options, int rank, int n_ranks) {
    comm->backend = backend;
    comm->owner = getpid();
    comm->options = *options;
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    comm->control = NULL;
    comm->device = NULL;
    comm->call_device = NULL;
    comm->allocator = NULL;
    comm->n_calls = 0;
    comm->statistics = (zr_comm_statistics_t){0};
    zr_comm_queue_init(&comm->queue);
}

void zr_comm_destroy(zr_comm_t **comm) {
    if (comm == NULL || *comm == NULL)
        return;
    if (zr_owner_is_here((*comm)->owner)) {
        zr_comm_queue_clear(&(*comm)->queue);
        (*comm)->backend->destroy(*comm);
    } else if ((*comm)->control != NULL && (*comm)->control->backend->forget != NULL) {
        (*comm)->control->backend->forget((*comm)->control);
    }
    *comm = NULL;
}

void zr_comm_abort(zr_comm_t *comm, const char *reason) {
    if (comm != NULL && zr_owner_is_here(comm->owner))
        comm->backend->abort(comm, reason != NULL ? reason : "no reason given");
}

void zr_comm_set_allocator(zr_comm_t *comm, struct zr_allocator *allocator) {
    comm->allocator = allocator;
}

static zr_status_t check_owner(const zr_comm_t *comm, const char *call) {
    return zr_owner_check(comm->owner, &comm->options.log, call, "the communicator");
}

zr_status_t zr_comm_check(zr_comm_t *comm) {
    ZR_TRY(check_owner(comm, "zr_comm_check"));
    ZR_TRY(zr_comm_queue_status(&comm->queue));
    return comm->backend->check != NULL ? comm->backend->check(comm) : ZR_OK;
}

int zr_comm_rank(const zr_comm_t *comm) {
    return comm->rank;
}

int zr_comm_n_ranks(const zr_comm_t *comm) {
    return comm->n_ranks;
}

const char *zr_comm_backend_name(const zr_comm_t *comm) {
    return comm->backend->name;
}

void zr_comm_statistics(const zr_comm_t *comm, zr_comm_statistics_t *statistics_p) {
    memcpy(statistics_p->count, comm->statistics.count, sizeof(statistics_p->count));
    zr_comm_queue_seconds((zr_comm_queue_t *)&comm->queue, statistics_p); /* its lock is taken */
}

double zr_comm_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

size_t zr_comm_slice_begin(size_t n_elems, int rank, int n_ranks) {
    size_t r = (size_t)rank;
    size_t n = (size_t)n_ranks;
    return n_elems / n * r + n_elems % n * r / n;
}

size_t zr_comm_longest_slice(const zr_comm_t *comm, const zr_comm_call_t *call) {
    size_t n_ranks = (size_t)comm->n_ranks;
    return call->collective == ZR_REDUCE_SCATTER
               ? call->n_elems
               : call->n_elems / n_ranks + (call->n_elems % n_ranks != 0);
}

zr_comm_pieces_t zr_comm_cut_sum(const zr_comm_t *comm, const zr_comm_call_t *call) {
    enum { LINE_ELEMS = 32 };
    size_t elem_bytes = zr_dtype_size(call->message.dtype) * (size_t)(comm->n_ranks - 1);
    size_t longest = zr_comm_longest_slice(comm, call);
    zr_comm_pieces_t pieces = {.n_elems = longest, .n_pieces = 1, .n_in_flight = 1};
    if (longest > LINE_ELEMS && longest > comm->options.workspace_bytes / elem_bytes) {
        size_t n_lines = comm->options.workspace_bytes / 2 / (LINE_ELEMS * elem_bytes);
        pieces.n_elems = (n_lines > 0 ? n_lines : 1) * LINE_ELEMS;
        pieces.n_pieces = (longest - 1) / pieces.n_elems + 1;
        pieces.n_in_flight = 2;
    }
    pieces.workspace_bytes = pieces.n_in_flight * pieces.n_elems * elem_bytes;
    return pieces;
}

zr_status_t zr_comm_take_workspace(zr_allocator_t *allocator, const zr_comm_call_t *call,
                                   const zr_comm_pieces_t *pieces, void **workspace_p) {
    zr_allocation_request_t request = {
        .size_bytes = pieces->workspace_bytes,
        .tier = ZR_TIER_DEVICE,
        .tag = ZR_TAG_WORKSPACE,
        .lifetime = ZR_LIFETIME_COLLECTIVE,
        .name = call->message.tensor,
        .stream = call->stream,
    };
    return zr_allocate(allocator, &request, workspace_p);
}

void zr_comm_call_describe(const zr_comm_call_t *call, char *text, size_t text_bytes) {
    const zr_message_t *message = &call->message;
    const char *name = zr_collective_name(call->collective);
    unsigned long long sequence = (unsigned long long)call->sequence;
    if (call->is_agreement)
        name = "agreement on";
    if (call->collective == ZR_BARRIER || call->collective == ZR_SPLIT) {
        snprintf(text, text_bytes, "%s \"%.128s\" (call %llu)", name, message->tensor, sequence);
        return;
    }
    char root[32] = "";
    if (call->collective == ZR_BROADCAST)
        snprintf(root, sizeof(root), "root %d, ", call->root);
    snprintf(text, text_bytes, "%s of \"%.128s\" (%s, %s, %s%s, call %llu)", name, message->tensor,
             zr_dtype_name(message->dtype), zr_count_text(call->n_elems, "element").text, root,
             message->traffic == ZR_TRAFFIC_CONTROL ? "control" : "model", sequence);
}

/* Elements that this rank sends in a call: the formulas of comm.h. */
static uint64_t call_elems_sent(const zr_comm_t *comm, const zr_comm_call_t *call) {
    uint64_t n_elems = call->n_elems;
    uint64_t n_peers = (uint64_t)comm->n_ranks - 1;
    switch (call->collective) {
    case ZR_ALL_GATHER:
    case ZR_REDUCE_SCATTER:
    case ZR_ALL_TO_ALL:
        return n_elems * n_peers;
    case ZR_ALL_REDUCE: {
        uint64_t owned = zr_comm_slice_begin(call->n_elems, comm->rank + 1, comm->n_ranks) -
                         zr_comm_slice_begin(call->n_elems, comm->rank, comm->n_ranks);
        return n_elems - owned + n_peers * owned;
    }
    case ZR_BROADCAST:
        return comm->rank == call->root ? n_elems * n_peers : 0;
    case ZR_BARRIER:
    case ZR_SPLIT:
        return 0;
    }
    return 0;
}

/* Whatever a backend makes of it, a collective is one piece of work in a trace. */
static zr_status_t run_traced(zr_comm_t *comm, const zr_comm_call_t *call, zr_comm_entry_fn entry) {
    if (call->stream == NULL)
        return zr_comm_queue_run(comm, call, entry);
    zr_stream_group_begin(call->stream);
    zr_status_t status = zr_comm_queue_run(comm, call, entry);
    const zr_trace_slice_t slice = {
        .kind = ZR_SLICE_COLLECTIVE,
        .name = zr_collective_name(call->collective),
        .subject = call->message.tensor,
        .bytes = (double)(call_elems_sent(comm, call) * zr_dtype_size(call->message.dtype))};
    zr_stream_group_end(call->stream, status == ZR_OK ? &slice : NULL);
    return status;
}

static zr_status_t run_call(zr_comm_t *comm, zr_comm_call_t *call, zr_comm_entry_fn entry) {
    if (comm->device == NULL && call->stream != NULL)
        comm->device = zr_stream_device(call->stream);
    call->sequence = ++comm->n_calls;
    ZR_TRY(run_traced(comm, call, entry));
    zr_comm_count_t *count = &comm->statistics.count[call->message.traffic][call->collective];
    uint64_t elems_sent = call_elems_sent(comm, call);
    count->n_calls += 1;
    count->elems_sent += call->message.encoding != NULL
                             ? zr_encoding_elems(call->message.encoding, elems_sent)
                             : elems_sent;
    count->bytes_sent += elems_sent * zr_dtype_size(call->message.dtype);
    return ZR_OK;
}

/* Whether an address fits the dtype, and is there at all when there are elements. */
static bool tensor_is_valid(const void *tensor, const zr_comm_call_t *call) {
    size_t elem_bytes = zr_dtype_size(call->message.dtype);
    return call->n_elems == 0 || (tensor != NULL && (uintptr_t)tensor % elem_bytes == 0);
}

static bool ranges_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t a_begin = (uintptr_t)a;
    uintptr_t b_begin = (uintptr_t)b;
    return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

static zr_status_t check_comm(const zr_comm_t *comm, zr_collective_t collective) {
    if (comm == NULL)
        return zr_fail(NULL, ZR_ERR_ARGUMENT, "%s: no communicator (NULL)",
                       zr_collective_name(collective));
    return check_owner(comm, zr_collective_name(collective));
}

static zr_status_t check_call(const zr_comm_t *comm, const zr_comm_call_t *call) {
    const zr_log_t *log = &comm->options.log;
    const zr_message_t *message = &call->message;
    const char *name = zr_collective_name(call->collective);
    if (message->tensor == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: the tensor has no name (NULL)", name);
    if (zr_dtype_size(message->dtype) == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s of \"%s\": %d is not a dtype", name,
                       message->tensor, (int)message->dtype);
    if ((int)message->traffic < 0 || (int)message->traffic >= ZR_N_TRAFFICS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s of \"%s\": %d is not a kind of traffic", name,
                       message->tensor, (int)message->traffic);
    if (call->stream == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s of \"%s\": no stream (NULL)", name,
                       message->tensor);
    if (comm->device != NULL && comm->device != zr_stream_device(call->stream))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s of \"%s\": its stream belongs to a different device than this "
                       "communicator's earlier calls; a rank must use one device",
                       name, message->tensor);
    size_t most_elems = SIZE_MAX / zr_dtype_size(message->dtype) / (size_t)comm->n_ranks;
    if (call->n_elems > most_elems)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s of \"%s\": %s of %s on %s overflow; %zu are allowed", name,
                       message->tensor, zr_count_text(call->n_elems, "element").text,
                       zr_dtype_name(message->dtype),
                       zr_count_text((uint64_t)comm->n_ranks, "rank").text, most_elems);
    if (!tensor_is_valid(call->send, call) || !tensor_is_valid(call->recv, call))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s of \"%s\": send %p, recv %p: NULL, or not aligned to %s", name,
                       message->tensor, call->send, call->recv, zr_dtype_name(message->dtype));
    return ZR_OK;
}

/* Sums exist in fp32 only, of what converts to it. */
static zr_status_t check_summable(const zr_comm_t *comm, const zr_comm_call_t *call) {
    zr_dtype_t dtype = call->message.dtype;
    if (dtype == ZR_DTYPE_F32 || dtype == ZR_DTYPE_BF16)
        return ZR_OK;
    return zr_fail(
        &comm->options.log, ZR_ERR_ARGUMENT, "%s of \"%s\": sums support fp32 and bf16, not %s",
        zr_collective_name(call->collective), call->message.tensor,
        call->message.encoding != NULL ? call->message.encoding->name : zr_dtype_name(dtype));
}

/* `part` is either block `rank` of `whole` (in place), or shares nothing with it. */
static zr_status_t check_in_place(const zr_comm_t *comm, const zr_comm_call_t *call,
                                  const void *part, const void *whole) {
    size_t part_bytes = call->n_elems * zr_dtype_size(call->message.dtype);
    const char *own = (const char *)whole + (size_t)comm->rank * part_bytes;
    if (part_bytes == 0 || part == (const void *)own ||
        !ranges_overlap(part, part_bytes, whole, part_bytes * (size_t)comm->n_ranks))
        return ZR_OK;
    return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                   "%s of \"%s\": the %zu bytes at %p overlap the %d x %zu bytes at %p; in place "
                   "on rank %d they have to start at %p",
                   zr_collective_name(call->collective), call->message.tensor, part_bytes, part,
                   comm->n_ranks, part_bytes, whole, comm->rank, (const void *)own);
}

/* Room for a tensor's name and its encoding's. */
typedef struct encoded_name {
    char text[256];
} encoded_name_t;

/* What is in blocks becomes what backends move: floats have a dtype, all else is bytes, which ranks
 * know by a name that has the encoding in it. */
static zr_status_t encode_call(const zr_comm_t *comm, zr_comm_call_t *call, encoded_name_t *name) {
    zr_message_t *message = &call->message;
    const zr_encoding_t *encoding = message->encoding;
    if (encoding == NULL || message->tensor == NULL)
        return ZR_OK;
    message->dtype = ZR_DTYPE_U8;
    if (encoding == &zr_encoding_fp32 || encoding == &zr_encoding_bf16) {
        message->dtype = encoding == &zr_encoding_fp32 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16;
        message->encoding = NULL;
        return ZR_OK;
    }
    if (call->n_elems % encoding->block_elems != 0)
        return zr_fail(
            &comm->options.log, ZR_ERR_ARGUMENT, "%s of \"%s\": %s of %s, whose blocks have %zu",
            zr_collective_name(call->collective), message->tensor,
            zr_count_text(call->n_elems, "element").text, encoding->name, encoding->block_elems);
    if (call->n_elems / encoding->block_elems > SIZE_MAX / encoding->block_bytes)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT, "%s of \"%s\": %s of %s overflow",
                       zr_collective_name(call->collective), message->tensor,
                       zr_count_text(call->n_elems, "element").text, encoding->name);
    snprintf(name->text, sizeof(name->text), "%s (%s)", message->tensor, encoding->name);
    message->tensor = name->text;
    call->n_elems = zr_encoding_bytes(encoding, call->n_elems);
    return ZR_OK;
}

static zr_comm_call_t make_call(zr_collective_t collective, const zr_message_t *message,
                                const void *send, void *recv, size_t n_elems, zr_stream_t *stream) {
    return (zr_comm_call_t){
        .collective = collective,
        .message = message != NULL ? *message : (zr_message_t){0},
        .send = send,
        .recv = recv,
        .n_elems = n_elems,
        .stream = stream,
    };
}

zr_status_t zr_comm_all_gather(zr_comm_t *comm, const zr_message_t *message, const void *send,
                               void *recv, size_t n_elems, zr_stream_t *stream) {
    encoded_name_t name;
    zr_comm_call_t call = make_call(ZR_ALL_GATHER, message, send, recv, n_elems, stream);
    ZR_TRY(check_comm(comm, call.collective));
    ZR_TRY(encode_call(comm, &call, &name));
    ZR_TRY(check_call(comm, &call));
    ZR_TRY(check_in_place(comm, &call, send, recv));
    return run_call(comm, &call, comm->backend->all_gather);
}

zr_status_t zr_comm_reduce_scatter(zr_comm_t *comm, const zr_message_t *message, const void *send,
                                   void *recv, size_t n_elems, zr_stream_t *stream) {
    encoded_name_t name;
    zr_comm_call_t call = make_call(ZR_REDUCE_SCATTER, message, send, recv, n_elems, stream);
    ZR_TRY(check_comm(comm, call.collective));
    ZR_TRY(encode_call(comm, &call, &name));
    ZR_TRY(check_call(comm, &call));
    ZR_TRY(check_summable(comm, &call));
    ZR_TRY(check_in_place(comm, &call, recv, send));
    return run_call(comm, &call, comm->backend->reduce_scatter);
}

zr_status_t zr_comm_all_reduce(zr_comm_t *comm, const zr_message_t *message, void *buffer,
                               size_t n_elems, zr_stream_t *stream) {
    encoded_name_t name;
    zr_comm_call_t call = make_call(ZR_ALL_REDUCE, message, buffer, buffer, n_elems, stream);
    ZR_TRY(check_comm(comm, call.collective));
    ZR_TRY(encode_call(comm, &call, &name));
    ZR_TRY(check_call(comm, &call));
    ZR_TRY(check_summable(comm, &call));
    return run_call(comm, &call, comm->backend->all_reduce);
}

zr_status_t zr_comm_broadcast(zr_comm_t *comm, const zr_message_t *message, void *buffer,
                              size_t n_elems, int root, zr_stream_t *stream) {
    encoded_name_t name;
    zr_comm_call_t call = make_call(ZR_BROADCAST, message, buffer, buffer, n_elems, stream);
    call.root = root;
    ZR_TRY(check_comm(comm, call.collective));
    ZR_TRY(encode_call(comm, &call, &name));
    ZR_TRY(check_call(comm, &call));
    if (root < 0 || root >= comm->n_ranks)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                       "broadcast of \"%s\": root %d; the ranks are 0 to %d", message->tensor, root,
                       comm->n_ranks - 1);
    return run_call(comm, &call, comm->backend->broadcast);
}

zr_status_t zr_comm_all_to_all(zr_comm_t *comm, const zr_message_t *message, const void *send,
                               void *recv, size_t n_elems, zr_stream_t *stream) {
    encoded_name_t name;
    zr_comm_call_t call = make_call(ZR_ALL_TO_ALL, message, send, recv, n_elems, stream);
    ZR_TRY(check_comm(comm, call.collective));
    ZR_TRY(encode_call(comm, &call, &name));
    ZR_TRY(check_call(comm, &call));
    size_t whole_bytes = call.n_elems * zr_dtype_size(call.message.dtype) * (size_t)comm->n_ranks;
    if (whole_bytes > 0 && ranges_overlap(send, whole_bytes, recv, whole_bytes))
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                       "all_to_all of \"%s\": the %zu bytes at %p overlap those at %p",
                       call.message.tensor, whole_bytes, send, recv);
    return run_call(comm, &call, comm->backend->all_to_all);
}

/* A call without data, known by its name. */
static zr_comm_call_t make_control_call(zr_collective_t collective, const char *name) {
    return (zr_comm_call_t){
        .collective = collective,
        .message = {.tensor = name, .dtype = ZR_DTYPE_U8, .traffic = ZR_TRAFFIC_CONTROL},
    };
}

zr_status_t zr_comm_barrier(zr_comm_t *comm, const char *name) {
    zr_comm_call_t call = make_control_call(ZR_BARRIER, name);
    ZR_TRY(check_comm(comm, call.collective));
    if (name == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT, "barrier: it has no name (NULL)");
    return run_call(comm, &call, comm->backend->barrier);
}

zr_status_t zr_comm_count_machines(zr_comm_t *comm, int *n_machines_p) {
    zr_comm_call_t call = make_control_call(ZR_BARRIER, "machines");
    int n_machines = 1;
    call.n_machines_p = &n_machines;
    ZR_TRY(check_comm(comm, call.collective));
    if (n_machines_p == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                       "counting machines: no output pointer (NULL) for the result");
    if (comm->backend->count_machines != NULL && comm->n_ranks > 1)
        ZR_TRY(run_call(comm, &call, comm->backend->count_machines));
    *n_machines_p = n_machines;
    return ZR_OK;
}

zr_status_t zr_comm_agree(zr_comm_t *comm, const char *text) {
    zr_comm_call_t call = make_control_call(ZR_BARRIER, text);
    call.is_agreement = true;
    ZR_TRY(check_comm(comm, call.collective));
    if (text == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT, "agreement: there is no text (NULL)");
    return run_call(comm, &call, comm->backend->barrier);
}

/* Ranks that are simulated do the same: each says what this one does. */
static zr_status_t tell_all(zr_comm_t *comm, const zr_comm_call_t *call) {
    if (comm->control != NULL)
        return zr_control_arrive(comm, call, call->send, call->n_elems, call->recv);
    for (int rank = 0; rank < comm->n_ranks; rank++)
        memcpy((char *)call->recv + (size_t)rank * call->n_elems, call->send, call->n_elems);
    return ZR_OK;
}

zr_status_t zr_comm_tell(zr_comm_t *comm, const char *name, const void *own, size_t n_bytes,
                         void *all) {
    zr_comm_call_t call = make_control_call(ZR_BARRIER, name);
    call.send = own;
    call.recv = all;
    call.n_elems = n_bytes;
    ZR_TRY(check_comm(comm, call.collective));
    return run_call(comm, &call, tell_all);
}

zr_status_t zr_comm_split(zr_comm_t *comm, int color, int key, zr_comm_t **group_p) {
    zr_comm_call_t call = make_control_call(ZR_SPLIT, "groups");
    ZR_TRY(check_comm(comm, call.collective));
    if (color < -1 || group_p == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_ARGUMENT,
                       "split: color %d (a group is 0 or more, no group is -1), result at %p",
                       color, (void *)group_p);
    call.color = color;
    call.key = key;
    call.group_p = group_p;
    return run_call(comm, &call, comm->backend->split);
}

zr_status_t zr_comm_split_evenly(zr_comm_t *comm, zr_groups_t groups, int size,
                                 zr_comm_t **group_p) {
    char name[48]; /* ranks that ask for other groups are found by it */
    bool is_near = groups == ZR_GROUPS_NEAR;
    snprintf(name, sizeof(name), "groups %s, rows of %d", is_near ? "near" : "across", size);
    zr_comm_call_t call = make_control_call(ZR_SPLIT, name);
    ZR_TRY(check_comm(comm, call.collective));
    if (size < 1 || comm->n_ranks % size != 0 || group_p == NULL ||
        (!is_near && groups != ZR_GROUPS_ACROSS))
        return zr_fail(
            &comm->options.log, ZR_ERR_ARGUMENT,
            "split: groups of kind %d in rows of %d, result at %p; a row must divide the %s",
            (int)groups, size, (void *)group_p,
            zr_count_text((uint64_t)comm->n_ranks, "rank").text);
    call.color = is_near ? comm->rank / size : comm->rank % size;
    call.key = comm->rank;
    call.group_ranks = is_near ? size : comm->n_ranks / size;
    call.group_stride = is_near ? 1 : size;
    call.group_p = group_p;
    return run_call(comm, &call, comm->backend->split);
}
