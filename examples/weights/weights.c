/* An index is known by its ending, .json; what other files are is seen from what they begin with.
 */
#include "examples/weights/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/weights/in_file.h"
#include "examples/weights/llmc.h"
#include "examples/weights/weights_hf.h"

/* Files that are often given instead of weights, by what they begin with. A pickle of PyTorch is a
   zip archive; it would run what it has in it. */
static const struct {
    const char *begin, *said;
} others[] = {
    {"PK\3\4",
     "a file of PyTorch's own kind, which is not read; save the model as safetensors (with "
     "save_pretrained)"},
    {"GGUF", "quantised weights of llama.cpp (GGUF), which are not read; give the model that they "
             "were made of, as safetensors"},
    {"version https://git-lfs",
     "a pointer of git-lfs, not the file itself; fetch it with git lfs pull"},
};

zr_status_t weights_look_at(const char *path, const zr_log_t *log, bool *is_llmc_p) {
    in_file_t file;
    char begin[32] = "";
    int32_t magic;
    ZR_TRY(in_file_open(path, log, &file));
    size_t n = file.size_bytes < sizeof(begin) ? (size_t)file.size_bytes : sizeof(begin);
    zr_status_t status = in_file_read(&file, begin, n, 0, log);
    in_file_close(&file);
    ZR_TRY(status);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(begin, others[i].begin, strlen(others[i].begin)) == 0)
            return zr_fail(log, ZR_ERR_FORMAT, "%s: %s", path, others[i].said);
    memcpy(&magic, begin, sizeof(magic));
    *is_llmc_p = magic == LLMC_MAGIC;
    return ZR_OK;
}

zr_status_t weights_open(const char *const *paths, size_t n_paths, const zr_model_shape_t *model,
                         const zr_log_t *log, weights_t **weights_p) {
    bool is_llmc = false;
    for (size_t i = 0; i < n_paths; i++) {
        if (n_paths == 1 && files_is_folder(paths[i]))
            break;
        ZR_TRY(weights_look_at(paths[i], log, &is_llmc));
        if (is_llmc && n_paths > 1)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s is a model file of llm.c, which is a whole model; name it alone",
                           paths[i]);
    }
    return is_llmc ? weights_open_llmc(paths[0], model, log, weights_p)
                   : weights_open_hf(paths, n_paths, model, log, weights_p);
}

void weights_close(weights_t **weights) {
    if (weights == NULL || *weights == NULL)
        return;
    (*weights)->backend->destroy(*weights);
    *weights = NULL;
}

uint64_t weights_n_elems(const weights_t *weights) {
    uint64_t n_elems = 0;
    for (size_t i = 0; i < weights->tensors.n; i++)
        n_elems += weights->tensors.all[i].n_elems;
    return n_elems;
}

/* ---- for backends ------------------------------------------------------------------------ */

zr_status_t weights_list_tensors(weights_t *weights, const zr_log_t *log) {
    return zr_model_shape_tensors(
        &weights->shape, weights->has_lora ? &weights->lora.adapter : NULL, log, &weights->tensors);
}

void weights_clear(weights_t *weights) {
    zr_model_tensors_free(&weights->tensors);
    free(weights->origin.kinds);
    free(weights->folder);
}

zr_status_t weights_expect_shape(const zr_model_shape_t *a, const char *where_a,
                                 const zr_model_shape_t *b, const char *where_b,
                                 const zr_log_t *log) {
    zr_model_difference_t d;
    if (!zr_model_shapes_differ(a, b, &d))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_FORMAT, "%s says %s=%s, and %s says %s=%s", where_a, d.a.name,
                   d.a.text, where_b, d.b.name, d.b.text);
}

zr_status_t weights_check_finite(const float *values, size_t n_elems, size_t first,
                                 const char *tensor, const char *path, const zr_log_t *log) {
    float sum = 0.0f; /* of zeros, or NaN */
    for (size_t i = 0; i < n_elems; i++)
        sum += values[i] * 0.0f;
    if (sum == 0.0f)
        return ZR_OK;
    size_t i = 0;
    while (isfinite(values[i]))
        i++;
    return zr_fail(log, ZR_ERR_FORMAT,
                   "%s: tensor \"%s\": element %zu is %g: use weights without such values", path,
                   tensor, first + i, (double)values[i]);
}
