/* See pass_internal.h. */
#include "zero/comm/pass_internal.h"

#include "kernels/kernels.h"

size_t zr_pass_bytes(int n_ranks) {
    return 5 * (size_t)n_ranks * sizeof(void *);
}

void zr_pass_init(zr_pass_t *pass, void *arrays, int rank, int n_ranks) {
    pass->rank = rank;
    pass->n_ranks = n_ranks;
    pass->sends = arrays;
    pass->recvs = (void **)arrays + n_ranks;
    pass->n_taken = (atomic_size_t **)arrays + 2 * n_ranks;
    pass->sources = (const void **)arrays + 3 * n_ranks;
    pass->dsts = (void **)arrays + 4 * n_ranks;
    for (int i = 0; i < n_ranks; i++)
        pass->n_taken[i] = NULL;
}

/* Elements of a rank's part, from `first` on. */
typedef struct piece {
    int owner;
    size_t first, n_elems;
} piece_t;

static const char *elem_of(const zr_comm_call_t *call, const void *tensor, size_t first) {
    return (const char *)tensor + first * zr_dtype_size(call->message.dtype);
}

/* Where a rank's part begins in the whole tensor: its block of those that are gathered or
 * scattered, else its slice. */
static size_t part_begin(const zr_pass_t *pass, const zr_comm_call_t *call, int owner) {
    bool is_block = call->collective == ZR_ALL_GATHER || call->collective == ZR_REDUCE_SCATTER ||
                    call->collective == ZR_ALL_TO_ALL;
    return is_block ? (size_t)owner * call->n_elems
                    : zr_comm_slice_begin(call->n_elems, owner, pass->n_ranks);
}

static size_t part_elems(const zr_pass_t *pass, const zr_comm_call_t *call, int owner) {
    return part_begin(pass, call, owner + 1) - part_begin(pass, call, owner);
}

/* Sources: elements from `begin` on of what each rank sends. How many they are. */
static int take_all_sources(zr_pass_t *pass, const zr_comm_call_t *call, size_t begin) {
    for (int rank = 0; rank < pass->n_ranks; rank++)
        pass->sources[rank] = elem_of(call, pass->sends[rank], begin);
    return pass->n_ranks;
}

/* Places: elements from `begin` on of what each rank receives, the owner's first, and but for
 * that which is the source already. How many they are. */
static int take_all_dsts(zr_pass_t *pass, const zr_comm_call_t *call, int owner, size_t begin,
                         const void *source) {
    int n_dsts = 0;
    for (int i = 0; i < pass->n_ranks; i++) {
        int rank = (owner + i) % pass->n_ranks;
        void *dst = (void *)elem_of(call, pass->recvs[rank], begin);
        if (dst != source)
            pass->dsts[n_dsts++] = dst;
    }
    return n_dsts;
}

/* A piece of what each rank gives the owner, to its place there. */
static zr_status_t exchange_piece(zr_pass_t *pass, const zr_comm_call_t *call,
                                  const piece_t *piece) {
    for (int i = 0; i < pass->n_ranks; i++) {
        int from = (piece->owner + i) % pass->n_ranks;
        size_t block = (size_t)from * call->n_elems, own = part_begin(pass, call, piece->owner);
        const void *source = elem_of(call, pass->sends[from], own + piece->first);
        void *dst = (void *)elem_of(call, pass->recvs[piece->owner], block + piece->first);
        ZR_TRY(zr_kernel_spread(call->stream, &dst, 1, &source, 1, call->message.dtype,
                                piece->n_elems));
    }
    return ZR_OK;
}

/* Write the sum of the sources, or the one source, to all places. No two parts meet: of
 * reduce_scatter in place, block r of what rank r sends is overwritten, which is read for that
 * alone. */
static zr_status_t make_piece(zr_pass_t *pass, const zr_comm_call_t *call, const piece_t *piece) {
    size_t begin = part_begin(pass, call, piece->owner) + piece->first;
    int n_sources = 1, n_dsts = 1;
    switch (call->collective) {
    case ZR_ALL_GATHER: /* the owner's block, to all */
        pass->sources[0] = elem_of(call, pass->sends[piece->owner], piece->first);
        n_dsts = take_all_dsts(pass, call, piece->owner, begin, pass->sources[0]);
        break;
    case ZR_REDUCE_SCATTER: /* the sum of all, to the owner */
        n_sources = take_all_sources(pass, call, begin);
        pass->dsts[0] = (void *)elem_of(call, pass->recvs[piece->owner], piece->first);
        break;
    case ZR_ALL_REDUCE: /* a slice of the sum of all, to all */
        n_sources = take_all_sources(pass, call, begin);
        n_dsts = take_all_dsts(pass, call, piece->owner, begin, NULL);
        break;
    case ZR_BROADCAST: /* a slice of root's, to all others, so that all ranks share the work */
        pass->sources[0] = elem_of(call, pass->sends[call->root], begin);
        n_dsts = take_all_dsts(pass, call, piece->owner, begin, pass->sources[0]);
        break;
    case ZR_ALL_TO_ALL:
        return exchange_piece(pass, call, piece);
    case ZR_BARRIER:
    case ZR_SPLIT:
        return ZR_OK;
    }
    return zr_kernel_spread(call->stream, pass->dsts, n_dsts, pass->sources, n_sources,
                            call->message.dtype, piece->n_elems);
}

/* Elements of a piece: as many as are worth a call, so that all pieces are, and whole lines of the
 * caches. */
static size_t piece_elems(const zr_pass_t *pass, const zr_comm_call_t *call) {
    size_t bytes = ZR_SPREAD_STREAM_BYTES / (size_t)pass->n_ranks + ZR_SPREAD_STREAM_ALIGNMENT;
    bytes -= bytes % ZR_SPREAD_STREAM_ALIGNMENT;
    return bytes / zr_dtype_size(call->message.dtype);
}

/* Make what is left of a rank's part, but for what others have taken. */
static zr_status_t take_pieces(zr_pass_t *pass, const zr_comm_call_t *call, int owner) {
    size_t n_elems = part_elems(pass, call, owner), step = piece_elems(pass, call);
    size_t n_pieces = n_elems > step ? n_elems / step : 1; /* the last has what remains */
    for (;;) {
        size_t i = atomic_fetch_add_explicit(pass->n_taken[owner], 1, memory_order_relaxed);
        if (i >= n_pieces)
            return ZR_OK;
        const piece_t piece = {.owner = owner,
                               .first = i * step,
                               .n_elems = i + 1 < n_pieces ? step : n_elems - i * step};
        ZR_TRY(make_piece(pass, call, &piece));
    }
}

/* Whether ranks take pieces of each other's parts: all see it alike. */
static bool is_shared(const zr_pass_t *pass, const zr_comm_call_t *call) {
    for (int rank = 0; rank < pass->n_ranks; rank++)
        if (pass->n_taken[rank] == NULL)
            return false;
    return part_elems(pass, call, 0) >= 2 * piece_elems(pass, call);
}

zr_status_t zr_pass_make_part(zr_pass_t *pass, const zr_comm_call_t *call) {
    const piece_t whole = {
        .owner = pass->rank, .first = 0, .n_elems = part_elems(pass, call, pass->rank)};
    if (!is_shared(pass, call))
        return whole.n_elems == 0 ? ZR_OK : make_piece(pass, call, &whole);
    for (int i = 0; i < pass->n_ranks; i++)
        ZR_TRY(take_pieces(pass, call, (pass->rank + i) % pass->n_ranks));
    return ZR_OK;
}
