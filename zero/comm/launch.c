/* See launch.h. */
#include "zero/comm/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "zero/comm/secret_internal.h"

/* The variables of a launcher. Where it does not say which of its machine's ranks a process is, the
 * names are NULL. */
typedef struct launcher {
    const char *size, *rank, *local_rank, *local_size;
    const char *node, *node_sizes; /* which machine it is on, and the ranks of each, in a list */
    const char *way_out;
    bool by_mpi;
} launcher_t;

/* What a process has of several launchers is of the innermost one, and that comes first: mpirun
 * under Slurm starts its helpers with srun, and who sets WORLD_SIZE means it. */
static const launcher_t launchers[] = {
    {"WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, NULL,
     "torchrun sets it, or set it by hand for each process (docs/guide/clusters.md)", false},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL,
     "mpirun of Open MPI sets it (docs/guide/clusters.md)", true},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL,
     "mpirun of MPICH sets it (docs/guide/clusters.md)", true},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", NULL, "SLURM_NODEID",
     "SLURM_STEP_TASKS_PER_NODE", "srun sets it (docs/guide/clusters.md)", true},
};

static bool is_set(const char *name) {
    const char *text = name != NULL ? getenv(name) : NULL;
    return text != NULL && *text != '\0';
}

static zr_status_t read_number(const zr_log_t *log, const launcher_t *launcher, const char *name,
                               int least, int most, int *value_p) {
    if (!is_set(name))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s says that this process is one rank of several, but %s is not set; %s",
                       launcher->size, name, launcher->way_out);
    const char *text = getenv(name);
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "%s=\"%.64s\" in the environment: a whole number from %d to %d is needed; %s", name,
            text, least, most, launcher->way_out);
    *value_p = (int)value;
    return ZR_OK;
}

/* A run of nodes in Slurm's list, "2(x3),1", which has as many ranks on each. Where the next one
 * begins; NULL: it is none. */
static const char *read_nodes(const char *text, long *n_ranks_p, long *n_nodes_p) {
    char *end = NULL;
    errno = 0;
    *n_nodes_p = 1;
    *n_ranks_p = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || errno != 0 || *n_ranks_p > INT_MAX)
        return NULL;
    if (strncmp(end, "(x", 2) == 0) {
        const char *count = end + 2;
        *n_nodes_p = strtol(count, &end, 10);
        if (*count < '0' || *count > '9' || *end++ != ')' || errno != 0 || *n_nodes_p > INT_MAX)
            return NULL;
    }
    if (*end == '\0')
        return end;
    return *end == ',' && end[1] != '\0' ? end + 1 : NULL;
}

/* Where the list is of all ranks: of a step in several parts, each has its own. */
static zr_status_t read_node_size(const zr_log_t *log, const launcher_t *launcher,
                                  zr_launch_t *launch) {
    long long node_begin = 0, n_all = 0, own = 0;
    int node = 0;
    if (!is_set(launcher->node) || !is_set(launcher->node_sizes))
        return ZR_OK;
    ZR_TRY(read_number(log, launcher, launcher->node, 0, INT_MAX, &node));
    for (const char *text = getenv(launcher->node_sizes); *text != '\0';) {
        long n_ranks = 0, n_nodes = 0;
        text = read_nodes(text, &n_ranks, &n_nodes);
        if (text == NULL)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s=\"%.64s\" in the environment: ranks of each node are needed, such "
                           "as 2(x3),1 for 2 ranks on each of three nodes and 1 on the fourth; %s",
                           launcher->node_sizes, getenv(launcher->node_sizes), launcher->way_out);
        if (node >= node_begin && node < node_begin + n_nodes)
            own = n_ranks;
        node_begin += n_nodes;
        n_all += (long long)n_ranks * n_nodes;
        if (n_all > launch->n_ranks)
            break;
    }
    if (n_all == launch->n_ranks && launch->local_rank < own)
        launch->n_local_ranks = (int)own;
    return ZR_OK;
}

static zr_status_t read_host(const zr_log_t *log, const launcher_t *launcher, zr_launch_t *launch) {
    const char *host = getenv("MASTER_ADDR");
    if (host == NULL || *host == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s says that this process is one rank of several, but MASTER_ADDR, the "
                       "host of rank 0, is not set; %s",
                       launcher->size, launcher->way_out);
    if (strlen(host) >= sizeof(launch->host))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "MASTER_ADDR in the environment has %zu characters; a host's name or "
                       "address has at most %zu",
                       strlen(host), sizeof(launch->host) - 1);
    snprintf(launch->host, sizeof(launch->host), "%s", host);
    return ZR_OK;
}

/* Where rank 0 listens, as torchrun says it. */
static zr_status_t read_place(const zr_log_t *log, const launcher_t *launcher,
                              zr_launch_t *launch) {
    ZR_TRY(read_host(log, launcher, launch));
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool is_taken = store != NULL && strcmp(store, "True") == 0;
    ZR_TRY(read_number(log, launcher, "MASTER_PORT", 1, is_taken ? 65534 : 65535, &launch->port));
    launch->port += is_taken;
    return ZR_OK;
}

/* Which of its machine's ranks it is. torchrun has to say it; of others it is good to know. */
static zr_status_t read_local(const zr_log_t *log, const launcher_t *launcher,
                              zr_launch_t *launch) {
    if (!launcher->by_mpi || is_set(launcher->local_rank))
        ZR_TRY(read_number(log, launcher, launcher->local_rank, 0, launch->n_ranks - 1,
                           &launch->local_rank));
    if (is_set(launcher->local_size))
        ZR_TRY(read_number(log, launcher, launcher->local_size, 1, launch->n_ranks,
                           &launch->n_local_ranks));
    return read_node_size(log, launcher, launch);
}

zr_status_t zr_launch_from_environment(const zr_log_t *log, zr_launch_t *launch_p,
                                       bool *is_launched_p) {
    const launcher_t *launcher = NULL;
    zr_launch_t launch = {0};
    *is_launched_p = false;
    *launch_p = launch;
    ZR_TRY(zr_secret_take_from_environment(log, &launch.secret));
    for (size_t i = 0; launcher == NULL && i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (is_set(launchers[i].size))
            launcher = &launchers[i];
    if (launcher == NULL) {
        *launch_p = launch;
        return ZR_OK;
    }
    ZR_TRY(read_number(log, launcher, launcher->size, 1, ZR_MAX_SUM_SOURCES, &launch.n_ranks));
    if (launch.n_ranks == 1) {
        *launch_p = launch;
        return ZR_OK;
    }
    launch.by_mpi = launcher->by_mpi;
    ZR_TRY(read_number(log, launcher, launcher->rank, 0, launch.n_ranks - 1, &launch.rank));
    ZR_TRY(read_local(log, launcher, &launch));
    if (!launch.by_mpi)
        ZR_TRY(read_place(log, launcher, &launch));
    *launch_p = launch;
    *is_launched_p = true;
    return ZR_OK;
}
