/*
 * A folder of checkpoints: how one appears whole or not at all. Internal to zero/checkpoint/.
 *
 * A checkpoint is made as ".step-00000060.partial", which no reader looks at. When everything in it
 * has reached the drive it is renamed to step-00000060, and the file "latest", with that name in
 * it, is replaced by a rename as well. What is to go is renamed to a name with a dot first, so
 * that what is half removed is never taken for a checkpoint.
 *
 * Threads: one, of one rank: rank 0 of those that save.
 */
#ifndef ZR_ZERO_CHECKPOINT_FOLDER_H
#define ZR_ZERO_CHECKPOINT_FOLDER_H

#include "zero/checkpoint/checkpoint.h"

/** "step-00000060"; more digits where they are needed. */
void zr_folder_name(size_t step, char name[64]);
/** The step of such a name; false for any other. */
bool zr_folder_step(const char *name, size_t *step_p);

/** Where the checkpoint of a step is made, for those that write into it; free it. NULL: there is no
 * memory. */
char *zr_folder_partial_path(const char *folder, size_t step);

/**
 * Make the folder, where it is not there, and in it an empty one for a checkpoint in the making;
 * what earlier ones have left unfinished is removed.
 *
 * @param path_p  of the one in the making; free it
 * @return ZR_OK; ZR_ERR_IO: the log has what failed, for which path, and why; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_folder_begin(const char *folder, size_t step, const zr_log_t *log,
                                         char **path_p);

/**
 * Give it its name: its files, which their writers have synchronised, are in it. An older
 * checkpoint of the same step is replaced in the same instant.
 *
 * @param keep  so many of the newest complete checkpoints stay; 0: all
 * @return ZR_OK, also when older ones could not be removed, which is logged; ZR_ERR_IO: the
 *         checkpoint is there or not, and all others are
 */
ZR_NODISCARD zr_status_t zr_folder_publish(const char *folder, size_t step, size_t keep,
                                           const zr_log_t *log);

/** Remove the one in the making, if it is there; errors are logged. */
void zr_folder_abandon(const char *folder, size_t step, const zr_log_t *log);

/**
 * The newest complete checkpoint. Those newer that are not complete are logged with the reason, as
 * are unfinished ones.
 *
 * @param path_p  free it
 * @return ZR_OK; ZR_ERR_IO when the folder cannot be read, or has none
 */
ZR_NODISCARD zr_status_t zr_folder_newest(const char *folder, const zr_log_t *log, char **path_p);

#endif
