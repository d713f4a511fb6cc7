/* See train_trace.h. */
#include "examples/train/trace.h"
#include "examples/train/launch.h"
#include "examples/train/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/args.h"
#include "examples/train/files.h"

#define MOST_STEPS ((size_t)1 << 40)

/* ---- options --------------------------------------------------------------------------------- */

zr_status_t train_trace_take_steps(train_options_t *options, const char *value,
                                   const zr_log_t *log) {
    const char *colon = strchr(value, ':');
    char first[32], key[128];
    if (colon == NULL || (size_t)(colon - value) >= sizeof(first))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--trace-steps %s: allowed: FIRST:LAST, such as 3:3 for the third step",
                       value);
    snprintf(first, sizeof(first), "%.*s", (int)(colon - value), value);
    snprintf(key, sizeof(key), "--trace-steps %.64s: FIRST", value);
    ZR_TRY(args_count(key, first, 1, MOST_STEPS, log, &options->trace_first));
    snprintf(key, sizeof(key), "--trace-steps %.64s: LAST", value);
    return args_count(key, colon + 1, options->trace_first, MOST_STEPS, log, &options->trace_last);
}

zr_status_t train_trace_check(const train_options_t *options, const zr_log_t *log) {
    if (options->trace_first == 0)
        return ZR_OK;
    if (options->trace_first > options->steps)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--trace-steps %zu:%zu: the run ends with step %zu (--steps); allowed: steps 1 to %zu",
            options->trace_first, options->trace_last, options->steps, options->steps);
    return ZR_OK;
}

zr_status_t train_trace_path(const train_options_t *options, int rank, const zr_log_t *log,
                             char **path_p) {
    int number = options->is_launched ? rank : 0;
    return train_files_rank_path(options->trace_path, number, log, path_p);
}

/* ---- a rank's recorder ----------------------------------------------------------------------- */

/* A command that is given again has the same --trace: what it left is not written over then. */
static bool has_steps(const train_options_t *options, int rank, size_t n_done,
                      const zr_log_t *log) {
    bool are_chosen = options->trace_first != 0;
    if (n_done < options->steps && (!are_chosen || options->trace_last > n_done))
        return true;
    if (rank == 0 && are_chosen)
        zr_log_write(log, ZR_LOG_WARNING,
                     "--trace %s: nothing is traced: the run resumes after step %zu, and "
                     "--trace-steps %zu:%zu are done",
                     options->trace_path, n_done, options->trace_first, options->trace_last);
    else if (rank == 0)
        zr_log_write(log, ZR_LOG_WARNING, "--trace %s: nothing is traced: no steps are left",
                     options->trace_path);
    return false;
}

zr_status_t train_trace_create(const train_options_t *options, int rank, size_t n_done,
                               const zr_log_t *log, zr_trace_t **trace_p) {
    zr_trace_options_t own = zr_trace_options_default();
    char name[32];
    *trace_p = NULL;
    if (options->trace_path == NULL || !has_steps(options, rank, n_done, log))
        return ZR_OK;
    snprintf(name, sizeof(name), "rank %d", rank);
    own.log = *log;
    own.process = rank + 1;
    own.process_name = name;
    own.first_step = options->trace_first != 0 ? options->trace_first : n_done + 1;
    own.last_step = options->trace_first != 0 ? options->trace_last : n_done + TRAIN_TRACE_N_STEPS;
    own.from_start = own.first_step <= n_done + 1;
    return zr_trace_create(&own, trace_p);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* The same for processes whose clocks are one: those that the same start of a system runs. 0: it is
 * not known. */
static double machine_number(void) {
    char text[64] = "";
    uint32_t hash = 2166136261u;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL)
        return 0;
    size_t n = fread(text, 1, sizeof(text), file);
    fclose(file);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return n > 0 ? (double)hash : 0;
}

static double middle_of_three(const double *v) {
    double least = v[0] < v[1] ? v[0] : v[1], most = v[0] < v[1] ? v[1] : v[0];
    return v[2] < least ? least : v[2] > most ? most : v[2];
}

/* All leave a barrier at about the same time; of three, the one in the middle. */
static zr_status_t compare_clocks(zr_runtime_t *runtime, double *ahead_p) {
    enum { N_VALUES = 4 };
    double own[N_VALUES], ahead[3];
    double *all =
        calloc(N_VALUES * (size_t)zr_comm_n_ranks(zr_runtime_comm(runtime)), sizeof(*all));
    if (all == NULL)
        return zr_fail(zr_runtime_log(runtime), ZR_ERR_MEMORY, "no memory for the clocks of ranks");
    zr_status_t status = ZR_OK;
    for (int i = 0; i < 3 && status == ZR_OK; i++) {
        status = zr_comm_barrier(zr_runtime_comm(runtime), "clocks of --trace");
        own[i] = zr_device_now(zr_runtime_device(runtime));
    }
    own[3] = machine_number();
    ZR_THEN(status, zr_runtime_share(runtime, own, N_VALUES, all));
    for (int i = 0; i < 3; i++)
        ahead[i] = own[i] - all[i];
    *ahead_p = own[3] != 0 && own[3] == all[3] ? 0 : middle_of_three(ahead);
    free(all);
    return status;
}

zr_status_t train_trace_align(const train_options_t *options, zr_runtime_t *runtime,
                              zr_trace_t *trace) {
    double ahead = 0, start[ZR_MAX_SUM_SOURCES];
    zr_trace_info_t info;
    if (!options->is_launched || trace == NULL)
        return ZR_OK;
    ZR_TRY(compare_clocks(runtime, &ahead));
    zr_trace_info(trace, &info);
    double own = info.n_events > 0 ? info.first_time : zr_device_now(zr_runtime_device(runtime));
    ZR_TRY(zr_runtime_share(runtime, &own, 1, start));
    zr_trace_set_origin(trace, start[0] + ahead);
    return ZR_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

zr_status_t train_trace_save(const train_options_t *options, zr_trace_t *const *traces,
                             size_t n_traces, const zr_log_t *log, train_trace_result_t *result_p) {
    char *path = NULL;
    if (n_traces == 0)
        return ZR_OK;
    ZR_TRY(train_trace_path(options, options->is_launched ? options->launch.rank : 0, log, &path));
    train_trace_result_t result = {.is_written = true};
    for (size_t i = 0; i < n_traces; i++) {
        zr_trace_info_t info;
        zr_trace_info(traces[i], &info);
        result.first_step = info.first_step;
        result.last_step = info.last_step;
        result.n_events += info.n_events;
        result.n_left_out += info.n_left_out;
    }
    zr_status_t status = zr_trace_save(traces, n_traces, path, log);
    if (status == ZR_OK) {
        *result_p = result;
        zr_log_write(log, ZR_LOG_INFO,
                     "trace: steps %zu to %zu, %s written to %s, for ui.perfetto.dev; %zu "
                     "left out",
                     result.first_step, result.last_step,
                     zr_count_text(result.n_events, "event").text, path, result.n_left_out);
    }
    free(path);
    return status;
}

/* ---- of all ranks ---------------------------------------------------------------------------- */

/* Also of a run that failed: where its time went is looked for. */
zr_status_t train_traces_save(const run_t *run, rank_t *ranks, train_trace_result_t *result) {
    size_t n_ranks = (size_t)train_launch_n_here(run->options), n = 0;
    zr_trace_t **traces = calloc(n_ranks, sizeof(zr_trace_t *));
    zr_status_t status = traces != NULL
                             ? ZR_OK
                             : zr_fail(&run->log, ZR_ERR_MEMORY, "no memory for the traces of %s",
                                       zr_count_text(n_ranks, "rank").text);
    for (size_t i = 0; i < n_ranks && traces != NULL; i++)
        if (ranks[i].trace != NULL)
            traces[n++] = ranks[i].trace;
    ZR_THEN(status, train_trace_save(run->options, traces, n, &run->log, result));
    for (size_t i = 0; i < n_ranks; i++)
        zr_trace_destroy(&ranks[i].trace);
    free(traces);
    return status;
}
