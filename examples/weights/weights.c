/* An index is known by its ending, .json; what other files are is seen from what they begin with.
 */
#include "examples/weights/weights.h"

#include <string.h>

#include "examples/common/files.h"
#include "examples/weights/in_file.h"
#include "examples/weights/llmc.h"
#include "examples/weights/weights_hf.h"

/* What a file begins with. A pickle of PyTorch is a zip archive; it would run what it has in it. */
static zr_status_t look_at(const char *path, const zr_log_t *log, bool *is_llmc_p) {
    in_file_t file;
    int32_t magic = 0;
    ZR_TRY(in_file_open(path, log, &file));
    zr_status_t status = file.size_bytes < sizeof(magic)
                             ? ZR_OK
                             : in_file_read(&file, &magic, sizeof(magic), 0, log);
    in_file_close(&file);
    ZR_TRY(status);
    if (memcmp(&magic, "PK\3\4", sizeof(magic)) == 0)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: a file of PyTorch's own kind, which is not read; save the model as "
                       "safetensors (save_pretrained does)",
                       path);
    *is_llmc_p = magic == LLMC_MAGIC;
    return ZR_OK;
}

zr_status_t weights_open(const char *const *paths, size_t n_paths, const zr_gpt_shape_t *model,
                         const zr_log_t *log, weights_t **weights_p) {
    bool is_llmc = false;
    for (size_t i = 0; i < n_paths; i++) {
        if (n_paths == 1 && files_is_folder(paths[i]))
            break;
        ZR_TRY(look_at(paths[i], log, &is_llmc));
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
