/* See train_launch.h. */
#include "examples/train_launch.h"

#include <stdio.h>
#include <string.h>

static zr_status_t check_launch(const train_options_t *options, const zr_log_t *log) {
    const zr_launch_t *launch = &options->launch;
    if (options->n_ranks != 1 && options->n_ranks != launch->n_ranks)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--ranks %d: WORLD_SIZE in the environment says that %d processes are a rank "
            "each; leave --ranks out, or unset WORLD_SIZE for ranks in this process",
            options->n_ranks, launch->n_ranks);
    if (strcmp(options->device, "host") == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--device host: WORLD_SIZE in the environment says that %d processes are a "
                       "rank each, which is possible with --device cuda; unset WORLD_SIZE and use "
                       "--ranks for ranks on the host",
                       launch->n_ranks);
    if (!zr_comm_has_nccl())
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "WORLD_SIZE in the environment says that %d processes are a rank each, for "
                       "which NCCL is needed, and this build was made without; unset WORLD_SIZE",
                       launch->n_ranks);
    return ZR_OK;
}

zr_status_t train_launch_apply(train_options_t *options, const zr_log_t *log) {
    if (options->use_nccl && strcmp(options->device, "host") == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--comm nccl: NCCL is for GPUs, and --device is host; allowed with it is "
                       "threads");
    ZR_TRY(zr_launch_from_environment(log, &options->launch, &options->is_launched));
    if (!options->is_launched)
        return ZR_OK;
    ZR_TRY(check_launch(options, log));
    options->n_ranks = options->launch.n_ranks;
    options->use_nccl = true;
    if (strncmp(options->device, "cuda:", 5) != 0) {
        snprintf(options->launched_device, sizeof(options->launched_device), "cuda:%d",
                 options->launch.local_rank);
        options->device = options->launched_device;
    }
    if (options->launch.rank == 0)
        return ZR_OK;
    options->quiet = true;
    options->json = false;
    options->log_path = NULL;
    return ZR_OK;
}

int train_launch_n_here(const train_options_t *options) {
    return options->is_launched ? 1 : options->n_ranks;
}

int train_launch_first(const train_options_t *options) {
    return options->is_launched ? options->launch.rank : 0;
}

zr_status_t train_launch_comms(const train_options_t *options, const zr_log_t *log,
                               zr_comm_t **comms) {
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = *log;
    comm_options.timeout_ms = options->comm_timeout_ms;
    comm_options.sums = options->sums;
    if (options->is_launched)
        return zr_comm_create_nccl(&options->launch, &comm_options, comms);
    if (options->use_nccl)
        return zr_comm_create_nccl_threads(options->n_ranks, &comm_options, comms);
    return zr_comm_create_threads(options->n_ranks, &comm_options, comms);
}
