/*
 * Saving: rank 0 makes the folder, all ranks write their files, rank 0 writes the manifest and
 * gives the checkpoint its name. After each of these all ranks know whether it went well with all
 * of them, so that they go on, or give up, together.
 *
 * Where the run goes on meanwhile, a thread of each rank writes a copy. What ranks tell each other
 * they tell in calls of their own threads, so that collectives stay in order.
 */
#include "zero/checkpoint/save_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/folder_internal.h"
#include "zero/outer_internal.h"
#include "zero/runtime_internal.h"

/* Of the words that ranks tell each other of their files. */
enum { WORD_DATA_BYTES, WORD_N_CHUNKS, N_HEAD_WORDS };
#define WORDS_PER_ROW 2

typedef struct zr_saving zr_saving_t;

struct zr_saving {
    zr_heap_t *heap; /* of its tables, and itself */
    zr_runtime_t *runtime;
    char *folder; /* of checkpoints. Texts of the caller are none of a plan's tables */
    char *trainer_json;
    zr_folder_kept_t kept;
    zr_secret_t secret; /* the manifest is signed with it, where it is given */
    size_t step;
    size_t n_updates;
    zr_slices_t slices;
    char *partial;   /* where it is made */
    bool is_partial; /* this rank has made that folder */
    int lock;        /* of the folder of checkpoints; -1: this rank does not hold it */
    zr_save_writer_t *writer;
    zr_written_file_t file; /* this rank's */
    uint64_t *words;        /* [n_words] this rank's */
    uint64_t *all;          /* [n_ranks][n_words] */
    size_t n_words;

    /* Writing: by the rank's thread, or another while has_thread. */
    bool has_thread;
    pthread_t thread;
    atomic_bool is_written; /* it is at its end */
    zr_status_t status;     /* of writing, then */
    double start;
    zr_save_report_t report;
};

/* ---- agreement ------------------------------------------------------------------------------- */

/* An error that the ranks cannot tell each other of. */
static bool is_fatal(zr_status_t status) {
    return status == ZR_ERR_COMM || status == ZR_ERR_DEVICE;
}

/* Every rank's status of saving this step; ZR_OK when all are. It takes no memory, which a rank may
 * not have. */
static zr_status_t agree(zr_runtime_t *runtime, size_t step, zr_status_t status) {
    const zr_base_t *base = &runtime->base;
    const double *all = NULL, own = (double)status;
    if (is_fatal(status))
        return status;
    ZR_TRY(zr_exchange_values(&runtime->exchange, &own, 1, &all));
    if (status != ZR_OK || !zr_base_has_data(base))
        return status;
    for (int rank = 0; rank < base->n_ranks; rank++) {
        zr_status_t other = (zr_status_t)(int)all[rank];
        if (other != ZR_OK)
            return zr_fail(&base->log, other, "step %zu is not saved, because rank %d failed: %s",
                           step, rank, zr_status_name(other));
    }
    return ZR_OK;
}

zr_status_t zr_save_all_say(zr_exchange_t *exchange, bool own, bool *all_p) {
    const zr_base_t *base = exchange->base;
    const double *all = NULL, value = own;
    ZR_TRY(zr_exchange_values(exchange, &value, 1, &all));
    *all_p = own;
    for (int rank = 0; rank < base->n_ranks && zr_base_has_data(base); rank++)
        *all_p &= all[rank] != 0;
    return ZR_OK;
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static zr_status_t out_of_memory(const zr_saving_t *saving) {
    return zr_fail(&saving->runtime->base.log, ZR_ERR_MEMORY,
                   "the system has no memory for a checkpoint's manifest");
}

static zr_status_t list_units(const zr_saving_t *saving, zr_manifest_t *manifest) {
    const zr_runtime_t *runtime = saving->runtime;
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        manifest->units[i] = strdup(runtime->model.units[i]->name);
        if (manifest->units[i] == NULL)
            return out_of_memory(saving);
        manifest->n_units++;
    }
    return ZR_OK;
}

static zr_status_t list_tensors(const zr_saving_t *saving, zr_manifest_t *manifest) {
    const zr_runtime_t *runtime = saving->runtime;
    for (size_t i = 0; i < runtime->model.n_params; i++) {
        const zr_param_t *param = runtime->model.params[i];
        if (param->about->layout.frozen && runtime->base.links_frozen)
            continue;
        zr_manifest_tensor_t tensor = {.unit = param->unit->index,
                                       .offset_elems = param->about->layout.offset_elems};
        tensor.tensor = (zr_checkpoint_tensor_t){.name = strdup(param->about->name),
                                                 .unit = manifest->units[param->unit->index],
                                                 .n_dims = param->about->n_dims,
                                                 .n_elems = param->about->layout.n_elems,
                                                 .frozen = param->about->layout.frozen,
                                                 .has_moments = !param->about->layout.frozen};
        memcpy(tensor.tensor.dims, param->about->dims, sizeof(param->about->dims));
        if (tensor.tensor.name == NULL)
            return out_of_memory(saving);
        manifest->tensors[manifest->n_tensors++] = tensor;
    }
    return ZR_OK;
}

static void list_extents_of(const zr_saving_t *saving, int rank, zr_manifest_t *manifest) {
    const uint64_t *words = saving->all + (size_t)rank * saving->n_words;
    size_t chunk = saving->slices.chunk_bytes, first_chunk = 0;
    for (zr_slice_t slice = {0}; zr_slices_next(&saving->slices, rank, &slice);) {
        const uint64_t *row = words + N_HEAD_WORDS + zr_slice_row(&slice) * WORDS_PER_ROW;
        manifest->extents[manifest->n_extents++] =
            (zr_manifest_extent_t){.unit = slice.unit->index,
                                   .frozen = slice.kind == FLAT_FROZEN,
                                   .first = slice.first,
                                   .n_elems = slice.n_elems,
                                   .group_elems = slice.group_elems,
                                   .n_arrays = slice.n_arrays,
                                   .dtype = slice.dtype,
                                   .file = manifest->n_files,
                                   .offset_bytes = row[0],
                                   .first_chunk = first_chunk,
                                   .xxh3 = row[1]};
        first_chunk += (slice.n_bytes + chunk - 1) / chunk;
    }
}

/* Ranks that have nothing to save have no files. */
static void list_files(const zr_saving_t *saving, zr_manifest_t *manifest) {
    for (int rank = 0; rank < saving->runtime->base.n_ranks; rank++) {
        const uint64_t *words = saving->all + (size_t)rank * saving->n_words;
        if (words[WORD_N_CHUNKS] == 0)
            continue;
        list_extents_of(saving, rank, manifest);
        zr_manifest_file_t *file = &manifest->files[manifest->n_files++];
        zr_save_data_name(rank, file->data);
        zr_save_sums_name(rank, file->sums);
        file->data_bytes = words[WORD_DATA_BYTES];
        file->n_chunks = words[WORD_N_CHUNKS];
        file->chunk_bytes = saving->slices.chunk_bytes;
    }
}

/* AdamW in fp32 needs no words: its checkpoints are as they were when there was nothing else. */
static bool is_usual(const zr_config_t *config) {
    return zr_config_optimizer(config) == &zr_adamw && config->state_form == ZR_STATE_FP32 &&
           config->outer_every == 0;
}

static zr_status_t list_arrays(const zr_saving_t *saving, zr_manifest_t *manifest) {
    const zr_config_t *config = &saving->runtime->base.config;
    const zr_update_rule_t *rule = &saving->runtime->state.saved_rule;
    if (is_usual(config))
        return ZR_OK;
    manifest->optimizer = strdup(zr_config_optimizer(config)->name);
    manifest->arrays = calloc(rule->n_arrays, sizeof(*manifest->arrays));
    if (manifest->optimizer == NULL || manifest->arrays == NULL)
        return out_of_memory(saving);
    for (size_t i = 0; i < rule->n_arrays; i++) {
        const zr_state_array_t *array = &rule->arrays[i];
        manifest->arrays[i] = (zr_manifest_array_t){strdup(array->name), array->encoding};
        if (manifest->arrays[i].name == NULL)
            return out_of_memory(saving);
        manifest->n_arrays++;
    }
    return ZR_OK;
}

static zr_status_t name_messages(const zr_saving_t *saving, zr_manifest_t *manifest) {
    zr_messages_text_t messages = zr_config_messages(&saving->runtime->base.config);
    if (messages.text[0] == '\0')
        return ZR_OK;
    manifest->messages = strdup(messages.text);
    return manifest->messages != NULL ? ZR_OK : out_of_memory(saving);
}

static zr_status_t fill_manifest(const zr_saving_t *saving, zr_manifest_t *manifest) {
    const zr_runtime_t *runtime = saving->runtime;
    size_t n_ranks = (size_t)runtime->base.n_ranks, n_rows = runtime->model.n_units * N_FLATS;
    manifest->units = calloc(runtime->model.n_units + 1, sizeof(*manifest->units));
    manifest->tensors = calloc(runtime->model.n_params + 1, sizeof(*manifest->tensors));
    manifest->files = calloc(n_ranks, sizeof(*manifest->files));
    manifest->extents = calloc(n_ranks * n_rows + 1, sizeof(*manifest->extents));
    manifest->trainer_json = strdup(saving->trainer_json);
    if (manifest->units == NULL || manifest->tensors == NULL || manifest->files == NULL ||
        manifest->extents == NULL || manifest->trainer_json == NULL)
        return out_of_memory(saving);
    ZR_TRY(list_units(saving, manifest));
    ZR_TRY(list_tensors(saving, manifest));
    ZR_TRY(list_arrays(saving, manifest));
    ZR_TRY(name_messages(saving, manifest));
    list_files(saving, manifest);
    if (runtime->saves.linked != NULL)
        return zr_base_link(runtime->saves.linked, &runtime->model, saving->partial,
                            &runtime->base.log, manifest);
    return ZR_OK;
}

static zr_status_t write_manifest(const zr_saving_t *saving) {
    const zr_runtime_t *runtime = saving->runtime;
    zr_manifest_t manifest = {.step = saving->step,
                              .n_updates = saving->n_updates,
                              .n_ranks = runtime->base.n_ranks,
                              .stage = (int)runtime->base.config.stage,
                              .dtype = runtime->base.config.dtype,
                              .secret = &saving->secret};
    zr_status_t status = fill_manifest(saving, &manifest);
    ZR_THEN(status, zr_carried_write(&runtime->saves.carried, saving->partial, &manifest,
                                     &runtime->base.log));
    ZR_THEN(status, zr_manifest_write(&manifest, saving->partial, &runtime->base.log));
    zr_manifest_clear(&manifest);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_rest(zr_saving_t *saving) {
    double start = zr_base_now(&saving->runtime->base);
    saving->status = zr_save_writer_finish(saving->writer, &saving->file);
    saving->report.write_seconds += zr_base_now(&saving->runtime->base) - start;
    atomic_store(&saving->is_written, true);
}

static void *run_writer(void *argument) {
    write_rest(argument);
    return NULL;
}

/* A thread that cannot be had is not worth a checkpoint. */
static void start_writing(zr_saving_t *saving, bool goes_on) {
    if (goes_on && pthread_create(&saving->thread, NULL, run_writer, saving) == 0)
        saving->has_thread = true;
    else
        write_rest(saving);
}

static void end_writing(zr_saving_t *saving) {
    if (saving->has_thread)
        pthread_join(saving->thread, NULL);
    saving->has_thread = false;
    zr_save_writer_destroy(&saving->writer);
}

static void note_file(zr_saving_t *saving) {
    const zr_written_file_t *file = &saving->file;
    saving->report.n_bytes = file->data_bytes + file->n_chunks * sizeof(uint64_t);
    saving->words[WORD_DATA_BYTES] = file->data_bytes;
    saving->words[WORD_N_CHUNKS] = file->n_chunks;
    for (size_t i = 0; i < saving->runtime->model.n_units * N_FLATS; i++) {
        uint64_t *row = saving->words + N_HEAD_WORDS + i * WORDS_PER_ROW;
        row[0] = file->rows[i].offset_bytes;
        row[1] = file->rows[i].xxh3;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Refuse a state with an array that nobody could read again. */
static zr_status_t check_arrays(const zr_runtime_t *runtime) {
    const zr_update_rule_t *rule = &zr_config_optimizer(&runtime->base.config)->rule;
    for (size_t i = 0; i < rule->n_arrays; i++) {
        const zr_encoding_t *encoding = rule->arrays[i].encoding;
        if (zr_encoding_find(encoding->name) != encoding)
            return zr_fail(&runtime->base.log, ZR_ERR_UNSUPPORTED,
                           "optimizer array \"%s\" cannot be saved: its encoding %s is not one of "
                           "the library's",
                           rule->arrays[i].name, encoding->name);
    }
    return ZR_OK;
}

zr_status_t zr_runtime_expect_saves(zr_runtime_t *runtime, bool goes_on) {
    if (runtime->committed)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "zr_runtime_expect_saves after commit");
    ZR_TRY(check_arrays(runtime));
    runtime->saves.are_expected = true;
    runtime->saves.go_on = goes_on;
    return ZR_OK;
}

static zr_status_t check_options(zr_runtime_t *runtime, const zr_save_options_t *options) {
    ZR_TRY(zr_rt_check_outside(runtime, "zr_runtime_save"));
    ZR_TRY(zr_saves_check_encoded(&runtime->model, &runtime->base));
    ZR_TRY(check_arrays(runtime));
    if (options == NULL || options->folder == NULL || options->folder[0] == '\0')
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT,
                       "zr_runtime_save: no folder for checkpoints (--checkpoint-dir)");
    if (runtime->saves.saving != NULL)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE,
                       "zr_runtime_save: a save is in progress; call zr_runtime_save_end first");
    return ZR_OK;
}

static bool makes_folder(const zr_saving_t *saving) {
    return saving->runtime->base.rank == 0 && zr_base_has_data(&saving->runtime->base);
}

static void destroy(zr_saving_t *saving) {
    end_writing(saving);
    zr_folder_unlock(&saving->lock);
    free(saving->partial);
    free(saving->trainer_json);
    free(saving->folder);
    zr_heap_t *heap = saving->heap;
    zr_heap_destroy(&heap);
}

static zr_status_t create(zr_runtime_t *runtime, const zr_save_options_t *options,
                          zr_saving_t **saving_p) {
    size_t n_rows = runtime->model.n_units * N_FLATS, n_ranks = (size_t)runtime->base.n_ranks;
    zr_heap_t *heap = zr_heap_create(runtime->base.heap);
    zr_saving_t *saving = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*saving)) : NULL;
    if (saving == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&runtime->base.log, ZR_ERR_MEMORY, "the system has no memory to save");
    }
    *saving = (zr_saving_t){
        .heap = heap,
        .runtime = runtime,
        .folder = strdup(options->folder),
        .trainer_json = strdup(options->trainer_json != NULL ? options->trainer_json : "{}"),
        .kept = {.n = options->keep,
                 .has_also = options->keep_also != NULL,
                 .also = options->keep_also != NULL ? *options->keep_also : 0},
        .lock = -1,
        .step = runtime->base.progress.n_steps,
        .n_updates = runtime->base.progress.n_updates,
        .n_words = N_HEAD_WORDS + n_rows * WORDS_PER_ROW,
        .start = zr_base_now(&runtime->base)};
    if (options->secret != NULL)
        saving->secret = *options->secret;
    saving->words = zr_heap_alloc(heap, saving->n_words, sizeof(*saving->words));
    saving->all = zr_heap_alloc(heap, n_ranks * saving->n_words, sizeof(*saving->all));
    saving->file.rows = zr_heap_alloc(heap, n_rows, sizeof(*saving->file.rows));
    saving->partial = zr_folder_partial_path(options->folder, saving->step);
    zr_folder_name(saving->step, saving->report.name);
    zr_status_t status = ZR_OK;
    if (saving->folder == NULL || saving->trainer_json == NULL || saving->words == NULL ||
        saving->all == NULL || saving->file.rows == NULL || saving->partial == NULL)
        status = out_of_memory(saving);
    ZR_THEN(status, zr_slices_make(heap, &runtime->state, &saving->slices));
    if (status != ZR_OK)
        destroy(saving);
    else
        *saving_p = saving;
    return status;
}

/* Nothing is left of it. */
static void give_up(zr_saving_t *saving) {
    end_writing(saving);
    if (saving->is_partial)
        zr_folder_abandon(saving->folder, saving->step, &saving->runtime->base.log);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static zr_status_t make_folder(zr_saving_t *saving) {
    char *path = NULL;
    if (!makes_folder(saving))
        return ZR_OK;
    ZR_TRY(zr_manifest_check_trainer(saving->trainer_json, &saving->runtime->base.log));
    ZR_TRY(zr_folder_lock(saving->folder, &saving->runtime->base.log, &saving->lock));
    zr_status_t status =
        zr_folder_begin(saving->folder, saving->step, &saving->runtime->base.log, &path);
    saving->is_partial = status == ZR_OK;
    free(path);
    return status;
}

static zr_status_t create_writer(zr_saving_t *saving, bool copies) {
    return zr_save_writer_create(&saving->runtime->saves, &saving->slices, saving->partial, copies,
                                 &saving->writer);
}

/* How taking and writing go is agreed when they end. State is where it lives: to agree, the host
 * has waited for the compute stream, which a step leaves waiting for all that is on its way there.
 */
static zr_status_t begin(zr_saving_t *saving, bool goes_on) {
    zr_runtime_t *runtime = saving->runtime;
    bool copies = false;
    zr_status_t status = ZR_OK;
    if (goes_on && runtime->saves.are_expected)
        copies = runtime->saves.go_on;
    else if (goes_on)
        status = zr_save_find_room(&runtime->saves, &saving->slices, &copies);
    ZR_THEN(status, agree(runtime, saving->step, create_writer(saving, copies)));
    if (status != ZR_OK)
        return status;
    double start = zr_base_now(&runtime->base);
    saving->status = zr_save_writer_take(saving->writer);
    saving->report.write_seconds = zr_base_now(&runtime->base) - start;
    if (saving->status == ZR_OK)
        start_writing(saving, copies && zr_base_has_data(&runtime->base));
    else
        atomic_store(&saving->is_written, true);
    return ZR_OK;
}

zr_status_t zr_runtime_save_begin(zr_runtime_t *runtime, const zr_save_options_t *options) {
    zr_saving_t *saving = NULL;
    ZR_TRY(check_options(runtime, options));
    /* A run that goes on from the checkpoint has none: this one has the same bits. */
    ZR_TRY(zr_rt_note(runtime, zr_outer_settle(runtime)));
    ZR_TRY(zr_rt_note(runtime, zr_grads_forget_errors(&runtime->grads)));
    zr_status_t status = create(runtime, options, &saving);
    ZR_THEN(status, make_folder(saving));
    status = agree(runtime, runtime->base.progress.n_steps, status);
    ZR_THEN(status, begin(saving, options->goes_on));
    if (status == ZR_OK) {
        saving->report.seconds = zr_base_now(&runtime->base) - saving->start;
        runtime->saves.saving = saving;
    } else if (saving != NULL) {
        give_up(saving);
        destroy(saving);
    }
    return is_fatal(status) ? zr_rt_note(runtime, status) : status;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* The one before may go. */
static zr_status_t link_this(zr_saving_t *saving) {
    zr_saves_t *saves = &saving->runtime->saves;
    char *path = NULL;
    if (saves->linked == NULL)
        return ZR_OK;
    if (asprintf(&path, "%s/%s", saving->folder, saving->report.name) < 0)
        return out_of_memory(saving);
    free(saves->linked);
    saves->linked = path;
    return ZR_OK;
}

static zr_status_t publish(zr_saving_t *saving) {
    if (!makes_folder(saving))
        return ZR_OK;
    ZR_TRY(write_manifest(saving));
    ZR_TRY(
        zr_folder_publish(saving->folder, saving->step, &saving->kept, &saving->runtime->base.log));
    return link_this(saving);
}

/* All ranks' files, once all have written theirs. */
static zr_status_t share_files(zr_saving_t *saving) {
    ZR_TRY(agree(saving->runtime, saving->step, saving->status));
    note_file(saving);
    return zr_exchange_words(&saving->runtime->exchange, "files of a checkpoint", saving->words,
                             saving->n_words, saving->all);
}

static zr_status_t end(zr_saving_t *saving) {
    end_writing(saving);
    zr_status_t status = share_files(saving);
    ZR_THEN(status, agree(saving->runtime, saving->step, publish(saving)));
    if (status != ZR_OK)
        give_up(saving);
    return status;
}

zr_status_t zr_runtime_save_end(zr_runtime_t *runtime, bool wait, bool *ended_p,
                                zr_save_report_t *report_p) {
    zr_saving_t *saving = runtime->saves.saving;
    bool ends = true;
    double start = zr_base_now(&runtime->base);
    ZR_TRY(zr_rt_check_outside(runtime, "zr_runtime_save_end"));
    if (ended_p == NULL)
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT,
                       "zr_runtime_save_end: no output pointer (NULL) for whether it has ended");
    *ended_p = saving == NULL;
    if (saving == NULL)
        return ZR_OK;
    if (!wait)
        ZR_TRY(zr_rt_note(
            runtime, zr_save_all_say(&runtime->exchange, atomic_load(&saving->is_written), &ends)));
    if (!ends) {
        saving->report.seconds += zr_base_now(&runtime->base) - start;
        return ZR_OK;
    }
    zr_status_t status = end(saving);
    saving->report.seconds += zr_base_now(&runtime->base) - start;
    if (report_p != NULL)
        *report_p = saving->report;
    destroy(saving);
    runtime->saves.saving = NULL;
    *ended_p = true;
    return is_fatal(status) ? zr_rt_note(runtime, status) : status;
}

zr_status_t zr_runtime_save(zr_runtime_t *runtime, const zr_save_options_t *options,
                            zr_save_report_t *report_p) {
    bool ended = false;
    ZR_TRY(zr_runtime_save_begin(runtime, options));
    return zr_runtime_save_end(runtime, true, &ended, report_p);
}

void zr_saves_destroy(zr_saves_t *saves) {
    if (saves->saving != NULL)
        destroy(saves->saving);
    saves->saving = NULL;
    zr_carried_close(&saves->carried);
    free(saves->linked);
    saves->linked = NULL;
    zr_saves_release(saves);
}
