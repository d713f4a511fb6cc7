/*
 * zero-bench: what its commands share. A command measures one part of the library against
 * this machine's own limit, in the same run, and reports the ratio of the two. Adding one is
 * a file that defines a command_t, and a line in the table of main.c.
 */
#pragma once

#include "examples/common/command.h"
#include "examples/common/json.h"
#include "examples/common/messages.h"
#include "zero/zero.h"

extern const command_t bench_adam;
extern const command_t bench_kernels;
extern const command_t bench_matmul;
extern const command_t bench_step;
extern const command_t bench_alloc;
extern const command_t bench_io;
extern const command_t bench_checkpoint;
extern const command_t bench_comm;
extern const command_t bench_hardware;
extern const command_t bench_plan;

/**
 * Print what was measured, field by field, for people on standard error, and with --json as it is
 * on standard output; free it.
 *
 * @param object  NULL: there was no memory for it
 * @return code; COMMAND_FAILED where that failed
 */
int bench_report(const command_common_t *common, json_t *object, int code);

#define BENCH_MOST_FOLDERS 16

/** Whether an option names a folder that files can be made in; the error names the option. */
ZR_NODISCARD zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log);

/** Folders of an option. */
typedef struct bench_folders {
    char text[ZR_CONFIG_PATHS_BYTES];
    const char *paths[BENCH_MOST_FOLDERS]; /* in `text` */
    size_t n;
} bench_folders_t;
/** Cut a value at commas, and check that files can be made in each: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t bench_folders(const char *key, const char *value, const zr_log_t *log,
                                       bench_folders_t *folders_p);

/* ---- measuring ---------------------------------------------------------------------- */

/** Seconds from some moment on. */
double bench_seconds(void);
/** Seconds of processor that this process has had, on all threads, in the kernel as well. */
double bench_cpu_seconds(void);

/** Times of a thing that is done again and again. */
typedef struct bench_times {
    double *seconds;
    size_t n_times, capacity;
} bench_times_t;

/** ZR_ERR_MEMORY: logged. */
ZR_NODISCARD zr_status_t bench_times_add(bench_times_t *times, double seconds, const zr_log_t *log);
/** 0 when there are none. Sorts them. */
double bench_times_median(bench_times_t *times);
void bench_times_free(bench_times_t *times);
