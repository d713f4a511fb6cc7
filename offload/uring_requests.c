/*
 * Requests of the store "uring".
 *
 * Transfers are begun in the order of the calls, those of extents that go first ahead of others,
 * and cut at stripes, which are as long as a request. Up to `depth` requests are with the system at
 * once, handed over in small batches: large ones lose bandwidth, because the drive idles while the
 * batch is made up. What is not aligned goes through a bounce buffer; of an extent with a ragged
 * end only the last chunk does.
 *
 * Each completion moves its request on: done; short, and continued where it stopped; interrupted,
 * and made again; or failed, which ends its transfer and no other. Every loop here either moves
 * bytes or counts towards a limit, so that nothing waits for ever.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "offload/uring_internal.h"

#define MAX_FRUITLESS 200   /* requests in a row that move nothing */
#define PATIENT_FRUITLESS 8 /* from then on, each waits before it is made again */
#define PAUSE_MICROSECONDS 1000
#define STALL_MS 60000
#define LOOK_MS 2

static void fail_store(zr_uring_store_t *uring, const char *operation, int error);

/* ---- making requests ------------------------------------------------------------------------ */

static bool is_aligned(const zr_uring_store_t *uring, const void *buffer) {
    return (uintptr_t)buffer % uring->base.info.buffer_align_bytes == 0;
}

/* How much of a transfer the next request takes: to the end of the stripe, and a ragged chunk
 * at the extent's end by itself. */
static size_t next_piece_bytes(const zr_uring_store_t *uring, const zr_store_transfer_t *transfer) {
    const zr_store_info_t *info = &uring->base.info;
    size_t offset = transfer->offset_bytes + transfer->begun_bytes;
    size_t left = transfer->size_bytes - transfer->begun_bytes;
    size_t to_stripe = info->request_bytes - offset % info->request_bytes;
    size_t piece = left < to_stripe ? left : to_stripe;
    size_t whole_chunks = piece / info->chunk_bytes * info->chunk_bytes;
    return piece % info->block_bytes != 0 && whole_chunks > 0 ? whole_chunks : piece;
}

/* Where a place in an extent lies: which file, and where in it. */
static size_t find_file(const zr_uring_store_t *uring, size_t extent, size_t offset_bytes,
                        uint64_t *file_offset_p) {
    size_t stripe_bytes = uring->base.info.request_bytes, stripe = offset_bytes / stripe_bytes;
    size_t file = (uring->first_file[extent] + stripe) % uring->n_files;
    *file_offset_p = uring->begins[extent * uring->n_files + file] +
                     (uint64_t)(stripe / uring->n_files) * stripe_bytes +
                     offset_bytes % stripe_bytes;
    return file;
}

zr_store_place_t zr_uring_locate(const zr_store_t *store, size_t extent, size_t offset_bytes) {
    const zr_uring_store_t *uring = (const zr_uring_store_t *)store;
    zr_store_place_t place;
    size_t file = find_file(uring, extent, offset_bytes, &place.offset_bytes);
    place.file = uring->files[file].name;
    return place;
}

static void locate(const zr_uring_store_t *uring, zr_uring_request_t *request) {
    zr_store_piece_t *piece = &request->piece;
    request->file =
        find_file(uring, piece->transfer->extent, piece->offset_bytes, &piece->file_offset_bytes);
    piece->file = uring->files[request->file].name;
}

static unsigned char *caller_memory(const zr_store_piece_t *piece) {
    return piece->transfer->buffer + (piece->offset_bytes - piece->transfer->offset_bytes);
}

/* Take a bounce buffer, and the bytes of a put into it. */
static void bounce(zr_uring_store_t *uring, zr_uring_request_t *request) {
    const zr_store_piece_t *piece = &request->piece;
    request->bounce = (int)uring->free_bounces[--uring->n_free_bounces];
    request->memory = (unsigned char *)uring->bounce_memory.base +
                      (size_t)request->bounce * uring->base.info.request_bytes;
    if (piece->transfer->direction != ZR_STORE_PUT)
        return;
    memcpy(request->memory, caller_memory(piece), piece->size_bytes);
    memset(request->memory + piece->size_bytes, 0, request->io_bytes - piece->size_bytes);
}

/* Note what is left of a request in the ring. */
static void note(zr_uring_store_t *uring, uint32_t number) {
    zr_uring_request_t *request = &uring->requests[number];
    unsigned char *memory = request->memory + request->done_bytes;
    size_t left_bytes = request->io_bytes - request->done_bytes;
    const zr_ring_request_t ring_request = {
        .is_write = request->piece.transfer->direction == ZR_STORE_PUT,
        .file = uring->has_registered_files ? (int)request->file : uring->files[request->file].fd,
        .buffer = zr_uring_find_registered(uring, memory, left_bytes),
        .memory = memory,
        .size_bytes = (uint32_t)left_bytes,
        .offset_bytes = request->piece.file_offset_bytes + request->done_bytes,
        .tag = number};
    request->n_requests++;
    uring->n_noted++;
    int error = zr_ring_queue(uring->ring, &ring_request);
    if (error != 0)
        fail_store(uring, "queueing a request", -error);
}

/* Begin the next piece of the oldest transfer; false when it has to wait for a bounce buffer. */
static bool begin_piece(zr_uring_store_t *uring) {
    zr_store_transfer_t *transfer = uring->oldest;
    size_t block = uring->base.info.block_bytes;
    size_t piece_bytes = next_piece_bytes(uring, transfer);
    bool bounces =
        piece_bytes % block != 0 || !is_aligned(uring, transfer->buffer + transfer->begun_bytes);
    if (bounces && uring->n_free_bounces == 0)
        return false;
    uint32_t number = uring->free_requests[--uring->n_free_requests];
    zr_uring_request_t *request = &uring->requests[number];
    *request = (zr_uring_request_t){
        .piece = {.transfer = transfer,
                  .offset_bytes = transfer->offset_bytes + transfer->begun_bytes,
                  .size_bytes = piece_bytes},
        .bounce = -1,
        .io_bytes = (piece_bytes + block - 1) / block * block};
    locate(uring, request);
    request->memory = caller_memory(&request->piece);
    zr_store_piece_begins(&uring->base, &request->piece);
    if (bounces)
        bounce(uring, request);
    transfer->begun_bytes += piece_bytes;
    note(uring, number);
    return true;
}

/* ---- ending them ---------------------------------------------------------------------------- */

static void end_request(zr_uring_store_t *uring, uint32_t number, zr_status_t status) {
    zr_uring_request_t *request = &uring->requests[number];
    const zr_store_piece_t piece = request->piece;
    const zr_store_outcome_t outcome = {.status = status,
                                        .n_requests = request->n_requests,
                                        .moved_bytes = request->io_bytes,
                                        .was_bounced = request->bounce >= 0};
    if (request->bounce >= 0) {
        if (status == ZR_OK && piece.transfer->direction == ZR_STORE_GET)
            memcpy(caller_memory(&piece), request->memory, piece.size_bytes);
        uring->free_bounces[uring->n_free_bounces++] = (uint32_t)request->bounce;
    }
    uring->free_requests[uring->n_free_requests++] = number;
    zr_store_piece_ended(&uring->base, &piece, &outcome);
}

/* Of the requests of a transfer, the first that fails is logged. */
static zr_status_t log_failure(const zr_uring_store_t *uring, const zr_uring_request_t *request,
                               const char *cause, int error) {
    const zr_store_piece_t *piece = &request->piece;
    const zr_store_transfer_t *transfer = piece->transfer;
    if (transfer->status != ZR_OK)
        return ZR_ERR_IO;
    return zr_fail(&uring->base.options.log, ZR_ERR_IO,
                   "%s of \"%s\": %s at %zu: %s %s, offset %llu, length %zu: %s (errno %d)",
                   zr_store_direction_name(transfer->direction),
                   uring->base.extents[transfer->extent].name,
                   zr_count_text(piece->size_bytes, "byte").text, piece->offset_bytes,
                   transfer->direction == ZR_STORE_PUT ? "write to" : "read from", piece->file,
                   (unsigned long long)(piece->file_offset_bytes + request->done_bytes),
                   request->io_bytes - request->done_bytes, cause, error);
}

static void fail_request(zr_uring_store_t *uring, uint32_t number, const char *cause, int error) {
    end_request(uring, number, log_failure(uring, &uring->requests[number], cause, error));
}

/* Make a request that has moved nothing once more, within limits. */
static void retry(zr_uring_store_t *uring, uint32_t number, const char *cause, int error) {
    zr_uring_request_t *request = &uring->requests[number];
    if (++request->n_fruitless > MAX_FRUITLESS) {
        fail_request(uring, number, cause, error);
        return;
    }
    if (request->n_fruitless > PATIENT_FRUITLESS)
        usleep(PAUSE_MICROSECONDS);
    zr_store_account_of(&uring->base, request->piece.transfer)->n_retried++;
    note(uring, number);
}

/* Some bytes were moved, or none. The rest begins at a block. */
static void advance(zr_uring_store_t *uring, uint32_t number, size_t moved_bytes) {
    zr_uring_request_t *request = &uring->requests[number];
    bool is_get = request->piece.transfer->direction == ZR_STORE_GET;
    if (moved_bytes >= request->io_bytes - request->done_bytes) {
        end_request(uring, number, ZR_OK);
        return;
    }
    size_t whole_blocks = moved_bytes - moved_bytes % uring->base.info.block_bytes;
    if (moved_bytes == 0 && is_get) {
        fail_request(uring, number, "unexpected end of file: another process truncated it", 0);
    } else if (whole_blocks == 0) {
        retry(uring, number,
              is_get ? "less than a block is left in the file: another process truncated it"
                     : "less than a whole block was written",
              0);
    } else {
        request->done_bytes += whole_blocks;
        request->n_fruitless = 0;
        zr_store_account_of(&uring->base, request->piece.transfer)->n_continued++;
        note(uring, number);
    }
}

static void take_completion(zr_uring_store_t *uring, const zr_ring_completion_t *completion) {
    uint32_t number = (uint32_t)completion->tag;
    int result = completion->result;
    uring->n_handed--;
    if (result >= 0)
        advance(uring, number, (size_t)result);
    else if (result == -EINTR || result == -EAGAIN)
        retry(uring, number, strerror(-result), -result);
    else
        fail_request(uring, number, strerror(-result), -result);
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* A buffer that the system has cannot be given back, so there is no end to waiting, but it is
 * said what for. The kernel itself ends requests of most drives after half a minute or so.
 * @param looks  0 is returned when none has come after a while */
static int wait_for_completion(zr_uring_store_t *uring, bool looks,
                               zr_ring_completion_t *completion_p) {
    int result = 0, most_ms = looks ? LOOK_MS : STALL_MS;
    do {
        result = zr_ring_next(uring->ring, most_ms, completion_p);
        uring->quiet_ms = result == 0 ? uring->quiet_ms + most_ms : 0;
        if (uring->quiet_ms < STALL_MS)
            continue;
        uring->quiet_ms = 0;
        zr_log_write(&uring->base.options.log, ZR_LOG_WARNING,
                     "store: none of %s has ended for %d s; the drive of %s, or of another "
                     "path, does not answer; waiting on",
                     zr_count_text(uring->n_handed, "request").text, STALL_MS / 1000,
                     uring->files[0].name);
    } while (result == 0 && !looks);
    return result;
}

/* ---- the whole store fails ------------------------------------------------------------------ */

/* What the system has comes back by itself; the caller may not free a buffer before. */
static void take_back(zr_uring_store_t *uring) {
    zr_ring_completion_t completion;
    while (uring->n_handed > 0) {
        if (wait_for_completion(uring, false, &completion) != 1) {
            zr_log_write(
                &uring->base.options.log, ZR_LOG_ERROR,
                "store: %s are still in flight; the system may still write to their buffers",
                zr_count_text(uring->n_handed, "request").text);
            return;
        }
        uring->n_handed--;
    }
}

/* No request can be handed over, or none be waited for: end everything. */
static void fail_store(zr_uring_store_t *uring, const char *operation, int error) {
    zr_store_t *store = &uring->base;
    zr_status_t status =
        zr_fail(&store->options.log, ZR_ERR_IO,
                "store: %s failed: %s (errno %d); lost: %s, and the store with them", operation,
                strerror(error), error,
                zr_count_text(store->options.depth - uring->n_free_requests, "request").text);
    store->is_dead = true;
    store->death = (zr_store_death_t){.operation = operation, .error = error};
    take_back(uring);
    uring->n_noted = uring->n_handed = 0;
    for (uint32_t i = 0; i < store->options.depth; i++) {
        bool is_free = false;
        for (size_t j = 0; j < uring->n_free_requests; j++)
            is_free |= uring->free_requests[j] == i;
        if (!is_free)
            end_request(uring, i, status);
    }
    while (uring->oldest != NULL) {
        zr_store_transfer_t *transfer = uring->oldest;
        uring->oldest = transfer->next;
        transfer->status = transfer->status == ZR_OK ? status : transfer->status;
        zr_store_abandon_rest(store, transfer);
    }
}

/* ---- going on ------------------------------------------------------------------------------- */

/* Hand over what is noted. When the system is short of memory and has none of ours that could
 * end, try again for a while. */
static void submit(zr_uring_store_t *uring) {
    for (int n_fruitless = 0; uring->n_noted > 0;) {
        int result = zr_ring_submit(uring->ring);
        if (result > 0) {
            size_t n = (size_t)result < uring->n_noted ? (size_t)result : uring->n_noted;
            uring->n_noted -= n;
            uring->n_handed += n;
            n_fruitless = 0;
            continue;
        }
        bool is_passing = result == 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY;
        if (!is_passing || ++n_fruitless > MAX_FRUITLESS) {
            fail_store(uring, "handing requests over (io_uring_enter)",
                       result == 0 ? EAGAIN : -result);
            return;
        }
        if (result != -EINTR && uring->n_handed > 0)
            return; /* some will end; then again */
        if (result != -EINTR)
            usleep(PAUSE_MICROSECONDS);
    }
}

/* Begin what there is room for, and hand it over. */
static void fill_up(zr_uring_store_t *uring) {
    while (uring->oldest != NULL && uring->n_free_requests > 0) {
        zr_store_transfer_t *transfer = uring->oldest;
        if (transfer->status == ZR_OK && !begin_piece(uring))
            break;
        if (uring->base.is_dead)
            return;
        if (transfer->status != ZR_OK || transfer->begun_bytes == transfer->size_bytes) {
            uring->oldest = transfer->next;
            transfer->next = NULL;
        }
        if (transfer->status != ZR_OK)
            zr_store_abandon_rest(&uring->base, transfer);
        if (uring->n_noted >= uring->base.options.submit_batch)
            submit(uring);
    }
    submit(uring);
}

/* Where a transfer is put: behind those whose turn is no later. What was begun in part of another
 * is finished later. */
static zr_store_transfer_t **place_for(zr_uring_store_t *uring,
                                       const zr_store_transfer_t *transfer) {
    zr_store_turn_t turn = zr_store_turn_of(&uring->base, transfer);
    zr_store_transfer_t **link = &uring->oldest;
    if (*link != NULL && zr_store_turn_of(&uring->base, uring->newest) <= turn)
        return &uring->newest->next;
    while (*link != NULL && zr_store_turn_of(&uring->base, *link) <= turn)
        link = &(*link)->next;
    return link;
}

void zr_uring_start(zr_store_t *store, zr_store_transfer_t *transfer) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    zr_store_transfer_t **link = place_for(uring, transfer);
    transfer->next = *link;
    *link = transfer;
    if (transfer->next == NULL)
        uring->newest = transfer;
    fill_up(uring);
}

void zr_uring_progress(zr_store_t *store, bool wait) {
    zr_uring_store_t *uring = (zr_uring_store_t *)store;
    zr_ring_completion_t completion;
    fill_up(uring);
    int result = 1;
    while (result == 1 && uring->n_handed > 0) {
        result = wait ? wait_for_completion(uring, zr_store_has_waiting(store), &completion)
                      : zr_ring_next(uring->ring, 0, &completion);
        if (result == 1)
            take_completion(uring, &completion);
        /* What ended is verified and copied here, while the drive needs more to do. */
        if (uring->n_free_requests >= store->options.submit_batch && !store->is_dead)
            fill_up(uring);
        wait = false;
    }
    if (result < 0)
        fail_store(uring, "waiting for requests (io_uring_enter)", -result);
    else if (!store->is_dead)
        fill_up(uring);
}
