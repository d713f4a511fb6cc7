/* See mpi_site.h. */
#include "zero/comm/mpi/mpi_site.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/comm/wire_internal.h"

/* Where a build, and what is installed, has modules beside its programs. */
#ifndef ZR_MPI_MODULE_PLACE
#define ZR_MPI_MODULE_PLACE "$ORIGIN/../lib/libzero/"
#endif
#ifndef ZR_MPI_REASON
#define ZR_MPI_REASON "unknown"
#endif

/* For transfers, until the communicator is looked at. */

/* ---- the module ------------------------------------------------------------------------------ */

/* Kinds of MPI are not each other's: which launcher started this process says which is meant. */
static const char *const *module_names(void) {
    static const char *const open_mpi_first[] = {"openmpi", "mpich", NULL};
    static const char *const mpich_first[] = {"mpich", "openmpi", NULL};
    bool is_open_mpi = getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL;
    return !is_open_mpi && getenv("PMI_RANK") != NULL ? mpich_first : open_mpi_first;
}

/* One module: beside the program, or where the system looks. MPI's own plug-ins want its symbols.
 */
static const zr_mpi_module_t *load_module(const char *name, char *error, size_t error_bytes) {
    static const char *const places[] = {ZR_MPI_MODULE_PLACE, ""};
    char path[512];
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%slibzero-%s.so", places[i], name);
        void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        const zr_mpi_module_t *module = handle != NULL ? dlsym(handle, ZR_MPI_MODULE_SYMBOL) : NULL;
        if (module != NULL && module->version == ZR_MPI_MODULE_VERSION)
            return module;
        if (module != NULL)
            snprintf(error, error_bytes, "%.400s is of another version of libzero", path);
        else if (error[0] == '\0') /* of the kind that is meant, where libzero puts it */
            snprintf(error, error_bytes, "%s", dlerror());
    }
    return NULL;
}

/* UCX, below many an MPI, puts itself between the program and the system's calls for memory, and
 * loses arguments of mremap, by which the host device moves memory: it was written to where there
 * was none. It looks when it is loaded. Who sets the variable has the last word. */
static void keep_memory_calls(void) {
    (void)setenv("UCX_MEM_EVENTS", "n", 0);
}

static zr_status_t find_module(const zr_log_t *log, const zr_mpi_module_t **module_p) {
    char error[512] = "";
    keep_memory_calls();
    for (const char *const *name = module_names(); *name != NULL; name++)
        if ((*module_p = load_module(*name, error, sizeof(error))) != NULL)
            return ZR_OK;
    return zr_fail(
        log, ZR_ERR_UNSUPPORTED,
        "this process was started by MPI's launcher, but no module for MPI was found (%s; in this "
        "build MPI is %s). Install Open MPI "
        "(libopenmpi-dev) and build again; or start the ranks by hand "
        "with WORLD_SIZE and its like (docs/guide/clusters.md), or as threads with --ranks",
        error, ZR_MPI_REASON);
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Rank 0 listens where MASTER_ADDR and MASTER_PORT say, as far as they are set. */
static zr_status_t listen_for_ranks(const zr_log_t *log, zr_launch_t *launch, zr_place_t *place) {
    const char *port = getenv("MASTER_PORT"), *host = getenv("MASTER_ADDR");
    launch->port = port != NULL ? atoi(port) : 0;
    snprintf(launch->host, sizeof(launch->host), "%s", host != NULL ? host : "");
    return zr_launch_listen(log, launch, place);
}

/* Behind MPI's beginning: all learn where rank 0 is, and meet there. */
static zr_status_t meet(const zr_mpi_module_t *module, const zr_launch_t *given,
                        const zr_log_t *log, int start_ms, int timeout_ms,
                        zr_control_t **control_p) {
    zr_launch_t launch = *given;
    zr_place_t own = {0};
    char error[ZR_MPI_ERROR_BYTES] = "";
    zr_place_t *all = calloc((size_t)launch.n_ranks, sizeof(*all));
    if (all == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the addresses of %d ranks",
                       launch.n_ranks);
    zr_status_t status =
        launch.rank == 0 ? listen_for_ranks(log, &launch, &own) : ZR_OK; /* the others wait */
    if (!module->gather(&own, sizeof(own), all, start_ms, error) && status == ZR_OK)
        status = zr_fail(log, ZR_ERR_COMM, "MPI: %s", error);
    if (status == ZR_OK && all[0].port == 0)
        status =
            zr_fail(log, ZR_ERR_COMM, "the other ranks cannot reach rank 0: see rank 0's message");
    if (status == ZR_OK && launch.rank != 0)
        status = zr_launch_connect(log, &all[0], start_ms, &launch);
    free(all);
    if (status == ZR_OK)
        return zr_control_create_tcp(&launch, launch.socket, log, timeout_ms, control_p);
    zr_launch_drop(&launch);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static zr_status_t check_world(const zr_launch_t *launch, const zr_mpi_world_t *world,
                               const zr_log_t *log) {
    if (world->n_ranks == launch->n_ranks && world->rank == launch->rank)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_COMM,
                   "the launcher says that this is rank %d of %d, and MPI "
                   "(%s) says %d of %d: the launcher belongs to another MPI, or srun was started "
                   "without --mpi (srun --mpi=list); use this MPI's launcher",
                   launch->rank, launch->n_ranks, world->library, world->rank, world->n_ranks);
}

static zr_status_t open_site(const zr_launch_t *launch, const zr_log_t *log, int timeout_ms,
                             zr_mpi_site_t **site_p, zr_control_t **control_p) {
    int start_ms = launch->start_timeout_ms > 0 ? launch->start_timeout_ms : timeout_ms;
    const zr_mpi_module_t *module = NULL;
    zr_mpi_world_t world;
    char error[ZR_MPI_ERROR_BYTES] = "";
    ZR_TRY(find_module(log, &module));
    zr_mpi_site_t *site = calloc(1, sizeof(*site));
    if (site == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the state of %d ranks", launch->n_ranks);
    *site = (zr_mpi_site_t){.module = module, .log = *log, .n_users = 1, .timeout_ms = timeout_ms};
    if (!module->open(start_ms, &world, error)) {
        free(site);
        return zr_fail(log, ZR_ERR_COMM, "MPI: %s", error);
    }
    zr_status_t status = check_world(launch, &world, log);
    ZR_THEN(status, meet(module, launch, log, start_ms, timeout_ms, control_p));
    if (status != ZR_OK) {
        zr_mpi_site_leave(site, true);
        return status;
    }
    *site_p = site;
    return ZR_OK;
}

/* Meet where the caller has brought the ranks together; its socket stays its own. */
static zr_status_t meet_at_socket(const zr_launch_t *launch, const zr_log_t *log, int timeout_ms,
                                  zr_control_t **control_p) {
    int socket = fcntl(launch->socket, F_DUPFD_CLOEXEC, 0);
    if (socket < 0)
        return zr_fail(log, ZR_ERR_COMM, "launch: socket %d of rank %d: %s", launch->socket,
                       launch->rank, strerror(errno));
    return zr_control_create_tcp(launch, socket, log, timeout_ms, control_p);
}

zr_status_t zr_mpi_site_find_ranks(const zr_launch_t *launch, const zr_log_t *log, int timeout_ms,
                                   zr_mpi_site_t **site_p, zr_control_t **control_p) {
    *site_p = NULL;
    if (launch->n_ranks == 1) {
        if (zr_control_create_memory(1, timeout_ms, control_p) == ZR_OK)
            return ZR_OK;
        return zr_fail(log, ZR_ERR_MEMORY, "communicator: no memory for the state of a rank");
    }
    if (launch->has_socket)
        return meet_at_socket(launch, log, timeout_ms, control_p);
    if (launch->by_mpi)
        return open_site(launch, log, timeout_ms, site_p, control_p);
    return zr_control_create_tcp(launch, -1, log, timeout_ms, control_p);
}

void zr_mpi_site_share(zr_mpi_site_t *site) {
    if (site != NULL)
        site->n_users++;
}

void zr_mpi_site_leave(zr_mpi_site_t *site, bool is_dead) {
    char error[ZR_MPI_ERROR_BYTES] = "";
    if (site == NULL)
        return;
    site->is_dead |= is_dead;
    if (--site->n_users > 0)
        return;
    if (!site->module->close(site->is_dead, site->timeout_ms, error))
        zr_log_write(&site->log, ZR_LOG_WARNING,
                     "MPI was not finalised in this process: %s; its launcher may report that as a "
                     "failure, although the work of all ranks is complete",
                     error);
    free(site);
}

/* ---- transfers ------------------------------------------------------------------------------- */

void zr_mpi_kill_for_lateness(zr_control_t *control, const zr_mpi_transfer_t *transfers,
                              int timeout_ms, const char *how) {
    const zr_mpi_transfer_t *late = transfers;
    char other[ZR_RANK_TEXT_BYTES];
    while (late->is_done)
        late++;
    zr_control_kill(control, "has waited %d ms for %s to %s data%s", timeout_ms,
                    zr_control_describe_other(control, late->peer, other, sizeof(other)),
                    late->is_send ? "take" : "send", how);
}

zr_status_t zr_mpi_site_wait(zr_mpi_site_t *site, zr_control_t *control,
                             zr_mpi_transfer_t *transfers, size_t n_transfers) {
    char error[ZR_MPI_ERROR_BYTES] = "";
    size_t n_left = n_transfers, n_before = n_transfers;
    zr_lived_t clock = {0};
    while (n_left > 0) {
        bool is_fine =
            site->module->wait(transfers, n_transfers, ZR_LIVED_SLICE_MS, &n_left, error);
        if (n_left == 0)
            return ZR_OK;
        if (n_left < n_before)
            clock = (zr_lived_t){0};
        int64_t waited_ms = zr_lived_ms(&clock);
        n_before = n_left;
        if (!is_fine)
            zr_control_kill(control, "cannot exchange data through MPI: %s", error);
        else if (waited_ms >= site->timeout_ms)
            zr_mpi_kill_for_lateness(control, transfers, site->timeout_ms, " through MPI");
        if (zr_control_is_dead(control)) {
            site->module->give_up();
            return ZR_ERR_COMM;
        }
    }
    return ZR_OK;
}
