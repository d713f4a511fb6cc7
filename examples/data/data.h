/*
 * Training data: tokens of text or token files, and the order in which they are read.
 *
 * All files are one row of tokens, in the order of their names. It is cut into windows of
 * seq + 1 tokens (the last token of one is the first of the next: inputs and targets are the
 * same tokens, shifted by one). Of documents, a window is as many whole ones as seq tokens hold,
 * and padding behind them (source.h). Each epoch visits every window once, in an order that is a
 * function of the seed and the epoch alone, or that of the row, so sequence i of the whole run is
 * the same for any number of ranks, micro-batches and sequences in them.
 *
 * Sequences may be cut to a length that varies from micro-batch to micro-batch: its sequences are
 * then the first tokens of their windows. The length is a function of the seed, the step and the
 * micro-batch's place in it alone, so it is the same on every rank.
 *
 * Paths may have weights: then each is a row of its own, and the order has of each as many
 * sequences as its weight says, in each 4096 of them. A row that has few begins its next epoch,
 * while others go on.
 *
 * Nothing is held in memory but what the next few micro-batches need, and 12 bytes for each window
 * of documents, so data may be larger than memory.
 */
#pragma once

#include <stdint.h>

#include "zero/zero.h"

typedef struct data data_t;

typedef struct data_options {
    const char *const *paths; /* files and folders; folders count with everything below them */
    size_t n_paths;
    const double *weights; /* [n_paths], greater than 0, of any sum; NULL: all are one row */
    size_t seq;            /* tokens per window: the longest sequence */
    size_t seq_min;        /* the shortest one, at most seq; 0: seq, all are equally long */
    size_t vocab;          /* tokens are below this */
    uint64_t seed;         /* of the order, and of the lengths */
    bool in_order;         /* windows come as they stand, in every epoch: validation data */
    bool is_text;          /* each byte of any file is a token, whatever the file looks like */
    zr_log_t log;
} data_options_t;

/**
 * Look at all files and check them.
 *
 * Text: a token is a byte; files of JSON, and archives are refused unless is_text. llm.c's token files (256 int32 of header: magic 20240520, version 1,
 * number of tokens; then uint16 tokens, little endian) are known by their magic, and those of its
 * Llama (magic 20240801, version 7, uint32 tokens), and documents (magic 20261123, version 1, the
 * number of tokens in two int32; then uint32: DATA_TOKEN_MASK). In folders, names that begin
 * with a dot are left out, and a file that links lead to again counts once.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT (no path, tokens outside the vocabulary, fewer tokens than a
 *         window, seq_min above seq, or below it with documents, weights); ZR_ERR_IO (a file that
 * cannot be read); ZR_ERR_FORMAT (empty, truncated, of another version, kinds mixed, documents
 * without any loss); ZR_ERR_MEMORY. The message names file and position.
 *
 * Threads: what is opened does not change and may be read by any number of readers.
 */
ZR_NODISCARD zr_status_t data_open(const data_options_t *options, data_t **data_p);
/** After all its readers. NULL is fine. */
void data_close(data_t **data);

size_t data_n_files(const data_t *data);
size_t data_n_tokens(const data_t *data);
/** Windows per epoch. */
size_t data_n_windows(const data_t *data);
/** Whether a path leads to one of the files: what is written there would overwrite the data. */
bool data_has_file(const data_t *data, const char *path);
/** Links to files already counted, left out. */
size_t data_n_duplicates(const data_t *data);
/** "text", "tokens" or "documents"; static. */
const char *data_kind(const data_t *data);
bool data_has_documents(const data_t *data);

/**
 * What tells data from other data: XXH3 of all tokens, or, of more than 33554432 of them, of 256
 * blocks of 16384, spread over the row at places that only its length decides. Other tokens outside
 * of those are then not seen. How the row is cut into files, and their names, are not in it. Each
 * path with a weight is hashed so.
 */
uint64_t data_hash(const data_t *data);
bool data_is_hashed_whole(const data_t *data);

/** Which window is sequence `index` of the run, counted from 0 over all ranks and steps. */
size_t data_window(const data_t *data, uint64_t index);
/** Targets of documents that have a loss, of all windows; 0: of another kind. */
uint64_t data_n_targets(const data_t *data);
/** The same of sequences of the run. */
uint64_t data_n_targets_of(const data_t *data, uint64_t first_index, uint64_t n_sequences);

/**
 * Tokens of each sequence of a micro-batch: uniform in [seq_min, seq].
 *
 * @param step         of the run, counted from 0
 * @param micro_batch  of the step, counted from 0
 */
size_t data_length(const data_t *data, uint64_t step, uint64_t micro_batch);
/** The same before any data is there: seed, seq_min and seq are read. */
size_t data_length_of(const data_options_t *options, uint64_t step, uint64_t micro_batch);

/** Which part of each global batch a rank reads. */
typedef struct data_part {
    int rank;
    int n_ranks;
    size_t micro_batch;       /* sequences per rank and micro-batch */
    size_t grad_accum;        /* micro-batches per step, at least 1 */
    uint64_t first_index;     /* sequences that the run had before: where it goes on */
    uint64_t first_step;      /* steps that the run had before: lengths go on from there */
    uint64_t n_micro_batches; /* how many will be read; reading ahead ends there */
    size_t n_together;        /* that stay as they are until all of so many were given; 0: 1 */
} data_part_t;

typedef struct data_reader data_reader_t;

/**
 * Start a thread that reads this rank's micro-batches ahead of the step, a few at most.
 *
 * @param data  borrowed until data_reader_destroy
 * @return ZR_OK; ZR_ERR_MEMORY
 *
 * Threads: a reader belongs to one thread; another one works for it inside.
 */
ZR_NODISCARD zr_status_t data_reader_create(const data_t *data, const data_part_t *part,
                                            data_reader_t **reader_p);
void data_reader_destroy(data_reader_t **reader);

/**
 * The next micro-batch; waits for it.
 *
 * @param length_p             tokens of each of its sequences: data_length
 * @param tokens_p, targets_p  [micro_batch * length]; valid until the next call, or, of the data
 *                             part's n_together micro-batches, until the one behind the last of
 * them
 * @return ZR_OK; ZR_ERR_STATE after the last; ZR_ERR_IO (removed or truncated) or ZR_ERR_ARGUMENT
 *         (tokens outside the vocabulary) when a file has changed since it was checked
 */
ZR_NODISCARD zr_status_t data_reader_next(data_reader_t *reader, size_t *length_p,
                                          const int32_t **tokens_p, const int32_t **targets_p);

/**
 * What documents have beside that, of the micro-batch that was given last.
 *
 * @param starts_p     [micro_batch * length] where in its sequence the document of each token
 * begins; NULL: the data has no documents
 * @param n_targets_p  zr_host_batch_t.n_targets; 0 without documents
 */
void data_reader_documents(const data_reader_t *reader, const int32_t **starts_p,
                           double *n_targets_p);

/** How long data_reader_next has waited so far. */
double data_reader_wait_seconds(const data_reader_t *reader);
