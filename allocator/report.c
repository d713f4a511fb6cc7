/*
 * What the allocator tells people: names, the out-of-memory message, leaks.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "allocator/internal.h"

#define MIB (1024.0 * 1024.0)

const char *zr_tag_name(zr_tag_t tag) {
    static const char *const names[ZR_N_TAGS] = {"parameters",
                                                 "gradients",
                                                 "optimizer_state",
                                                 "gathered_parameters",
                                                 "gradient_buckets",
                                                 "activations",
                                                 "workspace",
                                                 "staging",
                                                 "data",
                                                 "other"};
    return (unsigned)tag < ZR_N_TAGS ? names[tag] : "?";
}

const char *zr_lifetime_name(zr_lifetime_t lifetime) {
    static const char *const names[ZR_N_LIFETIMES] = {"persistent", "step", "micro_batch", "unit",
                                                      "collective"};
    return (unsigned)lifetime < ZR_N_LIFETIMES ? names[lifetime] : "?";
}

const char *zr_class_name(int class_index) {
    return class_index == ZR_CLASS_PLANNED ? "planned"
                                           : zr_lifetime_name((zr_lifetime_t)class_index);
}

const char *zr_request_name(const zr_allocation_request_t *request) {
    return request->name != NULL ? request->name : "an unnamed tensor";
}

/* ---- text ------------------------------------------------------------------------- */

/* A message in the making; what does not fit is cut. */
typedef struct text {
    char *at;
    size_t left;
} text_t;

static void say(text_t *text, const char *format, ...) ZR_PRINTF(2, 3);

static void say(text_t *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used >= text->left)
        used = text->left - 1;
    text->at += used;
    text->left -= used;
}

/* Bytes that would be "0.0 MiB" are said as such. */
static bool is_small(size_t size_bytes) {
    return (double)size_bytes < 0.05 * MIB;
}

static void say_size(text_t *text, size_t size_bytes) {
    if (is_small(size_bytes))
        say(text, "%s", zr_count_text(size_bytes, "byte").text);
    else
        say(text, "%.1f MiB (%zu bytes)", (double)size_bytes / MIB, size_bytes);
}

/* "(parameters 124.0 MiB, data 96 bytes)"; nothing when nothing is live. */
static void say_tags(text_t *text, const zr_byte_count_t *by_tag) {
    const char *separator = " (";
    for (int i = 0; i < ZR_N_TAGS; i++) {
        size_t live = by_tag[i].live;
        if (live == 0)
            continue;
        if (is_small(live))
            say(text, "%s%s %s", separator, zr_tag_name((zr_tag_t)i),
                zr_count_text(live, "byte").text);
        else
            say(text, "%s%s %.1f MiB", separator, zr_tag_name((zr_tag_t)i), (double)live / MIB);
        separator = ", ";
    }
    if (separator[0] == ',')
        say(text, ")");
}

/* ---- out of memory ------------------------------------------------------------------ */

static bool would_fit(const zr_allocator_t *allocator, const zr_attempt_t *attempt,
                      size_t size_bytes) {
    size_t headroom = attempt->is_machine_full ? 0 : zr_tier_headroom(allocator, attempt->memory);
    return zr_tier_could_fit(attempt->memory, attempt->arena, size_bytes, headroom);
}

/* The largest request that would fit in place of this one. */
static size_t largest_fit(const zr_allocator_t *allocator, const zr_attempt_t *attempt) {
    size_t fits = 0, fails = attempt->size_bytes / ZR_BLOCK_ALIGNMENT;
    while (fails - fits > 1) {
        size_t middle = fits + (fails - fits) / 2;
        if (would_fit(allocator, attempt, middle * ZR_BLOCK_ALIGNMENT))
            fits = middle;
        else
            fails = middle;
    }
    return fits * ZR_BLOCK_ALIGNMENT;
}

/* There may be room, and none that can be used, as it is less than a granule, or all granules are
 * those of other classes: nothing is in pieces. False: that is not so, and nothing is said. */
static bool say_granules(text_t *text, const zr_attempt_t *attempt, size_t largest_bytes) {
    const zr_tier_statistics_t *statistics = &attempt->memory->statistics;
    size_t granule = attempt->arena->granule_bytes, budget = statistics->budget_bytes;
    size_t n_left = (budget - statistics->reserved.live) / granule;
    bool is_too_small = attempt->request->size_bytes > budget / granule * granule;
    if (budget == ZR_NO_BUDGET || (!is_too_small && (n_left > 0 || largest_bytes > 0)))
        return false;
    say(text, "; granules are the cause: memory is reserved in granules of ");
    say_size(text, granule);
    if (is_too_small)
        say(text, ", and the budget has room for %zu of them", budget / granule);
    else
        say(text, ", each for one class of lifetimes, and no granule is left for class \"%s\"",
            attempt->arena->name);
    return true;
}

/* Who has the rank's part of the process. */
static void say_process(text_t *text, const zr_allocator_t *allocator) {
    say(text, "; the memory of the process is the cause: of the ");
    say_size(text, allocator->process_bytes);
    say(text, " that a rank may have of it, ");
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++)
        if (allocator->tiers[i].is_of_process) {
            say(text, "%s has ", zr_tier_name((zr_tier_t)i));
            say_size(text, allocator->tiers[i].statistics.reserved.live);
            say(text, ", ");
        }
    say(text, "the library's tables have ");
    say_size(text, zr_heap_count(allocator->heap).bytes);
}

static void say_cause(text_t *text, const zr_allocator_t *allocator, const zr_attempt_t *attempt,
                      size_t largest_bytes) {
    const zr_tier_statistics_t *statistics = &attempt->memory->statistics;
    size_t asked = attempt->request->size_bytes, budget = statistics->budget_bytes;
    size_t not_live = budget - statistics->live.live;
    if (!attempt->is_machine_full && zr_process_is_tighter(allocator, attempt->memory)) {
        say_process(text, allocator);
    } else if (asked > not_live && budget != ZR_NO_BUDGET) {
        say(text, "; the total is the cause: it is ");
        say_size(text, asked - not_live);
        say(text, " over the budget");
    } else if (attempt->has_no_addresses) {
        say(text, "; the addresses are the cause: class \"%s\" has ", attempt->arena->name);
        say_size(text, attempt->arena->size_bytes);
        say(text, " of them");
    } else if (attempt->is_machine_full) {
        say(text, "; the machine is the cause: it has no memory beyond what is reserved");
    } else if (!say_granules(text, attempt, largest_bytes)) {
        say(text, "; a hole is the cause: ");
        say_size(text, not_live);
        say(text, " of the budget are not live, but the largest hole that class \"%s\" can use is ",
            attempt->arena->name);
        say_size(text, largest_bytes);
    }
}

/* What is worth saying of all advice, each phrase once. */
#define MAX_PHRASES (ZR_N_TAGS + 2)

typedef struct phrases {
    const char *text[MAX_PHRASES];
    size_t n;
} phrases_t;

static void add_phrase(phrases_t *phrases, const char *phrase) {
    if (phrase == NULL)
        return;
    for (size_t i = 0; i < phrases->n; i++)
        if (strcmp(phrases->text[i], phrase) == 0)
            return;
    phrases->text[phrases->n++] = phrase;
}

static void say_advice(text_t *text, const zr_allocator_t *allocator, const zr_attempt_t *attempt) {
    const zr_allocator_advice_t *advice = &allocator->advice;
    const zr_tier_statistics_t *statistics = &attempt->memory->statistics;
    const zr_tier_t tier = attempt->request->tier;
    phrases_t phrases = {.n = 0};
    if (!attempt->is_machine_full && zr_process_is_tighter(allocator, attempt->memory))
        add_phrase(&phrases, advice->process);
    else if (statistics->budget_bytes != ZR_NO_BUDGET && !attempt->is_machine_full)
        add_phrase(&phrases, advice->budget[tier]);
    add_phrase(&phrases, advice->any[tier]);
    for (int i = 0; i < ZR_N_TAGS; i++) {
        size_t live = statistics->by_tag[i].live;
        if (attempt->request->tag == (zr_tag_t)i || live > statistics->live.live / 20)
            add_phrase(&phrases, advice->by_tag[tier][i]);
    }
    for (size_t i = 0; i < phrases.n; i++)
        say(text, "%s%.300s",
            i == 0               ? "; try "
            : i + 1 == phrases.n ? ", or "
                                 : ", ",
            phrases.text[i]);
}

void zr_report_out_of_memory(const zr_allocator_t *allocator, const zr_attempt_t *attempt,
                             char *buffer, size_t size) {
    const zr_allocation_request_t *request = attempt->request;
    const zr_tier_statistics_t *statistics = &attempt->memory->statistics;
    size_t largest = largest_fit(allocator, attempt);
    text_t text = {.at = buffer, .left = size};
    buffer[0] = '\0';

    say(&text, "%s memory: ", zr_tier_name(request->tier));
    say_size(&text, request->size_bytes);
    say(&text, " for \"%.200s\" (%s, lifetime %s) does not fit: ", zr_request_name(request),
        zr_tag_name(request->tag), zr_lifetime_name(request->lifetime));
    if (statistics->budget_bytes != ZR_NO_BUDGET) {
        say_size(&text, statistics->budget_bytes);
        say(&text, " budget, ");
    } else {
        say(&text, "no budget, ");
    }
    say_size(&text, statistics->live.live);
    say(&text, " live");
    say_tags(&text, statistics->by_tag);
    say(&text, ", ");
    say_size(&text, statistics->reserved.live);
    say(&text, " reserved, largest hole ");
    say_size(&text, largest);
    say_cause(&text, allocator, attempt, largest);
    say_advice(&text, allocator, attempt);
}

/* ---- leaks ---------------------------------------------------------------------------- */

void zr_report_leaks(const zr_allocator_t *allocator) {
    size_t n_leaks[ZR_N_MEMORY_TIERS][ZR_N_TAGS] = {{0}};
    for (size_t i = 0; i < allocator->table.capacity; i++) {
        const zr_block_t *block = allocator->table.entries[i].block;
        if (block != NULL)
            n_leaks[block->arena->tier][block->tag]++;
    }
    for (int tier = 0; tier < ZR_N_MEMORY_TIERS; tier++) {
        for (int tag = 0; tag < ZR_N_TAGS; tag++) {
            if (n_leaks[tier][tag] == 0)
                continue;
            size_t live = allocator->tiers[tier].statistics.by_tag[tag].live;
            zr_log_write(
                &allocator->log, ZR_LOG_WARNING, "%s memory: never freed: %s of %s, %.1f MiB (%s)",
                zr_tier_name((zr_tier_t)tier), zr_count_text(n_leaks[tier][tag], "allocation").text,
                zr_tag_name((zr_tag_t)tag), (double)live / MIB, zr_count_text(live, "byte").text);
        }
    }
}
