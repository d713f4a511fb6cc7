/*
 * The data: what is read, in which order, and what is refused with which message.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "examples/data/data.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

static kept_log_t captured;
static char folder[] = "/tmp/zr-test-data-XXXXXX";

static const char *path_of(const char *name) {
    static char path[4][512];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof(path[next]), "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* A token file; wrong on purpose where the arguments disagree. */
static void write_tokens(const char *name, int32_t magic, int32_t version, int32_t n_said,
                         const uint16_t *tokens, size_t n) {
    static unsigned char bytes[1024 + 2 * 4096];
    int32_t header[256] = {magic, version, n_said};
    memcpy(bytes, header, sizeof(header));
    for (size_t i = 0; i < n; i++) {
        bytes[1024 + 2 * i] = (unsigned char)(tokens[i] & 255);
        bytes[1024 + 2 * i + 1] = (unsigned char)(tokens[i] >> 8);
    }
    write_file(name, bytes, 1024 + 2 * n);
}

static zr_status_t open_paths(const char *const *paths, size_t n_paths, size_t seq, size_t vocab,
                              uint64_t seed, data_t **data_p) {
    data_options_t options = {.paths = paths,
                              .n_paths = n_paths,
                              .seq = seq,
                              .vocab = vocab,
                              .seed = seed,
                              .log = kept_log(&captured, ZR_LOG_INFO)};
    return data_open(&options, data_p);
}

static data_t *open_one(const char *name, size_t seq, size_t vocab, uint64_t seed) {
    const char *path = path_of(name);
    data_t *data = NULL;
    zr_status_t status = open_paths(&path, 1, seq, vocab, seed, &data);
    if (status != ZR_OK)
        fail_msg("%s: %s", name, captured.text);
    return data;
}

static void assert_refused(const char *name, size_t seq, size_t vocab, zr_status_t expected,
                           const char *said) {
    const char *path = path_of(name);
    data_t *data = NULL;
    captured.text[0] = '\0';
    assert_int_equal(open_paths(&path, 1, seq, vocab, 1, &data), expected);
    assert_null(data);
    assert_has(captured.text, name);
    assert_has(captured.text, said);
}

/* Text whose bytes tell their own place: byte i is i modulo 251. */
static void write_counting(const char *name, size_t first, size_t n) {
    unsigned char bytes[4096];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)((first + i) % 251);
    write_file(name, bytes, n);
}

static int prepare(void **state) {
    uint16_t tokens[600];
    if (mkdtemp(folder) == NULL)
        return -1;
    for (size_t i = 0; i < 600; i++)
        tokens[i] = (uint16_t)(i * 80);
    write_counting("text", 0, 1000);
    write_counting("one", 0, 1);
    write_file("empty", "", 0);
    write_tokens("train.bin", 20240520, 1, 600, tokens, 600);
    write_tokens("no-suffix", 20240520, 1, 600, tokens, 600);
    write_tokens("short.bin", 20240520, 1, 601, tokens, 600);
    write_tokens("long.bin", 20240520, 1, 599, tokens, 600);
    write_tokens("version.bin", 20240520, 7, 600, tokens, 600);
    write_tokens("magic.bin", 20240801, 1, 600, tokens, 600);
    write_tokens("none.bin", 20240520, 1, 0, tokens, 0);
    write_tokens("negative.bin", 20240520, 1, -5, tokens, 600);
    int32_t magic = 20240520;
    write_file("stump.bin", &magic, sizeof(magic));
    mkdir(path_of("tree"), 0777);
    mkdir(path_of("tree/b"), 0777);
    mkdir(path_of("tree/b/deep"), 0777);
    write_counting("tree/a", 0, 100);
    write_file("tree/b/a-empty", "", 0);
    write_counting("tree/b/deep/x", 100, 200);
    write_counting("tree/b/z", 300, 33);
    write_counting("tree/c", 333, 67);
    write_file("tree/.hidden", "hidden", 6);
    mkdir(path_of("bare"), 0777);
    mkdir(path_of("mixed"), 0777);
    write_counting("mixed/text", 0, 10);
    write_tokens("mixed/tokens.bin", 20240520, 1, 10, tokens, 10);
    int failed = symlink("../text", path_of("bare/.link")) | symlink("a", path_of("tree/d-again")) |
                 symlink("..", path_of("tree/b/loop")) | mkfifo(path_of("fifo"), 0600);
    return failed;
}

static int clean(void **state) {
    char command[256];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

/* ---- what is read ----------------------------------------------------------------------- */

static void read_all(const data_t *data, const data_part_t *part, size_t seq, int32_t *tokens,
                     int32_t *targets) {
    data_reader_t *reader = NULL;
    size_t n = part->micro_batch * seq;
    assert_ok(data_reader_create(data, part, &reader));
    for (uint64_t i = 0; i < part->n_micro_batches; i++) {
        const int32_t *from = NULL, *to = NULL;
        size_t length = 0;
        assert_ok(data_reader_next(reader, &length, &from, &to));
        assert_int_equal(length, seq);
        memcpy(tokens + i * n, from, n * sizeof(*tokens));
        memcpy(targets + i * n, to, n * sizeof(*targets));
    }
    data_reader_destroy(&reader);
    assert_null(reader);
}

/* Every window once per epoch, with the right bytes, and another order in the next epoch. */
static void check_epochs(const char *name, size_t seq, size_t n_tokens) {
    data_t *data = open_one(name, seq, 256, 5);
    size_t n_windows = (n_tokens - 1) / seq, n_same = 0;
    int32_t *tokens = calloc(2 * n_windows * seq, sizeof(*tokens));
    int32_t *targets = calloc(2 * n_windows * seq, sizeof(*targets));
    unsigned char *count = calloc(n_windows, 1);
    assert_int_equal(data_n_tokens(data), n_tokens);
    assert_int_equal(data_n_windows(data), n_windows);
    data_part_t part = {
        .n_ranks = 1, .micro_batch = 1, .grad_accum = 1, .n_micro_batches = 2 * n_windows};
    read_all(data, &part, seq, tokens, targets);
    for (size_t i = 0; i < 2 * n_windows; i++) {
        size_t window = data_window(data, i);
        assert_in_range(window, 0, n_windows - 1);
        assert_int_equal(count[window], i / n_windows);
        count[window]++;
        n_same += i >= n_windows && window == data_window(data, i - n_windows);
        for (size_t j = 0; j < seq; j++) {
            assert_int_equal(tokens[i * seq + j], (window * seq + j) % 251);
            assert_int_equal(targets[i * seq + j], (window * seq + j + 1) % 251);
        }
    }
    if (n_windows > 8)
        assert_true(n_same < n_windows / 2);
    free(count);
    free(targets);
    free(tokens);
    data_close(&data);
}

TEST(every_window_once) {
    static const size_t seqs[] = {1, 2, 3, 7, 10, 64, 111, 333, 500, 998, 999};
    for (size_t i = 0; i < N_OF(seqs); i++)
        check_epochs("text", seqs[i], 1000);
}

TEST(folders_are_one_row) {
    check_epochs("tree", 9, 400);
    data_t *data = open_one("tree", 9, 256, 1);
    assert_int_equal(data_n_files(data), 5);
    assert_int_equal(data_n_duplicates(data), 1);
    assert_string_equal(data_kind(data), "text");
    data_close(&data);
}

TEST(token_files) {
    static const char *const names[] = {"train.bin", "no-suffix"};
    for (size_t k = 0; k < 2; k++) {
        data_t *data = open_one(names[k], 50, 50257, 1);
        assert_string_equal(data_kind(data), "tokens");
        assert_int_equal(data_n_tokens(data), 600);
        assert_int_equal(data_n_windows(data), 11);
        int32_t tokens[11 * 50], targets[11 * 50];
        data_part_t part = {.n_ranks = 1, .micro_batch = 11, .grad_accum = 1, .n_micro_batches = 1};
        read_all(data, &part, 50, tokens, targets);
        for (size_t i = 0; i < 11 * 50; i++) {
            size_t place = data_window(data, i / 50) * 50 + i % 50;
            assert_int_equal(tokens[i], place * 80);
            assert_int_equal(targets[i], (place + 1) * 80);
        }
        data_close(&data);
    }
}

/* Several paths are one row in the order they are given. */
TEST(several_paths) {
    const char *paths[] = {path_of("tree/c"), path_of("tree/a"), path_of("tree/c")};
    data_t *data = NULL;
    assert_ok(open_paths(paths, 3, 1, 256, 1, &data));
    assert_int_equal(data_n_tokens(data), 167);
    assert_int_equal(data_n_duplicates(data), 1);
    data_close(&data);
}

/* ---- the order -------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The first tokens of all sequences of each step, sorted: what the step sees. */
static void steps_of(const data_t *data, int n_ranks, size_t micro_batch, size_t grad_accum,
                     size_t n_steps, int32_t *firsts) {
    enum { SEQ = 3 };
    size_t batch = (size_t)n_ranks * micro_batch * grad_accum, n_filled[64] = {0};
    int32_t tokens[4096], targets[4096];
    for (int rank = 0; rank < n_ranks; rank++) {
        data_part_t part = {.rank = rank,
                            .n_ranks = n_ranks,
                            .micro_batch = micro_batch,
                            .grad_accum = grad_accum,
                            .n_micro_batches = n_steps * grad_accum};
        read_all(data, &part, SEQ, tokens, targets);
        for (size_t i = 0; i < n_steps * grad_accum * micro_batch; i++) {
            size_t step = i / (grad_accum * micro_batch);
            firsts[step * batch + n_filled[step]++] = tokens[i * SEQ];
        }
    }
    for (size_t step = 0; step < n_steps; step++) {
        assert_int_equal(n_filled[step], batch);
        qsort(firsts + step * batch, batch, sizeof(*firsts), by_value);
    }
}

TEST(order_is_independent_of_ranks) {
    static const struct {
        int n_ranks;
        size_t micro_batch, grad_accum;
    } splits[] = {{1, 24, 1}, {1, 1, 24}, {2, 4, 3}, {3, 8, 1}, {8, 1, 3}, {24, 1, 1}, {4, 3, 2}};
    enum { STEPS = 20, BATCH = 24 }; /* 480 sequences: more than an epoch of 333 */
    int32_t expected[STEPS * BATCH], firsts[STEPS * BATCH];
    data_t *data = open_one("text", 3, 256, 42);
    steps_of(data, 1, 24, 1, STEPS, expected);
    for (size_t i = 0; i < N_OF(splits); i++) {
        steps_of(data, splits[i].n_ranks, splits[i].micro_batch, splits[i].grad_accum, STEPS,
                 firsts);
        assert_memory_equal(firsts, expected, sizeof(expected));
    }
    data_close(&data);

    data = open_one("text", 3, 256, 43);
    steps_of(data, 1, 24, 1, STEPS, firsts);
    assert_memory_not_equal(firsts, expected, sizeof(expected));
    data_close(&data);
}

/* A run that goes on later, with other ranks, sees what it would have seen. */
TEST(order_goes_on) {
    int32_t whole[48], tokens[48], targets[48];
    data_t *data = open_one("text", 1, 256, 7);
    data_part_t part = {.n_ranks = 1, .micro_batch = 6, .grad_accum = 1, .n_micro_batches = 8};
    read_all(data, &part, 1, whole, targets);
    for (int rank = 0; rank < 3; rank++) {
        data_part_t rest = {.rank = rank,
                            .n_ranks = 3,
                            .micro_batch = 2,
                            .grad_accum = 1,
                            .first_index = 12,
                            .n_micro_batches = 6};
        read_all(data, &rest, 1, tokens, targets);
        for (size_t i = 0; i < 12; i++)
            assert_int_equal(tokens[i], whole[12 + i / 2 * 6 + (size_t)rank * 2 + i % 2]);
    }
    data_close(&data);
}

/* ---- the lengths ------------------------------------------------------------------------ */

static data_t *open_varying(size_t seq_min, size_t seq, uint64_t seed) {
    const char *path = path_of("text");
    data_options_t options = {.paths = &path,
                              .n_paths = 1,
                              .seq = seq,
                              .seq_min = seq_min,
                              .vocab = 256,
                              .seed = seed,
                              .log = kept_log(&captured, ZR_LOG_INFO)};
    data_t *data = NULL;
    assert_ok(data_open(&options, &data));
    return data;
}

/* Each length equally often, within four deviations; steps and micro-batches have their own. */
TEST(lengths_are_uniform) {
    enum { LEAST = 3, MOST = 12, STEPS = 4000, MICRO_BATCHES = 4 };
    size_t count[MOST + 1] = {0}, n_like_last_step = 0, n_like_first = 0;
    size_t each = STEPS * MICRO_BATCHES / (MOST - LEAST + 1);
    data_t *data = open_varying(LEAST, MOST, 9), *other = open_varying(LEAST, MOST, 10);
    size_t n_like_other_seed = 0;
    for (size_t step = 0; step < STEPS; step++)
        for (size_t i = 0; i < MICRO_BATCHES; i++) {
            size_t length = data_length(data, step, i);
            assert_in_range(length, LEAST, MOST);
            count[length]++;
            n_like_last_step += step > 0 && length == data_length(data, step - 1, i);
            n_like_first += i > 0 && length == data_length(data, step, 0);
            n_like_other_seed += length == data_length(other, step, i);
        }
    for (size_t length = LEAST; length <= MOST; length++)
        assert_in_range(count[length], each - 152, each + 152); /* 4 sqrt(16000 * 0.1 * 0.9) */
    assert_in_range(n_like_last_step, each - 152, each + 152);
    assert_in_range(n_like_other_seed, each - 152, each + 152);
    assert_in_range(n_like_first, 1200 - 132, 1200 + 132);
    data_close(&other);
    data_close(&data);

    data = open_varying(MOST, MOST, 9);
    for (size_t step = 0; step < 100; step++)
        assert_int_equal(data_length(data, step, 0), MOST);
    data_close(&data);
}

/* Every rank cuts its windows to the length of the step and micro-batch, and none other. */
TEST(sequences_are_cut) {
    enum { MICRO_BATCH = 2, ACCUM = 3, STEPS = 5, SEQ = 8 };
    data_t *data = open_varying(2, SEQ, 4);
    for (size_t n_ranks = 1; n_ranks <= 3; n_ranks++)
        for (size_t rank = 0; rank < n_ranks; rank++) {
            data_reader_t *reader = NULL;
            data_part_t part = {.rank = (int)rank,
                                .n_ranks = (int)n_ranks,
                                .micro_batch = MICRO_BATCH,
                                .grad_accum = ACCUM,
                                .first_index = 7,
                                .first_step = 11,
                                .n_micro_batches = STEPS * ACCUM};
            assert_ok(data_reader_create(data, &part, &reader));
            for (size_t k = 0; k < STEPS * ACCUM; k++) {
                const int32_t *tokens = NULL, *targets = NULL;
                size_t length = 0;
                assert_ok(data_reader_next(reader, &length, &tokens, &targets));
                assert_int_equal(length, data_length(data, 11 + k / ACCUM, k % ACCUM));
                for (size_t i = 0; i < MICRO_BATCH * length; i++) {
                    size_t index = 7 + (k * n_ranks + rank) * MICRO_BATCH + i / length;
                    size_t place = data_window(data, index) * SEQ + i % length;
                    assert_int_equal(tokens[i], place % 251);
                    assert_int_equal(targets[i], (place + 1) % 251);
                }
            }
            data_reader_destroy(&reader);
        }
    data_close(&data);
}

/* ---- comparing -------------------------------------------------------------------------- */

static uint64_t hash_of(const char *name) {
    data_t *data = open_one(name, 10, 256, 1);
    uint64_t hash = data_hash(data);
    data_close(&data);
    return hash;
}

static void change_byte(const char *name, off_t offset, char value) {
    FILE *file = fopen(path_of(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseeko(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, 1, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* Of a little data every token counts, and nothing else; of much, some all over it. */
TEST(hash_tells_data_apart) {
    enum { SMALL = 200000, LARGE = 40 << 20 };
    static char bytes[SMALL];
    for (size_t i = 0; i < SMALL; i++)
        bytes[i] = (char)(i * i % 127);
    write_file("compared", bytes, SMALL);
    assert_int_equal(mkdir(path_of("cut"), 0700), 0);
    write_file("cut/a", bytes, 70001);
    write_file("cut/b", bytes + 70001, SMALL - 70001);
    uint64_t hash = hash_of("compared");
    assert_int_equal(hash_of("cut"), hash);
    for (int i = 0; i < 20; i++) {
        off_t offset = (off_t)i * (SMALL - 1) / 19;
        change_byte("compared", offset, 127);
        assert_int_not_equal(hash_of("compared"), hash);
        change_byte("compared", offset, bytes[offset]);
    }
    assert_int_equal(hash_of("compared"), hash);
    write_file("large", "", 0);
    assert_int_equal(truncate(path_of("large"), LARGE), 0);
    hash = hash_of("large");
    assert_int_equal(hash_of("large"), hash);
    for (int i = 0; i < 2; i++) {
        change_byte("large", i * (off_t)(LARGE - 1), 1);
        assert_int_not_equal(hash_of("large"), hash);
        change_byte("large", i * (off_t)(LARGE - 1), 0);
    }
    for (int i = 0; i < 400; i++) /* among those at the blocks' places are none of the ends */
        change_byte("large", (off_t)(i + 1) * 100003, 1);
    assert_int_not_equal(hash_of("large"), hash);
    assert_int_equal(unlink(path_of("large")), 0);
}

/* ---- the reader ------------------------------------------------------------------------- */

TEST(reader_ends) {
    data_t *data = open_one("text", 10, 256, 1);
    data_part_t part = {.n_ranks = 1, .micro_batch = 2, .grad_accum = 1, .n_micro_batches = 3};
    data_reader_t *reader = NULL;
    const int32_t *tokens = NULL, *targets = NULL;
    size_t length = 0;
    assert_ok(data_reader_create(data, &part, &reader));
    for (size_t i = 0; i < 3; i++)
        assert_ok(data_reader_next(reader, &length, &tokens, &targets));
    assert_int_equal(data_reader_next(reader, &length, &tokens, &targets), ZR_ERR_STATE);
    assert_true(data_reader_wait_seconds(reader) >= 0);
    data_reader_destroy(&reader);
    part.n_micro_batches = 1000; /* more than it may read ahead; destroyed in the middle */
    assert_ok(data_reader_create(data, &part, &reader));
    assert_ok(data_reader_next(reader, &length, &tokens, &targets));
    data_reader_destroy(&reader);
    data_reader_destroy(&reader);
    part.micro_batch = SIZE_MAX / 40;
    assert_int_equal(data_reader_create(data, &part, &reader), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "overflows");
    data_close(&data);
}

/* What was read so far, and where the reader's thread waits: with its read of this number until
 * somebody waits for the thread's end. */
static atomic_size_t n_reads;
static size_t held_read;
static atomic_bool is_joined;

WRAP(ssize_t, pread, int file, void *bytes, size_t n, off_t offset) {
    n_reads++;
    while (n_reads == held_read && !is_joined)
        usleep(1000);
    return __real_pread(file, bytes, n, offset);
}

WRAP(int, pthread_join, pthread_t thread, void **result_p) {
    is_joined = true;
    return __real_pthread_join(thread, result_p);
}

/* A run that fails does not wait until a long micro-batch has been read that nobody asks for: when
 * the thread is waited for, it ends with the sequence that it is at. */
TEST(reader_ends_within_a_micro_batch) {
    const char *paths[] = {path_of("small.txt")};
    data_part_t part = {
        .n_ranks = 1, .micro_batch = (size_t)1 << 24, .grad_accum = 1, .n_micro_batches = 1};
    data_reader_t *reader = NULL;
    data_t *data = NULL;
    write_file("small.txt", "two of these", 12);
    assert_ok(open_paths(paths, 1, 1, 256, 1, &data));
    is_joined = false;
    held_read = n_reads + 1000;
    assert_ok(data_reader_create(data, &part, &reader));
    while (n_reads < held_read)
        usleep(1000);
    data_reader_destroy(&reader);
    assert_in_range(n_reads, held_read, held_read + 1);
    held_read = 0;
    data_close(&data);
}

/* ---- what is refused -------------------------------------------------------------------- */

TEST(refused_files) {
    assert_refused("absent", 8, 256, ZR_ERR_IO, "No such file");
    assert_refused("empty", 8, 256, ZR_ERR_FORMAT, "is empty");
    assert_refused("bare", 8, 256, ZR_ERR_FORMAT, "holds no files");
    assert_refused("fifo", 8, 256, ZR_ERR_FORMAT, "neither a regular file nor a folder");
    assert_refused("short.bin", 8, 50257, ZR_ERR_FORMAT,
                   "truncated: the header says 601 tokens, which makes 2226 bytes, but the file "
                   "has 2224");
    assert_refused("long.bin", 8, 50257, ZR_ERR_FORMAT, "too long: the header says 599 tokens");
    assert_refused("stump.bin", 8, 50257, ZR_ERR_FORMAT, "truncated");
    assert_refused("version.bin", 8, 50257, ZR_ERR_FORMAT, "version 7");
    assert_refused("magic.bin", 8, 50257, ZR_ERR_FORMAT, "version 7 (uint32 tokens)");
    assert_refused("none.bin", 8, 50257, ZR_ERR_FORMAT, "0 tokens");
    assert_refused("negative.bin", 8, 50257, ZR_ERR_FORMAT, "-5 tokens");
    assert_refused("mixed", 8, 50257, ZR_ERR_FORMAT, "mixed");
    assert_has(captured.text, "mixed/text is text|tokens.bin has tokens");
    if (geteuid() != 0) { /* root reads everything */
        chmod(path_of("one"), 0);
        assert_refused("one", 1, 256, ZR_ERR_IO, "Permission denied");
        chmod(path_of("one"), 0600);
    }
}

/* Chats, tables and archives are no texts, by name and by first bytes, also in a folder, unless
 * asked. */
TEST(nothing_becomes_text_unasked) {
    static const struct {
        const char *name, *bytes, *said;
    } cases[] = {
        {"a.jsonl", "{\"text\": 1}", "lines of JSON, by its name|make_documents.py"},
        {"B.JSON", "[{\"text\": 1}]", "has JSON, by its name|make_documents.py"},
        {"d.parquet", "PAR1....", "Parquet, by its first bytes"},
        {"e", "PAR1....", "Parquet, by its first bytes"},
        {"f.txt", "\x1f\x8b......", "compressed, by its first bytes|decompress it"},
        {"g.txt.zst", "not so", "compressed, by its name"},
        {"h", "\x28\xb5\x2f\xfd...", "compressed, by its first bytes"},
        {"i.txt", "version https://git-lfs.github.com/spec/v1\n", "git-lfs"},
        {"j.npy", "\x93NUMPY...", "an array, by its first bytes"},
        {"k.bin", "12345678", "named like a token file"},
        {"l", "\n [ {\"messages\": []}]", "has JSON, by its first bytes|make_documents.py"},
        {"m.txt", "{ \"text\": 1}\n{}", "has JSON, by its first bytes"}};
    mkdir(path_of("chats"), 0777);
    write_file("chats/text", "a text.", 7);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char inside[64];
        snprintf(inside, sizeof(inside), "chats/%s", cases[i].name);
        write_file(inside, cases[i].bytes, strlen(cases[i].bytes));
        assert_refused(inside, 2, 256, ZR_ERR_FORMAT, "train on its bytes");
        assert_has(captured.text, cases[i].said);
        assert_refused("chats", 2, 256, ZR_ERR_FORMAT, "train on its bytes");
        const char *path = path_of("chats");
        data_t *data = NULL;
        data_options_t options = {.paths = &path, .n_paths = 1, .seq = 2, .vocab = 256};
        options.is_text = true;
        assert_int_equal(data_open(&options, &data), ZR_OK);
        assert_string_equal(data_kind(data), "text");
        assert_int_equal(data_n_tokens(data), 7 + strlen(cases[i].bytes));
        data_close(&data);
        unlink(path_of(inside));
    }
    write_file("chats/brackets", "[Chapter 1] {a}", 15);
    data_t *prose = open_one("chats", 2, 256, 1);
    assert_int_equal(data_n_tokens(prose), 7 + 15);
    data_close(&prose);
    unlink(path_of("chats/brackets"));
    write_file("chats/empty.json", "", 0); /* has no byte to be taken for one */
    data_t *data = open_one("chats", 2, 256, 1);
    assert_int_equal(data_n_tokens(data), 7);
    data_close(&data);
    write_file("chats/table.csv", "a,b\n", 4); /* is a text, too, and said */
    captured.text[0] = '\0';
    data = open_one("chats", 2, 256, 1);
    assert_int_equal(data_n_tokens(data), 11);
    assert_has(captured.text,
               "table.csv: it has a table, by its name, and each of its bytes is a token");
    data_close(&data);
}

TEST(refused_tokens) {
    assert_refused("text", 8, 100, ZR_ERR_ARGUMENT,
                   "token 100 is 100, outside the vocabulary of "
                   "100 (0 to 99)");
    assert_refused("train.bin", 8, 40000, ZR_ERR_ARGUMENT, "token 500 is 40000, outside");
    assert_refused("tree", 8, 240, ZR_ERR_ARGUMENT, "tree/b/deep/x: token 140 is 240, outside");
}

TEST(refused_lengths) {
    const char *path = path_of("text");
    data_t *data = NULL;
    assert_int_equal(open_paths(&path, 1, 1000, 256, 1, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "1000 tokens, but a sequence of 1000 and its last target need 1001");
    assert_int_equal(open_paths(&path, 1, 0, 256, 1, &data), ZR_ERR_ARGUMENT);
    assert_int_equal(open_paths(&path, 1, SIZE_MAX, 256, 1, &data), ZR_ERR_ARGUMENT);
    assert_int_equal(open_paths(&path, 1, 8, 0, 1, &data), ZR_ERR_ARGUMENT);
    assert_int_equal(open_paths(&path, 0, 8, 256, 1, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--data");
    data_options_t longer_min = {.paths = &path,
                                 .n_paths = 1,
                                 .seq = 8,
                                 .seq_min = 9,
                                 .vocab = 256,
                                 .log = kept_log(&captured, ZR_LOG_INFO)};
    assert_int_equal(data_open(&longer_min, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "sequences of 9 tokens or more: allowed: 1 to 8");
    path = "";
    assert_int_equal(open_paths(&path, 1, 8, 256, 1, &data), ZR_ERR_ARGUMENT);
    write_counting("single", 0, 1);
    path = path_of("single");
    assert_int_equal(open_paths(&path, 1, 1, 256, 1, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "need 2; give more data");
    assert_null(data);
}

/* A file that changes under the run ends it; nobody waits for ever, and nothing is made up. */
TEST(truncated_meanwhile) {
    write_counting("shrinking", 0, 1000);
    data_t *data = open_one("shrinking", 100, 256, 1);
    data_part_t part = {.n_ranks = 1, .micro_batch = 1, .grad_accum = 1, .n_micro_batches = 9};
    data_reader_t *reader = NULL;
    const int32_t *tokens = NULL, *targets = NULL;
    zr_status_t status = ZR_OK;
    size_t length = 0;
    assert_int_equal(truncate(path_of("shrinking"), 10), 0);
    assert_ok(data_reader_create(data, &part, &reader));
    for (size_t i = 0; i < 9 && status == ZR_OK; i++)
        status = data_reader_next(reader, &length, &tokens, &targets);
    assert_int_equal(status, ZR_ERR_IO);
    assert_int_equal(data_reader_next(reader, &length, &tokens, &targets), ZR_ERR_IO);
    data_reader_destroy(&reader);
    data_close(&data);
    assert_has(captured.text, "truncated during the run");
}

const test_group_t test_group = {prepare, clean};
