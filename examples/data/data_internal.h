/*
 * What the order of the data (data.c) and its reader (reader.c) share.
 */
#pragma once

#include "examples/data/data.h"
#include "examples/data/source.h"

struct data {
    zr_log_t log;
    data_source_t *sources; /* [n_sources], all of one kind; owned */
    size_t n_sources;
    size_t seq;
    size_t seq_min; /* 1 to seq */
    size_t vocab;
    uint64_t seed;
    bool in_order;
    bool is_text;
    uint64_t hash;
};

/** A window. */
typedef struct data_place {
    const data_source_t *source;
    size_t window;
} data_place_t;

/** Sequence `index` of the run. */
data_place_t data_place(const data_t *data, uint64_t index);
