/* Windows of a row: see source.h. */
#include "examples/data/source.h"

#include <stdlib.h>

/* Tokens up to which the whole data is checked before the run, not only what is read. Documents
 * are read to be packed anyway. */
#define CHECK_FIRST_TOKENS ((size_t)1 << 29)

/* Give all tokens to `visit`, a piece at a time, in order. */
typedef zr_status_t visit_fn(void *context, const uint32_t *tokens, size_t first, size_t n);

static zr_status_t read_row(const data_files_t *files, size_t vocab, visit_fn *visit,
                            void *context) {
    zr_status_t status = ZR_OK;
    data_cursor_t cursor = data_cursor_make(files);
    uint32_t *tokens = malloc(DATA_PIECE_TOKENS * sizeof(*tokens));
    if (tokens == NULL)
        return zr_fail(&files->log, ZR_ERR_MEMORY, "no memory to check the data");
    for (size_t first = 0; first < files->n_tokens && status == ZR_OK; first += DATA_PIECE_TOKENS) {
        size_t left = files->n_tokens - first;
        size_t n = left < DATA_PIECE_TOKENS ? left : DATA_PIECE_TOKENS;
        status = data_cursor_read(&cursor, first, n, vocab, tokens);
        if (status == ZR_OK && visit != NULL)
            status = visit(context, tokens, first, n);
    }
    data_cursor_close(&cursor);
    free(tokens);
    return status;
}

/* ---- documents ------------------------------------------------------------------------------- */

/* The last window, and behind it the piece of a document that is being read. */
typedef struct packing {
    data_source_t *source;
    size_t seq, capacity, n_used; /* tokens of the last window */
    size_t first, n_tokens;       /* of the piece, at most seq */
    uint32_t n_targets;           /* likewise */
} packing_t;

static zr_status_t begin_window(packing_t *packing, size_t first) {
    data_source_t *source = packing->source;
    if (source->n_windows + 1 >= packing->capacity) {
        packing->capacity = packing->capacity == 0 ? 64 : 2 * packing->capacity;
        size_t *starts = realloc(source->starts, packing->capacity * sizeof(*starts));
        source->starts = starts != NULL ? starts : source->starts;
        uint32_t *n_targets = realloc(source->n_targets, packing->capacity * sizeof(*n_targets));
        source->n_targets = n_targets != NULL ? n_targets : source->n_targets;
        if (starts == NULL || n_targets == NULL)
            return zr_fail(&source->files.log, ZR_ERR_MEMORY, "no memory for the windows of %s",
                           zr_count_text(source->files.n_tokens, "token").text);
    }
    source->starts[source->n_windows] = first;
    source->n_targets[source->n_windows++] = 0;
    packing->n_used = 0;
    return ZR_OK;
}

/* The piece has ended: it goes to the last window, or to a new one. */
static zr_status_t pack_piece(packing_t *packing, size_t next) {
    data_source_t *source = packing->source;
    if (source->n_windows == 0 || packing->n_used + packing->n_tokens > packing->seq)
        ZR_TRY(begin_window(packing, packing->first));
    packing->n_used += packing->n_tokens;
    source->n_targets[source->n_windows - 1] += packing->n_targets;
    packing->first = next;
    packing->n_tokens = packing->n_targets = 0;
    return ZR_OK;
}

static zr_status_t pack_tokens(void *context, const uint32_t *tokens, size_t first, size_t n) {
    packing_t *packing = context;
    for (size_t i = 0; i < n; i++) {
        bool begins = (tokens[i] & DATA_BEGINS) != 0;
        packing->n_targets += !begins && (tokens[i] & DATA_HAS_NO_LOSS) == 0;
        if ((begins && packing->n_tokens > 0) || packing->n_tokens == packing->seq)
            ZR_TRY(pack_piece(packing, first + i));
        packing->n_tokens++;
    }
    return ZR_OK;
}

static zr_status_t pack(data_source_t *source, size_t seq, size_t vocab) {
    const data_files_t *files = &source->files;
    packing_t packing = {.source = source, .seq = seq};
    uint64_t n_targets = 0;
    ZR_TRY(read_row(files, vocab, pack_tokens, &packing));
    ZR_TRY(pack_piece(&packing, files->n_tokens));
    source->starts[source->n_windows] = files->n_tokens;
    for (size_t i = 0; i < source->n_windows; i++)
        n_targets += source->n_targets[i];
    if (n_targets == 0)
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s%s: no token has a loss: all are first tokens of documents or "
                       "marked as ignored",
                       files->files[0].path, files->n_files > 1 ? ", ..." : "");
    return ZR_OK;
}

/* ---- all kinds ------------------------------------------------------------------------------- */

static zr_status_t cut(data_source_t *source, size_t seq) {
    const data_files_t *files = &source->files;
    if (files->n_tokens < 2)
        return zr_fail(&files->log, ZR_ERR_ARGUMENT,
                       "the data has 1 token, but the shortest sequence and its last target need "
                       "2; give more data");
    if (files->n_tokens <= seq)
        return zr_fail(&files->log, ZR_ERR_ARGUMENT,
                       "the data has %s, but a sequence of %zu and its last target need "
                       "%zu; give more data or --seq %zu or less",
                       zr_count_text(files->n_tokens, "token").text, seq, seq + 1,
                       files->n_tokens - 1);
    source->n_windows = (files->n_tokens - 1) / seq;
    return ZR_OK;
}

zr_status_t data_source_cut(data_source_t *source, size_t seq, size_t vocab) {
    const data_files_t *files = &source->files;
    bool is_checked = vocab >= data_files_largest_vocab(files) || /* nothing can be wrong */
                      files->n_tokens > CHECK_FIRST_TOKENS;
    if (files->kind == DATA_DOCUMENTS) {
        ZR_TRY(pack(source, seq, vocab));
    } else {
        ZR_TRY(cut(source, seq));
        if (!is_checked) /* now, rather than when a window comes */
            ZR_TRY(read_row(files, vocab, NULL, NULL));
    }
    while (source->half_bits < 32 && source->n_windows > (size_t)1 << (2 * source->half_bits))
        source->half_bits++;
    return ZR_OK;
}

void data_source_free(data_source_t *source) {
    data_files_free(&source->files);
    free(source->starts);
    free(source->n_targets);
    source->starts = NULL;
    source->n_targets = NULL;
}

size_t data_source_window(const data_source_t *source, size_t window, size_t seq, size_t *first_p) {
    *first_p = source->starts != NULL ? source->starts[window] : window * seq;
    return source->starts != NULL ? source->starts[window + 1] - *first_p : seq;
}
