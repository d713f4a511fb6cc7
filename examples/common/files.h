/*
 * Files that a command line names: whether two names are one file, and whether one can be written,
 * found out before work that would be lost.
 */
#pragma once

#include "zero/zero.h"

/** Whether two paths lead to one file, be it there or not. */
bool files_are_same(const char *a, const char *b);

/** Whether a name ends so. */
bool files_name_ends(const char *name, const char *ending);

/** Whether it is a folder that is there. */
bool files_is_folder(const char *path);

/** A file of an option, as the user wrote both. */
typedef struct files_named {
    const char *option; /* "--plan" */
    const char *path;   /* NULL: none was given */
} files_named_t;

/** ZR_ERR_ARGUMENT, logged, if a file is one of these. */
ZR_NODISCARD zr_status_t files_check_apart(files_named_t file, const files_named_t *others,
                                           size_t n_others, const zr_log_t *log);

/**
 * Check that a file can be written. What is there stays, and what is not there is not left.
 *
 * @param option  as the user wrote it, for the message: "--plan"
 * @return ZR_OK; ZR_ERR_IO, logged. A named pipe is refused: opening it would wait for its
 *         reader. Devices are not opened: of them only the rights are looked at.
 */
ZR_NODISCARD zr_status_t files_check_writable(const char *option, const char *path,
                                              const zr_log_t *log);

/** The log of a reader whose messages begin with its file's name: they begin with the option. */
typedef struct files_log {
    zr_log_t log;       /* where they go; its sink is called */
    const char *option; /* as the user wrote it: "--config" */
} files_log_t;

/** To be handed to the reader; good for as long as `own` is. */
zr_log_t files_log(const files_log_t *own);

/** Why no files can be made in a folder, as the store makes them; NULL: they can. The text is good
 * until the thread's next call of strerror. */
const char *files_refuse_folder(const char *path);

/** Check that a folder is there to write to, or can be made in one that is there; nothing is made.
 * ZR_ERR_IO, logged with the option's name. */
ZR_NODISCARD zr_status_t files_check_folder(const char *option, const char *dir,
                                            const zr_log_t *log);
