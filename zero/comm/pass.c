/* See pass.h. */
#include "zero/comm/pass.h"

#include "kernels/kernels.h"

size_t zr_pass_bytes(int n_ranks) {
    return 4 * (size_t)n_ranks * sizeof(void *);
}

void zr_pass_init(zr_pass_t *pass, void *arrays, int rank, int n_ranks) {
    pass->rank = rank;
    pass->n_ranks = n_ranks;
    pass->sends = arrays;
    pass->recvs = (void **)arrays + n_ranks;
    pass->sources = (const void **)arrays + 2 * n_ranks;
    pass->dsts = (void **)arrays + 3 * n_ranks;
}

/* Element `first` of a tensor. */
static const char *elem_of(const zr_comm_call_t *call, const void *tensor, size_t first) {
    return (const char *)tensor + first * zr_dtype_size(call->message.dtype);
}

/* Sources: elements from `begin` on of what each rank sends. How many they are. */
static int take_all_sources(zr_pass_t *pass, const zr_comm_call_t *call, size_t begin) {
    for (int rank = 0; rank < pass->n_ranks; rank++)
        pass->sources[rank] = elem_of(call, pass->sends[rank], begin);
    return pass->n_ranks;
}

/* Places: elements from `begin` on of what each rank receives, this rank's own first, and but for
 * that which is the source already. How many they are. */
static int take_all_dsts(zr_pass_t *pass, const zr_comm_call_t *call, size_t begin,
                         const void *source) {
    int n_dsts = 0;
    for (int i = 0; i < pass->n_ranks; i++) {
        int rank = (pass->rank + i) % pass->n_ranks;
        void *dst = (void *)elem_of(call, pass->recvs[rank], begin);
        if (dst != source)
            pass->dsts[n_dsts++] = dst;
    }
    return n_dsts;
}

/* Write the sum of the sources, or the one source, to all places. */
static zr_status_t spread(zr_pass_t *pass, const zr_comm_call_t *call, int n_sources, int n_dsts,
                          size_t n_elems) {
    if (n_elems == 0)
        return ZR_OK;
    return zr_kernel_spread(call->stream, pass->dsts, n_dsts, pass->sources, n_sources,
                            call->message.dtype, n_elems);
}

/* The slice of a tensor of n_elems that is this rank's to move. */
static size_t own_slice(const zr_pass_t *pass, const zr_comm_call_t *call, size_t *begin_p) {
    *begin_p = zr_comm_slice_begin(call->n_elems, pass->rank, pass->n_ranks);
    return zr_comm_slice_begin(call->n_elems, pass->rank + 1, pass->n_ranks) - *begin_p;
}

/* all_gather: this rank's block, to all. */
static zr_status_t give_block(zr_pass_t *pass, const zr_comm_call_t *call) {
    size_t begin = (size_t)pass->rank * call->n_elems;
    pass->sources[0] = call->send;
    int n_dsts = take_all_dsts(pass, call, begin, call->send);
    return spread(pass, call, 1, n_dsts, call->n_elems);
}

/* reduce_scatter: in place this overwrites block `rank` of send, which no other rank reads. */
static zr_status_t sum_own_block(zr_pass_t *pass, const zr_comm_call_t *call) {
    int n_sources = take_all_sources(pass, call, (size_t)pass->rank * call->n_elems);
    pass->dsts[0] = call->recv;
    return spread(pass, call, n_sources, 1, call->n_elems);
}

/* all_reduce: this rank's slice, which no other rank reads, or writes anywhere. */
static zr_status_t sum_own_slice(zr_pass_t *pass, const zr_comm_call_t *call) {
    size_t begin, n_elems = own_slice(pass, call, &begin);
    int n_sources = take_all_sources(pass, call, begin);
    int n_dsts = take_all_dsts(pass, call, begin, NULL);
    return spread(pass, call, n_sources, n_dsts, n_elems);
}

/* broadcast: a slice of root's buffer, to all others, so that all ranks share the work. */
static zr_status_t give_slice_of_root(zr_pass_t *pass, const zr_comm_call_t *call) {
    size_t begin, n_elems = own_slice(pass, call, &begin);
    pass->sources[0] = elem_of(call, pass->sends[call->root], begin);
    int n_dsts = take_all_dsts(pass, call, begin, pass->sources[0]);
    return spread(pass, call, 1, n_dsts, n_elems);
}

zr_status_t zr_pass_make_part(zr_pass_t *pass, const zr_comm_call_t *call) {
    switch (call->collective) {
    case ZR_ALL_GATHER:
        return give_block(pass, call);
    case ZR_REDUCE_SCATTER:
        return sum_own_block(pass, call);
    case ZR_ALL_REDUCE:
        return sum_own_slice(pass, call);
    case ZR_BROADCAST:
        return give_slice_of_root(pass, call);
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return ZR_OK;
}
