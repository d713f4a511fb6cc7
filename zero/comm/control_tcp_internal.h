/*
 * What the two files of the control of processes share: control_tcp.c, whose meetings are at the
 * coordinator, and control_near.c, whose meetings are in a page of memory.
 */
#pragma once

#include <pthread.h>

#include "zero/comm/control_internal.h"
#include "zero/comm/coordinator/coordinator.h"
#include "zero/comm/peer_internal.h"

typedef struct zr_line zr_line_t;

/* A rank's place in one communicator. What is not its thread's own, `line->lock` guards. */
typedef struct zr_tcp_control {
    zr_control_t base;
    struct zr_tcp_control *next; /* of the line's */
    zr_line_t *line;
    uint32_t group;
    int *origins;                /* [n_ranks] in the first communicator */
    zr_peer_question_t question; /* the latest */
    zr_outcome_t outcome;        /* the latest */
    unsigned n_outcomes;         /* read from the connection */
    unsigned n_awaited;          /* asked for: the rank's own */
    zr_outcome_t split;          /* of the arrival before: the rank's own */
    unsigned char *payload;      /* [n_ranks * ZR_PAYLOAD_BYTES] with the latest outcome */
    zr_post_t latest;            /* of those to the coordinator: the rank's own */
    zr_page_t *page;             /* of a group that meets there; NULL */
    zr_page_t *offered;          /* not yet so */
    zr_membership_t *membership; /* of the page's meetings: the rank's own */
    int gone;                    /* a rank that comes to no more meetings in the page; -1 */
    bool is_dead, has_left;
    char reason[ZR_REASON_BYTES];
} zr_tcp_control_t;

/* A process's connection. */
struct zr_line {
    int socket, n_ranks, timeout_ms;
    zr_secret_t secret;
    bool is_bound;                 /* by who has started it */
    char bind[ZR_ADDRESS_BYTES];   /* where this process listens; "": at all addresses */
    char *heard;                   /* the frame that was read: the reader's own */
    zr_coordinator_t *coordinator; /* rank 0's, else NULL */
    pthread_t reader;
    zr_lived_t clock; /* the reader's own, as are, in its time: */
    int64_t heard_ms,
        beat_ms;          /* when the coordinator was heard; when it is told of this side next */
    atomic_bool has_told; /* of all its controls */
    zr_seal_t seal;       /* what is received is the reader's */
    pthread_mutex_t lock; /* guards what follows, and sending */
    pthread_cond_t changed;
    zr_tcp_control_t *controls;
    bool is_lost;
};

/* Entries of the backend where a page is in use; line->lock is not held. */
zr_status_t zr_near_arrive(zr_tcp_control_t *self, const zr_post_t *post, void *all);
zr_status_t zr_near_meet(zr_tcp_control_t *self, zr_status_t status);
