/* See peer_internal.h. */
#include "zero/comm/peer_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/host/host_pool.h"
#include "kernels/kernels.h"

/* Always false. */
ZR_PRINTF(2, 3) static bool refuse(char *why, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, ZR_PEER_WHY_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

static bool check_range(const char *name, int64_t value, int64_t least, int64_t most, char *why) {
    return (value >= least && value <= most) ||
           refuse(why, "%s %lld; %lld to %lld are allowed", name, (long long)value,
                  (long long)least, (long long)most);
}

/* How many of a text's first bytes are a control character, which terminals may obey: of ASCII, or
 * of those from U+0080 to U+009F. */
static size_t control_bytes(const char *text) {
    unsigned char first = (unsigned char)text[0], second = (unsigned char)text[first != '\0'];
    if (first == 0xC2 && second >= 0x80 && second <= 0x9F)
        return 2;
    return first < 0x20 || first == 0x7F;
}

static bool check_text(const char *name, const char *text, size_t text_bytes, char *why) {
    if (memchr(text, '\0', text_bytes) == NULL)
        return refuse(why, "%s without a terminating zero in %zu bytes", name, text_bytes);
    for (; *text != '\0'; text++)
        if (control_bytes(text) > 0)
            return refuse(why, "%s with a control character", name);
    return true;
}

void zr_peer_clean(char *text, size_t text_bytes) {
    text[text_bytes - 1] = '\0';
    for (; *text != '\0'; text++)
        memset(text, '?', control_bytes(text));
}

/* ---- ranks of `processes` ------------------------------------------------------------------- */

/* "10.0.0.7", "fe80::1%eth0": a number, since it is given to the resolver and printed. */
static bool check_address(const char *address, char *why) {
    if (!check_text("an address", address, ZR_ADDRESS_BYTES, why))
        return false;
    const char *rest = address + strspn(address, "0123456789abcdefABCDEF.:");
    bool has_interface = *rest == '%';
    while (has_interface && *rest > ' ' && *rest < 127)
        rest++;
    return *rest == '\0' || refuse(why, "an address that is not a number");
}

static bool check_card(const zr_card_t *card, const zr_peer_t *peer, char *why) {
    if (card->origin_rank != peer->origin_rank)
        return refuse(why, "origin_rank %d, expected %d", card->origin_rank, peer->origin_rank);
    uint64_t machine =
        peer->machine_ranks > 0 ? (uint64_t)(peer->origin_rank / peer->machine_ranks) : 0;
    if (peer->machine_ranks > 0 && card->machine != machine)
        return refuse(why, "machine %llu, expected %llu", (unsigned long long)card->machine,
                      (unsigned long long)machine);
    return check_range("pid", card->pid, 1, INT32_MAX, why) &&
           check_range("n_threads", card->n_threads, 1, ZR_HOST_MAX_THREADS, why) &&
           check_range("the descriptor of its memory", card->file.descriptor, -1, INT32_MAX, why);
}

bool zr_peer_check_introduction(const zr_introduction_t *said, const zr_peer_t *peer, char *why) {
    int most = peer->rank == 0 ? INT32_MAX : -1; /* only rank 0 has a page */
    if (!check_card(&said->card, peer, why) ||
        !check_range("the descriptor of its page", said->page.descriptor, -1, most, why) ||
        !check_range("port", said->place.port, 0, UINT16_MAX, why) ||
        !check_address(said->place.address, why))
        return false;
    return said->page.descriptor < 0 || said->page.pid == said->card.pid ||
           refuse(why, "a page of pid %d, expected %d", said->page.pid, said->card.pid);
}

static bool check_place(const char *name, uint64_t place, size_t size_bytes,
                        const zr_peer_tensors_t *said, const zr_peer_call_t *call, char *why) {
    if (place == ZR_NOWHERE)
        return true;
    if (!call->has_file)
        return refuse(why, "%s at %llu of its memory file, and it has none", name,
                      (unsigned long long)place);
    if (size_bytes > said->file_bytes || place > said->file_bytes - size_bytes)
        return refuse(why, "%s of %s at %llu of its memory file, which has %llu",
                      zr_count_text(size_bytes, "byte").text, name, (unsigned long long)place,
                      (unsigned long long)said->file_bytes);
    return size_bytes == 0 || place % call->elem_bytes == 0 ||
           refuse(why, "%s at %llu of its memory file, not a multiple of %zu", name,
                  (unsigned long long)place, call->elem_bytes);
}

bool zr_peer_check_tensors(const zr_peer_tensors_t *said, const zr_peer_call_t *call, char *why) {
    if (said->file_bytes > INT64_MAX || said->file_bytes < call->file_bytes ||
        (said->file_bytes > 0 && !call->has_file))
        return refuse(why, "a memory file of %s; it had %llu",
                      zr_count_text(said->file_bytes, "byte").text,
                      (unsigned long long)call->file_bytes);
    return check_place("what it sends", said->send_place, call->send_bytes, said, call, why) &&
           check_place("what it receives", said->recv_place, call->recv_bytes, said, call, why);
}

bool zr_peer_check_header(const zr_link_header_t *said, size_t size_bytes, char *why) {
    if (said->magic != ZR_LINK_MAGIC)
        return refuse(why, "a header with magic number %llx, expected %llx",
                      (unsigned long long)said->magic, (unsigned long long)ZR_LINK_MAGIC);
    return said->size_bytes == size_bytes ||
           refuse(why, "%s of data, expected %zu", zr_count_text(said->size_bytes, "byte").text,
                  size_bytes);
}

bool zr_peer_check_place(const zr_place_t *said, char *why) {
    if (!check_range("port", said->port, 1, UINT16_MAX, why) ||
        !check_range("number of addresses", said->n_addresses, 1, ZR_PLACE_ADDRESSES, why) ||
        !check_text("the name of a network", said->network, sizeof(said->network), why))
        return false;
    for (int i = 0; i < said->n_addresses; i++)
        if (!check_text("an address", said->addresses[i], sizeof(said->addresses[i]), why))
            return false;
    return true;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* What each kind may have behind its header. */
static const struct {
    zr_frame_kind_t kind;
    bool is_to_coordinator, is_from_coordinator;
    size_t least, most;
} frames[] = {
    {ZR_FRAME_HELLO, true, false, sizeof(zr_hello_t), sizeof(zr_hello_t)},
    {ZR_FRAME_WELCOME, false, true, 0, 0},
    {ZR_FRAME_REFUSED, false, true, 1, ZR_REASON_BYTES},
    {ZR_FRAME_POST, true, false, sizeof(zr_post_t), sizeof(zr_post_t)},
    {ZR_FRAME_MEET, true, false, sizeof(int32_t), sizeof(int32_t)},
    {ZR_FRAME_KILL, true, false, 1, ZR_REASON_BYTES},
    {ZR_FRAME_LEAVE, true, false, 0, 0},
    {ZR_FRAME_OUTCOME, false, true, sizeof(zr_outcome_t), sizeof(zr_outcome_t)},
    {ZR_FRAME_END, false, true, sizeof(zr_end_t), sizeof(zr_end_t)},
    {ZR_FRAME_APART, true, false, 0, 0},
    {ZR_FRAME_ALIVE, true, true, 0, 0},
    {ZR_FRAME_CHALLENGE, false, true, sizeof(zr_challenge_t), sizeof(zr_challenge_t)},
};

bool zr_peer_check_frame(const zr_frame_t *frame, bool is_to_coordinator, int n_ranks, char *why) {
    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        size_t least = frames[i].least, most = frames[i].most;
        if (frames[i].kind != frame->kind ||
            !(is_to_coordinator ? frames[i].is_to_coordinator : frames[i].is_from_coordinator))
            continue;
        if (frame->kind == ZR_FRAME_OUTCOME)
            most += (size_t)n_ranks * ZR_PAYLOAD_BYTES;
        return (frame->length >= least && frame->length <= most) ||
               refuse(why, "a frame of kind %u and %s; %zu to %zu are allowed", frame->kind,
                      zr_count_text(frame->length, "byte").text, least, most);
    }
    return refuse(why, "a frame of kind %u", frame->kind);
}

bool zr_peer_check_challenge(const zr_challenge_t *said, bool has_secret, char *why) {
    if (said->magic != ZR_WIRE_MAGIC)
        return refuse(why, "a magic number %llx, expected %llx", (unsigned long long)said->magic,
                      (unsigned long long)ZR_WIRE_MAGIC);
    if (said->version != ZR_WIRE_VERSION)
        return refuse(why,
                      "version %u of the protocol, expected %u: start all ranks with the same "
                      "program",
                      said->version, ZR_WIRE_VERSION);
    if (!check_range("has_secret", said->has_secret, 0, 1, why))
        return false;
    if (has_secret && !said->has_secret)
        return refuse(why, "it has no secret, but this rank has one: give it to all ranks");
    return has_secret || !said->has_secret ||
           refuse(why,
                  "it requires a secret, but this rank has none: give all ranks the same secret "
                  "with --comm-secret FILE or %s",
                  ZR_SECRET_VARIABLE);
}

bool zr_peer_check_hello(const zr_hello_t *said, int n_ranks, char *why) {
    if (said->version != ZR_WIRE_VERSION)
        return refuse(why,
                      "rank %d speaks version %u of the protocol, rank 0 version %u: start all "
                      "ranks with the same program",
                      said->rank, said->version, ZR_WIRE_VERSION);
    if (said->n_ranks != n_ranks)
        return refuse(why, "rank %d has WORLD_SIZE %d, rank 0 has %d", said->rank, said->n_ranks,
                      n_ranks);
    return (said->rank >= 0 && said->rank < n_ranks) ||
           refuse(why, "RANK is %d; the ranks are 0 to %d", said->rank, n_ranks - 1);
}

bool zr_peer_check_post(const zr_post_t *said, int n_ranks, char *why) {
    if (said->sequence == 0)
        return refuse(why, "a call without a number");
    if (zr_dtype_size((zr_dtype_t)said->dtype) == 0)
        return refuse(why, "dtype %d", said->dtype);
    return check_range("collective", said->collective, 0, ZR_N_COLLECTIVES - 1, why) &&
           check_range("traffic", said->traffic, 0, ZR_N_TRAFFICS - 1, why) &&
           check_range("root", said->root, 0, n_ranks - 1, why) &&
           check_range("color", said->color, -1, INT32_MAX, why) &&
           check_range("bytes of payload", said->payload_bytes, 0, ZR_PAYLOAD_BYTES, why) &&
           check_range("is_agreement", said->is_agreement, 0, 1, why) &&
           check_text("a tensor's name", said->tensor, sizeof(said->tensor), why) &&
           check_text("a device's name", said->device, sizeof(said->device), why);
}

bool zr_peer_check_status(int32_t status, char *why) {
    return check_range("status", status, ZR_ERR_FORMAT, ZR_OK, why);
}

/* Of a group, the ranks of the one that it is split from: each once, and this one at its place. */
static bool check_members(const zr_outcome_t *said, const void *tail,
                          const zr_peer_question_t *question, char *why) {
    bool is_in[ZR_MAX_SUM_SOURCES] = {false};
    for (int i = 0; i < said->n_ranks; i++) {
        int32_t member;
        int rank = 0;
        memcpy(&member, (const char *)tail + (size_t)i * sizeof(member), sizeof(member));
        while (rank < question->n_ranks && question->origins[rank] != member)
            rank++;
        if (rank == question->n_ranks || is_in[rank] ||
            (rank == question->rank) != (i == said->rank))
            return refuse(why, "a group with rank %d of all as its rank %d", member, i);
        is_in[rank] = true;
    }
    return true;
}

bool zr_peer_check_outcome(const zr_outcome_t *said, const void *tail, size_t tail_bytes,
                           const zr_peer_question_t *question, char *why) {
    bool has_group = said->status == ZR_OK && question->is_split && question->color >= 0;
    size_t expected_bytes = 0;
    if (!zr_peer_check_status(said->status, why))
        return false;
    if (has_group && (!check_range("group", said->group, 1, INT32_MAX, why) ||
                      !check_range("ranks of a group", said->n_ranks, 1, question->n_ranks, why) ||
                      !check_range("rank of a group", said->rank, 0, said->n_ranks - 1, why)))
        return false;
    if (!has_group && !check_range("group", said->group, -1, -1, why))
        return false;
    if (has_group)
        expected_bytes = (size_t)said->n_ranks * sizeof(int32_t);
    else if (said->status == ZR_OK)
        expected_bytes = (size_t)question->n_ranks * question->payload_bytes;
    if (tail_bytes != expected_bytes)
        return refuse(why, "%s with an outcome, expected %zu",
                      zr_count_text(tail_bytes, "byte").text, expected_bytes);
    return !has_group || check_members(said, tail, question, why);
}

bool zr_peer_check_end(const zr_end_t *said, int n_ranks, char *why) {
    return check_range("has_left", said->has_left, 0, 1, why) &&
           check_range("a rank that has gone,", said->whose, -1, n_ranks - 1, why) &&
           check_text("a reason", said->reason, sizeof(said->reason), why);
}
