/* See ucx_library.h. */
#include <dirent.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "zero/comm/ucx/ucx_library.h"
#include "zero/comm/wire_internal.h"

static bool append(char *list, size_t list_bytes, const char *name, const char *port) {
    size_t used = strlen(list);
    int n = snprintf(list + used, list_bytes - used, "%s%s%s%s", used > 0 ? "," : "", name,
                     port != NULL ? ":" : "", port != NULL ? port : "");
    return n >= 0 && (size_t)n < list_bytes - used;
}

/* The interface that has an address, without what is behind its name for one of several. */
static bool append_interface(const char *address, char *list, size_t list_bytes) {
    struct ifaddrs *all = NULL;
    bool is_found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (struct ifaddrs *entry = all; entry != NULL && !is_found; entry = entry->ifa_next) {
        char text[ZR_ADDRESS_BYTES];
        int family = entry->ifa_addr != NULL ? entry->ifa_addr->sa_family : AF_UNSPEC;
        socklen_t length =
            family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        if ((family != AF_INET && family != AF_INET6) ||
            getnameinfo(entry->ifa_addr, length, text, sizeof(text), NULL, 0, NI_NUMERICHOST) !=
                0 ||
            strcmp(text, address) != 0)
            continue;
        entry->ifa_name[strcspn(entry->ifa_name, ":")] = '\0';
        is_found = append(list, list_bytes, entry->ifa_name, NULL);
    }
    freeifaddrs(all);
    return is_found;
}

/* "mlx5_0:1", as the kernel lists them. */
static bool append_rdma_ports(char *list, size_t list_bytes) {
    DIR *devices = opendir("/sys/class/infiniband");
    bool fits = true;
    for (struct dirent *device; devices != NULL && (device = readdir(devices)) != NULL;) {
        char path[320];
        if (device->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports", device->d_name);
        DIR *ports = opendir(path);
        for (struct dirent *port; ports != NULL && (port = readdir(ports)) != NULL;)
            if (port->d_name[0] != '.')
                fits = fits && append(list, list_bytes, device->d_name, port->d_name);
        if (ports != NULL)
            closedir(ports);
    }
    if (devices != NULL)
        closedir(devices);
    return fits;
}

bool zr_ucx_list_devices(const char *address, char *list, size_t list_bytes) {
    list[0] = '\0';
    return append_interface(address, list, list_bytes) && append_rdma_ports(list, list_bytes);
}
