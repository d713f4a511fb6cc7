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
 * N-1 edges.
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

#include "kernels/kernels.h"
#include "kernels/simulation.h"
#include "zero/comm/comm_backend.h"

enum { REASON_BYTES = 256 };

/* Whether a communicator has ended. It stays for the groups split from it, which end with it. */
typedef struct fate {
    struct fate *parent; /* NULL: of the first one */
    atomic_int n_holders;
    pthread_mutex_t lock; /* guards what follows */
    bool is_dead;
    char reason[REASON_BYTES];
} fate_t;

typedef struct sim_comm {
    zr_comm_t base;
    int origin_rank; /* in the first communicator */
    bool is_nested;  /* of a group made by split */
    int stride;      /* ranks of the first communicator from one of this one's to the next */
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

/* Bytes per second over the slowest edge of the ring, and the latency of its edges but one. */
static zr_link_t ring_of(const zr_hardware_t *hardware, int n_ranks) {
    int per_node = hardware->ranks_per_node;
    int n_nodes = (n_ranks - 1) / per_node + 1;
    int n_between = n_nodes == 1 ? 0 : n_nodes < n_ranks ? n_nodes : n_ranks - 1;
    int n_within = n_ranks - 1 - n_between;
    zr_link_t ring = {.bytes_per_s = hardware->between_nodes.bytes_per_s};
    if (n_between == 0 || (n_nodes < n_ranks &&
                           hardware->within_node.bytes_per_s < hardware->between_nodes.bytes_per_s))
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
static double tree_latency(const zr_hardware_t *hardware, int n_ranks) {
    int per_node = hardware->ranks_per_node;
    int n_nodes = (n_ranks - 1) / per_node + 1;
    return depth_of(per_node < n_ranks ? per_node : n_ranks) * hardware->within_node.latency_s +
           depth_of(n_nodes) * hardware->between_nodes.latency_s;
}

/* A call and its bytes on each rank; of a gather or scatter: of all ranks' parts. */
typedef struct cost {
    const sim_comm_t *comm;
    const zr_comm_call_t *call;
    const zr_hardware_t *hardware;
    int n_ranks;
    double bytes;
} cost_t;

static double ring_seconds(const cost_t *c, zr_link_t ring) {
    return c->bytes * (c->n_ranks - 1) / c->n_ranks / ring.bytes_per_s + ring.latency_s;
}

/* Each rank gets its slice of every other, in as many rounds as the workspace makes of it. */
static double exchange_seconds(const cost_t *c) {
    const zr_hardware_t *hardware = c->hardware;
    int n_ranks = c->n_ranks;
    int per_node = hardware->ranks_per_node < n_ranks ? hardware->ranks_per_node : n_ranks;
    double slice = c->bytes / n_ranks;
    size_t piece = zr_comm_piece_elems(&c->comm->base, c->call);
    size_t longest = zr_comm_longest_slice(&c->comm->base, c->call);
    double n_rounds = piece == 0 ? 1.0 : (double)((longest - 1) / piece + 1);
    double within = slice * (per_node - 1) / hardware->within_node.bytes_per_s;
    double between = slice * per_node * (n_ranks - per_node) / hardware->between_nodes.bytes_per_s;
    double adding_up = slice * (n_ranks - 1) / hardware->reduce_bytes_per_s;
    double latency =
        per_node < n_ranks ? hardware->between_nodes.latency_s : hardware->within_node.latency_s;
    return fmax(fmax(within, between), adding_up) + n_rounds * latency;
}

static double all_reduce_seconds(const cost_t *c, zr_link_t ring, zr_link_t sum, double tree) {
    if (c->comm->base.options.sums == ZR_SUM_RANK_ORDER)
        return exchange_seconds(c) + ring_seconds(c, ring);
    double rings = ring_seconds(c, sum) + ring_seconds(c, ring);
    double trees = c->bytes / sum.bytes_per_s + c->bytes / ring.bytes_per_s + 2.0 * tree;
    return fmin(rings, trees);
}

static double seconds_of(const cost_t *c) {
    if (c->n_ranks == 1)
        return 0.0;
    zr_link_t ring = ring_of(c->hardware, c->n_ranks), sum = adding(ring, c->hardware);
    double tree = tree_latency(c->hardware, c->n_ranks);
    switch (c->call->collective) {
    case ZR_ALL_GATHER:
        return ring_seconds(c, ring);
    case ZR_REDUCE_SCATTER:
        return c->comm->base.options.sums == ZR_SUM_RANK_ORDER ? exchange_seconds(c)
                                                               : ring_seconds(c, sum);
    case ZR_ALL_REDUCE:
        return all_reduce_seconds(c, ring, sum, tree);
    case ZR_BROADCAST:
        return c->bytes / ring.bytes_per_s + tree;
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return 2.0 * tree;
}

/* The hardware as a group finds it. Ranks that it leaves out are in groups that do the same, and
 * share the links between nodes. A group begins at a node's first rank, or else within one node. */
static zr_hardware_t seen_by(const sim_comm_t *comm, const zr_hardware_t *hardware) {
    zr_hardware_t seen = *hardware;
    int per_node = hardware->ranks_per_node;
    int n_sharing = comm->stride < per_node ? comm->stride : per_node;
    seen.ranks_per_node = per_node / n_sharing;
    seen.between_nodes.bytes_per_s /= n_sharing;
    return seen;
}

static void take_time(sim_comm_t *self, const zr_comm_call_t *call, double n_parts) {
    const zr_device_t *device = self->base.device;
    zr_sim_clock_t *clock = device == NULL ? NULL : zr_sim_clock_of(device);
    if (clock == NULL)
        return;
    zr_hardware_t hardware = seen_by(self, zr_sim_hardware_of(device));
    cost_t cost = {.comm = self,
                   .call = call,
                   .hardware = &hardware,
                   .n_ranks = self->base.n_ranks,
                   .bytes = (double)call->n_elems * (double)zr_dtype_size(call->message.dtype) *
                            n_parts};
    double seconds = seconds_of(&cost);
    double before = zr_sim_clock_now(clock);
    if (call->stream != NULL)
        zr_sim_queue(call->stream, ZR_SIM_NETWORK, zr_collective_name(call->collective), seconds);
    else
        zr_sim_clock_wait(clock,
                          zr_sim_clock_work(clock, ZR_SIM_NETWORK,
                                            zr_collective_name(call->collective), before, seconds));
    self->base.statistics.move_seconds += zr_sim_clock_now(clock) - before;
}

/* ---- data ------------------------------------------------------------------------------------ */

static bool has_data(const zr_comm_call_t *call) {
    return call->n_elems > 0 && !zr_device_info(zr_stream_device(call->stream))->stores_nothing;
}

/* Every rank's part is as this rank's. */
static zr_status_t repeat_part(const sim_comm_t *self, const zr_comm_call_t *call) {
    size_t part_bytes = call->n_elems * zr_dtype_size(call->message.dtype);
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        char *part = (char *)call->recv + (size_t)rank * part_bytes;
        if (part != call->send)
            ZR_TRY(zr_copy_async(call->stream, part, call->send, part_bytes,
                                 ZR_COPY_DEVICE_TO_DEVICE));
    }
    return ZR_OK;
}

/* recv = the sum of as many of `part` as there are ranks. */
static zr_status_t sum_parts(const sim_comm_t *self, const zr_comm_call_t *call, const char *part) {
    const void *sources[ZR_MAX_SUM_SOURCES];
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        sources[rank] = part;
    return zr_kernel_sum(call->stream, call->recv, sources, self->base.n_ranks, call->message.dtype,
                         call->n_elems);
}

/* ---- the backend ------------------------------------------------------------------------------
 */

static zr_status_t check_alive(sim_comm_t *self, const zr_comm_call_t *call) {
    char text[ZR_COMM_DESCRIPTION_BYTES];
    for (fate_t *fate = self->fate; fate != NULL; fate = fate->parent) {
        pthread_mutex_lock(&fate->lock); /* the reason does not change once there is one */
        bool is_dead = fate->is_dead;
        pthread_mutex_unlock(&fate->lock);
        if (!is_dead)
            continue;
        zr_comm_call_describe(call, text, sizeof(text));
        return zr_fail(&self->base.options.log, ZR_ERR_COMM, "%s: %s", text, fate->reason);
    }
    return ZR_OK;
}

/* After an error of a device a communicator is dead, as others are. */
static zr_status_t finish(sim_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    if (status != ZR_OK)
        sim_backend.abort(&self->base, zr_collective_name(call->collective));
    return status;
}

static zr_status_t sim_all_gather(zr_comm_t *comm, const zr_comm_call_t *call) {
    sim_comm_t *self = (sim_comm_t *)comm;
    ZR_TRY(check_alive(self, call));
    take_time(self, call, comm->n_ranks);
    return has_data(call) ? finish(self, call, repeat_part(self, call)) : ZR_OK;
}

static zr_status_t sim_reduce_scatter(zr_comm_t *comm, const zr_comm_call_t *call) {
    sim_comm_t *self = (sim_comm_t *)comm;
    ZR_TRY(check_alive(self, call));
    take_time(self, call, comm->n_ranks);
    if (!has_data(call))
        return ZR_OK;
    size_t part_bytes = call->n_elems * zr_dtype_size(call->message.dtype);
    const char *own = (const char *)call->send + (size_t)comm->rank * part_bytes;
    return finish(self, call, sum_parts(self, call, own));
}

static zr_status_t sim_all_reduce(zr_comm_t *comm, const zr_comm_call_t *call) {
    sim_comm_t *self = (sim_comm_t *)comm;
    ZR_TRY(check_alive(self, call));
    take_time(self, call, 1.0);
    return has_data(call) ? finish(self, call, sum_parts(self, call, call->send)) : ZR_OK;
}

/* Broadcast and barrier: the root has what this rank has. */
static zr_status_t sim_take_part(zr_comm_t *comm, const zr_comm_call_t *call) {
    ZR_TRY(check_alive((sim_comm_t *)comm, call));
    take_time((sim_comm_t *)comm, call, 1.0);
    return ZR_OK;
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
    pthread_mutex_lock(&fate->lock);
    if (!fate->is_dead && self->is_nested)
        snprintf(fate->reason, sizeof(fate->reason),
                 "rank %d of its group (rank %d of all) gave up: %s", comm->rank, self->origin_rank,
                 reason);
    else if (!fate->is_dead)
        snprintf(fate->reason, sizeof(fate->reason), "rank %d gave up: %s", comm->rank, reason);
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
        return zr_fail(&comm->options.log, ZR_ERR_MEMORY,
                       "split: no memory for a group of %d simulated ranks", n_ranks);
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
    .all_gather = sim_all_gather,
    .reduce_scatter = sim_reduce_scatter,
    .all_reduce = sim_all_reduce,
    .broadcast = sim_take_part,
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
