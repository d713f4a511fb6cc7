/*
 * The communicator: collectives among ranks.
 *
 * Collectives are queued on a stream: they start when the stream reaches them and
 * are done when it has passed them. All ranks of a communicator call the same
 * collectives on the same tensors in the same order; a rank that does not, and a
 * rank that is gone, end the call of every rank with an error that names it, within
 * the time limit.
 *
 * Sums are made in fp32 in rank order and rounded once, so that they are the same
 * bits on every backend and in every run (but for ZR_SUM_ANY, which is asked for).
 *
 * After ZR_ERR_COMM or ZR_ERR_DEVICE a communicator is dead on every rank: each later
 * call returns ZR_ERR_COMM at once. The first of a rank's calls that finds it so logs the reason;
 * those after it say nothing, also on communicators that end with it, until one goes well. A call
 * refused with ZR_ERR_ARGUMENT was not seen by the others: they wait for this rank, which calls
 * again, or gives up (zr_comm_abort).
 *
 * On a host device's stream that has a thread (zr_stream_create_beside) a collective is made by
 * that thread. It is queued when its call returns; that it failed is told by zr_comm_check and by
 * the next call, which waits for no rank then. A call without a stream, or on another one, first
 * waits for those that are queued.
 *
 * Threads: a handle belongs to the thread of its rank, zr_comm_abort excepted.
 */
#pragma once

#include <stdint.h>

#include "kernels/encoding.h"
#include "zero/comm/launch.h"

ZR_BEGIN_C

typedef struct zr_comm zr_comm_t;
struct zr_allocator;

typedef enum zr_collective {
    ZR_ALL_GATHER = 0,
    ZR_REDUCE_SCATTER = 1,
    ZR_ALL_REDUCE = 2,
    ZR_BROADCAST = 3,
    ZR_ALL_TO_ALL = 4,
    ZR_BARRIER = 5,
    ZR_SPLIT = 6
} zr_collective_t;
#define ZR_N_COLLECTIVES 7

/** "all_gather", "reduce_scatter", ... */
const char *zr_collective_name(zr_collective_t collective);

/** Traffic is counted apart by what it is for. */
typedef enum zr_traffic {
    ZR_TRAFFIC_MODEL = 0,  /* parameters and gradients */
    ZR_TRAFFIC_CONTROL = 1 /* norms, losses, hashes, agreement */
} zr_traffic_t;
#define ZR_N_TRAFFICS 2

/** What a collective works on; ranks that disagree in any of it get an error naming both. */
typedef struct zr_message {
    const char *tensor; /* name for checks and errors, borrowed for the call: "h.3 gradients" */
    zr_dtype_t dtype;
    zr_traffic_t traffic;
    /* Instead of the dtype, unless it is NULL: elements lie in its blocks, of which n_elems has to
       be a multiple. Sums are of fp32 and bf16; any other can be gathered, exchanged and
       broadcast. */
    const zr_encoding_t *encoding;
} zr_message_t;

/** In which order numbers of ranks are added. */
typedef enum zr_sum_order {
    ZR_SUM_RANK_ORDER = 0, /* by rank, in fp32, rounded once: the same bits everywhere */
    ZR_SUM_ANY = 1         /* nccl: in its order and precision; no other backend differs */
} zr_sum_order_t;

typedef struct zr_comm_options {
    zr_log_t log;           /* each rank's copy gets its rank; nccl and streams that have a thread:
                               from another thread too */
    int timeout_ms;         /* how long a rank that has called waits for one that has not; > 0 */
    zr_sum_order_t sums;    /* nccl; sim takes the time of it */
    size_t workspace_bytes; /* nccl: most device memory that a sum in rank order takes beside its
                               tensors; less makes more, smaller pieces; sim takes their time */
    int machine_ranks;      /* processes: 0; or as many ranks, by number, are taken for those of a
                               machine, to try out what several machines do */
} zr_comm_options_t;

/** 60 s, default log, sums in rank order, 32 MiB. */
zr_comm_options_t zr_comm_options_default(void);

/**
 * Make a communicator of ranks that are threads of this process.
 *
 * @param n_ranks  1 to ZR_MAX_SUM_SOURCES
 * @param options  NULL means the defaults; borrowed for the call
 * @param comms    [n_ranks], filled; comms[r] is for the thread of rank r
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY (nothing is created then)
 *
 * Each rank uses streams of one device, the same kind of device on every rank. Where
 * devices are asynchronous, tensors must be memory that every rank's device can read and write.
 *
 * Ownership: each rank destroys its own with zr_comm_destroy.
 */
ZR_NODISCARD zr_status_t zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                                zr_comm_t **comms);

/** Whether this build has the communicator `nccl`; the library is looked for when one is made. */
bool zr_comm_has_nccl(void);

/**
 * Make a communicator of ranks that are threads of this process, each with a GPU of its own, whose
 * data goes through NCCL.
 *
 * NCCL's communicator is made at the first call with data, so that this does not wait and each
 * rank's thread chooses its device; a rank that does not come is found there, within the time
 * limit. A rank's collectives are then watched: one that does not end on its device within the
 * time limit after it has begun ends the communicator, and so does an error of NCCL. The stream
 * passes then, with tensors of no meaning: zr_comm_check tells.
 *
 * Sums in rank order exchange slices and add them on the device, in pieces of at most
 * workspace_bytes. This memory comes from the allocator that zr_comm_set_allocator says, else
 * from one of the communicator's own.
 *
 * @return as zr_comm_create_threads; ZR_ERR_UNSUPPORTED when this build has no NCCL, or the
 *         library is not found
 */
ZR_NODISCARD zr_status_t zr_comm_create_nccl_threads(int n_ranks, const zr_comm_options_t *options,
                                                     zr_comm_t **comms);

/**
 * Make the communicator of a rank that is a process of its own, with one GPU, whose data goes
 * through NCCL. Returns when all ranks have come, within the time limit.
 *
 * Rank 0 listens at the launch's port; what is not a rank is closed with a warning. The connections
 * stay: over them ranks agree on each call, as threads do in memory. A rank whose process ends,
 * by whatever cause, ends the calls of all others. That of rank 0 has to stay to the end: when its
 * last communicator is destroyed, it waits a few seconds for the others. Where MPI's launcher has
 * started the ranks, MPI tells them where rank 0 listens: as for zr_comm_create_processes, it is
 * begun.
 *
 * @param launch  of zr_launch_from_environment, or filled by hand; one rank is fine
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED as above; ZR_ERR_MEMORY; ZR_ERR_COMM when
 *         ranks are missing, twice there, or of another program: the log names them
 */
ZR_NODISCARD zr_status_t zr_comm_create_nccl(const zr_launch_t *launch,
                                             const zr_comm_options_t *options, zr_comm_t **comm_p);

/**
 * Make the communicator of a rank that is a process of its own, with a host device, whose tensors
 * are in host memory. Returns when all ranks have come, within the time limit of the launch.
 *
 * Ranks of one machine read each other's memory, which needs no MPI. Those of several machines
 * exchange data through MPI, and have to be started by its launcher; MPI is then begun, unless the
 * program has (with MPI_THREAD_MULTIPLE), and ended with the last communicator that uses it. While
 * no collective is under way the program may call MPI itself then, in one thread at a time. What
 * is said above of processes that end holds here, too.
 *
 * Beside its tensors a sum takes some memory of the process's, about a megabyte for each thread of
 * the device, twice on several machines.
 *
 * @param launch  of zr_launch_from_environment, or filled by hand; one rank is fine
 * @return as zr_comm_create_nccl; ZR_ERR_UNSUPPORTED when MPI's launcher has started the process,
 *         and MPI is not part of this build, or not found
 */
ZR_NODISCARD zr_status_t zr_comm_create_processes(const zr_launch_t *launch,
                                                  const zr_comm_options_t *options,
                                                  zr_comm_t **comm_p);

/**
 * Where a communicator takes device memory for its own needs: lifetime "collective", tag
 * "workspace". NULL, as at first: from no allocator of the caller's.
 *
 * @param allocator  of the device whose streams are used; borrowed until it is replaced
 */
void zr_comm_set_allocator(zr_comm_t *comm, struct zr_allocator *allocator);

/**
 * Whether what collectives have left behind, on streams that have passed, is what they are to
 * leave: asynchronous work that fails, or waits for a rank that is gone, is given up. To be asked
 * after waiting for a stream and before the result is believed.
 *
 * @return ZR_OK; ZR_ERR_COMM, logged with the reason
 */
ZR_NODISCARD zr_status_t zr_comm_check(zr_comm_t *comm);

/**
 * Make a communicator of one rank that stands for all of them: the others do what it does, at the
 * same time, and hold what it holds. On a simulated device (kernels/simulation.h) a collective
 * takes the time that the device's hardware description makes it, and moves nothing; on any other
 * device the tensors of all ranks are as this rank's. A split makes a group of all ranks, but for
 * zr_comm_split_evenly.
 *
 * @param rank     0 to n_ranks - 1
 * @param n_ranks  1 to ZR_MAX_SUM_SOURCES
 * @param options  as zr_comm_create_threads; nobody is waited for
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_comm_create_sim(int rank, int n_ranks, const zr_comm_options_t *options,
                                            zr_comm_t **comm_p);

/**
 * Leave and free. A rank that leaves while others wait for it in a collective ends their
 * calls with ZR_ERR_COMM, and so do later calls of theirs. NULL and *comm == NULL are fine.
 * Destroy a communicator before the device whose streams it was used with is closed.
 */
void zr_comm_destroy(zr_comm_t **comm);

/**
 * End the communicator for every rank: calls now waiting and all later ones return
 * ZR_ERR_COMM and say which rank gave up and why. For a rank that has failed elsewhere.
 * Groups split from this communicator end with it; the one it was split from goes on.
 *
 * @param reason  one line, copied
 *
 * Threads: may be called from any thread while the handle exists.
 */
void zr_comm_abort(zr_comm_t *comm, const char *reason);

int zr_comm_rank(const zr_comm_t *comm);
int zr_comm_n_ranks(const zr_comm_t *comm);
/** "threads", "nccl", "processes" or "sim"; static. */
const char *zr_comm_backend_name(const zr_comm_t *comm);

/**
 * recv[r * n_elems .. ] = rank r's send, for every r.
 *
 * @param send     [n_elems] on the device; may be recv + rank * n_elems (in place), otherwise
 *                 apart from recv; aligned to its element, as all tensors here
 * @param recv     [n_ranks * n_elems] on the device
 * @param n_elems  per rank, the same on every rank; 0 is fine. Any dtype.
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_COMM (the communicator is then unusable: destroy it);
 *         ZR_ERR_DEVICE
 *
 * Sends n_elems * (n_ranks - 1) elements per rank.
 */
ZR_NODISCARD zr_status_t zr_comm_all_gather(zr_comm_t *comm, const zr_message_t *message,
                                            const void *send, void *recv, size_t n_elems,
                                            zr_stream_t *stream);

/**
 * recv[i] = sum over ranks r, in rank order and fp32, of rank r's send[rank * n_elems + i].
 *
 * @param send  [n_ranks * n_elems] on the device, F32 or BF16; unchanged except when in place
 * @param recv  [n_elems] on the device; may be send + rank * n_elems (in place), otherwise
 *              apart from send
 *
 * Errors as all_gather. Sends n_elems * (n_ranks - 1) elements per rank.
 */
ZR_NODISCARD zr_status_t zr_comm_reduce_scatter(zr_comm_t *comm, const zr_message_t *message,
                                                const void *send, void *recv, size_t n_elems,
                                                zr_stream_t *stream);

/**
 * buffer[i] = sum over ranks, in rank order and fp32, of buffer[i]; in place.
 *
 * @param buffer  [n_elems] on the device, F32 or BF16
 *
 * Errors as all_gather. Counted as reduce-scatter plus all-gather: 2 n (N-1) / N elements
 * sent per rank when N divides n; otherwise rank r owns elements [n r / N, n (r+1) / N) and
 * sends all that it does not own plus N-1 times what it owns.
 */
ZR_NODISCARD zr_status_t zr_comm_all_reduce(zr_comm_t *comm, const zr_message_t *message,
                                            void *buffer, size_t n_elems, zr_stream_t *stream);

/**
 * Every rank's buffer becomes root's.
 *
 * @param buffer  [n_elems] on the device, any dtype
 * @param root    the rank that gives, the same on every rank
 *
 * Errors as all_gather. Root sends n_elems * (n_ranks - 1) elements, the others none.
 */
ZR_NODISCARD zr_status_t zr_comm_broadcast(zr_comm_t *comm, const zr_message_t *message,
                                           void *buffer, size_t n_elems, int root,
                                           zr_stream_t *stream);

/**
 * recv[r * n_elems .. ] = rank r's send[rank * n_elems .. ], for every r: each rank gives every
 * other a block.
 *
 * @param send     [n_ranks * n_elems] on the device, any dtype
 * @param recv     [n_ranks * n_elems] on the device, apart from send
 * @param n_elems  of a block, the same on every rank
 *
 * Errors as all_gather. Sends n_elems * (n_ranks - 1) elements per rank.
 */
ZR_NODISCARD zr_status_t zr_comm_all_to_all(zr_comm_t *comm, const zr_message_t *message,
                                            const void *send, void *recv, size_t n_elems,
                                            zr_stream_t *stream);

/** Return when every rank has called it. `name` is checked like a tensor's. */
ZR_NODISCARD zr_status_t zr_comm_barrier(zr_comm_t *comm, const char *name);

/**
 * Return when every rank has called it with the same text, such as "--seed 7": what they have to
 * have in common, before what depends on it differs in ways that are harder to understand.
 *
 * @param text  compared whole; messages have its first 143 bytes
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_COMM, also where texts differ, logged as "rank 2 has
 * --seed 8, rank 0 has --seed 7; 3 of 4 ranks have the latter"
 */
ZR_NODISCARD zr_status_t zr_comm_agree(zr_comm_t *comm, const char *text);

/**
 * On how many machines the ranks are: 1 where they are threads of a process, or simulated.
 * Processes of two containers are not on one machine here. A barrier, which all ranks call.
 *
 * @return as zr_comm_barrier
 */
ZR_NODISCARD zr_status_t zr_comm_count_machines(zr_comm_t *comm, int *n_machines_p);

/**
 * Split into groups: ranks that give the same color form a new communicator, in order of
 * (key, old rank). All ranks call it. A group keeps the log (with the first communicator's
 * rank) and the time limit. It ends with what it was split from, for the same reason, so that the
 * rank that has failed is known in all groups; but not where a rank has only left that, nor does
 * its own end end anything else.
 *
 * @param color   >= 0; or -1: this rank joins no group and gets NULL
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY (on every rank; nothing is created and this
 *         communicator goes on); ZR_ERR_COMM
 */
ZR_NODISCARD zr_status_t zr_comm_split(zr_comm_t *comm, int color, int key, zr_comm_t **group_p);

/** The two ways to cut ranks into a grid of rows of `size` ranks each. */
typedef enum zr_groups {
    ZR_GROUPS_NEAR = 0,  /* a row: ranks 0 to size - 1, size to 2 size - 1, ... */
    ZR_GROUPS_ACROSS = 1 /* a column: ranks 0, size, 2 size, ...; 1, size + 1, ...; ... */
} zr_groups_t;

/**
 * Split into groups of equal size, in order of rank: with the ranks of a node as `size`, near
 * groups stay within nodes, and each rank's group across has one of every node. As zr_comm_split,
 * but simulated ranks know such groups, too: they have their size, and links are those of a group
 * while all other groups do the same.
 *
 * @param size  of a row, for both ways; has to divide the number of ranks
 * @return as zr_comm_split
 */
ZR_NODISCARD zr_status_t zr_comm_split_evenly(zr_comm_t *comm, zr_groups_t groups, int size,
                                              zr_comm_t **group_p);

typedef struct zr_comm_count {
    uint64_t n_calls;
    uint64_t elems_sent; /* by this rank */
    uint64_t bytes_sent;
} zr_comm_count_t;

typedef struct zr_comm_statistics {
    zr_comm_count_t count[ZR_N_TRAFFICS][ZR_N_COLLECTIVES];
    /* Of the rank's own thread: */
    double wait_seconds; /* blocked until other ranks arrived or were done */
    double move_seconds; /* copying and adding; queueing that, on asynchronous devices */
    /* The same of calls that a stream's thread makes beside it, as far as they have been made. How
     * long the rank's thread waits for them is the device's to tell: zr_device_wait_seconds. */
    double queued_wait_seconds;
    double queued_move_seconds;
} zr_comm_statistics_t;

/** What this rank has sent since creation. */
void zr_comm_statistics(const zr_comm_t *comm, zr_comm_statistics_t *statistics_p);

ZR_END_C
