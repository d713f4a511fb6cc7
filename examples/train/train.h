/*
 * A training run: ranks as threads, each with its device, runtime, model and reader, and what
 * they report in the end.
 */
#ifndef EXAMPLES_TRAIN_TRAIN_H
#define EXAMPLES_TRAIN_TRAIN_H

#include "examples/common/messages.h"
#include "examples/train/options.h"
#include "examples/train/slowest.h"

/** Bytes of one class. */
typedef struct train_class_peak {
    size_t live;
    size_t reserved;
    size_t largest_hole; /* mapped and nobody's, in one piece, when the tier's live was largest */
} train_class_peak_t;

/** Bytes of one tier: the largest over the ranks, each by itself. */
typedef struct train_peak {
    size_t live;
    size_t reserved;
    size_t pinned; /* of host memory */
    size_t by_tag[ZR_N_TAGS];
    size_t at_peak[ZR_N_TAGS]; /* of the rank whose live was largest, at that moment: its parts */
    train_class_peak_t by_class[ZR_N_CLASSES];
} train_peak_t;

/** The peaks of an allocator's statistics. */
train_peak_t train_peak_of(const zr_tier_statistics_t *statistics);

/** What was foretold of the peaks, before the run began (train_plan.h). */
typedef struct train_planned {
    bool is_made; /* what follows says something */
    bool fits;    /* false: the peaks are what it would take, were there memory enough */
    train_peak_t peak[ZR_N_TIERS];
    zr_byte_count_t metadata; /* of a rank */
} train_planned_t;

/** Where a rank's time went. */
typedef enum train_part {
    TRAIN_COMPUTE,
    TRAIN_COMM,
    TRAIN_OPTIMIZER,
    TRAIN_STALL,      /* waiting for other ranks */
    TRAIN_DATA,       /* waiting for the reader */
    TRAIN_CONCURRENT, /* the host's collectives during all of that, part of none of it */
    TRAIN_IO          /* waiting for NVMe */
} train_part_t;
#define TRAIN_N_PARTS 7

/** Seconds: the average over the ranks. */
typedef struct train_time {
    double of[TRAIN_N_PARTS];
} train_time_t;

/** Checkpoints that were saved. */
typedef struct train_saves {
    size_t n_saves;
    char last[64];        /* the name of the newest */
    uint64_t n_bytes;     /* written, of all ranks */
    double seconds;       /* training stood still: the most of a rank */
    double write_seconds; /* until the data was on the drive: likewise */
    bool is_open;         /* one more was begun */
} train_saves_t;

/** What evaluations have gained, of the whole run. */
typedef struct train_gain {
    bool has_any;     /* last_step and n_without are valid */
    size_t last_step; /* that one came after */
    size_t n_without; /* so many in a row have not had the lowest loss */
    bool has_best;    /* the fields below are valid */
    double best_loss;
    size_t best_step;
} train_gain_t;

/** Evaluations of this run. */
typedef struct train_evaluations {
    size_t n;
    double first_loss, last_loss; /* n > 0 */
    double seconds;               /* of all, on rank 0 */
    bool is_over;                 /* --patience has ended the run */
    train_gain_t gain;
} train_evaluations_t;

/** The file of --trace. */
typedef struct train_trace_result {
    bool is_written;              /* what follows says something */
    size_t first_step, last_step; /* 0: none was reached */
    size_t n_events, n_left_out;  /* of the ranks of this process */
} train_trace_result_t;

/** The validation data. */
typedef struct train_val_data {
    const char *kind; /* NULL: there are none */
    size_t n_files, n_tokens, n_windows;
    size_t n_batches, n_evaluated_tokens; /* of an evaluation */
} train_val_data_t;

typedef struct train_result {
    zr_status_t status; /* of the rank that failed first */
    bool bad_input;     /* the run failed for what it was given: exit 2 */
    bool interrupted;   /* options->stop ended it before its last step */
    bool is_stopped;    /* and in an evaluation, or within a step, which was given up */

    train_planned_t planned; /* set by whoever planned it, not by the run */

    /* Also of a run that failed, as far as it came. */
    bool has_memory;                   /* peaks and replay say something: a rank had an allocator */
    train_peak_t peak[ZR_N_TIERS];     /* of NVMe without classes */
    zr_byte_count_t metadata;          /* tables of the library, in no tier */
    zr_offload_report_t offload;       /* of all ranks together (sum.c) */
    zr_nn_matmul_counts_t matmuls;     /* products with and without a choice, of all ranks */
    int n_updated_on_device;           /* ranks whose offloaded state is updated there */
    zr_stash_statistics_t activations; /* likewise; 0 where none were offloaded */
    zr_replay_statistics_t replay;     /* of the rank that followed its plan in the fewest steps */
    zr_model_size_t size;              /* no units: it was not made, nor placed */
    bool overlaps;                     /* collectives run beside compute */
    char device[128];                  /* its description; "": it was not opened */
    size_t device_in_use_bytes[2];     /* of a GPU with one rank, by anybody: when it was opened,
                                          and when training ended; 0: not asked for */
    zr_nn_engine_info_t attention;     /* of the first rank */
    size_t n_threads;                  /* of each rank */
    const char *data_kind;             /* NULL: no data was opened */
    size_t n_data_files;
    size_t n_data_tokens;
    size_t n_data_windows;
    size_t n_data_duplicates;
    bool has_documents;
    uint64_t n_data_targets; /* of documents: tokens that have a loss */
    train_val_data_t val_data;
    train_trace_result_t trace;
    size_t first_step; /* steps that were done before: those of the checkpoint */
    size_t n_steps;    /* done, with those before, and skipped ones */
    size_t n_skipped;
    size_t n_trained_tokens;              /* of the steps of this run, over all ranks */
    const zr_checkpoint_passed_t *passed; /* [n_passed] checkpoints that were damaged; the run's */
    size_t n_passed;
    train_saves_t saves;
    train_evaluations_t evaluations;
    double first_loss;
    double last_loss;
    double step_ms;             /* median */
    double own_ms;              /* of a rank: median of its own time, without waiting for others */
    size_t peak_resident_bytes; /* of a rank: of its process; 0: the system does not say */

    /* Of a run that succeeded. */
    double tokens_per_s; /* median of the steps' own, over all ranks */
    zr_weights_t weights;
    uint64_t bytes_sent[ZR_N_TRAFFICS][ZR_N_COLLECTIVES];     /* the largest over the ranks */
    uint64_t level_bytes_sent[ZR_N_LEVELS][ZR_N_COLLECTIVES]; /* of it, of the model, by reach */
    train_time_t time;
    double seconds; /* of all steps, on rank 0 */
    int slowest_rank;
    size_t n_delayed_steps; /* of more ranks and steps than one: what follows says something */
    train_delays_t slowest; /* of that rank, in those steps: all but the first */
} train_result_t;

/** A run whose inputs are open. */
typedef struct zero_train zero_train_t;

/**
 * Open what the run reads: data, and the checkpoint that it goes on from. What it will write can be
 * written. Ranks that are processes find each other before that, so that what happens to one from
 * then on is known to the others at once.
 *
 * @param options  borrowed until zero_train_close; placements may be changed until zero_train_go
 * @param result_p  set unless ZR_OK: of a run that failed before it began
 * @return ZR_OK; result_p->status, logged
 */
ZR_NODISCARD zr_status_t zero_train_open(const train_options_t *options, const zr_log_t *log,
                                         zero_train_t **train_p, train_result_t *result_p);
/** The communicator of its first rank here, for what is asked before it begins; the run's. */
zr_comm_t *zero_train_comm(const zero_train_t *train);
/** Whether its data has documents: plans have to know. */
bool zero_train_has_documents(const zero_train_t *train);
/** Whether what it saves has links to weights that adapters are beside. */
bool zero_train_links_frozen(const zero_train_t *train);
/** Its evaluations, for its plan. */
zr_run_evaluations_t zero_train_evaluations(const zero_train_t *train);
/** Steps that it has behind it: those of the checkpoint that it goes on from. */
size_t zero_train_first_step(const zero_train_t *train);
/** The result of a run that was not begun for such an error: what is known of it. */
train_result_t zero_train_failed(const zero_train_t *train, zr_status_t status);
/**
 * What a run checks before its ranks allocate anything: the files that it writes, and that ranks
 * agree. For --dry-run.
 *
 * @param result_p  without any step
 * @return ZR_OK; the first error, logged
 */
zr_status_t zero_train_try(zero_train_t *run, train_result_t *result_p);

/** Train, once: see zero_train_run. */
zr_status_t zero_train_go(zero_train_t *train, messages_t *messages, train_result_t *result_p);
/**
 * The ranks whose own results are known once it has trained: all of them, or, where ranks are
 * processes and have not told each other, this one's.
 *
 * @param n_known_p  so many, from the one on that is returned; 0: it has no ranks
 */
int zero_train_first_known(const zero_train_t *train, int *n_known_p);
/** The own result of one of them; until zero_train_close. */
const train_result_t *zero_train_result_of(const zero_train_t *train, int rank);
void zero_train_close(zero_train_t **train);

/**
 * All of these. Everything that was made is gone when it returns, also after an error, and all
 * threads have ended. May be called again, and by several threads at a time.
 *
 * @param options   resolved; borrowed for the call
 * @param log       where ranks and model report; a sink that is thread-safe
 * @param messages  for the progress line; NULL: none
 * @param result_p  always set
 * @return result_p->status; what is wrong has been logged
 */
zr_status_t zero_train_run(const train_options_t *options, const zr_log_t *log,
                           messages_t *messages, train_result_t *result_p);
#endif
