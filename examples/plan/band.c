/* tests/zero/test_config_doc.c holds the figures to the tables of the documents. */
#include "examples/plan/band.h"

#include <string.h>

#include "examples/plan/hardware.h"

enum { MEASURED_HOST, ONE_NODE, SEVERAL_NODES };

static const plan_band_t bands[] = {
    [MEASURED_HOST] = {0.96, 1.15, 24, "runs on the host with rates measured there",
                       "docs/internals/simulation.md"},
    [ONE_NODE] = {1.12, 1.64, 9, "published runs of other programs on one node of GPUs",
                  "docs/internals/scaling.md"},
    [SEVERAL_NODES] = {1.21, 3.04, 18, "published runs of other programs on several nodes of GPUs",
                       "docs/internals/scaling.md"}};

const plan_band_t *plan_bands(size_t *n_p) {
    *n_p = sizeof(bands) / sizeof(bands[0]);
    return bands;
}

static const plan_band_t *none(const char *why, char *text, size_t size) {
    snprintf(text, size, "%s", why);
    return NULL;
}

const plan_band_t *plan_band_of(const plan_options_t *options, const zr_run_row_t *row, char *text,
                                size_t size) {
    const zr_hardware_t *hardware = &options->hardware;
    bool offloads = row->optimizer != ZR_OFFLOAD_NONE || row->params != ZR_OFFLOAD_NONE ||
                    options->run.offload_activations != ZR_OFFLOAD_NONE;
    char source[512];
    if (options->is_this)
        return none("rates of this machine are not measured, so times only compare placements; "
                    "zero-bench --save-hardware FILE measures them",
                    text, size);
    plan_hardware_source(options->hardware_name, "device.matrix_bf16_ops_per_s", source,
                         sizeof(source));
    if (strncmp(source, "fitted", 6) == 0)
        return none(source, text, size);
    if (hardware->kind == ZR_HARDWARE_CUDA && offloads)
        return none("planned steps with offload on a GPU were not validated by measurements", text,
                    size);
    const plan_band_t *band =
        &bands[hardware->kind == ZR_HARDWARE_HOST                ? MEASURED_HOST
               : options->run.n_ranks > hardware->ranks_per_node ? SEVERAL_NODES
                                                                 : ONE_NODE];
    snprintf(text, size, "measured steps of %zu %s took %.2f to %.2f times the planned time (%s)",
             band->n_runs, band->what, band->least, band->most, band->document);
    return band;
}
