/*
 * Checks a manifest: see zr_manifest_check. First each part by itself, so that no sum of the checks
 * that follow overflows and no index leads outside; then what parts have to do with each other,
 * each in an order that makes it a matter of neighbours.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/manifest_internal.h"
#include "zero/layout_internal.h"

typedef struct checker {
    const zr_manifest_t *manifest;
    const char *where;
    const zr_log_t *log;
} checker_t;

ZR_PRINTF(2, 3) static zr_status_t refuse(const checker_t *c, const char *format, ...) {
    char reason[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    return zr_fail(c->log, ZR_ERR_FORMAT, "%s: %s", c->where, reason);
}

static zr_status_t no_memory(const checker_t *c) {
    return zr_fail(c->log, ZR_ERR_MEMORY, "%s: no memory to check %s and %s", c->where,
                   zr_count_text(c->manifest->n_tensors, "tensor").text,
                   zr_count_text(c->manifest->n_extents, "extent").text);
}

static const char *kind_of(bool frozen) {
    return frozen ? "frozen" : "trainable";
}

/* ---- parts by themselves --------------------------------------------------------------------- */

static zr_status_t check_head(const checker_t *c) {
    const zr_manifest_t *m = c->manifest;
    if (m->step > INT64_MAX || m->n_updates > m->step)
        return refuse(c, "%s in %s", zr_count_text(m->n_updates, "update").text,
                      zr_count_text(m->step, "step").text);
    if (m->n_ranks < 1 || m->n_ranks > ZR_MANIFEST_MAX_RANKS)
        return refuse(c, "ranks is %d; 1 to %d are allowed", m->n_ranks, ZR_MANIFEST_MAX_RANKS);
    if (m->stage < 0 || m->stage > 3)
        return refuse(c, "stage is %d; 0 to 3 are allowed", m->stage);
    if (m->dtype != ZR_DTYPE_F32 && m->dtype != ZR_DTYPE_BF16)
        return refuse(c, "dtype is %s; fp32 and bf16 are allowed", zr_dtype_name(m->dtype));
    if (m->trainer_json == NULL)
        return refuse(c, "it has no trainer");
    return ZR_OK;
}

/* Names are shown on terminals, and found again by what they look like. */
static zr_status_t check_name(const checker_t *c, const char *list, size_t index,
                              const char *name) {
    if (name == NULL || name[0] == '\0')
        return refuse(c, "%s[%zu] has no name", list, index);
    for (const char *letter = name; *letter != '\0'; letter++)
        if ((unsigned char)*letter < 0x20 || *letter == 0x7f)
            return refuse(c, "the name of %s[%zu] has a control character, %d", list, index,
                          *letter);
    return ZR_OK;
}

static bool is_in_row(size_t first, size_t n_elems) {
    return n_elems <= ZR_MANIFEST_MAX_ROW_ELEMS && first <= ZR_MANIFEST_MAX_ROW_ELEMS - n_elems;
}

static zr_status_t check_tensor(const checker_t *c, size_t index) {
    const zr_manifest_tensor_t *t = &c->manifest->tensors[index];
    size_t n_elems = 0;
    ZR_TRY(check_name(c, "tensors", index, t->tensor.name));
    if (t->unit >= c->manifest->n_units)
        return refuse(c, "tensors[%zu].unit is %zu, and there are %s", index, t->unit,
                      zr_count_text(c->manifest->n_units, "unit").text);
    if (t->tensor.n_dims < 0 || t->tensor.n_dims > 4)
        return refuse(c, "tensors[%zu].shape has %d dimensions; 0 to 4 are allowed", index,
                      t->tensor.n_dims);
    if (!zr_manifest_count_elems(t->tensor.n_dims, t->tensor.dims, ZR_MANIFEST_MAX_ROW_ELEMS,
                                 &n_elems))
        return refuse(c, "tensors[%zu].shape has more than %zu elements", index,
                      ZR_MANIFEST_MAX_ROW_ELEMS);
    if (t->tensor.n_elems != n_elems)
        return refuse(c, "tensors[%zu] has %s, and its shape %zu", index,
                      zr_count_text(t->tensor.n_elems, "element").text, n_elems);
    if (!is_in_row(t->offset_elems, n_elems))
        return refuse(c, "tensors[%zu].offset is %zu, and with %s behind it more than %zu", index,
                      t->offset_elems, zr_count_text(n_elems, "element").text,
                      ZR_MANIFEST_MAX_ROW_ELEMS);
    return ZR_OK;
}

static bool is_file_name(const char *name, size_t room) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t length = strnlen(name, room);
    return length > 0 && length < room && name[0] != '.' && strspn(name, letters) == length;
}

static zr_status_t check_file(const checker_t *c, size_t index) {
    const zr_manifest_file_t *f = &c->manifest->files[index];
    const char *const names[] = {f->data, f->sums};
    for (int i = 0; i < 2; i++)
        if (!is_file_name(names[i], sizeof(f->data)))
            return refuse(c,
                          "files[%zu].%s is not a name of a file in the checkpoint's folder: 1 to "
                          "%zu letters, digits, '-', '_' and '.', no leading dot",
                          index, i == 0 ? "data" : "sums", sizeof(f->data) - 1);
    if (f->chunk_bytes == 0 || f->chunk_bytes % 4096 != 0 ||
        f->chunk_bytes > ZR_MANIFEST_MAX_CHUNK_BYTES)
        return refuse(c, "files[%zu].chunk_bytes is %zu; multiples of 4096 up to %zu are allowed",
                      index, f->chunk_bytes, ZR_MANIFEST_MAX_CHUNK_BYTES);
    if (f->data_bytes > INT64_MAX || f->n_chunks > f->data_bytes)
        return refuse(c, "files[%zu] has %s in %s", index, zr_count_text(f->n_chunks, "chunk").text,
                      zr_count_text(f->data_bytes, "byte").text);
    return ZR_OK;
}

/* Names of ranks' files are left to them: they are written at the same time. */
bool zr_manifest_is_carried_name(const char *name) {
    return is_file_name(name, sizeof((zr_manifest_carried_t){0}.name)) &&
           strncmp(name, "rank-", strlen("rank-")) != 0 && strcmp(name, ZR_MANIFEST_NAME) != 0;
}

static zr_status_t check_carried(const checker_t *c) {
    const zr_manifest_t *m = c->manifest;
    if (m->n_carried > ZR_MANIFEST_MAX_CARRIED)
        return refuse(c, "carried has %s; at most %zu are allowed",
                      zr_count_text(m->n_carried, "file").text, ZR_MANIFEST_MAX_CARRIED);
    for (size_t i = 0; i < m->n_carried; i++) {
        if (!zr_manifest_is_carried_name(m->carried[i].name))
            return refuse(
                c,
                "carried[%zu].name is not a name of a file to carry along: 1 to %zu letters, "
                "digits, '-', '_' and '.', no leading dot, not rank-..., nor " ZR_MANIFEST_NAME,
                i, sizeof(m->carried[i].name) - 1);
        if (m->carried[i].n_bytes > ZR_MANIFEST_MAX_CARRIED_BYTES)
            return refuse(c, "carried[%zu] has %s; at most %" PRIu64 " are allowed", i,
                          zr_count_text(m->carried[i].n_bytes, "byte").text,
                          ZR_MANIFEST_MAX_CARRIED_BYTES);
    }
    return ZR_OK;
}

/* Elements of several sizes lie so that no float is in two chunks, and blocks begin with groups, as
 * all that is saved does. */
static zr_status_t check_aligned(const checker_t *c, size_t index) {
    const zr_manifest_extent_t *e = &c->manifest->extents[index];
    size_t align = ZR_LAYOUT_ALIGN_ELEMS;
    bool is_mixed = false;
    for (size_t i = 1; i < (size_t)e->n_arrays; i++) {
        const zr_encoding_t *encoding = zr_manifest_encoding(c->manifest, e, i);
        is_mixed |= encoding != &zr_encoding_fp32;
        align = encoding->block_elems > align ? encoding->block_elems : align;
    }
    if (is_mixed && (e->n_elems % align != 0 || e->group_elems % align != 0 ||
                     e->offset_bytes % ZR_LAYOUT_ALIGN_ELEMS != 0))
        return refuse(c,
                      "extents[%zu] has %zu elements in groups of %zu at offset %" PRIu64
                      "; with several encodings they must be multiples of %zu, %zu and %zu",
                      index, e->n_elems, e->group_elems, e->offset_bytes, align, align,
                      ZR_LAYOUT_ALIGN_ELEMS);
    return ZR_OK;
}

static zr_status_t check_content(const checker_t *c, size_t index) {
    const zr_manifest_extent_t *e = &c->manifest->extents[index];
    if (e->unit >= c->manifest->n_units)
        return refuse(c, "extents[%zu].unit is %zu, and there are %s", index, e->unit,
                      zr_count_text(c->manifest->n_units, "unit").text);
    if (e->n_elems == 0 || !is_in_row(e->first, e->n_elems))
        return refuse(c, "extents[%zu] has %s from %zu on; 1 or more, up to %zu, are allowed",
                      index, zr_count_text(e->n_elems, "element").text, e->first,
                      ZR_MANIFEST_MAX_ROW_ELEMS);
    if (e->group_elems == 0 || e->group_elems > ZR_MANIFEST_MAX_ROW_ELEMS)
        return refuse(c, "extents[%zu].group_elems is %zu; 1 to %zu are allowed", index,
                      e->group_elems, ZR_MANIFEST_MAX_ROW_ELEMS);
    size_t most = zr_manifest_n_arrays(c->manifest);
    if (e->n_arrays != 1 && (e->n_arrays < 1 || (size_t)e->n_arrays != most || e->frozen))
        return refuse(c,
                      "extents[%zu].n_arrays is %d; 1 or, of trainable parameters, %zu are allowed",
                      index, e->n_arrays, most);
    if (e->dtype != ZR_DTYPE_F32 && (e->dtype != ZR_DTYPE_BF16 || !e->frozen))
        return refuse(c,
                      "extents[%zu].dtype is %s; fp32 or, of frozen parameters, bf16 are allowed",
                      index, zr_dtype_name(e->dtype));
    return check_aligned(c, index);
}

static zr_status_t check_extent(const checker_t *c, size_t index) {
    const zr_manifest_extent_t *e = &c->manifest->extents[index];
    ZR_TRY(check_content(c, index));
    if (e->file >= c->manifest->n_files)
        return refuse(c, "extents[%zu].file is %zu, and there are %s", index, e->file,
                      zr_count_text(c->manifest->n_files, "file").text);
    const zr_manifest_file_t *f = &c->manifest->files[e->file];
    uint64_t n_bytes = zr_manifest_extent_bytes(c->manifest, e);
    if (n_bytes > f->data_bytes || e->offset_bytes > f->data_bytes - n_bytes)
        return refuse(c, "extents[%zu] has %s at offset %" PRIu64 " of %s, which has %" PRIu64,
                      index, zr_count_text(n_bytes, "byte").text, e->offset_bytes, f->data,
                      f->data_bytes);
    uint64_t n_chunks = zr_manifest_chunks(n_bytes, f->chunk_bytes);
    if (n_chunks > f->n_chunks || e->first_chunk > f->n_chunks - n_chunks)
        return refuse(c, "extents[%zu] has %s from %zu on, and %s %zu", index,
                      zr_count_text(n_chunks, "chunk").text, e->first_chunk, f->sums, f->n_chunks);
    return ZR_OK;
}

static zr_status_t check_arrays(const checker_t *c) {
    const zr_manifest_t *m = c->manifest;
    if (m->optimizer == NULL)
        return ZR_OK;
    ZR_TRY(check_name(c, "optimizer", 0, m->optimizer));
    if (m->n_arrays < 1 || m->n_arrays > ZR_MAX_STATE_ARRAYS)
        return refuse(c, "%s of the optimizer; 1 to %d are allowed",
                      zr_count_text(m->n_arrays, "array").text, ZR_MAX_STATE_ARRAYS);
    for (size_t i = 0; i < m->n_arrays; i++)
        ZR_TRY(check_name(c, "arrays", i, m->arrays[i].name));
    if (m->arrays[0].encoding != &zr_encoding_fp32)
        return refuse(c, "arrays[0] is %s; the master is fp32", m->arrays[0].encoding->name);
    return ZR_OK;
}

static zr_status_t check_parts(const checker_t *c) {
    const zr_manifest_t *m = c->manifest;
    ZR_TRY(check_head(c));
    ZR_TRY(check_arrays(c));
    if (m->messages != NULL)
        ZR_TRY(check_name(c, "messages", 0, m->messages));
    ZR_TRY(check_carried(c));
    for (size_t i = 0; i < m->n_units; i++)
        ZR_TRY(check_name(c, "units", i, m->units[i]));
    for (size_t i = 0; i < m->n_tensors; i++)
        ZR_TRY(check_tensor(c, i));
    for (size_t i = 0; i < m->n_files; i++)
        ZR_TRY(check_file(c, i));
    for (size_t i = 0; i < m->n_extents; i++)
        ZR_TRY(check_extent(c, i));
    return ZR_OK;
}

/* ---- names that stand twice ------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* `names` are sorted. */
static zr_status_t check_unique(const checker_t *c, const char **names, size_t n,
                                const char *what) {
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return refuse(c, "there are two %s \"%.200s\"", what, names[i]);
    return ZR_OK;
}

static zr_status_t check_names(const checker_t *c) {
    const zr_manifest_t *m = c->manifest;
    size_t most = m->n_units > m->n_tensors ? m->n_units : m->n_tensors;
    size_t n_files = 2 * m->n_files + 1 + m->n_carried;
    most = most > n_files ? most : n_files;
    const char **names = malloc((most + 1) * sizeof(*names));
    if (names == NULL)
        return no_memory(c);
    for (size_t i = 0; i < m->n_units; i++)
        names[i] = m->units[i];
    zr_status_t status = check_unique(c, names, m->n_units, "units");
    for (size_t i = 0; i < m->n_tensors; i++)
        names[i] = m->tensors[i].tensor.name;
    ZR_THEN(status, check_unique(c, names, m->n_tensors, "tensors"));
    for (size_t i = 0; i < m->n_files; i++) {
        names[2 * i] = m->files[i].data;
        names[2 * i + 1] = m->files[i].sums;
    }
    names[2 * m->n_files] = ZR_MANIFEST_NAME;
    for (size_t i = 0; i < m->n_carried; i++)
        names[2 * m->n_files + 1 + i] = m->carried[i].name;
    ZR_THEN(status, check_unique(c, names, n_files, "files"));
    free(names);
    return status;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

static zr_status_t check_tensors_apart(const checker_t *c, const size_t *order) {
    const zr_manifest_tensor_t *before = NULL;
    for (size_t i = 0; i < c->manifest->n_tensors; i++) {
        const zr_manifest_tensor_t *t = &c->manifest->tensors[order[i]];
        if (t->tensor.n_elems == 0)
            continue;
        if (before != NULL && before->unit == t->unit &&
            before->tensor.frozen == t->tensor.frozen &&
            before->offset_elems + before->tensor.n_elems > t->offset_elems)
            return refuse(c, "tensors \"%.200s\" and \"%.200s\" share elements of unit \"%.200s\"",
                          before->tensor.name, t->tensor.name, c->manifest->units[t->unit]);
        before = t;
    }
    return ZR_OK;
}

static bool is_same_row(const zr_manifest_extent_t *a, const zr_manifest_extent_t *b) {
    return a->unit == b->unit && a->frozen == b->frozen;
}

static zr_status_t check_rows(const checker_t *c, const size_t *order) {
    for (size_t i = 1; i < c->manifest->n_extents; i++) {
        const zr_manifest_extent_t *a = &c->manifest->extents[order[i - 1]];
        const zr_manifest_extent_t *b = &c->manifest->extents[order[i]];
        const char *unit = c->manifest->units[b->unit];
        if (!is_same_row(a, b))
            continue;
        if (a->first + a->n_elems > b->first)
            return refuse(c, "extents[%zu] and extents[%zu] share %s elements of unit \"%.200s\"",
                          order[i - 1], order[i], kind_of(b->frozen), unit);
        if (a->n_arrays != b->n_arrays || a->dtype != b->dtype)
            return refuse(c,
                          "extents[%zu] and extents[%zu] are %s elements of unit \"%.200s\" in two "
                          "forms: %s of %s, and %d of %s",
                          order[i - 1], order[i], kind_of(b->frozen), unit,
                          zr_count_text((uint64_t)a->n_arrays, "array").text,
                          zr_dtype_name(a->dtype), b->n_arrays, zr_dtype_name(b->dtype));
    }
    return ZR_OK;
}

static zr_status_t check_files_apart(const checker_t *c, const size_t *order) {
    for (size_t i = 1; i < c->manifest->n_extents; i++) {
        const zr_manifest_extent_t *a = &c->manifest->extents[order[i - 1]];
        const zr_manifest_extent_t *b = &c->manifest->extents[order[i]];
        if (a->file == b->file &&
            a->offset_bytes + zr_manifest_extent_bytes(c->manifest, a) > b->offset_bytes)
            return refuse(c, "extents[%zu] and extents[%zu] share bytes of %s", order[i - 1],
                          order[i], c->manifest->files[b->file].data);
    }
    return ZR_OK;
}

/* In this order the chunks of a file's extents are all its chunks, none left out, none shared. */
static zr_status_t check_chunks(const checker_t *c, const size_t *order) {
    const zr_manifest_t *m = c->manifest;
    size_t next = 0;
    for (size_t file = 0; file < m->n_files; file++) {
        const zr_manifest_file_t *f = &m->files[file];
        size_t chunk = 0;
        for (; next < m->n_extents && m->extents[order[next]].file == file; next++) {
            const zr_manifest_extent_t *e = &m->extents[order[next]];
            if (e->first_chunk != chunk)
                return refuse(c, "extents[%zu].first_chunk is %zu; the next chunk of %s is %zu",
                              order[next], e->first_chunk, f->sums, chunk);
            chunk += zr_manifest_chunks(zr_manifest_extent_bytes(c->manifest, e), f->chunk_bytes);
        }
        if (chunk != f->n_chunks)
            return refuse(c, "files[%zu].n_chunks is %zu, and its extents have %zu", file,
                          f->n_chunks, chunk);
    }
    return ZR_OK;
}

/* ---- tensors that no extents have ------------------------------------------------------------ */

static bool is_before(const zr_manifest_extent_t *e, const zr_manifest_tensor_t *t) {
    return e->unit != t->unit ? e->unit < t->unit : !e->frozen && t->tensor.frozen;
}

/* Both orders go on together: an extent that ends before a tensor has none of those behind it. */
static zr_status_t check_covered(const checker_t *c, const size_t *tensors, const size_t *extents) {
    const zr_manifest_t *m = c->manifest;
    size_t next = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const zr_manifest_tensor_t *t = &m->tensors[tensors[i]];
        size_t at = t->offset_elems, end = at + t->tensor.n_elems;
        while (at < end) {
            const zr_manifest_extent_t *e = next < m->n_extents ? &m->extents[extents[next]] : NULL;
            bool is_of_row = e != NULL && e->unit == t->unit && e->frozen == t->tensor.frozen;
            if (is_of_row && e->first <= at && e->first + e->n_elems > at)
                at = e->first + e->n_elems;
            else if (e == NULL || (is_of_row ? e->first > at : !is_before(e, t)))
                return refuse(c, "element %zu of tensor \"%.200s\" is in no extent",
                              at - t->offset_elems, t->tensor.name);
            if (at < end)
                next++;
        }
    }
    return ZR_OK;
}

static zr_status_t check_together(const checker_t *c) {
    size_t *tensors = zr_manifest_tensors_by_row(c->manifest);
    size_t *rows = zr_manifest_extents_by_row(c->manifest);
    size_t *bytes = zr_manifest_extents_by_file(c->manifest);
    size_t *chunks = zr_manifest_extents_by_chunk(c->manifest);
    zr_status_t status = ZR_OK;
    if (tensors == NULL || rows == NULL || bytes == NULL || chunks == NULL)
        status = no_memory(c);
    ZR_THEN(status, check_tensors_apart(c, tensors));
    ZR_THEN(status, check_rows(c, rows));
    ZR_THEN(status, check_files_apart(c, bytes));
    ZR_THEN(status, check_chunks(c, chunks));
    ZR_THEN(status, check_covered(c, tensors, rows));
    free(tensors);
    free(rows);
    free(bytes);
    free(chunks);
    return status;
}

zr_status_t zr_manifest_check(const zr_manifest_t *manifest, const char *where,
                              const zr_log_t *log) {
    checker_t checker = {.manifest = manifest, .where = where, .log = log};
    ZR_TRY(check_parts(&checker));
    ZR_TRY(check_names(&checker));
    return check_together(&checker);
}
