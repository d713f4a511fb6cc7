/* A table with open addressing: see names_internal.h. */
#include "zero/names_internal.h"

#include <string.h>
#include <xxhash.h>

#define FIRST_SLOTS 64

/* The slot that has a name, or the empty one where it would be. */
static zr_name_t *slot_of(zr_name_t *slots, size_t n_slots, const char *text) {
    size_t i = (size_t)XXH3_64bits(text, strlen(text)) & (n_slots - 1);
    while (slots[i].text != NULL && strcmp(slots[i].text, text) != 0)
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

size_t zr_names_find(const zr_names_t *names, const char *text) {
    if (names->n_slots == 0)
        return ZR_NO_NAME;
    const zr_name_t *slot = slot_of(names->slots, names->n_slots, text);
    return slot->text != NULL ? slot->index : ZR_NO_NAME;
}

static zr_status_t grow(zr_heap_t *heap, zr_names_t *names) {
    size_t n_slots = names->n_slots == 0 ? FIRST_SLOTS : 2 * names->n_slots;
    zr_name_t *slots = zr_heap_alloc(heap, n_slots, sizeof(*slots));
    if (slots == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < names->n_slots; i++)
        if (names->slots[i].text != NULL)
            *slot_of(slots, n_slots, names->slots[i].text) = names->slots[i];
    zr_heap_free(heap, names->slots);
    names->slots = slots;
    names->n_slots = n_slots;
    return ZR_OK;
}

zr_status_t zr_names_add(zr_heap_t *heap, zr_names_t *names, const char *text, size_t index) {
    if (2 * (names->n_names + 1) > names->n_slots)
        ZR_TRY(grow(heap, names));
    *slot_of(names->slots, names->n_slots, text) = (zr_name_t){.text = text, .index = index};
    names->n_names++;
    return ZR_OK;
}
