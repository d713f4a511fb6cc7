/* What zero-bench io reports and saves. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io.h"
#include "examples/common/files.h"

static json_t *describe_setting(const io_setting_t *setting, bool is_store) {
    json_t *object = JSON_OBJECT({"request_bytes", json_count(setting->request_bytes)},
                                 {"depth", json_count(setting->depth)},
                                 {"files_per_path", json_count(setting->n_files)});
    if (is_store)
        json_put(&object, "submit_batch", json_count(setting->submit_batch));
    return object;
}

/* A store and the fio of its kind; fio's bytes_per_s 0: none. */
static json_t *describe_pair(const io_speed_t *store, const io_speed_t *fio) {
    json_t *object = JSON_OBJECT({"bytes_per_s", json_number(store->bytes_per_s)},
                                 {"cpu_s_per_gb", json_number(1e9 * store->cpu_seconds_per_byte)});
    if (fio->bytes_per_s == 0.0)
        return object;
    JSON_PUT(&object, {"fio_bytes_per_s", json_number(fio->bytes_per_s)},
             {"fio_cpu_s_per_gb", json_number(1e9 * fio->cpu_seconds_per_byte)},
             {"ratio", json_number(store->bytes_per_s / fio->bytes_per_s)},
             {"cpu_ratio", json_number(store->cpu_seconds_per_byte / fio->cpu_seconds_per_byte)});
    return object;
}

static json_t *describe_checksummed(const io_comparison_t *c, io_pattern_t pattern) {
    const io_speed_t *store = &c->speed[IO_STORE_CHECKSUMMED][pattern];
    const io_speed_t *plain = &c->speed[IO_FIO_PLAIN][pattern];
    json_t *object = describe_pair(store, &c->speed[IO_FIO_CHECKSUMMED][pattern]);
    json_put(&object, "checksum_s_per_gb", json_number(1e9 * store->checksum_seconds_per_byte));
    if (plain->bytes_per_s != 0.0)
        json_put(&object, "ratio_to_plain_fio",
                 json_number(store->bytes_per_s / plain->bytes_per_s));
    return object;
}

static json_t *describe_comparison(const io_comparison_t *c, bool is_checksummed) {
    json_t *object = json_object();
    for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++)
        json_put(&object, io_pattern_name(pattern),
                 is_checksummed ? describe_checksummed(c, pattern)
                                : describe_pair(&c->speed[IO_STORE_PLAIN][pattern],
                                                &c->speed[IO_FIO_PLAIN][pattern]));
    if (!is_checksummed)
        return object;
    if (c->fio_verify != NULL)
        json_put(&object, "fio_verify", json_string(c->fio_verify));
    JSON_PUT(&object, {"cold_s_per_gb", json_number(1e9 * c->cold_cpu_seconds_per_byte)},
             {"cached_s_per_gb", json_number(1e9 * c->cached_cpu_seconds_per_byte)});
    return object;
}

/* As they are from the root, so that a file of settings means the same from anywhere. */
static json_t *describe_paths(const io_place_t *place) {
    json_t *array = json_array();
    for (size_t i = 0; i < place->n_paths; i++) {
        char *absolute = realpath(place->paths[i], NULL);
        json_append(&array, json_text(absolute != NULL ? absolute : place->paths[i]));
        free(absolute);
    }
    return array;
}

json_t *io_describe(const io_options_t *o, const io_best_t *best, const io_comparison_t *comparison,
                    const char *fio_version) {
    json_t *object = JSON_OBJECT(
        {"command", json_string("io")}, {"paths", describe_paths(&o->place)},
        {"size_bytes", json_count(o->place.size_bytes)},
        {"direct", json_boolean(comparison->is_direct)},
        {"registered", json_boolean(comparison->is_registered)},
        {"rounds", json_count(o->n_rounds)}, {"settings", describe_setting(&best->store, true)});
    if (o->with_fio)
        JSON_PUT(&object, {"fio", json_text(fio_version)},
                 {"fio_settings", describe_setting(&best->fio, false)});
    if (o->plain)
        json_put(&object, "plain", describe_comparison(comparison, false));
    if (o->checksummed)
        json_put(&object, "checksummed", describe_comparison(comparison, true));
    return object;
}

/* ---- the settings' file --------------------------------------------------------------------- */

zr_status_t io_check_save(const io_options_t *o) {
    if (o->save_path == NULL)
        return ZR_OK;
    zr_status_t status = files_check_writable("--save-settings", o->save_path, o->common.log);
    return status == ZR_ERR_IO ? ZR_ERR_ARGUMENT : status; /* named before anything ran */
}

zr_status_t io_save(const io_options_t *o, const io_best_t *best) {
    if (o->save_path == NULL)
        return ZR_OK;
    json_t *object = describe_setting(&best->store, true);
    FILE *file = fopen(o->save_path, "w");
    json_put(&object, "paths", describe_paths(&o->place));
    bool written = file != NULL && json_print(object, true, file);
    int error = errno;
    if (file != NULL && fclose(file) != 0) {
        written = false;
        error = errno;
    }
    json_decref(object);
    return written ? ZR_OK
                   : zr_fail(o->common.log, ZR_ERR_IO, "--save-settings %s: cannot write it: %s",
                             o->save_path, strerror(error));
}
