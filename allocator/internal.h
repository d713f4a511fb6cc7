/*
 * The allocator itself, for the files of this folder.
 *
 * zr_allocate looks for a fit among what is mapped; when there is none, it maps; when
 * that would exceed the budget, it waits for pending frees, then moves idle granules to
 * where they are needed, and only then refuses. A plan of offsets, once there is one, stands
 * before the first of these steps and hands to it whatever it does not cover.
 */
#pragma once

#include <pthread.h>

#include "allocator/arena_internal.h"
#include "allocator/pending_internal.h"
#include "allocator/record_internal.h"
#include "allocator/replay_internal.h"

/* Tiers that have addresses: device and host. */
#define ZR_N_MEMORY_TIERS 2
/* An arena per class, and one of addresses alone for allocations of size 0. */
#define ZR_ARENA_EMPTY ZR_N_CLASSES
#define ZR_N_ARENAS (ZR_N_CLASSES + 1)

typedef struct zr_tier_memory {
    zr_tier_t tier;
    bool is_of_process;             /* it is host memory */
    zr_arena_t arenas[ZR_N_ARENAS]; /* by class */
    zr_pending_t pending;
    /* reserved.live is the sum of the arenas' mapped bytes and never above the budget. The
     * map counts are not kept here but summed up from the arenas when asked for. */
    zr_tier_statistics_t statistics;
    bool is_at_peak; /* nothing was freed since live rose to its peak, whose tags and holes are
                        still there */
} zr_tier_memory_t;

struct zr_allocator {
    zr_heap_t *heap;      /* of its tables and itself; what recordings and plans have counts here */
    pthread_mutex_t lock; /* innermost: only device calls and the device's log are made under it */
    zr_device_t *device;  /* borrowed */
    bool is_synchronous;  /* the device: its streams are done at once */
    bool waits_at_marks;  /* see zr_tier_settle */
    bool is_marked;       /* there was a mark */
    size_t n_frees_known; /* of n_frees, at the last mark */
    zr_log_t log;
    zr_allocator_advice_t advice;
    size_t process_bytes; /* ZR_NO_BUDGET: no limit */
    zr_block_pool_t pool;
    zr_block_table_t table; /* exactly the live blocks, by address */
    zr_event_pool_t events;
    size_t n_frees;            /* numbers pending blocks */
    uint64_t places;           /* a hash of what was handed out: zr_allocator_take_places */
    zr_recording_t *recording; /* the arenas', too; NULL: nothing is recorded */
    zr_replay_t *replay;       /* NULL: off */
    zr_plan_cache_t *plans;    /* borrowed; NULL: each is made */
    zr_plan_cache_t *shared;   /* borrowed; NULL: what is made is this one's alone */
    size_t n_sharing;          /* allocators that have what is shared, and count a part each */
    uint32_t tape_epoch;       /* of the last replay: what was on its tape is on none after it */
    /* Growth beyond what is live at the peak first takes what is idle anywhere, at the price of a
     * call into the device per piece: reserved.peak stays near live.peak although classes have
     * their peaks at different times. For steps that are observed, not for steady ones. */
    bool is_frugal;
    zr_tier_memory_t tiers[ZR_N_MEMORY_TIERS];
};

/* How one request has gone so far, for its message. */
typedef struct zr_attempt {
    const zr_allocation_request_t *request;
    zr_tier_memory_t *memory;
    zr_arena_t *arena;
    size_t size_bytes;       /* of the block it needs */
    bool is_frugal;          /* the allocator's, until nothing idle is left to take */
    bool has_no_addresses;   /* the class's range has no hole so large, mapped or not */
    bool is_machine_full;    /* mapping was refused by the machine, not by the budget */
    bool has_planned_afresh; /* idle granules of its own were moved from one place to another */
    size_t missing_bytes;    /* when it is refused: mapped bytes more would be enough */
} zr_attempt_t;

/* Blocks taken from the pool by one map call and one allocation, at most. */
#define ZR_BLOCKS_PER_STEP 2

/** Of a request: a multiple of the alignment; too large for any range where that is too large. */
static inline size_t zr_block_bytes(size_t requested_bytes) {
    if (requested_bytes == 0)
        return ZR_BLOCK_ALIGNMENT;
    if (requested_bytes > SIZE_MAX - ZR_BLOCK_ALIGNMENT)
        return SIZE_MAX - ZR_BLOCK_ALIGNMENT + 1;
    return (requested_bytes + ZR_BLOCK_ALIGNMENT - 1) & ~(size_t)(ZR_BLOCK_ALIGNMENT - 1);
}

static inline void zr_count_up(zr_byte_count_t *count, size_t size_bytes) {
    count->live += size_bytes;
    if (count->live > count->peak)
        count->peak = count->live;
}

/** What one of those that share counts of a table. */
static inline size_t zr_part_of_shared(const zr_allocator_t *allocator, size_t size_bytes) {
    return (size_bytes + allocator->n_sharing - 1) / allocator->n_sharing;
}

/* ---- pressure.c ------------------------------------------------------------------ */

/** What the rank may still have of its part of the process; ZR_NO_BUDGET: no limit. */
size_t zr_process_headroom(const zr_allocator_t *allocator);
/** Whether that is nearer to its limit than a tier is to its budget. */
bool zr_process_is_tighter(const zr_allocator_t *allocator, const zr_tier_memory_t *memory);
/** Bytes that may be mapped before the nearer of both is reached. */
size_t zr_tier_headroom(const zr_allocator_t *allocator, const zr_tier_memory_t *memory);

/** A live or pending block becomes part of a hole. */
void zr_tier_give(zr_block_t *block);

/** Make blocks free whose events have passed, without waiting. */
ZR_NODISCARD zr_status_t zr_tier_poll(zr_allocator_t *allocator, zr_tier_memory_t *memory);

/**
 * At a mark: wait for what was freed before the mark before it, and make it free.
 *
 * Where most streams work in the calling thread, on a host device with streams beside it, that is
 * when pending blocks become free, unless memory runs short before: in the order of the program,
 * whatever time work takes, so that places and peaks are the same on every run. What is freed
 * behind such a stream has a segment for its work, as in a plan. Elsewhere the calling thread would
 * wait for what it has queued, and may not: blocks become free as their events pass.
 */
ZR_NODISCARD zr_status_t zr_tier_settle(zr_allocator_t *allocator, zr_tier_memory_t *memory);

/** Wait for the block that was freed first, and make it free; nothing when none is pending. */
ZR_NODISCARD zr_status_t zr_tier_wait(zr_allocator_t *allocator, zr_tier_memory_t *memory);

/** Unmap all idle granules of an arena, and count them. */
ZR_NODISCARD zr_status_t zr_tier_trim(zr_tier_memory_t *memory, zr_arena_t *arena);

/** Whether a request could be placed by mapping no more than allowed_bytes and moving what is idle.
 */
bool zr_tier_could_fit(const zr_tier_memory_t *memory, const zr_arena_t *arena, size_t size_bytes,
                       size_t allowed_bytes);

/**
 * One step towards a fit: map a piece, or else wait for a pending free, or else move what is idle.
 *
 * @return ZR_OK: look again; ZR_ERR_BUDGET: there is nothing left to do; or what failed
 */
ZR_NODISCARD zr_status_t zr_tier_make_room(zr_allocator_t *allocator, zr_attempt_t *attempt);

/* ---- report.c -------------------------------------------------------------------- */

#define ZR_REPORT_BYTES 3072

/** The request's name, for messages. */
const char *zr_request_name(const zr_allocation_request_t *request);
/** Write the message of a request that does not fit. */
void zr_report_out_of_memory(const zr_allocator_t *allocator, const zr_attempt_t *attempt,
                             char *text, size_t size);
/** Log what is live, per tag. */
void zr_report_leaks(const zr_allocator_t *allocator);

/* ---- validate.c -------------------------------------------------------------------- */

/** zr_allocator_is_valid with the lock held. */
bool zr_allocator_check(const zr_allocator_t *allocator);
