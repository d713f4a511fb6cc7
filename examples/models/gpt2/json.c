/* See gpt_json.h. */
#include "examples/models/gpt2/json.h"

#include "examples/common/json.h"

json_t *gpt_shape_json(const gpt_shape_t *shape) {
    gpt_size_t sizes[GPT_N_SIZES];
    json_t *object = json_object();
    gpt_shape_sizes(shape, sizes);
    for (size_t i = 0; i < GPT_N_SIZES; i++)
        json_put(&object, sizes[i].name, json_count(sizes[i].value));
    return object;
}
