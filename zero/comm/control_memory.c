/*
 * The control of ranks that are threads of one process: a membership that they share. See
 * control_internal.h.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/base/lived_internal.h"
#include "kernels/base/pause_internal.h"
#include "zero/comm/control_internal.h"

typedef struct memory_control memory_control_t;

/* `mutex` guards all of it. Lock order: a place before those of the groups split from it. */
typedef struct meeting_place {
    pthread_mutex_t mutex;
    struct meeting_place *parent;       /* what it was split from, which stays as long; or NULL */
    struct meeting_place *first, *next; /* of the groups split from it; of its parent's, whose lock
                                           guards it */
    bool is_told;                       /* the groups know that it has failed */
    pthread_cond_t changed;             /* a meeting is complete, or the communicator has ended */
    int timeout_ms, n_looks;
    int n_members; /* handles not destroyed; the last frees the place, once it has no groups */
    zr_control_t *
        *offspring;        /* [n_ranks] at a split: the handle that a rank's leader made for it */
    atomic_bool *has_told; /* [n_ranks]; of a place that was split from none */
    zr_membership_t *membership;
    unsigned char (*payloads)[ZR_PAYLOAD_BYTES]; /* [2 * n_ranks]: brought to meetings of even and
                                                    of odd numbers. A rank that is ahead comes to
                                                    the next while others still look */
} place_t;

struct memory_control {
    zr_control_t base;
    place_t *place;
};

static place_t *place_of(zr_control_t *control) {
    return ((memory_control_t *)control)->place;
}

/* ---- meetings ---- */

/* All that was split from a place, be it in several steps, ends. Lock held. */
static void end_groups(place_t *place, const char *reason) {
    for (place_t *group = place->first; group != NULL; group = group->next) {
        pthread_mutex_lock(&group->mutex);
        zr_membership_kill(group->membership, "%s", reason);
        pthread_cond_broadcast(&group->changed);
        end_groups(group, reason);
        pthread_mutex_unlock(&group->mutex);
    }
}

static bool has_failed(const place_t *place) {
    return atomic_load(&place->membership->is_dead) && !place->membership->has_left;
}

/* Wake all when what was done has completed the meeting or ended the communicator. Lock held. */
static void tell_if_changed(place_t *place, unsigned generation) {
    if (place->membership->generation != generation || atomic_load(&place->membership->is_dead))
        pthread_cond_broadcast(&place->changed);
    if (!place->is_told && has_failed(place)) {
        place->is_told = true;
        end_groups(place, place->membership->reason);
    }
}

/* Look for a while whether a meeting is complete, or the communicator has ended, before the system
 * is asked to wait. Lock not held: that whoever changes this does so under it, and who waits looks
 * again. */
static void look_for(const place_t *place, unsigned generation) {
    const zr_membership_t *membership = place->membership;
    for (int i = 0; i < place->n_looks && membership->generation == generation &&
                    !atomic_load(&membership->is_dead);
         i++)
        zr_pause();
}

/* What a rank brings to the meeting behind so many. */
static unsigned char *payload_of(const place_t *place, unsigned generation, int rank) {
    return place->payloads[generation % 2 * (unsigned)place->membership->n_ranks + (unsigned)rank];
}

static zr_status_t memory_arrive(zr_control_t *control, const zr_post_t *post, void *all) {
    place_t *place = place_of(control);
    zr_membership_t *membership = place->membership;
    zr_lived_t clock = {0};
    pthread_mutex_lock(&place->mutex);
    unsigned generation = membership->generation;
    if (!atomic_load(&membership->is_dead)) {
        memcpy(payload_of(place, generation, control->rank), post->payload, post->payload_bytes);
        zr_membership_arrive(membership, control->rank, post);
        tell_if_changed(place, generation);
    }
    pthread_mutex_unlock(&place->mutex);
    look_for(place, generation);
    pthread_mutex_lock(&place->mutex);
    while (membership->generation == generation && !atomic_load(&membership->is_dead)) {
        if (zr_lived_ms(&clock) < place->timeout_ms) {
            zr_lived_wait(&place->changed, &place->mutex,
                          zr_lived_slice_ms(&clock, place->timeout_ms));
        } else {
            zr_membership_kill_for_absence(membership, control->rank, place->timeout_ms);
            tell_if_changed(place, generation);
        }
    }
    zr_status_t status = membership->generation != generation ? membership->outcome : ZR_ERR_COMM;
    for (int rank = 0; status == ZR_OK && post->payload_bytes > 0 && rank < membership->n_ranks;
         rank++)
        memcpy((char *)all + (size_t)rank * post->payload_bytes,
               payload_of(place, generation, rank), post->payload_bytes);
    pthread_mutex_unlock(&place->mutex);
    return status;
}

static zr_status_t memory_meet(zr_control_t *control, zr_status_t status) {
    place_t *place = place_of(control);
    pthread_mutex_lock(&place->mutex);
    unsigned generation = place->membership->generation;
    zr_membership_count_in(place->membership, status);
    if (place->membership->generation != generation)
        pthread_cond_broadcast(&place->changed);
    pthread_mutex_unlock(&place->mutex);
    look_for(place, generation);
    pthread_mutex_lock(&place->mutex);
    while (place->membership->generation == generation)
        pthread_cond_wait(&place->changed, &place->mutex);
    zr_status_t outcome = place->membership->outcome;
    pthread_mutex_unlock(&place->mutex);
    return outcome;
}

static void memory_kill(zr_control_t *control, const char *reason) {
    place_t *place = place_of(control);
    pthread_mutex_lock(&place->mutex);
    zr_membership_kill(place->membership, "%s", reason);
    tell_if_changed(place, place->membership->generation);
    pthread_mutex_unlock(&place->mutex);
}

static const char *memory_death(zr_control_t *control, bool *has_left_p) {
    zr_membership_t *membership = place_of(control)->membership;
    if (!atomic_load(&membership->is_dead))
        return NULL;
    if (has_left_p != NULL)
        *has_left_p = membership->has_left;
    return membership->reason;
}

static atomic_bool *memory_has_told(zr_control_t *control) {
    place_t *place = place_of(control);
    while (place->parent != NULL)
        place = place->parent;
    return &place->has_told[control->origin_rank];
}

/* ---- life ---- */

static void free_place(place_t *place) {
    pthread_cond_destroy(&place->changed);
    pthread_mutex_destroy(&place->mutex);
    free(place);
}

/* One member less, or one group. The last frees the place, and then there is one group less in what
 * it was split from. */
static void release_place(place_t *place, int n_members_less, place_t *group) {
    pthread_mutex_lock(&place->mutex);
    place_t **link = &place->first;
    while (*link != NULL && *link != group)
        link = &(*link)->next;
    if (*link != NULL)
        *link = group->next;
    place->n_members -= n_members_less;
    bool is_last = place->n_members == 0 && place->first == NULL;
    pthread_mutex_unlock(&place->mutex);
    if (!is_last)
        return;
    if (place->parent != NULL)
        release_place(place->parent, 0, place);
    free_place(place);
}

static void memory_destroy(zr_control_t *control) {
    place_t *place = place_of(control);
    pthread_mutex_lock(&place->mutex);
    zr_membership_kill_for_leaving(place->membership, control->rank);
    pthread_cond_broadcast(&place->changed);
    pthread_mutex_unlock(&place->mutex);
    free(control);
    release_place(place, 1, NULL);
}

/* The place, its arrays and its membership in one piece. */
static zr_status_t create_place(int n_ranks, int timeout_ms, bool is_nested, const int *origins,
                                place_t **place_p) {
    size_t n = (size_t)n_ranks, head_bytes = sizeof(place_t) + n * sizeof(zr_control_t *);
    size_t membership_bytes = zr_membership_bytes(n_ranks), told_bytes = n * sizeof(atomic_bool);
    size_t all_bytes = head_bytes + membership_bytes + told_bytes + 2 * n * ZR_PAYLOAD_BYTES;
    place_t *place = calloc(1, all_bytes);
    if (place == NULL)
        return ZR_ERR_MEMORY;
    if (!zr_lived_init(&place->mutex, &place->changed)) {
        free(place);
        return ZR_ERR_MEMORY;
    }
    place->timeout_ms = timeout_ms;
    place->n_looks = zr_looks_count(n_ranks);
    place->n_members = n_ranks;
    place->offspring = (zr_control_t **)(place + 1);
    place->membership = (zr_membership_t *)((char *)place + head_bytes);
    place->has_told = (atomic_bool *)((char *)place->membership + membership_bytes);
    place->payloads = (void *)((char *)place->has_told + told_bytes);
    zr_membership_init(place->membership, n_ranks, is_nested, origins);
    *place_p = place;
    return ZR_OK;
}

static const zr_control_backend_t memory_backend;

/* A place with all its handles, or nothing. */
static zr_status_t create_controls(int n_ranks, int timeout_ms, bool is_nested, const int *origins,
                                   zr_control_t **controls) {
    place_t *place;
    ZR_TRY(create_place(n_ranks, timeout_ms, is_nested, origins, &place));
    for (int rank = 0; rank < n_ranks; rank++) {
        memory_control_t *self = calloc(1, sizeof(*self));
        if (self == NULL) {
            while (rank > 0) {
                free(controls[--rank]);
                controls[rank] = NULL;
            }
            free_place(place);
            return ZR_ERR_MEMORY;
        }
        self->base = (zr_control_t){.backend = &memory_backend,
                                    .rank = rank,
                                    .n_ranks = n_ranks,
                                    .origin_rank = origins[rank],
                                    .is_nested = is_nested};
        self->place = place;
        controls[rank] = &self->base;
    }
    return ZR_OK;
}

zr_status_t zr_control_create_memory(int n_ranks, int timeout_ms, zr_control_t **controls) {
    int origins[ZR_MAX_SUM_SOURCES] = {0};
    for (int rank = 0; rank < n_ranks; rank++)
        origins[rank] = rank;
    return create_controls(n_ranks, timeout_ms, false, origins, controls);
}

/* ---- split ---- */

/* A group ends with what it was split from, also where that has failed meanwhile; and its ranks
 * share the cores with all others. */
static void adopt_group(place_t *place, place_t *group) {
    pthread_mutex_lock(&place->mutex);
    group->parent = place;
    group->n_looks = place->n_looks;
    group->next = place->first;
    place->first = group;
    if (has_failed(place))
        end_groups(place, place->membership->reason);
    pthread_mutex_unlock(&place->mutex);
}

/* Make the group of a color, and lay each member's handle at its place in `offspring`. */
static zr_status_t create_offspring(place_t *place, int color) {
    int members[ZR_MAX_SUM_SOURCES] = {0}; /* by position: rank in this communicator */
    int origins[ZR_MAX_SUM_SOURCES] = {0};
    zr_control_t *controls[ZR_MAX_SUM_SOURCES];
    int n_members = zr_membership_members(place->membership, color, members);
    for (int i = 0; i < n_members; i++)
        origins[i] = place->membership->seats[members[i]].origin_rank;
    ZR_TRY(create_controls(n_members, place->timeout_ms, true, origins, controls));
    adopt_group(place, place_of(controls[0]));
    for (int i = 0; i < n_members; i++)
        place->offspring[members[i]] = controls[i];
    return ZR_OK;
}

/* The lowest rank of a color makes its group. Posts do not change before the last meeting. */
static bool leads_color(const zr_membership_t *membership, int rank) {
    for (int other = 0; other < rank; other++)
        if (membership->seats[other].post.color == membership->seats[rank].post.color)
            return false;
    return membership->seats[rank].post.color >= 0;
}

static zr_status_t memory_open_group(zr_control_t *control, int color, zr_control_t **group_p) {
    place_t *place = place_of(control);
    zr_status_t status = ZR_OK;
    if (leads_color(place->membership, control->rank))
        status = create_offspring(place, color);
    zr_status_t outcome = memory_meet(control, status);
    zr_control_t *own = place->offspring[control->rank];
    place->offspring[control->rank] = NULL; /* its leader writes it next at a later split */
    if (outcome != ZR_OK && own != NULL)
        own->backend->destroy(own);
    if (outcome == ZR_OK)
        *group_p = own;
    return outcome;
}

static const zr_control_backend_t memory_backend = {
    .arrive = memory_arrive,
    .meet = memory_meet,
    .open_group = memory_open_group,
    .kill = memory_kill,
    .death = memory_death,
    .has_told = memory_has_told,
    .destroy = memory_destroy,
};
