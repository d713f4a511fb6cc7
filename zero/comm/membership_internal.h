/*
 * The membership of a communicator: what each rank called last, and what is decided from that.
 *
 * Ranks meet before a collective (and some meet again within it): each posts its call, the last
 * to come completes the meeting, and a rank that differs, gives up, leaves or does not come ends
 * the communicator with a reason that names it. Where the ranks are threads of one process, the
 * membership is in shared memory (control_memory.c); where they are processes, rank 0's process
 * keeps it (coordinator/). What is decided, and how it is said, is the same.
 *
 * Threads: externally locked; `is_dead` may be read without the lock, and `reason` after it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "zero/comm/comm_backend.h"

/** What a rank may show to the others with a call. */
#define ZR_PAYLOAD_BYTES 256

enum {
    ZR_TENSOR_BYTES = 144,    /* of a name, cut to fit */
    ZR_REASON_BYTES = 1024,   /* why a communicator has ended */
    ZR_RANK_TEXT_BYTES = 64,  /* "rank 2 of its group (rank 6 of all)" */
    ZR_DEVICE_NAME_BYTES = 16 /* of a backend's name */
};

/** What a rank posts. Fixed in size, so that it can go over a wire as it is. */
typedef struct zr_post {
    uint64_t sequence; /* 0: no call so far */
    uint64_t n_elems;
    uint64_t name_hash; /* of the whole name: what is compared */
    int32_t collective, dtype, traffic, root, color, key;
    uint32_t payload_bytes, is_agreement;
    char tensor[ZR_TENSOR_BYTES];
    char device[ZR_DEVICE_NAME_BYTES]; /* backend of the call's stream, "" without one */
    unsigned char payload[ZR_PAYLOAD_BYTES];
} zr_post_t;

typedef struct zr_seat {
    zr_post_t post;  /* the latest */
    int origin_rank; /* in the first communicator */
} zr_seat_t;

typedef struct zr_membership {
    int n_ranks;
    bool is_nested;         /* of a group made by split */
    int n_arrived;          /* at the meeting under way, < n_ranks */
    zr_status_t pending;    /* the first error that a rank brought to it */
    atomic_uint generation; /* meetings completed */
    zr_status_t outcome;    /* of the latest meeting, the same for all; written before its
                               generation, and not again before all ranks have arrived anew */
    atomic_bool is_dead;    /* never becomes false */
    bool is_apart; /* posts are not here: to a reason that is given, who knows the latest call of
                      `whose` adds it */
    int whose;     /* -1: of nobody; written like the reason */
    bool has_left; /* a rank has left, and that is why; written like the reason */
    char reason[ZR_REASON_BYTES]; /* written once, before is_dead */
    zr_seat_t seats[];
} zr_membership_t;

size_t zr_membership_bytes(int n_ranks);
/** @param origins  [n_ranks] ranks in the first communicator */
void zr_membership_init(zr_membership_t *membership, int n_ranks, bool is_nested,
                        const int *origins);

/** What a call looks like to the others. `payload` may be NULL when it has no bytes. */
void zr_post_fill(zr_post_t *post, const zr_comm_call_t *call, const void *payload,
                  size_t payload_bytes);

/** "rank 2", or "rank 2 of its group (rank 6 of all)". */
void zr_rank_describe(int rank, int origin_rank, bool is_nested, char text[ZR_RANK_TEXT_BYTES]);
void zr_membership_describe_rank(const zr_membership_t *membership, int rank,
                                 char text[ZR_RANK_TEXT_BYTES]);
/** " (latest: ...)", to be added to a reason. */
void zr_post_describe_latest(const zr_post_t *post, char *text, size_t text_bytes);

/** End the communicator for all ranks; the first reason stays. */
void zr_membership_kill(zr_membership_t *membership, const char *format, ...) ZR_PRINTF(2, 3);
/** The same for a rank that leaves, is lost, or has waited for others in vain. */
void zr_membership_kill_for_leaving(zr_membership_t *membership, int rank);
void zr_membership_kill_for_loss(zr_membership_t *membership, int rank, const char *reason);
void zr_membership_kill_for_absence(zr_membership_t *membership, int rank, int timeout_ms);

/** In a later meeting, `waiting` has waited for `late`. */
void zr_membership_kill_for_lateness(zr_membership_t *membership, int waiting, int late,
                                     int64_t limit_ms);

/** Post a call and count its rank in; the last to come compares all calls before. */
void zr_membership_arrive(zr_membership_t *membership, int rank, const zr_post_t *post);
/** Count a rank in at a later meeting, with the status that it brings. */
void zr_membership_count_in(zr_membership_t *membership, zr_status_t status);

/** Of the colors posted with a split: where a rank stands in its group, by (key, rank). */
int zr_membership_rank_in_color(const zr_membership_t *membership, int rank);
/** The ranks of a color by their place in its group, and how many they are. */
int zr_membership_members(const zr_membership_t *membership, int color, int *members);
