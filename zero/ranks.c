/* Ranks of a program: see ranks.h. */
#include "zero/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/log_internal.h"
#include "kernels/device_backend.h"

/* Ranks of this process, whose number here is not that among all. */
typedef struct run {
    const zr_run_options_t *options;
    const zr_config_t *config; /* resolved, or NULL */
    zr_rank_fn function;
    zr_plan_cache_t *plans; /* that ranks share; NULL: there is no config, or one rank */
    zr_launch_t launch;
    bool is_launched; /* this process is one rank */
    bool is_nccl;
    int n_ranks;
    int n_here;
} run_t;

/* One of them. */
typedef struct member {
    zr_rank_t rank;
    const run_t *run;
    pthread_t thread;
    zr_status_t status;
    char error[ZR_LOG_MESSAGE_BYTES]; /* what was said of it */
} member_t;

zr_run_options_t zr_run_options_default(void) {
    return (zr_run_options_t){.log = zr_log_default(),
                              .device = "host",
                              .device_options = zr_device_options_default(),
                              .comm_options = zr_comm_options_default()};
}

/* ---- a rank --------------------------------------------------------------------------------- */

/* Cores are shared by the ranks of a machine. */
static int threads_of_each(const run_t *run) {
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n_local = run->n_here;
    if (run->is_launched)
        n_local = run->launch.n_local_ranks > 0 ? run->launch.n_local_ranks : run->n_ranks;
    return n_cores > n_local ? (int)(n_cores / n_local) : 1;
}

static zr_status_t open_device(member_t *member) {
    const run_t *run = member->run;
    zr_device_options_t options = run->options->device_options;
    options.log = member->rank.log;
    if (options.n_threads == 0)
        options.n_threads = threads_of_each(run);
    options.has_no_peers =
        !run->is_nccl || run->n_here == 1; /* else each rank has a GPU, or one is all's */
    if (run->is_launched) {
        options.shares_memory = true;
        options.index += run->is_nccl ? run->launch.local_rank : 0;
    } else if (run->is_nccl) {
        options.index += member->rank.rank;
    }
    if (run->options->device_backend != NULL)
        return zr_device_open_from(run->options->device_backend, &options, &member->rank.device);
    return zr_device_open(run->options->device, &options, &member->rank.device);
}

static zr_status_t make(member_t *member) {
    zr_rank_t *rank = &member->rank;
    ZR_TRY(open_device(member));
    if (member->run->config != NULL)
        ZR_TRY(zr_runtime_create(member->run->config, rank->comm, rank->device, &member->rank.log,
                                 &rank->runtime));
    if (member->run->plans != NULL)
        zr_allocator_share_tables(zr_runtime_allocator(rank->runtime), member->run->plans,
                                  (size_t)member->run->config->process_ranks);
    return ZR_OK;
}

static zr_status_t make_and_run(member_t *member) {
    ZR_TRY(make(member));
    return member->run->function(&member->rank);
}

static void undo(member_t *member) {
    zr_runtime_destroy(&member->rank.runtime);
    zr_comm_destroy(&member->rank.comm);
    zr_device_close(&member->rank.device);
}

/* Of the calling thread, for the one that waits for all. */
static void keep_error(member_t *member) {
    snprintf(member->error, sizeof(member->error), "%s", zr_last_error());
}

static void *run_member(void *argument) {
    member_t *member = argument;
    zr_last_error_set("");
    member->status = make_and_run(member);
    if (member->status != ZR_OK) {
        const char *said = zr_last_error();
        if (*said == '\0') /* by the function, which has logged nothing */
            zr_last_error_set(zr_status_name(member->status));
        keep_error(member);
        zr_comm_abort(member->rank.comm, said);
    }
    undo(member);
    return NULL;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static zr_status_t choose_comm(run_t *run, bool *are_processes_p) {
    const zr_run_options_t *o = run->options;
    bool is_cuda = o->device_backend == NULL && strcmp(o->device, "cuda") == 0;
    const char *comm = o->comm;
    if (comm == NULL && run->is_launched)
        comm = is_cuda ? "nccl" : "processes";
    else if (comm == NULL)
        comm = is_cuda && run->n_ranks > 1 ? "nccl" : "threads";
    run->is_nccl = strcmp(comm, "nccl") == 0;
    *are_processes_p = strcmp(comm, "processes") == 0 || strcmp(comm, "mpi") == 0;
    if (!run->is_nccl && !*are_processes_p && strcmp(comm, "threads") != 0)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "run: unknown communicator \"%s\"; allowed: threads, nccl, processes", comm);
    if (run->is_launched && strcmp(comm, "threads") == 0)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "run: this process is rank %d of %d processes, which cannot exchange data "
                       "by \"threads\"; allowed: nccl, processes",
                       run->launch.rank, run->launch.n_ranks);
    if (!run->is_launched && *are_processes_p && run->n_ranks > 1)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "run: %d ranks are threads of this process, which cannot exchange data by "
                       "\"processes\"; start %d processes with mpirun, or use threads",
                       run->n_ranks, run->n_ranks);
    return ZR_OK;
}

static zr_status_t create_comms(run_t *run, zr_comm_t **comms) {
    zr_comm_options_t options = run->options->comm_options;
    bool are_processes = false;
    options.log = run->options->log;
    ZR_TRY(choose_comm(run, &are_processes));
    if (are_processes) {
        zr_launch_t alone = {.n_ranks = 1};
        return zr_comm_create_processes(run->is_launched ? &run->launch : &alone, &options, comms);
    }
    if (run->is_launched)
        return zr_comm_create_nccl(&run->launch, &options, comms);
    if (run->is_nccl)
        return zr_comm_create_nccl_threads(run->n_ranks, &options, comms);
    return zr_comm_create_threads(run->n_ranks, &options, comms);
}

/* Start the others, be the first, and wait. A rank that cannot be started fails. */
static void run_members(const run_t *run, member_t *members) {
    int n_started = 1;
    for (; n_started < run->n_here; n_started++) {
        member_t *member = &members[n_started];
        int error = pthread_create(&member->thread, NULL, run_member, member);
        if (error == 0)
            continue;
        member->status = zr_fail(&member->rank.log, ZR_ERR_MEMORY,
                                 "cannot start the thread of rank %d of %d: %s", n_started,
                                 run->n_here, strerror(error));
        keep_error(member);
        zr_comm_abort(member->rank.comm, "its thread could not be started");
        break;
    }
    for (int i = n_started; i < run->n_here; i++)
        zr_comm_destroy(&members[i].rank.comm);
    run_member(&members[0]);
    for (int i = 1; i < n_started; i++)
        pthread_join(members[i].thread, NULL);
}

/* Of the first that failed by itself; else of the first that was ended by another. */
static zr_status_t first_error(const run_t *run, const member_t *members) {
    const member_t *first = NULL;
    for (int i = 0; i < run->n_here; i++) {
        const member_t *member = &members[i];
        if (member->status != ZR_OK &&
            (first == NULL || (first->status == ZR_ERR_COMM && member->status != ZR_ERR_COMM)))
            first = member;
    }
    if (first == NULL)
        return ZR_OK;
    zr_last_error_set(first->error);
    return first->status;
}

static zr_rank_t rank_of(const run_t *run, zr_comm_t *comm, void *context) {
    int rank = zr_comm_rank(comm);
    return (zr_rank_t){.rank = rank,
                       .n_ranks = run->n_ranks,
                       .comm = comm,
                       .log = zr_log_with_rank(&run->options->log, rank),
                       .context = context};
}

static zr_status_t run_all(run_t *run, void *context) {
    zr_comm_t **comms = calloc((size_t)run->n_here, sizeof(zr_comm_t *));
    member_t *members = calloc((size_t)run->n_here, sizeof(*members));
    zr_status_t status = comms != NULL && members != NULL
                             ? create_comms(run, comms)
                             : zr_fail(&run->options->log, ZR_ERR_MEMORY, "run: no memory for %s",
                                       zr_count_text((uint64_t)run->n_here, "rank").text);
    if (status == ZR_OK) {
        if (run->config != NULL && run->n_here > 1)
            run->plans = zr_plan_cache_create(0); /* NULL: each rank has its own */
        for (int i = 0; i < run->n_here; i++)
            members[i] = (member_t){.run = run, .rank = rank_of(run, comms[i], context)};
        run_members(run, members);
        status = first_error(run, members);
        zr_plan_cache_destroy(&run->plans);
    }
    free(members);
    free(comms);
    return status;
}

static zr_status_t find_launch(run_t *run) {
    const zr_run_options_t *o = run->options;
    if (o->launch == NULL)
        return zr_launch_from_environment(&o->log, &run->launch, &run->is_launched);
    run->launch = *o->launch;
    run->is_launched = run->launch.n_ranks > 1;
    return run->launch.secret.is_given
               ? ZR_OK
               : zr_secret_take_from_environment(&o->log, &run->launch.secret);
}

/* Which there are, and which are here. */
static zr_status_t find_ranks(run_t *run, int n_ranks) {
    const zr_log_t *log = &run->options->log;
    if (run->options->device == NULL && run->options->device_backend == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "run: no device (NULL)");
    ZR_TRY(find_launch(run));
    run->n_ranks = run->is_launched ? run->launch.n_ranks : n_ranks;
    run->n_here = run->is_launched ? 1 : n_ranks;
    if (run->n_here < 1 || run->n_here > ZR_MAX_SUM_SOURCES)
        return zr_fail(log, ZR_ERR_ARGUMENT, "run: %d ranks; 1 to %d are allowed", n_ranks,
                       ZR_MAX_SUM_SOURCES);
    return ZR_OK;
}

zr_status_t zr_run_ranks(const zr_config_t *config, int n_ranks, zr_rank_fn function, void *context,
                         const zr_run_options_t *options) {
    zr_run_options_t defaults = zr_run_options_default();
    run_t run = {.options = options != NULL ? options : &defaults, .function = function};
    const zr_log_t *log = &run.options->log;
    zr_config_t resolved;
    if (function == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "run: no function (NULL)");
    ZR_TRY(find_ranks(&run, n_ranks));
    if (config != NULL) {
        resolved = *config;
        ZR_TRY(zr_config_resolve(&resolved, run.n_ranks, log));
        run.config = &resolved;
    }
    return run_all(&run, context);
}

/* ---- a rank whose control flow is its caller's ----------------------------------------------- */

/* What zr_rank_open gives is the first of its members, and so has its address. */
typedef struct opened {
    member_t member;
    run_t run;
    zr_run_options_t options;
} opened_t;

zr_status_t zr_rank_open(const zr_run_options_t *options, zr_rank_t **rank_p) {
    zr_run_options_t own = options != NULL ? *options : zr_run_options_default();
    if (rank_p == NULL)
        return zr_fail(&own.log, ZR_ERR_ARGUMENT, "zr_rank_open: no place for the rank (NULL)");
    opened_t *opened = calloc(1, sizeof(*opened));
    if (opened == NULL)
        return zr_fail(&own.log, ZR_ERR_MEMORY, "the system has no memory for a rank");
    opened->options = own;
    opened->run.options = &opened->options;
    zr_comm_t *comm = NULL;
    zr_status_t status = find_ranks(&opened->run, 1);
    ZR_THEN(status, create_comms(&opened->run, &comm));
    if (status == ZR_OK) {
        opened->member = (member_t){.run = &opened->run, .rank = rank_of(&opened->run, comm, NULL)};
        status = make(&opened->member);
    }
    zr_rank_t *rank = &opened->member.rank;
    if (status != ZR_OK)
        zr_rank_close(&rank, comm != NULL ? zr_last_error() : NULL);
    else
        *rank_p = rank;
    return status;
}

void zr_rank_close(zr_rank_t **rank, const char *reason) {
    if (rank == NULL || *rank == NULL)
        return;
    opened_t *opened = (opened_t *)*rank;
    if (reason != NULL && opened->member.rank.comm != NULL)
        zr_comm_abort(opened->member.rank.comm, reason);
    undo(&opened->member);
    free(opened);
    *rank = NULL;
}
