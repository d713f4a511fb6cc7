/*
 * The files behind the training data, as one row of tokens: found, checked and read.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "zero/zero.h"

typedef enum data_kind {
    DATA_TEXT = 0,  /* a token is a byte */
    DATA_TOKENS = 1 /* llm.c's: a token is a uint16 behind a header */
} data_kind_t;

typedef struct data_file {
    char *path; /* owned */
    dev_t device;
    ino_t inode;
    size_t size_bytes;
    data_kind_t kind;
    size_t n_tokens;
    size_t first_token; /* place of its first token in the row */
} data_file_t;

typedef struct data_files {
    zr_log_t log;
    data_file_t *files; /* in the order of the row; owned */
    size_t n_files;
    size_t capacity;
    size_t n_duplicates; /* links to files that are in the list already */
    size_t n_tokens;     /* of all files */
    data_kind_t kind;    /* of all files that are not empty */
} data_files_t;

/** Add a file, or all files of a folder and the folders in it, by name. */
ZR_NODISCARD zr_status_t data_files_add(data_files_t *files, const char *path);
/** Read the headers, check sizes and kinds, and lay all files (at least one) into one row. */
ZR_NODISCARD zr_status_t data_files_check(data_files_t *files);
/** Whether a path leads to one of the files. */
bool data_files_include(const data_files_t *files, const char *path);
void data_files_free(data_files_t *files);
/** A vocabulary that no token of this kind can leave. */
size_t data_files_largest_vocab(const data_files_t *files);

/** A place to read from: keeps the last file open, because the next window is often in it. */
typedef struct data_cursor {
    const data_files_t *files;
    size_t file; /* which one is open; valid when descriptor is not -1 */
    int descriptor;
} data_cursor_t;

data_cursor_t data_cursor_make(const data_files_t *files);
void data_cursor_close(data_cursor_t *cursor);

/**
 * Read tokens [first, first + n) of the row and check that they are in the vocabulary.
 *
 * @param bytes   [2 * n] scratch
 * @param tokens  [n]
 */
ZR_NODISCARD zr_status_t data_cursor_read(data_cursor_t *cursor, size_t first, size_t n,
                                          size_t vocab, unsigned char *bytes, int32_t *tokens);
