/* See membership_internal.h. */
#include "zero/comm/membership_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "zero/comm/peer_internal.h"

size_t zr_membership_bytes(int n_ranks) {
    return sizeof(zr_membership_t) + (size_t)n_ranks * sizeof(zr_seat_t);
}

void zr_membership_init(zr_membership_t *membership, int n_ranks, bool is_nested,
                        const int *origins) {
    memset(membership, 0, zr_membership_bytes(n_ranks));
    membership->n_ranks = n_ranks;
    membership->is_nested = is_nested;
    membership->whose = -1;
    atomic_init(&membership->is_dead, false);
    for (int rank = 0; rank < n_ranks; rank++)
        membership->seats[rank].origin_rank = origins[rank];
}

void zr_post_fill(zr_post_t *post, const zr_comm_call_t *call, const void *payload,
                  size_t payload_bytes) {
    const char *name = call->message.tensor;
    memset(post, 0, sizeof(*post));
    post->sequence = call->sequence;
    post->n_elems = call->n_elems;
    post->name_hash = XXH3_64bits(name, strlen(name));
    post->collective = (int32_t)call->collective;
    post->dtype = (int32_t)call->message.dtype;
    post->traffic = (int32_t)call->message.traffic;
    post->root = call->root;
    post->color = call->color;
    post->key = call->key;
    post->is_agreement = call->is_agreement;
    snprintf(post->tensor, sizeof(post->tensor), "%s", name);
    zr_peer_clean(post->tensor, sizeof(post->tensor));
    if (call->stream != NULL)
        snprintf(post->device, sizeof(post->device), "%s",
                 zr_device_info(zr_stream_device(call->stream))->backend);
    post->payload_bytes = (uint32_t)payload_bytes;
    if (payload_bytes > 0)
        memcpy(post->payload, payload, payload_bytes);
}

/* ---- words ---- */

void zr_rank_describe(int rank, int origin_rank, bool is_nested, char text[ZR_RANK_TEXT_BYTES]) {
    if (is_nested)
        snprintf(text, ZR_RANK_TEXT_BYTES, "rank %d of its group (rank %d of all)", rank,
                 origin_rank);
    else
        snprintf(text, ZR_RANK_TEXT_BYTES, "rank %d", rank);
}

void zr_membership_describe_rank(const zr_membership_t *membership, int rank,
                                 char text[ZR_RANK_TEXT_BYTES]) {
    zr_rank_describe(rank, membership->seats[rank].origin_rank, membership->is_nested, text);
}

static void describe_post(const zr_post_t *post, char *text, size_t text_bytes) {
    if (post->sequence == 0) {
        snprintf(text, text_bytes, "no call so far");
        return;
    }
    zr_comm_call_t call = {.collective = (zr_collective_t)post->collective,
                           .message = {.tensor = post->tensor,
                                       .dtype = (zr_dtype_t)post->dtype,
                                       .traffic = (zr_traffic_t)post->traffic},
                           .n_elems = (size_t)post->n_elems,
                           .root = post->root,
                           .sequence = post->sequence,
                           .is_agreement = post->is_agreement != 0};
    zr_comm_call_describe(&call, text, text_bytes);
}

void zr_post_describe_latest(const zr_post_t *post, char *text, size_t text_bytes) {
    char call[ZR_COMM_DESCRIPTION_BYTES];
    describe_post(post, call, sizeof(call));
    snprintf(text, text_bytes, " (latest: %s)", call);
}

/* ---- ends ---- */

void zr_membership_kill(zr_membership_t *membership, const char *format, ...) {
    if (atomic_load(&membership->is_dead))
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(membership->reason, sizeof(membership->reason), format, arguments);
    va_end(arguments);
    atomic_store(&membership->is_dead, true);
}

/* What a rank has done, and what it did last. */
static void kill_with_latest(zr_membership_t *membership, int rank, const char *what) {
    char name[ZR_RANK_TEXT_BYTES], latest[ZR_COMM_DESCRIPTION_BYTES + 16] = "";
    zr_membership_describe_rank(membership, rank, name);
    if (!membership->is_apart)
        zr_post_describe_latest(&membership->seats[rank].post, latest, sizeof(latest));
    if (!atomic_load(&membership->is_dead))
        membership->whose = membership->is_apart ? rank : -1;
    zr_membership_kill(membership, "%s %s%s", name, what, latest);
}

void zr_membership_kill_for_leaving(zr_membership_t *membership, int rank) {
    if (!atomic_load(&membership->is_dead))
        membership->has_left = true;
    kill_with_latest(membership, rank, "has left the communicator");
}

void zr_membership_kill_for_loss(zr_membership_t *membership, int rank, const char *reason) {
    kill_with_latest(membership, rank, reason);
}

void zr_membership_kill_for_lateness(zr_membership_t *membership, int waiting, int late,
                                     int64_t limit_ms) {
    char name[ZR_RANK_TEXT_BYTES], own[ZR_RANK_TEXT_BYTES], call[ZR_COMM_DESCRIPTION_BYTES];
    zr_membership_describe_rank(membership, late, name);
    zr_membership_describe_rank(membership, waiting, own);
    describe_post(&membership->seats[late].post, call, sizeof(call));
    zr_membership_kill(membership, "%s has waited %lld ms for %s to finish %s", own,
                       (long long)limit_ms, name, call);
}

/* Name the ranks that have not posted what `rank` has. */
void zr_membership_kill_for_absence(zr_membership_t *membership, int rank, int timeout_ms) {
    enum { MOST_NAMED = 4 };
    uint64_t sequence = membership->seats[rank].post.sequence;
    char list[ZR_REASON_BYTES / 2] = "";
    size_t length = 0;
    int n_absent = 0;
    for (int other = 0; other < membership->n_ranks; other++) {
        if (membership->seats[other].post.sequence == sequence || n_absent++ >= MOST_NAMED)
            continue;
        char name[ZR_RANK_TEXT_BYTES], last[ZR_COMM_DESCRIPTION_BYTES];
        zr_membership_describe_rank(membership, other, name);
        describe_post(&membership->seats[other].post, last, sizeof(last));
        int n_written = snprintf(list + length, sizeof(list) - length, "%s%s (latest: %s)",
                                 length > 0 ? ", " : "", name, last);
        length += n_written > 0 ? (size_t)n_written : 0;
        if (length >= sizeof(list))
            length = sizeof(list) - 1;
    }
    char more[32] = "";
    if (n_absent > MOST_NAMED)
        snprintf(more, sizeof(more), " and %d more", n_absent - MOST_NAMED);
    char own[ZR_RANK_TEXT_BYTES];
    zr_membership_describe_rank(membership, rank, own);
    zr_membership_kill(membership, "%s has waited %d ms for %s%s", own, timeout_ms, list, more);
}

/* ---- meetings ---- */

static bool posts_match(const zr_post_t *a, const zr_post_t *b) {
    return a->collective == b->collective && a->dtype == b->dtype && a->traffic == b->traffic &&
           a->n_elems == b->n_elems && a->root == b->root && a->sequence == b->sequence &&
           a->name_hash == b->name_hash && a->payload_bytes == b->payload_bytes &&
           strcmp(a->device, b->device) == 0;
}

static int count_matches(const zr_membership_t *membership, int rank) {
    int n_matches = 0;
    for (int other = 0; other < membership->n_ranks; other++)
        n_matches += posts_match(&membership->seats[rank].post, &membership->seats[other].post);
    return n_matches;
}

/* Name a rank that differs, and one of the most that agree. */
static void kill_for_mismatch(zr_membership_t *membership) {
    int usual = 0;
    for (int rank = 1; rank < membership->n_ranks; rank++)
        if (count_matches(membership, rank) > count_matches(membership, usual))
            usual = rank;
    int odd = 0;
    while (posts_match(&membership->seats[odd].post, &membership->seats[usual].post))
        odd++;
    char odd_rank[ZR_RANK_TEXT_BYTES], usual_rank[ZR_RANK_TEXT_BYTES];
    char odd_call[ZR_COMM_DESCRIPTION_BYTES], usual_call[ZR_COMM_DESCRIPTION_BYTES];
    zr_membership_describe_rank(membership, odd, odd_rank);
    zr_membership_describe_rank(membership, usual, usual_rank);
    const zr_post_t *odd_post = &membership->seats[odd].post,
                    *usual_post = &membership->seats[usual].post;
    if (odd_post->is_agreement && usual_post->is_agreement) {
        zr_membership_kill(membership, "%s has %s, %s has %s; %d of %d ranks have the latter",
                           odd_rank, odd_post->tensor, usual_rank, usual_post->tensor,
                           count_matches(membership, usual), membership->n_ranks);
        return;
    }
    describe_post(&membership->seats[odd].post, odd_call, sizeof(odd_call));
    describe_post(&membership->seats[usual].post, usual_call, sizeof(usual_call));
    const char *odd_device = membership->seats[odd].post.device;
    const char *usual_device = membership->seats[usual].post.device;
    bool say_device = strcmp(odd_device, usual_device) != 0 && *odd_device && *usual_device;
    zr_membership_kill(membership,
                       "%s is in %s%s%s, %s in %s%s%s; %d of %d ranks are in the latter", odd_rank,
                       odd_call, say_device ? " on " : "", say_device ? odd_device : "", usual_rank,
                       usual_call, say_device ? " on " : "", say_device ? usual_device : "",
                       count_matches(membership, usual), membership->n_ranks);
}

static void check_agreement(zr_membership_t *membership) {
    for (int rank = 1; rank < membership->n_ranks; rank++) {
        if (!posts_match(&membership->seats[rank].post, &membership->seats[0].post)) {
            kill_for_mismatch(membership);
            return;
        }
    }
}

void zr_membership_arrive(zr_membership_t *membership, int rank, const zr_post_t *post) {
    membership->seats[rank].post = *post;
    if (membership->n_arrived + 1 == membership->n_ranks)
        check_agreement(membership);
    if (!atomic_load(&membership->is_dead))
        zr_membership_count_in(membership, ZR_OK);
}

void zr_membership_count_in(zr_membership_t *membership, zr_status_t status) {
    if (membership->pending == ZR_OK)
        membership->pending = status;
    if (++membership->n_arrived < membership->n_ranks)
        return;
    membership->outcome = atomic_load(&membership->is_dead) ? ZR_ERR_COMM : membership->pending;
    membership->pending = ZR_OK;
    membership->n_arrived = 0;
    membership->generation++;
}

/* ---- split ---- */

int zr_membership_rank_in_color(const zr_membership_t *membership, int rank) {
    const zr_post_t *own = &membership->seats[rank].post;
    int position = 0;
    for (int other = 0; other < membership->n_ranks; other++) {
        const zr_post_t *post = &membership->seats[other].post;
        if (post->color == own->color &&
            (post->key < own->key || (post->key == own->key && other < rank)))
            position++;
    }
    return position;
}

int zr_membership_members(const zr_membership_t *membership, int color, int *members) {
    int n_members = 0;
    for (int rank = 0; rank < membership->n_ranks; rank++) {
        if (membership->seats[rank].post.color != color)
            continue;
        members[zr_membership_rank_in_color(membership, rank)] = rank;
        n_members++;
    }
    return n_members;
}
