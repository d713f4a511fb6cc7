/*
 * Ranks of a program: each a thread, or a process that a launcher has started, with a device, a
 * communicator and a runtime, made, stopped and undone here.
 *
 *   static zr_status_t train(zr_rank_t *rank) {
 *       ZR_TRY(zr_runtime_add_unit(rank->runtime, "layer", &layer));
 *       ...
 *   }
 *   zr_run_ranks(&config, 4, train, NULL, NULL)
 *
 * What the function returns that is no success ends the other ranks.
 */
#pragma once

#include "zero/comm/comm.h"
#include "zero/config.h"
#include "zero/runtime.h"

ZR_BEGIN_C

/** A rank, as its function sees it. All of it is the library's, and there until the function
 * returns. */
typedef struct zr_rank {
    int rank;
    int n_ranks;
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime; /* without units yet; NULL: there is no configuration */
    zr_log_t log;          /* with the rank */
    void *context;         /* that was given to zr_run_ranks, the same for all ranks here */
} zr_rank_t;

/** A rank's work, in the rank's own thread. */
typedef zr_status_t (*zr_rank_fn)(zr_rank_t *rank);

struct zr_device_backend;

typedef struct zr_run_options {
    zr_log_t log;       /* the rank is set here. A sink is called by all ranks' threads */
    const char *device; /* as for zr_device_open */
    zr_device_options_t device_options; /* of each rank; log and index of the first here are set
                                           here, and n_threads, where it is 0: the cores of the
                                           machine, shared out to its ranks */
    const struct zr_device_backend *device_backend; /* NULL; or a device of the program's own, in
                                                       place of `device` */
    const char
        *comm; /* "threads", "nccl" or "processes" (comm.h); NULL: threads on the host, and nccl
                  where several ranks have a GPU each; for processes "processes" on the host */
    zr_comm_options_t comm_options; /* the log is set here */
} zr_run_options_t;

/** Default log, device "host" with a share of the cores each, communicator as it fits. */
zr_run_options_t zr_run_options_default(void);

/**
 * Run a function for each rank, and wait for the end of all.
 *
 * Where torchrun and its like, mpirun or srun has started this process as one of several
 * (zr_launch_from_environment), it is one rank, and the ranks are those that were started; n_ranks
 * does not matter then. Otherwise n_ranks ranks are threads of this process. The first of those
 * here works in the calling thread.
 *
 * @param config    copied, and resolved for the number of ranks, which may be done already; NULL:
 *                  ranks have no runtime
 * @param n_ranks   1 to ZR_MAX_SUM_SOURCES
 * @param function  of each rank
 * @param context   for the function: zr_rank_t.context
 * @param options   NULL means the defaults; borrowed for the call
 * @return ZR_OK; the error of the first rank here that failed by itself, and was not ended by
 *         another: zr_last_error says why, also in the calling thread; ZR_ERR_ARGUMENT,
 *         ZR_ERR_MEMORY and what zr_comm_create_..., zr_device_open and zr_runtime_create return
 */
ZR_NODISCARD zr_status_t zr_run_ranks(const zr_config_t *config, int n_ranks, zr_rank_fn function,
                                      void *context, const zr_run_options_t *options);

/**
 * Make this process one rank, for programs whose control flow is not a function that zr_run_ranks
 * could call, such as those in other languages: the rank that a launcher has started, or the only
 * one. It has no runtime yet: zr_runtime_create makes one, or several, of its communicator and its
 * device, with a configuration that zr_config_resolve was given rank->n_ranks for.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return as zr_run_ranks
 *
 * Threads: it belongs to the calling thread.
 */
ZR_NODISCARD zr_status_t zr_rank_open(const zr_run_options_t *options, zr_rank_t **rank_p);

/**
 * Undo it, after all runtimes that were made of it.
 *
 * @param reason  why the rank does not go on, which ends the others; NULL: it is done
 */
void zr_rank_close(zr_rank_t **rank, const char *reason);

ZR_END_C
