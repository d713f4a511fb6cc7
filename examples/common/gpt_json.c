/* See gpt_json.h. */
#include "examples/common/gpt_json.h"

#include "examples/common/json.h"

json_t *gpt_shape_json(const zr_gpt_shape_t *shape) {
    zr_gpt_size_t sizes[ZR_GPT_N_SIZES];
    json_t *object = json_object();
    zr_gpt_shape_sizes(shape, sizes);
    for (size_t i = 0; i < ZR_GPT_N_SIZES; i++)
        json_put(&object, sizes[i].name, json_count(sizes[i].value));
    return object;
}
