/* The communicators of a coordinator: who is in them, and what becomes of them when a rank goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm/coordinator/coordinator_internal.h"

void zr_coordinator_group_free(zr_coordinator_group_t *group) {
    free(group->world);
    free(group->has_arrived);
    free(group->is_gone);
    free(group->membership);
    free(group);
}

zr_coordinator_group_t *zr_coordinator_group_create(zr_coordinator_t *coordinator,
                                                    const zr_coordinator_group_t *parent,
                                                    int n_ranks, const int *world) {
    size_t n = (size_t)n_ranks;
    zr_coordinator_group_t *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->world = malloc(n * sizeof(*group->world));
    group->has_arrived = calloc(n, sizeof(*group->has_arrived));
    group->is_gone = calloc(n, sizeof(*group->is_gone));
    group->membership = malloc(zr_membership_bytes(n_ranks));
    if (group->world == NULL || group->has_arrived == NULL || group->is_gone == NULL ||
        group->membership == NULL) {
        zr_coordinator_group_free(group);
        return NULL;
    }
    memcpy(group->world, world, n * sizeof(*world));
    zr_membership_init(group->membership, n_ranks, parent != NULL, world);
    group->id = coordinator->n_groups++;
    group->parent = parent != NULL ? parent->id : group->id;
    group->next = coordinator->groups;
    coordinator->groups = group;
    return group;
}

zr_coordinator_group_t *zr_coordinator_group_find(zr_coordinator_t *coordinator, uint32_t id) {
    zr_coordinator_group_t *group = coordinator->groups;
    while (group != NULL && group->id != id)
        group = group->next;
    return group;
}

int zr_coordinator_group_rank(const zr_coordinator_group_t *group, int world_rank) {
    for (int rank = 0; rank < group->membership->n_ranks; rank++)
        if (group->world[rank] == world_rank)
            return rank;
    return -1;
}

/* All that was split from a group, be it in several steps, ends. */
static void end_parts(zr_coordinator_t *coordinator, const zr_coordinator_group_t *group,
                      const char *reason) {
    for (zr_coordinator_group_t *part = coordinator->groups; part != NULL; part = part->next) {
        if (part->parent != group->id || part == group)
            continue;
        zr_membership_kill(part->membership, "%s", reason);
        zr_coordinator_group_tell_end(coordinator, part);
        end_parts(coordinator, part, reason);
    }
}

void zr_coordinator_group_tell_end(zr_coordinator_t *coordinator, zr_coordinator_group_t *group) {
    if (group->is_told || !atomic_load(&group->membership->is_dead))
        return;
    zr_end_t end = {.has_left = group->membership->has_left, .whose = group->membership->whose};
    group->is_told = true;
    coordinator->has_failed |= !group->membership->has_left;
    snprintf(end.reason, sizeof(end.reason), "%s", group->membership->reason);
    for (int rank = 0; rank < group->membership->n_ranks; rank++)
        if (!group->is_gone[rank])
            zr_connection_send(&coordinator->ranks[group->world[rank]], ZR_FRAME_END, group->id,
                               &end, sizeof(end));
    if (!group->membership->has_left)
        end_parts(coordinator, group, group->membership->reason);
}

void zr_coordinator_group_remove(zr_coordinator_t *coordinator, zr_coordinator_group_t *group,
                                 int rank) {
    if (group->is_gone[rank])
        return;
    group->is_gone[rank] = true;
    zr_coordinator_group_tell_end(coordinator, group);
    if (!group->is_first && group->membership->n_arrived > 0 && !group->has_arrived[rank])
        zr_coordinator_meeting_count_in(coordinator, group, rank, ZR_ERR_COMM);
}

void zr_coordinator_groups_forget(zr_coordinator_t *coordinator) {
    zr_coordinator_group_t **link = &coordinator->groups;
    while (*link != NULL) {
        zr_coordinator_group_t *group = *link;
        int n_here = 0;
        for (int rank = 0; rank < group->membership->n_ranks; rank++)
            n_here += !group->is_gone[rank];
        if (n_here > 0) {
            link = &group->next;
            continue;
        }
        *link = group->next;
        for (zr_coordinator_group_t *part = coordinator->groups; part != NULL; part = part->next)
            part->parent = part->parent == group->id ? group->parent : part->parent;
        zr_coordinator_group_free(group);
    }
}

void zr_coordinator_lose_rank(zr_coordinator_t *coordinator, int world_rank, const char *reason) {
    zr_connection_close(&coordinator->ranks[world_rank]);
    for (zr_coordinator_group_t *group = coordinator->groups; group != NULL; group = group->next) {
        int rank = zr_coordinator_group_rank(group, world_rank);
        if (rank < 0 || group->is_gone[rank])
            continue;
        zr_membership_kill_for_loss(group->membership, rank, reason);
        zr_coordinator_group_remove(coordinator, group, rank);
    }
    zr_coordinator_groups_forget(coordinator);
}
