/*
 * The manifest of a checkpoint: what is where. Internal to zero/checkpoint/.
 *
 * A unit's parameters of one kind, trainable or frozen, are one row of elements: the flat buffer of
 * layout_internal.h, whose offsets do not depend on the number of ranks. An extent is a slice of
 * such a row in a data file. It is cut into groups of group_elems elements, the last one shorter,
 * and a group has its arrays one behind the other: [n_arrays][elements of the group]; trainable
 * parameters have the optimizer's arrays, or the first alone, the master. That is how the state
 * lies in its tiers.
 *
 * The extents of a row do not overlap and have all elements of its tensors. An extent is checked in
 * chunks of chunk_bytes from its beginning, the last one shorter: the file of checksums has an
 * XXH3 (64 bits, little endian) for each, and the manifest the XXH3 of those.
 *
 *   {
 *     "format": "libzero checkpoint", "version": 1, "library": "0.1.0",
 *     "step": 60, "updates": 60, "ranks": 2, "stage": 3, "dtype": "bf16",
 *     "units": [{"name": "h.0"}],
 *     "tensors": [{"name": "h.0.ln_1.weight", "unit": 0, "shape": [256], "frozen": false,
 *                  "offset": 0}],
 *     "files": [{"data": "rank-00000.data", "data_bytes": 8192, "chunk_bytes": 262144,
 *                "sums": "rank-00000.sums", "n_chunks": 3}],
 *     "extents": [{"unit": 0, "frozen": false, "first": 0, "n_elems": 512, "group_elems": 512,
 *                  "n_arrays": 3, "dtype": "fp32", "file": 0, "offset_bytes": 0,
 *                  "first_chunk": 0, "xxh3": "0123456789abcdef"}],
 *     "optimizer": "Lion",
 *     "arrays": [{"name": "master", "encoding": "fp32"}, {"name": "exp_avg", "encoding": "fp32"}],
 *     "messages": "parameters in 8bit",
 *     "carried": [{"name": "tokenizer.json", "bytes": 1355256, "xxh3": "0123456789abcdef"}],
 *     "trainer": {},
 *     "signature": "64 hexadecimal digits",
 *     "xxh3": "0123456789abcdef"
 *   }
 *
 * Without "optimizer" and "arrays" it is AdamW's, with its three arrays in fp32. Without "messages"
 * those of the run that saved it lost nothing. Without "carried" it has no files for other
 * programs.
 *
 * The last one is of all bytes before its own digits: it stands at the end of the file, and a
 * manifest that was changed by hand is no longer one. Before it stands the signature, of one that
 * is signed, likewise of all bytes before its own digits.
 */
#pragma once

#include "kernels/dtype.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/optim/optimizer.h"

#define ZR_MANIFEST_NAME "manifest.json"
#define ZR_MANIFEST_VERSION 1
/** What a manifest may have, so that a hostile one takes memory of its own size, times some 30
 * while it is parsed: a million extents, objects within objects no deeper than needed, and at least
 * so many bytes for each object or list. */
#define ZR_MANIFEST_MAX_BYTES ((size_t)256 << 20)
#define ZR_MANIFEST_MAX_DEPTH 64
#define ZR_MANIFEST_MIN_BYTES_PER_OBJECT 8
#define ZR_MANIFEST_MAX_RANKS 65536
#define ZR_MANIFEST_MAX_ROW_ELEMS ((size_t)1 << 52)
#define ZR_MANIFEST_MAX_CHUNK_BYTES ((size_t)1 << 30)
#define ZR_MANIFEST_MAX_CARRIED ((size_t)64)
#define ZR_MANIFEST_MAX_CARRIED_BYTES ((uint64_t)1 << 30)

typedef struct zr_manifest_tensor {
    zr_checkpoint_tensor_t tensor; /* its name is owned, its unit points into `units`; what is read
                                      of one that is written: name, n_dims, dims, n_elems, frozen */
    size_t unit;
    size_t offset_elems; /* in its row */
} zr_manifest_tensor_t;

typedef struct zr_manifest_file {
    char data[64]; /* names within the checkpoint's folder: letters, digits, '-', '_', '.'; no dot
                      in front */
    char sums[64];
    uint64_t data_bytes;
    size_t chunk_bytes; /* a multiple of 4096 */
    size_t n_chunks;    /* of all its extents; each is of one */
} zr_manifest_file_t;

typedef struct zr_manifest_extent {
    size_t unit;
    bool frozen;
    size_t first;       /* of the row's elements */
    size_t n_elems;     /* > 0 */
    size_t group_elems; /* > 0 */
    int n_arrays;       /* 1, or where not frozen those of the optimizer; the same in all extents
                           of a row */
    zr_dtype_t dtype;   /* of the first; F32 where not frozen, else F32 or BF16; likewise */
    size_t file;
    uint64_t offset_bytes;
    size_t first_chunk; /* in its file of checksums */
    uint64_t xxh3;      /* of its checksums, as they lie there */
} zr_manifest_extent_t;

/** An array of the optimizer's state. */
typedef struct zr_manifest_array {
    char *name; /* owned */
    const zr_encoding_t *encoding;
} zr_manifest_array_t;

/** A file for other programs. */
typedef struct zr_manifest_carried {
    char name[64];    /* as of the data files; it does not begin as theirs do */
    uint64_t n_bytes; /* at most ZR_MANIFEST_MAX_CARRIED_BYTES */
    uint64_t xxh3;    /* of its bytes */
} zr_manifest_carried_t;

typedef struct zr_manifest {
    size_t step;
    size_t n_updates;
    int n_ranks;
    int stage;
    zr_dtype_t dtype;
    char **units; /* [n_units] owned */
    size_t n_units;
    zr_manifest_tensor_t *tensors; /* [n_tensors] */
    size_t n_tensors;
    zr_manifest_file_t *files; /* [n_files] */
    size_t n_files;
    zr_manifest_extent_t *extents; /* [n_extents] any order */
    size_t n_extents;
    char *optimizer;             /* owned; NULL: AdamW, and `arrays` are its */
    zr_manifest_array_t *arrays; /* [n_arrays] */
    size_t n_arrays;
    char *messages;                 /* as zr_config_messages; owned; NULL: "" */
    zr_manifest_carried_t *carried; /* [n_carried] at most ZR_MANIFEST_MAX_CARRIED */
    size_t n_carried;
    char *trainer_json;        /* an object, compact; owned */
    const zr_secret_t *secret; /* that it is signed with when it is printed; NULL, or not given:
                                  with none. Borrowed */
    bool is_signed;            /* what was parsed is; whether rightly is not known from that */
} zr_manifest_t;

/** Pieces of chunk_bytes that an extent has, the last one shorter. */
static inline uint64_t zr_manifest_chunks(uint64_t n_bytes, size_t chunk_bytes) {
    return n_bytes / chunk_bytes + (n_bytes % chunk_bytes != 0);
}

/** Elements of a shape; false: more than `most`. */
bool zr_manifest_count_elems(int n_dims, const size_t *dims, size_t most, size_t *n_elems_p);

/** The optimizer that it is of: its name, and its arrays. */
const char *zr_manifest_optimizer(const zr_manifest_t *manifest);
size_t zr_manifest_n_arrays(const zr_manifest_t *manifest);
zr_state_array_t zr_manifest_array(const zr_manifest_t *manifest, size_t index);

/** Of an array of an extent. */
const zr_encoding_t *zr_manifest_encoding(const zr_manifest_t *manifest,
                                          const zr_manifest_extent_t *extent, size_t array);
/** Where an array begins in a group of so many elements of an extent; of n_arrays: the group's
 * bytes. */
uint64_t zr_manifest_array_offset(const zr_manifest_t *manifest, const zr_manifest_extent_t *extent,
                                  size_t array, size_t group_elems);
/** Bytes of an extent in its file. */
uint64_t zr_manifest_extent_bytes(const zr_manifest_t *manifest,
                                  const zr_manifest_extent_t *extent);

/** Whether a file that is carried along may have this name. */
bool zr_manifest_is_carried_name(const char *name);

/** Frees what it has; a zeroed one is fine. */
void zr_manifest_clear(zr_manifest_t *manifest);

/**
 * Check everything that the manifest says of itself: ranges, names, overlaps of extents in their
 * files and rows, tensors that no extents have. Nothing of it is taken on trust afterwards.
 *
 * @param where  for messages: its path
 * @return ZR_OK; ZR_ERR_FORMAT, the first reason logged; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_manifest_check(const zr_manifest_t *manifest, const char *where,
                                           const zr_log_t *log);

/** Read one from memory, as fuzzers do: parsed and checked. Errors as of zr_manifest_check.
 *
 * @param text  [n_bytes], and a '\0' behind them */
ZR_NODISCARD zr_status_t zr_manifest_parse(const char *text, size_t n_bytes, const char *where,
                                           const zr_log_t *log, zr_manifest_t *manifest_p);

/** Whether an object for a manifest's trainer_json could be read back from it. ZR_ERR_ARGUMENT:
 * no, and why; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_manifest_check_trainer(const char *trainer_json, const zr_log_t *log);

/** As text, with its signature and its checksum; free it. ZR_ERR_MEMORY; ZR_ERR_FORMAT for names
 * that are not UTF-8 and a trainer_json that is no object. */
ZR_NODISCARD zr_status_t zr_manifest_print(const zr_manifest_t *manifest, const char *where,
                                           const zr_log_t *log, char **text_p);

/** The place of the 64 digits of a text's signature; NULL: it does not end as a signed one. */
const char *zr_manifest_signature(const char *text, size_t n_bytes);
/** Whether the signature there is that of its bytes and the secret. */
bool zr_manifest_is_signed(const char *text, size_t n_bytes, const zr_secret_t *secret);
/** Set the checksum of a text, which ends as the one of a manifest; false when it does not. */
bool zr_manifest_seal(char *text, size_t n_bytes);
/** Whether it has that end, and the checksum is the one of its bytes. */
bool zr_manifest_is_sealed(const char *text, size_t n_bytes);

/**
 * Read and check the one of a checkpoint's open folder, whose path is for messages, and that all
 * its files are there with the sizes that they should have. ZR_ERR_IO as well; ZR_ERR_ARGUMENT
 * where it is not signed with the secret, which may be NULL, or not given: then nobody looks.
 */
ZR_NODISCARD zr_status_t zr_manifest_read_at(int folder_fd, const char *folder,
                                             const zr_secret_t *secret, const zr_log_t *log,
                                             zr_manifest_t *manifest_p);

/** Write it into a checkpoint's folder, checked, and let it reach the drive. */
ZR_NODISCARD zr_status_t zr_manifest_write(const zr_manifest_t *manifest, const char *folder,
                                           const zr_log_t *log);

/*
 * Orders: indices, to be freed; NULL when there is no memory.
 */

/** [n_tensors] by name. */
size_t *zr_manifest_tensors_by_name(const zr_manifest_t *manifest);
/** [n_tensors] by row (unit, then trainable before frozen) and offset. */
size_t *zr_manifest_tensors_by_row(const zr_manifest_t *manifest);
/** [n_extents] by row and first element. */
size_t *zr_manifest_extents_by_row(const zr_manifest_t *manifest);
/** [n_extents] by file and offset. */
size_t *zr_manifest_extents_by_file(const zr_manifest_t *manifest);
/** [n_extents] by file and first chunk. */
size_t *zr_manifest_extents_by_chunk(const zr_manifest_t *manifest);
