/* See train_launch.h. */
#include "examples/train/launch.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "examples/common/device.h"
#include "examples/common/files.h"

/* What of --ranks and --comm cannot be where processes are a rank each. */
static zr_status_t check_launch(const train_options_t *options, const zr_log_t *log) {
    const zr_launch_t *launch = &options->launch;
    const char *who = launch->by_mpi ? "mpirun or srun has started" : "WORLD_SIZE says that";
    if (options->n_ranks != 1 && options->n_ranks != launch->n_ranks)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--ranks %d: %s %d processes that are a rank each; leave --ranks out, or, "
                       "for ranks in this process, %s",
                       options->n_ranks, who, launch->n_ranks,
                       launch->by_mpi ? "start one process" : "unset WORLD_SIZE");
    if (options->comm == TRAIN_COMM_THREADS)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--comm threads: %s %d processes that are a rank each; allowed: nccl with "
                       "GPUs, processes on the host",
                       who, launch->n_ranks);
    return ZR_OK;
}

static bool is_cuda(const char *device) {
    return strncmp(device, "cuda", 4) == 0;
}

/* Processes have GPUs where --comm or --device says so, or there are some; else host memory. */
static zr_status_t choose_comm(train_options_t *options, const zr_log_t *log) {
    zr_log_t quiet = *log;
    device_choice_t found;
    const char *wanted = options->device;
    if (options->comm == TRAIN_COMM_PROCESSES)
        wanted = "host";
    else if (options->comm == TRAIN_COMM_NCCL && !is_cuda(wanted))
        wanted = "cuda";
    quiet.level = ZR_LOG_ERROR;
    if (strcmp(wanted, "auto") == 0) {
        ZR_TRY(device_choose(wanted, &quiet, &found));
        wanted = found.name;
    }
    options->use_nccl = is_cuda(wanted);
    options->use_processes = !options->use_nccl;
    if (options->use_processes) {
        options->device = "host";
        return ZR_OK;
    }
    if (!zr_comm_has_nccl())
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "--device %s: %d processes are a rank each, for which NCCL is needed, and "
                       "this build was made without; on the host there is --comm processes",
                       options->device, options->launch.n_ranks);
    return ZR_OK;
}

/* --comm of a process that is alone. */
static zr_status_t check_alone(train_options_t *options, const zr_log_t *log) {
    options->use_processes = options->comm == TRAIN_COMM_PROCESSES;
    if (options->use_processes && options->n_ranks > 1)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--comm processes: ranks are processes, and this one was started alone: start it "
            "with mpirun -n %d and without --ranks (docs/guide/clusters.md); allowed with "
            "--ranks: threads, nccl",
            options->n_ranks);
    if (options->use_processes && options->launch.n_ranks == 0)
        zr_log_write(
            log, ZR_LOG_WARNING,
            "--comm processes: this process was started alone, and is the only rank; several "
            "are started with mpirun -n N, or by hand (docs/guide/clusters.md)");
    if (options->use_processes)
        options->device = "host";
    return ZR_OK;
}

/* --comm-secret, over the environment's, and --comm-bind. */
static zr_status_t read_trust(train_options_t *options, const zr_log_t *log) {
    files_log_t named = {*log, "--comm-secret"};
    zr_log_t file_log = files_log(&named);
    char address[sizeof(struct in6_addr)];
    const char *bind = options->comm_bind;
    if (options->comm_secret != NULL)
        ZR_TRY(zr_secret_read(&file_log, options->comm_secret, &options->launch.secret));
    if (bind == NULL)
        return ZR_OK;
    if (inet_pton(AF_INET, bind, address) != 1 && inet_pton(AF_INET6, bind, address) != 1)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--comm-bind %s: an address of this machine is needed, as a number such as "
                       "10.0.0.1; 0.0.0.0 is all of them (ip addr lists them)",
                       bind);
    snprintf(options->launch.bind, sizeof(options->launch.bind), "%s", bind);
    return ZR_OK;
}

static zr_status_t check_sign(const train_options_t *options, const zr_log_t *log) {
    if (options->checkpoint.sign == TRAIN_SIGN_OFF || options->launch.secret.is_given)
        return ZR_OK;
    return zr_fail(
        log, ZR_ERR_ARGUMENT,
        "--checkpoint-sign %s: no secret was given; add --comm-secret FILE, or set the variable %s",
        options_value(&options->given, "checkpoint-sign"), ZR_SECRET_VARIABLE);
}

zr_status_t train_launch_apply(train_options_t *options, const zr_log_t *log) {
    if (options->comm == TRAIN_COMM_NCCL && strcmp(options->device, "host") == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--comm nccl: NCCL is for GPUs, and --device is host; allowed with it: "
                       "threads, processes");
    if (options->comm == TRAIN_COMM_PROCESSES && is_cuda(options->device))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--comm processes: it is for host memory, and --device is %s; allowed with it: "
            "threads, nccl",
            options->device);
    ZR_TRY(zr_launch_from_environment(log, &options->launch, &options->is_launched));
    ZR_TRY(read_trust(options, log));
    ZR_TRY(check_sign(options, log));
    if (!options->is_launched)
        return check_alone(options, log);
    ZR_TRY(check_launch(options, log));
    ZR_TRY(choose_comm(options, log));
    options->n_ranks = options->launch.n_ranks;
    if (options->use_nccl && strncmp(options->device, "cuda:", 5) != 0) {
        snprintf(options->launched_device, sizeof(options->launched_device), "cuda:%d",
                 options->launch.local_rank);
        options->device = options->launched_device;
    }
    if (options->launch.rank == 0)
        return ZR_OK;
    options->quiet = true;
    options->json = false;
    options->log_path = options->tensorboard_dir = options->plot_path = NULL;
    return ZR_OK;
}

int train_launch_n_sharing(const train_options_t *options) {
    int n_local = options->launch.n_local_ranks;
    return options->is_launched && n_local > 0 ? n_local : options->n_ranks;
}

zr_status_t train_launch_count(train_options_t *options, zr_comm_t *comm) {
    zr_launch_t *launch = &options->launch;
    int n_machines = 1;
    if (!options->is_launched)
        return ZR_OK;
    ZR_TRY(zr_comm_count_machines(comm, &n_machines)); /* also where only others have to know */
    if (launch->n_local_ranks == 0)
        launch->n_local_ranks = (launch->n_ranks - 1) / n_machines + 1;
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
    if (options->use_processes) {
        zr_launch_t alone = {.n_ranks = 1};
        return zr_comm_create_processes(options->is_launched ? &options->launch : &alone,
                                        &comm_options, comms);
    }
    if (options->is_launched)
        return zr_comm_create_nccl(&options->launch, &comm_options, comms);
    if (options->use_nccl)
        return zr_comm_create_nccl_threads(options->n_ranks, &comm_options, comms);
    return zr_comm_create_threads(options->n_ranks, &comm_options, comms);
}
