/*
 * Checkpoints: what a run was, on drives, whole or not at all, for any number of ranks.
 *
 * A folder has checkpoints, each a folder of its own, step-00000060. It is made under another
 * name and renamed when all of it has reached the drive, so whatever has that name is complete,
 * whichever way a run has ended. In it are a manifest, and of each rank that saved,
 * a file of data and one of checksums. Files for other programs may lie beside them, such as a
 * model's tokenizer, which checkpoints hand on from one to the next.
 *
 * What is saved of a parameter is its optimizer's arrays, the fp32 master first, which its value in
 * any dtype follows from; of a frozen one its value. It is found again by name, and read in any
 * pieces, so that a run of another number of ranks, stage, placement or dtype reads just what it
 * needs.
 */
#pragma once

#include "zero/comm/launch.h"
#include "zero/runtime.h"

ZR_BEGIN_C

/* ---- saving ---------------------------------------------------------------------------------- */

/**
 * Checkpoints will be saved: the host memory that one needs is reserved at commit, and held.
 * Without this each save asks for it. Before commit, on every rank.
 *
 * @param goes_on  with zr_save_options_t.goes_on: for a copy as well, where every rank has room
 * @return ZR_OK; ZR_ERR_STATE after commit. Commit then also returns ZR_ERR_BUDGET when host memory
 *         has no room for the buffers
 */
ZR_NODISCARD zr_status_t zr_runtime_expect_saves(zr_runtime_t *runtime, bool goes_on);

/**
 * Save what is trained alone, and links to the files with the frozen parameters of the checkpoint
 * that zr_runtime_restore has; copies of them where the file system has no links. Each checkpoint
 * is whole. Before commit, on every rank.
 *
 * @return ZR_OK; ZR_ERR_STATE after commit. Commit then also returns ZR_ERR_ARGUMENT when the
 *         checkpoint cannot be linked, or lacks what is frozen
 */
ZR_NODISCARD zr_status_t zr_runtime_link_frozen(zr_runtime_t *runtime);

/**
 * Carry a file for other programs along, such as a tokenizer: it is written into each checkpoint
 * that this run saves. Before commit, on rank 0; on others it does nothing. Not where
 * zr_runtime_restore is called, whose checkpoint has its own.
 *
 * @param name   as of zr_checkpoint_writer_carry
 * @param bytes  [n_bytes] copied
 * @return ZR_OK; ZR_ERR_STATE after commit, or with a checkpoint; ZR_ERR_ARGUMENT as of
 *         zr_checkpoint_writer_carry; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_runtime_carry(zr_runtime_t *runtime, const char *name,
                                          const void *bytes, size_t n_bytes);

typedef struct zr_save_options {
    const char *folder;       /* of the checkpoints; made when it is not there */
    const char *trainer_json; /* an object of JSON: what the trainer needs to go on (its position in
                                 the data, its model); given back by zr_checkpoint_trainer_json.
                                 That of rank 0 is saved. NULL: {} */
    bool goes_on;             /* zr_runtime_save_begin returns when what is saved can change: where
                                 every rank has the host memory for a copy */
    size_t keep;              /* so many of the newest stay, this one with them; 0: all */
    const size_t *keep_also;  /* the one of this step stays, too; NULL: none. Borrowed for calls */
    const zr_secret_t *secret; /* its manifest is signed with this, of rank 0: nobody else can
                                  change it. NULL, or not given: it is not signed. Borrowed for
                                  calls */
} zr_save_options_t;

typedef struct zr_save_report {
    char name[64];        /* "step-00000060" */
    uint64_t n_bytes;     /* that this rank wrote */
    double write_seconds; /* until its data was on the drive */
    double seconds;       /* in calls, with waiting for other ranks: as long the run stood still */
} zr_save_report_t;

/**
 * Save parameters, optimizer state and counters. Collective; outside of micro-batches only.
 *
 * @param options   the same folder on every rank: ranks of several machines share it
 * @param report_p  may be NULL
 * @return ZR_OK: the checkpoint is complete, on every rank; ZR_ERR_STATE; ZR_ERR_ARGUMENT;
 *         ZR_ERR_IO (a folder that cannot be written, a drive that is full), ZR_ERR_BUDGET (the
 *         folder's drive is full, or host memory has no room for buffers): the checkpoints that
 *         were there stay, and what was begun is removed; ZR_ERR_COMM
 *
 * One rank's failure is the failure of all, and the runtime can go on after it, but for
 * ZR_ERR_COMM and ZR_ERR_DEVICE.
 */
ZR_NODISCARD zr_status_t zr_runtime_save(zr_runtime_t *runtime, const zr_save_options_t *options,
                                         zr_save_report_t *report_p);

/**
 * Begin to save: as zr_runtime_save, in two calls. With options->goes_on the run goes on between
 * them, while threads write a copy; else all has been written in between.
 *
 * @param options  borrowed for the call
 */
ZR_NODISCARD zr_status_t zr_runtime_save_begin(zr_runtime_t *runtime,
                                               const zr_save_options_t *options);

/**
 * End to save. Collective; outside of micro-batches only. Without one that was begun it does
 * nothing. A runtime that is destroyed before leaves a checkpoint that is not complete.
 *
 * @param wait      false: only when all ranks have written
 * @param ended_p   whether it was ended
 * @param report_p  set then, whatever came of it; may be NULL
 * @return as zr_runtime_save
 */
ZR_NODISCARD zr_status_t zr_runtime_save_end(zr_runtime_t *runtime, bool wait, bool *ended_p,
                                             zr_save_report_t *report_p);

/* ---- making one of something else ------------------------------------------------------------ */

/** A checkpoint that no run has saved: weights from another tool, tensor by tensor. */
typedef struct zr_checkpoint_writer zr_checkpoint_writer_t;

/**
 * Begin one, at step 0.
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
 * Write a tensor: its values, from the first to the last, in pieces. It has no other arrays: they
 * read as 0.
 *
 * @param desc     name, dims, frozen and fill are read; fill is called in order, once for each
 *                 element; it may return no error: whoever reads a file keeps its own. Frozen
 *                 tensors are written to files of their own, which zr_runtime_link_frozen links
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name that was written before, or a size that overflows;
 *         ZR_ERR_IO
 */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_add(zr_checkpoint_writer_t *writer,
                                                  const zr_param_desc_t *desc);

/**
 * Write a file that is carried along for other programs: a tokenizer, a configuration. A run that
 * goes on from the checkpoint carries it into those that it saves.
 *
 * @param name   1 to 63 letters, digits, '-', '_' and '.', no dot in front; not rank-..., nor
 *               manifest.json
 * @param bytes  [n_bytes]
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name that is not allowed or was written before, too many
 *         files (64), or too large ones (1 GiB); ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_carry(zr_checkpoint_writer_t *writer,
                                                    const char *name, const void *bytes,
                                                    size_t n_bytes);

/** Give it its name, when all is on the drive: as zr_runtime_save. */
ZR_NODISCARD zr_status_t zr_checkpoint_writer_publish(zr_checkpoint_writer_t *writer);

/** What was not published is removed. NULL and *writer == NULL are fine. */
void zr_checkpoint_writer_destroy(zr_checkpoint_writer_t **writer);

/* ---- looking at checkpoints ------------------------------------------------------------------ */

typedef struct zr_checkpoint zr_checkpoint_t;

/**
 * Open a checkpoint: its manifest is read and checked, and that its files are there, with the
 * sizes that they should have. Their content is verified when it is read.
 *
 * @param path  a checkpoint, or a folder of checkpoints: the newest that is complete. Those that
 *              are passed over are logged, with the reason
 * @return ZR_OK; ZR_ERR_IO when it is not there or cannot be read; ZR_ERR_FORMAT when it is no
 *         checkpoint, damaged, of another version, or hostile; ZR_ERR_MEMORY
 *
 * Threads: what is opened does not change and may be read by any number of readers.
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open(const char *path, const zr_log_t *log,
                                            zr_checkpoint_t **checkpoint_p);
/**
 * Open one whose manifest is signed with a secret (zr_save_options_t.secret): it is from somebody
 * who knows the secret. Of a folder, the newest that is complete has to be. The signature is of
 * the manifest and, through it, of sizes and checksums; those are XXH3, which finds accidents, and
 * not what somebody makes who can write to the data files and wants the same checksum.
 *
 * @param secret  NULL, or not given: as zr_checkpoint_open, which logs that nobody has checked the
 *                signature of one that has any
 * @return as zr_checkpoint_open; ZR_ERR_ARGUMENT when it is not signed, or with another secret
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open_signed(const char *path, const zr_secret_t *secret,
                                                   const zr_log_t *log,
                                                   zr_checkpoint_t **checkpoint_p);
/** A checkpoint whose data is not whole. */
typedef struct zr_checkpoint_passed {
    size_t step;
    char name[64];    /* it had: "step-00000060" */
    char kept_as[64]; /* it has now: "step-00000060.damaged"; on rank 0, "" on others */
    char reason[256];
} zr_checkpoint_passed_t;

/**
 * Open the newest checkpoint of a folder whose data is whole, too. Each rank reads a part of all of
 * it, compares that with its checksums, and all take the same one. Those whose data is
 * damaged, or cannot be read, are passed over, which rank 0 logs; when a whole one is found, they
 * are set aside under other names, and are no checkpoints of the folder any more. Collective.
 *
 * @param comm      NULL: of one rank. All ranks need the same folder
 * @param secret    as of zr_checkpoint_open_signed: the first that is not signed with it ends the
 *                  search
 * @param passed_p  [*n_passed_p], newest first; free it
 * @return as zr_checkpoint_open_signed; ZR_ERR_FORMAT when none is whole, and then nothing has
 * changed; ZR_ERR_COMM
 */
ZR_NODISCARD zr_status_t zr_checkpoint_open_whole(const char *folder, zr_comm_t *comm,
                                                  const zr_secret_t *secret, const zr_log_t *log,
                                                  zr_checkpoint_t **checkpoint_p,
                                                  zr_checkpoint_passed_t **passed_p,
                                                  size_t *n_passed_p);
/** After all its readers. NULL and *checkpoint == NULL are fine. */
void zr_checkpoint_close(zr_checkpoint_t **checkpoint);

typedef struct zr_checkpoint_info {
    const char *path; /* of the checkpoint's own folder */
    size_t step;      /* optimizer steps done, skipped ones included */
    size_t n_updates; /* of them not skipped */
    int n_ranks;      /* that saved it */
    int stage;        /* of them */
    zr_dtype_t dtype; /* likewise */
    size_t n_tensors;
    uint64_t data_bytes;   /* of all its data files */
    const char *optimizer; /* whose arrays it has */
    size_t n_arrays;
    const char *messages; /* of the run that saved it, as zr_config_messages */
    bool is_signed;       /* checked where it was opened with a secret */
} zr_checkpoint_info_t;
/** Facts of it; its strings live as long as it. */
void zr_checkpoint_info(const zr_checkpoint_t *checkpoint, zr_checkpoint_info_t *info_p);

/** What zr_save_options_t.trainer_json was, as compact JSON; lives as long as the checkpoint. */
const char *zr_checkpoint_trainer_json(const zr_checkpoint_t *checkpoint);

/** A parameter. */
typedef struct zr_checkpoint_tensor {
    const char *name;
    const char *unit;
    int n_dims; /* 0 to 4 */
    size_t dims[4];
    size_t n_elems;
    bool frozen;      /* it had no state */
    bool has_moments; /* all arrays are there; else those behind the first read as 0 */
} zr_checkpoint_tensor_t;
/** Number `index`, in the order of registration; lives as long as the checkpoint. NULL from
 * n_tensors on. */
const zr_checkpoint_tensor_t *zr_checkpoint_tensor(const zr_checkpoint_t *checkpoint, size_t index);
/** Whether there is a tensor of this name, and which. */
bool zr_checkpoint_find(const zr_checkpoint_t *checkpoint, const char *name, size_t *index_p);

/** Names of frozen parameters. */
typedef struct zr_frozen_names {
    bool (*has)(const void *context, const char *name);
    const void *context;
} zr_frozen_names_t;

/** Whether zr_runtime_link_frozen can be asked for with a checkpoint: what is frozen then is in
 * files without anything else. So it is in what was imported, and in what was saved with links. */
bool zr_checkpoint_can_be_linked(const zr_checkpoint_t *checkpoint, zr_frozen_names_t frozen);

/** Its arrays, by number: the first is the fp32 master; of a frozen parameter its value. */
#define ZR_CHECKPOINT_VALUE ((size_t)0)
/** Name of an array, such as "exp_avg"; lives as long as the checkpoint. NULL from n_arrays on. */
const char *zr_checkpoint_array_name(const zr_checkpoint_t *checkpoint, size_t array);
/** How it is kept; NULL: there are not so many. */
const zr_encoding_t *zr_checkpoint_array_encoding(const zr_checkpoint_t *checkpoint, size_t array);

/** A file that it carries along for other programs. */
typedef struct zr_carried_file {
    const char *name; /* lives as long as the checkpoint */
    size_t n_bytes;
} zr_carried_file_t;
/** Number `index`; false: there are not so many. */
bool zr_checkpoint_carried(const zr_checkpoint_t *checkpoint, size_t index,
                           zr_carried_file_t *file_p);
/** Whether there is one of this name, and which. */
bool zr_checkpoint_find_carried(const zr_checkpoint_t *checkpoint, const char *name,
                                size_t *index_p);
/**
 * Read it, and verify it.
 *
 * @param bytes  [n_bytes]; undefined after an error
 * @return ZR_OK; ZR_ERR_ARGUMENT: there is none; ZR_ERR_IO; ZR_ERR_FORMAT when it is not what was
 *         saved. Logged.
 */
ZR_NODISCARD zr_status_t zr_checkpoint_read_carried(const zr_checkpoint_t *checkpoint, size_t index,
                                                    const zr_log_t *log, void *bytes);

typedef struct zr_checkpoint_reader zr_checkpoint_reader_t;

/** Make a reader: it keeps files open, and what it has read last. Threads: one thread each. */
ZR_NODISCARD zr_status_t zr_checkpoint_reader_create(const zr_checkpoint_t *checkpoint,
                                                     const zr_log_t *log,
                                                     zr_checkpoint_reader_t **reader_p);
void zr_checkpoint_reader_destroy(zr_checkpoint_reader_t **reader);

/**
 * Read elements [first, first + n_elems) of a tensor. Whole chunks are read and verified, so
 * reading on from where the last call ended costs nothing twice.
 *
 * @param values  [n_elems] host memory; undefined after an error
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO (the log has file, offset, length and cause);
 *         ZR_ERR_FORMAT when what is there is not what was saved
 */
ZR_NODISCARD zr_status_t zr_checkpoint_read(zr_checkpoint_reader_t *reader, size_t tensor,
                                            size_t array, size_t first, size_t n_elems,
                                            float *values);

/**
 * Read all of it, and compare it with its checksums.
 *
 * @param progress  called now and then with the bytes verified so far; NULL: not
 * @return ZR_OK; ZR_ERR_IO, ZR_ERR_FORMAT: every damaged extent has been logged
 */
ZR_NODISCARD zr_status_t zr_checkpoint_verify(const zr_checkpoint_t *checkpoint,
                                              const zr_log_t *log,
                                              void (*progress)(void *context, uint64_t n_bytes),
                                              void *context);

/** What a folder has. */
typedef struct zr_checkpoint_entry {
    char name[64]; /* of its folder, within the folder of all */
    size_t step;
    bool is_complete;  /* it has been given its name, and its manifest and files are as they say */
    char problem[256]; /* what is wrong with it, of one that is not complete */
    /* Of one that is complete: */
    uint64_t data_bytes;
    int n_ranks;
    int stage;
    zr_dtype_t dtype;
    int64_t saved_unix_s; /* when its manifest was written; 0: not known */
    bool is_signed;       /* whoever has signed it: that is not checked */
} zr_checkpoint_entry_t;

/**
 * List a folder's checkpoints, newest first; those that were never finished come as well.
 *
 * @param entries_p  [*n_entries_p]; free it
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_checkpoint_list(const char *folder, const zr_log_t *log,
                                            zr_checkpoint_entry_t **entries_p, size_t *n_entries_p);

/* ---- loading --------------------------------------------------------------------------------- */

/**
 * Take initial values from a checkpoint instead of fill functions: those of every parameter that
 * it has a tensor of the same name for, with the optimizer's arrays, and the counters of steps.
 * Before commit, which reads; and on every rank.
 *
 * @param checkpoint  borrowed until commit has returned; any ranks, stage, placement, dtype
 * @return ZR_OK; ZR_ERR_STATE after commit and zr_runtime_carry. Commit then also returns what
 *         zr_checkpoint_read does,
 *         and ZR_ERR_ARGUMENT when a parameter has no tensor, a tensor no parameter, their shapes
 *         differ, or its arrays are another optimizer's; one that has masters alone, as the writer
 *         makes them, is of any
 *
 * Files that it carries along are carried by those that are saved.
 *
 * A parameter that was frozen and no longer is starts with other arrays of 0, and one that has
 * become frozen keeps its master, rounded to the dtype: both are logged.
 */
ZR_NODISCARD zr_status_t zr_runtime_restore(zr_runtime_t *runtime,
                                            const zr_checkpoint_t *checkpoint);

ZR_END_C
