/*
 * The order and the lengths.
 *
 * An epoch's order is a keyed permutation of the windows, computed element by element: no
 * table, so it costs nothing for any number of windows, and any rank can ask for any place in
 * it. A Feistel network permutes the smallest even power of two that holds all windows;
 * numbers that fall outside are sent through again until they fall inside (cycle walking),
 * which at most four times the size keeps short. Source: Black and Rogaway 2002, "Ciphers with
 * arbitrary finite domains".
 *
 * Of several sources with weights, each round of 4096 sequences has of each source as many as its
 * weight says; a permutation of the round says where. So which source a sequence is of, and how
 * many of it came before, follows from its index alone.
 */
#include "examples/data/data_internal.h"

#include <stdlib.h>

#include <xxhash.h>

#define N_ROUNDS 6
#define GOLDEN_RATIO 0x9e3779b97f4a7c15u /* of 2^64: SplitMix's step */
#define LENGTHS_KEY 0xd1b54a32d192ed03u  /* not the order's: the two are unrelated */
#define SLOTS_KEY 0x8cb92ba72f3d8dd7u    /* nor that of the sources */
/* Tokens up to which all of the data is hashed, and the blocks that stand for more. */
#define HASH_WHOLE_TOKENS ((size_t)1 << 25)
#define HASH_BLOCKS ((size_t)256)
#define HASH_BLOCK_TOKENS ((size_t)1 << 14)
/* Sequences in which each of several sources has its share, to one of them. */
#define SLOT_HALF_BITS 6
#define N_SLOTS_OF_ROUND ((size_t)1 << (2 * SLOT_HALF_BITS))

/* Every bit of the result depends on every bit of the value (Steele et al. 2014, SplitMix). */
static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* ---- opening ---------------------------------------------------------------------------- */

static zr_status_t check_options(const data_options_t *options) {
    const zr_log_t *log = &options->log;
    if (options->n_paths == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "no data: give files or folders with --data PATH...");
    if (options->seq == 0 || options->seq >= SIZE_MAX / 8 || options->vocab == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "sequences of %s from a vocabulary of %zu: allowed: 1 and more",
                       zr_count_text(options->seq, "token").text, options->vocab);
    if (options->seq_min > options->seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "sequences of %s or more: allowed: 1 to %zu, the longest",
                       zr_count_text(options->seq_min, "token").text, options->seq);
    return ZR_OK;
}

/* A source of some of the paths. */
static zr_status_t open_source(data_t *data, size_t index, const char *const *paths,
                               size_t n_paths) {
    data_source_t *source = &data->sources[index];
    source->files.log = data->log;
    source->files.is_text = data->is_text;
    source->key = mix(data->seed + GOLDEN_RATIO) + (uint64_t)index * SLOTS_KEY;
    for (size_t i = 0; i < n_paths; i++)
        ZR_TRY(data_files_add(&source->files, paths[i]));
    ZR_TRY(data_files_check(&source->files));
    if (source->files.kind != data->sources[0].files.kind)
        return data_files_refuse_mix(&source->files, &data->sources[0].files.files[0],
                                     &source->files.files[0]);
    if (source->files.kind == DATA_DOCUMENTS && data->seq_min < data->seq)
        return zr_fail(&data->log, ZR_ERR_ARGUMENT,
                       "--seq-min %zu: --data %s has documents, whose sequences cannot be "
                       "shortened; leave --seq-min out",
                       data->seq_min, source->files.files[0].path);
    ZR_TRY(data_source_cut(source, data->seq, data->vocab));
    source->first_window = index > 0 ? source[-1].first_window + source[-1].n_windows : 0;
    return ZR_OK;
}

/* The sequences of a round that each source has: its share, rounded so that they add up. */
static zr_status_t share_slots(data_t *data, const char *const *paths, const double *weights) {
    double sum = 0, so_far = 0;
    size_t n_slots = 0;
    for (size_t i = 0; i < data->n_sources; i++) {
        if (!(weights[i] > 0 && weights[i] <= 1e9))
            return zr_fail(&data->log, ZR_ERR_ARGUMENT,
                           "--data-weights: %g for %s; a weight must be greater than 0, and at "
                           "most 1e9",
                           weights[i], paths[i]);
        sum += weights[i];
    }
    for (size_t i = 0; i < data->n_sources; i++) {
        data_source_t *source = &data->sources[i];
        so_far += weights[i];
        source->first_slot = n_slots;
        n_slots = (size_t)(so_far / sum * (double)N_SLOTS_OF_ROUND + 0.5);
        source->n_slots = n_slots - source->first_slot;
        if (source->n_slots == 0)
            return zr_fail(&data->log, ZR_ERR_ARGUMENT,
                           "--data-weights: %g for %s is less than 1/%zu of their sum %g; give a "
                           "larger weight, or leave it out",
                           weights[i], paths[i], N_SLOTS_OF_ROUND, sum);
    }
    return ZR_OK;
}

static zr_status_t open_sources(data_t *data, const data_options_t *options) {
    if (options->weights == NULL)
        return open_source(data, 0, options->paths, options->n_paths);
    for (size_t i = 0; i < data->n_sources; i++)
        ZR_TRY(open_source(data, i, &options->paths[i], 1));
    return share_slots(data, options->paths, options->weights);
}

static zr_status_t hash_sources(data_t *data);

zr_status_t data_open(const data_options_t *options, data_t **data_p) {
    ZR_TRY(check_options(options));
    data_t *data = calloc(1, sizeof(*data));
    size_t n_sources = options->weights != NULL ? options->n_paths : 1;
    data_source_t *sources = calloc(n_sources, sizeof(*sources));
    if (data == NULL || sources == NULL) {
        free(data);
        free(sources);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory to open the data");
    }
    *data = (data_t){.log = options->log,
                     .sources = sources,
                     .n_sources = n_sources,
                     .seq = options->seq,
                     .seq_min = options->seq_min == 0 ? options->seq : options->seq_min,
                     .vocab = options->vocab,
                     .seed = options->seed,
                     .in_order = options->in_order,
                     .is_text = options->is_text};
    zr_status_t status = open_sources(data, options);
    ZR_THEN(status, hash_sources(data));
    if (status == ZR_OK)
        *data_p = data;
    else
        data_close(&data);
    return status;
}

void data_close(data_t **data) {
    if (data == NULL || *data == NULL)
        return;
    for (size_t i = 0; i < (*data)->n_sources; i++)
        data_source_free(&(*data)->sources[i]);
    free((*data)->sources);
    free(*data);
    *data = NULL;
}

#define SUM_OF_SOURCES(data, member)                                                               \
    size_t sum = 0;                                                                                \
    for (size_t i = 0; i < (data)->n_sources; i++)                                                 \
        sum += (data)->sources[i].member;                                                          \
    return sum

size_t data_n_files(const data_t *data) {
    SUM_OF_SOURCES(data, files.n_files);
}

size_t data_n_tokens(const data_t *data) {
    SUM_OF_SOURCES(data, files.n_tokens);
}

size_t data_n_windows(const data_t *data) {
    SUM_OF_SOURCES(data, n_windows);
}

size_t data_n_duplicates(const data_t *data) {
    SUM_OF_SOURCES(data, files.n_duplicates);
}

bool data_has_file(const data_t *data, const char *path) {
    for (size_t i = 0; i < data->n_sources; i++)
        if (data_files_include(&data->sources[i].files, path))
            return true;
    return false;
}

const char *data_kind(const data_t *data) {
    return data_kind_name(data->sources[0].files.kind);
}

bool data_has_documents(const data_t *data) {
    return data->sources[0].files.kind == DATA_DOCUMENTS;
}

/* ---- the order -------------------------------------------------------------------------- */

static uint64_t permute(uint64_t value, unsigned half_bits, uint64_t key) {
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 1; round <= N_ROUNDS; round++) {
        uint64_t next = left ^ (mix(key + round * GOLDEN_RATIO + mix(right)) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

static size_t permute_below(uint64_t value, size_t n, unsigned half_bits, uint64_t key) {
    do
        value = permute(value, half_bits, key);
    while (value >= n);
    return (size_t)value;
}

/* Each round has the same slots for each source, in an order of its own. */
static const data_source_t *choose_source(const data_t *data, uint64_t *index) {
    const data_source_t *source = data->sources;
    uint64_t round = *index / N_SLOTS_OF_ROUND;
    if (data->n_sources == 1)
        return source;
    size_t slot = (size_t)permute(*index % N_SLOTS_OF_ROUND, SLOT_HALF_BITS,
                                  mix(mix(data->seed + SLOTS_KEY) + round));
    while (slot >= source->first_slot + source->n_slots)
        source++;
    *index = round * source->n_slots + (slot - source->first_slot);
    return source;
}

data_place_t data_place(const data_t *data, uint64_t index) {
    const data_source_t *source = choose_source(data, &index);
    uint64_t key = mix(source->key + index / source->n_windows);
    if (data->in_order)
        return (data_place_t){source, index % source->n_windows};
    return (data_place_t){source, permute_below(index % source->n_windows, source->n_windows,
                                                source->half_bits, key)};
}

size_t data_window(const data_t *data, uint64_t index) {
    data_place_t place = data_place(data, index);
    return place.source->first_window + place.window;
}

uint64_t data_n_targets(const data_t *data) {
    uint64_t n_targets = 0;
    for (size_t i = 0; data_has_documents(data) && i < data->n_sources; i++)
        for (size_t window = 0; window < data->sources[i].n_windows; window++)
            n_targets += data->sources[i].n_targets[window];
    return n_targets;
}

uint64_t data_n_targets_of(const data_t *data, uint64_t first_index, uint64_t n_sequences) {
    uint64_t n_targets = 0;
    for (uint64_t i = 0; data_has_documents(data) && i < n_sequences; i++) {
        data_place_t place = data_place(data, first_index + i);
        n_targets += place.source->n_targets[place.window];
    }
    return n_targets;
}

/* ---- comparing -------------------------------------------------------------------------- */

/* Where a block of a source begins. Of a sample: the row in equal parts, with a block at a place of
 * each that is the same in every process; the first and the last are at the row's ends. */
static size_t begin_of_block(const data_source_t *source, size_t block, bool is_whole) {
    size_t part = source->files.n_tokens / HASH_BLOCKS;
    if (is_whole)
        return block * DATA_PIECE_TOKENS;
    if (block == 0 || block == HASH_BLOCKS - 1)
        return block == 0 ? 0 : source->files.n_tokens - HASH_BLOCK_TOKENS;
    return block * part + (size_t)(mix(block * GOLDEN_RATIO) % (part - HASH_BLOCK_TOKENS + 1));
}

static bool is_hashed_whole(const data_source_t *source) {
    return source->files.n_tokens <= HASH_WHOLE_TOKENS;
}

static zr_status_t hash_source(const data_t *data, const data_source_t *source, uint32_t *tokens,
                               uint64_t *hash) {
    bool is_whole = is_hashed_whole(source);
    size_t n_tokens = source->files.n_tokens;
    size_t n_blocks = is_whole ? (n_tokens - 1) / DATA_PIECE_TOKENS + 1 : HASH_BLOCKS;
    size_t most = is_whole ? DATA_PIECE_TOKENS : HASH_BLOCK_TOKENS;
    zr_status_t status = ZR_OK;
    data_cursor_t cursor = data_cursor_make(&source->files);
    *hash += n_tokens;
    for (size_t i = 0; i < n_blocks && status == ZR_OK; i++) {
        size_t first = begin_of_block(source, i, is_whole), left = n_tokens - first;
        size_t n = left < most ? left : most;
        status = data_cursor_read(&cursor, first, n, data->vocab, tokens);
        if (status == ZR_OK)
            *hash = XXH3_64bits_withSeed(tokens, n * sizeof(*tokens), *hash);
    }
    data_cursor_close(&cursor);
    return status;
}

bool data_is_hashed_whole(const data_t *data) {
    for (size_t i = 0; i < data->n_sources; i++)
        if (!is_hashed_whole(&data->sources[i]))
            return false;
    return true;
}

static zr_status_t hash_sources(data_t *data) {
    zr_status_t status = ZR_OK;
    uint32_t *tokens = malloc(DATA_PIECE_TOKENS * sizeof(*tokens));
    if (tokens == NULL)
        return zr_fail(&data->log, ZR_ERR_MEMORY, "no memory to compare the data");
    for (size_t i = 0; i < data->n_sources && status == ZR_OK; i++)
        status = hash_source(data, &data->sources[i], tokens, &data->hash);
    free(tokens);
    return status;
}

uint64_t data_hash(const data_t *data) {
    return data->hash;
}

/* ---- the lengths ------------------------------------------------------------------------ */

/* The remainder favours no length by more than their number in 2^64. */
size_t data_length_of(const data_options_t *options, uint64_t step, uint64_t micro_batch) {
    uint64_t key = mix(mix(options->seed + LENGTHS_KEY) + step);
    size_t shortest = options->seq_min == 0 ? options->seq : options->seq_min;
    uint64_t n_lengths = (uint64_t)(options->seq - shortest) + 1;
    return shortest + (size_t)(mix(key + (micro_batch + 1) * GOLDEN_RATIO) % n_lengths);
}

size_t data_length(const data_t *data, uint64_t step, uint64_t micro_batch) {
    data_options_t options = {.seq = data->seq, .seq_min = data->seq_min, .seed = data->seed};
    return data_length_of(&options, step, micro_batch);
}
