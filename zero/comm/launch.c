/* See launch.h. */
#include "zero/comm/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define WAY_OUT "torchrun sets it, or set it by hand for each process (docs/gpu.md)"

/* A variable's whole number within limits. */
static zr_status_t read_number(const zr_log_t *log, const char *name, int least, int most,
                               int *value_p) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "WORLD_SIZE says that this process is one rank of several, but %s is not "
                       "set; " WAY_OUT,
                       name);
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "%s=\"%.64s\" in the environment: a whole number from %d to %d is needed; " WAY_OUT,
            name, text, least, most);
    *value_p = (int)value;
    return ZR_OK;
}

static zr_status_t read_host(const zr_log_t *log, zr_launch_t *launch) {
    const char *host = getenv("MASTER_ADDR");
    if (host == NULL || *host == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "WORLD_SIZE says that this process is one rank of several, but MASTER_ADDR, "
                       "the host of rank 0, is not set; " WAY_OUT);
    if (strlen(host) >= sizeof(launch->host))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "MASTER_ADDR in the environment has %zu characters; a host's name or "
                       "address has at most %zu",
                       strlen(host), sizeof(launch->host) - 1);
    snprintf(launch->host, sizeof(launch->host), "%s", host);
    return ZR_OK;
}

zr_status_t zr_launch_from_environment(const zr_log_t *log, zr_launch_t *launch_p,
                                       bool *is_launched_p) {
    const char *world = getenv("WORLD_SIZE");
    zr_launch_t launch = {0};
    *is_launched_p = false;
    if (world == NULL || *world == '\0')
        return ZR_OK;
    ZR_TRY(read_number(log, "WORLD_SIZE", 1, ZR_MAX_SUM_SOURCES, &launch.n_ranks));
    if (launch.n_ranks == 1)
        return ZR_OK;
    ZR_TRY(read_number(log, "RANK", 0, launch.n_ranks - 1, &launch.rank));
    ZR_TRY(read_number(log, "LOCAL_RANK", 0, launch.n_ranks - 1, &launch.local_rank));
    ZR_TRY(read_host(log, &launch));
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool is_taken = store != NULL && strcmp(store, "True") == 0;
    ZR_TRY(read_number(log, "MASTER_PORT", 1, is_taken ? 65534 : 65535, &launch.port));
    launch.port += is_taken;
    *launch_p = launch;
    *is_launched_p = true;
    return ZR_OK;
}
