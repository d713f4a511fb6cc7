/* See inverted_store.h. */
#include "inverted_store.h"

#include <stdlib.h>

typedef struct inverted {
    zr_store_t base;
    unsigned char **extents; /* [n_extents] */
    zr_store_transfer_t *latest;
} inverted_t;

static zr_status_t inverted_open(zr_store_t *store) {
    inverted_t *inverted = (inverted_t *)store;
    inverted->extents = calloc(store->info.n_extents + 1, sizeof(*inverted->extents));
    for (size_t i = 0; i < store->info.n_extents && inverted->extents != NULL; i++) {
        inverted->extents[i] = malloc(store->extents[i].size_bytes + 1);
        if (inverted->extents[i] == NULL)
            return zr_fail(&store->options.log, ZR_ERR_MEMORY, "inverted: no memory");
        store->info.reserved_bytes += store->extents[i].size_bytes;
    }
    if (inverted->extents == NULL)
        return zr_fail(&store->options.log, ZR_ERR_MEMORY, "inverted: no memory");
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = 1;
    return ZR_OK;
}

static void inverted_close(zr_store_t *store) {
    inverted_t *inverted = (inverted_t *)store;
    for (size_t i = 0; i < store->info.n_extents && inverted->extents != NULL; i++)
        free(inverted->extents[i]);
    free(inverted->extents);
}

static void inverted_start(zr_store_t *store, zr_store_transfer_t *transfer) {
    inverted_t *inverted = (inverted_t *)store;
    transfer->next = inverted->latest;
    inverted->latest = transfer;
}

static void move_piece(inverted_t *inverted, const zr_store_piece_t *piece) {
    zr_store_transfer_t *transfer = piece->transfer;
    unsigned char *kept = inverted->extents[transfer->extent] + piece->offset_bytes;
    unsigned char *buffer = transfer->buffer + (piece->offset_bytes - transfer->offset_bytes);
    zr_store_piece_begins(&inverted->base, piece);
    for (size_t i = 0; i < piece->size_bytes; i++) {
        if (transfer->direction == ZR_STORE_PUT)
            kept[i] = (unsigned char)~buffer[i];
        else
            buffer[i] = (unsigned char)~kept[i];
    }
    const zr_store_outcome_t outcome = {.n_requests = 1, .moved_bytes = piece->size_bytes};
    zr_store_piece_ended(&inverted->base, piece, &outcome);
}

static void inverted_progress(zr_store_t *store, bool wait) {
    inverted_t *inverted = (inverted_t *)store;
    zr_store_transfer_t *transfer = inverted->latest;
    (void)wait;
    if (transfer == NULL)
        return;
    inverted->latest = transfer->next;
    transfer->next = NULL;
    size_t first = store->info.chunk_bytes;
    if (first > transfer->size_bytes)
        first = transfer->size_bytes;
    zr_store_piece_t piece = {.transfer = transfer,
                              .offset_bytes = transfer->offset_bytes,
                              .size_bytes = first,
                              .file = "memory, inverted"};
    size_t rest = transfer->size_bytes - first;
    move_piece(inverted, &piece);
    piece.offset_bytes += first;
    piece.size_bytes = rest;
    if (rest > 0)
        move_piece(inverted, &piece);
}

const zr_store_backend_t inverted_store = {
    .name = "inverted",
    .handle_bytes = sizeof(inverted_t),
    .open = inverted_open,
    .close = inverted_close,
    .start = inverted_start,
    .progress = inverted_progress,
};
