/*
 * What zero-train is asked to do: its command line over its configuration file.
 */
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include <argp.h>
#include <stdatomic.h>
#include <stdio.h>

#include "examples/models/gpt2/gpt.h"
#include "zero/zero.h"

#define TRAIN_MOST_RANKS 1024

/** Who named the folders of --nvme-path. */
typedef enum train_paths_from {
    TRAIN_PATHS_OF_NOBODY = 0,
    TRAIN_PATHS_OF_CONFIG = 1,
    TRAIN_PATHS_OF_IO_SETTINGS = 2,
    TRAIN_PATHS_OF_OPTION = 3
} train_paths_from_t;

/** What was chosen of what had been left open (train_auto.h). */
typedef struct train_choice {
    char options[256]; /* each behind a space; "": nothing was open */
    char why[1024];    /* a sentence */
    size_t n_plans;    /* that were made for it */
} train_choice_t;

/** --comm. */
typedef enum train_comm {
    TRAIN_COMM_DEFAULT = 0, /* threads; nccl or mpi when ranks are processes */
    TRAIN_COMM_THREADS = 1,
    TRAIN_COMM_NCCL = 2,
    TRAIN_COMM_MPI = 3
} train_comm_t;

typedef struct train_checkpoint_options {
    const char *dir;         /* NULL: nothing is saved */
    size_t every;            /* steps; 0: at the end only */
    size_t keep;             /* so many of the newest stay; 0: all */
    bool is_async;           /* the run goes on while one is written */
    bool resume;             /* go on from the newest */
    const char *resume_data; /* as written; NULL: not */
    bool restarts_data;      /* from the beginning of the data, whatever they are */
    const char *given;       /* an option that means something with dir only; NULL: none */
} train_checkpoint_options_t;

/** Whether collectives run beside compute. config.overlap_comm says whether they may. */
typedef enum train_overlap {
    TRAIN_OVERLAP_AUTO = 0, /* on GPUs, and on the host where ranks are on several machines */
    TRAIN_OVERLAP_ON = 1,
    TRAIN_OVERLAP_OFF = 2
} train_overlap_t;

typedef struct train_options {
    /* What to train, and on what. */
    const char *model; /* as written */
    gpt_shape_t shape;
    const char **data_paths; /* owned; the paths are argv's */
    size_t n_data_paths;
    size_t seq;     /* tokens per sequence, at most shape.seq */
    size_t seq_min; /* of the shortest micro-batches, at most seq; 0: seq, until resolved */
    uint64_t seed;
    size_t steps;
    bool recompute;
    zr_offload_device_t offload_activations; /* inputs of layers, with recompute */
    const char *freeze;                      /* NULL: nothing */

    /* How. */
    zr_config_t config;        /* resolved */
    bool auto_stage;           /* it is chosen (train_auto.h): at least config.stage */
    bool auto_optimizer;       /* its placement is chosen, likewise */
    bool auto_params;          /* likewise */
    bool auto_group;           /* the size of groups is chosen; with auto_stage, too, unless it is
                                  given */
    bool has_group;            /* it is given */
    const char *hardware_path; /* rates of this machine, for what is chosen; NULL: assumed ones */
    train_choice_t choice;
    train_paths_from_t nvme_paths_from; /* config.nvme.paths */
    const char *io_settings_path;       /* of zero-bench io; NULL: none was read */
    const char *config_path;            /* NULL: none was read */
    size_t nvme_tbw_bytes; /* what the drives are rated to take in their life; 0: not said */
    int n_ranks;           /* threads of this process */
    const char *device;    /* as written: auto, host, cuda or cuda:N */
    size_t n_threads;      /* per rank; 0: the cores, divided by the ranks */
    int comm_timeout_ms;
    zr_sum_order_t sums;
    train_overlap_t overlap;
    train_comm_t comm; /* as written */
    bool use_nccl;     /* a GPU for each rank, from the one of --device on */
    bool use_mpi;      /* ranks are processes on the host */
    bool is_launched;  /* this process is one rank, and finds the others by `launch` */
    zr_launch_t launch;
    char launched_device[16]; /* what `device` is then, unless it was written */
    zr_plan_cache_t *plans;   /* where the run is planned: of memory, made before; NULL: none */
    const atomic_bool *stop;  /* end after the step under way once this is set; NULL: never */

    train_checkpoint_options_t checkpoint;

    /* What to say. */
    const char *log_path;             /* NULL: none */
    const char *memory_snapshot_path; /* of rank 0; NULL: none */
    const char *trace_path;           /* NULL: none */
    size_t trace_first, trace_last;   /* steps of it; 0: not written */
    bool json;
    bool quiet;
    bool help;    /* print the help and do nothing else */
    bool version; /* print the version and do nothing else */

    /* Between parsing and resolving: what was written and has no field of its own. */
    const char *seq_text; /* their range is known with the model; NULL: not written */
    const char *seq_min_text;
    bool warmup_given;
    size_t warmup_steps;
    bool min_lr_ratio_given;
    bool gradients_ratio_given;
    const char *gradients_given; /* the option that said last where gradients wait; NULL: none */
    double min_lr_ratio;
    const char *offload_given; /* an option that means something with offload only; NULL: none */
    const char *nvme_given;    /* likewise with offload to NVMe */
    const char *nvme_optimizer_given; /* likewise with offload of the optimizer there */
    const char *params_given;         /* likewise with offload of parameters */
    const char *nvme_params_given;    /* likewise with offload of parameters there */
    unsigned stage3_given;            /* what means something at stage 3 only: TRAIN_STAGE3_... */
} train_options_t;

/** What was said of gathered parameters: by options, and by --config. */
enum {
    TRAIN_STAGE3_PREFETCH = 1,
    TRAIN_STAGE3_MAX_LIVE = 2,
    TRAIN_STAGE3_PREFETCH_OF_CONFIG = 4,
    TRAIN_STAGE3_MAX_LIVE_OF_CONFIG = 8,
    TRAIN_STAGE3_REUSE_OF_CONFIG = 16
};

/**
 * Parse and check a command line; read --config, which options override.
 *
 * @param argv  borrowed for as long as the options are used
 * @return ZR_OK, also for --help and --version, where nothing else is checked; otherwise
 *         what is wrong has been logged, with key, value and what is allowed:
 *         ZR_ERR_ARGUMENT, ZR_ERR_FORMAT, ZR_ERR_IO, ZR_ERR_UNSUPPORTED for what this version
 *         does not have yet; ZR_ERR_MEMORY
 *
 * Ownership: on success free with train_options_free.
 */
ZR_NODISCARD zr_status_t train_options_parse(int argc, char **argv, const zr_log_t *log,
                                             train_options_t *options_p);
/** Whether anything is offloaded to NVMe. */
bool train_options_use_nvme(const train_options_t *options);
void train_options_free(train_options_t *options);

/** Print what --help says. */
void train_options_help(FILE *file);

/** Defaults of everything, as --help names them; no data. */
train_options_t train_options_default(void);

/** Check what was filled in by hand, as train_options_parse does at its end. */
ZR_NODISCARD zr_status_t train_options_resolve(train_options_t *options, const zr_log_t *log);
/** The part of it that is about the run and not about its data or where things are offloaded. */
ZR_NODISCARD zr_status_t train_options_resolve_run(train_options_t *options, const zr_log_t *log);

/** Whether a host device's collectives run beside compute, with ranks on so many machines. */
bool train_options_overlap(const train_options_t *options, int n_machines);

/** What is left open, and tried in all ways. */
typedef struct train_open {
    bool stage, optimizer, params, activations;
    bool no_drives; /* none are named: nothing that is open comes to NVMe */
} train_open_t;

/**
 * Refuse what is said of offload that cannot come about with what is given.
 *
 * @param options  as resolved, but for placements that are open
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged
 */
ZR_NODISCARD zr_status_t train_options_check_offload(const train_options_t *options,
                                                     train_open_t open, const zr_log_t *log);

/** Read a file of --config over options->config; note what it says of stage 3, and that it names
 * folders. Errors as zr_config_read_json, logged. */
ZR_NODISCARD zr_status_t train_options_read_config(train_options_t *options, const char *path,
                                                   const zr_log_t *log);

/**
 * Warn of what was given and comes to nothing, though nothing is wrong with it: one line for each
 * reason. What has no effect is then as if it had not been given.
 *
 * @param options   whose stage is known
 * @param has_nccl  ranks' numbers may be added by NCCL
 */
void train_options_warn_idle(train_options_t *options, bool has_nccl, const zr_log_t *log);

/** Whether what `auto` chooses was not given as well: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t train_options_check_auto_parts(const train_options_t *options,
                                                        const zr_log_t *log);

/*
 * For programs that have some of zero-train's options: they mean the same there.
 */

/** The option of that name, as the help of zero-train has it; static. NULL: there is none. */
const struct argp_option *train_options_find(const char *name);
/** Take one of them from a command line; errors as train_options_parse. */
ZR_NODISCARD zr_status_t train_options_take(train_options_t *options, int key, const char *value,
                                            const zr_log_t *log);

#endif
