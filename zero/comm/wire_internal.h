/*
 * What goes over a connection between a rank and the coordinator (coordinator/): frames, and the
 * sockets below.
 *
 * A frame is a header and `length` bytes, and a seal (secret_internal.h) where ranks have a secret.
 * Everything is checked by who receives it (peer_internal.h), since anybody may connect to a port:
 * lengths are limited by kind. Who listens begins (zr_challenge_t), and takes from who has
 * connected one frame until it is known: its hello. Machines of one run have the same byte order;
 * the magic number tells where they do not.
 */
#pragma once

#include <sys/types.h>

#include "kernels/base/lived_internal.h"
#include "zero/comm/membership_internal.h"
#include "zero/comm/secret_internal.h"

#define ZR_WIRE_MAGIC 0x315A52454E49474Cu
#define ZR_WIRE_VERSION 7u /* of these structures */

typedef enum zr_frame_kind {
    ZR_FRAME_HELLO = 1, /* to the coordinator: zr_hello_t, the first; also to a listener for data */
    ZR_FRAME_WELCOME = 2,   /* from the coordinator: all ranks have come */
    ZR_FRAME_REFUSED = 3,   /* from the coordinator: text */
    ZR_FRAME_POST = 4,      /* to the coordinator: zr_post_t */
    ZR_FRAME_MEET = 5,      /* to the coordinator: int32_t status */
    ZR_FRAME_KILL = 6,      /* to the coordinator: text */
    ZR_FRAME_LEAVE = 7,     /* to the coordinator */
    ZR_FRAME_OUTCOME = 8,   /* from the coordinator: zr_outcome_t, then what the posts carried; of a
                               split int32_t[n_ranks], who the group's ranks are in the first
                               communicator */
    ZR_FRAME_END = 9,       /* from the coordinator: zr_end_t */
    ZR_FRAME_APART = 11,    /* to the coordinator: from now on this group meets in a page
                               (control_page_internal.h) */
    ZR_FRAME_ALIVE = 10,    /* both ways, without a word: zr_wire_beat_ms */
    ZR_FRAME_CHALLENGE = 12 /* from who listens: zr_challenge_t, the first, without a seal */
} zr_frame_kind_t;

typedef struct zr_frame {
    uint32_t kind, group, length, reserved;
} zr_frame_t;

/** Some of a frame's data. */
typedef struct zr_wire_part {
    const void *bytes;
    size_t length;
} zr_wire_part_t;

/** From who listens, to whoever connects. */
typedef struct zr_challenge {
    uint64_t magic;
    uint32_t version, has_secret;
    unsigned char nonce[ZR_NONCE_BYTES];
} zr_challenge_t;

/** The answer. */
typedef struct zr_hello {
    uint64_t magic;
    uint32_t version, reserved;
    int32_t rank, n_ranks; /* in the first communicator */
    uint64_t proof;        /* for data: of who listens, as it has shown it to the others; else 0 */
    unsigned char nonce[ZR_NONCE_BYTES];
} zr_hello_t;

typedef struct zr_outcome {
    int32_t status;
    int32_t group;         /* of a split: what this rank is in now; -1: in none */
    int32_t rank, n_ranks; /* of that */
} zr_outcome_t;

typedef struct zr_end {
    uint32_t has_left;
    int32_t whose; /* latest call the receiver adds to the reason, of a rank; -1: nobody's */
    char reason[ZR_REASON_BYTES];
} zr_end_t;

/** Most bytes that a frame to the coordinator, or from it, can have behind its header. */
#define ZR_WIRE_MOST_TO_HUB                                                                        \
    (sizeof(zr_post_t) > ZR_REASON_BYTES ? sizeof(zr_post_t) : ZR_REASON_BYTES)
#define ZR_WIRE_MOST_FROM_HUB(n_ranks)                                                             \
    (sizeof(zr_end_t) + sizeof(zr_outcome_t) + (size_t)(n_ranks)*ZR_PAYLOAD_BYTES)

/**
 * What to add to words on a connection that has ended: that this process itself stood still shortly
 * before, so that others have gone on without it; or nothing.
 */
const char *zr_wire_describe_gap(const zr_lived_t *clock, char *text, size_t text_bytes);
#define ZR_GAP_TEXT_BYTES 96

/**
 * Both sides of a connection say that they are there, from a thread that does nothing else, when
 * this long has passed since they did; and a side that is not heard for the longer time is lost.
 * So a process that is stopped is found, and one that computes for long is not taken for it.
 */
int zr_wire_beat_ms(int timeout_ms);
int zr_wire_silence_ms(int timeout_ms); /* well within the time limit, and at least a second */
#define ZR_WIRE_SILENCE "its process is stopped, or its machine or the way there is lost"

/**
 * Listen on a port; port 0 takes a free one.
 *
 * @param address  of this machine, as a number; "": all of them
 * @return 0, and the socket; otherwise an errno
 */
int zr_wire_listen(const char *address, int port, int *socket_p, int *port_p);

/**
 * This machine's address that leads to a host, as a number: where who listens is reached by those
 * who reach the host, or share its network. "": not known, or the loopback for a name that others
 * may know by another address, as Debian has a machine's own name in /etc/hosts.
 *
 * @param address  [ZR_ADDRESS_BYTES]
 */
void zr_wire_own_address(const char *host, char *address);
/** The number of a socket's address, of either side; "": it has none. */
void zr_wire_describe_address(int socket, bool is_peer, char *address);

/**
 * Connect, trying again until somebody listens.
 *
 * @param limit_ms  to live meanwhile (lived_internal.h)
 * @return 0, and the socket, which blocks; otherwise why not, by errno, and words for a resolver's
 *         failure in `detail` (a static string, else NULL)
 */
int zr_wire_connect(const char *host, int port, int64_t limit_ms, int *socket_p,
                    const char **detail_p);

/** Small messages go at once. */
void zr_wire_no_delay(int socket);

/**
 * A connection whose other side does not answer, because its machine or the way there is lost,
 * ends by itself, with ETIMEDOUT or the like, well within the time limit. Of a process that is
 * stopped, the machine answers. Nor does sending block for longer: it fails with EAGAIN.
 */
void zr_wire_guard(int socket, int timeout_ms);

/**
 * Put a frame with its seal where there is room for it.
 *
 * @param frame  kind and group; its length is set here
 * @param parts  [2] of its data
 * @return its bytes
 */
size_t zr_wire_put(zr_seal_t *seal, zr_frame_t *frame, const zr_wire_part_t parts[2], char *bytes);

/**
 * Answer who has listened: fill the hello's common fields, and make the keys.
 *
 * @return false: it is not of this run, and why[ZR_PEER_WHY_BYTES]
 */
bool zr_wire_answer(zr_seal_t *seal, const zr_secret_t *secret, const zr_challenge_t *challenge,
                    zr_hello_t *hello, char *why);

/** Send a frame to the coordinator, on a blocking socket. @return 0 or an errno */
int zr_wire_send(int socket, zr_seal_t *seal, uint32_t kind, uint32_t group, const void *data,
                 size_t length);

/**
 * Receive some bytes, if there are any within so many milliseconds.
 *
 * @return how many; 0: none came; otherwise -errno, ECONNRESET when the other side has closed
 */
ssize_t zr_wire_receive_some(int socket, void *data, size_t length, int wait_ms);
