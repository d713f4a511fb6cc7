/*
 * What peers say: every frame, every structure that other processes show, and a connection's bytes
 * as they come. An input's first byte says which of them it is; the rest are its bytes, with zeros
 * where there are too few. What a check accepts can be used as what it says it is, which is asked
 * here field by field; what it refuses has words. The corpus begins with one byte, since what is
 * right is made here (put_right), as the structures are now.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/fuzz/fuzz.h"
#include "zero/comm/coordinator/connection.h"

typedef enum kind {
    INTRODUCTION,
    TENSORS,
    HEADER,
    PLACE,
    FRAME_TO_HUB,
    FRAME_FROM_HUB,
    CHALLENGE,
    HELLO,
    POST,
    STATUS,
    OUTCOME,
    END,
    TEXT,
    CONNECTION,
    SEALED_CONNECTION,
    N_KINDS
} kind_t;

enum { N_RANKS = 3 };

static const int origins[N_RANKS] = {7, 3, 1000};
static char why[ZR_PEER_WHY_BYTES];

#define IS_TEXT(array) (memchr(array, '\0', sizeof(array)) != NULL && is_plain(array))

static bool is_plain(const char *text) {
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F ||
            ((unsigned char)text[0] == 0xC2 && (unsigned char)text[1] >= 0x80 &&
             (unsigned char)text[1] < 0xA0))
            return false;
    return true;
}

static void ask_introduction(const zr_introduction_t *said) {
    for (int rank = 0; rank < 2; rank++) {
        const zr_peer_t peer = {.rank = rank, .origin_rank = origins[rank], .machine_ranks = rank};
        if (!zr_peer_check_introduction(said, &peer, why))
            continue;
        FUZZ_REQUIRE(said->card.origin_rank == origins[rank] && said->card.pid > 0);
        FUZZ_REQUIRE(said->card.n_threads >= 1 && said->card.n_threads <= 1024);
        FUZZ_REQUIRE(rank == 0 || said->card.machine == 3);
        FUZZ_REQUIRE(said->page.descriptor < 0 || (rank == 0 && said->page.pid == said->card.pid));
        FUZZ_REQUIRE(said->place.port >= 0 && said->place.port <= 65535);
        FUZZ_REQUIRE(IS_TEXT(said->place.address));
    }
}

static void ask_tensors(const zr_peer_tensors_t *said) {
    const zr_peer_call_t call = {
        .send_bytes = 400, .recv_bytes = 800, .elem_bytes = 4, .file_bytes = 800, .has_file = true};
    if (!zr_peer_check_tensors(said, &call, why))
        return;
    unsigned __int128 send_end = (unsigned __int128)said->send_place + call.send_bytes;
    unsigned __int128 recv_end = (unsigned __int128)said->recv_place + call.recv_bytes;
    FUZZ_REQUIRE(said->file_bytes >= call.file_bytes && said->file_bytes <= INT64_MAX);
    FUZZ_REQUIRE(said->send_place == ZR_NOWHERE ||
                 (send_end <= said->file_bytes && said->send_place % 4 == 0));
    FUZZ_REQUIRE(said->recv_place == ZR_NOWHERE ||
                 (recv_end <= said->file_bytes && said->recv_place % 4 == 0));
}

static void ask_place(const zr_place_t *said) {
    if (!zr_peer_check_place(said, why))
        return;
    FUZZ_REQUIRE(said->port > 0 && said->port < 65536 && IS_TEXT(said->network));
    FUZZ_REQUIRE(said->n_addresses >= 1 && said->n_addresses <= ZR_PLACE_ADDRESSES);
    for (int i = 0; i < said->n_addresses; i++)
        FUZZ_REQUIRE(IS_TEXT(said->addresses[i]));
}

static void ask_frame(const zr_frame_t *said, bool is_to_coordinator) {
    if (!zr_peer_check_frame(said, is_to_coordinator, N_RANKS, why))
        return;
    FUZZ_REQUIRE(said->kind > 0 && said->kind <= ZR_FRAME_CHALLENGE);
    FUZZ_REQUIRE(said->length <=
                 (is_to_coordinator ? ZR_WIRE_MOST_TO_HUB : ZR_WIRE_MOST_FROM_HUB(N_RANKS)));
}

static void ask_challenge(const zr_challenge_t *said) {
    for (int has_secret = 0; has_secret < 2; has_secret++)
        if (zr_peer_check_challenge(said, has_secret, why))
            FUZZ_REQUIRE(said->magic == ZR_WIRE_MAGIC && said->version == ZR_WIRE_VERSION &&
                         said->has_secret == (uint32_t)has_secret);
}

static void ask_hello(const zr_hello_t *said) {
    if (zr_peer_check_hello(said, N_RANKS, why))
        FUZZ_REQUIRE(said->rank >= 0 && said->rank < N_RANKS && said->n_ranks == N_RANKS);
}

static void ask_post(const zr_post_t *said) {
    char text[ZR_COMM_DESCRIPTION_BYTES + 16];
    if (!zr_peer_check_post(said, N_RANKS, why))
        return;
    FUZZ_REQUIRE(zr_dtype_size((zr_dtype_t)said->dtype) > 0 && said->sequence > 0);
    FUZZ_REQUIRE(said->collective >= 0 && said->collective < ZR_N_COLLECTIVES);
    FUZZ_REQUIRE(said->root >= 0 && said->root < N_RANKS && said->color >= -1);
    FUZZ_REQUIRE(said->payload_bytes <= ZR_PAYLOAD_BYTES);
    FUZZ_REQUIRE(IS_TEXT(said->tensor) && IS_TEXT(said->device));
    zr_post_describe_latest(said, text, sizeof(text));
    FUZZ_REQUIRE(is_plain(text));
}

/* Behind the structure are as many bytes as the input has: the members of a group. */
static void ask_outcome(const uint8_t *bytes, size_t n_bytes) {
    zr_outcome_t said = {.status = 0};
    int32_t members[N_RANKS];
    if (n_bytes < sizeof(said))
        return;
    memcpy(&said, bytes, sizeof(said));
    for (int is_split = 0; is_split < 2; is_split++) {
        const zr_peer_question_t question = {.rank = 1,
                                             .n_ranks = N_RANKS,
                                             .origins = origins,
                                             .payload_bytes = is_split ? 0 : 4,
                                             .is_split = is_split};
        size_t tail_bytes = n_bytes - sizeof(said);
        if (!zr_peer_check_outcome(&said, bytes + sizeof(said), tail_bytes, &question, why))
            continue;
        FUZZ_REQUIRE(said.status <= ZR_OK && said.status >= ZR_ERR_FORMAT);
        if (said.status != ZR_OK || !is_split) {
            FUZZ_REQUIRE(said.group == -1 && tail_bytes == (said.status == ZR_OK ? 12 : 0));
            continue;
        }
        FUZZ_REQUIRE(said.group > 0 && said.n_ranks >= 1 && said.n_ranks <= N_RANKS);
        FUZZ_REQUIRE(said.rank >= 0 && said.rank < said.n_ranks);
        FUZZ_REQUIRE(tail_bytes == (size_t)said.n_ranks * sizeof(members[0]));
        memcpy(members, bytes + sizeof(said), tail_bytes);
        FUZZ_REQUIRE(members[said.rank] == origins[1]);
    }
}

static void ask_end(const zr_end_t *said) {
    if (zr_peer_check_end(said, N_RANKS, why))
        FUZZ_REQUIRE(said->has_left <= 1 && said->whose >= -1 && said->whose < N_RANKS &&
                     IS_TEXT(said->reason));
}

static void ask_text(const uint8_t *bytes, size_t n_bytes) {
    char text[256] = "";
    n_bytes = n_bytes < sizeof(text) ? n_bytes : sizeof(text);
    memcpy(text, bytes, n_bytes);
    zr_peer_clean(text, sizeof(text));
    FUZZ_REQUIRE(IS_TEXT(text));
}

/* A connection to the coordinator whose other side sends this: no frame is taken that cannot be,
 * and none at all from who does not know the secret. */
static void ask_connection(const uint8_t *bytes, size_t n_bytes, bool has_secret) {
    const zr_secret_t secret = {.is_given = has_secret, .key = "nobody knows it"};
    static zr_connection_t connection;
    zr_frame_t frame;
    int pair[2], found = 0, n_taken = 0;
    n_bytes = n_bytes < 16384 ? n_bytes : 16384; /* what a socket takes at once */
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    zr_connection_open(&connection, pair[0], &secret, 0);
    if (n_bytes > 0)
        FUZZ_REQUIRE(send(pair[1], bytes, n_bytes, MSG_NOSIGNAL) == (ssize_t)n_bytes);
    (void)shutdown(pair[1], SHUT_WR);
    while (found >= 0 && zr_connection_receive(&connection, 0) == 0)
        while ((found = zr_connection_next_frame(&connection, &frame, why)) > 0) {
            FUZZ_REQUIRE(frame.length <= ZR_WIRE_MOST_TO_HUB);
            zr_connection_drop_frame(&connection, &frame);
            n_taken++;
        }
    FUZZ_REQUIRE(!has_secret || n_taken == 0);
    zr_connection_close(&connection);
    close(pair[1]);
}

/* Ask a check about the bytes in memory of exactly the structure's size. */
#define ASK(type, function, ...)                                                                   \
    do {                                                                                           \
        type *said = calloc(1, sizeof(*said));                                                     \
        FUZZ_REQUIRE(said != NULL);                                                                \
        if (n_bytes > 0)                                                                           \
            memcpy(said, bytes, n_bytes < sizeof(*said) ? n_bytes : sizeof(*said));                \
        function(said, ##__VA_ARGS__);                                                             \
        free(said);                                                                                \
    } while (0)

static void ask_header(const zr_link_header_t *said) {
    if (zr_peer_check_header(said, 400, why))
        FUZZ_REQUIRE(said->magic == ZR_LINK_MAGIC && said->size_bytes == 400);
}

static void ask_status(const int32_t *said) {
    if (zr_peer_check_status(*said, why))
        FUZZ_REQUIRE(*said <= ZR_OK && *said >= ZR_ERR_FORMAT);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (n_bytes == 0)
        return 0;
    kind_t kind = (kind_t)(*bytes++ % N_KINDS);
    n_bytes--;
    snprintf(why, sizeof(why), "words");
    switch (kind) {
    case INTRODUCTION:
        ASK(zr_introduction_t, ask_introduction);
        break;
    case TENSORS:
        ASK(zr_peer_tensors_t, ask_tensors);
        break;
    case HEADER:
        ASK(zr_link_header_t, ask_header);
        break;
    case PLACE:
        ASK(zr_place_t, ask_place);
        break;
    case FRAME_TO_HUB:
    case FRAME_FROM_HUB:
        ASK(zr_frame_t, ask_frame, kind == FRAME_TO_HUB);
        break;
    case CHALLENGE:
        ASK(zr_challenge_t, ask_challenge);
        break;
    case HELLO:
        ASK(zr_hello_t, ask_hello);
        break;
    case POST:
        ASK(zr_post_t, ask_post);
        break;
    case STATUS:
        ASK(int32_t, ask_status);
        break;
    case OUTCOME:
        ask_outcome(bytes, n_bytes);
        break;
    case END:
        ASK(zr_end_t, ask_end);
        break;
    case TEXT:
        ask_text(bytes, n_bytes);
        break;
    case CONNECTION:
    case SEALED_CONNECTION:
        ask_connection(bytes, n_bytes, kind == SEALED_CONNECTION);
        break;
    case N_KINDS:
        break;
    }
    FUZZ_REQUIRE(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0' && is_plain(why));
    return 0;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static size_t put_frames(uint8_t *bytes, bool has_secret) {
    const zr_secret_t secret = {.is_given = has_secret, .key = "somebody else's"};
    zr_challenge_t challenge = {
        .magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION, .has_secret = has_secret};
    zr_hello_t hello = {.rank = 1, .n_ranks = N_RANKS};
    zr_post_t post = {.sequence = 1, .tensor = "x", .device = "host"};
    const int32_t status = ZR_ERR_MEMORY;
    zr_seal_t seal;
    FUZZ_REQUIRE(zr_wire_answer(&seal, &secret, &challenge, &hello, why));
    const struct {
        zr_frame_t frame;
        zr_wire_part_t parts[2];
    } frames[] = {{{.kind = ZR_FRAME_HELLO}, {{&hello, sizeof(hello)}}},
                  {{.kind = ZR_FRAME_ALIVE}, {{NULL, 0}}},
                  {{.kind = ZR_FRAME_POST}, {{&post, sizeof(post)}}},
                  {{.kind = ZR_FRAME_MEET}, {{&status, sizeof(status)}}},
                  {{.kind = ZR_FRAME_APART}, {{NULL, 0}}},
                  {{.kind = ZR_FRAME_KILL}, {{"why", 4}}},
                  {{.kind = ZR_FRAME_LEAVE}, {{NULL, 0}}}};
    size_t n_bytes = 0;
    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        zr_frame_t frame = frames[i].frame;
        n_bytes += zr_wire_put(&seal, &frame, frames[i].parts, (char *)bytes + n_bytes);
    }
    return n_bytes;
}

#define PUT(...)                                                                                   \
    do {                                                                                           \
        const __VA_ARGS__;                                                                         \
        memcpy(bytes, &right, sizeof(right));                                                      \
        return 1 + sizeof(right);                                                                  \
    } while (0)

/* An input that is accepted; its size. */
static size_t put_right(kind_t kind, uint8_t *bytes) {
    *bytes++ = (uint8_t)kind;
    switch (kind) {
    case INTRODUCTION:
        PUT(zr_introduction_t right = {
                .card = {.machine = 3, .pid = 1, .origin_rank = 7, .n_threads = 1},
                .page = {.pid = 1},
                .place = {.port = 65535, .address = "fe80::1%eth0.1"}});
    case TENSORS:
        PUT(zr_peer_tensors_t right = {.send_place = 800, .recv_place = 400, .file_bytes = 1200});
    case HEADER:
        PUT(zr_link_header_t right = {.magic = ZR_LINK_MAGIC, .size_bytes = 400});
    case PLACE:
        PUT(zr_place_t right = {
                .port = 1, .n_addresses = 2, .network = "host", .addresses = {"10.0.0.7", "::1"}});
    case FRAME_TO_HUB:
        PUT(zr_frame_t right = {.kind = ZR_FRAME_POST, .length = sizeof(zr_post_t)});
    case FRAME_FROM_HUB:
        PUT(zr_frame_t right = {.kind = ZR_FRAME_OUTCOME, .length = sizeof(zr_outcome_t)});
    case CHALLENGE:
        PUT(zr_challenge_t right = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION});
    case HELLO:
        PUT(zr_hello_t right = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION, .n_ranks = 3});
    case POST:
        PUT(zr_post_t right = {.sequence = 1,
                               .n_elems = 100,
                               .payload_bytes = 3,
                               .tensor = "x",
                               .device = "host"});
    case STATUS:
        PUT(int32_t right = ZR_ERR_FORMAT);
    case OUTCOME:
        PUT(struct {
            zr_outcome_t outcome;
            int32_t members[N_RANKS];
        } right = {.outcome = {.group = 1, .rank = 2, .n_ranks = 3}, .members = {1000, 7, 3}});
    case END:
        PUT(zr_end_t right = {.whose = -1, .reason = "why"});
    case TEXT:
        PUT(char right[] = "text \303\251 \302\233 \033[2J");
    default:
        return 1 + put_frames(bytes, kind == SEALED_CONNECTION);
    }
}

/* Numbers that are nearly right, or have the most bits, where fields are; or any bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    static const int64_t special[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, UINT32_MAX, -1};
    uint64_t state = seed;
    uint64_t any = fuzz_random(&state);
    if ((n_bytes < 9 || any % 16 == 7) && most_bytes >= 8192)
        return put_right((kind_t)((any >> 24) % N_KINDS), bytes);
    if (any % 4 == 0 || n_bytes < 9)
        return LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
    int64_t number = (int64_t)(any >> 33) % 16 - 4;
    if (any % 4 == 1)
        number = special[(any >> 40) % (sizeof(special) / sizeof(special[0]))];
    size_t length = (size_t)1 << (any >> 8) % 4;
    size_t at = 1 + (any >> 16) % ((n_bytes - 1) / length) * length;
    memcpy(bytes + at, &number, length);
    return n_bytes;
}
