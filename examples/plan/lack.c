/* What a plan lacks, in JSON. */
#include "examples/plan/lack.h"

#include "examples/common/json.h"

json_t *plan_lack_object(const zr_run_lack_t *lack) {
    return JSON_OBJECT(
        {"tier", json_string(zr_tier_name(lack->tier))},
        {"of_both", json_boolean(lack->is_of_both)},
        {"of_process", json_boolean(lack->is_of_process)},
        {"of_pinned", json_boolean(lack->is_pinned)}, {"needed", json_count(lack->needed_bytes)},
        {"there", json_count(lack->there_bytes)}, {"tag", json_string(zr_tag_name(lack->tag))},
        {"tag_bytes", json_count(lack->tag_bytes)});
}
