/*
 * The files beside a model of Hugging Face that a checkpoint carries along, so that what is
 * exported of it generates: the configurations, the tokenizer, the chat template.
 */
#pragma once

#include "zero/zero.h"

/**
 * Check those of a folder: each is a file of at most CARRY_MAX_BYTES in the folder itself, or in
 * the cache of Hugging Face that it is a part of; JSON is whole; and no token of a tokenizer has an
 * id that the model has no word for.
 *
 * @param vocab  words of the model
 * @return ZR_OK; ZR_ERR_FORMAT; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_MEMORY. Logged with file and
 *         token
 */
ZR_NODISCARD zr_status_t carry_check(const char *folder, size_t vocab, const zr_log_t *log);
#define CARRY_MAX_BYTES ((uint64_t)64 << 20)

/** The part of it that is of a file's content: JSON, and which ids a tokenizer has, where the name
 * is that of one. ZR_ERR_FORMAT, logged, once; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t carry_check_text(const char *name, const char *text, size_t n_bytes,
                                          size_t vocab, const char *path, const zr_log_t *log);

/** Write those of a folder into a checkpoint; what else is in the folder is said. */
ZR_NODISCARD zr_status_t carry_import(const char *folder, zr_checkpoint_writer_t *writer,
                                      const zr_log_t *log);
/** Let a run that begins write them into its checkpoints: zr_runtime_carry. */
ZR_NODISCARD zr_status_t carry_into_run(const char *folder, zr_runtime_t *runtime,
                                        const zr_log_t *log);

/** Read a file that a checkpoint carries; *text_p is NULL where it has none. Free it. */
ZR_NODISCARD zr_status_t carry_read(const zr_checkpoint_t *checkpoint, const char *name,
                                    const zr_log_t *log, char **text_p, size_t *n_bytes_p);

/** Write what a checkpoint carries into a folder, but for config.json, which is the writer's. */
ZR_NODISCARD zr_status_t carry_export(const zr_checkpoint_t *checkpoint, const char *folder,
                                      const zr_log_t *log);
