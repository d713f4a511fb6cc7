/* Meetings of a communicator's ranks: arrivals, what comes of them, and who comes too late. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "zero/comm/coordinator/coordinator_internal.h"

/* Make the groups of a split; false: no memory, and none is made. ids: [n_ranks] */
static bool make_groups(zr_coordinator_t *coordinator, zr_coordinator_group_t *parent, int *ids) {
    int members[ZR_MAX_SUM_SOURCES] = {0}, world[ZR_MAX_SUM_SOURCES] = {0};
    zr_membership_t *membership = parent->membership;
    zr_coordinator_group_t *before = coordinator->groups;
    for (int rank = 0; rank < membership->n_ranks; rank++)
        ids[rank] = -1;
    for (int rank = 0; rank < membership->n_ranks; rank++) {
        if (ids[rank] >= 0 || membership->seats[rank].post.color < 0)
            continue;
        int n_members =
            zr_membership_members(membership, membership->seats[rank].post.color, members);
        for (int i = 0; i < n_members; i++)
            world[i] = parent->world[members[i]];
        zr_coordinator_group_t *group =
            zr_coordinator_group_create(coordinator, parent, n_members, world);
        while (group == NULL && coordinator->groups != before) {
            zr_coordinator_group_t *made = coordinator->groups;
            coordinator->groups = made->next;
            zr_coordinator_group_free(made);
        }
        if (group == NULL)
            return false;
        for (int i = 0; i < n_members; i++)
            ids[members[i]] = (int)group->id;
    }
    return true;
}

static void tell_outcome(zr_coordinator_t *coordinator, zr_coordinator_group_t *group) {
    zr_membership_t *membership = group->membership;
    const zr_post_t *first = &membership->seats[0].post;
    int ids[ZR_MAX_SUM_SOURCES] = {0};
    zr_status_t status = membership->outcome;
    bool is_split = group->is_first && status == ZR_OK && first->collective == ZR_SPLIT;
    size_t payload_bytes = group->is_first && status == ZR_OK ? first->payload_bytes : 0;
    size_t all_bytes = payload_bytes * (size_t)membership->n_ranks;
    char *all = all_bytes > 0 ? malloc(all_bytes) : NULL;
    if ((is_split && !make_groups(coordinator, group, ids)) || (all_bytes > 0 && all == NULL)) {
        status = ZR_ERR_MEMORY;
        all_bytes = 0;
    }
    for (int rank = 0; all_bytes > 0 && rank < membership->n_ranks; rank++)
        memcpy(all + (size_t)rank * payload_bytes, membership->seats[rank].post.payload,
               payload_bytes);
    for (int rank = 0; rank < membership->n_ranks; rank++) {
        zr_outcome_t outcome = {.status = status, .group = -1};
        const void *tail = all;
        size_t tail_bytes = all_bytes;
        if (is_split && status == ZR_OK && ids[rank] >= 0) {
            const zr_coordinator_group_t *part =
                zr_coordinator_group_find(coordinator, (uint32_t)ids[rank]);
            outcome.group = ids[rank];
            outcome.rank = zr_membership_rank_in_color(membership, rank);
            outcome.n_ranks = part->membership->n_ranks;
            tail = part->world;
            tail_bytes = (size_t)part->membership->n_ranks * sizeof(*part->world);
        }
        if (!group->is_gone[rank])
            zr_connection_send_parts(&coordinator->ranks[group->world[rank]], ZR_FRAME_OUTCOME,
                                     group->id, &outcome, sizeof(outcome), tail, tail_bytes);
    }
    free(all);
}

static void after_arrival(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                          unsigned generation) {
    if (group->membership->generation != generation) {
        memset(group->has_arrived, 0, (size_t)group->membership->n_ranks * sizeof(bool));
        tell_outcome(coordinator, group);
    }
    zr_coordinator_group_tell_end(coordinator, group);
}

void zr_coordinator_meeting_count_in(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                     int rank, zr_status_t status) {
    unsigned generation = group->membership->generation;
    group->has_arrived[rank] = true;
    zr_membership_count_in(group->membership, status);
    for (int other = 0; other < group->membership->n_ranks; other++) {
        if (group->membership->generation == generation && group->is_gone[other] &&
            !group->has_arrived[other]) {
            group->has_arrived[other] = true;
            zr_membership_count_in(group->membership, ZR_ERR_COMM);
        }
    }
    after_arrival(coordinator, group, generation);
}

/* Ranks within a call and ranks before the next one cannot meet: one of them breaks the rules, and
 * which is not known. Those within the call are let go as after any end. */
static void end_mixed_meeting(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                              int rank, bool is_first) {
    char within[ZR_RANK_TEXT_BYTES], before[ZR_RANK_TEXT_BYTES];
    zr_membership_describe_rank(group->membership, is_first ? group->waiting : rank, within);
    zr_membership_describe_rank(group->membership, is_first ? rank : group->waiting, before);
    zr_membership_kill(group->membership, "%s comes to the end of a call where %s begins one",
                       within, before);
    group->is_first = false;
    group->limit_ms = ZR_HUB_DEAD_MS;
    group->until_ms = coordinator->now_ms + ZR_HUB_DEAD_MS;
    zr_coordinator_group_tell_end(coordinator, group);
}

void zr_coordinator_meeting_begin(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                  int rank, bool is_first) {
    if (group->membership->n_arrived > 0) {
        if (group->is_first != is_first)
            end_mixed_meeting(coordinator, group, rank, is_first);
        return;
    }
    /* In between, a rank may wait for its device as long as the limit is, unless that is the host.
     */
    bool waits = !is_first && strcmp(group->membership->seats[rank].post.device, "host") != 0;
    group->limit_ms = coordinator->options.timeout_ms * (waits ? (int64_t)2 : 1);
    if (!waits && atomic_load(&group->membership->is_dead) && group->limit_ms > ZR_HUB_DEAD_MS)
        group->limit_ms = ZR_HUB_DEAD_MS; /* who would come has been told */
    group->until_ms = coordinator->now_ms + group->limit_ms;
    group->waiting = rank;
    group->is_first = is_first;
}

void zr_coordinator_meeting_take_post(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                      int rank, const zr_post_t *post) {
    unsigned generation = group->membership->generation;
    if (!atomic_load(&group->membership->is_dead))
        zr_coordinator_meeting_begin(coordinator, group, rank, true);
    if (atomic_load(&group->membership->is_dead))
        return; /* it has been told */
    group->has_arrived[rank] = true;
    zr_membership_arrive(group->membership, rank, post);
    after_arrival(coordinator, group, generation);
}

/* A rank that others wait for in the midst of a call: they go on without it. */
static void end_late_meeting(zr_coordinator_t *coordinator, zr_coordinator_group_t *group) {
    zr_membership_t *membership = group->membership;
    int late = 0;
    while (group->has_arrived[late])
        late++;
    zr_membership_kill_for_lateness(membership, group->waiting, late, group->limit_ms);
    zr_coordinator_group_tell_end(
        coordinator, group); /* before the outcome: who gets that asks for the reason */
    for (int rank = 0; rank < membership->n_ranks; rank++)
        group->is_gone[rank] |= !group->has_arrived[rank];
    for (int rank = 0; rank < membership->n_ranks; rank++) {
        if (!group->is_gone[rank] || group->has_arrived[rank])
            continue;
        unsigned generation = membership->generation;
        group->has_arrived[rank] = true;
        zr_membership_count_in(membership, ZR_ERR_COMM);
        after_arrival(coordinator, group, generation);
        if (membership->generation != generation)
            break;
    }
}

void zr_coordinator_meetings_look(zr_coordinator_t *coordinator) {
    for (zr_coordinator_group_t *group = coordinator->groups; group != NULL; group = group->next) {
        if (group->membership->n_arrived == 0 || coordinator->now_ms < group->until_ms)
            continue;
        if (!group->is_first) {
            end_late_meeting(coordinator, group);
        } else if (!atomic_load(&group->membership->is_dead)) {
            zr_membership_kill_for_absence(group->membership, group->waiting,
                                           coordinator->options.timeout_ms);
            zr_coordinator_group_tell_end(coordinator, group);
        }
    }
}
