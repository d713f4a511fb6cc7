/* The communicators of a hub: who is in them, and what becomes of them when a rank goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm/hub/hub_internal.h"

void zr_hub_group_free(zr_hub_group_t *group) {
    free(group->world);
    free(group->has_arrived);
    free(group->is_gone);
    free(group->roll);
    free(group);
}

zr_hub_group_t *zr_hub_group_create(zr_hub_t *hub, const zr_hub_group_t *parent, int n_ranks,
                                    const int *world) {
    size_t n = (size_t)n_ranks;
    zr_hub_group_t *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->world = malloc(n * sizeof(*group->world));
    group->has_arrived = calloc(n, sizeof(*group->has_arrived));
    group->is_gone = calloc(n, sizeof(*group->is_gone));
    group->roll = malloc(zr_roll_bytes(n_ranks));
    if (group->world == NULL || group->has_arrived == NULL || group->is_gone == NULL ||
        group->roll == NULL) {
        zr_hub_group_free(group);
        return NULL;
    }
    memcpy(group->world, world, n * sizeof(*world));
    zr_roll_init(group->roll, n_ranks, parent != NULL, world);
    group->id = hub->n_groups++;
    group->parent = parent != NULL ? parent->id : group->id;
    group->next = hub->groups;
    hub->groups = group;
    return group;
}

zr_hub_group_t *zr_hub_group_find(zr_hub_t *hub, uint32_t id) {
    zr_hub_group_t *group = hub->groups;
    while (group != NULL && group->id != id)
        group = group->next;
    return group;
}

int zr_hub_group_rank(const zr_hub_group_t *group, int world_rank) {
    for (int rank = 0; rank < group->roll->n_ranks; rank++)
        if (group->world[rank] == world_rank)
            return rank;
    return -1;
}

/* All that was split from a group, be it in several steps, ends. */
static void end_parts(zr_hub_t *hub, const zr_hub_group_t *group, const char *reason) {
    for (zr_hub_group_t *part = hub->groups; part != NULL; part = part->next) {
        if (part->parent != group->id || part == group)
            continue;
        zr_roll_kill(part->roll, "%s", reason);
        zr_hub_group_tell_end(hub, part);
        end_parts(hub, part, reason);
    }
}

void zr_hub_group_tell_end(zr_hub_t *hub, zr_hub_group_t *group) {
    if (group->is_told || !atomic_load(&group->roll->is_dead))
        return;
    zr_end_t end = {.has_left = group->roll->has_left, .whose = group->roll->whose};
    group->is_told = true;
    hub->has_failed |= !group->roll->has_left;
    snprintf(end.reason, sizeof(end.reason), "%s", group->roll->reason);
    for (int rank = 0; rank < group->roll->n_ranks; rank++)
        if (!group->is_gone[rank])
            zr_connection_send(&hub->ranks[group->world[rank]], ZR_FRAME_END, group->id, &end,
                               sizeof(end));
    if (!group->roll->has_left)
        end_parts(hub, group, group->roll->reason);
}

void zr_hub_group_remove(zr_hub_t *hub, zr_hub_group_t *group, int rank) {
    if (group->is_gone[rank])
        return;
    group->is_gone[rank] = true;
    zr_hub_group_tell_end(hub, group);
    if (!group->is_first && group->roll->n_arrived > 0 && !group->has_arrived[rank])
        zr_hub_meeting_count_in(hub, group, rank, ZR_ERR_COMM);
}

void zr_hub_groups_forget(zr_hub_t *hub) {
    zr_hub_group_t **link = &hub->groups;
    while (*link != NULL) {
        zr_hub_group_t *group = *link;
        int n_here = 0;
        for (int rank = 0; rank < group->roll->n_ranks; rank++)
            n_here += !group->is_gone[rank];
        if (n_here > 0) {
            link = &group->next;
            continue;
        }
        *link = group->next;
        for (zr_hub_group_t *part = hub->groups; part != NULL; part = part->next)
            part->parent = part->parent == group->id ? group->parent : part->parent;
        zr_hub_group_free(group);
    }
}

void zr_hub_lose_rank(zr_hub_t *hub, int world_rank, const char *reason) {
    zr_connection_close(&hub->ranks[world_rank]);
    for (zr_hub_group_t *group = hub->groups; group != NULL; group = group->next) {
        int rank = zr_hub_group_rank(group, world_rank);
        if (rank < 0 || group->is_gone[rank])
            continue;
        zr_roll_kill_for_loss(group->roll, rank, reason);
        zr_hub_group_remove(hub, group, rank);
    }
    zr_hub_groups_forget(hub);
}
