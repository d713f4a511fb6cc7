/* Meetings of a communicator's ranks: arrivals, what comes of them, and who comes too late. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "zero/comm/hub/hub_internal.h"

/* Make the groups of a split; false: no memory, and none is made. ids: [n_ranks] */
static bool make_groups(zr_hub_t *hub, zr_hub_group_t *parent, int *ids) {
    int members[ZR_MAX_SUM_SOURCES] = {0}, world[ZR_MAX_SUM_SOURCES] = {0};
    zr_roll_t *roll = parent->roll;
    zr_hub_group_t *before = hub->groups;
    for (int rank = 0; rank < roll->n_ranks; rank++)
        ids[rank] = -1;
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        if (ids[rank] >= 0 || roll->seats[rank].post.color < 0)
            continue;
        int n_members = zr_roll_members(roll, roll->seats[rank].post.color, members);
        for (int i = 0; i < n_members; i++)
            world[i] = parent->world[members[i]];
        zr_hub_group_t *group = zr_hub_group_create(hub, parent, n_members, world);
        while (group == NULL && hub->groups != before) {
            zr_hub_group_t *made = hub->groups;
            hub->groups = made->next;
            zr_hub_group_free(made);
        }
        if (group == NULL)
            return false;
        for (int i = 0; i < n_members; i++)
            ids[members[i]] = (int)group->id;
    }
    return true;
}

static void tell_outcome(zr_hub_t *hub, zr_hub_group_t *group) {
    zr_roll_t *roll = group->roll;
    const zr_post_t *first = &roll->seats[0].post;
    int ids[ZR_MAX_SUM_SOURCES] = {0};
    zr_status_t status = roll->outcome;
    bool is_split = group->is_first && status == ZR_OK && first->collective == ZR_SPLIT;
    size_t payload_bytes = group->is_first && status == ZR_OK ? first->payload_bytes : 0;
    size_t all_bytes = payload_bytes * (size_t)roll->n_ranks;
    char *all = all_bytes > 0 ? malloc(all_bytes) : NULL;
    if ((is_split && !make_groups(hub, group, ids)) || (all_bytes > 0 && all == NULL)) {
        status = ZR_ERR_MEMORY;
        all_bytes = 0;
    }
    for (int rank = 0; all_bytes > 0 && rank < roll->n_ranks; rank++)
        memcpy(all + (size_t)rank * payload_bytes, roll->seats[rank].post.payload, payload_bytes);
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        zr_outcome_t outcome = {.status = status, .group = -1};
        const void *tail = all;
        size_t tail_bytes = all_bytes;
        if (is_split && status == ZR_OK && ids[rank] >= 0) {
            const zr_hub_group_t *part = zr_hub_group_find(hub, (uint32_t)ids[rank]);
            outcome.group = ids[rank];
            outcome.rank = zr_roll_rank_in_color(roll, rank);
            outcome.n_ranks = part->roll->n_ranks;
            tail = part->world;
            tail_bytes = (size_t)part->roll->n_ranks * sizeof(*part->world);
        }
        if (!group->is_gone[rank])
            zr_connection_send_parts(&hub->ranks[group->world[rank]], ZR_FRAME_OUTCOME, group->id,
                                     &outcome, sizeof(outcome), tail, tail_bytes);
    }
    free(all);
}

static void after_arrival(zr_hub_t *hub, zr_hub_group_t *group, unsigned generation) {
    if (group->roll->generation != generation) {
        memset(group->has_arrived, 0, (size_t)group->roll->n_ranks * sizeof(bool));
        tell_outcome(hub, group);
    }
    zr_hub_group_tell_end(hub, group);
}

void zr_hub_meeting_count_in(zr_hub_t *hub, zr_hub_group_t *group, int rank, zr_status_t status) {
    unsigned generation = group->roll->generation;
    group->has_arrived[rank] = true;
    zr_roll_count_in(group->roll, status);
    for (int other = 0; other < group->roll->n_ranks; other++) {
        if (group->roll->generation == generation && group->is_gone[other] &&
            !group->has_arrived[other]) {
            group->has_arrived[other] = true;
            zr_roll_count_in(group->roll, ZR_ERR_COMM);
        }
    }
    after_arrival(hub, group, generation);
}

/* Ranks within a call and ranks before the next one cannot meet: one of them breaks the rules, and
 * which is not known. Those within the call are let go as after any end. */
static void end_mixed_meeting(zr_hub_t *hub, zr_hub_group_t *group, int rank, bool is_first) {
    char within[ZR_RANK_TEXT_BYTES], before[ZR_RANK_TEXT_BYTES];
    zr_roll_describe_rank(group->roll, is_first ? group->waiting : rank, within);
    zr_roll_describe_rank(group->roll, is_first ? rank : group->waiting, before);
    zr_roll_kill(group->roll, "%s comes to the end of a call where %s begins one", within, before);
    group->is_first = false;
    group->limit_ms = ZR_HUB_DEAD_MS;
    group->until_ms = hub->now_ms + ZR_HUB_DEAD_MS;
    zr_hub_group_tell_end(hub, group);
}

void zr_hub_meeting_begin(zr_hub_t *hub, zr_hub_group_t *group, int rank, bool is_first) {
    if (group->roll->n_arrived > 0) {
        if (group->is_first != is_first)
            end_mixed_meeting(hub, group, rank, is_first);
        return;
    }
    /* In between, a rank may wait for its device as long as the limit is, unless that is the host.
     */
    bool waits = !is_first && strcmp(group->roll->seats[rank].post.device, "host") != 0;
    group->limit_ms = hub->options.timeout_ms * (waits ? (int64_t)2 : 1);
    if (!waits && atomic_load(&group->roll->is_dead) && group->limit_ms > ZR_HUB_DEAD_MS)
        group->limit_ms = ZR_HUB_DEAD_MS; /* who would come has been told */
    group->until_ms = hub->now_ms + group->limit_ms;
    group->waiting = rank;
    group->is_first = is_first;
}

void zr_hub_meeting_take_post(zr_hub_t *hub, zr_hub_group_t *group, int rank,
                              const zr_post_t *post) {
    unsigned generation = group->roll->generation;
    if (!atomic_load(&group->roll->is_dead))
        zr_hub_meeting_begin(hub, group, rank, true);
    if (atomic_load(&group->roll->is_dead))
        return; /* it has been told */
    group->has_arrived[rank] = true;
    zr_roll_arrive(group->roll, rank, post);
    after_arrival(hub, group, generation);
}

/* A rank that others wait for in the midst of a call: they go on without it. */
static void end_late_meeting(zr_hub_t *hub, zr_hub_group_t *group) {
    zr_roll_t *roll = group->roll;
    int late = 0;
    while (group->has_arrived[late])
        late++;
    zr_roll_kill_for_lateness(roll, group->waiting, late, group->limit_ms);
    zr_hub_group_tell_end(hub, group); /* before the outcome: who gets that asks for the reason */
    for (int rank = 0; rank < roll->n_ranks; rank++)
        group->is_gone[rank] |= !group->has_arrived[rank];
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        if (!group->is_gone[rank] || group->has_arrived[rank])
            continue;
        unsigned generation = roll->generation;
        group->has_arrived[rank] = true;
        zr_roll_count_in(roll, ZR_ERR_COMM);
        after_arrival(hub, group, generation);
        if (roll->generation != generation)
            break;
    }
}

void zr_hub_meetings_look(zr_hub_t *hub) {
    for (zr_hub_group_t *group = hub->groups; group != NULL; group = group->next) {
        if (group->roll->n_arrived == 0 || hub->now_ms < group->until_ms)
            continue;
        if (!group->is_first) {
            end_late_meeting(hub, group);
        } else if (!atomic_load(&group->roll->is_dead)) {
            zr_roll_kill_for_absence(group->roll, group->waiting, hub->options.timeout_ms);
            zr_hub_group_tell_end(hub, group);
        }
    }
}
