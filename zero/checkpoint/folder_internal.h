/*
 * A folder of checkpoints: how one appears whole or not at all. Internal to zero/checkpoint/.
 *
 * A checkpoint is made as ".step-00000060.partial", which no reader looks at. When everything in it
 * has reached the drive it is renamed to step-00000060, and the file "latest", with that name in
 * it, is replaced by a rename as well. What is to go is renamed to a name with a dot first, so
 * that what is half removed is never taken for a checkpoint. One that is replaced changes its name
 * with the new one in one step of the system's; where the file system has none, it is
 * step-00000060.old between two, and taken as long as there is no other of its step.
 *
 * Links in the folder are not followed, and what is none of these names is left alone.
 *
 * Threads: one, of one rank: rank 0 of those that save, which holds the folder's lock.
 */
#pragma once

#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/manifest_internal.h"

/** "step-00000060"; more digits where they are needed. */
void zr_folder_name(size_t step, char name[64]);
/** The step of such a name; false for any other. */
bool zr_folder_step(const char *name, size_t *step_p);

/** Where the checkpoint of a step is made, for those that write into it; free it. NULL: there is no
 * memory. */
char *zr_folder_partial_path(const char *folder, size_t step);

/** In the folder of a checkpoint in the making: data files of one that is no more, which may be
 * given their names without this, and written over. What is not used is removed when it is
 * published. */
#define ZR_FOLDER_SPARE_PREFIX ".spare-"

/**
 * Make the folder, where it is not there, and keep other runs from saving into it until it is
 * unlocked, or the process ends. Where the file system has no locks, nobody is kept from it.
 *
 * @param lock_p  not set after an error
 * @return ZR_OK; ZR_ERR_IO, also when another holds it; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_folder_lock(const char *folder, const zr_log_t *log, int *lock_p);
/** -1 is fine, and what it is then. */
void zr_folder_unlock(int *lock);

/**
 * Make the folder, where it is not there, and in it an empty one for a checkpoint in the making;
 * what earlier ones have left unfinished is removed.
 *
 * @param path_p  of the one in the making; free it
 * @return ZR_OK; ZR_ERR_IO: the log has what failed, for which path, and why; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_folder_begin(const char *folder, size_t step, const zr_log_t *log,
                                         char **path_p);

/** Which stay of those that have a name. */
typedef struct zr_folder_kept {
    size_t n; /* the one that gets its name, and the others with most steps; 0: all */
    bool has_also;
    size_t also; /* has_also: the one of this step, too */
} zr_folder_kept_t;

/**
 * Give it its name: its files, which their writers have synchronised, are in it. An older
 * checkpoint of the same step is replaced in the same instant.
 *
 * @return ZR_OK, also when older ones could not be removed, which is logged; ZR_ERR_IO: the
 *         checkpoint is there or not, and all others are
 */
ZR_NODISCARD zr_status_t zr_folder_publish(const char *folder, size_t step,
                                           const zr_folder_kept_t *kept, const zr_log_t *log);

/**
 * Take the name of a damaged checkpoint from it: it stays as step-00000060.damaged, or, where there
 * is such a one, with a number behind that, and nothing here reads, counts or removes it from then
 * on. Others save into the folder meanwhile: ZR_ERR_IO.
 *
 * @param kept_as  the name that it has then
 */
ZR_NODISCARD zr_status_t zr_folder_set_aside(const char *folder, size_t step, const zr_log_t *log,
                                             char kept_as[64]);

/** "latest" names this one from now on, where what it names is not there any more. */
ZR_NODISCARD zr_status_t zr_folder_mend_latest(const char *folder, size_t step,
                                               const zr_log_t *log);

/** Remove the one in the making, if it is there; errors are logged. */
void zr_folder_abandon(const char *folder, size_t step, const zr_log_t *log);

/** What cannot be read is read so often before it counts as lost: a drive, or the way to it, may
 * fail once. */
#define ZR_FOLDER_TRIES 3

/** A checkpoint that was found in a folder. */
typedef struct zr_folder_found {
    char *path;
    int fd; /* of its folder, open for reading */
    zr_manifest_t manifest;
} zr_folder_found_t;

/**
 * The newest complete checkpoint: of those whose manifest and files are as they should be, the one
 * with most steps. Those newer that are not complete are logged with the reason, as are unfinished
 * ones, and that "latest" is another one.
 *
 * @param below  of fewer steps than this; SIZE_MAX: whichever
 * @param secret  that it has to be signed with; NULL, or not given: nobody looks
 * @param found_p  give it back with zr_folder_found_clear
 * @return ZR_OK; ZR_ERR_IO when the folder cannot be read, or has none; ZR_ERR_ARGUMENT when the
 *         newest that is complete is not signed so: an older one is not taken instead;
 *         ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_folder_newest(const char *folder, size_t below,
                                          const zr_secret_t *secret, const zr_log_t *log,
                                          zr_folder_found_t *found_p);
/** One that was never filled is fine: zeros, and fd -1. */
void zr_folder_found_clear(zr_folder_found_t *found);

/* ---- what a folder has ----------------------------------------------------------------------- */

#define ZR_FOLDER_LATEST "latest"

typedef enum zr_folder_kind {
    ZR_FOLDER_NAMED = 0,   /* step-00000060: it was complete when it got its name */
    ZR_FOLDER_OLD = 1,     /* step-00000060.old: it was, and was being replaced */
    ZR_FOLDER_PARTIAL = 2, /* .step-00000060.partial: in the making */
    ZR_FOLDER_REMOVED = 3, /* .step-00000060.removed: being removed */
    ZR_FOLDER_DAMAGED = 4  /* step-00000060.damaged: set aside, and nothing here touches it */
} zr_folder_kind_t;

typedef struct zr_folder_item {
    char name[64];
    size_t step;
    zr_folder_kind_t kind;
} zr_folder_item_t;

/** The name of one in its folder. */
void zr_folder_item_name(size_t step, zr_folder_kind_t kind, char name[64]);

/**
 * All that a folder has of checkpoints, by steps, most first, and then by kind.
 *
 * @param folder_fd  the folder, whose path is for messages
 * @param items_p    [*n_items_p]; free it
 */
ZR_NODISCARD zr_status_t zr_folder_scan(int folder_fd, const char *folder, const zr_log_t *log,
                                        zr_folder_item_t **items_p, size_t *n_items_p);

/** Whether an item is a checkpoint: named, or the old one of a step that has none with a name. */
bool zr_folder_is_checkpoint(const zr_folder_item_t *items, size_t index);

/**
 * Open the folder of one and read its manifest. Errors as of zr_manifest_read_at.
 *
 * @param reason  what is wrong with it; nothing is logged
 */
ZR_NODISCARD zr_status_t zr_folder_read(int folder_fd, const char *name, const zr_secret_t *secret,
                                        char reason[256], int *fd_p, zr_manifest_t *manifest_p);
