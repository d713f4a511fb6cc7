/*
 * Recording an allocator: where a recording (record.c) begins, ends, and what is there then.
 */
#include "allocator/internal.h"

static void attach(zr_allocator_t *allocator, zr_recording_t *recording) {
    allocator->recording = recording;
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        for (int k = 0; k < ZR_N_ARENAS; k++)
            allocator->tiers[i].arenas[k].recording = recording;
    }
}

/* Note every stretch of an arena that is mapped, whole, and at the beginning what lives there. */
static void record_arena(zr_recording_t *recording, zr_arena_t *arena, bool at_end) {
    zr_record_stretch_t stretch = {.tier = (uint8_t)arena->tier,
                                   .class_index = (uint8_t)arena->class_index,
                                   .is_mapped = true};
    for (zr_block_t *block = arena->first; block != NULL; block = block->next) {
        if (!at_end && (block->state == ZR_BLOCK_LIVE || block->state == ZR_BLOCK_PENDING))
            zr_recording_found_block(recording, block);
        if (!arena->is_backed || block->state == ZR_BLOCK_UNMAPPED)
            continue;
        if (stretch.size_bytes == 0)
            stretch.offset_bytes = block->offset_bytes;
        stretch.size_bytes += block->size_bytes;
        if (block->next == NULL || block->next->state == ZR_BLOCK_UNMAPPED) {
            zr_recording_found(recording, &stretch, at_end);
            stretch.size_bytes = 0;
        }
    }
}

/* What lives at a place of the plan stands in no arena's list. */
static void record_places(const zr_allocator_t *allocator, zr_recording_t *recording) {
    const zr_replay_t *replay = allocator->replay;
    if (replay == NULL || !replay->is_in_force)
        return;
    for (size_t i = 0; i < replay->plan->n_entries; i++) {
        if (replay->blocks[i] != NULL)
            zr_recording_found_block(recording, replay->blocks[i]);
    }
}

static void record_arenas(zr_allocator_t *allocator, zr_recording_t *recording, bool at_end) {
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        for (int k = 0; k < ZR_N_ARENAS; k++)
            record_arena(recording, &allocator->tiers[i].arenas[k], at_end);
    }
}

/* Begin, or begin again, with the lock held. */
static zr_status_t start_recording(zr_allocator_t *allocator, size_t max_bytes) {
    zr_recording_t *recording = allocator->recording;
    if (recording == NULL)
        recording = zr_recording_create(max_bytes);
    if (recording == NULL)
        return ZR_ERR_MEMORY;
    recording->max_bytes = max_bytes == 0 ? ZR_RECORDING_MAX_BYTES : max_bytes;
    zr_recording_restart(recording);
    record_arenas(allocator, recording, false);
    record_places(allocator, recording);
    if (recording->status == ZR_OK) {
        attach(allocator, recording);
        return ZR_OK;
    }
    zr_status_t status = recording->status;
    attach(allocator, NULL);
    zr_recording_finish(recording);
    zr_recording_destroy(&recording);
    return status;
}

zr_status_t zr_allocator_record_start(zr_allocator_t *allocator, size_t max_bytes) {
    pthread_mutex_lock(&allocator->lock);
    zr_status_t status = start_recording(allocator, max_bytes);
    pthread_mutex_unlock(&allocator->lock);
    if (status == ZR_OK)
        return ZR_OK;
    return zr_fail(&allocator->log, status,
                   "recording allocations: no memory for what is live, within %s",
                   zr_count_text(max_bytes == 0 ? ZR_RECORDING_MAX_BYTES : max_bytes, "byte").text);
}

zr_status_t zr_allocator_record_stop(zr_allocator_t *allocator, zr_recording_t **recording_p) {
    pthread_mutex_lock(&allocator->lock);
    zr_recording_t *recording = allocator->recording;
    zr_status_t status = ZR_OK;
    for (int i = 0; recording != NULL && status == ZR_OK && i < ZR_N_MEMORY_TIERS; i++)
        status = zr_tier_poll(allocator, &allocator->tiers[i]); /* if it fails, they stay open */
    if (recording != NULL) {
        record_arenas(allocator, recording, true);
        zr_recording_finish(recording);
        attach(allocator, NULL);
    }
    pthread_mutex_unlock(&allocator->lock);
    if (recording == NULL)
        return zr_fail(&allocator->log, ZR_ERR_STATE, "no recording is running");
    *recording_p = recording;
    return ZR_OK;
}
