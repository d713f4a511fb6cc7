/* See connection.h. */
#include "zero/comm/coordinator/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void zr_connection_close(zr_connection_t *connection) {
    if (connection->socket >= 0)
        close(connection->socket);
    free(connection->outbox.bytes);
    connection->outbox = (zr_outbox_t){0};
    connection->socket = -1;
    connection->n_received = 0;
}

void zr_connection_open(zr_connection_t *connection, int socket, const zr_secret_t *secret,
                        int64_t now_ms) {
    static const zr_secret_t none;
    zr_challenge_t challenge = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION};
    *connection = (zr_connection_t){.socket = socket, .rank = -1, .heard_ms = now_ms};
    connection->secret = secret;
    connection->seal = zr_seal_begin(secret != NULL ? secret : &none);
    if (secret == NULL)
        return;
    zr_nonce_draw(connection->nonce);
    challenge.has_secret = secret->is_given;
    memcpy(challenge.nonce, connection->nonce, sizeof(challenge.nonce));
    zr_connection_send(connection, ZR_FRAME_CHALLENGE, 0, &challenge, sizeof(challenge));
}

void zr_connection_take(zr_connection_t *connection, zr_connection_t *other, int rank) {
    *connection = *other;
    connection->rank = rank;
    connection->back_until_ms = 0;
    other->socket = -1;
    other->outbox = (zr_outbox_t){0};
}

static bool grow_outbox(zr_outbox_t *outbox, size_t length) {
    if (outbox->sent > 0) {
        memmove(outbox->bytes, outbox->bytes + outbox->sent, outbox->length - outbox->sent);
        outbox->length -= outbox->sent;
        outbox->sent = 0;
    }
    if (outbox->length + length <= outbox->capacity)
        return true;
    size_t capacity = 2 * (outbox->length + length);
    char *bytes = realloc(outbox->bytes, capacity);
    if (bytes == NULL)
        return false;
    outbox->bytes = bytes;
    outbox->capacity = capacity;
    return true;
}

bool zr_connection_flush(zr_connection_t *connection) {
    zr_outbox_t *outbox = &connection->outbox;
    while (outbox->sent < outbox->length) {
        ssize_t n = send(connection->socket, outbox->bytes + outbox->sent,
                         outbox->length - outbox->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (n < 0 && errno != EINTR)
            return false;
        outbox->sent += n > 0 ? (size_t)n : 0;
    }
    if (connection->is_closing)
        (void)shutdown(connection->socket, SHUT_WR);
    return true;
}

void zr_connection_send_parts(zr_connection_t *connection, uint32_t kind, uint32_t group,
                              const void *head, size_t head_length, const void *tail,
                              size_t tail_length) {
    zr_frame_t frame = {.kind = kind, .group = group};
    const zr_wire_part_t parts[2] = {{head, head_length}, {tail, tail_length}};
    zr_outbox_t *outbox = &connection->outbox;
    if (connection->socket < 0)
        return;
    if (!grow_outbox(outbox, sizeof(frame) + head_length + tail_length + ZR_SEAL_BYTES)) {
        (void)shutdown(connection->socket, SHUT_RDWR); /* it is told so by the loss */
        return;
    }
    outbox->length += zr_wire_put(&connection->seal, &frame, parts, outbox->bytes + outbox->length);
    (void)zr_connection_flush(connection);
}

void zr_connection_send(zr_connection_t *connection, uint32_t kind, uint32_t group,
                        const void *data, size_t length) {
    zr_connection_send_parts(connection, kind, group, data, length, NULL, 0);
}

void zr_connection_refuse(zr_connection_t *connection, const char *reason) {
    zr_connection_send(connection, ZR_FRAME_REFUSED, 0, reason, strlen(reason) + 1);
    connection->is_closing = true;
    (void)zr_connection_flush(connection);
}

struct pollfd zr_connection_polled(const zr_connection_t *connection) {
    bool has_more = connection->outbox.sent < connection->outbox.length;
    return (struct pollfd){.fd = connection->socket,
                           .events = (short)(POLLIN | (has_more ? POLLOUT : 0))};
}

int zr_connection_receive(zr_connection_t *connection, int64_t now_ms) {
    size_t room = sizeof(connection->received) - connection->n_received;
    ssize_t n =
        recv(connection->socket, connection->received + connection->n_received, room, MSG_DONTWAIT);
    if (n == 0)
        return ECONNRESET;
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : errno;
    connection->n_received += (size_t)n;
    connection->heard_ms = now_ms;
    return 0;
}

/* The first frame has what the keys are made of. */
static void make_keys(zr_connection_t *connection) {
    zr_hello_t hello;
    memcpy(&hello, connection->received + sizeof(zr_frame_t), sizeof(hello));
    zr_seal_make_keys(&connection->seal, connection->secret, true, connection->nonce, hello.nonce);
}

int zr_connection_next_frame(zr_connection_t *connection, zr_frame_t *frame, char *why) {
    zr_seal_t *seal = &connection->seal;
    if (connection->n_received < sizeof(*frame))
        return 0;
    memcpy(frame, connection->received, sizeof(*frame));
    if (!zr_peer_check_frame(frame, true, 0, why))
        return -1;
    if (connection->n_received < sizeof(*frame) + frame->length + seal->tag_bytes)
        return 0;
    if (frame->kind == ZR_FRAME_HELLO && connection->secret != NULL && !seal->has_keys)
        make_keys(connection);
    if (zr_seal_is_right(seal, connection->received, sizeof(*frame) + frame->length))
        return 1;
    snprintf(why, ZR_PEER_WHY_BYTES,
             "a frame that is not authenticated with the secret, or is out of order");
    return -1;
}

void zr_connection_drop_frame(zr_connection_t *connection, const zr_frame_t *frame) {
    size_t length = sizeof(*frame) + frame->length + connection->seal.tag_bytes;
    connection->seal.n_received++;
    connection->n_received -= length;
    memmove(connection->received, connection->received + length, connection->n_received);
}
