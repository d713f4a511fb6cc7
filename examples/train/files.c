/*
 * Outputs are compared with everything that the run reads, and with each other; that they can be
 * written is found out here because training comes before they are.
 */
#include "examples/train/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/train/launch.h"
#include "examples/train/trace.h"

/* ---- outputs ---------------------------------------------------------------------------- */

static bool has_file(const data_t *data, const char *path) {
    return data != NULL && data_has_file(data, path);
}

/* A slip of the hand in a command line must not cost what it reads. */
static zr_status_t check_not_read(const train_options_t *options, const data_t *data,
                                  const data_t *val, const char *option, const char *path,
                                  const zr_log_t *log) {
    const files_named_t file = {option, path};
    const files_named_t inputs[] = {{"--data", has_file(data, path) ? path : NULL},
                                    {"--val-data", has_file(val, path) ? path : NULL},
                                    {"--run", options->run_path},
                                    {"--config", options->config_path},
                                    {"--hardware", options->hardware_path},
                                    {"--io-settings", options->io_settings_path},
                                    {"--matmul-choices", options->matmul_choices_path}};
    return files_check_apart(file, inputs, sizeof(inputs) / sizeof(inputs[0]), log);
}

/* A file that is written when the run has ended. */
static zr_status_t check_output(const train_options_t *options, const data_t *data,
                                const data_t *val, files_named_t file, const zr_log_t *log) {
    const files_named_t others[] = {
        {"--log", options->log_path},
        {"--trace", strcmp(file.option, "--trace") != 0 ? options->trace_path : NULL}};
    ZR_TRY(check_not_read(options, data, val, file.option, file.path, log));
    ZR_TRY(files_check_apart(file, others, 2, log));
    return files_check_writable(file.option, file.path, log);
}

zr_status_t train_files_rank_path(const char *path, int rank, const zr_log_t *log, char **path_p) {
    const char *slash = strrchr(path, '/'), *last = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(last, '.'), *ending = dot == NULL ? last + strlen(last) : dot;
    size_t size = strlen(path) + 32;
    char *text = malloc(size);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the name of a file");
    if (rank == 0)
        snprintf(text, size, "%s", path);
    else
        snprintf(text, size, "%.*s.rank%d%s", (int)(ending - path), path, rank, ending);
    *path_p = text;
    return ZR_OK;
}

bool train_files_has_log(const train_options_t *options) {
    return options->log_path != NULL && train_launch_first(options) == 0;
}

/* Of ranks that are processes, each would make it and take it away again under rank 0's hands. */
static zr_status_t check_log(const train_options_t *options, const data_t *data, const data_t *val,
                             const zr_log_t *log) {
    if (!train_files_has_log(options))
        return ZR_OK;
    ZR_TRY(check_not_read(options, data, val, "--log", options->log_path, log));
    return files_check_writable("--log", options->log_path, log);
}

/* Of this process alone: others may be on other machines. */
static zr_status_t check_trace(const train_options_t *options, const data_t *data,
                               const data_t *val, const zr_log_t *log) {
    char *path = NULL;
    if (options->trace_path == NULL)
        return ZR_OK;
    ZR_TRY(train_trace_path(options, options->is_launched ? options->launch.rank : 0, log, &path));
    zr_status_t status = check_output(options, data, val, (files_named_t){"--trace", path}, log);
    free(path);
    return status;
}

static zr_status_t check_outputs(const train_options_t *options, const data_t *data,
                                 const data_t *val, const zr_log_t *log) {
    int n_snapshots = options->memory_snapshot_path == NULL ? 0 : options->n_ranks;
    ZR_TRY(check_log(options, data, val, log));
    ZR_TRY(check_trace(options, data, val, log));
    if (options->tensorboard_dir != NULL)
        ZR_TRY(files_check_folder("--tensorboard", options->tensorboard_dir, log));
    if (options->plot_path != NULL)
        ZR_TRY(
            check_output(options, data, val, (files_named_t){"--plot", options->plot_path}, log));
    for (int i = 0; i < n_snapshots; i++) {
        char *path = NULL;
        ZR_TRY(train_files_rank_path(options->memory_snapshot_path, i, log, &path));
        zr_status_t status =
            check_output(options, data, val, (files_named_t){"--memory-snapshot", path}, log);
        free(path);
        ZR_TRY(status);
    }
    return ZR_OK;
}

/* ---- folders for NVMe --------------------------------------------------------------------- */

/* Folders that no file can be made in are bad input, found before anything is made. */
zr_status_t train_files_check_nvme_paths(const train_options_t *o, const zr_log_t *log) {
    char paths[ZR_CONFIG_PATHS_BYTES], *rest = NULL;
    snprintf(paths, sizeof(paths), "%s", o->config.nvme.paths);
    for (char *path = strtok_r(paths, ",", &rest); path; path = strtok_r(NULL, ",", &rest)) {
        const char *problem = files_refuse_folder(path);
        if (problem == NULL)
            continue;
        if (o->nvme_paths_from == TRAIN_PATHS_OF_OPTION)
            return zr_fail(log, ZR_ERR_IO, "--nvme-path %s: %s; give a writable folder", path,
                           problem);
        bool is_config = o->nvme_paths_from == TRAIN_PATHS_OF_CONFIG;
        return zr_fail(log, ZR_ERR_IO,
                       "%s %s: %s %s: %s; name a writable folder, there or with "
                       "--nvme-path",
                       is_config ? "--config" : "--io-settings",
                       is_config ? o->config_path : o->io_settings_path,
                       is_config ? "nvme_path" : "paths", path, problem);
    }
    return ZR_OK;
}

zr_status_t train_files_check(const train_options_t *options, const data_t *data, const data_t *val,
                              const zr_log_t *log) {
    ZR_TRY(check_outputs(options, data, val, log));
    return train_options_use_nvme(options) ? train_files_check_nvme_paths(options, log) : ZR_OK;
}
