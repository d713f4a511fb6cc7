#include "kernels/base/waiting_internal.h"

#include <assert.h>
#include <string.h>

static uint64_t bit_of(uint32_t line) {
    assert(line <= ZR_MAX_LINE);
    return line == ZR_NO_LINE ? 0 : (uint64_t)1 << line;
}

static void remove_at(zr_waiting_t *waiting, size_t at) {
    waiting->n--;
    memmove(&waiting->things[at], &waiting->things[at + 1],
            (waiting->n - at) * sizeof(*waiting->things));
}

static void begin(zr_waiting_t *waiting, size_t at) {
    size_t number = waiting->things[at].number;
    remove_at(waiting, at);
    waiting->rules->begin(waiting->context, number);
}

/* Those of other lines than the `held` ones. */
static void go_on(zr_waiting_t *waiting, uint64_t held) {
    for (size_t at = 0; at < waiting->n;) {
        uint64_t bit = bit_of(waiting->things[at].line);
        bool is_held = (held & bit) != 0;
        if (!is_held && waiting->rules->is_ready(waiting->context, waiting->things[at].number)) {
            begin(waiting, at);
            continue;
        }
        held |= bit;
        at++;
    }
}

void zr_waiting_add(zr_waiting_t *waiting, size_t number, uint32_t line) {
    waiting->things[waiting->n++] = (zr_waiting_thing_t){number, line};
    if (line != ZR_NO_LINE)
        go_on(waiting, ~bit_of(line));
    else if (waiting->rules->is_ready(waiting->context, number))
        begin(waiting, waiting->n - 1);
}

void zr_waiting_progress(zr_waiting_t *waiting) {
    go_on(waiting, 0);
}

bool zr_waiting_has_line(const zr_waiting_t *waiting, uint32_t line) {
    for (size_t i = 0; i < waiting->n && line != ZR_NO_LINE; i++)
        if (waiting->things[i].line == line)
            return true;
    return false;
}

/* Where it is; n: it does not wait. */
static size_t find(const zr_waiting_t *waiting, size_t number) {
    size_t at = 0;
    while (at < waiting->n && waiting->things[at].number != number)
        at++;
    return at;
}

/* The first of its line. */
static size_t first_of_line(const zr_waiting_t *waiting, size_t at) {
    uint32_t line = waiting->things[at].line;
    for (size_t i = 0; i < at && line != ZR_NO_LINE; i++)
        if (waiting->things[i].line == line)
            return i;
    return at;
}

void zr_waiting_finish(zr_waiting_t *waiting, size_t number) {
    for (size_t at = find(waiting, number); at < waiting->n; at = find(waiting, number)) {
        size_t first = waiting->things[first_of_line(waiting, at)].number;
        waiting->rules->make_ready(waiting->context, first);
        size_t now = find(waiting, first);
        if (now < waiting->n)
            begin(waiting, now);
    }
}

void zr_waiting_remove(zr_waiting_t *waiting, size_t number) {
    size_t at = find(waiting, number);
    if (at < waiting->n)
        remove_at(waiting, at);
}
