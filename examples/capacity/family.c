/* Sizes of a family of models: see capacity_family.h. */
#include "examples/capacity/family.h"

#include <string.h>

#define MOST_LAYERS ((size_t)100000)
#define MOST_CHANNELS ((size_t)1000000)
#define MOST_PARAMS 1e15 /* far beyond any machine, and countable in bytes */

/* Round to the nearest, so that proportions are kept as far as whole numbers can. */
static size_t scale(size_t value, size_t factor, size_t divisor) {
    return (value * factor + divisor / 2) / divisor;
}

/* Channels of the model for each head: heads may be wider or narrower together than the model. */
static size_t channels_per_head(const capacity_family_t *family) {
    const zr_decoder_shape_t *like = &family->like.of.decoder;
    if (family->like.kind != ZR_MODEL_DECODER)
        return family->head_size;
    size_t channels = scale(family->head_size, like->channels, like->heads * like->head_size);
    return channels > 0 ? channels : 1;
}

size_t capacity_family_step(const capacity_family_t *family) {
    const zr_decoder_shape_t *like = &family->like.of.decoder;
    bool shares = family->like.kind == ZR_MODEL_DECODER;
    return channels_per_head(family) * (shares ? like->heads / like->kv_heads : 1);
}

/* Layers that a longer model has are as those that it repeats. */
static void repeat_layers(const zr_decoder_shape_t *like, const uint64_t *set, size_t n_layers,
                          uint64_t *layers_p) {
    memset(layers_p, 0, ZR_DECODER_SET_LAYERS / 8);
    for (size_t i = 0; i < n_layers && i < ZR_DECODER_SET_LAYERS; i++)
        if (zr_decoder_has_layer(like, set, i % like->n_layers))
            layers_p[i / 64] |= (uint64_t)1 << (i % 64);
}

/* Beyond the layers that have bits, after how many they begin again; 0: all are alike. */
static size_t repeat_of(const zr_decoder_shape_t *like, size_t n_layers) {
    bool is_alike = true;
    size_t period = like->repeat > 0 ? like->repeat : like->n_layers;
    for (size_t i = 1; i < like->n_layers && i < ZR_DECODER_SET_LAYERS; i++)
        is_alike &= zr_decoder_has_layer(like, like->windowed, i) ==
                        zr_decoder_has_layer(like, like->windowed, 0) &&
                    zr_decoder_has_layer(like, like->unrotated, i) ==
                        zr_decoder_has_layer(like, like->unrotated, 0);
    return is_alike || n_layers <= ZR_DECODER_SET_LAYERS ? 0 : period;
}

static zr_decoder_shape_t make_decoder(const capacity_family_t *family, size_t layers,
                                       size_t channels) {
    const zr_decoder_shape_t *like = &family->like.of.decoder;
    zr_decoder_shape_t shape = *like;
    shape.n_layers = layers;
    shape.channels = channels;
    shape.heads = channels / channels_per_head(family);
    shape.kv_heads = shape.heads / (like->heads / like->kv_heads);
    shape.head_size = family->head_size;
    shape.wide = scale(channels, like->wide, like->channels);
    shape.seq = family->seq;
    shape.vocab = family->vocab;
    shape.repeat = repeat_of(like, layers);
    size_t n_bits = shape.repeat > 0 ? shape.repeat : layers;
    repeat_layers(like, like->windowed, n_bits, shape.windowed);
    repeat_layers(like, like->unrotated, n_bits, shape.unrotated);
    return shape;
}

static zr_model_shape_t make_shape(const capacity_family_t *family, size_t layers,
                                   size_t channels) {
    if (family->like.kind == ZR_MODEL_DECODER)
        return (zr_model_shape_t){.kind = ZR_MODEL_DECODER,
                                  .of.decoder = make_decoder(family, layers, channels)};
    return (zr_model_shape_t){.kind = ZR_MODEL_GPT,
                              .of.gpt = {.n_layers = layers,
                                         .channels = channels,
                                         .heads = channels / family->head_size,
                                         .seq = family->seq,
                                         .vocab = family->vocab}};
}

static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static bool is_countable(const zr_model_shape_t *shape) {
    const zr_log_t silent = {.sink = drop, .level = ZR_LOG_ERROR, .rank = -1};
    zr_model_sizes_t sizes = zr_model_shape_sizes(shape);
    double c = (double)sizes.channels, rows = (double)sizes.vocab + (double)sizes.seq;
    return sizes.n_layers <= MOST_LAYERS && sizes.channels <= MOST_CHANNELS &&
           (double)sizes.n_layers * 13 * c * c + rows * c < MOST_PARAMS &&
           zr_model_shape_check(shape, &silent) == ZR_OK;
}

/* The fewest layers of a width. */
static size_t least_layers(const capacity_family_t *family, size_t channels) {
    return (channels + family->aspect - 1) / family->aspect;
}

/* How many depths a width has: those of fewer parameters than the next width begins with. */
static size_t count_depths(const capacity_family_t *family, size_t channels) {
    size_t first = least_layers(family, channels), wider = channels + capacity_family_step(family);
    zr_model_shape_t own = make_shape(family, first, channels), longer;
    zr_model_shape_t next = make_shape(family, least_layers(family, wider), wider);
    longer = make_shape(family, first + 1, channels);
    size_t layer = zr_model_shape_n_params(&longer) - zr_model_shape_n_params(&own);
    return (zr_model_shape_n_params(&next) - zr_model_shape_n_params(&own) - 1) / layer + 1;
}

static bool grow_both(const capacity_family_t *family, size_t index, zr_model_shape_t *shape) {
    size_t step = capacity_family_step(family);
    for (size_t c = step; c <= MOST_CHANNELS; c += step) {
        *shape = make_shape(family, least_layers(family, c), c);
        if (!is_countable(shape))
            return false;
        size_t n_depths = count_depths(family, c);
        if (index < n_depths) {
            *shape = make_shape(family, least_layers(family, c) + index, c);
            return is_countable(shape);
        }
        index -= n_depths;
    }
    return false;
}

bool capacity_family_shape(const capacity_family_t *family, size_t index,
                           zr_model_shape_t *shape_p) {
    zr_model_shape_t shape;
    bool good;
    if (index > MOST_CHANNELS)
        return false;
    if (family->channels == 0 && family->layers == 0) {
        good = grow_both(family, index, &shape);
    } else {
        size_t layers = family->layers != 0 ? family->layers : index + 1;
        size_t channels =
            family->channels != 0 ? family->channels : (index + 1) * capacity_family_step(family);
        shape = make_shape(family, layers, channels);
        good = is_countable(&shape);
    }
    if (good)
        *shape_p = shape;
    return good;
}
