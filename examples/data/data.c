/*
 * The order, the lengths and the reader.
 *
 * An epoch's order is a keyed permutation of the windows, computed element by element: no
 * table, so it costs nothing for any number of windows, and any rank can ask for any place in
 * it. A Feistel network permutes the smallest even power of two that holds all windows;
 * numbers that fall outside are sent through again until they fall inside (cycle walking),
 * which at most four times the size keeps short. Source: Black and Rogaway 2002, "Ciphers with
 * arbitrary finite domains".
 */
#include "examples/data/data.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <xxhash.h>

#include "examples/data/files.h"

/* Micro-batches that are read ahead, the one in use included. */
#define N_SLOTS 4
#define N_ROUNDS 6
#define GOLDEN_RATIO 0x9e3779b97f4a7c15u /* of 2^64: SplitMix's step */
#define LENGTHS_KEY 0xd1b54a32d192ed03u  /* not the order's: the two are unrelated */
/* Tokens up to which the whole data is checked before the run, not only what is read. */
#define CHECK_FIRST_TOKENS ((size_t)1 << 29)
#define CHECK_TOKENS ((size_t)1 << 16)
/* Tokens up to which all of the data is hashed, and the blocks that stand for more. */
#define HASH_WHOLE_TOKENS ((size_t)1 << 25)
#define HASH_BLOCKS ((size_t)256)
#define HASH_BLOCK_TOKENS ((size_t)1 << 14)

struct data {
    data_files_t files;
    size_t seq;
    size_t seq_min; /* 1 to seq */
    size_t vocab;
    uint64_t seed;
    size_t n_windows;   /* > 0 */
    unsigned half_bits; /* the network permutes [0, 2^(2 half_bits)), which holds all windows */
};

/* ---- opening ---------------------------------------------------------------------------- */

/* Blocks of the row, and where each begins. */
typedef struct blocks {
    size_t n, n_tokens; /* the last one may have less */
    size_t (*begin)(const data_t *data, size_t block);
} blocks_t;

/* Read and check blocks; their hash, in order, goes on from *hash_p, which may be NULL. */
static zr_status_t read_blocks(const data_t *data, const blocks_t *blocks, uint64_t *hash_p) {
    zr_status_t status = ZR_OK;
    data_cursor_t cursor = data_cursor_make(&data->files);
    unsigned char *bytes = malloc(2 * blocks->n_tokens);
    int32_t *tokens = malloc(blocks->n_tokens * sizeof(*tokens));
    if (bytes == NULL || tokens == NULL)
        status = zr_fail(&data->files.log, ZR_ERR_MEMORY, "no memory to check the data");
    for (size_t i = 0; i < blocks->n && status == ZR_OK; i++) {
        size_t first = blocks->begin(data, i), left = data->files.n_tokens - first;
        size_t n = left < blocks->n_tokens ? left : blocks->n_tokens;
        status = data_cursor_read(&cursor, first, n, data->vocab, bytes, tokens);
        if (status == ZR_OK && hash_p != NULL)
            *hash_p = XXH3_64bits_withSeed(tokens, n * sizeof(*tokens), *hash_p);
    }
    data_cursor_close(&cursor);
    free(tokens);
    free(bytes);
    return status;
}

static size_t begin_of_all(const data_t *data, size_t block) {
    (void)data;
    return block * CHECK_TOKENS;
}

static blocks_t all_blocks(const data_t *data) {
    return (blocks_t){.n = (data->files.n_tokens - 1) / CHECK_TOKENS + 1,
                      .n_tokens = CHECK_TOKENS,
                      .begin = begin_of_all};
}

/* Find a token outside the vocabulary now, rather than when its window comes. */
static zr_status_t check_tokens(const data_t *data) {
    blocks_t all = all_blocks(data);
    if (data->vocab >= data_files_largest_vocab(&data->files) ||
        data->files.n_tokens > CHECK_FIRST_TOKENS)
        return ZR_OK;
    return read_blocks(data, &all, NULL);
}

static zr_status_t cut_windows(data_t *data) {
    if (data->files.n_tokens < 2)
        return zr_fail(&data->files.log, ZR_ERR_ARGUMENT,
                       "the data has 1 token, but the shortest sequence and its last target need "
                       "2; give more data");
    if (data->files.n_tokens <= data->seq)
        return zr_fail(&data->files.log, ZR_ERR_ARGUMENT,
                       "the data has %s, but a sequence of %zu and its last target need "
                       "%zu; give more data or --seq %zu or less",
                       zr_count_text(data->files.n_tokens, "token").text, data->seq, data->seq + 1,
                       data->files.n_tokens - 1);
    data->n_windows = (data->files.n_tokens - 1) / data->seq;
    while (data->half_bits < 32 && data->n_windows > (size_t)1 << (2 * data->half_bits))
        data->half_bits++;
    return ZR_OK;
}

zr_status_t data_open(const data_options_t *options, data_t **data_p) {
    const zr_log_t *log = &options->log;
    if (options->n_paths == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "no data: give files or folders with --data PATH...");
    if (options->seq == 0 || options->seq >= SIZE_MAX / 8 || options->vocab == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "sequences of %s from a vocabulary of %zu: allowed are 1 and more",
                       zr_count_text(options->seq, "token").text, options->vocab);
    if (options->seq_min > options->seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "sequences of %s or more: allowed are 1 to %zu, the longest",
                       zr_count_text(options->seq_min, "token").text, options->seq);
    data_t *data = calloc(1, sizeof(*data));
    if (data == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open the data");
    *data = (data_t){.files = {.log = *log},
                     .seq = options->seq,
                     .seq_min = options->seq_min == 0 ? options->seq : options->seq_min,
                     .vocab = options->vocab,
                     .seed = options->seed};
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < options->n_paths && status == ZR_OK; i++)
        status = data_files_add(&data->files, options->paths[i]);
    if (status == ZR_OK)
        status = data_files_check(&data->files);
    if (status == ZR_OK)
        status = cut_windows(data);
    if (status == ZR_OK)
        status = check_tokens(data);
    if (status != ZR_OK) {
        data_close(&data);
        return status;
    }
    *data_p = data;
    return ZR_OK;
}

void data_close(data_t **data) {
    if (data == NULL || *data == NULL)
        return;
    data_files_free(&(*data)->files);
    free(*data);
    *data = NULL;
}

size_t data_n_files(const data_t *data) {
    return data->files.n_files;
}

size_t data_n_tokens(const data_t *data) {
    return data->files.n_tokens;
}

size_t data_n_windows(const data_t *data) {
    return data->n_windows;
}

bool data_has_file(const data_t *data, const char *path) {
    return data_files_include(&data->files, path);
}

size_t data_n_duplicates(const data_t *data) {
    return data->files.n_duplicates;
}

const char *data_kind(const data_t *data) {
    return data->files.kind == DATA_TEXT ? "text" : "tokens";
}

/* ---- the order -------------------------------------------------------------------------- */

/* Every bit of the result depends on every bit of the value (Steele et al. 2014, SplitMix). */
static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

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

size_t data_window(const data_t *data, uint64_t index) {
    uint64_t epoch = index / data->n_windows;
    uint64_t key = mix(mix(data->seed + GOLDEN_RATIO) + epoch);
    uint64_t window = index % data->n_windows;
    do
        window = permute(window, data->half_bits, key);
    while (window >= data->n_windows);
    return (size_t)window;
}

/* ---- comparing -------------------------------------------------------------------------- */

/* The row in equal parts, with a block at a place of each that is the same in every process; the
 * first and the last are at the row's ends. */
static size_t begin_of_sample(const data_t *data, size_t block) {
    size_t part = data->files.n_tokens / HASH_BLOCKS;
    if (block == 0 || block == HASH_BLOCKS - 1)
        return block == 0 ? 0 : data->files.n_tokens - HASH_BLOCK_TOKENS;
    return block * part + (size_t)(mix(block * GOLDEN_RATIO) % (part - HASH_BLOCK_TOKENS + 1));
}

bool data_is_hashed_whole(const data_t *data) {
    return data->files.n_tokens <= HASH_WHOLE_TOKENS;
}

zr_status_t data_hash(const data_t *data, uint64_t *hash_p) {
    blocks_t blocks = {.n = HASH_BLOCKS, .n_tokens = HASH_BLOCK_TOKENS, .begin = begin_of_sample};
    uint64_t hash = data->files.n_tokens;
    if (data_is_hashed_whole(data))
        blocks = all_blocks(data);
    ZR_TRY(read_blocks(data, &blocks, &hash));
    *hash_p = hash;
    return ZR_OK;
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

/* ---- the reader ------------------------------------------------------------------------- */

typedef struct slot {
    size_t length;    /* of each sequence, at most seq */
    int32_t *tokens;  /* [micro_batch * length], inside the reader's memory */
    int32_t *targets; /* as tokens */
} slot_t;

struct data_reader {
    const data_t *data;
    data_part_t part;
    pthread_t thread;
    double wait_seconds;

    /* The thread's own. */
    data_cursor_t cursor;
    unsigned char *bytes; /* [2 * (seq + 1)] */
    int32_t *window;      /* [seq + 1] */

    pthread_mutex_t lock; /* guards what follows, but not what the slots point to */
    pthread_cond_t changed;
    slot_t slots[N_SLOTS]; /* micro-batch i is in slot i % N_SLOTS */
    uint64_t n_read;       /* n_given <= n_read <= n_returned + N_SLOTS */
    uint64_t n_given;
    uint64_t n_returned; /* given and no longer in use: all but the last */
    zr_status_t status;  /* why no more will be read */
    atomic_bool stop;    /* nobody asks any more; looked at without the lock within a micro-batch,
                            which may be a long one */

    int32_t memory[];
};

static zr_status_t read_sequence(data_reader_t *reader, uint64_t index, size_t length,
                                 int32_t *tokens, int32_t *targets) {
    const data_t *data = reader->data;
    ZR_TRY(data_cursor_read(&reader->cursor, data_window(data, index) * data->seq, length + 1,
                            data->vocab, reader->bytes, reader->window));
    memcpy(tokens, reader->window, length * sizeof(*tokens));
    memcpy(targets, reader->window + 1, length * sizeof(*targets));
    return ZR_OK;
}

/* Ranks take turns within each micro-batch, so a global batch is one piece of the order. */
static zr_status_t read_micro_batch(data_reader_t *reader, uint64_t micro_batch, slot_t *slot) {
    const data_part_t *part = &reader->part;
    uint64_t n_ranks = (uint64_t)part->n_ranks;
    uint64_t first =
        part->first_index + (micro_batch * n_ranks + (uint64_t)part->rank) * part->micro_batch;
    size_t length = data_length(reader->data, part->first_step + micro_batch / part->grad_accum,
                                micro_batch % part->grad_accum);
    for (size_t i = 0; i < part->micro_batch && !atomic_load(&reader->stop); i++)
        ZR_TRY(read_sequence(reader, first + i, length, slot->tokens + i * length,
                             slot->targets + i * length));
    slot->length = length;
    return ZR_OK;
}

static void *read_ahead(void *argument) {
    data_reader_t *reader = argument;
    zr_status_t status = ZR_OK;
    pthread_mutex_lock(&reader->lock);
    for (uint64_t i = 0; i < reader->part.n_micro_batches; i++) {
        while (!reader->stop && i >= reader->n_returned + N_SLOTS)
            pthread_cond_wait(&reader->changed, &reader->lock);
        if (reader->stop)
            break;
        pthread_mutex_unlock(&reader->lock);
        status = read_micro_batch(reader, i, &reader->slots[i % N_SLOTS]);
        pthread_mutex_lock(&reader->lock);
        reader->status = status;
        reader->n_read += status == ZR_OK;
        pthread_cond_broadcast(&reader->changed);
        if (status != ZR_OK)
            break;
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

zr_status_t data_reader_create(const data_t *data, const data_part_t *part,
                               data_reader_t **reader_p) {
    const zr_log_t *log = &data->files.log;
    size_t n = 0, size_bytes = 0;
    if (__builtin_mul_overflow(part->micro_batch, data->seq, &n) ||
        __builtin_mul_overflow(n, 2 * N_SLOTS * sizeof(int32_t), &size_bytes) ||
        __builtin_add_overflow(size_bytes, sizeof(data_reader_t), &size_bytes))
        return zr_fail(log, ZR_ERR_ARGUMENT, "micro-batches of %s of %s: the size overflows",
                       zr_count_text(part->micro_batch, "sequence").text,
                       zr_count_text(data->seq, "token").text);
    data_reader_t *reader = malloc(size_bytes);
    if (reader == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %d micro-batches of %s", N_SLOTS,
                       zr_count_text(n, "token").text);
    *reader =
        (data_reader_t){.data = data, .part = *part, .cursor = data_cursor_make(&data->files)};
    for (size_t i = 0; i < N_SLOTS; i++) {
        reader->slots[i].tokens = reader->memory + 2 * i * n;
        reader->slots[i].targets = reader->memory + (2 * i + 1) * n;
    }
    reader->bytes = malloc(2 * (data->seq + 1));
    reader->window = malloc((data->seq + 1) * sizeof(*reader->window));
    if (reader->bytes == NULL || reader->window == NULL)
        goto err_free;
    if (pthread_mutex_init(&reader->lock, NULL) != 0)
        goto err_free;
    if (pthread_cond_init(&reader->changed, NULL) != 0)
        goto err_destroy_lock;
    if (pthread_create(&reader->thread, NULL, read_ahead, reader) != 0)
        goto err_destroy_condition;
    *reader_p = reader;
    return ZR_OK;

err_destroy_condition:
    pthread_cond_destroy(&reader->changed);
err_destroy_lock:
    pthread_mutex_destroy(&reader->lock);
err_free:
    free(reader->window);
    free(reader->bytes);
    free(reader);
    return zr_fail(log, ZR_ERR_MEMORY, "no memory for a thread that reads data");
}

void data_reader_destroy(data_reader_t **reader) {
    if (reader == NULL || *reader == NULL)
        return;
    data_reader_t *r = *reader;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stop, true);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    data_cursor_close(&r->cursor);
    free(r->window);
    free(r->bytes);
    free(r);
    *reader = NULL;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

zr_status_t data_reader_next(data_reader_t *reader, size_t *length_p, const int32_t **tokens_p,
                             const int32_t **targets_p) {
    if (reader->n_given == reader->part.n_micro_batches)
        return zr_fail(&reader->data->files.log, ZR_ERR_STATE, "there are %s, and all were read",
                       zr_count_text(reader->part.n_micro_batches, "micro-batch").text);
    double start = now_seconds();
    pthread_mutex_lock(&reader->lock);
    reader->n_returned = reader->n_given;
    pthread_cond_broadcast(&reader->changed);
    while (reader->n_read == reader->n_given && reader->status == ZR_OK)
        pthread_cond_wait(&reader->changed, &reader->lock);
    bool given = reader->n_read > reader->n_given;
    zr_status_t status = given ? ZR_OK : reader->status;
    const slot_t *slot = &reader->slots[reader->n_given % N_SLOTS];
    reader->n_given += given;
    pthread_mutex_unlock(&reader->lock);
    reader->wait_seconds += now_seconds() - start;
    if (status != ZR_OK)
        return status;
    *length_p = slot->length;
    *tokens_p = slot->tokens;
    *targets_p = slot->targets;
    return ZR_OK;
}

double data_reader_wait_seconds(const data_reader_t *reader) {
    return reader->wait_seconds;
}
