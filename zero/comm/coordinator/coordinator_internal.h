/*
 * What the parts of the coordinator share. Read them in this order:
 *
 *   coordinator.c         the thread: what connections bring, and to whom it goes; start and stop
 *   connection.c  one connection: frames in and out
 *   door.c        who connects, until it is known
 *   gathering.c   how ranks come
 *   groups.c      communicators: members, and their end
 *   meetings.c    the calls of a communicator's ranks: arrivals, outcomes, time limits
 *
 * Threads: all of it is the coordinator's thread's own, but for what has a lock beside it.
 */
#pragma once

#include <pthread.h>

#include "zero/comm/coordinator/door.h"
#include "zero/comm/coordinator/coordinator.h"

enum {
    ZR_HUB_DEAD_MS =
        1000 /* both for ranks to come to the end of a call that has failed, and to go */
};

/* A communicator. Ranks are its own; `world` has their numbers in the first one. */
typedef struct zr_coordinator_group {
    struct zr_coordinator_group *next;
    uint32_t id, parent; /* the group that it was split from; its own: the first one */
    bool is_told;        /* that it is dead */
    bool is_first;       /* the meeting under way is the first of a call */
    int64_t limit_ms;    /* of the meeting under way, when one has arrived */
    int64_t until_ms;    /* likewise: when that is */
    int waiting;         /* who was the first at it */
    int *world;          /* [n_ranks] */
    bool *has_arrived;   /* [n_ranks] at the meeting under way */
    bool *is_gone;       /* [n_ranks] connection lost, or left */
    zr_membership_t *membership;
} zr_coordinator_group_t;

struct zr_coordinator {
    zr_coordinator_options_t options;
    pthread_t thread;
    pthread_mutex_t lock; /* guards is_stopping */
    bool is_stopping;
    int wake[2]; /* a pipe: is_stopping has changed */
    /* the thread's own: */
    bool is_gathered, is_failed;
    bool has_failed; /* a communicator has, and its ranks know: who does not go may be stopped */
    zr_lived_t clock;
    int64_t now_ms;  /* its time, which is what it lives (wire.h) */
    int64_t beat_ms; /* when ranks are told next that it is there */
    int64_t gather_until_ms, stop_until_ms;
    uint32_t n_groups; /* made so far: their ids */
    zr_coordinator_group_t *groups;
    zr_connection_t *ranks; /* [n_ranks] */
    zr_door_t door;
    struct pollfd *polled; /* [1 + n_ranks + ZR_DOOR_POLLED] */
};

/* ---- gathering.c ---- */

/** Somebody at the door has said hello. */
void zr_coordinator_gathering_take(void *coordinator, zr_connection_t *stranger,
                                   const zr_hello_t *hello);
/** A rank has said something while others are awaited, or gone. */
void zr_coordinator_gathering_serve_early_rank(zr_coordinator_t *coordinator,
                                               zr_connection_t *connection);
/** It has gone: it may come again, soon. */
void zr_coordinator_gathering_lose_early_rank(zr_coordinator_t *coordinator,
                                              zr_connection_t *connection);
/** Whether all have come, or the time is up: then gathering ends. */
void zr_coordinator_gathering_look(zr_coordinator_t *coordinator);

/* ---- groups.c ---- */

/** @param parent  what it is split from; NULL: the first one
 *  @param world   [n_ranks] their numbers in the first communicator; NULL: no memory */
zr_coordinator_group_t *zr_coordinator_group_create(zr_coordinator_t *coordinator,
                                                    const zr_coordinator_group_t *parent,
                                                    int n_ranks, const int *world);
/** The coordinator's list has forgotten it. */
void zr_coordinator_group_free(zr_coordinator_group_t *group);
zr_coordinator_group_t *zr_coordinator_group_find(zr_coordinator_t *coordinator, uint32_t id);
/** A rank's number in a group, -1 where it is not in it. */
int zr_coordinator_group_rank(const zr_coordinator_group_t *group, int world_rank);
/** Tell the members of its end, once, where it has ended. The groups split from it end with it,
 * unless a rank has only left. */
void zr_coordinator_group_tell_end(zr_coordinator_t *coordinator, zr_coordinator_group_t *group);
/** A rank is not in a group any more, by its will or not. */
void zr_coordinator_group_remove(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                 int rank);
/** Forget groups that nobody is in. */
void zr_coordinator_groups_forget(zr_coordinator_t *coordinator);
/** A rank's connection has ended, for this reason where it was not to end. */
void zr_coordinator_lose_rank(zr_coordinator_t *coordinator, int world_rank, const char *reason);

/* ---- meetings.c ---- */

/** A rank is about to arrive: where it is the first, the time of the others begins. */
void zr_coordinator_meeting_begin(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                  int rank, bool is_first);
/** The first meeting of a call: a rank says what it calls. */
void zr_coordinator_meeting_take_post(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                      int rank, const zr_post_t *post);
/** A later meeting: who has gone is counted in for it. */
void zr_coordinator_meeting_count_in(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                     int rank, zr_status_t status);
/** Whether somebody comes too late to one: its communicator, or the meeting, ends. */
void zr_coordinator_meetings_look(zr_coordinator_t *coordinator);
