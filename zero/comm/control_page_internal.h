/*
 * A page of memory in which ranks of one machine meet, without a message: each shows what it posts
 * and that it has arrived, and waits a moment in the page, then for the system to be woken. It is a
 * faster way for meetings of control_tcp.c, whose connections still tell of a communicator's end.
 *
 * Whether a meeting is complete is decided in one place, the page's state: either all have arrived
 * first, or the communicator has ended first, and no two ranks see it differently. What a rank has
 * brought stays until all have arrived at the next meeting, and so were done with it.
 *
 * Threads: the rank's own; zr_page_end and zr_page_latest are for any.
 */
#pragma once

#include "zero/comm/membership_internal.h"

typedef struct zr_page zr_page_t;

/** Where other processes find a page. */
typedef struct zr_page_place {
    int32_t pid, descriptor; /* of who has made it; descriptor -1: there is none */
    uint64_t device, inode;
} zr_page_place_t;

/** Make one. NULL: no memory; nothing logged. */
zr_page_t *zr_page_create(int n_ranks, int rank, zr_page_place_t *place_p);
/** Open another process's. 0 or an errno; ESTALE: what is there is none. */
int zr_page_open(const zr_page_place_t *place, int n_ranks, int rank, zr_page_t **page_p);
/** All have opened it: nobody else can from now on. */
void zr_page_seal(zr_page_t *page);
void zr_page_close(zr_page_t **page);

/** A count of a rank's that all ranks may change, 0 at first. It stays while the page is open. */
atomic_size_t *zr_page_count(zr_page_t *page, int rank);

/** Before the first meeting: a rank's latest post, elsewhere. */
void zr_page_show(zr_page_t *page, const zr_post_t *post);

/** Arrive at the next meeting: its number. @param post  NULL: a later one of a call */
unsigned zr_page_arrive(zr_page_t *page, const zr_post_t *post, zr_status_t status);

/** Wait for at most so long: for a meeting, or the communicator's end. */
void zr_page_wait(zr_page_t *page, unsigned meeting, int ms);
/** All came to it while the communicator lived. */
bool zr_page_is_complete(const zr_page_t *page, unsigned meeting);
bool zr_page_has_ended(const zr_page_t *page);
/** Whether a rank has come to a meeting, in time or not. */
bool zr_page_has_come(const zr_page_t *page, int rank, unsigned meeting);

/* What other processes have written there, as it is now: to be checked by who takes it
 * (peer_internal.h). */

/** What a rank has posted in the call under way, whose first meeting is complete. */
void zr_page_post(const zr_page_t *page, int rank, zr_post_t *post_p);
/** What a rank has brought to a meeting to which it came, this one or the one before. */
int32_t zr_page_status(const zr_page_t *page, int rank, unsigned meeting);
/** A rank's latest post, checked; its sequence is 0 where there is none. */
void zr_page_latest(const zr_page_t *page, int rank, zr_post_t *post_p);

/** End it, if the meeting is not complete: false, it is, or the communicator has ended. */
bool zr_page_end_meeting(zr_page_t *page, unsigned meeting);
/** The communicator has ended: who waits wakes up. */
void zr_page_end(zr_page_t *page);

/**
 * How often a rank looks for others to come before it asks the system to wake it, of so many that
 * share this process's cores: some tens of microseconds, which a wakeup takes as well, where ranks
 * have cores of their own; next to nothing where they wait for each other's core.
 */
int zr_looks_count(int n_ranks);
