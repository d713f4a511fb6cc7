/*
 * The allocator: every byte a rank uses in a tier goes through it, with a tag and
 * a lifetime, under a budget that is never exceeded.
 *
 * Each tier is one reserved address range per lifetime class; memory is mapped
 * granule by granule as it is needed and kept for reuse. What counts against the
 * budget is what is mapped ("reserved"), so that holes count too. When a request
 * would exceed the budget, pending frees are waited for, and idle granules of any class
 * are moved to where they are needed. docs/internals/allocator.md explains its error message.
 */
#pragma once

#include "kernels/device.h"

ZR_BEGIN_C

typedef struct zr_allocator zr_allocator_t;

/** How long a tensor lives; set by the caller. */
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

/* Classes of addresses: one per lifetime, and one for tensors placed by a plan
 * (allocator/replay.h). */
#define ZR_CLASS_PLANNED ZR_N_LIFETIMES
#define ZR_N_CLASSES (ZR_N_LIFETIMES + 1)

/** "parameters", "optimizer_state", ... as in reports and JSON. */
const char *zr_tag_name(zr_tag_t tag);
/** "persistent", "step", "micro_batch", "unit", "collective". */
const char *zr_lifetime_name(zr_lifetime_t lifetime);
/** The name of the lifetime, or "planned". */
const char *zr_class_name(int class_index);

#define ZR_NO_BUDGET ((size_t)-1)

/** Advice in out-of-memory errors: phrases such as "a larger --host-memory". Strings are borrowed
 * for the life of the allocator; NULL: none. Equal strings are printed once. */
typedef struct zr_allocator_advice {
    const char *budget[ZR_N_TIERS];            /* unless the machine itself lacks memory */
    const char *process;                       /* if process_bytes is exceeded */
    const char *any[ZR_N_TIERS];               /* whatever the memory is used for */
    const char *by_tag[ZR_N_TIERS][ZR_N_TAGS]; /* for the requested tag, and each tag with at least
                                                  a twentieth of the live bytes */
} zr_allocator_advice_t;

typedef struct zr_allocator_options {
    zr_log_t log;
    size_t budget_bytes[ZR_N_TIERS]; /* ZR_NO_BUDGET: as much as the machine has */
    size_t process_bytes; /* budget for tiers in host memory and tables together; ZR_NO_BUDGET: no
                             limit */
    zr_allocator_advice_t advice;
} zr_allocator_options_t;

/** No budgets, default log, no advice. */
zr_allocator_options_t zr_allocator_options_default(void);

/**
 * Create the allocator of one rank.
 *
 * @param device   borrowed until zr_allocator_destroy
 * @param options  NULL means the defaults; borrowed for the call, except for the strings of
 *                 `advice`
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET if address space is too small
 *
 * Ownership: destroy waits for pending frees, returns all memory and logs what was still live, per
 * tag. Threads: thread-safe; its lock is the innermost one. It is not held during waits, except for
 * pending frees under memory pressure, at marks or before a plan takes effect, and for a stream for
 * which no event could be created.
 */
ZR_NODISCARD zr_status_t zr_allocator_create(zr_device_t *device,
                                             const zr_allocator_options_t *options,
                                             zr_allocator_t **allocator_p);
void zr_allocator_destroy(zr_allocator_t **allocator);

typedef struct zr_allocation_request {
    size_t size_bytes; /* 0 is fine: the pointer is then unique and must not be dereferenced */
    zr_tier_t tier;    /* ZR_TIER_DEVICE or ZR_TIER_HOST */
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    const char *name;    /* for messages: the unit or tensor; borrowed for the call; may be NULL */
    zr_stream_t *stream; /* the first stream to use it; NULL: the CPU, or any stream */
} zr_allocation_request_t;

/**
 * Allocate uninitialised memory, aligned to 256 bytes.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY for metadata; ZR_ERR_BUDGET when it does not fit:
 *         the log has the request, its user, the budget, live bytes per tag, whether the total or
 *         fragmentation is the cause, and advice; ZR_ERR_DEVICE if the device failed, or the work
 *         that pending frees wait for. Errors do not change live allocations.
 */
ZR_NODISCARD zr_status_t zr_allocate(zr_allocator_t *allocator,
                                     const zr_allocation_request_t *request, void **pointer_p);

/**
 * Free an allocation, and set the pointer to NULL; *pointer == NULL is fine.
 *
 * @param stream  the stream whose work queued so far is the last to use the memory: it is reused
 *                only after that work is done. NULL: no stream uses it.
 *
 * Cannot fail: if no event can be created, it waits for the stream itself. A pointer that is not
 * live is logged as an error, and otherwise ignored and left unchanged.
 */
void zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream);

#define ZR_NO_UNIT ((size_t)-1)

/** A position in training: marks divide a step into segments, whose allocations repeat from step to
 * step.
 */
typedef struct zr_mark {
    size_t step;        /* from 1 */
    size_t micro_batch; /* in the step, from 1; 0: after the last one, as in the update */
    size_t unit;        /* unit that computes from now on; ZR_NO_UNIT: none */
    int pass;           /* any number that distinguishes the unit's passes */
} zr_mark_t;

/**
 * Set the position in training, for recordings and replay. The runtime calls it. On a host device
 * with concurrent streams, it waits for frees made before the previous mark.
 *
 * @param mark  borrowed for the call
 */
void zr_allocator_mark(zr_allocator_t *allocator, const zr_mark_t *mark);

/**
 * Return idle memory to the machine: unmap every granule of the tier without allocations. Not
 * needed to stay within the budget; it leaves memory to others. Does not wait.
 *
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_BUDGET or ZR_ERR_DEVICE when the machine refuses
 */
ZR_NODISCARD zr_status_t zr_allocator_trim(zr_allocator_t *allocator, zr_tier_t tier);

/**
 * Bytes of one kind. live <= peak; live counts requested bytes, exactly, from zr_allocate to
 * zr_free, whenever streams execute: these counts are the same on every device.
 */
typedef struct zr_byte_count {
    size_t live;
    size_t peak; /* the largest live so far, of this kind only */
} zr_byte_count_t;

/** Memory of one class. */
typedef struct zr_class_statistics {
    zr_byte_count_t live;      /* requested bytes placed in the class */
    zr_byte_count_t reserved;  /* mapped bytes of the class; the peak is the class's own */
    size_t largest_hole_bytes; /* largest contiguous mapped and free range when live bytes of the
                                  tier reached their peak */
} zr_class_statistics_t;

typedef struct zr_tier_statistics {
    size_t budget_bytes;
    zr_byte_count_t live;     /* requested bytes of all tags */
    zr_byte_count_t reserved; /* mapped bytes: what the budget limits */
    zr_byte_count_t pending;  /* requested bytes freed but still in use by a stream */
    zr_byte_count_t by_tag[ZR_N_TAGS];
    zr_byte_count_t by_lifetime[ZR_N_LIFETIMES]; /* as requested, wherever placed */
    size_t n_live;                               /* allocations */
    size_t n_allocations;                        /* since creation */
    size_t n_refused;                            /* requests that did not fit, since creation */
    size_t n_map_calls;                          /* calls into the device, since creation */
    size_t n_unmap_calls;
    size_t n_move_calls; /* moves of idle memory between classes */
    zr_class_statistics_t by_class[ZR_N_CLASSES];
    size_t at_peak[ZR_N_TAGS]; /* live bytes of each tag when those of all reached their peak, which
                                  they add up to */
    zr_byte_count_t pinned; /* host tier: memory that the system may not move: all that is mapped if
                               the CPU cannot reach the device's memory; else what
                               zr_allocator_count_pinned counted */
} zr_tier_statistics_t;

/** Statistics of one tier since creation, or since the last reset of peaks. */
void zr_allocator_statistics(zr_allocator_t *allocator, zr_tier_t tier,
                             zr_tier_statistics_t *statistics_p);
/** Count host memory that a store has registered with the system: `now` bytes instead of `before`.
 * Returns the bytes of all stores. */
size_t zr_allocator_count_pinned(zr_allocator_t *allocator, size_t before, size_t now);

/** Reset all peaks of all tiers to the current live bytes. */
void zr_allocator_reset_peaks(zr_allocator_t *allocator);

/** Whether all invariants hold (checks every block, list and sum); logs the first violation. */
bool zr_allocator_is_valid(zr_allocator_t *allocator);

ZR_END_C
