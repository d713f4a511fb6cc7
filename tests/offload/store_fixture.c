#include "tests/offload/store_fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/common/one_thing.h"

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    fixture_t *f = context;
    size_t used = strlen(f->text);
    f->n_logged[level]++;
    snprintf(f->text + used, sizeof(f->text) - used, "%s: %s\n", zr_log_level_name(level), message);
}

int fixture_probe(void) {
    const char *paths[] = {"."};
    zr_store_options_t options = zr_store_options_default();
    options.paths = paths;
    options.n_paths = 1;
    zr_store_t *store = NULL;
    zr_status_t status = zr_store_create("uring", &options, NULL, 0, &store);
    zr_store_destroy(&store);
    if (status == ZR_OK)
        return 0;
    printf("skipped: no store \"uring\" here, see above\n");
    return FIXTURE_SKIPPED;
}

size_t count_names(const char *folder) {
    size_t n_names = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;)
        n_names += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(listing);
    return n_names;
}

size_t count_descriptors(void) {
    return count_names("/proc/self/fd");
}

void fixture_open(fixture_t *f, const char *backend, size_t n_paths) {
    memset(f, 0, sizeof(*f));
    f->backend = backend;
    for (size_t i = 0; i < n_paths; i++) {
        snprintf(f->folders[i], sizeof(f->folders[i]), "test-store-XXXXXX");
        assert_non_null(mkdtemp(f->folders[i]));
        f->paths[i] = f->folders[i];
    }
    f->n_files_before = count_descriptors();
    f->options = zr_store_options_default();
    if (strcmp(backend, "sim") == 0)
        assert_ok(zr_device_open("sim", NULL, &f->device));
    f->options.device = f->device;
    f->options.log = (zr_log_t){.sink = keep, .context = f, .level = ZR_LOG_WARNING, .rank = 3};
    f->options.chunk_bytes = CHUNK;
    f->options.request_bytes = REQUEST;
    f->options.depth = 8;
    f->options.submit_batch = 3;
    f->options.n_bounce_buffers = 2;
    f->options.max_transfers = 32;
    f->options.paths = f->paths;
    f->options.n_paths = n_paths;
}

void fixture_close(fixture_t *f) {
    zr_store_destroy(&f->store);
    assert_null(f->store);
    zr_device_close(&f->device);
    assert_int_equal(count_descriptors(), f->n_files_before);
    for (size_t i = 0; i < FIXTURE_MAX_PATHS && f->paths[i] != NULL; i++) {
        if (access(f->folders[i], F_OK) == 0)
            assert_int_equal(rmdir(f->folders[i]), 0); /* it is empty */
    }
}

zr_status_t fixture_create(fixture_t *f, const size_t *sizes, size_t n_extents) {
    zr_store_extent_t *extents = calloc(n_extents + 1, sizeof(*extents));
    char(*names)[32] = calloc(n_extents + 1, sizeof(*names));
    assert_true(extents != NULL && names != NULL);
    for (size_t i = 0; i < n_extents; i++) {
        snprintf(names[i], sizeof(names[i]), "extent %zu", i);
        extents[i] = (zr_store_extent_t){
            .name = names[i], .size_bytes = sizes[i], .account = FIXTURE_ACCOUNT};
    }
    zr_store_destroy(&f->store);
    zr_status_t status = zr_store_create(f->backend, &f->options, extents, n_extents, &f->store);
    free(names); /* the store has copies */
    free(extents);
    return status;
}

void fixture_log_clear(fixture_t *f) {
    f->text[0] = '\0';
    memset(f->n_logged, 0, sizeof(f->n_logged));
}

void assert_logged(const fixture_t *f, const char *text) {
    if (strstr(f->text, text) == NULL)
        fail_msg("\"%s\" is not in the log:\n%s", text, f->text);
}

void assert_refused(fixture_t *f, zr_status_t expected, zr_status_t status, const char *text) {
    assert_string_equal(zr_status_name(status), zr_status_name(expected));
    assert_int_equal(f->n_logged[ZR_LOG_ERROR], 1);
    assert_logged(f, text);
    fixture_log_clear(f);
}

unsigned char *new_buffer(size_t size_bytes, size_t skew) {
    void *base = NULL;
    assert_true(skew < 4096);
    assert_int_equal(posix_memalign(&base, 4096, size_bytes + skew + 1), 0);
    return (unsigned char *)base + skew;
}

void free_buffer(unsigned char *buffer) {
    free((void *)((uintptr_t)buffer & ~(uintptr_t)4095));
}

void fill_pattern(unsigned char *buffer, size_t size_bytes, uint64_t seed) {
    for (size_t i = 0; i < size_bytes; i += 8) {
        uint64_t word = random_bits(&seed);
        memcpy(buffer + i, &word, size_bytes - i < 8 ? size_bytes - i : 8);
    }
}

zr_status_t put_now(zr_store_t *store, size_t extent, size_t offset, size_t size,
                    const void *from) {
    zr_store_ticket_t ticket = ZR_STORE_NO_TICKET;
    ZR_TRY(zr_store_put(store, extent, offset, size, from, &ticket));
    return zr_store_wait(store, ticket);
}

zr_status_t get_now(zr_store_t *store, size_t extent, size_t offset, size_t size, void *to) {
    zr_store_ticket_t ticket = ZR_STORE_NO_TICKET;
    ZR_TRY(zr_store_get(store, extent, offset, size, to, &ticket));
    return zr_store_wait(store, ticket);
}
