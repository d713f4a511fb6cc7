/*
 * The simulated communicator: one rank that stands for any number.
 *
 * The others are taken to be where this one is, to do what it does and to hold what it holds; so
 * nobody is waited for, and no call can fail but for an end that was asked for. On a simulated
 * device a collective takes its time of the virtual clock; on any other, where there is data, this
 * rank's own stands for that of all.
 *
 * Times are those of large machines' algorithms. A ring goes through the ranks of a node and then
 * to the next node, so that each node has one edge to others, over all its adapters at once. A
 * gather of S bytes over N ranks moves S (N-1)/N over the slowest edge, and takes the latencies of
 * N-1 edges. Groups of ranks do the same at the same time: those that leave a node share its
 * adapters, and the group that has it worst holds up the others.
 *
 * A sum in rank order is made where its slice belongs: every rank sends every other its slice, so
 * that a node of G ranks sends S G (N-G)/N to others, G times what a ring would. It goes in pieces
 * that fit the workspace, and each costs a latency. A sum over all is gathered after that. In any
 * order, a sum is a ring, and over all two, or, where that is faster, a tree within and between
 * nodes that takes 2 S and twice the latencies of its depth (two trees at once use both
 * directions).
 *
 * Sources: Thakur, Rabenseifner and Gropp 2005; Sanders, Speck and Traeff 2009.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/allocator.h"
#include "kernels/kernels.h"
#include "kernels/simulation.h"
#include "zero/comm/membership_internal.h"

enum { REASON_BYTES = 256 };

/* Whether a communicator has ended. It stays for the groups split from it, which end with it. */
typedef struct fate {
    struct fate *parent; /* NULL: of the first one */
    atomic_int n_holders;
    atomic_bool has_told; /* of the first one: that it, or one split from it, has ended */
    pthread_mutex_t lock; /* guards what follows */
    bool is_dead;
    char reason[REASON_BYTES];
} fate_t;

/* How a communicator's ranks lie on nodes, and those of the groups beside it, which do the same at
 * the same time and share the nodes' links to others. Of all of them, the worst counts. */
typedef struct sim_spread {
    int per_node;   /* ranks of a node, that it was found for; 0: it was not */
    int n_nodes;    /* that a group is on */
    int n_on_node;  /* ranks of a group on one node */
    int n_leaving;  /* groups on a node that are on others, too */
    double n_pairs; /* of a rank on a node and one of its group elsewhere */
} sim_spread_t;

typedef struct sim_comm {
    zr_comm_t base;
    int origin_rank; /* in the first communicator */
    bool is_nested;  /* of a group made by split */
    int stride;      /* ranks of the first communicator from one of this one's to the next */
    int n_all;       /* of the first communicator */
    sim_spread_t spread;
    fate_t *fate;
} sim_comm_t;

static const zr_comm_backend_t sim_backend;

/* ---- times ----------------------------------------------------------------------------------- */

static int depth_of(int n) {
    int depth = 0;
    while (1 << depth < n)
        depth++;
    return depth;
}

/* Ranks of a group that are below `rank`; its first is `first`. */
static int n_below(const sim_comm_t *comm, int first, int rank) {
    int n = rank <= first ? 0 : (rank - first - 1) / comm->stride + 1;
    return n < comm->base.n_ranks ? n : comm->base.n_ranks;
}

static int first_of_group(const sim_comm_t *comm, int rank) {
    int block = comm->stride * comm->base.n_ranks;
    return rank / block * block + rank % comm->stride;
}

/* Add the groups of one node, from its first rank to before its end. */
static void spread_over_node(const sim_comm_t *comm, int begin, int end, sim_spread_t *spread) {
    int n_ranks = comm->base.n_ranks, n_leaving = 0;
    double n_pairs = 0;
    for (int rank = begin; rank < end; rank++) {
        int first = first_of_group(comm, rank), before = n_below(comm, first, begin);
        if (first + before * comm->stride != rank)
            continue; /* not the first of its group here */
        int n_here = n_below(comm, first, end) - before;
        n_leaving += n_here < n_ranks;
        n_pairs += (double)n_here * (n_ranks - n_here);
        if (n_here > spread->n_on_node)
            spread->n_on_node = n_here;
    }
    if (n_leaving > spread->n_leaving)
        spread->n_leaving = n_leaving;
    if (n_pairs > spread->n_pairs)
        spread->n_pairs = n_pairs;
}

/* On how many nodes the group is whose first rank this is. */
static int n_nodes_of(const sim_comm_t *comm, int first, int per_node) {
    int n_nodes = 1;
    for (int i = 1; i < comm->base.n_ranks; i++) {
        int rank = first + i * comm->stride;
        n_nodes += rank / per_node != (rank - comm->stride) / per_node;
    }
    return n_nodes;
}

static sim_spread_t find_spread(const sim_comm_t *comm, int per_node) {
    sim_spread_t spread = {.per_node = per_node, .n_nodes = 1};
    int n_all = comm->n_all / comm->base.n_ranks * comm->base.n_ranks;
    for (int begin = 0; begin < n_all; begin += per_node)
        spread_over_node(comm, begin, begin + per_node < n_all ? begin + per_node : n_all, &spread);
    for (int rank = 0; rank < n_all; rank++) {
        int n_nodes = first_of_group(comm, rank) == rank ? n_nodes_of(comm, rank, per_node) : 0;
        if (n_nodes > spread.n_nodes)
            spread.n_nodes = n_nodes;
    }
    return spread;
}

/* A call and its bytes on each rank; of a gather or scatter: of all ranks' parts. */
typedef struct cost {
    const sim_comm_t *comm;
    const zr_comm_call_t *call;
    const zr_hardware_t *hardware;
    const sim_spread_t *spread;
    int n_ranks;
    double bytes;
} cost_t;

/* Bytes per second over the slowest edge of the ring, and the latency of its edges but one. Each
 * group that leaves a node has an edge from it. */
static zr_link_t ring_of(const cost_t *c) {
    const zr_hardware_t *hardware = c->hardware;
    int n_ranks = c->n_ranks, n_nodes = c->spread->n_nodes;
    int n_between = n_nodes == 1 ? 0 : n_nodes < n_ranks ? n_nodes : n_ranks - 1;
    int n_within = n_ranks - 1 - n_between;
    double between = hardware->between_nodes.bytes_per_s / fmax(c->spread->n_leaving, 1);
    zr_link_t ring = {.bytes_per_s = between};
    if (n_between == 0 || (n_nodes < n_ranks && hardware->within_node.bytes_per_s < between))
        ring.bytes_per_s = hardware->within_node.bytes_per_s;
    ring.latency_s =
        n_within * hardware->within_node.latency_s + n_between * hardware->between_nodes.latency_s;
    return ring;
}

/* The same, where a rank adds up what comes in. */
static zr_link_t adding(zr_link_t ring, const zr_hardware_t *hardware) {
    if (hardware->reduce_bytes_per_s < ring.bytes_per_s)
        ring.bytes_per_s = hardware->reduce_bytes_per_s;
    return ring;
}

/* From the root to the last rank. */
static double tree_latency(const cost_t *c) {
    return depth_of(c->spread->n_on_node) * c->hardware->within_node.latency_s +
           depth_of(c->spread->n_nodes) * c->hardware->between_nodes.latency_s;
}

static double ring_seconds(const cost_t *c, zr_link_t ring) {
    return c->bytes * (c->n_ranks - 1) / c->n_ranks / ring.bytes_per_s + ring.latency_s;
}

/* Each rank gets its slice of every other. */
static double exchange_seconds(const cost_t *c) {
    const zr_hardware_t *hardware = c->hardware;
    double slice = c->bytes / c->n_ranks;
    double within = slice * (c->spread->n_on_node - 1) / hardware->within_node.bytes_per_s;
    double between = slice * c->spread->n_pairs / hardware->between_nodes.bytes_per_s;
    return fmax(within, between);
}

static double exchange_latency(const cost_t *c) {
    return c->spread->n_nodes > 1 ? c->hardware->between_nodes.latency_s
                                  : c->hardware->within_node.latency_s;
}

/* And adds them up, in as many rounds as the workspace makes of it. */
static double sum_seconds(const cost_t *c) {
    double n_rounds = (double)zr_comm_cut_sum(&c->comm->base, c->call).n_pieces;
    double adding_up = c->bytes / c->n_ranks * (c->n_ranks - 1) / c->hardware->reduce_bytes_per_s;
    return fmax(exchange_seconds(c), adding_up) + n_rounds * exchange_latency(c);
}

static double all_reduce_seconds(const cost_t *c, zr_link_t ring, zr_link_t sum, double tree) {
    if (c->comm->base.options.sums == ZR_SUM_RANK_ORDER)
        return sum_seconds(c) + ring_seconds(c, ring);
    double rings = ring_seconds(c, sum) + ring_seconds(c, ring);
    double trees = c->bytes / sum.bytes_per_s + c->bytes / ring.bytes_per_s + 2.0 * tree;
    return fmin(rings, trees);
}

static double seconds_of(const cost_t *c) {
    if (c->n_ranks == 1)
        return 0.0;
    zr_link_t ring = ring_of(c), sum = adding(ring, c->hardware);
    double tree = tree_latency(c);
    switch (c->call->collective) {
    case ZR_ALL_GATHER:
        return ring_seconds(c, ring);
    case ZR_REDUCE_SCATTER:
        return c->comm->base.options.sums == ZR_SUM_RANK_ORDER ? sum_seconds(c)
                                                               : ring_seconds(c, sum);
    case ZR_ALL_REDUCE:
        return all_reduce_seconds(c, ring, sum, tree);
    case ZR_BROADCAST:
        return c->bytes / ring.bytes_per_s + tree;
    case ZR_ALL_TO_ALL:
        return exchange_seconds(c) + exchange_latency(c);
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return 2.0 * tree;
}

static void take_time(sim_comm_t *self, const zr_comm_call_t *call, double n_parts) {
    const zr_device_t *device = self->base.device;
    zr_sim_clock_t *clock = device == NULL ? NULL : zr_sim_clock_of(device);
    if (clock == NULL)
        return;
    const zr_hardware_t *hardware = zr_sim_hardware_of(device);
    if (self->spread.per_node != hardware->ranks_per_node)
        self->spread = find_spread(self, hardware->ranks_per_node);
    cost_t cost = {.comm = self,
                   .call = call,
                   .hardware = hardware,
                   .spread = &self->spread,
                   .n_ranks = self->base.n_ranks,
                   .bytes = (double)call->n_elems * (double)zr_dtype_size(call->message.dtype) *
                            n_parts};
    double seconds = seconds_of(&cost);
    double before = zr_sim_clock_now(clock);
    if (call->stream != NULL)
        zr_sim_queue(call->stream, ZR_SIM_NETWORK, zr_collective_name(call->collective), seconds);
    else
        zr_sim_busy(clock, ZR_SIM_NETWORK, zr_collective_name(call->collective), seconds);
    self->base.statistics.move_seconds += zr_sim_clock_now(clock) - before;
}

/* ---- data ------------------------------------------------------------------------------------ */

static bool has_data(const zr_comm_call_t *call) {
    return call->n_elems > 0 && !zr_device_info(zr_stream_device(call->stream))->stores_nothing;
}

/* Whether tensors are of all ranks' parts. */
static bool is_of_all(zr_collective_t collective) {
    return collective == ZR_ALL_GATHER || collective == ZR_REDUCE_SCATTER ||
           collective == ZR_ALL_TO_ALL;
}

/* Every rank's part is as this rank's, and the root of a broadcast has what this rank has. */
static zr_status_t move_parts(const sim_comm_t *self, const zr_comm_call_t *call) {
    size_t part_bytes = call->n_elems * zr_dtype_size(call->message.dtype);
    const char *own = call->send;
    if (call->collective == ZR_BROADCAST)
        return ZR_OK;
    if (call->collective == ZR_ALL_GATHER || call->collective == ZR_ALL_TO_ALL) {
        if (call->collective == ZR_ALL_TO_ALL)
            own += (size_t)self->base.rank * part_bytes;
        for (int rank = 0; rank < self->base.n_ranks; rank++) {
            char *part = (char *)call->recv + (size_t)rank * part_bytes;
            if (part != own)
                ZR_TRY(
                    zr_copy_async(call->stream, part, own, part_bytes, ZR_COPY_DEVICE_TO_DEVICE));
        }
        return ZR_OK;
    }
    const void *sources[ZR_MAX_SUM_SOURCES];
    if (call->collective == ZR_REDUCE_SCATTER)
        own += (size_t)self->base.rank * part_bytes;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        sources[rank] = own;
    return zr_kernel_sum(call->stream, call->recv, sources, self->base.n_ranks, call->message.dtype,
                         call->n_elems);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static zr_status_t check_alive(sim_comm_t *self, const zr_comm_call_t *call) {
    char text[ZR_COMM_DESCRIPTION_BYTES];
    const fate_t *ended = NULL;
    fate_t *first = self->fate;
    for (fate_t *fate = self->fate; fate != NULL; fate = fate->parent) {
        pthread_mutex_lock(&fate->lock); /* the reason does not change once there is one */
        if (ended == NULL && fate->is_dead)
            ended = fate;
        pthread_mutex_unlock(&fate->lock);
        first = fate;
    }
    bool has_told = atomic_exchange(&first->has_told, ended != NULL);
    if (ended == NULL || has_told)
        return ended == NULL ? ZR_OK : ZR_ERR_COMM;
    zr_comm_call_describe(call, text, sizeof(text));
    return zr_fail(&self->base.options.log, ZR_ERR_COMM, "%s: %s", text, ended->reason);
}

/* What nccl takes while it adds in rank order. */
static zr_status_t pass_through_workspace(const zr_comm_t *comm, const zr_comm_call_t *call) {
    bool is_sum = call->collective == ZR_REDUCE_SCATTER || call->collective == ZR_ALL_REDUCE;
    void *workspace = NULL;
    if (!is_sum || !comm->options.takes_workspace || comm->options.sums != ZR_SUM_RANK_ORDER ||
        comm->n_ranks == 1 || call->n_elems == 0 || comm->allocator == NULL)
        return ZR_OK;
    zr_comm_pieces_t pieces = zr_comm_cut_sum(comm, call);
    ZR_TRY(zr_comm_take_workspace(comm->allocator, call, &pieces, &workspace));
    zr_free(comm->allocator, &workspace, call->stream);
    return ZR_OK;
}

static zr_status_t sim_take_part(zr_comm_t *comm, const zr_comm_call_t *call) {
    sim_comm_t *self = (sim_comm_t *)comm;
    ZR_TRY(check_alive(self, call));
    ZR_TRY(pass_through_workspace(comm, call));
    take_time(self, call, is_of_all(call->collective) ? comm->n_ranks : 1.0);
    zr_status_t status = has_data(call) ? move_parts(self, call) : ZR_OK;
    if (status != ZR_OK) /* of a device: the communicator is dead, as others are */
        sim_backend.abort(comm, zr_collective_name(call->collective));
    return status;
}

static void release_fate(fate_t *fate) {
    while (fate != NULL && atomic_fetch_sub(&fate->n_holders, 1) == 1) {
        fate_t *parent = fate->parent;
        pthread_mutex_destroy(&fate->lock);
        free(fate);
        fate = parent;
    }
}

static void sim_destroy(zr_comm_t *comm) {
    sim_comm_t *self = (sim_comm_t *)comm;
    release_fate(self->fate);
    free(self);
}

static void sim_abort(zr_comm_t *comm, const char *reason) {
    sim_comm_t *self = (sim_comm_t *)comm;
    fate_t *fate = self->fate;
    char name[ZR_RANK_TEXT_BYTES];
    pthread_mutex_lock(&fate->lock);
    zr_rank_describe(comm->rank, self->origin_rank, self->is_nested, name);
    if (!fate->is_dead)
        snprintf(fate->reason, sizeof(fate->reason), "%s gave up: %s", name, reason);
    fate->is_dead = true;
    pthread_mutex_unlock(&fate->lock);
}

static sim_comm_t *make(const zr_comm_options_t *options, int rank, int n_ranks, fate_t *parent) {
    sim_comm_t *self = calloc(1, sizeof(*self));
    fate_t *fate = calloc(1, sizeof(*fate));
    if (self == NULL || fate == NULL || pthread_mutex_init(&fate->lock, NULL) != 0) {
        free(fate);
        free(self);
        return NULL;
    }
    atomic_init(&fate->n_holders, 1);
    fate->parent = parent;
    if (parent != NULL)
        atomic_fetch_add(&parent->n_holders, 1);
    self->fate = fate;
    zr_comm_init(&self->base, &sim_backend, options, rank, n_ranks);
    self->origin_rank = rank;
    self->stride = 1;
    self->n_all = n_ranks;
    return self;
}

/* The others give what this rank gives, so all are in its group; even groups follow from ranks. */
static zr_status_t sim_split(zr_comm_t *comm, const zr_comm_call_t *call) {
    sim_comm_t *self = (sim_comm_t *)comm;
    ZR_TRY(check_alive(self, call));
    take_time(self, call, 1.0);
    if (call->color < 0) {
        *call->group_p = NULL;
        return ZR_OK;
    }
    bool is_even = call->group_ranks > 0;
    int n_ranks = is_even ? call->group_ranks : comm->n_ranks;
    int rank = is_even ? comm->rank / call->group_stride % n_ranks : comm->rank;
    sim_comm_t *group = make(&comm->options, rank, n_ranks, self->fate);
    if (group == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_MEMORY, "split: no memory for a group of %s",
                       zr_count_text((uint64_t)n_ranks, "simulated rank").text);
    group->n_all = self->n_all;
    group->stride = self->stride * (is_even ? call->group_stride : 1);
    group->origin_rank = self->origin_rank;
    group->is_nested = true;
    *call->group_p = &group->base;
    return ZR_OK;
}

static const zr_comm_backend_t sim_backend = {
    .name = "sim",
    .destroy = sim_destroy,
    .abort = sim_abort,
    .all_gather = sim_take_part,
    .reduce_scatter = sim_take_part,
    .all_reduce = sim_take_part,
    .broadcast = sim_take_part,
    .all_to_all = sim_take_part,
    .barrier = sim_take_part,
    .split = sim_split,
};

zr_status_t zr_comm_create_sim(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p) {
    zr_comm_options_t o = options != NULL ? *options : zr_comm_options_default();
    ZR_TRY(zr_comm_check_options(&o, n_ranks));
    if (rank < 0 || rank >= n_ranks || comm_p == NULL)
        return zr_fail(&o.log, ZR_ERR_ARGUMENT,
                       "communicator: simulated rank %d of %d, result at %p; ranks are 0 to %d",
                       rank, n_ranks, (void *)comm_p, n_ranks - 1);
    o.log = zr_log_with_rank(&o.log, rank);
    sim_comm_t *self = make(&o, rank, n_ranks, NULL);
    if (self == NULL)
        return zr_fail(&o.log, ZR_ERR_MEMORY, "communicator: no memory for a simulated rank");
    *comm_p = &self->base;
    return ZR_OK;
}
