/* What zero-bench io prints and saves. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io.h"
#include "examples/common/files.h"

/* ---- for people --------------------------------------------------------------------------------
 */

static void print_side(const io_speed_t *store, const io_speed_t *fio) {
    if (fio->bytes_per_s > 0.0)
        fprintf(stderr, "   fio %6.2f GB/s, %.3f   ratio %.3f, of processor %.2f",
                1e-9 * fio->bytes_per_s, 1e9 * fio->cpu_seconds_per_byte,
                store->bytes_per_s / fio->bytes_per_s,
                store->cpu_seconds_per_byte / fio->cpu_seconds_per_byte);
}

static void print_plain(const io_comparison_t *c) {
    fprintf(stderr, "without checksums; s of processor per GB:\n");
    for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++) {
        const io_speed_t *store = &c->speed[IO_STORE_PLAIN][pattern];
        fprintf(stderr, "  %-6s store %6.2f GB/s, %.3f", io_pattern_name(pattern),
                1e-9 * store->bytes_per_s, 1e9 * store->cpu_seconds_per_byte);
        print_side(store, &c->speed[IO_FIO_PLAIN][pattern]);
        fputc('\n', stderr);
    }
}

static void print_checksummed(const io_comparison_t *c) {
    fprintf(stderr, "with checksums%s%s; s of processor per GB (of checksums):\n",
            c->fio_verify != NULL ? ", fio with its verify=" : "",
            c->fio_verify != NULL ? c->fio_verify : "");
    for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++) {
        const io_speed_t *store = &c->speed[IO_STORE_CHECKSUMMED][pattern];
        const io_speed_t *plain = &c->speed[IO_FIO_PLAIN][pattern];
        fprintf(stderr, "  %-6s store %6.2f GB/s, %.3f (%.3f)", io_pattern_name(pattern),
                1e-9 * store->bytes_per_s, 1e9 * store->cpu_seconds_per_byte,
                1e9 * store->checksum_seconds_per_byte);
        print_side(store, &c->speed[IO_FIO_CHECKSUMMED][pattern]);
        if (plain->bytes_per_s > 0.0)
            fprintf(stderr, "   ratio to fio without %.3f",
                    store->bytes_per_s / plain->bytes_per_s);
        fputc('\n', stderr);
    }
    fprintf(stderr, "  checksums alone: %.3f in cold memory, %.3f in cache\n",
            1e9 * c->cold_cpu_seconds_per_byte, 1e9 * c->cached_cpu_seconds_per_byte);
}

static void print_for_people(const io_options_t *o, const io_best_t *best,
                             const io_comparison_t *c) {
    fprintf(stderr, "best for the store: %zu KiB, depth %zu, %s per path, batches of %zu\n",
            best->store.request_bytes >> 10, best->store.depth,
            zr_count_text(best->store.n_files, "file").text, best->store.submit_batch);
    if (o->with_fio)
        fprintf(stderr, "best for fio:       %zu KiB, depth %zu, %s per path\n",
                best->fio.request_bytes >> 10, best->fio.depth,
                zr_count_text(best->fio.n_files, "file").text);
    fprintf(stderr, "medians of %s\n", zr_count_text(o->n_rounds, "round").text);
    if (o->plain)
        print_plain(c);
    if (o->checksummed)
        print_checksummed(c);
}

/* ---- as JSON -----------------------------------------------------------------------------------
 */

static json_t *describe_setting(const io_setting_t *setting, bool is_store) {
    json_t *object = json_object();
    json_put(&object, "request_bytes", json_count(setting->request_bytes));
    json_put(&object, "depth", json_count(setting->depth));
    json_put(&object, "files_per_path", json_count(setting->n_files));
    if (is_store)
        json_put(&object, "submit_batch", json_count(setting->submit_batch));
    return object;
}

/* A store and the fio of its kind; fio's bytes_per_s 0: none. */
static json_t *describe_pair(const io_speed_t *store, const io_speed_t *fio) {
    json_t *object = json_object();
    json_put(&object, "bytes_per_s", json_number(store->bytes_per_s));
    json_put(&object, "cpu_s_per_gb", json_number(1e9 * store->cpu_seconds_per_byte));
    if (fio->bytes_per_s == 0.0)
        return object;
    json_put(&object, "fio_bytes_per_s", json_number(fio->bytes_per_s));
    json_put(&object, "fio_cpu_s_per_gb", json_number(1e9 * fio->cpu_seconds_per_byte));
    json_put(&object, "ratio", json_number(store->bytes_per_s / fio->bytes_per_s));
    json_put(&object, "cpu_ratio",
             json_number(store->cpu_seconds_per_byte / fio->cpu_seconds_per_byte));
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
    json_put(&object, "cold_s_per_gb", json_number(1e9 * c->cold_cpu_seconds_per_byte));
    json_put(&object, "cached_s_per_gb", json_number(1e9 * c->cached_cpu_seconds_per_byte));
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

int io_report(const io_options_t *o, const io_best_t *best, const io_comparison_t *comparison,
              const char *fio_version) {
    print_for_people(o, best, comparison);
    if (!o->common.json)
        return BENCH_MEASURED;
    json_t *object = json_object();
    json_put(&object, "command", json_string("io"));
    json_put(&object, "paths", describe_paths(&o->place));
    json_put(&object, "size_bytes", json_count(o->place.size_bytes));
    json_put(&object, "direct", json_boolean(comparison->is_direct));
    json_put(&object, "registered", json_boolean(comparison->is_registered));
    json_put(&object, "rounds", json_count(o->n_rounds));
    json_put(&object, "settings", describe_setting(&best->store, true));
    if (o->with_fio) {
        json_put(&object, "fio", json_text(fio_version));
        json_put(&object, "fio_settings", describe_setting(&best->fio, false));
    }
    if (o->plain)
        json_put(&object, "plain", describe_comparison(comparison, false));
    if (o->checksummed)
        json_put(&object, "checksummed", describe_comparison(comparison, true));
    return command_print(object, BENCH_MEASURED, o->log);
}

/* ---- the settings' file ------------------------------------------------------------------------
 */

zr_status_t io_check_save(const io_options_t *o) {
    if (o->save_path == NULL)
        return ZR_OK;
    zr_status_t status = files_check_writable("--save-settings", o->save_path, o->log);
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
                   : zr_fail(o->log, ZR_ERR_IO, "--save-settings %s: cannot write it: %s",
                             o->save_path, strerror(error));
}
