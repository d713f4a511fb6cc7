/*
 * The communicator: collectives among ranks.
 *
 * Collectives are queued on a stream: they start when the stream reaches them and
 * are done when it has passed them. All ranks of a communicator call the same
 * collectives on the same tensors in the same order; if a rank does not, or is gone, the call fails
 * on every rank within the timeout, with an error that names that rank.
 *
 * Sums are computed in fp32 in rank order and rounded once, so they are bitwise identical on every
 * backend and in every run (except with ZR_SUM_ANY).
 *
 * After ZR_ERR_COMM or ZR_ERR_DEVICE a communicator is dead on every rank: each later
 * call returns ZR_ERR_COMM at once. A rank's first failing call logs the reason; later ones do not,
 * also on communicators that died with it, until a call succeeds. A call refused with
 * ZR_ERR_ARGUMENT is not seen by the other ranks: they wait until this rank calls again or gives up
 * (zr_comm_abort).
 *
 * On a host stream with its own thread (zr_stream_create_concurrent) that thread executes the
 * collective. It is queued when its call returns; zr_comm_check and the next call report a failure.
 * A call without a stream, or on another stream, first waits for queued collectives.
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

/** Traffic is counted separately by purpose. */
typedef enum zr_traffic {
    ZR_TRAFFIC_MODEL = 0,  /* parameters and gradients */
    ZR_TRAFFIC_CONTROL = 1 /* norms, losses, hashes, agreement */
} zr_traffic_t;
#define ZR_N_TRAFFICS 2

/** What a collective works on; must be the same on all ranks. An error names ranks that differ. */
typedef struct zr_message {
    const char *tensor; /* name for checks and errors, borrowed for the call: "h.3 gradients" */
    zr_dtype_t dtype;
    zr_traffic_t traffic;
    /* If not NULL, it is used instead of the dtype: elements are stored in its blocks, and n_elems
     * must be a multiple of the block size. Sums need fp32 or bf16; other encodings can only be
     * gathered, exchanged and broadcast. */
    const zr_encoding_t *encoding;
} zr_message_t;

/** Order of summation over ranks. */
typedef enum zr_sum_order {
    ZR_SUM_RANK_ORDER = 0, /* by rank, in fp32, rounded once: bitwise reproducible */
    ZR_SUM_ANY = 1         /* nccl: NCCL's order and precision; other backends ignore it */
} zr_sum_order_t;

typedef struct zr_comm_options {
    zr_log_t log;   /* each rank's copy gets its rank; nccl and streams with a thread also log from
                       other threads */
    int timeout_ms; /* how long a call waits for other ranks; > 0 */
    zr_sum_order_t sums;    /* nccl; sim simulates its duration */
    size_t workspace_bytes; /* nccl: maximum device memory for a sum in rank order, in addition to
                               its tensors; what does not fit is summed in pieces of half of it;
                               sim simulates their duration */
    bool takes_workspace;   /* sim: take that memory from the allocator, as nccl does */
    int machine_ranks;      /* processes: treat this many consecutive ranks as one machine, to test
                               several machines on one; 0: off */
} zr_comm_options_t;

/** 60 s, default log, sums in rank order, 64 MiB. */
zr_comm_options_t zr_comm_options_default(void);

/**
 * Create a communicator for ranks that are threads of this process.
 *
 * @param n_ranks  1 to ZR_MAX_SUM_SOURCES
 * @param options  NULL means the defaults; borrowed for the call
 * @param comms    [n_ranks], filled; comms[r] is for the thread of rank r
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY (nothing is created then)
 *
 * Each rank uses streams of one device, the same kind of device on every rank. If devices are
 * asynchronous, tensors must be memory that every rank's device can read and write.
 *
 * Ownership: each rank destroys its own with zr_comm_destroy.
 */
ZR_NODISCARD zr_status_t zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                                zr_comm_t **comms);

/** Whether this build has the communicator `nccl`; the NCCL library itself is loaded when one is
 * created. */
bool zr_comm_has_nccl(void);

/**
 * Create a communicator for ranks that are threads of this process, each with its own GPU, with
 * NCCL for data.
 *
 * NCCL's communicator is created at the first call with data, so this call does not wait; a missing
 * rank is detected then, within the timeout. Collectives are monitored: if one does not end on its
 * device within the timeout after it began, or NCCL reports an error, the communicator ends. The
 * stream then continues with undefined tensors: zr_comm_check reports it.
 *
 * Sums in rank order exchange slices and add them on the device. What exceeds workspace_bytes goes
 * in pieces of half of it: one is added while the next is exchanged. This memory comes from the
 * allocator set with zr_comm_set_allocator, or else from the communicator's own.
 *
 * @return as zr_comm_create_threads; ZR_ERR_UNSUPPORTED when this build has no NCCL, or the
 *         library is not found
 */
ZR_NODISCARD zr_status_t zr_comm_create_nccl_threads(int n_ranks, const zr_comm_options_t *options,
                                                     zr_comm_t **comms);

/**
 * Create the communicator of a rank that is a separate process with one GPU, with NCCL for data.
 * Returns when all ranks have joined, within the timeout.
 *
 * Rank 0 listens at the launch's port; connections that are not from a rank are closed with a
 * warning. Connections stay open: ranks use them to agree on each call. If a rank's process ends,
 * the calls of all other ranks fail. Rank 0's process must live until the end: when its last
 * communicator is destroyed, it waits a few seconds for the others. If MPI's launcher started the
 * ranks, MPI is initialised as in zr_comm_create_processes and tells them where rank 0 listens.
 *
 * @param launch  from zr_launch_from_environment, or filled in by hand; one rank is allowed
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED as above; ZR_ERR_MEMORY; ZR_ERR_COMM if ranks
 *         are missing, duplicate, or run another program: the log names them
 */
ZR_NODISCARD zr_status_t zr_comm_create_nccl(const zr_launch_t *launch,
                                             const zr_comm_options_t *options, zr_comm_t **comm_p);

/**
 * Create the communicator of a rank that is a separate process with a host device and tensors in
 * host memory. Returns when all ranks have joined, within the timeout of the launch.
 *
 * Ranks of one machine read each other's memory, without MPI. Ranks on several machines exchange
 * data through MPI and must be started by its launcher. MPI is initialised unless the program has
 * done so (with MPI_THREAD_MULTIPLE), and finalised with the last communicator that uses it. The
 * program may call MPI itself from one thread at a time while no collective is in progress. If a
 * rank's process ends, the calls of all other ranks fail, as above.
 *
 * In addition to its tensors, a sum needs about 1 MB of memory per thread of the device, and twice
 * that on several machines.
 *
 * @param launch  from zr_launch_from_environment, or filled in by hand; one rank is allowed
 * @return as zr_comm_create_nccl; ZR_ERR_UNSUPPORTED when MPI's launcher has started the process,
 *         and MPI is not part of this build, or not found
 */
ZR_NODISCARD zr_status_t zr_comm_create_processes(const zr_launch_t *launch,
                                                  const zr_comm_options_t *options,
                                                  zr_comm_t **comm_p);

/**
 * Set the allocator for a communicator's own device memory (lifetime "collective", tag
 * "workspace"). NULL, the initial value: no allocator of the caller.
 *
 * @param allocator  allocator of the device whose streams are used; borrowed until it is replaced
 */
void zr_comm_set_allocator(zr_comm_t *comm, struct zr_allocator *allocator);

/**
 * Check that asynchronous collectives succeeded. Call it after synchronizing a stream and before
 * using the results: collectives that fail, or wait for a rank that is gone, are abandoned.
 *
 * @return ZR_OK; ZR_ERR_COMM, logged with the reason
 */
ZR_NODISCARD zr_status_t zr_comm_check(zr_comm_t *comm);

/**
 * Create a communicator with one rank that stands for all: the others are assumed to make the same
 * calls at the same time with the same tensors. On a simulated device (kernels/simulation.h) a
 * collective takes the time given by the hardware description and moves nothing; on any other
 * device all ranks' tensors equal this rank's. zr_comm_split gives a group of all ranks;
 * zr_comm_split_evenly gives groups of the requested size.
 *
 * @param rank     0 to n_ranks - 1
 * @param n_ranks  1 to ZR_MAX_SUM_SOURCES
 * @param options  as zr_comm_create_threads; there is nothing to wait for
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_comm_create_sim(int rank, int n_ranks, const zr_comm_options_t *options,
                                            zr_comm_t **comm_p);

/**
 * Leave and free. If other ranks wait for this rank in a collective, their calls fail with
 * ZR_ERR_COMM, and so do their later calls. NULL and *comm == NULL are fine. Destroy a communicator
 * before the device whose streams it was used with is closed.
 */
void zr_comm_destroy(zr_comm_t **comm);

/**
 * End the communicator for every rank: waiting and later calls return ZR_ERR_COMM and log which
 * rank gave up and why. For a rank that failed outside of a collective. Groups split from this
 * communicator end with it; the one it was split from stays usable.
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
 * @param root    the source rank, the same on every rank
 *
 * Errors as all_gather. Root sends n_elems * (n_ranks - 1) elements, the others none.
 */
ZR_NODISCARD zr_status_t zr_comm_broadcast(zr_comm_t *comm, const zr_message_t *message,
                                           void *buffer, size_t n_elems, int root,
                                           zr_stream_t *stream);

/**
 * recv[r * n_elems .. ] = rank r's send[rank * n_elems .. ], for every r: each rank sends one block
 * to every other.
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
 * Return when every rank has called it with the same text, such as "--seed 7". Use it to check
 * settings that all ranks must share, before differences cause errors that are harder to
 * understand.
 *
 * @param text  compared as a whole; messages show its first 143 bytes
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_COMM, also if texts differ, logged as "rank 2 has --seed
 *         8, rank 0 has --seed 7; 3 of 4 ranks have the latter"
 */
ZR_NODISCARD zr_status_t zr_comm_agree(zr_comm_t *comm, const char *text);

/**
 * Count the machines that the ranks run on: 1 for threads and simulated ranks. Two containers count
 * as two machines. This is a barrier, which all ranks must call.
 *
 * @return as zr_comm_barrier
 */
ZR_NODISCARD zr_status_t zr_comm_count_machines(zr_comm_t *comm, int *n_machines_p);

/**
 * Split into groups: ranks that give the same color form a new communicator, in order of
 * (key, old rank). All ranks call it. A group keeps the log (with the first communicator's rank)
 * and the timeout. If the parent communicator fails, the group fails too, with the same reason, so
 * that all groups know the failed rank. A rank that only leaves the parent does not end the group,
 * and a failing group does not end other communicators.
 *
 * @param color   >= 0; or -1: this rank joins no group and gets NULL
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY (on every rank; nothing is created and this
 *         communicator stays usable); ZR_ERR_COMM
 */
ZR_NODISCARD zr_status_t zr_comm_split(zr_comm_t *comm, int color, int key, zr_comm_t **group_p);

/** The two ways to cut ranks into a grid of rows of `size` ranks each. */
typedef enum zr_groups {
    ZR_GROUPS_NEAR = 0,  /* a row: ranks 0 to size - 1, size to 2 size - 1, ... */
    ZR_GROUPS_ACROSS = 1 /* a column: ranks 0, size, 2 size, ...; 1, size + 1, ...; ... */
} zr_groups_t;

/**
 * Split into groups of equal size, in order of rank: with the ranks of a node as `size`, near
 * groups stay within nodes, and each rank's group across has one of every node. As zr_comm_split.
 * Simulated ranks support such groups too, with the link speeds of a group while all other groups
 * communicate as well.
 *
 * @param size  ranks per row, for both ways; must divide the number of ranks
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
    double wait_seconds; /* blocked until other ranks arrived or finished */
    double move_seconds; /* copying and adding; queueing that, on asynchronous devices */
    /* The same for calls executed concurrently by a stream's thread, so far. zr_device_wait_seconds
     * tells how long the rank's thread waited for them. */
    double queued_wait_seconds;
    double queued_move_seconds;
} zr_comm_statistics_t;

/** What this rank has sent since creation. */
void zr_comm_statistics(const zr_comm_t *comm, zr_comm_statistics_t *statistics_p);

ZR_END_C
