/*
 * What libFuzzer does, without it: every file of a corpus is tried, then changes of them, changes
 * of changes as well, all of which follow from the seed. It does not see which changes lead
 * somewhere new; a corpus that libFuzzer has made knows that already.
 *
 *   fuzz_manifest CORPUS N_CHANGES [SEED]
 */
#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define MOST_FILES 1024
#define MOST_BYTES ((size_t)64 << 10)

typedef struct input {
    char name[256];
    uint8_t *bytes;
    size_t n_bytes;
} input_t;

static input_t inputs[MOST_FILES];
static size_t n_inputs;
static bool has_made; /* is_made of one */
static uint64_t random_state;
static const char *trying; /* for the report of a crash */
static long change;

/* AddressSanitizer calls it before it reports. */
void __asan_on_error(void);
void __asan_on_error(void) {
    fprintf(stderr, "in %s, change %ld\n", trying, change);
}

static void insert(uint8_t *bytes, size_t *n_bytes, size_t at, const void *what, size_t n) {
    memmove(bytes + at + n, bytes + at, *n_bytes - at);
    memcpy(bytes + at, what, n);
    *n_bytes += n;
}

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n_bytes, size_t most_bytes) {
    static const char *const words[] = {
        "{",    "}",  "[",  "]",   ",", ":", "\"", "-1", "1e99", "\\u0000", "18446744073709551615",
        "\xff", "{}", "[[", "null"};
    uint64_t any = fuzz_random(&random_state);
    size_t at = n_bytes > 0 ? (any >> 16) % n_bytes : 0, n = 1 + (any >> 48) % 64;
    const char *word = words[(any >> 8) % (sizeof(words) / sizeof(words[0]))];
    switch (n_bytes == 0 ? 0 : any % 6) {
    case 0:
        if (n_bytes + strlen(word) <= most_bytes)
            insert(bytes, &n_bytes, at, word, strlen(word));
        return n_bytes;
    case 1:
        bytes[at] ^= (uint8_t)(1 << (any >> 56) % 8);
        return n_bytes;
    case 2:
        return at; /* cut off */
    case 3:
        n = n < n_bytes - at ? n : n_bytes - at;
        memmove(bytes + at, bytes + at + n, n_bytes - at - n);
        return n_bytes - n;
    case 4:
        n = n < n_bytes - at ? n : n_bytes - at;
        if (n_bytes + n <= most_bytes) {
            uint8_t copy[64];
            memcpy(copy, bytes + at, n);
            insert(bytes, &n_bytes, at, copy, n);
        }
        return n_bytes;
    default:
        bytes[at] = (uint8_t)(any >> 56);
        return n_bytes;
    }
}

/* By hand: libFuzzer's files have names without an ending. */
static bool is_made(const char *name) {
    return strstr(name, ".json") != NULL;
}

static void read_input(const char *folder, const char *name) {
    char path[512];
    input_t *input = &inputs[n_inputs];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    input->bytes = malloc(MOST_BYTES);
    if (file == NULL || input->bytes == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    input->n_bytes = fread(input->bytes, 1, MOST_BYTES, file);
    snprintf(input->name, sizeof(input->name), "%s", name);
    fclose(file);
    has_made |= is_made(name);
    n_inputs++;
}

static int compare(const void *a, const void *b) {
    return strcmp(((const input_t *)a)->name, ((const input_t *)b)->name);
}

static void read_corpus(const char *folder) {
    const struct dirent *entry;
    DIR *stream = opendir(folder);
    while (stream != NULL && n_inputs < MOST_FILES && (entry = readdir(stream)) != NULL)
        if (entry->d_name[0] != '.')
            read_input(folder, entry->d_name);
    if (stream != NULL)
        closedir(stream);
    if (n_inputs == 0) {
        fprintf(stderr, "%s has no files\n", folder);
        exit(1);
    }
    qsort(inputs, n_inputs, sizeof(inputs[0]), compare);
}

/* A buffer of exactly its size, so that reading beyond is seen. */
static void try(const uint8_t *bytes, size_t n_bytes) {
    uint8_t *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL)
        exit(1);
    memcpy(copy, bytes, n_bytes);
    LLVMFuzzerTestOneInput(copy, n_bytes);
    free(copy);
}

/* Every second one is of those that were made by hand: they are whole, and what libFuzzer keeps
 * mostly ends in an early refusal. */
static const input_t *choose(void) {
    const input_t *input;
    bool any = change % 2 == 0 || !has_made;
    do
        input = &inputs[fuzz_random(&random_state) % n_inputs];
    while (!any && !is_made(input->name));
    return input;
}

static void try_changes(long n_changes, unsigned seed) {
    static uint8_t bytes[MOST_BYTES];
    for (change = 1; change <= n_changes; change++) {
        random_state = ((uint64_t)seed << 32) + (uint64_t)change;
        const input_t *input = choose();
        size_t n_bytes = input->n_bytes, n = 1 + fuzz_random(&random_state) % 3;
        trying = input->name;
        memcpy(bytes, input->bytes, n_bytes);
        for (; n > 0; n--)
            n_bytes = LLVMFuzzerCustomMutator(bytes, n_bytes, sizeof(bytes),
                                              (unsigned)fuzz_random(&random_state));
        try(bytes, n_bytes);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s CORPUS N_CHANGES [SEED]\n", argv[0]);
        return 2;
    }
    read_corpus(argv[1]);
    for (size_t i = 0; i < n_inputs; i++) {
        trying = inputs[i].name;
        try(inputs[i].bytes, inputs[i].n_bytes);
    }
    try_changes(atol(argv[2]), argc > 3 ? (unsigned)atol(argv[3]) : 1);
    printf("%zu files and %s changes of them were tried\n", n_inputs, argv[2]);
    for (size_t i = 0; i < n_inputs; i++)
        free(inputs[i].bytes);
    return 0;
}
