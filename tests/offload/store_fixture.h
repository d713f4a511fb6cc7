/*
 * What the tests of the store share: stores in folders of their own, a log that is kept, and a
 * look at what is left behind.
 */
#pragma once

#include "offload/store.h"
#include "tests/common/test.h"

#define FIXTURE_SKIPPED 77
#define FIXTURE_MAX_PATHS 3

/* Small sizes, so that little data makes many requests. */
#define CHUNK ((size_t)8192)
#define REQUEST (4 * CHUNK)

/* Of all extents of fixture_create. */
#define FIXTURE_ACCOUNT 2

typedef struct fixture {
    const char *backend;
    zr_device_t *device; /* "sim": of options.device */
    char folders[FIXTURE_MAX_PATHS][64];
    const char *paths[FIXTURE_MAX_PATHS];
    zr_store_options_t options; /* for fixture_create; changed by tests as they like */
    zr_store_t *store;

    char text[16384]; /* what was logged, a line per message */
    size_t n_logged[ZR_LOG_DEBUG + 1];
    size_t n_files_before;
} fixture_t;

/** 0, or FIXTURE_SKIPPED when this machine has no io_uring: says why. */
int fixture_probe(void);

/** Folders, and options with small sizes. Stores are made by fixture_create. */
void fixture_open(fixture_t *f, const char *backend, size_t n_paths);
/** Destroy the store; no file and no descriptor may be left. */
void fixture_close(fixture_t *f);

/** Make the store with f->options; extents are named "extent 0", ... */
zr_status_t fixture_create(fixture_t *f, const size_t *sizes, size_t n_extents);

void fixture_log_clear(fixture_t *f);
/** The log has this. */
void assert_logged(const fixture_t *f, const char *text);
/** A call was refused so, with one error that has this in it. Clears the log. */
void assert_refused(fixture_t *f, zr_status_t expected, zr_status_t status, const char *text);

/** Open descriptors of this process. */
size_t count_descriptors(void);
/** Names in a folder. */
size_t count_names(const char *folder);

/** [size_bytes] that begin `skew` bytes after a page; free it with free_buffer. */
unsigned char *new_buffer(size_t size_bytes, size_t skew);
void free_buffer(unsigned char *buffer);
/** Bytes that depend on seed and place. */
void fill_pattern(unsigned char *buffer, size_t size_bytes, uint64_t seed);

/** Put or get, and wait. */
zr_status_t put_now(zr_store_t *store, size_t extent, size_t offset, size_t size, const void *from);
zr_status_t get_now(zr_store_t *store, size_t extent, size_t offset, size_t size, void *to);
