/*
 * Collectives on a stream that has a thread (zr_stream_call): each is queued as one piece of work
 * and made there, with its call copied, while the rank goes on. Every backend goes through this,
 * from comm.c, and knows nothing of it: it works on a stream whose work is done at once.
 *
 * A handle is used by one thread at a time: a call that is not queued, or on another stream, waits
 * until those that are have been made. After one that fails no queued one is made; later calls are
 * made in the calling thread again, where the backend refuses them. The reason was logged by the
 * one that failed.
 */
#pragma once

#include "zero/comm/comm_backend.h"

ZR_BEGIN_C

void zr_comm_queue_init(zr_comm_queue_t *queue);
/** Waits for what is queued. */
void zr_comm_queue_clear(zr_comm_queue_t *queue);

/**
 * Make a call, or queue it where its stream takes calls.
 *
 * @param call  borrowed for the call
 */
ZR_NODISCARD zr_status_t zr_comm_queue_run(zr_comm_t *comm, const zr_comm_call_t *call,
                                           zr_comm_entry_fn entry);

/** The first failure of a queued call so far, else ZR_OK. */
ZR_NODISCARD zr_status_t zr_comm_queue_status(zr_comm_queue_t *queue);

/** Seconds of the rank's own thread, and of queued calls. */
void zr_comm_queue_seconds(zr_comm_queue_t *queue, zr_comm_statistics_t *statistics_p);

ZR_END_C
