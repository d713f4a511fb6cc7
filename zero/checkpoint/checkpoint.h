/*
 * Checkpoints: the complete state of a run on drives, written atomically, for any number of ranks.
 *
 * A folder contains checkpoints; each is a subfolder such as step-00000060. It is written under a
 * temporary name and renamed when all data has reached the drive, so a folder with that name is
 * always complete. It contains a manifest and, for each rank that saved, a data file and a checksum
 * file. It may also contain files for other programs, such as a model's tokenizer; later
 * checkpoints carry them along.
 *
 * A trainable parameter is saved as its optimizer arrays; the first is the fp32 master, from which
 * its value in any dtype is rounded. A frozen parameter is saved as its value. Parameters are found
 * by name and can be read in any pieces, so a run with another number of ranks, stage, placement or
 * dtype reads only what it needs.
 */
#pragma once

#include "zero/comm/launch.h"
#include "zero/runtime.h"

ZR_BEGIN_C

/* ---- saving ---------------------------------------------------------------------------------- */

/**
 * Announce that checkpoints will be saved: their host memory is reserved at commit and kept.
 * Without this, each save allocates it. Before commit, on every rank.
 *
 * @param goes_on  also reserve memory for a copy, as zr_save_options_t.goes_on needs it, if every
 *                 rank has room
 * @return ZR_OK; ZR_ERR_STATE after commit. Commit then also returns ZR_ERR_BUDGET when host memory
 *         has no room for the buffers
 */
ZR_NODISCARD zr_status_t zr_runtime_expect_saves(zr_runtime_t *runtime, bool goes_on);

/**
 * Save only trainable parameters, and link the files with frozen parameters from the checkpoint
 * given to zr_runtime_restore (or copy them if the file system has no links). Each checkpoint is
 * complete. Before commit, on every rank.
 *
 * @return ZR_OK; ZR_ERR_STATE after commit. Commit then also returns ZR_ERR_ARGUMENT when the
 *         checkpoint cannot be linked, or lacks a frozen parameter
 */
ZR_NODISCARD zr_status_t zr_runtime_link_frozen(zr_runtime_t *runtime);

/**
 * Add a file for other programs, such as a tokenizer, to each checkpoint that this run saves.
 * Before commit, on rank 0; no effect on other ranks. Not allowed with zr_runtime_restore, whose
 * checkpoint has its own files.
 *
 * @param name   as of zr_checkpoint_writer_carry
 * @param bytes  [n_bytes] copied
 * @return ZR_OK; ZR_ERR_STATE after commit or zr_runtime_restore; ZR_ERR_ARGUMENT as
 *         zr_checkpoint_writer_carry; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_runtime_carry(zr_runtime_t *runtime, const char *name,
                                          const void *bytes, size_t n_bytes);

typedef struct zr_save_options {
    const char *folder;       /* folder of checkpoints; created if missing */
    const char *trainer_json; /* a JSON object with what the trainer needs to resume (its position
                                 in the data, its model), returned by zr_checkpoint_trainer_json.
                                 Rank 0's is saved. NULL: {} */
    bool goes_on; /* asynchronous: zr_runtime_save_begin returns as soon as training can continue,
                     if every rank has host memory for a copy */
    size_t keep;  /* number of newest checkpoints to keep, including this one; 0: all */
    const size_t
        *keep_also; /* also keep the checkpoint of this step; NULL: none. Borrowed for calls */
    const zr_secret_t
        *secret; /* rank 0's secret signs the manifest, so that nobody without it can change the
                    checkpoint unnoticed. NULL, or not given: unsigned. Borrowed for calls */
} zr_save_options_t;

typedef struct zr_save_report {
    char name[64];        /* "step-00000060" */
    uint64_t n_bytes;     /* written by this rank */
    double write_seconds; /* until this rank's data was on the drive */
    double seconds; /* time spent in the calls, including waiting for other ranks: how long training
                       was blocked */
} zr_save_report_t;

/**
 * Save parameters, optimizer state and counters. Collective; outside of micro-batches only.
 *
 * @param options   the same folder on every rank, shared by all machines
 * @param report_p  may be NULL
 * @return ZR_OK: the checkpoint is complete, on every rank; ZR_ERR_STATE; ZR_ERR_ARGUMENT;
 *         ZR_ERR_IO (a folder that cannot be written, a drive that is full), ZR_ERR_BUDGET (the
 *         folder's drive is full, or host memory has no room for buffers): existing checkpoints are
 *         unchanged, and the incomplete one is removed; ZR_ERR_COMM
 *
 * If one rank fails, the call fails on all ranks. The runtime stays usable, except after
 * ZR_ERR_COMM and ZR_ERR_DEVICE.
 */
ZR_NODISCARD zr_status_t zr_runtime_save(zr_runtime_t *runtime, const zr_save_options_t *options,
                                         zr_save_report_t *report_p);

/**
 * Begin to save: as zr_runtime_save, in two calls. With options->goes_on, training continues
 * between the calls while threads write a copy; otherwise everything is written before this call
 * returns.
 *
 * @param options  borrowed for the call
 */
ZR_NODISCARD zr_status_t zr_runtime_save_begin(zr_runtime_t *runtime,
                                               const zr_save_options_t *options);

/**
 * Finish a save. Collective; outside of micro-batches only. Does nothing if no save was begun.
 * Destroying the runtime before leaves an incomplete checkpoint.
 *
 * @param wait      true: wait for the writers; false: finish only if all ranks have written
 * @param ended_p   whether the save was finished
 * @param report_p  set if it was finished, with or without success; may be NULL
 * @return as zr_runtime_save
 */
ZR_NODISCARD zr_status_t zr_runtime_save_end(zr_runtime_t *runtime, bool wait, bool *ended_p,
                                             zr_save_report_t *report_p);

/* ---- writing one without a run ------------------------------------------------------------ */

/** Writes a checkpoint tensor by tensor, for example from another tool's weights. */
typedef struct zr_checkpoint_writer zr_checkpoint_writer_t;

/**
 * Begin a checkpoint at step 0.
 *
 * @param options  as of zr_runtime_save; borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_MEMORY
 *
 * Threads: one.
 */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_create(const zr_save_options_t *options,
                                                     const zr_log_t *log,
                                                     zr_checkpoint_writer_t **writer_p);

/**
 * Write the values of a tensor, in order, in pieces. Its other arrays are not written and read as
 * 0.
 *
 * @param desc     name, dims, frozen and fill are read; fill is called in order, once for each
 *                 element; it cannot return an error, so a caller that reads a file must record
 *                 errors itself. Frozen tensors are written to separate files, which
 *                 zr_runtime_link_frozen links
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name that was written before, or a size that overflows;
 *         ZR_ERR_IO
 */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_add(zr_checkpoint_writer_t *writer,
                                                  const zr_param_desc_t *desc);

/**
 * Add a file for other programs: a tokenizer, a configuration. A run that resumes from this
 * checkpoint copies it into the checkpoints that it saves.
 *
 * @param name   1 to 63 letters, digits, '-', '_' and '.', not starting with a dot; not rank-... or
 *               manifest.json
 * @param bytes  [n_bytes]
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name that is not allowed or was written before, too many
 *         files (64), or too large ones (1 GiB); ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_carry(zr_checkpoint_writer_t *writer,
                                                    const char *name, const void *bytes,
                                                    size_t n_bytes);

/** Rename it to its final name when all data is on the drive. Errors as zr_runtime_save. */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_publish(zr_checkpoint_writer_t *writer);

/** An unpublished checkpoint is removed. NULL and *writer == NULL are fine. */
void zr_checkpoint_writer_destroy(zr_checkpoint_writer_t **writer);

/* ---- reading checkpoints ------------------------------------------------------------------ */

typedef struct zr_checkpoint zr_checkpoint_t;

/**
 * Open a checkpoint: reads and checks its manifest, and checks that its files exist and have the
 * right sizes. Their content is verified when it is read.
 *
 * @param path  a checkpoint, or a folder of checkpoints: opens the newest complete one. Skipped
 *              ones are logged with the reason
 * @return ZR_OK; ZR_ERR_IO if it does not exist or cannot be read; ZR_ERR_FORMAT if it is not a
 *         checkpoint, or is damaged, of another version, or malicious; ZR_ERR_MEMORY
 *
 * Threads: an open checkpoint is immutable and may be used by any number of readers.
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open(const char *path, const zr_log_t *log,
                                            zr_checkpoint_t **checkpoint_p);
/**
 * Open a checkpoint and verify that its manifest was signed with a secret
 * (zr_save_options_t.secret). In a folder, the newest complete one must be signed. The signature
 * covers the manifest, and with it sizes and checksums. The checksums are XXH3: they detect
 * accidents, but not deliberate changes of data files that keep the checksum.
 *
 * @param secret  NULL, or not given: as zr_checkpoint_open, which logs that an existing signature
 *                was not verified
 * @return as zr_checkpoint_open; ZR_ERR_ARGUMENT if it is unsigned or signed with another secret
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open_signed(const char *path, const zr_secret_t *secret,
                                                   const zr_log_t *log,
                                                   zr_checkpoint_t **checkpoint_p);
/** A checkpoint with damaged data. */
typedef struct zr_checkpoint_passed {
    size_t step;
    char name[64];    /* original name: "step-00000060" */
    char kept_as[64]; /* new name: "step-00000060.damaged"; only on rank 0, "" on others */
    char reason[256];
} zr_checkpoint_passed_t;

/**
 * Open the newest checkpoint of a folder whose data is intact. Each rank reads and verifies a part
 * of the data, and all ranks open the same checkpoint. Those with damaged or unreadable data are
 * skipped, which rank 0 logs. When an intact one is found, the skipped ones are renamed and no
 * longer count as checkpoints of the folder. Collective.
 *
 * @param comm      NULL: a single rank. All ranks need the same folder
 * @param secret    as zr_checkpoint_open_signed: a checkpoint without a valid signature ends the
 *                  search
 * @param passed_p  [*n_passed_p], newest first; free it
 * @return as zr_checkpoint_open_signed; ZR_ERR_FORMAT if all are damaged, and nothing is changed;
 *         ZR_ERR_COMM
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open_whole(const char *folder, zr_comm_t *comm,
                                                  const zr_secret_t *secret, const zr_log_t *log,
                                                  zr_checkpoint_t **checkpoint_p,
                                                  zr_checkpoint_passed_t **passed_p,
                                                  size_t *n_passed_p);
/** Close it after all its readers. NULL and *checkpoint == NULL are fine. */
void zr_checkpoint_close(zr_checkpoint_t **checkpoint);

typedef struct zr_checkpoint_info {
    const char *path; /* of the checkpoint's own folder */
    size_t step;      /* optimizer steps done, skipped ones included */
    size_t n_updates; /* steps that were not skipped */
    int n_ranks;      /* of the run that saved it */
    int stage;        /* of that run */
    zr_dtype_t dtype; /* of that run */
    size_t n_tensors;
    uint64_t data_bytes;   /* total size of its data files */
    const char *optimizer; /* name of the optimizer of its arrays */
    size_t n_arrays;
    const char *messages; /* zr_config_messages of the run that saved it */
    bool is_signed;       /* verified only if it was opened with a secret */
} zr_checkpoint_info_t;
/** Information about a checkpoint; its strings live as long as the checkpoint. */
void zr_checkpoint_info(const zr_checkpoint_t *checkpoint, zr_checkpoint_info_t *info_p);

/** The saved zr_save_options_t.trainer_json, as compact JSON; lives as long as the checkpoint. */
const char *zr_checkpoint_trainer_json(const zr_checkpoint_t *checkpoint);

/** A parameter. */
typedef struct zr_checkpoint_tensor {
    const char *name;
    const char *unit;
    int n_dims; /* 0 to 4 */
    size_t dims[4];
    size_t n_elems;
    bool frozen;      /* it has no optimizer state */
    bool has_moments; /* all arrays were saved; else all but the first read as 0 */
} zr_checkpoint_tensor_t;
/** Tensor `index`, in the order of registration; lives as long as the checkpoint. NULL if index >=
 * n_tensors. */
const zr_checkpoint_tensor_t *zr_checkpoint_tensor(const zr_checkpoint_t *checkpoint, size_t index);
/** Find a tensor by name; false: not found. */
bool zr_checkpoint_find(const zr_checkpoint_t *checkpoint, const char *name, size_t *index_p);

/** Tells which names are frozen parameters. */
typedef struct zr_frozen_names {
    bool (*has)(const void *context, const char *name);
    const void *context;
} zr_frozen_names_t;

/** Whether zr_runtime_link_frozen works with a checkpoint: its frozen parameters must be in files
 * of their own. This holds for imported checkpoints and those saved with links. */
bool zr_checkpoint_can_be_linked(const zr_checkpoint_t *checkpoint, zr_frozen_names_t frozen);

/** Number of the first array: the fp32 master, or the value of a frozen parameter. */
#define ZR_CHECKPOINT_VALUE ((size_t)0)
/** Name of an array, such as "exp_avg"; lives as long as the checkpoint. NULL if array >= n_arrays.
 */
const char *zr_checkpoint_array_name(const zr_checkpoint_t *checkpoint, size_t array);
/** Its encoding; NULL if array >= n_arrays. */
const zr_encoding_t *zr_checkpoint_array_encoding(const zr_checkpoint_t *checkpoint, size_t array);

/** A file for other programs in a checkpoint. */
typedef struct zr_carried_file {
    const char *name; /* lives as long as the checkpoint */
    size_t n_bytes;
} zr_carried_file_t;
/** File `index`; false: index is out of range. */
bool zr_checkpoint_carried(const zr_checkpoint_t *checkpoint, size_t index,
                           zr_carried_file_t *file_p);
/** Find a file by name; false: not found. */
bool zr_checkpoint_find_carried(const zr_checkpoint_t *checkpoint, const char *name,
                                size_t *index_p);
/**
 * Read and verify such a file.
 *
 * @param bytes  [n_bytes]; undefined after an error
 * @return ZR_OK; ZR_ERR_ARGUMENT: index is out of range; ZR_ERR_IO; ZR_ERR_FORMAT: it is damaged.
 *         Logged.
 */
ZR_NODISCARD zr_status_t zr_checkpoint_read_carried(const zr_checkpoint_t *checkpoint, size_t index,
                                                    const zr_log_t *log, void *bytes);

typedef struct zr_checkpoint_reader zr_checkpoint_reader_t;

/** Create a reader, which keeps files open and caches the last chunk. Threads: one thread per
 * reader. */
ZR_NODISCARD zr_status_t zr_checkpoint_reader_create(const zr_checkpoint_t *checkpoint,
                                                     const zr_log_t *log,
                                                     zr_checkpoint_reader_t **reader_p);
void zr_checkpoint_reader_destroy(zr_checkpoint_reader_t **reader);

/**
 * Read elements [first, first + n_elems) of a tensor. Whole chunks are read and verified;
 * sequential reads never read a chunk twice.
 *
 * @param values  [n_elems] host memory; undefined after an error
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO (the log has file, offset, length and cause);
 *         ZR_ERR_FORMAT if the data is damaged
 */
ZR_NODISCARD zr_status_t zr_checkpoint_read(zr_checkpoint_reader_t *reader, size_t tensor,
                                            size_t array, size_t first, size_t n_elems,
                                            float *values);

/**
 * Read all data and verify its checksums.
 *
 * @param progress  called now and then with the bytes verified so far; may be NULL
 * @return ZR_OK; ZR_ERR_IO, ZR_ERR_FORMAT: every damaged extent has been logged
 */
ZR_NODISCARD zr_status_t zr_checkpoint_verify(const zr_checkpoint_t *checkpoint,
                                              const zr_log_t *log,
                                              void (*progress)(void *context, uint64_t n_bytes),
                                              void *context);

/** An entry of a folder of checkpoints. */
typedef struct zr_checkpoint_entry {
    char name[64]; /* of its subfolder */
    size_t step;
    bool is_complete;  /* it has its final name, and its manifest and files are valid */
    char problem[256]; /* if not complete: the reason */
    /* Valid if it is complete: */
    uint64_t data_bytes;
    int n_ranks;
    int stage;
    zr_dtype_t dtype;
    int64_t saved_unix_s; /* when its manifest was written; 0: unknown */
    bool is_signed;       /* has a signature, which is not verified here */
} zr_checkpoint_entry_t;

/**
 * List a folder's checkpoints, newest first; including unfinished ones.
 *
 * @param entries_p  [*n_entries_p]; free it
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_checkpoint_list(const char *folder, const zr_log_t *log,
                                            zr_checkpoint_entry_t **entries_p, size_t *n_entries_p);

/* ---- loading --------------------------------------------------------------------------------- */

/**
 * Take initial values from a checkpoint instead of fill functions: values and optimizer arrays of
 * all parameters that it has by name, and the step counters. Before commit, which reads them; on
 * every rank.
 *
 * @param checkpoint  borrowed until commit has returned; saved with any number of ranks, stage,
 *                    placement and dtype
 * @return ZR_OK; ZR_ERR_STATE after commit or zr_runtime_carry. Commit then also returns errors of
 *         zr_checkpoint_read, and ZR_ERR_ARGUMENT if a parameter has no tensor, a tensor no
 *         parameter, shapes differ, or the arrays belong to another optimizer; a checkpoint with
 *         masters only, as zr_checkpoint_writer_t makes it, fits every optimizer
 *
 * Its files for other programs are copied to the checkpoints that this run saves.
 *
 * If a parameter is no longer frozen, its other arrays start at 0. If it has become frozen, its
 * value is the master rounded to the dtype. Both are logged.
 */
ZR_NODISCARD zr_status_t zr_runtime_restore(zr_runtime_t *runtime,
                                            const zr_checkpoint_t *checkpoint);

ZR_END_C
