/*
 * Low-rank adapters (LoRA): for a frozen weight W, y = x W + (alpha / rank) (x A^T) B^T, with A
 * [rank, n_in] and B [n_out, rank] trained. Names, shapes and initial values are those of Hugging
 * Face's PEFT: A is uniform in +-1 / sqrt(n_in), B is 0.
 *
 * Source: Hu et al. 2021.
 */
#pragma once

#include "models/shape.h"

ZR_BEGIN_C

#define ZR_LORA_MAX_RANK 4096
#define ZR_LORA_TARGETS_BYTES 2048
/** Suffixes of its parameters' names, after the layer's name. */
#define ZR_LORA_A_NAME "lora_A.weight"
#define ZR_LORA_B_NAME "lora_B.weight"

typedef struct zr_lora {
    zr_part_adapter_t adapter; /* for zr_transformer_options_t.adapter */
    size_t rank;
    double alpha;
    char targets[ZR_LORA_TARGETS_BYTES]; /* comma-separated names of linear layers, or suffixes
                                            after a dot: "q_proj,mlp.up_proj"; "all-linear": all */
} zr_lora_t;

#define ZR_LORA_ALL "all-linear"

/** The default adapter: ZR_LORA_ALL, rank 8 and alpha 8.
 */
zr_lora_t zr_lora_usual(void);

/**
 * Read "rank=16,alpha=32,targets=q_proj,v_proj": in any order; missing keys have the default value.
 *
 * @param log  gets errors, which begin with the text
 * @return ZR_OK; ZR_ERR_ARGUMENT for an unknown key, or a value that is not allowed
 */
ZR_NODISCARD zr_status_t zr_lora_read(const char *text, const zr_log_t *log, zr_lora_t *lora_p);

typedef struct zr_lora_text {
    char text[ZR_LORA_TARGETS_BYTES + 96];
} zr_lora_text_t;
/** Key of that text in a checkpoint's trainer_json, if there are adapters. */
#define ZR_LORA_KEY "lora"
/** The adapter as text, in the syntax of zr_lora_read. */
zr_lora_text_t zr_lora_text(const zr_lora_t *lora);

/** Whether a linear layer, "h.0.attn.c_attn", has an adapter. */
bool zr_lora_has_target(const zr_lora_t *lora, const char *layer);

/** Whether a parameter is an A or a B. */
bool zr_lora_is_factor(const char *name);

/** Check that a model has layers for all targets: ZR_OK; ZR_ERR_ARGUMENT, logged with the missing
 * target and the existing layers; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_lora_check(const zr_lora_t *lora, const zr_model_shape_t *shape,
                                       const zr_log_t *log);

ZR_END_C
