/*
 * The files behind the training data, as one row of tokens: found, checked and read.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "zero/zero.h"

typedef enum data_kind {
    DATA_TEXT = 0,     /* a token is a byte */
    DATA_TOKENS = 1,   /* llm.c's: a token is a uint16 or a uint32 behind a header */
    DATA_DOCUMENTS = 2 /* ours: a uint32, whose upper bits are marks, behind a header */
} data_kind_t;

/* An element of DATA_DOCUMENTS: what the token is, whether a document begins with it, and whether
 * it has no loss as a target. */
#define DATA_TOKEN_MASK ((uint32_t)0x3fffffff)
#define DATA_BEGINS ((uint32_t)1 << 30)
#define DATA_HAS_NO_LOSS ((uint32_t)1 << 31)

typedef struct data_file {
    char *path; /* owned */
    dev_t device;
    ino_t inode;
    size_t size_bytes;
    data_kind_t kind;
    size_t width; /* bytes of a token */
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
    bool is_text;        /* whatever they look like */
    data_kind_t kind;    /* of all files that are not empty */
} data_files_t;

/** Add a file, or all files of a folder and the folders in it, by name. */
ZR_NODISCARD zr_status_t data_files_add(data_files_t *files, const char *path);
/** Read the headers, check sizes and kinds, and lay all files (at least one) into one row. */
ZR_NODISCARD zr_status_t data_files_check(data_files_t *files);
/** "text", "tokens", "documents"; static. */
const char *data_kind_name(data_kind_t kind);
/** Log that two files are of different kinds. */
zr_status_t data_files_refuse_mix(const data_files_t *files, const data_file_t *a,
                                  const data_file_t *b);
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
 * @param tokens  [n]; of DATA_DOCUMENTS with their marks: the first token of a file begins a
 *                document, whether it is marked or not
 */
ZR_NODISCARD zr_status_t data_cursor_read(data_cursor_t *cursor, size_t first, size_t n,
                                          size_t vocab, uint32_t *tokens);
