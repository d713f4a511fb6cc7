/*
 * Whether what a JSON parser made of a text is all of it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/**
 * Compare a text with what was parsed from it: as many strings and numbers, in the same order, the
 * strings as long and the numbers as large. jansson collects a token in a buffer, does not look
 * whether the buffer could grow, and goes on without the characters that had no room.
 *
 * @param text  ends in '\0'; it has been parsed, so it is JSON, and no key stands twice
 */
bool zr_config_is_whole(const char *text, const json_t *root);
