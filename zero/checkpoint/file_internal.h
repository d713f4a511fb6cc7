/*
 * Files of a checkpoint: opened in their folder, without following links, read and written whole,
 * and every error told with the path and its cause. Internal to zero/checkpoint/.
 */
#pragma once

#include <dirent.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/base/log.h"

/** An open file; its names are borrowed, for messages. */
typedef struct zr_file {
    int fd; /* -1: none */
    const char *folder;
    const char *name;
} zr_file_t;

/** Log "cannot <what> <folder>/<name>: <errno>" and give back ZR_ERR_IO, or ZR_ERR_MEMORY
 * where it is of that; `name` may be NULL. */
ZR_NODISCARD zr_status_t zr_file_fail(const char *what, const char *folder, const char *name,
                                      int error, const zr_log_t *log);

/** Open a folder, which may be a link to one. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t zr_folder_open(const char *path, const zr_log_t *log, int *fd_p);

/** Open a folder within one for listing; a link is refused. Close it with closedir. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t zr_folder_stream(int folder_fd, const char *name, const char *folder,
                                          const zr_log_t *log, DIR **stream_p);

/**
 * Open a file of a folder for reading. What is no regular file is refused, links as well.
 *
 * @param folder_fd  the folder; `folder` and `name` are borrowed until it is closed
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_FORMAT for what is no regular file
 */
ZR_NODISCARD zr_status_t zr_file_open(int folder_fd, const char *folder, const char *name,
                                      const zr_log_t *log, zr_file_t *file_p, uint64_t *n_bytes_p);

/** Make a file for writing; one that was there is emptied. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t zr_file_create(int folder_fd, const char *folder, const char *name,
                                        const zr_log_t *log, zr_file_t *file_p);

/** Read all of [offset, offset + n_bytes). ZR_ERR_IO; ZR_ERR_FORMAT when the file ends before. */
ZR_NODISCARD zr_status_t zr_file_read(const zr_file_t *file, uint64_t offset, void *bytes,
                                      size_t n_bytes, const zr_log_t *log);

/** Write all of it. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t zr_file_write(const zr_file_t *file, uint64_t offset, const void *bytes,
                                       size_t n_bytes, const zr_log_t *log);

/** Let it reach the drive, and close it, whatever comes of it. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t zr_file_sync_and_close(zr_file_t *file, const zr_log_t *log);

/** Close what was read, or is given up. A zr_file_t with fd -1 is fine. */
void zr_file_close(zr_file_t *file);
