/* How alike two names are: for messages that answer a slip with what was meant. */
#include "zero/nearest_internal.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "zero/options.h"

enum {
    NAME_MAX_CHARS = 64,  /* longer than any known name; a longer one is like none */
    LEAST_PART_CHARS = 3, /* of a name, to be taken for it */
    EDIT_COST = 4,        /* a letter too many, too few, or another one */
    SWAP_COST = 3         /* two neighbours swapped: the likelier slip where both would do */
};

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t zr_name_distance(const char *a, const char *b) {
    if (strlen(a) > NAME_MAX_CHARS || strlen(b) > NAME_MAX_CHARS)
        return SIZE_MAX;
    size_t rows[3][NAME_MAX_CHARS + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = j * EDIT_COST;
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = i * EDIT_COST;
        for (size_t j = 1; j <= n_b; j++) {
            int letter_a = tolower((unsigned char)a[i - 1]);
            int letter_b = tolower((unsigned char)b[j - 1]);
            row[j] = min_size(min_size(last[j], row[j - 1]) + EDIT_COST,
                              last[j - 1] + (letter_a != letter_b ? EDIT_COST : 0));
            if (i > 1 && j > 1 && letter_a == tolower((unsigned char)b[j - 2]) &&
                letter_b == tolower((unsigned char)a[i - 2]))
                row[j] = min_size(row[j], before[j - 2] + SWAP_COST);
        }
        size_t *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[n_b];
}

size_t zr_name_slip_limit(const char *name) {
    return EDIT_COST * min_size((strlen(name) + 2) / 3, 4);
}

static bool contains(const char *name, const char *word) {
    size_t n = strlen(word);
    for (; *name != '\0'; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == tolower((unsigned char)word[i]))
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* A part of a name comes after all slips. SIZE_MAX: nothing alike. */
static size_t unlikeness(const char *word, const char *name) {
    size_t distance = zr_name_distance(word, name), n = strlen(word);
    if (distance <= zr_name_slip_limit(word))
        return distance;
    return n >= LEAST_PART_CHARS && n <= NAME_MAX_CHARS && contains(name, word)
               ? EDIT_COST * NAME_MAX_CHARS + strlen(name)
               : SIZE_MAX;
}

const char *zr_name_nearest(const char *word, const char *const *names, size_t n_names) {
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < n_names; i++) {
        size_t distance = unlikeness(word, names[i]);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
