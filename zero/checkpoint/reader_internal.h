/*
 * What a checkpoint is in memory, and what reading it and verifying it share. Internal to
 * zero/checkpoint/.
 */
#pragma once

#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/folder_internal.h"

struct zr_checkpoint {
    zr_folder_found_t found;
    size_t *by_name; /* [n_tensors] */
    size_t *by_row;  /* [n_extents] */
    uint64_t data_bytes;
};

/** Open one at a path, or the newest of a folder that has fewer steps than `below`; otherwise as
 * zr_checkpoint_open_signed. */
ZR_NODISCARD zr_status_t zr_checkpoint_open_below(const char *path, size_t below,
                                                  const zr_secret_t *secret, const zr_log_t *log,
                                                  zr_checkpoint_t **checkpoint_p);

/** zr_checkpoint_verify of one of so many parts, of about as much data each. */
ZR_NODISCARD zr_status_t zr_checkpoint_verify_part(const zr_checkpoint_t *checkpoint, size_t part,
                                                   size_t n_parts, const zr_log_t *log);

/** The two files of one that saved, open while they are used. */
typedef struct zr_reader_files {
    uint64_t used; /* when, by the reader's count; 0: nothing is here */
    size_t file;   /* in the manifest */
    zr_file_t data;
    zr_file_t sums;
} zr_reader_files_t;

/** The checksums of an extent, as they are compared with. */
typedef struct zr_reader_sums {
    uint64_t used;
    size_t extent;
    uint64_t *sums; /* [chunks of it] owned */
} zr_reader_sums_t;

typedef struct zr_reader_chunk {
    uint64_t used;
    size_t extent;
    size_t chunk; /* of the extent */
    void *bytes;  /* owned, of `capacity` */
    size_t capacity;
} zr_reader_chunk_t;

/* Four chunks of each of up to four arrays: a piece of an array may end in one group or extent and
 * go on in another, within chunks in both, and pieces of the other arrays come before it is read
 * on. */
#define ZR_READER_CHUNKS ((size_t)16)
#define ZR_READER_EXTENTS 4
#define ZR_READER_FILES 4

struct zr_checkpoint_reader {
    const zr_checkpoint_t *checkpoint;
    zr_log_t log;
    uint64_t count; /* of uses */
    zr_reader_chunk_t chunks[ZR_READER_CHUNKS];
    zr_reader_sums_t extents[ZR_READER_EXTENTS];
    zr_reader_files_t files[ZR_READER_FILES];
};

/** Open the files of an extent. Good until two more files have been opened. */
ZR_NODISCARD zr_status_t zr_reader_open_files(zr_checkpoint_reader_t *reader, size_t file,
                                              zr_reader_files_t **files_p);

/** The checksums of an extent, which are those that the manifest has one of. Good until two more
 * extents have been asked for. ZR_ERR_IO; ZR_ERR_FORMAT; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_reader_load_sums(zr_checkpoint_reader_t *reader, size_t extent,
                                             const uint64_t **sums_p);

/** Bytes of a chunk of an extent: all but the last have the file's chunk_bytes. */
size_t zr_reader_chunk_bytes(const zr_manifest_t *manifest, size_t extent, size_t chunk);

/** Where an extent's chunk begins in its data file. */
uint64_t zr_reader_chunk_offset(const zr_manifest_t *manifest, size_t extent, size_t chunk);
