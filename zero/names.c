/* A table with open addressing: see names_internal.h. */
#include "zero/names_internal.h"

#include <string.h>
#include <xxhash.h>

#define FIRST_SLOTS 64

/* The slot that has a name, or the empty one where it would be. */
static uint32_t *slot_of(const zr_names_t *names, const zr_named_t *named, const char *text) {
    size_t i = (size_t)XXH3_64bits(text, strlen(text)) & (names->n_slots - 1);
    while (names->slots[i] != 0 &&
           strcmp(named->name_of(named->context, names->slots[i] - 1), text) != 0)
        i = (i + 1) & (names->n_slots - 1);
    return &names->slots[i];
}

size_t zr_names_find(const zr_names_t *names, const zr_named_t *named, const char *text) {
    if (names->n_slots == 0)
        return ZR_NO_NAME;
    uint32_t number = *slot_of(names, named, text);
    return number != 0 ? number - 1 : ZR_NO_NAME;
}

static void put(const zr_names_t *names, const zr_named_t *named, uint32_t number) {
    *slot_of(names, named, named->name_of(named->context, number - 1)) = number;
}

static zr_status_t grow(zr_heap_t *heap, zr_names_t *names, const zr_named_t *named) {
    zr_names_t grown = {.n_slots = names->n_slots == 0 ? FIRST_SLOTS : 2 * names->n_slots,
                        .n_names = names->n_names};
    grown.slots = zr_heap_alloc(heap, grown.n_slots, sizeof(*grown.slots));
    if (grown.slots == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < names->n_slots; i++)
        if (names->slots[i] != 0)
            put(&grown, named, names->slots[i]);
    zr_heap_free(heap, names->slots);
    *names = grown;
    return ZR_OK;
}

zr_status_t zr_names_add(zr_heap_t *heap, zr_names_t *names, const zr_named_t *named,
                         size_t index) {
    if (index >= UINT32_MAX)
        return ZR_ERR_MEMORY;
    if (2 * (names->n_names + 1) > names->n_slots)
        ZR_TRY(grow(heap, names, named));
    put(names, named, (uint32_t)index + 1);
    names->n_names++;
    return ZR_OK;
}
