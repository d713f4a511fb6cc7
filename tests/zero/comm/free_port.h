/*
 * A port of this machine for ranks that find each other: the system chooses, and gives it to nobody
 * else while this process is there. A socket that is bound to it, and does not listen, is what
 * keeps it; ranks listen at it nevertheless, since they share addresses (SO_REUSEADDR).
 */
#pragma once

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bound to a port of all addresses of both families, or of IPv4's where there is no other. */
static inline int keep_port(int family, int *port_p) {
    struct sockaddr_in6 address = {.sin6_family = (sa_family_t)family}; /* port 0: any */
    socklen_t length = sizeof(address);
    int yes = 1, no = 0, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, length) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port_p = ntohs(address.sin6_port); /* at the same place in both families */
    return fd;
}

/* The port that was asked for before is given back. */
static inline int free_port(void) {
    static int keeper = -1;
    int port = 0, fd = keep_port(AF_INET6, &port);
    if (fd < 0)
        fd = keep_port(AF_INET, &port);
    if (fd < 0)
        abort();
    if (keeper >= 0)
        close(keeper);
    keeper = fd;
    return port;
}
