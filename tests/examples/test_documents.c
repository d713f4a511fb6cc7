/*
 * Token files of 32 bits, documents and weights of several paths: what is read, packed, counted and
 * refused. Each token of a document file is its place in it.
 */
#include "examples/data/data.h"
#include "examples/data/files.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

enum { MOST = 20000 };

static kept_log_t captured;
static char folder[] = "/tmp/zr-test-documents-XXXXXX";

/* The same pointer for the same name. */
static const char *path_of(const char *name) {
    static char paths[16][64];
    size_t i = 0, length = strlen(folder) + 1;
    while (paths[i][0] != '\0' && strcmp(paths[i] + length, name) != 0)
        i++;
    assert_true(i < N_OF(paths));
    snprintf(paths[i], sizeof(paths[i]), "%s/%s", folder, name);
    return paths[i];
}

static void write_elements(const char *name, uint32_t magic, uint32_t version, uint64_t n_said,
                           const uint32_t *elements, size_t n) {
    uint32_t header[256] = {magic, version, (uint32_t)n_said, (uint32_t)(n_said >> 32)};
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof(header), 1, file), 1);
    assert_int_equal(fwrite(elements, sizeof(*elements), n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* ---- documents of a test --------------------------------------------------------------------- */

typedef struct documents {
    uint32_t elements[MOST];
    size_t begin[MOST], end[MOST]; /* of the document of each token */
    size_t n;
} documents_t;

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Lengths from 1 to `longest`, a few of them longer; runs of tokens without a loss. */
static void make_documents(documents_t *d, size_t n, size_t longest, uint64_t seed) {
    bool has_loss = true;
    d->n = n;
    for (size_t first = 0; first < n;) {
        size_t length = 1 + next_random(&seed) % longest;
        length *= next_random(&seed) % 16 == 0 ? 4 : 1;
        size_t end = first + length < n ? first + length : n;
        for (size_t i = first; i < end; i++) {
            has_loss ^= next_random(&seed) % 4 == 0;
            d->begin[i] = first;
            d->end[i] = end;
            d->elements[i] =
                (uint32_t)i | (i == first ? DATA_BEGINS : 0) | (has_loss ? 0 : DATA_HAS_NO_LOSS);
        }
        first = end;
    }
}

static bool is_target(const documents_t *d, size_t token) {
    return token < d->n && d->begin[token] != token && (d->elements[token] & DATA_HAS_NO_LOSS) == 0;
}

static void write_documents(const char *name, const documents_t *d) {
    write_elements(name, 20261123, 1, d->n, d->elements, d->n);
}

static zr_status_t open_paths(const char *const *paths, size_t n_paths, const double *weights,
                              size_t seq, size_t vocab, data_t **data_p) {
    data_options_t options = {.paths = paths,
                              .n_paths = n_paths,
                              .weights = weights,
                              .seq = seq,
                              .vocab = vocab,
                              .seed = 5,
                              .log = kept_log(&captured, ZR_LOG_INFO)};
    return data_open(&options, data_p);
}

static data_t *open_one(const char *name, size_t seq) {
    const char *path = path_of(name);
    data_t *data = NULL;
    if (open_paths(&path, 1, NULL, seq, 100000, &data) != ZR_OK)
        fail_msg("%s", captured.text);
    return data;
}

static int prepare(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int clean(void **state) {
    char command[256];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

const test_group_t test_group = {prepare, clean};

/* ---- llm.c's Llama --------------------------------------------------------------------------- */

TEST(wide_tokens) {
    static const uint32_t tokens[] = {1, 128000, 99999, 7, 65536, 12};
    int32_t expected[] = {1, 128000, 99999, 7, 65536, 12};
    const char *path = path_of("llama.bin");
    data_t *data = NULL;
    data_reader_t *reader = NULL;
    write_elements("llama.bin", 20240801, 7, 6, tokens, 6);
    assert_int_equal(open_paths(&path, 1, NULL, 5, 100000, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "token 1 is 128000, outside the vocabulary of 100000");
    assert_ok(open_paths(&path, 1, NULL, 5, 128256, &data));
    assert_string_equal(data_kind(data), "tokens");
    data_part_t part = {.n_ranks = 1, .micro_batch = 1, .grad_accum = 1, .n_micro_batches = 1};
    assert_ok(data_reader_create(data, &part, &reader));
    const int32_t *from, *to, *starts = expected;
    double n_targets = 1;
    size_t length;
    assert_ok(data_reader_next(reader, &length, &from, &to));
    assert_memory_equal(from, expected, 5 * sizeof(*from));
    assert_memory_equal(to, expected + 1, 5 * sizeof(*to));
    data_reader_documents(reader, &starts, &n_targets);
    assert_true(starts == NULL && n_targets == 0);
    data_reader_destroy(&reader);
    data_close(&data);
    static const uint32_t negative[] = {1, 0xffffffff, 3};
    write_elements("negative.bin", 20240801, 7, 3, negative, 3);
    path = path_of("negative.bin");
    assert_int_equal(open_paths(&path, 1, NULL, 2, INT32_MAX, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "token 1 is 4294967295, outside");
}

/* ---- packing --------------------------------------------------------------------------------- */

/* One sequence: whole documents, or a piece of a long one, and padding. Where it ends. */
static size_t check_sequence(const documents_t *d, size_t seq, const int32_t *tokens,
                             const int32_t *targets, const int32_t *starts, unsigned char *seen) {
    size_t first = (size_t)tokens[0], n = 0, begin = d->begin[first];
    assert_true(begin == first || (d->end[first] - begin > seq && (first - begin) % seq == 0));
    for (size_t p = 0; p < seq; p++) {
        size_t token = first + p;
        bool is_padding = p > 0 && tokens[p] != (int32_t)token;
        if (is_padding) {
            assert_int_equal(tokens[p], 0);
            assert_int_equal(targets[p], ZR_NN_TARGET_IGNORED);
            assert_int_equal(starts[p], n);
            continue;
        }
        n++;
        seen[token]++;
        assert_int_equal(targets[p],
                         is_target(d, token + 1) ? (int)token + 1 : ZR_NN_TARGET_IGNORED);
        assert_int_equal(starts[p], d->begin[token] >= first ? d->begin[token] - first : 0);
    }
    size_t end = first + n;
    if (end < d->n) { /* the next one would not have fitted, or is of the same document */
        size_t next = d->end[end] - end;
        assert_true(n + (next < seq ? next : seq) > seq);
    }
    return end;
}

/* All ranks read two epochs or so. */
static void check_packing(const documents_t *d, size_t seq, int n_ranks, size_t micro_batch,
                          size_t grad_accum) {
    data_t *data = open_one("documents", seq);
    size_t n_windows = data_n_windows(data), of_step = (size_t)n_ranks * micro_batch * grad_accum;
    size_t n_steps = 2 * n_windows / of_step + 1, n_all = n_steps * of_step;
    unsigned char *seen = calloc(d->n, 1);
    size_t *n_targets = calloc(n_steps, sizeof(*n_targets)), n_of_epoch = 0;
    assert_string_equal(data_kind(data), "documents");
    for (size_t i = 0; i < d->n; i++)
        n_of_epoch += is_target(d, i);
    assert_int_equal(data_n_targets(data), n_of_epoch);
    for (int pass = 0; pass < 2; pass++)
        for (int rank = 0; rank < n_ranks; rank++) {
            data_reader_t *reader = NULL;
            data_part_t part = {.rank = rank,
                                .n_ranks = n_ranks,
                                .micro_batch = micro_batch,
                                .grad_accum = grad_accum,
                                .n_micro_batches = n_steps * grad_accum};
            assert_ok(data_reader_create(data, &part, &reader));
            for (size_t i = 0; i < n_steps * grad_accum; i++) {
                const int32_t *tokens, *targets, *starts;
                size_t length, step = i / grad_accum;
                double of_micro_batch;
                assert_ok(data_reader_next(reader, &length, &tokens, &targets));
                data_reader_documents(reader, &starts, &of_micro_batch);
                assert_int_equal(length, seq);
                for (size_t b = 0; pass == 0 && b < micro_batch; b++)
                    check_sequence(d, seq, tokens + b * seq, targets + b * seq, starts + b * seq,
                                   seen);
                for (size_t k = 0; pass == 0 && k < micro_batch * seq; k++)
                    n_targets[step] += targets[k] != ZR_NN_TARGET_IGNORED;
                if (pass == 1) /* each rank knows what all have read */
                    assert_true(fabs(of_micro_batch * n_ranks * (double)grad_accum -
                                     (double)n_targets[step]) < 1e-6);
            }
            data_reader_destroy(&reader);
        }
    for (size_t i = 0; i < d->n; i++) /* each epoch has each window */
        assert_in_range(seen[i], n_all / n_windows, (n_all - 1) / n_windows + 1);
    free(seen);
    free(n_targets);
    data_close(&data);
}

TEST(packing) {
    static documents_t d;
    static const struct {
        size_t n, longest, seq;
    } cases[] = {{2, 3, 4},    {300, 9, 16},       {5000, 40, 32},
                 {2000, 1, 8}, {20000, 3000, 700}, {900, 30, 1}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        make_documents(&d, cases[i].n, cases[i].longest, 11 + i);
        if (i == 0)
            d.elements[1] = 1, d.begin[1] = 0, d.end[0] = d.end[1] = 2;
        write_documents("documents", &d);
        check_packing(&d, cases[i].seq, 1, 1, 1);
        check_packing(&d, cases[i].seq, 3, 2, 2);
    }
}

/* A file begins a document, marked or not; documents of several files are one row. */
TEST(several_files) {
    static documents_t d;
    const char *paths[] = {path_of("first"), path_of("second")};
    data_t *data = NULL;
    make_documents(&d, 50, 50, 3);
    d.elements[0] &= ~DATA_BEGINS;
    write_documents("first", &d);
    write_documents("second", &d);
    size_t n_targets = 0;
    for (size_t i = 0; i < d.n; i++)
        n_targets += is_target(&d, i);
    assert_ok(open_paths(paths, 2, NULL, 64, 1000, &data));
    assert_int_equal(data_n_targets(data), 2 * n_targets);
    data_close(&data);
}

/* ---- weights --------------------------------------------------------------------------------- */

TEST(weights) {
    static documents_t d;
    const char *paths[] = {path_of("large"), path_of("small"), path_of("tiny")};
    const double of_paths[] = {2.8, 1.0, 0.2};
    size_t n_each[3] = {0}, n_windows[3], first[4] = {0};
    data_t *data = NULL;
    make_documents(&d, 20000, 8, 1);
    write_documents("large", &d);
    make_documents(&d, 1000, 8, 2);
    write_documents("small", &d);
    make_documents(&d, 30, 8, 3);
    write_documents("tiny", &d);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(open_paths(&paths[i], 1, NULL, 8, 100000, &data));
        n_windows[i] = data_n_windows(data);
        first[i + 1] = first[i] + n_windows[i];
        data_close(&data);
    }
    assert_ok(open_paths(paths, 3, of_paths, 8, 100000, &data));
    assert_int_equal(data_n_windows(data), first[3]);
    size_t *seen = calloc(first[3], sizeof(*seen)), longest_run = 0, run = 0;
    for (uint64_t i = 0; i < 4096; i++) {
        size_t window = data_window(data, i), source = window < first[1]   ? 0
                                                       : window < first[2] ? 1
                                                                           : 2;
        n_each[source]++;
        run = source == 0 ? run + 1 : 0;
        longest_run = run > longest_run ? run : longest_run;
        seen[window]++;
    }
    for (size_t source = 0; source < 3; source++) /* each epoch of a source has each window */
        for (size_t i = first[source]; i < first[source + 1]; i++)
            assert_in_range(seen[i], n_each[source] / n_windows[source],
                            (n_each[source] - 1) / n_windows[source] + 1);
    assert_int_equal(n_each[0], 2867); /* 0.7 of them, rounded so that all add up */
    assert_int_equal(n_each[1], 1024);
    assert_int_equal(n_each[2], 205);
    assert_true(longest_run < 64); /* they are mixed */
    free(seen);
    data_close(&data);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuse(const char *const *paths, size_t n, const double *weights, zr_status_t expected,
                   const char *said) {
    data_t *data = NULL;
    assert_int_equal(open_paths(paths, n, weights, 8, 1000, &data), expected);
    assert_null(data);
    assert_has(captured.text, said);
}

TEST(refused) {
    static documents_t d;
    const char *path = path_of("wrong"), *both[] = {path_of("wrong"), path_of("tokens")};
    make_documents(&d, 40, 8, 9);
    write_elements("wrong", 20261123, 2, 40, d.elements, 40);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "version 2; version 1 (documents)");
    write_elements("wrong", 20261123, 1, 41, d.elements, 40);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "truncated: the header says 41 tokens");
    write_elements("wrong", 20261123, 1, 40 + ((uint64_t)1 << 32), d.elements, 40);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "truncated: the header says 4294967336 tokens");
    write_elements("wrong", 20261123, 1, UINT64_MAX, d.elements, 40);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "truncated: the header says 18446744073709551615");
    write_elements("wrong", 20261123, 1, 0, d.elements, 0);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "it is empty");
    d.elements[7] = 1000 | DATA_BEGINS;
    write_documents("wrong", &d);
    refuse(&path, 1, NULL, ZR_ERR_ARGUMENT, "token 7 is 1000, outside");
    for (size_t i = 0; i < 40; i++)
        d.elements[i] = (uint32_t)i | DATA_HAS_NO_LOSS;
    write_documents("wrong", &d);
    refuse(&path, 1, NULL, ZR_ERR_FORMAT, "no token has a loss");
    d.elements[3] = 3;
    write_documents("wrong", &d);
    write_elements("tokens", 20240801, 7, 40, d.elements, 40);
    refuse(both, 2, NULL, ZR_ERR_FORMAT, "cannot be mixed|tokens is tokens|wrong has documents");
    static const double zero[] = {0}, some[] = {1, 1}, none[] = {NAN};
    refuse(both, 2, some, ZR_ERR_FORMAT, "cannot be mixed");
    refuse(&path, 1, none, ZR_ERR_ARGUMENT, "--data-weights: nan");
    refuse(&path, 1, zero, ZR_ERR_ARGUMENT, "--data-weights: 0 for");
    both[1] = path;
    static const double little[] = {1e6, 1};
    refuse(both, 2, little, ZR_ERR_ARGUMENT, "less than 1/4096 of their sum");
    data_options_t cut = {.paths = &path,
                          .n_paths = 1,
                          .seq = 8,
                          .seq_min = 4,
                          .vocab = 1000,
                          .log = kept_log(&captured, ZR_LOG_INFO)};
    data_t *data = NULL;
    assert_int_equal(data_open(&cut, &data), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--seq-min 4: --data");
}
