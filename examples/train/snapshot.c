/* --memory-snapshot: which step is recorded, and the files. */
#include <stdlib.h>

#include "examples/train/files.h"
#include "examples/train/launch.h"
#include "examples/train/run.h"

zr_status_t train_snapshot_start(rank_t *rank) {
    if (rank->run->options->memory_snapshot_path == NULL)
        return ZR_OK;
    rank->is_recording = false;
    ZR_TRY(zr_allocator_record_start(zr_runtime_allocator(rank->runtime), 0));
    rank->is_recording = true;
    return ZR_OK;
}

zr_status_t train_snapshot_stop(rank_t *rank) {
    if (!rank->is_recording)
        return ZR_OK;
    rank->is_recording = false;
    return zr_allocator_record_stop(zr_runtime_allocator(rank->runtime), &rank->recording);
}

/* The step of --memory-snapshot is the first whose plan foresaw everything: those before are not
 * yet like all others. Without plans it is the second, since the first records the order of units.
 * Where there is none, it is the last; of a run of one step, that step and all before it. */
zr_status_t train_snapshot_step(rank_t *rank, size_t n_done) {
    zr_replay_statistics_t before = rank->replay;
    if (!rank->is_recording)
        return ZR_OK;
    zr_allocator_replay_statistics(zr_runtime_allocator(rank->runtime), &rank->replay);
    size_t n_wanted = rank->run->options->steps - rank->result.first_step;
    bool is_typical = rank->replay.is_on ? rank->replay.n_planned > before.n_planned &&
                                               rank->replay.n_unplanned == before.n_unplanned
                                         : n_done == 2;
    if (!is_typical && n_done < n_wanted)
        return train_snapshot_start(rank);
    rank->recorded_step = rank->result.first_step + n_done;
    return train_snapshot_stop(rank);
}

/* A command that is given again when all is done: what it left is not written over. */
static bool keeps_snapshot(const run_t *run, const rank_t *rank) {
    if (run->status != ZR_OK || rank->result.n_steps > rank->result.first_step)
        return false;
    if (rank->number == 0)
        zr_log_write(&rank->log, ZR_LOG_WARNING,
                     "--memory-snapshot %s: nothing is written, as no step was done",
                     run->options->memory_snapshot_path);
    return true;
}

static zr_status_t save_snapshot(const run_t *run, const rank_t *rank) {
    char *path = NULL;
    if (rank->recording == NULL || keeps_snapshot(run, rank))
        return ZR_OK;
    ZR_TRY(
        train_files_rank_path(run->options->memory_snapshot_path, rank->number, &rank->log, &path));
    zr_status_t status = zr_snapshot_save(rank->recording, path, &rank->log);
    if (status == ZR_OK) {
        zr_recording_info_t info;
        zr_recording_info(rank->recording, &info);
        if (rank->recorded_step > 0)
            zr_log_write(&rank->log, ZR_LOG_INFO, "memory snapshot: %s of step %zu written to %s",
                         zr_count_text(info.n_lives, "life").text, rank->recorded_step, path);
        else
            zr_log_write(&rank->log, ZR_LOG_INFO, "memory snapshot: %s written to %s",
                         zr_count_text(info.n_lives, "life").text, path);
    }
    free(path);
    return status;
}

/* One rank that cannot write does not keep the others from it; the first error counts. */
zr_status_t train_snapshots_save(const run_t *run, rank_t *ranks) {
    zr_status_t status = ZR_OK;
    for (int i = 0; i < train_launch_n_here(run->options); i++) {
        zr_status_t saved = save_snapshot(run, &ranks[i]);
        status = status == ZR_OK ? saved : status;
        zr_recording_destroy(&ranks[i].recording);
    }
    return status;
}
