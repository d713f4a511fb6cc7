/*
 * Model files of llm.c: 256 whole numbers of 32 bits, then the parameters, of all layers together
 * kind by kind in the order of zr_gpt_kind_t. Version 3 is of fp32, version 5 of bf16. Weights of
 * linear layers are [out, in], so they are transposed here; the embedding has more rows than words,
 * of zeros. Source: train_gpt2.py of llm.c, write_model.
 */
#pragma once

#include "models/gpt2/tensors.h"
#include "examples/weights/weights.h"

#define LLMC_MAGIC 20240326
#define LLMC_HEADER_INTS 256
#define LLMC_HEADER_BYTES ((size_t)LLMC_HEADER_INTS * 4)
/** What files that llm.c writes round the vocabulary up to. */
#define LLMC_VOCAB_MULTIPLE 128

typedef struct llmc_header {
    zr_gpt_shape_t shape;
    size_t padded_vocab;
    element_kind_t kind; /* fp32 or bf16 */
} llmc_header_t;

/**
 * Read a header, and check it against the file's size.
 *
 * @param bytes       [LLMC_HEADER_BYTES]
 * @param file_bytes  of the whole file
 * @return ZR_OK; ZR_ERR_FORMAT: logged
 */
ZR_NODISCARD zr_status_t llmc_parse(const void *bytes, uint64_t file_bytes, const char *where,
                                    const zr_log_t *log, llmc_header_t *header_p);
/** Make one. ZR_ERR_ARGUMENT, logged, when a number does not fit, or there is no version for the
 * kind. */
ZR_NODISCARD zr_status_t llmc_build(const llmc_header_t *header, const zr_log_t *log,
                                    int32_t ints[LLMC_HEADER_INTS]);

/** The header of a model in a kind, with the padding that llm.c has. */
llmc_header_t llmc_header_of(const zr_gpt_shape_t *shape, element_kind_t kind);

/** Where a parameter begins in the file. */
uint64_t llmc_offset_bytes(const llmc_header_t *header, const zr_gpt_tensor_t *tensor);
/** Bytes of the whole file. */
uint64_t llmc_file_bytes(const llmc_header_t *header);

/** weights_open of a file of llm.c. */
ZR_NODISCARD zr_status_t weights_open_llmc(const char *path, const zr_model_shape_t *model,
                                           const zr_log_t *log, weights_t **weights_p);
