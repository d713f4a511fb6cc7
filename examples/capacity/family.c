/* Sizes of a family of models: see capacity_family.h. */
#include "examples/capacity/family.h"

#include <stdio.h>

#define MOST_LAYERS ((size_t)100000)
#define MOST_CHANNELS ((size_t)1000000)
#define MOST_PARAMS 1e15 /* far beyond any machine, and countable in bytes */

static zr_gpt_shape_t make_shape(const capacity_family_t *family, size_t layers, size_t channels) {
    return (zr_gpt_shape_t){.n_layers = layers,
                            .channels = channels,
                            .heads = channels / family->head_size,
                            .seq = family->seq,
                            .vocab = family->vocab};
}

static bool is_countable(const zr_gpt_shape_t *shape) {
    double c = (double)shape->channels, rows = (double)shape->vocab + (double)shape->seq;
    return shape->n_layers <= MOST_LAYERS && shape->channels <= MOST_CHANNELS &&
           (double)shape->n_layers * 13 * c * c + rows * c < MOST_PARAMS;
}

/* The fewest layers of a width. */
static size_t least_layers(const capacity_family_t *family, size_t channels) {
    return (channels + family->aspect - 1) / family->aspect;
}

/* How many depths a width has: those of fewer parameters than the next width begins with. */
static size_t count_depths(const capacity_family_t *family, size_t channels) {
    size_t first = least_layers(family, channels), wider = channels + family->head_size;
    zr_gpt_shape_t own = make_shape(family, first, channels), longer = own;
    zr_gpt_shape_t next = make_shape(family, least_layers(family, wider), wider);
    longer.n_layers++;
    size_t layer = zr_gpt_n_params(&longer) - zr_gpt_n_params(&own);
    return (zr_gpt_n_params(&next) - zr_gpt_n_params(&own) - 1) / layer + 1;
}

static bool grow_both(const capacity_family_t *family, size_t index, zr_gpt_shape_t *shape) {
    for (size_t c = family->head_size; c <= MOST_CHANNELS; c += family->head_size) {
        *shape = make_shape(family, least_layers(family, c), c);
        if (!is_countable(shape))
            return false;
        size_t n_depths = count_depths(family, c);
        if (index < n_depths) {
            shape->n_layers += index;
            return is_countable(shape);
        }
        index -= n_depths;
    }
    return false;
}

bool capacity_family_shape(const capacity_family_t *family, size_t index, zr_gpt_shape_t *shape_p) {
    zr_gpt_shape_t shape;
    bool good;
    if (index > MOST_CHANNELS)
        return false;
    if (family->channels == 0 && family->layers == 0) {
        good = grow_both(family, index, &shape);
    } else {
        size_t layers = family->layers != 0 ? family->layers : index + 1;
        size_t channels =
            family->channels != 0 ? family->channels : (index + 1) * family->head_size;
        shape = make_shape(family, layers, channels);
        good = is_countable(&shape);
    }
    if (good)
        *shape_p = shape;
    return good;
}

void capacity_model_text(const zr_gpt_shape_t *shape, char text[CAPACITY_MODEL_BYTES]) {
    snprintf(text, CAPACITY_MODEL_BYTES, "layers=%zu,channels=%zu,heads=%zu,seq=%zu,vocab=%zu",
             shape->n_layers, shape->channels, shape->heads, shape->seq, shape->vocab);
}
