/*
 * A device is had when it can be opened and has a transformer's kernels. That is tried once, before
 * anything is made; the ranks open it again.
 */
#include "examples/common/device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/args.h"

/* The first message, for one of our own. */
typedef struct reason {
    char text[512];
} reason_t;

static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    reason_t *reason = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && reason->text[0] == '\0')
        snprintf(reason->text, sizeof(reason->text), "%s", message);
}

static zr_status_t try_device(const device_choice_t *wanted, reason_t *reason) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_dtype_t dtype;
    reason->text[0] = '\0';
    options.log = (zr_log_t){.sink = keep_first, .context = reason, .rank = -1};
    options.index = wanted->index;
    zr_status_t status = zr_device_open(wanted->name, &options, &device);
    ZR_THEN(status, zr_nn_activation_dtype(device, ZR_DTYPE_F32, &dtype));
    zr_device_close(&device);
    return status;
}

zr_status_t device_choose(const char *wanted, const zr_log_t *log, device_choice_t *device_p) {
    device_choice_t device = {.name = "cuda"};
    reason_t reason;
    if (strcmp(wanted, "host") == 0) {
        *device_p = (device_choice_t){.name = "host"};
        return ZR_OK;
    }
    if (strncmp(wanted, "cuda:", 5) == 0)
        device.index = atoi(wanted + 5);
    zr_status_t status = try_device(&device, &reason);
    if (status != ZR_OK && strcmp(wanted, "auto") != 0)
        return zr_fail(log, status, "--device %s: not available here: %s; allowed: auto, host",
                       wanted, reason.text);
    if (status != ZR_OK)
        device.name = "host";
    if (strcmp(wanted, "auto") == 0)
        zr_log_write(log, ZR_LOG_INFO, "device: %s (auto%s%s)", status == ZR_OK ? "cuda:0" : "host",
                     status == ZR_OK ? "" : "; ", reason.text);
    *device_p = device;
    return ZR_OK;
}

zr_status_t device_attention(const device_choice_t *choice, zr_nn_engine_t engine,
                             const zr_log_t *log, zr_nn_engine_info_t *info_p) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    options.log = *log;
    options.index = choice->index;
    *info_p = (zr_nn_engine_info_t){.name = "own"};
    if (engine == ZR_NN_ENGINE_OWN)
        return ZR_OK;
    zr_status_t status = zr_device_open(choice->name, &options, &device);
    ZR_THEN(status, zr_nn_attention_open(device, engine, info_p));
    zr_device_close(&device);
    return status;
}

zr_status_t device_check(const char *wanted, const zr_log_t *log) {
    static const char *const names[] = {"auto", "host", "cuda"};
    size_t ignored = 0;
    if (strncmp(wanted, "cuda:", 5) == 0)
        return args_count("--device cuda: index", wanted + 5, 0, 1023, log, &ignored);
    return args_choice("--device", wanted, names, 3, log, &ignored);
}

int device_cores(void) {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int device_threads(size_t n_wanted, int n_ranks) {
    int n_cores = device_cores();
    if (n_wanted > 0)
        return (int)n_wanted;
    return n_cores > n_ranks ? n_cores / n_ranks : 1;
}
