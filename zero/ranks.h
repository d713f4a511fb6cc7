/*
 * Ranks of a program: each a thread, or a process that a launcher has started, with a device, a
 * communicator and a runtime, created, stopped and destroyed here.
 *
 *   static zr_status_t train(zr_rank_t *rank) {
 *       ZR_TRY(zr_runtime_add_unit(rank->runtime, "layer", &layer));
 *       ...
 *   }
 *   zr_run_ranks(&config, 4, train, NULL, NULL)
 *
 * If the function returns an error, the other ranks are stopped too.
 */
#pragma once

#include "zero/comm/comm.h"
#include "zero/config.h"
#include "zero/runtime.h"

ZR_BEGIN_C

/** A rank, as its function sees it. All members are owned by the library and valid until the
 * function returns. */
typedef struct zr_rank {
    int rank;
    int n_ranks;
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime; /* has no units yet; NULL if there is no configuration */
    zr_log_t log;          /* prefixed with the rank */
    void *context;         /* as passed to zr_run_ranks; shared by all ranks of this process */
} zr_rank_t;

/** A rank's work, in the rank's own thread. */
typedef zr_status_t (*zr_rank_fn)(zr_rank_t *rank);

struct zr_device_backend;

typedef struct zr_run_options {
    zr_log_t log; /* its rank is set by zr_run_ranks. Its sink is called from all ranks' threads */
    const char *device; /* as for zr_device_open */
    zr_device_options_t
        device_options; /* for each rank. zr_run_ranks sets log, index, and n_threads if it is 0:
                           the machine's cores divided among its ranks */
    const struct zr_device_backend
        *device_backend; /* a custom device used instead of `device`; NULL: none */
    const char *comm; /* "threads", "nccl" or "processes" (comm.h); NULL: threads on the host, nccl
                         if several ranks have one GPU each, "processes" for host ranks in separate
                         processes */
    zr_comm_options_t comm_options; /* its log is set by zr_run_ranks */
    const zr_launch_t *launch; /* this process's rank, where the caller knows it; borrowed for the
                                  call. Without a secret, that of the environment is used. NULL:
                                  the environment says it */
} zr_run_options_t;

/** Default log, device "host" with an equal share of cores per rank, communicator chosen
 * automatically. */
zr_run_options_t zr_run_options_default(void);

/**
 * Run a function for each rank, and wait until all have returned.
 *
 * If a launcher (torchrun, mpirun, srun) started this process as one of several
 * (zr_launch_from_environment), this process is one rank and n_ranks is ignored. Otherwise n_ranks
 * ranks run as threads of this process. The first rank of this process runs in the calling thread.
 *
 * @param config    copied, and resolved for the number of ranks if it is not yet; NULL: ranks have
 *                  no runtime
 * @param n_ranks   1 to ZR_MAX_SUM_SOURCES
 * @param function  called once per rank
 * @param context   passed on as zr_rank_t.context
 * @param options   NULL means the defaults; borrowed for the call
 * @return ZR_OK; the error of the first rank of this process that failed itself and was not stopped
 *         by another: zr_last_error has the reason, also in the calling thread; ZR_ERR_ARGUMENT,
 *         ZR_ERR_MEMORY and what zr_comm_create_..., zr_device_open and zr_runtime_create return
 */
ZR_NODISCARD zr_status_t zr_run_ranks(const zr_config_t *config, int n_ranks, zr_rank_fn function,
                                      void *context, const zr_run_options_t *options);

/**
 * Make this process one rank, for programs that cannot pass a function to zr_run_ranks, such as
 * those in other languages. It is the rank that a launcher started, or the only one. It has no
 * runtime yet: create one or several with zr_runtime_create, from its communicator and device and a
 * configuration resolved for rank->n_ranks.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return as zr_run_ranks
 *
 * Threads: it belongs to the calling thread.
 */
ZR_NODISCARD zr_status_t zr_rank_open(const zr_run_options_t *options, zr_rank_t **rank_p);

/**
 * Close a rank, after all runtimes created from it are destroyed.
 *
 * A fork of the process may call it, too, and does well to where it lives on: nothing is said, and
 * the fork's descriptors of connections are closed, so that the others see the end of the process.
 *
 * @param reason  why the rank stops early, which stops the other ranks; NULL: it is done
 */
void zr_rank_close(zr_rank_t **rank, const char *reason);

ZR_END_C
