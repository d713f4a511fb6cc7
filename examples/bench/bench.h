/*
 * zero-bench: what its commands share. A command measures one part of the library against
 * this machine's own limit, in the same run, and reports the ratio of the two. Adding one is
 * a file that defines a bench_command_t, and a line in the table of main.c.
 */
#pragma once

#include "examples/common/command.h"
#include "examples/common/json.h"
#include "examples/common/messages.h"
#include "zero/zero.h"

/** What zero-bench exits with. */
enum {
    BENCH_MEASURED = COMMAND_DONE,
    BENCH_FAILED = COMMAND_FAILED,
    BENCH_BAD_INPUT = COMMAND_BAD_INPUT
};

typedef command_t bench_command_t;

extern const bench_command_t bench_adam;
extern const bench_command_t bench_kernels;
extern const bench_command_t bench_matmul;
extern const bench_command_t bench_step;
extern const bench_command_t bench_alloc;
extern const bench_command_t bench_io;
extern const bench_command_t bench_checkpoint;
extern const bench_command_t bench_comm;
extern const bench_command_t bench_hardware;
extern const bench_command_t bench_plan;

/* ---- options that every command has ----------------------------------------------- */

typedef command_common_t bench_common_t;
typedef command_parser_t bench_parser_t;

/** As command_parse. */
bool bench_parse(const bench_parser_t *parser, int argc, char **argv, const zr_log_t *log,
                 bench_common_t *common, int *code_p);

/** Whether an option names a folder that files can be made in; the error names the option. */
ZR_NODISCARD zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log);
/** The same of several, with commas between. */
ZR_NODISCARD zr_status_t bench_check_folders(const char *key, const char *paths,
                                             const zr_log_t *log);

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

/** False when there is no memory. */
bool bench_times_add(bench_times_t *times, double seconds);
/** 0 when there are none. Sorts them. */
double bench_times_median(bench_times_t *times);
void bench_times_free(bench_times_t *times);
