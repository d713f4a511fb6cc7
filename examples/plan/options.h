/*
 * What zero-plan is asked: a run as zero-train takes it, with some of it left open, and the
 * hardware that it is planned for.
 */
#ifndef EXAMPLES_PLAN_OPTIONS_H
#define EXAMPLES_PLAN_OPTIONS_H

#include "examples/train/options.h"

typedef struct plan_options {
    train_options_t run; /* resolved, with its defaults where something is open */
    zr_hardware_t hardware;
    const char *hardware_name; /* as written */
    bool is_this;              /* the hardware is this machine */

    bool ranks_open; /* as many as a described machine has; of this one, one */

    const char *plot_path;  /* of a picture; NULL: none */
    const char *trace_path; /* NULL: none */
    int walks;              /* all layers of all plans */
    size_t n_lines;         /* of the table; 0: all */

    const char *calibrate_path;     /* of measured runs; NULL: none */
    const char *save_hardware_path; /* NULL: none */

    /* What is tried in all ways. */
    bool stage_open, optimizer_open, params_open, recompute_open, micro_batch_open;
    bool group_open;        /* sizes of groups that share one copy of what is sharded */
    int least_stage;        /* of those that are tried */
    zr_schedule_t schedule; /* as --config gives it, with what it leaves to the run's steps */
    bool has_schedule;      /* it gives one */

} plan_options_t;

/** Its options; the group of those that say what is printed. */
extern const options_table_t plan_table;
#define PLAN_OUTPUT 6

/**
 * Parse and check a command line, read --config, which options override, and find the hardware.
 *
 * @param argv  borrowed for as long as the options are used
 * @return as train_options_parse
 */
ZR_NODISCARD zr_status_t plan_options_parse(int argc, char **argv, const zr_log_t *log,
                                            plan_options_t *options_p);

/** Print what --help says. */
void plan_options_help(FILE *file);
/** Print its options in any form. */
void plan_options_describe(options_print_t *print, FILE *file);
/** What is so where nothing is said. */
plan_options_t plan_options_default(void);

#endif
