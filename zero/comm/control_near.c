/*
 * Meetings of processes of one machine in a page of memory (control_page_internal.h), without the
 * coordinator.
 *
 * Every rank compares what all have posted, by the rules of the membership that threads and the
 * coordinator have, and comes to the same end. A rank that waits keeps the time limit itself. Why a
 * communicator has ended is told by the coordinator as ever: the page only says at once that it
 * has.
 */
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "zero/comm/control_tcp_internal.h"
#include "zero/comm/peer_internal.h"

enum {
    DEAD_MS = 1000, /* for ranks to come to the end of a call that has failed */
    PAUSE_MS = 1
};

/* The reason is on its way, from the coordinator or by the loss of the connection to it. */
static void await_reason(zr_tcp_control_t *self) {
    pthread_mutex_lock(&self->line->lock);
    while (!self->is_dead)
        pthread_cond_wait(&self->line->changed, &self->line->lock);
    pthread_mutex_unlock(&self->line->lock);
}

/* Nobody has come for too long. */
static void end_for_lateness(zr_tcp_control_t *self, unsigned meeting, bool is_first) {
    zr_membership_t *membership = self->membership;
    int rank = self->base.rank, late = 0;
    if (!zr_page_end_meeting(self->page, meeting))
        return;
    for (int other = 0; other < membership->n_ranks; other++)
        zr_page_latest(self->page, other, &membership->seats[other].post);
    while (late + 1 < membership->n_ranks && zr_page_has_come(self->page, late, meeting))
        late++;
    if (is_first)
        zr_membership_kill_for_absence(membership, rank, self->line->timeout_ms);
    else
        zr_membership_kill_for_lateness(membership, rank, late, self->line->timeout_ms);
    self->base.backend->kill(&self->base, membership->reason);
}

/* Whether the meeting was complete before the communicator ended. */
static bool await_meeting(zr_tcp_control_t *self, unsigned meeting, bool is_first) {
    zr_lived_t clock = {0};
    (void)zr_lived_ms(&clock);
    while (!zr_page_is_complete(self->page, meeting)) {
        if (zr_page_has_ended(self->page))
            return zr_page_is_complete(self->page, meeting);
        zr_page_wait(self->page, meeting, ZR_LIVED_SLICE_MS);
        if (zr_page_is_complete(self->page, meeting))
            break;
        if (zr_lived_ms(&clock) >= self->line->timeout_ms)
            end_for_lateness(self, meeting, is_first);
    }
    return true;
}

/* Compare what all have posted. False: it has ended. */
static bool take_posts(zr_tcp_control_t *self) {
    zr_membership_t *membership = self->membership;
    char why[ZR_PEER_WHY_BYTES];
    for (int rank = 0; rank < membership->n_ranks; rank++) {
        zr_post_t post;
        zr_page_post(self->page, rank, &post);
        if (!zr_peer_check_post(&post, membership->n_ranks, why)) {
            zr_control_kill_for_peer(&self->base, self->origins[rank], why);
            return false;
        }
        zr_membership_arrive(membership, rank, &post);
    }
    if (atomic_load(&membership->is_dead))
        self->base.backend->kill(&self->base, membership->reason);
    return !atomic_load(&membership->is_dead);
}

zr_status_t zr_near_arrive(zr_tcp_control_t *self, const zr_post_t *post, void *all) {
    zr_membership_t *membership = self->membership;
    if (!zr_page_has_ended(self->page)) {
        unsigned meeting = zr_page_arrive(self->page, post, ZR_OK);
        if (await_meeting(self, meeting, true)) {
            if (!take_posts(self))
                return ZR_ERR_COMM;
            for (int rank = 0; post->payload_bytes > 0 && rank < membership->n_ranks; rank++)
                memcpy((char *)all + (size_t)rank * post->payload_bytes,
                       membership->seats[rank].post.payload, post->payload_bytes);
            return ZR_OK;
        }
    }
    await_reason(self);
    return ZR_ERR_COMM;
}

static int find_gone(zr_tcp_control_t *self) {
    pthread_mutex_lock(&self->line->lock);
    int gone = self->gone;
    pthread_mutex_unlock(&self->line->lock);
    return gone;
}

/* Others may still read this rank's tensors: for who comes at all there is a second. */
static void await_all(zr_tcp_control_t *self, unsigned meeting) {
    struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000};
    for (int waited_ms = 0; waited_ms < DEAD_MS; waited_ms += PAUSE_MS) {
        int n_missing = 0, gone = find_gone(self);
        for (int rank = 0; rank < self->base.n_ranks; rank++)
            n_missing += rank != gone && !zr_page_has_come(self->page, rank, meeting);
        if (n_missing == 0)
            return;
        nanosleep(&pause, NULL);
    }
}

zr_status_t zr_near_meet(zr_tcp_control_t *self, zr_status_t status) {
    unsigned meeting = zr_page_arrive(self->page, NULL, status);
    if (!await_meeting(self, meeting, false)) {
        await_reason(self);
        await_all(self, meeting);
        return ZR_ERR_COMM;
    }
    int32_t outcome = ZR_OK;
    char why[ZR_PEER_WHY_BYTES];
    for (int rank = 0; rank < self->base.n_ranks && outcome == ZR_OK; rank++) {
        outcome = zr_page_status(self->page, rank, meeting);
        if (!zr_peer_check_status(outcome, why)) {
            zr_control_kill_for_peer(&self->base, self->origins[rank], why);
            return ZR_ERR_COMM;
        }
    }
    return (zr_status_t)outcome;
}
