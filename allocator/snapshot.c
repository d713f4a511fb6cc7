/*
 * Saving a snapshot, and its simplest form: the CSV.
 */
#include "allocator/snapshot_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "kernels/base/trace_json_internal.h"

/* ---- names -------------------------------------------------------------------------- */

const char *zr_snapshot_name(const char *name, char *buffer) {
    return zr_trace_json_name(name, buffer, ZR_SNAPSHOT_NAME_BYTES);
}

/* ---- CSV ------------------------------------------------------------------------------ */

static bool put_field(const char *text, FILE *file) {
    if (strpbrk(text, ",\"") == NULL)
        return fputs(text, file) >= 0;
    if (fputc('"', file) == EOF)
        return false;
    for (; *text != '\0'; text++) {
        if ((*text == '"' && fputc('"', file) == EOF) || fputc(*text, file) == EOF)
            return false;
    }
    return fputc('"', file) != EOF;
}

static bool put_life(const zr_life_t *life, FILE *file) {
    char name[ZR_SNAPSHOT_NAME_BYTES];
    return fprintf(file, "%zu,%" PRId64 ",%" PRId64 ",%zu,%s,%s,", life->id, life->lower,
                   life->upper, life->size_bytes, zr_tag_name(life->tag),
                   zr_lifetime_name(life->lifetime)) > 0 &&
           put_field(zr_snapshot_name(life->name, name), file) &&
           fprintf(file, ",%zu,%d,%zu,%zu,%zu,%zu\n", life->offset_bytes, life->stream,
                   life->first_step, life->first_micro_batch, life->last_step,
                   life->last_micro_batch) > 0;
}

zr_status_t zr_snapshot_write_csv(const zr_recording_t *recording, zr_tier_t tier, FILE *file) {
    if (fputs("id,lower,upper,size,tag,lifetime,name,offset,stream,first_step,first_micro_batch,"
              "last_step,last_micro_batch\n",
              file) < 0)
        return ZR_ERR_IO;
    for (size_t i = 0; i < recording->n_lives; i++) {
        zr_life_t life;
        zr_recording_life(recording, i, &life);
        if (life.tier == tier && !put_life(&life, file))
            return ZR_ERR_IO;
    }
    return ZR_OK;
}

/* ---- saving ---------------------------------------------------------------------------- */

bool zr_snapshot_form_of(const char *path, zr_snapshot_form_t *form_p) {
    static const char *const endings[] = {".csv", ".json", ".pickle"};
    size_t length = strlen(path);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(endings[i]);
        if (length > n && strcmp(path + length - n, endings[i]) == 0) {
            *form_p = (zr_snapshot_form_t)i;
            return true;
        }
    }
    return false;
}

static zr_status_t write_form(const zr_recording_t *recording, zr_snapshot_form_t form,
                              FILE *file) {
    switch (form) {
    case ZR_SNAPSHOT_CSV:
        return zr_snapshot_write_csv(recording, ZR_TIER_DEVICE, file);
    case ZR_SNAPSHOT_CHROME:
        return zr_snapshot_write_chrome(recording, file);
    default:
        return zr_snapshot_write_pickle(recording, file);
    }
}

zr_status_t zr_snapshot_save(const zr_recording_t *recording, const char *path,
                             const zr_log_t *log) {
    zr_snapshot_form_t form;
    if (!zr_snapshot_form_of(path, &form))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "memory snapshot %s: the name must end in .csv, .json or .pickle", path);
    if (recording->status != ZR_OK)
        return zr_fail(log, ZR_ERR_STATE,
                       "memory snapshot %s: not written, for the recording ended early, at %s: "
                       "there was no memory for more within %s",
                       path, zr_count_text(recording->n_lives, "life").text,
                       zr_count_text(recording->max_bytes, "byte").text);
    errno = 0;
    FILE *file = fopen(path, "wb");
    zr_status_t status = file == NULL ? ZR_ERR_IO : write_form(recording, form, file);
    if (status == ZR_OK && fflush(file) != 0)
        status = ZR_ERR_IO;
    int error = errno;
    if (file != NULL && fclose(file) != 0 && status == ZR_OK) {
        error = errno;
        status = ZR_ERR_IO;
    }
    if (status == ZR_ERR_MEMORY)
        return zr_fail(log, status, "memory snapshot %s: no memory to write %s", path,
                       zr_count_text(recording->n_lives, "life").text);
    if (status != ZR_OK)
        return zr_fail(log, status, "cannot write memory snapshot %s: %s", path, strerror(error));
    return ZR_OK;
}
