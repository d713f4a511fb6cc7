/* Rank 0's place, and the way there: see launch.h. */
#include "zero/comm/launch.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/comm/peer_internal.h"
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

/* Add this machine's addresses, numbers all, that of the machine itself last. There has to be one.
 */
static zr_status_t list_addresses(const zr_log_t *log, zr_place_t *place) {
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
                place->n_addresses == ZR_PLACE_ADDRESSES)
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

zr_status_t zr_launch_listen(const zr_log_t *log, zr_launch_t *launch, zr_place_t *place_p) {
    zr_place_t place = {0};
    char bind[ZR_ADDRESS_BYTES] = "", wanted[32] = "any port";
    const char *host = launch->host;
    int port = 0, listener = -1;
    *place_p = place;
    if (launch->bind[0] != '\0')
        snprintf(bind, sizeof(bind), "%s", launch->bind);
    else if (host[0] != '\0')
        zr_wire_own_address(host, bind);
    if (launch->port != 0)
        snprintf(wanted, sizeof(wanted), "MASTER_PORT %d", launch->port);
    int error = zr_wire_listen(bind, launch->port, &listener, &port);
    if (error != 0)
        return zr_fail(log, ZR_ERR_COMM, "rank 0 cannot listen at %s of %s: %s", wanted,
                       bind[0] != '\0' ? bind : "this machine", strerror(error));
    describe_network(place.network, sizeof(place.network));
    if (host[0] == '\0')
        host = launch->bind;
    if (host[0] != '\0' && strlen(host) < ZR_ADDRESS_BYTES)
        snprintf(place.addresses[place.n_addresses++], ZR_ADDRESS_BYTES, "%s", host);
    if (bind[0] == '\0' && list_addresses(log, &place) != ZR_OK) {
        close(listener);
        return ZR_ERR_COMM;
    }
    snprintf(launch->host, sizeof(launch->host), "%s", place.addresses[0]);
    launch->port = place.port = port;
    launch->socket = listener;
    launch->has_socket = true;
    *place_p = place;
    return ZR_OK;
}

/* From rank 0's own machine, that machine's own address comes first. */
static int try_addresses(const zr_place_t *place, int timeout_ms, zr_launch_t *launch,
                         const char **detail_p) {
    char network[ZR_PLACE_NETWORK_BYTES];
    int n = place->n_addresses, error = 0, tried_ms = 0;
    describe_network(network, sizeof(network));
    bool is_same = network[0] != ' ' && strcmp(network, place->network) == 0;
    do {
        for (int i = 0; i < n; i++) {
            const char *address = place->addresses[is_same ? n - 1 - i : i];
            int left_ms = timeout_ms - tried_ms, limit_ms = left_ms < TRY_MS ? left_ms : TRY_MS;
            error = zr_wire_connect(address, place->port, limit_ms, &launch->socket, detail_p);
            tried_ms += limit_ms;
            snprintf(launch->host, sizeof(launch->host), "%s", address);
            if (error == 0)
                return 0;
        }
    } while (tried_ms < timeout_ms);
    return error;
}

zr_status_t zr_launch_connect(const zr_log_t *log, const zr_place_t *place, int timeout_ms,
                              zr_launch_t *launch) {
    char why[ZR_PEER_WHY_BYTES], tried[256] = "";
    const char *detail = NULL;
    if (!zr_peer_check_place(place, why))
        return zr_fail(log, ZR_ERR_COMM,
                       "rank 0 sent something else than its address: %s; is it the same program?",
                       why);
    int error = try_addresses(place, timeout_ms, launch, &detail);
    launch->has_socket = error == 0;
    launch->port = place->port;
    if (error == 0)
        return ZR_OK;
    for (int i = 0; i < place->n_addresses; i++)
        snprintf(tried + strlen(tried), sizeof(tried) - strlen(tried), "%s%s", i > 0 ? ", " : "",
                 place->addresses[i]);
    return zr_fail(log, ZR_ERR_COMM,
                   "rank 0 cannot be reached at port %d of %s, for %d ms: %s; set MASTER_ADDR to "
                   "an address of its machine that the others can reach%s",
                   place->port, tried, timeout_ms, detail != NULL ? detail : strerror(error),
                   launch->by_mpi ? ", and MASTER_PORT to an open port" : "");
}

void zr_launch_drop(zr_launch_t *launch) {
    if (launch->has_socket)
        close(launch->socket);
    launch->has_socket = false;
}
