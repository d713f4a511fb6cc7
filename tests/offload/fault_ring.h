/*
 * Faults between the store and the system: the linker sends the store's calls of its ring, and of
 * the system when it makes a file, here (--wrap). Without a fault they go through.
 *
 * One store at a time is meant: where several threads have one each, all of them but one are
 * spared.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_RESULT,    /* the request ends with fault.result, though the drive has done it */
    FAULT_SHORT,     /* it moves a part: fault.result bytes less than asked for, if it can */
    FAULT_LATE,      /* it ends after all others that are with the system */
    FAULT_LOST,      /* a write ends well, and has not been done */
    FAULT_MISPLACED, /* a write goes to the file's beginning */
    FAULT_FLIP,   /* a bit of what is read has changed: of byte fault.result, modulo the length */
    FAULT_EVENT,  /* fault_event is called before the request is queued */
    FAULT_SUBMIT, /* zr_ring_submit returns fault.result, and hands nothing over */
    FAULT_NEXT,   /* zr_ring_next returns fault.result when it is to wait */
    FAULT_OPEN_RING, /* the calls of these names return fault.result, or -1 with that errno */
    FAULT_REGISTER_BUFFERS,
    FAULT_REGISTER_FILES,
    FAULT_FALLOCATE,
    FAULT_SPARSE, /* fallocate makes files as long as they shall be, all of it holes; on any thread
                   */
    FAULT_OPEN,
    FAULT_SET_FLAGS, /* fcntl(F_SETFL) */
    FAULT_BLOCK,     /* pwrite takes multiples of fault.result only */
    FAULT_ALIGN,     /* pwrite takes memory only that is aligned to fault.result */
    FAULT_PWRITE
} fault_kind_t;

typedef struct fault {
    fault_kind_t kind;
    long result;
    size_t at;      /* the first call of its kind that fails, from 1; requests: that is queued */
    size_t n_times; /* so many in a row do */

    size_t n_calls; /* of its kind; with no fault, requests */
    size_t n_hits;
} fault_t;
extern fault_t fault;
/* Requests so far whose memory does not lie in a registered buffer. */
extern size_t fault_n_unregistered;

/** Let the `at`-th call fail, and the n_times - 1 after it. */
void fault_arm(fault_kind_t kind, long result, size_t at, size_t n_times);

/** The calling thread's calls go through, and are not counted, from now on or (false) no more. */
void fault_spare_thread(bool spared);

/** FAULT_EVENT: what happens, to the file that the request is for. Set before it is armed. */
extern void (*fault_event)(int file);
