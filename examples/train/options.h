/*
 * What zero-train is asked to do: its command line over its configuration file.
 */
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include <stdatomic.h>
#include <stdio.h>

#include "examples/common/matmul_choices.h"
#include "examples/common/options.h"
#include "models/lora.h"
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
    TRAIN_COMM_DEFAULT = 0, /* threads; nccl or processes when those are ranks */
    TRAIN_COMM_THREADS = 1,
    TRAIN_COMM_NCCL = 2,
    TRAIN_COMM_PROCESSES = 3
} train_comm_t;

/** Signatures of checkpoints, made with the secret of the run. */
typedef enum train_sign {
    TRAIN_SIGN_OFF = 0,
    TRAIN_SIGN_WRITE = 1,  /* what is saved is signed */
    TRAIN_SIGN_REQUIRE = 2 /* and what is gone on from has to be */
} train_sign_t;

typedef struct train_checkpoint_options {
    const char *dir;     /* NULL: nothing is saved */
    size_t every;        /* steps; 0: at the end only */
    size_t keep;         /* so many of the newest stay; 0: all */
    bool is_async;       /* the run goes on while one is written */
    bool links_frozen;   /* parameters are not saved again; known when the run is made */
    bool resume;         /* go on from the newest */
    bool restarts_data;  /* from the beginning of the data, whatever they are */
    bool passes_damaged; /* go on from the one before, where data is damaged */
    train_sign_t sign;
} train_checkpoint_options_t;

/** Evaluations: losses of other data, between steps. */
typedef struct train_evaluation_options {
    const char **paths; /* owned; the paths are argv's */
    size_t n_paths;     /* 0: nothing is evaluated */
    size_t every;       /* steps; 0: at the beginning and the end only */
    size_t n_batches;   /* micro-batches of one, of all ranks together; 0: all there are */
    size_t patience;    /* the run ends after so many without gain; 0: never */
    bool keep_best;     /* a checkpoint of the best, which stays */
    bool only;          /* one, and no training */
} train_evaluation_options_t;

/** --lora-base. */
typedef enum train_lora_base {
    TRAIN_LORA_BASE_DTYPE = 0, /* that of --dtype */
    TRAIN_LORA_BASE_BF16 = 1,
    TRAIN_LORA_BASE_8BIT = 2,
    TRAIN_LORA_BASE_NF4 = 3
} train_lora_base_t;

/** Whether collectives run beside compute. config.overlap_comm says whether they may. */
typedef enum train_overlap {
    TRAIN_OVERLAP_AUTO = 0, /* on GPUs, and on the host where ranks are on several machines */
    TRAIN_OVERLAP_ON = 1,
    TRAIN_OVERLAP_OFF = 2
} train_overlap_t;

typedef struct train_options {
    /* What to train, and on what. */
    const char *model; /* as written; or, if it is not, the default, or own_model */
    char *own_model;   /* owned: of the checkpoint that --resume goes on from; NULL */
    zr_model_shape_t shape;
    const char **data_paths; /* owned; the paths are argv's */
    size_t n_data_paths;
    bool data_is_text;             /* each byte is a token, whatever files look like */
    const char *data_weights_text; /* as written; NULL: none */
    double *data_weights;          /* [n_data_paths], owned; NULL: none */
    bool has_documents;            /* the data has; known when it is open */
    size_t seq;                    /* tokens per sequence, at most the model's */
    size_t seq_min; /* of the shortest micro-batches, at most seq; 0: seq, until resolved */
    uint64_t seed;
    size_t steps;
    zr_recompute_t recompute;
    zr_nn_engine_t attention;
    zr_offload_device_t offload_activations;           /* inputs of layers, with recompute */
    size_t activations_on_device, activations_in_host; /* zr_activation_options_t */
    const char *freeze;                                /* NULL: nothing */
    const char *lora_text;    /* as written, or own_lora; NULL: all but `freeze` is trained */
    char *own_lora;           /* owned: as own_model */
    const char *run_path;     /* NULL: none was read */
    struct json_t *run_texts; /* owned: values of it */
    struct json_t *kept;      /* owned: options of that checkpoint (kept.h); NULL */
    zr_lora_t lora;           /* of lora_text, when resolved */
    int lora_base;            /* of train_lora_base_t */

    /* How. */
    zr_config_t config;        /* resolved */
    zr_config_t said;          /* before that */
    bool auto_stage;           /* it is chosen (train_auto.h): at least config.stage */
    bool auto_optimizer;       /* its placement is chosen, likewise */
    bool auto_params;          /* likewise */
    bool auto_activations;     /* likewise, with recompute */
    bool auto_order;           /* likewise: of a step */
    bool auto_update;          /* likewise: when units are updated */
    bool auto_recompute;       /* likewise */
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
    const char *matmul_choices_path;  /* NULL: none was given */
    matmul_choices_t *matmul_choices; /* of it; owned */
    size_t matmul_workspace_bytes;    /* that they need */
    size_t n_threads;                 /* per rank; 0: the cores, divided by the ranks */
    int comm_timeout_ms;
    const char *comm_secret; /* a file; NULL: none, or the environment's */
    const char *comm_bind;   /* an address of this machine; NULL: as it fits */
    zr_sum_order_t sums;
    train_overlap_t overlap;
    train_comm_t comm;  /* as written */
    bool use_nccl;      /* a GPU for each rank, from the one of --device on */
    bool use_processes; /* ranks are processes on the host */
    bool is_launched;   /* this process is one rank, and finds the others by `launch` */
    zr_launch_t launch;
    char launched_device[16]; /* what `device` is then, unless it was written */
    zr_plan_cache_t *plans;   /* of memory, made before, for plans and ranks; NULL: none */
    const atomic_bool *stop;  /* end after the step under way once this is set; NULL: never */

    train_checkpoint_options_t checkpoint;
    train_evaluation_options_t evaluation;

    /* What to say. */
    const char *log_path;             /* NULL: none */
    const char *tensorboard_dir;      /* NULL: none */
    const char *plot_path;            /* NULL: none */
    bool draws_only;                  /* --plot and --log, and no run */
    const char *memory_snapshot_path; /* of rank 0; NULL: none */
    const char *trace_path;           /* NULL: none */
    size_t trace_first, trace_last;   /* steps of it; 0: not written */
    bool dry_run;                     /* plan, and do not run */
    bool json;
    bool quiet;
    bool verbose;
    bool help;    /* print the help and do nothing else */
    bool version; /* print the version and do nothing else */

    /* Between parsing and resolving. */
    const char *seq_text; /* their range is known with the model; NULL: not written */
    const char *seq_min_text;

    options_given_t given;      /* on the command line */
    zr_options_given_t in_file; /* of --config */
    bool has_gradients;         /* an option says where gradients wait */
} train_options_t;

/** Its options. */
extern const options_table_t train_table;
/** Options of other trainers, and what they are called here; NULL names end them. */
extern const args_known_t train_known[];

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
/** How the model is made: what is not trained is --freeze, or all with --eval-only. `options` are
 * borrowed for as long as what is made of it. */
zr_transformer_options_t train_options_model(const train_options_t *options);
/** The value of --lora-base. */
const char *train_options_lora_base(const train_options_t *options);
/** Whether anything is offloaded to NVMe. */
bool train_options_use_nvme(const train_options_t *options);
void train_options_free(train_options_t *options);

/** Print what --help says. */
void train_options_help(FILE *file);
/** Print its options in any form. */
void train_options_describe(options_print_t *print, FILE *file);

/** Defaults of everything, as --help names them; no data. */
train_options_t train_options_default(void);

/** Check what was filled in by hand, as train_options_parse does at its end. */
ZR_NODISCARD zr_status_t train_options_resolve(train_options_t *options, const zr_log_t *log);
/** Say what has no effect as nothing that `auto` chose has it. */
void train_options_warn_left_out(const train_options_t *options, const zr_log_t *log);
/** The smallest stage that has all that was asked for: an open one is none below. */
int train_options_least_stage(const train_options_t *options);
/** The part of it that is about the run and not about its data or where things are offloaded. */
ZR_NODISCARD zr_status_t train_options_resolve_run(train_options_t *options, const zr_log_t *log);
/** The same, where placements are open, and checked with each plan. */
ZR_NODISCARD zr_status_t train_options_resolve_without_offload(train_options_t *options,
                                                               const zr_log_t *log);

/** Whether a host device's collectives run beside compute, with ranks on so many machines. */
bool train_options_overlap(const train_options_t *options, int n_machines);

/** What is left open, and tried in all ways. */
typedef struct train_open {
    bool stage, optimizer, params, activations;
    bool no_drives; /* none are named: nothing that is open comes to NVMe */
} train_open_t;

/**
 * Refuse what was given and means nothing with the rest.
 *
 * @param options  as resolved, but for placements that are open
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged
 */
ZR_NODISCARD zr_status_t train_options_check_given(const train_options_t *options,
                                                   train_open_t open, const zr_log_t *log);

/** Read the file that --config names in options->given, if there is one, over options->config; note
 * what it says. Errors as zr_config_read_json, logged. */
ZR_NODISCARD zr_status_t train_options_read_under(train_options_t *options, const zr_log_t *log);

/** Note what of options->given was left to be chosen, and which of it has no field of its own. */
void train_options_note_given(train_options_t *options);

/**
 * Warn of what was given and comes to nothing, though nothing is wrong with it: one line for each
 * reason. What has no effect is then as if it had not been given.
 *
 * @param is_stage_open  stages are tried, 3 among them
 * @param has_nccl       ranks' numbers may be added by NCCL
 */
void train_options_warn_idle(train_options_t *options, bool is_stage_open, bool has_nccl,
                             const zr_log_t *log);

/** Why an option means nothing with what is open; NULL: it does. */
const zr_option_when_t *train_options_idle(const train_options_t *options,
                                           const zr_option_t *option, train_open_t open,
                                           bool has_drives);

/** Check that parameters can be offloaded at the stage. */
ZR_NODISCARD zr_status_t train_options_check_params_stage(const train_options_t *options,
                                                          const zr_log_t *log);
/** Check that there are activations of the kind that is offloaded. */
ZR_NODISCARD zr_status_t train_options_check_recompute(const train_options_t *options,
                                                       const zr_log_t *log);
/** Whether what `auto` chooses was not given as well: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t train_options_check_auto_parts(const train_options_t *options,
                                                        const zr_log_t *log);

#endif
