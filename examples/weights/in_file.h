/*
 * Files that are read: of others, so that they may be anything.
 */
#pragma once

#include "zero/zero.h"

typedef struct in_file {
    char *path; /* owned */
    int fd;
    uint64_t size_bytes;
} in_file_t;

/** Open a regular file. ZR_ERR_ARGUMENT when it is none, or not there; ZR_ERR_IO; logged. */
ZR_NODISCARD zr_status_t in_file_open(const char *path, const zr_log_t *log, in_file_t *file_p);
/** One that was never opened (fd -1) is fine. */
void in_file_close(in_file_t *file);

/** Read exactly so many bytes. ZR_ERR_IO: logged with offset, length and cause. */
ZR_NODISCARD zr_status_t in_file_read(const in_file_t *file, void *data, size_t n_bytes,
                                      uint64_t offset_bytes, const zr_log_t *log);

/**
 * Read all of a file of text.
 *
 * @param most    bytes that are allowed
 * @param text_p  [*n_bytes_p] free it
 * @return as in_file_open; ZR_ERR_FORMAT when it is larger; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t in_file_text(const char *path, uint64_t most, const zr_log_t *log,
                                      char **text_p, size_t *n_bytes_p);

/** The folder that a file is in, "." where its path has none; free it. NULL when memory ends. */
char *in_file_folder(const char *path);

/** "folder/name", of a folder or of a file in it; free it. NULL when memory ends. */
char *in_file_beside(const char *path, bool is_folder, const char *name);
