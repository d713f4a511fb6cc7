/* See checkpoint_exchange.h. */
#include "examples/checkpoint/exchange.h"

#include <libgen.h>
#include <limits.h>
#include <sys/stat.h>

#include "examples/common/files.h"
#include "examples/common/model_json.h"

int exchange_code(zr_status_t status) {
    return status == ZR_ERR_FORMAT ? COMMAND_BAD_INPUT : command_code(status);
}

zr_status_t exchange_check_place(const char *option, const char *path, bool is_within,
                                 const zr_log_t *log) {
    char copy[PATH_MAX];
    struct stat about;
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof(copy))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s \"%.40s\": it needs a name, of 1 to %zu bytes; this has %zu", option,
                       path, sizeof(copy) - 1, length);
    memcpy(copy, path, length + 1);
    bool is_there = stat(path, &about) == 0;
    const char *folder = is_within && is_there ? path : dirname(copy);
    const char *problem = files_refuse_folder(folder);
    if (problem == NULL)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%s %s: nothing can be made in %s: %s; name a path in a writable folder", option,
                   path, folder, problem);
}

void exchange_show(void *progress, uint64_t n_elems) {
    const exchange_progress_t *p = progress;
    if (p->messages != NULL && p->n_elems > 0)
        messages_progress(p->messages, false, "%s %.1f%% of %.1f million parameters", p->verb,
                          100.0 * (double)n_elems / (double)p->n_elems, (double)p->n_elems / 1e6);
}

zr_status_t exchange_model(const char *value, const zr_log_t *log, zr_model_shape_t *shape_p) {
    files_log_t own = {.log = *log, .option = "--model"};
    zr_log_t named = files_log(&own);
    return zr_model_shape_read(value, &named, shape_p);
}

void exchange_describe(const weights_t *weights, json_t **object_p) {
    JSON_PUT(object_p, {"model", model_json(&weights->shape)},
             {"tensors", json_count(weights->tensors.n)},
             {"parameters", json_count(weights_n_elems(weights))});
}
