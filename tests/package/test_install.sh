#!/usr/bin/env bash
# What is installed can be used: a program is built with the pkg-config file alone, and runs; all
# programs are there, with what they look for beside them.
#
# Usage: test_install.sh BUILD
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --prefix "$prefix" >/dev/null
cat >"$prefix/user.c" <<'PROGRAM'
#include <stdio.h>
#include <zero/zero.h>
#define TRY(call) \
    do { \
        zr_status_t status = (call); \
        if (status != ZR_OK) { \
            fprintf(stderr, "%s: %s\n", #call, zr_status_name(status)); \
            return 1; \
        } \
    } while (0)

/* A step on one parameter whose gradient is 1 everywhere: it goes down by the learning rate. */
int main(void) {
    zr_config_t config = zr_config_default();
    zr_log_t log = zr_log_default();
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_unit_t *layer;
    zr_param_t *w;
    zr_step_report_t report;
    float *grad, value;
    TRY(zr_config_resolve(&config, 1, &log));
    TRY(zr_comm_create_threads(1, NULL, &comm));
    TRY(zr_device_open("host", NULL, &device));
    TRY(zr_runtime_create(&config, comm, device, &log, &runtime));
    TRY(zr_runtime_add_unit(runtime, "layer", &layer));
    TRY(zr_unit_add_param(layer, &(zr_param_desc_t){.name = "w", .n_dims = 2, .dims = {3, 3}}, &w));
    TRY(zr_runtime_commit(runtime));
    TRY(zr_runtime_begin_micro_batch(runtime));
    TRY(zr_unit_acquire(layer, ZR_BACKWARD));
    TRY(zr_param_grad(w, (void **)&grad, NULL));
    for (int i = 0; i < 9; i++)
        grad[i] = 1;
    TRY(zr_unit_reduce(layer));
    TRY(zr_unit_release(layer));
    TRY(zr_runtime_step(runtime, &report));
    TRY(zr_param_read(w, 8, 1, &value));
    zr_runtime_destroy(&runtime);
    zr_device_close(&device);
    zr_comm_destroy(&comm);
    printf("%s: norm %g, value %g\n", zr_version(), report.gradient_norm, value);
    return !(report.gradient_norm == 3 && value < -0.99 * report.lr && value > -1.01 * report.lr);
}
PROGRAM
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name libzero.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
cc -std=c11 -Wall -Werror "$prefix/user.c" -o "$prefix/user" \
    $(pkg-config --static --cflags --libs libzero)
"$prefix/user"
for program in zero-train zero-plan zero-capacity zero-bench zero-checkpoint; do
    "$prefix/bin/$program" --version
done
# Each kind of MPI that was found has two modules: the library's, and that of zero-bench.
for module in "$prefix"/lib*/libzero/libzero-*.so "$prefix"/lib/*/libzero/libzero-*.so; do
    [ -e "$module" ] || continue
    kind=${module##*-}
    ls "${module%/*}/libzero-$kind" "${module%/*}/libzero-bench-$kind" >/dev/null
done
