/*
 * Files that are one row of tokens, cut into windows: the sequences that are read of them.
 *
 * Text and tokens are cut every seq tokens. Documents are packed in the order of the row: a window
 * ends where the next document does not fit into it whole. One that is longer than seq begins a
 * window, and is cut every seq tokens; its rest is packed as if it were a document. So each window
 * is a piece of the row, and each token but the first of a document is the target of the one
 * before.
 */
#pragma once

#include "examples/data/files.h"

typedef struct data_source {
    data_files_t files;
    size_t n_windows;    /* > 0 */
    unsigned half_bits;  /* the order permutes [0, 2^(2 half_bits)), which holds all windows */
    uint64_t key;        /* of the order */
    size_t first_window; /* in the numbering of all sources */
    size_t n_slots,
        first_slot; /* its sequences of each ROUND of the run; 0: it is the only source */

    /* Of documents; else NULL. */
    size_t *starts;      /* [n_windows + 1] the first token of each */
    uint32_t *n_targets; /* [n_windows] that have a loss */
} data_source_t;

/** Cut it, and check its tokens unless there are very many. Its files are checked. */
ZR_NODISCARD zr_status_t data_source_cut(data_source_t *source, size_t seq, size_t vocab);
void data_source_free(data_source_t *source);
/** Tokens [*first_p, *first_p + returned) are those of a window, at most seq. */
size_t data_source_window(const data_source_t *source, size_t window, size_t seq, size_t *first_p);
/** Tokens that are read at a time. */
#define DATA_PIECE_TOKENS ((size_t)1 << 16)
