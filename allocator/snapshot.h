/*
 * Snapshots: a recording (allocator/record.h) as a file for another program.
 *
 *   .csv     one life per line for a planner of offsets: id,lower,upper,size first, then more
 *   .json    Chrome's trace format, as ui.perfetto.dev opens it
 *   .pickle  what torch.cuda.memory._dump_snapshot writes, as pytorch.org/memory_viz opens it
 *
 * All three are in the recording's virtual time. docs/internals/allocator.md tells what to see in
 * them.
 */
#pragma once

#include <stdio.h>

#include "allocator/record.h"

ZR_BEGIN_C

/*
 * Each writer writes where the file stands and neither flushes nor closes it.
 *
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_IO, errno says why. None of it is logged.
 *
 * Names are written in UTF-8; what is not that, and control characters, as '?'.
 * Threads: any number may write one recording at a time, each into a file of its own.
 */

/**
 * The lives of one tier as lines of id,lower,upper,size,tag,lifetime,name,offset,stream,
 * first_step,first_micro_batch,last_step,last_micro_batch, below a line with these words.
 *
 * Lives are half-open, sizes as requested, offsets those of the lifetime's class. Fields are
 * quoted as RFC 4180 says. Tiers have addresses of their own, so that a plan is of one.
 */
ZR_NODISCARD zr_status_t zr_snapshot_write_csv(const zr_recording_t *recording, zr_tier_t tier,
                                               FILE *file);

/**
 * A process per tier, with counters (bytes of each tag, "live", "reserved", "pending") and a
 * span per life, in the category of its lifetime. One microsecond is one tick of virtual time.
 */
ZR_NODISCARD zr_status_t zr_snapshot_write_chrome(const zr_recording_t *recording, FILE *file);

/**
 * Device 0 is the device tier, device 1 the host tier. Addresses are made up from lifetime and
 * offset; the category of a tensor is its tag; its frame says lifetime, micro-batch and name.
 * Empty allocations, which have no memory, are left out.
 */
ZR_NODISCARD zr_status_t zr_snapshot_write_pickle(const zr_recording_t *recording, FILE *file);

typedef enum zr_snapshot_form {
    ZR_SNAPSHOT_CSV = 0,
    ZR_SNAPSHOT_CHROME = 1,
    ZR_SNAPSHOT_PICKLE = 2
} zr_snapshot_form_t;

/** The form that a path's ending asks for; false when it ends in none of the three. */
bool zr_snapshot_form_of(const char *path, zr_snapshot_form_t *form_p);

/**
 * Write a file in the form that its ending asks for; the CSV is of the device tier.
 *
 * @param log  NULL: default
 * @return ZR_OK; ZR_ERR_ARGUMENT for another ending; ZR_ERR_STATE for a recording that is not
 *         complete; ZR_ERR_MEMORY; ZR_ERR_IO. What is wrong has been logged, with path and
 *         errno. A file that could not be written whole stays behind.
 */
ZR_NODISCARD zr_status_t zr_snapshot_save(const zr_recording_t *recording, const char *path,
                                          const zr_log_t *log);

ZR_END_C
