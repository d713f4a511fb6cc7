/* See wire_internal.h. */
#include "zero/comm/wire_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "zero/comm/peer_internal.h"

const char *zr_wire_describe_gap(const zr_lived_t *clock, char *text, size_t text_bytes) {
    enum { RECENT_MS = 10000 };
    bool is_recent = clock->gap_ms > 0 && zr_lived_machine_ms() - clock->gap_end_ms < RECENT_MS;
    text[0] = '\0';
    if (is_recent)
        snprintf(text, text_bytes, "; this process itself was stopped, or did not run, for %lld ms",
                 (long long)clock->gap_ms);
    return text;
}

int zr_wire_silence_ms(int timeout_ms) {
    int64_t silence_ms = (int64_t)timeout_ms * 3 / 5;
    return silence_ms > 1000 ? (int)silence_ms : 1000;
}

int zr_wire_beat_ms(int timeout_ms) {
    return zr_wire_silence_ms(timeout_ms) / 6;
}

/* ---- listening ---- */

static int listen_at(const struct addrinfo *address, int *socket_p) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int yes = 1, no = 0, error = 0;
    if (fd < 0)
        return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (address->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1024) != 0)
        error = errno;
    if (error != 0)
        close(fd);
    else
        *socket_p = fd;
    return error;
}

/* 0, or an errno, with words for a resolver's failure. */
static int resolve(const char *host, int port, int flags, struct addrinfo **addresses_p,
                   const char **detail_p) {
    char service[16];
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    snprintf(service, sizeof(service), "%d", port);
    int failure = getaddrinfo(host, service, &hints, addresses_p);
    *detail_p = failure != 0 ? gai_strerror(failure) : NULL;
    return failure != 0 ? EHOSTUNREACH : 0;
}

int zr_wire_listen(const char *address, int port, int *socket_p, int *port_p) {
    /* All addresses are those of IPv6, with IPv4's; a machine without IPv6 has the latter. */
    const char *const all[] = {"::", "0.0.0.0"}, *detail = NULL;
    int error = EADDRNOTAVAIL, n = address[0] == '\0' ? 2 : 1;
    for (int i = 0; i < n && error != 0 && error != EADDRINUSE; i++) {
        struct addrinfo *found = NULL;
        error =
            resolve(n == 2 ? all[i] : address, port, AI_PASSIVE | AI_NUMERICHOST, &found, &detail);
        error = error == 0 ? listen_at(found, socket_p) : EADDRNOTAVAIL;
        if (found != NULL)
            freeaddrinfo(found);
    }
    struct sockaddr_in6 own = {0};
    socklen_t length = sizeof(own);
    if (error != 0 || getsockname(*socket_p, (struct sockaddr *)&own, &length) != 0)
        return error != 0 ? error : errno;
    *port_p = ntohs(own.sin6_port); /* at the same place in both families */
    return 0;
}

void zr_wire_describe_address(int socket, bool is_peer, char *address) {
    struct sockaddr_storage place = {0};
    socklen_t length = sizeof(place);
    struct sockaddr *name = (struct sockaddr *)&place;
    int failure = is_peer ? getpeername(socket, name, &length) : getsockname(socket, name, &length);
    if (failure != 0 || (place.ss_family != AF_INET && place.ss_family != AF_INET6) ||
        getnameinfo(name, length, address, ZR_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        address[0] = '\0';
}

static bool is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* Nothing is sent: a datagram's socket that is connected knows its own address. */
void zr_wire_own_address(const char *host, char *address) {
    struct addrinfo *found = NULL;
    const char *detail = NULL;
    address[0] = '\0';
    (void)resolve(host, 1, 0, &found, &detail);
    for (struct addrinfo *a = found; a != NULL && address[0] == '\0'; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            zr_wire_describe_address(fd, false, address);
        if (fd >= 0)
            close(fd);
    }
    if (found != NULL)
        freeaddrinfo(found);
    if (is_loopback(address) && !is_loopback(host) && strcmp(host, "localhost") != 0)
        address[0] = '\0';
}

/* ---- connecting ---- */

static void wait_ms(int ms) {
    struct timespec moment = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&moment, NULL);
}

void zr_wire_no_delay(int socket) {
    int yes = 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

/* Of the time limit: a quarter until the first question, an eighth to the next, and lost after a
 * half without an answer. What fails here fails for sockets that are no network's. */
void zr_wire_guard(int socket, int timeout_ms) {
    int yes = 1, idle_s = timeout_ms / 4000, next_s = timeout_ms / 8000;
    unsigned lost_ms = timeout_ms > 2000 ? (unsigned)timeout_ms / 2 : 1000;
    idle_s = idle_s > 0 ? idle_s : 1;
    next_s = next_s > 0 ? next_s : 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &next_s, sizeof(next_s));
    (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof(lost_ms));
    (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    struct timeval limit = {.tv_sec = lost_ms / 1000, .tv_usec = lost_ms % 1000 * 1000};
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* Until a connection that has been begun is made, or failed. 0 or an errno. */
static int await_connection(int socket, zr_lived_t *clock, int64_t limit_ms) {
    struct pollfd ready = {.fd = socket, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);
    while (poll(&ready, 1, zr_lived_slice_ms(clock, limit_ms)) <= 0)
        if (zr_lived_ms(clock) >= limit_ms)
            return ETIMEDOUT;
    return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 ? errno : error;
}

static int connect_once(const struct addrinfo *address, zr_lived_t *clock, int64_t limit_ms,
                        int *socket_p) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = connect(fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS)
        error = await_connection(fd, clock, limit_ms);
    int flags = fcntl(fd, F_GETFL);
    if (error == 0 && (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0))
        error = errno;
    if (error != 0) {
        close(fd);
        return error;
    }
    zr_wire_no_delay(fd);
    *socket_p = fd;
    return 0;
}

static int connect_to_host(const char *host, int port, zr_lived_t *clock, int64_t limit_ms,
                           int *socket_p, const char **detail_p) {
    struct addrinfo *addresses = NULL;
    int error = resolve(host, port, 0, &addresses, detail_p);
    (void)zr_lived_ms_behind(clock, limit_ms / 4); /* a resolver has limits of its own */
    if (error != 0)
        return error;
    error = EHOSTUNREACH;
    for (struct addrinfo *a = addresses; a != NULL && error != 0; a = a->ai_next)
        error = connect_once(a, clock, limit_ms, socket_p);
    freeaddrinfo(addresses);
    return error;
}

int zr_wire_connect(const char *host, int port, int64_t limit_ms, int *socket_p,
                    const char **detail_p) {
    enum { FIRST_PAUSE_MS = 10, MOST_PAUSE_MS = ZR_LIVED_SLICE_MS };
    zr_lived_t clock = {0};
    (void)zr_lived_ms(&clock);
    for (int pause = FIRST_PAUSE_MS;;
         pause = pause * 2 > MOST_PAUSE_MS ? MOST_PAUSE_MS : pause * 2) {
        int error = connect_to_host(host, port, &clock, limit_ms, socket_p, detail_p);
        if (error == 0 || zr_lived_ms(&clock) >= limit_ms)
            return error;
        wait_ms(pause);
    }
}

/* ---- bytes ---- */

size_t zr_wire_put(zr_seal_t *seal, zr_frame_t *frame, const zr_wire_part_t parts[2], char *bytes) {
    size_t n_bytes = sizeof(*frame);
    for (int i = 0; i < 2; i++) {
        if (parts[i].length > 0)
            memcpy(bytes + n_bytes, parts[i].bytes, parts[i].length);
        n_bytes += parts[i].length;
    }
    frame->length = (uint32_t)(n_bytes - sizeof(*frame));
    memcpy(bytes, frame, sizeof(*frame));
    return n_bytes + zr_seal_put(seal, bytes, n_bytes);
}

bool zr_wire_answer(zr_seal_t *seal, const zr_secret_t *secret, const zr_challenge_t *challenge,
                    zr_hello_t *hello, char *why) {
    if (!zr_peer_check_challenge(challenge, secret->is_given, why))
        return false;
    hello->magic = ZR_WIRE_MAGIC;
    hello->version = ZR_WIRE_VERSION;
    zr_nonce_draw(hello->nonce);
    *seal = zr_seal_begin(secret);
    zr_seal_make_keys(seal, secret, false, challenge->nonce, hello->nonce);
    return true;
}

int zr_wire_send(int socket, zr_seal_t *seal, uint32_t kind, uint32_t group, const void *data,
                 size_t length) {
    char bytes[sizeof(zr_frame_t) + ZR_WIRE_MOST_TO_HUB + ZR_SEAL_BYTES];
    zr_frame_t frame = {.kind = kind, .group = group};
    const zr_wire_part_t parts[2] = {{data, length}};
    if (length > ZR_WIRE_MOST_TO_HUB)
        return EMSGSIZE;
    size_t n_bytes = zr_wire_put(seal, &frame, parts, bytes);
    for (size_t sent = 0; sent < n_bytes;) {
        ssize_t n = send(socket, bytes + sent, n_bytes - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return errno;
        sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

ssize_t zr_wire_receive_some(int socket, void *data, size_t length, int wait_ms) {
    struct pollfd ready = {.fd = socket, .events = POLLIN};
    int n_ready = poll(&ready, 1, wait_ms);
    if (n_ready <= 0)
        return n_ready == 0 || errno == EINTR ? 0 : -errno;
    ssize_t n = recv(socket, data, length, MSG_DONTWAIT);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? 0 : -errno;
    return n;
}
