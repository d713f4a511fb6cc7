/*
 * What zero-checkpoint's export and import share: whose fault an error is, progress, and what is
 * said of a model.
 */
#pragma once

#include "examples/checkpoint/commands.h"
#include "examples/weights/weights.h"

/** What the program exits with: bad input is what a file or an option is to blame for. */
int exchange_code(zr_status_t status);

/**
 * Check that what an option names can be made where it is to be, before work that would be lost.
 * What is there already is for the writer to refuse.
 *
 * @param option     as the user wrote it: "-o"
 * @param is_within  files are made in `path`, where that is a folder; else beside it
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged
 */
ZR_NODISCARD zr_status_t exchange_check_place(const char *option, const char *path, bool is_within,
                                              const zr_log_t *log);

/** Progress of so many elements, on the program's progress line. */
typedef struct exchange_progress {
    messages_t *messages; /* NULL: none is shown */
    const char *verb;     /* "exported" */
    uint64_t n_elems;     /* of all */
} exchange_progress_t;
/** As weights_export_t and weights_import_t want it; `progress` is of the type above. */
void exchange_show(void *progress, uint64_t n_elems);

/** Read --model. ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t exchange_model(const char *value, const zr_log_t *log,
                                        zr_model_shape_t *shape_p);

/** Put "model", "tensors" and "parameters" into a report; false when memory ends. */
void exchange_describe(const weights_t *weights, json_t **object_p);
