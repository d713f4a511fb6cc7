/*
 * JSON as people write it by hand, and as DeepSpeed reads it (Hjson), as strict JSON. Internal to
 * zero/.
 */
#pragma once

#include <stddef.h>

/**
 * Copy a text, with blanks for comments (#, //, between slashes and asterisks) and for commas after
 * the last item, with commas where lines end without, with double quotes around keys that have none
 * or single ones, and around strings that have single ones. Lines stay lines, so that a parser's
 * messages name the right one; what is no JSON even so is left to the parser.
 *
 * @param n_bytes_p  of the copy, which ends with a zero
 * @return the caller frees it; NULL: no memory
 */
char *zr_json_make_strict(const char *text, size_t n_bytes, size_t *n_bytes_p);
