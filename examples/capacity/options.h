/*
 * What zero-capacity is asked: a family of models, budgets, which of them are swept, and where the
 * answers go.
 */
#ifndef EXAMPLES_CAPACITY_OPTIONS_H
#define EXAMPLES_CAPACITY_OPTIONS_H

#include "examples/capacity/family.h"
#include "examples/train/options.h"

/** Where something may live; auto: in parts, in all tiers at once. */
typedef enum capacity_where {
    CAPACITY_NONE = ZR_OFFLOAD_NONE,
    CAPACITY_CPU = ZR_OFFLOAD_CPU,
    CAPACITY_NVME = ZR_OFFLOAD_NVME,
    CAPACITY_AUTO = 3
} capacity_where_t;

/** What may be swept. */
typedef enum capacity_axis {
    CAPACITY_RANKS = 0,
    CAPACITY_DEVICE_MEMORY = 1,
    CAPACITY_HOST_MEMORY = 2,
    CAPACITY_NVME_CAPACITY = 3
} capacity_axis_t;
#define CAPACITY_N_AXES 4

/** "ranks", "device-memory", "host-memory", "nvme-capacity". */
const char *capacity_axis_name(capacity_axis_t axis);

#define CAPACITY_MOST_VALUES 64

typedef struct capacity_sweep {
    capacity_axis_t axis;
    size_t values[CAPACITY_MOST_VALUES]; /* ranks, or bytes */
    size_t n_values;
} capacity_sweep_t;

typedef struct capacity_options {
    train_options_t run; /* resolved for its own ranks, with the family's smallest model */
    const char *model;   /* as written */
    capacity_family_t family;
    const char *hardware_name; /* as written */
    bool is_this;              /* the hardware is this machine */
    bool ranks_open;           /* as many as a described machine has; of this one, one */
    zr_hardware_t hardware;    /* a described machine */
    bool has_drives;           /* something may be planned for them */

    /* What is tried in all ways, unless it was given. */
    bool stage_open, optimizer_open, params_open, gradients_open, activations_open;
    int least_stage;                    /* of those that are tried, if it is open */
    capacity_where_t optimizer, params; /* where not open */

    bool sub_group_open, param_buffer_open; /* as small as a case's host memory asks for */
    double least_tokens_per_s;              /* planned, of all ranks; 0: any */

    size_t verify_steps; /* of real training at each capacity; 0: none */
    capacity_sweep_t sweeps[CAPACITY_N_AXES];
    size_t n_sweeps;

    const char *csv_path, *plot_path, *state_path; /* NULL: none */
    bool resume;

} capacity_options_t;

/** Its options; the first group of those that are not of a run. */
extern const options_table_t capacity_table;
#define CAPACITY_PROOF 6

/**
 * Parse and check a command line.
 *
 * @param argv  borrowed for as long as the options are used
 * @return as train_options_parse
 */
ZR_NODISCARD zr_status_t capacity_options_parse(int argc, char **argv, const zr_log_t *log,
                                                capacity_options_t *options_p);

/** Print what --help says. */
void capacity_options_help(FILE *file);
/** Print its options in any form. */
void capacity_options_describe(options_print_t *print, FILE *file);
/** What is so where nothing is said. */
capacity_options_t capacity_options_default(void);

#endif
