/*
 * Options that a checkpoint keeps: those that decide the result. A run that goes on has them, but
 * for what its own command and its --config say.
 */
#pragma once

#include "examples/common/json.h"
#include "examples/train/options.h"

/** An object with the options of a run, each as text; NULL: no memory. The caller drops it. */
json_t *train_kept_json(const train_options_t *options);

/**
 * Set what options->kept has, over defaults. What a command says of the same goes over it.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged, when a value is not one of this version
 */
ZR_NODISCARD zr_status_t train_kept_take(train_options_t *options, const zr_log_t *log);

/** Whether the checkpoint has a value for an option, and it counts. */
bool train_kept_has(const train_options_t *options, const char *name);

/** Say what of the checkpoint is used without having been given, and what is other than there. */
void train_kept_say(const train_options_t *options, const zr_log_t *log);
