/*
 * Files that appear whole or not at all: they are written under another name in the same folder,
 * brought to the drive, and renamed. A folder of several files is made likewise.
 *
 * The other name begins with a dot and ends with .partial and the process's number. A process that
 * is killed leaves it; nothing takes it for a model.
 */
#pragma once

#include "zero/zero.h"

typedef struct out_file out_file_t;

/**
 * Begin a file, and reserve its room, where the file system can.
 *
 * @param path        copied; nothing may be there
 * @param size_bytes  that it will have
 * @return ZR_OK; ZR_ERR_ARGUMENT when something is there; ZR_ERR_IO: logged with path, and cause;
 *         ZR_ERR_MEMORY
 *
 * Threads: one.
 */
ZR_NODISCARD zr_status_t out_file_create(const char *path, uint64_t size_bytes, const zr_log_t *log,
                                         out_file_t **file_p);
/** Write on, behind what was written so. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t out_file_write(out_file_t *file, const void *data, size_t n_bytes);
/** Write at a place of its own, at once; out_file_write goes on where it was. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t out_file_write_at(out_file_t *file, const void *data, size_t n_bytes,
                                           uint64_t offset_bytes);
/** Leave out what is written elsewhere: out_file_write goes on behind it. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t out_file_skip(out_file_t *file, uint64_t n_bytes);
/** All of it is on the drive and has its name. ZR_ERR_IO, also when it has another size than it was
 * to have. */
ZR_NODISCARD zr_status_t out_file_publish(out_file_t *file);
/** What was not published is removed. NULL and *file == NULL are fine. */
void out_file_destroy(out_file_t **file);

/** A whole file. As the calls above. */
ZR_NODISCARD zr_status_t out_file_bytes(const char *path, const void *bytes, size_t n_bytes,
                                        const zr_log_t *log);

/** A folder in the making. */
typedef struct out_folder out_folder_t;

/** Begin one; at its path there may be an empty folder. Errors as of out_file_create. */
ZR_NODISCARD zr_status_t out_folder_create(const char *path, const zr_log_t *log,
                                           out_folder_t **folder_p);
/** Where its files are to be made until it is published; lives as long as it. */
const char *out_folder_path(const out_folder_t *folder);
/** It has its name; its files are published. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t out_folder_publish(out_folder_t *folder);
/** What was not published is removed, with its files. NULL and *folder == NULL are fine. */
void out_folder_destroy(out_folder_t **folder);
