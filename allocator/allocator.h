/*
 * The allocator: every byte a rank uses in a tier goes through it, with a tag and
 * a lifetime, under a budget that is never exceeded.
 *
 * Each tier is one reserved address range per lifetime class; memory is mapped
 * granule by granule as it is needed and kept for reuse. What counts against the
 * budget is what is mapped ("reserved"), so that holes count too. When a request
 * would exceed the budget, pending frees are waited for, and idle granules of any class
 * are moved to where they are needed. docs/internals/allocator.md tells how to read its error.
 */
#pragma once

#include "kernels/device.h"

ZR_BEGIN_C

typedef struct zr_allocator zr_allocator_t;

/** How long a tensor lives. The caller knows, so the caller says. */
typedef enum zr_lifetime {
    ZR_LIFETIME_PERSISTENT = 0,  /* until the runtime ends */
    ZR_LIFETIME_STEP = 1,        /* within one optimizer step */
    ZR_LIFETIME_MICRO_BATCH = 2, /* within one micro-batch: activations kept for backward */
    ZR_LIFETIME_UNIT = 3,        /* while one unit computes: gathered parameters, workspaces */
    ZR_LIFETIME_COLLECTIVE = 4   /* while one collective runs */
} zr_lifetime_t;
#define ZR_N_LIFETIMES 5

/** What a tensor is for. */
typedef enum zr_tag {
    ZR_TAG_PARAMETERS = 0,          /* full at stages 0-2, shards at stage 3 */
    ZR_TAG_GRADIENTS = 1,           /* full at stages 0-1, shards at stages 2-3 */
    ZR_TAG_OPTIMIZER_STATE = 2,     /* master, m, v */
    ZR_TAG_GATHERED_PARAMETERS = 3, /* full parameters of live units at stage 3 */
    ZR_TAG_GRADIENT_BUCKETS = 4,    /* full gradients of live units at stages 2-3 */
    ZR_TAG_ACTIVATIONS = 5,
    ZR_TAG_WORKSPACE = 6,
    ZR_TAG_STAGING = 7, /* buffers that copies between tiers pass through */
    ZR_TAG_DATA = 8,    /* tokens */
    ZR_TAG_OTHER = 9
} zr_tag_t;
#define ZR_N_TAGS 10

/* Classes of addresses: one per lifetime, and one of what a plan places (allocator/replay.h). */
#define ZR_CLASS_PLANNED ZR_N_LIFETIMES
#define ZR_N_CLASSES (ZR_N_LIFETIMES + 1)

/** "parameters", "optimizer_state", ... as in reports and JSON. */
const char *zr_tag_name(zr_tag_t tag);
/** "persistent", "step", "micro_batch", "unit", "collective". */
const char *zr_lifetime_name(zr_lifetime_t lifetime);
/** The name of the lifetime, or "planned". */
const char *zr_class_name(int class_index);

#define ZR_NO_BUDGET ((size_t)-1)

/** What an out-of-memory error advises to try, in phrases such as "a larger --host-memory". Strings
 * are borrowed for the life of the allocator; NULL: nothing. The same string is said once. */
typedef struct zr_allocator_advice {
    const char *budget[ZR_N_TIERS];            /* unless the machine is the cause */
    const char *process;                       /* where process_bytes are the cause */
    const char *any[ZR_N_TIERS];               /* whoever holds the memory */
    const char *by_tag[ZR_N_TIERS][ZR_N_TAGS]; /* for what is asked for, and for each that holds
                                                  a twentieth of what is live or more */
} zr_allocator_advice_t;

typedef struct zr_allocator_options {
    zr_log_t log;
    size_t budget_bytes[ZR_N_TIERS]; /* ZR_NO_BUDGET: as much as the machine has */
    size_t process_bytes; /* of tiers that are host memory and of tables, together; ZR_NO_BUDGET:
                             no limit */
    zr_allocator_advice_t advice;
} zr_allocator_options_t;

/** No budgets, default log, no advice. */
zr_allocator_options_t zr_allocator_options_default(void);

/**
 * Create the allocator of one rank.
 *
 * @param device   borrowed until zr_allocator_destroy
 * @param options  NULL means the defaults; borrowed for the call, except for the strings of
 * `advice`
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET when addresses are too scarce
 *
 * Ownership: destroy waits for pending frees, gives all memory back and logs, per tag, what
 * was still live.
 * Threads: thread-safe; its lock is the innermost one, held during no wait except
 * that for pending frees under memory pressure, at marks or before a plan comes into force, and
 * for a stream that no event can be had for.
 */
ZR_NODISCARD zr_status_t zr_allocator_create(zr_device_t *device,
                                             const zr_allocator_options_t *options,
                                             zr_allocator_t **allocator_p);
void zr_allocator_destroy(zr_allocator_t **allocator);

typedef struct zr_allocation_request {
    size_t size_bytes; /* 0 is fine: the pointer is then unique and must not be followed */
    zr_tier_t tier;    /* ZR_TIER_DEVICE or ZR_TIER_HOST */
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    const char *name;    /* for messages: the unit or tensor; borrowed for the call; may be NULL */
    zr_stream_t *stream; /* whose work is the first to use it; NULL: the CPU's, or any */
} zr_allocation_request_t;

/**
 * Allocate uninitialised memory, aligned to 256 bytes.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY for metadata; ZR_ERR_BUDGET when it does not
 *         fit: the log says what was asked for and by whom, the budget, what is live per tag,
 *         whether the total or a hole is the cause, and the advice; ZR_ERR_DEVICE when the
 *         device failed, or work that pending frees wait for. Nothing is lost then either.
 */
ZR_NODISCARD zr_status_t zr_allocate(zr_allocator_t *allocator,
                                     const zr_allocation_request_t *request, void **pointer_p);

/**
 * Free an allocation, and set the pointer to NULL; *pointer == NULL is fine.
 *
 * @param stream  the stream whose work queued so far is the last to use the memory: it is
 *                handed out again only after that work has passed. NULL: nothing uses it now.
 *
 * Cannot fail: should there be no event to wait for, it waits for the stream itself.
 * A pointer that is not live is logged as an error and otherwise ignored, also in value.
 */
void zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream);

#define ZR_NO_UNIT ((size_t)-1)

/** Where training is: marks cut a step into segments, whose allocations repeat from step to step.
 */
typedef struct zr_mark {
    size_t step;        /* from 1 */
    size_t micro_batch; /* of the step, from 1; 0: after its last one, as in the update */
    size_t unit;        /* that computes from now on; ZR_NO_UNIT: none */
    int pass;           /* of the unit: any number that tells its passes apart */
} zr_mark_t;

/**
 * Say where training is. The runtime does; recordings and replay go by it. On a host device with
 * streams beside it, it waits for what was freed before the mark before.
 *
 * @param mark  borrowed for the call
 */
void zr_allocator_mark(zr_allocator_t *allocator, const zr_mark_t *mark);

/**
 * Give idle memory back to the machine: unmap every granule of the tier that no allocation
 * touches. Never needed to stay within the budget; it helps others, and waits for nothing.
 *
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_BUDGET or ZR_ERR_DEVICE when the machine refuses
 */
ZR_NODISCARD zr_status_t zr_allocator_trim(zr_allocator_t *allocator, zr_tier_t tier);

/**
 * Bytes of one kind. live <= peak; live counts requested bytes, exactly, from zr_allocate to
 * zr_free: what a stream does later changes no count of this kind, so that they are the same
 * on every device.
 */
typedef struct zr_byte_count {
    size_t live;
    size_t peak; /* the largest live so far, of this kind alone */
} zr_byte_count_t;

/** Memory of one class. */
typedef struct zr_class_statistics {
    zr_byte_count_t live;      /* requested bytes that were placed in it */
    zr_byte_count_t reserved;  /* mapped bytes of the class; the peak is the class's own */
    size_t largest_hole_bytes; /* mapped and nobody's, in one piece, when the live bytes of the
                                  whole tier rose to their peak */
} zr_class_statistics_t;

typedef struct zr_tier_statistics {
    size_t budget_bytes;
    zr_byte_count_t live;     /* requested bytes of all tags */
    zr_byte_count_t reserved; /* mapped bytes: what the budget limits */
    zr_byte_count_t pending;  /* requested bytes of what is freed but in use by a stream */
    zr_byte_count_t by_tag[ZR_N_TAGS];
    zr_byte_count_t by_lifetime[ZR_N_LIFETIMES]; /* as requested, wherever it is placed */
    size_t n_live;                               /* allocations */
    size_t n_allocations;                        /* since creation */
    size_t n_refused;                            /* that did not fit, since creation */
    size_t n_map_calls;                          /* calls into the device, since creation */
    size_t n_unmap_calls;
    size_t n_move_calls; /* of idle memory to where it was needed */
    zr_class_statistics_t by_class[ZR_N_CLASSES];
} zr_tier_statistics_t;

/** Statistics of one tier since creation, or since the last reset of peaks. */
void zr_allocator_statistics(zr_allocator_t *allocator, zr_tier_t tier,
                             zr_tier_statistics_t *statistics_p);
/** Let every peak, of all tiers, start again from what is live now. */
void zr_allocator_reset_peaks(zr_allocator_t *allocator);

/** Whether all invariants hold (every block, list and sum is walked); logs the first that fails. */
bool zr_allocator_is_valid(zr_allocator_t *allocator);

ZR_END_C
