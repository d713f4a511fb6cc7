/*
 * A manifest to break: a small valid one, as jansson's objects, changed by hand, sealed and parsed
 * again.
 */
#pragma once

#include <jansson.h>

#include "tests/common/kept_log.h"
#include "zero/checkpoint/manifest_internal.h"

/** Two units, three tensors, two files and four extents; clear it with zr_manifest_clear. */
zr_manifest_t sample_manifest(void);

/** The text of the sample's manifest; free it. */
char *sample_text(void);

/** The sample's manifest as an object. */
json_t *sample_json(void);

/** Print an object as a manifest is, sealed: its "xxh3" is put last. Free it. */
char *sample_seal(json_t *root);

/** Parse an object so; the status, with its message in `kept`. What was parsed is freed. */
zr_status_t sample_parse(json_t *root, kept_log_t *kept);

/** Write the sample's manifest into a folder, as of a step, and its files, of zeros. */
void sample_write(const char *folder, size_t step);
