/*
 * zero-bench: what its commands share. A command measures one part of the library against
 * this machine's own limit, in the same run, and reports the ratio of the two. Adding one is
 * a file that defines a bench_command_t, and a line in the table of zero_bench.c.
 */
#ifndef EXAMPLES_BENCH_BENCH_H
#define EXAMPLES_BENCH_BENCH_H

#include <argp.h>

#include "examples/common/args.h"
#include "examples/common/json.h"
#include "examples/common/messages.h"
#include "zero/zero.h"

/** What zero-bench exits with. */
enum { BENCH_MEASURED = 0, BENCH_FAILED = 1, BENCH_BAD_INPUT = 2 };

typedef struct bench_command {
    const char *name;    /* "adam" */
    const char *summary; /* one line for the list of commands */
    /* argv[0] is the command's name. Returns what the program exits with. */
    int (*run)(int argc, char **argv, const zr_log_t *log);
} bench_command_t;

extern const bench_command_t bench_adam;
extern const bench_command_t bench_step;
extern const bench_command_t bench_alloc;
extern const bench_command_t bench_io;

/* ---- options that every command has ----------------------------------------------- */

typedef struct bench_common {
    bool json, help, version;
} bench_common_t;

enum { BENCH_KEY_JSON = 0x1000, BENCH_KEY_HELP, BENCH_KEY_VERSION, BENCH_KEY_FIRST_OWN };

/** The last entries of a command's options. */
#define BENCH_COMMON_OPTIONS                                                                       \
    {"json", BENCH_KEY_JSON, NULL, 0, "print one JSON object on standard output", 0},              \
        {"help", BENCH_KEY_HELP, NULL, 0, "print this", -1}, {                                     \
        "version", BENCH_KEY_VERSION, NULL, 0, "print the version and how it was built", -1        \
    }

/** Take one of the common options; false when the key is not of them. */
bool bench_take_common(int key, bench_common_t *common);
/** What argp is told of an option of the command's own; ZR_ERR_UNSUPPORTED: it has none such. */
error_t bench_taken(zr_status_t status);
/** After parsing: true when --help or --version was asked for, and has been printed. */
bool bench_answer_common(const bench_common_t *common, const struct argp *argp, const char *name);

/** Whether an option names a folder that files can be made in; the error names the option. */
ZR_NODISCARD zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log);

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

/* ---- reporting ------------------------------------------------------------------------ */

/** Print the object and free it; what the program exits with. NULL is a failure, too. */
int bench_print(json_t *object, const zr_log_t *log);

#endif
