/*
 * Snapshots: write a recording (allocator/record.h) to a file for another program.
 *
 *   .csv     one lifetime per line for an offset planner: id,lower,upper,size first, then more
 *   .json    Chrome's trace format, as ui.perfetto.dev opens it
 *   .pickle  what torch.cuda.memory._dump_snapshot writes, as pytorch.org/memory_viz opens it
 *
 * All three are in the recording's virtual time. docs/internals/allocator.md explains them.
 */
#pragma once

#include <stdio.h>

#include "allocator/record.h"

ZR_BEGIN_C

/*
 * Each writer writes at the current file position and neither flushes nor closes the file.
 *
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_IO, errno says why. Errors are not logged.
 *
 * Names are written in UTF-8; invalid UTF-8 and control characters become '?'.
 * Threads: any number may write one recording at a time, each into a file of its own.
 */

/**
 * The lives of one tier as lines of id,lower,upper,size,tag,lifetime,name,offset,stream,
 * first_step,first_micro_batch,last_step,last_micro_batch, after a header line with these names.
 *
 * Lifetimes are half-open, sizes are as requested, offsets are within the class. Fields are quoted
 * as in RFC 4180. Each tier has its own addresses, so a file contains one tier.
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
 * offset; the category of a tensor is its tag; its frame has lifetime, micro-batch and name.
 * Empty allocations, which have no memory, are left out.
 */
ZR_NODISCARD zr_status_t zr_snapshot_write_pickle(const zr_recording_t *recording, FILE *file);

typedef enum zr_snapshot_form {
    ZR_SNAPSHOT_CSV = 0,
    ZR_SNAPSHOT_CHROME = 1,
    ZR_SNAPSHOT_PICKLE = 2
} zr_snapshot_form_t;

/** The format for a path's suffix; false for an unknown suffix. */
bool zr_snapshot_form_of(const char *path, zr_snapshot_form_t *form_p);

/**
 * Write a file in the format given by its suffix; a CSV contains the device tier.
 *
 * @param log  NULL: default
 * @return ZR_OK; ZR_ERR_ARGUMENT for an unknown suffix; ZR_ERR_STATE for an incomplete recording;
 *         ZR_ERR_MEMORY; ZR_ERR_IO. Errors are logged with path and errno. An incomplete file is
 *         not removed.
 */
ZR_NODISCARD zr_status_t zr_snapshot_save(const zr_recording_t *recording, const char *path,
                                          const zr_log_t *log);

ZR_END_C
