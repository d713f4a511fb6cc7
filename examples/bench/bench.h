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
extern const bench_command_t bench_kernels;
extern const bench_command_t bench_matmul;
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

/** The command line of a command. */
typedef struct bench_parser {
    const char *name;                  /* of the command */
    const struct argp_option *options; /* its own, BENCH_COMMON_OPTIONS, and zeros */
    const char *doc;                   /* what --help says of it */
    /* Take one of its own; what is wrong has been logged. ZR_ERR_UNSUPPORTED: it has none such. */
    zr_status_t (*take)(int key, const char *value, void *options);
} bench_parser_t;

/**
 * Parse a command line, and answer --help and --version.
 *
 * @param common  the first member of the options that the parser's `take` gets
 * @param code_p  set when the answer is false: what the program exits with
 * @return whether to go on
 */
bool bench_parse(const bench_parser_t *parser, int argc, char **argv, const zr_log_t *log,
                 bench_common_t *common, int *code_p);

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
