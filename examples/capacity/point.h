/*
 * One capacity as an object of JSON, which is what all output is made of, and what is kept of a run
 * that was stopped: docs/reference/json.md has its fields.
 */
#pragma once

#include <jansson.h>

#include "examples/capacity/search.h"
#include "examples/capacity/verify.h"

/** What says which capacity it is, without any of what was found; NULL: no memory. */
json_t *capacity_point_key(const capacity_case_t *its_case, const capacity_place_t *place);
/** Whether a point is the one of a key. */
bool capacity_point_is(const json_t *point, const json_t *key);

/** What a search has found, not verified; NULL: no memory. */
json_t *capacity_point_object(const capacity_search_t *search);
/** Add what came of verifying it; false: no memory. */
bool capacity_point_prove(json_t *point, const capacity_proof_t *proof);
/** Whether two points ask for the same two runs: then what is proved of one is of the other. */
bool capacity_point_runs_as(const json_t *point, const json_t *other);

/** Whether the point is all that was asked for: of one that was trained, that it is proved. */
bool capacity_point_is_good(const json_t *point);

/* ---- reading it ---- */

/** A number of the point, by a path such as "largest.bytes.states"; 0 where it is not there. */
double capacity_point_number(const json_t *point, const char *path);
/** A text likewise; "". */
const char *capacity_point_text(const json_t *point, const char *path);
/** Whatever is there; NULL: nothing. Borrowed. */
const json_t *capacity_point_at(const json_t *point, const char *path);
