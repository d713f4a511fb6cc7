/*
 * Files of training data: text, tokens, documents. Of a file that is taken, an epoch is read, and
 * no token is outside of the vocabulary, no target lies in another document, and nothing is counted
 * wrong.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "examples/data/data.h"
#include "tests/fuzz/fuzz.h"

enum { SEQ = 12, VOCAB = 3000, HEADER_BYTES = 1024, MOST_WINDOWS = 64 };

static size_t check_sequence(const int32_t *tokens, const int32_t *targets, const int32_t *starts) {
    size_t n_targets = 0;
    for (size_t t = 0; t < SEQ; t++) {
        FUZZ_REQUIRE(tokens[t] >= 0 && tokens[t] < VOCAB);
        bool is_ignored = starts != NULL && targets[t] == ZR_NN_TARGET_IGNORED;
        FUZZ_REQUIRE(is_ignored || (targets[t] >= 0 && targets[t] < VOCAB));
        FUZZ_REQUIRE(starts == NULL || starts[t] == (int32_t)t ||
                     (t > 0 && starts[t] == starts[t - 1]));
        if (!is_ignored && t + 1 < SEQ) {
            FUZZ_REQUIRE(targets[t] == tokens[t + 1]);
            FUZZ_REQUIRE(starts == NULL || starts[t + 1] == starts[t]);
        }
        n_targets += !is_ignored;
    }
    return n_targets;
}

static void read_epoch(const data_t *data) {
    data_reader_t *reader = NULL;
    size_t n_windows = data_n_windows(data), n_targets = 0;
    data_part_t part = {
        .n_ranks = 1, .micro_batch = 1, .grad_accum = 1, .n_micro_batches = n_windows};
    if (n_windows > MOST_WINDOWS || data_reader_create(data, &part, &reader) != ZR_OK)
        return;
    for (size_t i = 0; i < n_windows; i++) {
        const int32_t *tokens, *targets, *starts;
        double n_said;
        size_t length, n;
        FUZZ_REQUIRE(data_reader_next(reader, &length, &tokens, &targets) == ZR_OK);
        data_reader_documents(reader, &starts, &n_said);
        FUZZ_REQUIRE(length == SEQ && (starts != NULL) == data_has_documents(data));
        n = check_sequence(tokens, targets, starts);
        FUZZ_REQUIRE(starts == NULL || (double)n == n_said);
        n_targets += n;
    }
    FUZZ_REQUIRE(!data_has_documents(data) || n_targets == data_n_targets(data));
    data_reader_destroy(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    int n_errors, file = memfd_create("fuzz", 0);
    char path[64];
    data_t *data = NULL;
    FUZZ_REQUIRE(file >= 0 && write(file, bytes, n_bytes) == (ssize_t)n_bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const char *paths[] = {path};
    data_options_t options = {
        .paths = paths, .n_paths = 1, .seq = SEQ, .vocab = VOCAB, .log = fuzz_log(&n_errors)};
    zr_status_t status = data_open(&options, &data);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK)
        read_epoch(data);
    data_close(&data);
    close(file);
    return 0;
}

/* The number of tokens that the size makes. */
static void seal(uint8_t *bytes, size_t n_bytes) {
    uint32_t header[4];
    memcpy(header, bytes, sizeof(header));
    header[2] = (uint32_t)((n_bytes - HEADER_BYTES) / (header[0] == 20240520 ? 2 : 4));
    header[3] = 0;
    memcpy(bytes, header, sizeof(header));
}

/* A number of the header, or the marks and the token of an element, become others. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    static const uint32_t numbers[] = {0,  1,  7,    2,    20240520, 20240801,   20261123,  11,
                                       12, 13, 2999, 3000, 1u << 30, 0xffffffff, 0x7fffffff};
    uint64_t state = seed, any = fuzz_random(&state);
    if (n_bytes < HEADER_BYTES + 8 || any % 16 == 0)
        return LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
    for (uint64_t n = any >> 8 & 7; n-- > 0; any = fuzz_random(&state)) {
        size_t n_elements = (n_bytes - HEADER_BYTES) / 4;
        bool is_header = (any >> 12) % 8 == 0;
        size_t at = is_header ? 4 * (any >> 16 & 3) : HEADER_BYTES + 4 * ((any >> 16) % n_elements);
        uint32_t element;
        memcpy(&element, bytes + at, sizeof(element));
        if (is_header || (any >> 40) % 8 == 0)
            element = numbers[(any >> 44) % (sizeof(numbers) / sizeof(numbers[0]))];
        else
            element ^= (uint32_t)1 << (30 + (any >> 40) % 2);
        memcpy(bytes + at, &element, sizeof(element));
    }
    if ((any >> 36) % 8 == 0)
        n_bytes -= (any >> 48) % 9;
    if ((any >> 52) % 8 != 0)
        seal(bytes, n_bytes);
    return n_bytes;
}
