/*
 * A model on one rank, for tests: everything that zr_gpt_create needs, and its insides.
 */
#pragma once

#include "models/gpt2/internal.h"
#include "tests/common/test.h"

typedef struct fixture_options {
    zr_gpt_shape_t shape;
    zr_transformer_options_t gpt;
    zr_activation_options_t activations;
    zr_dtype_t dtype;
    size_t micro_batch, grad_accum;
    int n_threads;
    double lr;
    size_t device_memory_bytes; /* 0: no budget */
} fixture_options_t;

typedef struct fixture {
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_model_t *gpt;
    size_t n_tensors; /* with those of adapters, which come last: low_rank.h */
    size_t n_of_model; /* without those */
    char last_error[512];
} fixture_t;

/** Up to zr_model_commit; its status and that of zr_gpt_create are handed on, all else succeeds. */
zr_status_t fixture_open(fixture_t *fixture, const fixture_options_t *options);
void fixture_close(fixture_t *fixture);

/** The parameters in the model's order, then those of adapters: layer by layer, the linear ones in
 * their order, two each. */
zr_param_t *fixture_param(fixture_t *fixture, size_t index);
zr_unit_t *fixture_unit(fixture_t *fixture, size_t index);

void fixture_free_tensors(const fixture_t *fixture, double **tensors);

/** What the model computes with: the master weights, rounded to the parameters' dtype. */
double **fixture_read_params(fixture_t *fixture);
/** The gradients so far, at stage 0 and in a micro-batch of the test's own. Frozen ones are 0. */
double **fixture_read_gradients(fixture_t *fixture);

/** b * t tokens and their successors, from a seed. */
void fixture_tokens(size_t vocab, uint64_t seed, size_t n, int32_t *tokens, int32_t *targets);

