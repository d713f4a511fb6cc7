/*
 * Only files that are known to belong to a model are carried: a folder may have anything. Links are
 * what Hugging Face's cache is made of; one that leads elsewhere would hand on a file that nobody
 * meant to.
 */
#include "examples/weights/carry.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/weights/in_file.h"
#include "examples/weights/origin.h"
#include "examples/weights/out_file.h"
#include "examples/weights/weights_hf.h"

static const char *const names[] = {
    HF_CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
    "USE_POLICY.md",
};
#define N_NAMES (sizeof(names) / sizeof(names[0]))

static bool is_carried(const char *name) {
    for (size_t i = 0; i < N_NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* ---- one file ---------------------------------------------------------------------------- */

/* Whether `path`, both without links, is in `folder` or in "blobs" two folders above it. */
static bool is_within(const char *path, const char *folder) {
    char blobs[PATH_MAX];
    size_t n = strlen(folder);
    if (strncmp(path, folder, n) == 0 && path[n] == '/')
        return true;
    snprintf(blobs, sizeof(blobs), "%s", folder);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(blobs, '/');
        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    n = strlen(blobs);
    return strncmp(path, blobs, n) == 0 && strncmp(path + n, "/blobs/", strlen("/blobs/")) == 0;
}

static zr_status_t check_place(const char *path, const char *folder, const zr_log_t *log) {
    char real_path[PATH_MAX], real_folder[PATH_MAX];
    if (realpath(path, real_path) == NULL || realpath(folder, real_folder) == NULL)
        return zr_fail(log, ZR_ERR_IO, "cannot open %s", path);
    if (is_within(real_path, real_folder))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_FORMAT,
                   "%s is a link to %s, outside the folder; copy that file into the folder, or "
                   "remove the link",
                   path, real_path);
}

/* Read a file of a folder; *text_p is NULL when it has none of this name. */
static zr_status_t read_file(const char *folder, const char *name, const zr_log_t *log,
                             char **path_p, char **text_p, size_t *n_bytes_p) {
    *text_p = NULL;
    *path_p = in_file_beside(folder, true, name);
    if (*path_p == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", folder);
    if (access(*path_p, F_OK) != 0)
        return ZR_OK;
    zr_status_t status = check_place(*path_p, folder, log);
    ZR_THEN(status, in_file_text(*path_p, CARRY_MAX_BYTES, log, text_p, n_bytes_p));
    return status;
}

/* ---- tokenizers -------------------------------------------------------------------------- */

typedef struct tokens {
    const char *path;
    size_t vocab;
    const zr_log_t *log;
} tokens_t;

static zr_status_t check_id(const tokens_t *t, const char *token, const json_t *id) {
    double number = json_number_value(id);
    if (json_is_number(id) && number >= 0 && number < (double)t->vocab)
        return ZR_OK;
    if (!json_is_number(id))
        return zr_fail(t->log, ZR_ERR_FORMAT, "%s: token \"%.60s\": its id is not a number",
                       t->path, token);
    return zr_fail(
        t->log, ZR_ERR_FORMAT,
        "%s: token \"%.60s\" has the id %.0f, and the model has %s (vocab_size of " HF_CONFIG_NAME
        "); remove the token, or give the model more rows where it was "
        "made",
        t->path, token, number, zr_count_text(t->vocab, "word").text);
}

/* {"token": id} */
static zr_status_t check_map(const tokens_t *t, json_t *map) {
    const char *token;
    json_t *id;
    json_object_foreach(map, token, id) ZR_TRY(check_id(t, token, id));
    return ZR_OK;
}

/* Of Hugging Face's tokenizers: ids by token, or tokens in the order of their ids; and added
   ones. */
static zr_status_t check_tokenizer(const tokens_t *t, const json_t *root) {
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *added = json_object_get(root, "added_tokens"), *token;
    size_t i;
    if (json_is_object(vocab))
        ZR_TRY(check_map(t, vocab));
    if (json_is_array(vocab) && json_array_size(vocab) > t->vocab)
        return zr_fail(t->log, ZR_ERR_FORMAT,
                       "%s: it has %s, and the model %zu words (vocab_size of " HF_CONFIG_NAME ")",
                       t->path, zr_count_text(json_array_size(vocab), "token").text, t->vocab);
    json_array_foreach(added, i, token) {
        const char *content = json_string_value(json_object_get(token, "content"));
        ZR_TRY(check_id(t, content != NULL ? content : "?", json_object_get(token, "id")));
    }
    return ZR_OK;
}

static zr_status_t check_json(const tokens_t *t, const char *name, const char *text,
                              size_t n_bytes) {
    json_error_t error;
    /* Numbers of any size: model_max_length is 1e30 where there is no limit. */
    json_t *root = json_loadb(text, n_bytes, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &error);
    if (root == NULL)
        return zr_fail(t->log, ZR_ERR_FORMAT, "%s: line %d, column %d: %s", t->path, error.line,
                       error.column, error.text);
    zr_status_t status = ZR_OK;
    if (strcmp(name, "tokenizer.json") == 0)
        status = check_tokenizer(t, root);
    else if (strcmp(name, "vocab.json") == 0 || strcmp(name, "added_tokens.json") == 0)
        status = check_map(t, root);
    json_decref(root);
    return status;
}

/* ---- tokenizers of SentencePiece --------------------------------------------------------- */

typedef struct bytes {
    const unsigned char *at, *end;
} bytes_t;

/* A number of protobuf's: 7 bits a byte, the lowest first. */
static bool take_number(bytes_t *bytes, uint64_t *number_p) {
    *number_p = 0;
    for (unsigned shift = 0; shift < 64 && bytes->at < bytes->end; shift += 7) {
        unsigned char byte = *bytes->at++;
        *number_p |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0)
            return true;
    }
    return false;
}

/* Pass over a field's value; of what has a length, it comes before. False: it is cut off, or of a
 * kind that there is not. */
static bool pass_value(bytes_t *bytes, uint64_t kind) {
    uint64_t n_bytes = kind == 1 ? 8 : 4, ignored;
    if (kind == 0)
        return take_number(bytes, &ignored);
    if (kind != 1 && kind != 2 && kind != 5)
        return false;
    if (kind == 2 && !take_number(bytes, &n_bytes))
        return false;
    if (n_bytes > (uint64_t)(bytes->end - bytes->at))
        return false;
    bytes->at += n_bytes;
    return true;
}

/* A message of protobuf, whose field 1 are the pieces: a piece's id is its place among them. */
static zr_status_t check_pieces(const tokens_t *t, const char *text, size_t n_bytes) {
    enum { PIECE = 1 << 3 | 2 };
    bytes_t bytes = {(const unsigned char *)text, (const unsigned char *)text + n_bytes};
    size_t n_pieces = 0;
    bool is_whole = true;
    while (is_whole && bytes.at < bytes.end) {
        uint64_t key = 0;
        is_whole = take_number(&bytes, &key) && key >= 1 << 3 && pass_value(&bytes, key & 7);
        n_pieces += key == PIECE;
    }
    if (!is_whole || n_pieces == 0)
        return zr_fail(t->log, ZR_ERR_FORMAT,
                       "%s: it is not a model of SentencePiece, or is cut off; remove it where the "
                       "tokenizer is another file",
                       t->path);
    if (n_pieces > t->vocab)
        return zr_fail(t->log, ZR_ERR_FORMAT,
                       "%s: it has %s, and the model %zu words (vocab_size of " HF_CONFIG_NAME ")",
                       t->path, zr_count_text(n_pieces, "piece").text, t->vocab);
    return ZR_OK;
}

static bool is_of_pieces(const char *name) {
    static const char *const models[] = {"tokenizer.model", "tokenizer.model.v3", "spiece.model",
                                         "sentencepiece.bpe.model"};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        if (strcmp(models[i], name) == 0)
            return true;
    return false;
}

zr_status_t carry_check_text(const char *name, const char *text, size_t n_bytes, size_t vocab,
                             const char *path, const zr_log_t *log) {
    tokens_t of_file = {.path = path, .vocab = vocab, .log = log};
    if (is_of_pieces(name))
        return check_pieces(&of_file, text, n_bytes);
    return files_name_ends(name, ".json") ? check_json(&of_file, name, text, n_bytes) : ZR_OK;
}

/* ---- a folder ---------------------------------------------------------------------------- */

zr_status_t carry_check(const char *folder, size_t vocab, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < N_NAMES && status == ZR_OK; i++) {
        char *path, *text;
        size_t n_bytes = 0;
        status = read_file(folder, names[i], log, &path, &text, &n_bytes);
        if (status == ZR_OK && text != NULL)
            status = carry_check_text(names[i], text, n_bytes, vocab, path, log);
        free(text);
        free(path);
    }
    return status;
}

/* Files that an export will not give back, in one line. */
static void say_left_out(const char *folder, const zr_log_t *log) {
    char list[400] = "";
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    for (size_t used = 0; stream != NULL && (entry = readdir(stream)) != NULL;) {
        const char *name = entry->d_name;
        if (name[0] == '.' || is_carried(name) || files_name_ends(name, ".safetensors") ||
            strcmp(name, HF_INDEX_NAME) == 0 || used + strlen(name) + 8 > sizeof(list))
            continue;
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used > 0 ? ", " : "", name);
    }
    if (stream != NULL)
        closedir(stream);
    if (list[0] != '\0')
        zr_log_write(log, ZR_LOG_INFO, "not carried along from %s: %s", folder, list);
}

/* Into one or the other; the other is NULL. */
static zr_status_t carry_all(const char *folder, zr_checkpoint_writer_t *writer,
                             zr_runtime_t *runtime, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    size_t n_carried = 0;
    for (size_t i = 0; i < N_NAMES && status == ZR_OK; i++) {
        char *path, *text;
        size_t n_bytes = 0;
        status = read_file(folder, names[i], log, &path, &text, &n_bytes);
        if (status == ZR_OK && text != NULL) {
            status = writer != NULL ? zr_checkpoint_writer_carry(writer, names[i], text, n_bytes)
                                    : zr_runtime_carry(runtime, names[i], text, n_bytes);
            n_carried++;
        }
        free(text);
        free(path);
    }
    if (status == ZR_OK && n_carried > 0)
        say_left_out(folder, log);
    return status;
}

zr_status_t carry_import(const char *folder, zr_checkpoint_writer_t *writer, const zr_log_t *log) {
    return carry_all(folder, writer, NULL, log);
}

zr_status_t carry_into_run(const char *folder, zr_runtime_t *runtime, const zr_log_t *log) {
    return carry_all(folder, NULL, runtime, log);
}

/* ---- from a checkpoint ------------------------------------------------------------------- */

static zr_status_t read_carried(const zr_checkpoint_t *checkpoint, size_t index,
                                const zr_log_t *log, char **text_p, size_t *n_bytes_p) {
    zr_carried_file_t file = {.n_bytes = 0};
    (void)zr_checkpoint_carried(checkpoint, index, &file);
    char *text = malloc(file.n_bytes + 1);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", file.name);
    zr_status_t status = zr_checkpoint_read_carried(checkpoint, index, log, text);
    if (status != ZR_OK) {
        free(text);
        return status;
    }
    *text_p = text;
    *n_bytes_p = file.n_bytes;
    return ZR_OK;
}

zr_status_t carry_read(const zr_checkpoint_t *checkpoint, const char *name, const zr_log_t *log,
                       char **text_p, size_t *n_bytes_p) {
    size_t index;
    *text_p = NULL;
    if (checkpoint == NULL || !zr_checkpoint_find_carried(checkpoint, name, &index))
        return ZR_OK;
    return read_carried(checkpoint, index, log, text_p, n_bytes_p);
}

zr_status_t carry_export(const zr_checkpoint_t *checkpoint, const char *folder,
                         const zr_log_t *log) {
    zr_carried_file_t file;
    zr_status_t status = ZR_OK;
    for (size_t i = 0; status == ZR_OK && zr_checkpoint_carried(checkpoint, i, &file); i++) {
        char *text = NULL, *path;
        size_t n_bytes = 0;
        if (!is_carried(file.name) || strcmp(file.name, HF_CONFIG_NAME) == 0)
            continue;
        path = in_file_beside(folder, true, file.name);
        status = path != NULL ? read_carried(checkpoint, i, log, &text, &n_bytes)
                              : zr_fail(log, ZR_ERR_MEMORY, "no memory to write %s", file.name);
        ZR_THEN(status, out_file_bytes(path, text, n_bytes, log));
        free(text);
        free(path);
    }
    return status;
}
