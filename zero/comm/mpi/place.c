/* Where rank 0 listens, and the way there: see mpi_site.h. */
#include "zero/comm/mpi/mpi_site.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/comm/wire_internal.h"

/* An address that does not answer, until the next is tried. */
enum { TRY_MS = 1000 };

static void describe_network(char *text, size_t text_bytes) {
    char link[64] = "", host[64] = "";
    ssize_t length = readlink("/proc/self/ns/net", link, sizeof(link) - 1);
    if (length <= 0 || gethostname(host, sizeof(host) - 1) != 0)
        link[0] = host[0] = '\0';
    snprintf(text, text_bytes, "%s %s", host, link);
}

/* This machine's addresses, numbers all, that of the machine itself last. There has to be one. */
static zr_status_t list_addresses(const zr_log_t *log, zr_mpi_place_t *place) {
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        return zr_fail(log, ZR_ERR_COMM,
                       "rank 0 cannot find its machine's addresses: %s; set MASTER_ADDR to one "
                       "that the other ranks can reach",
                       strerror(errno));
    for (int pass = 0; pass < 2; pass++) {
        for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
            bool is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
            if (entry->ifa_addr == NULL || entry->ifa_addr->sa_family != AF_INET ||
                (entry->ifa_flags & IFF_UP) == 0 || is_loopback != (pass == 1) ||
                place->n_addresses == ZR_MPI_PLACE_ADDRESSES)
                continue;
            char *text = place->addresses[place->n_addresses];
            if (getnameinfo(entry->ifa_addr, sizeof(struct sockaddr_in), text, ZR_ADDRESS_BYTES,
                            NULL, 0, NI_NUMERICHOST) == 0)
                place->n_addresses++;
        }
    }
    freeifaddrs(list);
    return place->n_addresses > 0
               ? ZR_OK
               : zr_fail(log, ZR_ERR_COMM,
                         "rank 0 cannot be reached by the others: no network interface of its "
                         "machine that is up has an IPv4 address; bring one up (ip link set lo up "
                         "where all ranks are on this machine), or set MASTER_ADDR to an address "
                         "or name that they can reach");
}

zr_status_t zr_mpi_place_listen(const zr_log_t *log, const zr_launch_t *launch,
                                zr_mpi_place_t *place, int *listener_p) {
    const char *wanted = getenv("MASTER_PORT"), *host = getenv("MASTER_ADDR");
    char bind[ZR_ADDRESS_BYTES] = "";
    int port = 0;
    if (launch->bind[0] != '\0')
        snprintf(bind, sizeof(bind), "%s", launch->bind);
    else if (host != NULL)
        zr_wire_own_address(host, bind);
    int error = zr_wire_listen(bind, wanted != NULL ? atoi(wanted) : 0, listener_p, &port);
    if (error != 0)
        return zr_fail(log, ZR_ERR_COMM, "rank 0 cannot listen at %s%s of %s: %s",
                       wanted != NULL ? "MASTER_PORT " : "any port", wanted != NULL ? wanted : "",
                       bind[0] != '\0' ? bind : "this machine", strerror(error));
    describe_network(place->network, sizeof(place->network));
    if (host == NULL && launch->bind[0] != '\0')
        host = launch->bind;
    if (host != NULL && strlen(host) < ZR_ADDRESS_BYTES) {
        snprintf(place->addresses[0], ZR_ADDRESS_BYTES, "%s", host);
        place->n_addresses = 1;
    } else {
        ZR_TRY(list_addresses(log, place));
    }
    place->port = port;
    return ZR_OK;
}

/* From rank 0's own machine, that machine's own address comes first. */
zr_status_t zr_mpi_place_connect(const zr_log_t *log, const zr_mpi_place_t *place, int timeout_ms,
                                 zr_launch_t *launch, int *socket_p) {
    char network[ZR_MPI_NETWORK_BYTES], tried[256] = "";
    int n = place->n_addresses, error = 0, tried_ms = 0;
    const char *detail = NULL;
    describe_network(network, sizeof(network));
    bool is_same = network[0] != ' ' && strcmp(network, place->network) == 0;
    do {
        for (int i = 0; i < n; i++) {
            const char *address = place->addresses[is_same ? n - 1 - i : i];
            int left_ms = timeout_ms - tried_ms, limit_ms = left_ms < TRY_MS ? left_ms : TRY_MS;
            error = zr_wire_connect(address, place->port, limit_ms, socket_p, &detail);
            tried_ms += limit_ms;
            snprintf(launch->host, sizeof(launch->host), "%s", address);
            if (error == 0)
                return ZR_OK;
        }
    } while (tried_ms < timeout_ms);
    for (int i = 0; i < n; i++)
        snprintf(tried + strlen(tried), sizeof(tried) - strlen(tried), "%s%s", i > 0 ? ", " : "",
                 place->addresses[i]);
    return zr_fail(
        log, ZR_ERR_COMM,
        "rank 0 cannot be reached at port %d of %s, for %d ms: %s; set MASTER_ADDR to an address "
        "of its machine that the others can reach, and MASTER_PORT to an open port",
        place->port, tried, timeout_ms, detail != NULL ? detail : strerror(error));
}
