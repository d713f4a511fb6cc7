/* Algorithms of matrix products: what does not depend on the device. */
#include "kernels/device_backend.h"
#include "kernels/nn/nn.h"

static const zr_nn_chooser_t *chooser_of(const zr_device_t *device) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    return backend == NULL ? NULL : backend->chooser;
}

static zr_status_t find_chooser(const zr_device_t *device, const char *name,
                                const zr_nn_chooser_t **chooser_p) {
    const zr_nn_chooser_t *chooser = chooser_of(device);
    if (chooser == NULL)
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "%s: algorithms of matrix products are cuBLASLt's: they require device "
                       "\"cuda\", not \"%s\"; leave it out",
                       name, device->info.backend);
    *chooser_p = chooser;
    return ZR_OK;
}

zr_status_t zr_nn_matmul_library(zr_device_t *device, zr_nn_algorithm_text_t *text_p) {
    const zr_nn_chooser_t *chooser = NULL;
    ZR_TRY(find_chooser(device, "matmul", &chooser));
    return chooser->library(device, text_p);
}

zr_status_t zr_nn_matmul_proposals(zr_device_t *device, const zr_nn_matmul_t *args,
                                   size_t limit_bytes, zr_nn_matmul_proposals_t *proposals_p) {
    const zr_nn_chooser_t *chooser = NULL;
    ZR_TRY(find_chooser(device, "matmul", &chooser));
    return chooser->proposals(device, args, limit_bytes, proposals_p);
}

zr_status_t zr_nn_matmul_choose(zr_device_t *device, const zr_nn_matmul_choices_t *choices) {
    const zr_nn_chooser_t *chooser = NULL;
    ZR_TRY(find_chooser(device, choices != NULL ? choices->name : "matmul", &chooser));
    ZR_TRY(chooser->choose(device, choices));
    device->info.matmul_workspace_bytes = zr_nn_matmul_choices_workspace(choices);
    return ZR_OK;
}

size_t zr_nn_matmul_choices_workspace(const zr_nn_matmul_choices_t *choices) {
    size_t most = 0;
    for (size_t i = 0; choices != NULL && i < choices->n_choices; i++)
        if (choices->choices[i].workspace_bytes > most)
            most = choices->choices[i].workspace_bytes;
    return most;
}

zr_nn_matmul_counts_t zr_nn_matmul_counts(const zr_device_t *device) {
    const zr_nn_chooser_t *chooser = chooser_of(device);
    return chooser == NULL ? (zr_nn_matmul_counts_t){0} : chooser->counts(device);
}
