/* What a plan lacks, in JSON. */
#include "examples/plan/lack.h"

#include "examples/common/json.h"

json_t *plan_lack_object(const zr_run_lack_t *lack) {
    json_t *object = json_object();
    json_put(&object, "tier", json_string(zr_tier_name(lack->tier)));
    json_put(&object, "of_both", json_boolean(lack->is_of_both));
    json_put(&object, "needed", json_count(lack->needed_bytes));
    json_put(&object, "there", json_count(lack->there_bytes));
    json_put(&object, "tag", json_string(zr_tag_name(lack->tag)));
    json_put(&object, "tag_bytes", json_count(lack->tag_bytes));
    return object;
}
