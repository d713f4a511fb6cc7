/*
 * Reading checkpoints: any piece of any tensor and array has the values that were saved, however
 * they lie in extents, groups, chunks and files; nothing is read twice that is read on; and a bit
 * that has changed is found, with the file and offset.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "offload/store.h"
#include "tests/common/test.h"
#include "tests/zero/checkpoint/sample.h"
#include "zero/checkpoint/file_internal.h"

/* ---- reads of the system ---- */

static struct {
    size_t n_bytes; /* read of data */
    size_t most;    /* at a time; 0: all */
    int n_interrupted;
    int n_before;  /* that go well, before */
    int n_failing; /* with EIO, and then no more */
    int error;     /* of all that follow */
} reads;

WRAP(ssize_t, pread, int fd, void *bytes, size_t n_bytes, off_t offset) {
    if (reads.error != 0 || reads.n_interrupted > 0) {
        errno = reads.n_interrupted > 0 ? EINTR : reads.error;
        reads.n_interrupted -= reads.n_interrupted > 0;
        return -1;
    }
    if (reads.n_before > 0) {
        reads.n_before--;
    } else if (reads.n_failing > 0) {
        reads.n_failing--;
        errno = EIO;
        return -1;
    }
    if (reads.most > 0 && n_bytes > reads.most)
        n_bytes = reads.most;
    ssize_t n = __real_pread(fd, bytes, n_bytes, offset);
    __atomic_fetch_add(&reads.n_bytes, n > 0 ? (size_t)n : 0, __ATOMIC_RELAXED);
    return n;
}

/* ---- a checkpoint whose values follow from where they are ---- */

#define CHUNK_BYTES 4096
#define N_FILES 3
#define ROW_ELEMS 20000

static uint64_t hash(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/* What was saved of an element of a row: any bits, but bf16 where frozen. */
static uint32_t saved_bits(size_t unit, bool frozen, size_t array, size_t elem) {
    uint32_t bits = (uint32_t)hash(hash(unit * 2 + frozen) + array * 1000003 + elem);
    return frozen ? bits & 0xffff0000u : bits;
}

static void write_file(const char *folder, const char *name, const void *bytes, size_t n_bytes) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

typedef struct data {
    unsigned char *bytes;
    uint64_t *sums;
} data_t;

/* Append an extent to a file, with a gap before it. */
static void append_extent(zr_manifest_t *m, data_t *data, zr_manifest_extent_t extent) {
    zr_manifest_file_t *file = &m->files[extent.file];
    size_t elem_bytes = zr_dtype_size(extent.dtype);
    extent.offset_bytes = file->data_bytes + hash(file->data_bytes) % 100;
    extent.first_chunk = file->n_chunks;
    unsigned char *at = data->bytes + extent.offset_bytes, *begin = at;
    for (size_t group = 0; group < extent.n_elems; group += extent.group_elems)
        for (int array = 0; array < extent.n_arrays; array++)
            for (size_t i = group; i < group + extent.group_elems && i < extent.n_elems; i++) {
                uint32_t bits =
                    saved_bits(extent.unit, extent.frozen, (size_t)array, extent.first + i);
                memcpy(at, (char *)&bits + (4 - elem_bytes), elem_bytes);
                at += elem_bytes;
            }
    file->data_bytes = (uint64_t)(at - data->bytes);
    for (unsigned char *chunk = begin; chunk < at; chunk += CHUNK_BYTES)
        data->sums[file->n_chunks++] =
            zr_store_checksum(chunk, at - chunk < CHUNK_BYTES ? (size_t)(at - chunk) : CHUNK_BYTES);
    extent.xxh3 = zr_store_checksum(data->sums + extent.first_chunk,
                                    8 * (file->n_chunks - extent.first_chunk));
    m->extents[m->n_extents++] = extent;
}

/* A row in extents of many lengths, whose files and groups differ, in no order. */
static void append_row(zr_manifest_t *m, data_t *data, size_t unit, bool frozen, int n_arrays) {
    static const size_t groups[] = {ROW_ELEMS, 100, 1, 3000, 1024};
    for (size_t part = 0; part < 7; part++) {
        size_t index = part * 3 % 7, begin = index * index * ROW_ELEMS / 49;
        size_t end = (index + 1) * (index + 1) * ROW_ELEMS / 49;
        append_extent(m, &data[part % N_FILES],
                      (zr_manifest_extent_t){.unit = unit,
                                             .frozen = frozen,
                                             .first = begin,
                                             .n_elems = end - begin,
                                             .group_elems = groups[(part + unit) % 5],
                                             .n_arrays = n_arrays,
                                             .dtype = frozen ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                                             .file = part % N_FILES});
    }
}

/* Tensors that fill a row, with gaps between. */
static void append_tensors(zr_manifest_t *m, size_t unit, bool frozen) {
    static const size_t sizes[] = {1, 5000, 0, 37, 9000, 4096, 1000};
    size_t at = 3;
    for (size_t i = 0; i < N_OF(sizes); i++) {
        zr_manifest_tensor_t *t = &m->tensors[m->n_tensors++];
        char *name = NULL;
        assert_true(asprintf(&name, "%zu.%d.%zu", unit, frozen, i) > 0);
        *t = (zr_manifest_tensor_t){.unit = unit, .offset_elems = at};
        t->tensor = (zr_checkpoint_tensor_t){.name = name,
                                             .n_dims = sizes[i] == 1 ? 0 : 1,
                                             .dims = {sizes[i]},
                                             .n_elems = sizes[i],
                                             .frozen = frozen};
        if (sizes[i] == 1)
            t->tensor.dims[0] = 0;
        at += sizes[i] + i * 7;
    }
    assert_true(at <= ROW_ELEMS);
}

static void make_checkpoint(const char *folder) {
    zr_manifest_t m = {.step = 7, .n_updates = 7, .n_ranks = N_FILES, .n_units = 3};
    data_t data[N_FILES];
    m.n_files = N_FILES;
    m.trainer_json = strdup("{}");
    m.units = calloc(3, sizeof(*m.units));
    m.tensors = calloc(100, sizeof(*m.tensors));
    m.files = calloc(N_FILES, sizeof(*m.files));
    m.extents = calloc(100, sizeof(*m.extents));
    assert_true(m.units && m.tensors && m.files && m.extents && m.trainer_json);
    for (size_t i = 0; i < 3; i++)
        assert_true(asprintf(&m.units[i], "unit %zu", i) > 0);
    for (size_t i = 0; i < N_FILES; i++) {
        m.files[i].chunk_bytes = CHUNK_BYTES;
        snprintf(m.files[i].data, 64, "%zu.data", i);
        snprintf(m.files[i].sums, 64, "%zu.sums", i);
        data[i] = (data_t){calloc(1, 1 << 20), calloc(1, 1 << 16)};
    }
    for (size_t unit = 0; unit < 3; unit++)
        for (int frozen = 0; frozen < (unit == 1 ? 2 : 1); frozen++) {
            append_tensors(&m, unit, frozen);
            append_row(&m, data, unit, frozen, frozen || unit == 2 ? 1 : 3);
        }
    for (size_t i = 0; i < N_FILES; i++) {
        assert_true(m.files[i].data_bytes < 1 << 20);
        write_file(folder, m.files[i].data, data[i].bytes, (size_t)m.files[i].data_bytes);
        write_file(folder, m.files[i].sums, data[i].sums, 8 * m.files[i].n_chunks);
        free(data[i].bytes);
        free(data[i].sums);
    }
    assert_ok(zr_manifest_write(&m, folder, NULL));
    zr_manifest_clear(&m);
}

static int enter(void **state) {
    if (enter_test_folder(state) != 0 || mkdir("c", 0777) != 0)
        return -1;
    make_checkpoint("c");
    return 0;
}

static zr_checkpoint_t *open_it(const char *path) {
    zr_checkpoint_t *checkpoint = NULL;
    assert_ok(zr_checkpoint_open(path, NULL, &checkpoint));
    return checkpoint;
}

/* ---- values ---- */

/* Where a tensor begins: as append_tensors has put it. */
static size_t offset_of(const zr_checkpoint_t *checkpoint, size_t tensor) {
    size_t at = 3, index = tensor % 7;
    for (size_t i = 0; i < index; i++)
        at += zr_checkpoint_tensor(checkpoint, tensor - index + i)->n_elems + i * 7;
    return at;
}

static void check_piece(zr_checkpoint_reader_t *reader, const zr_checkpoint_t *checkpoint,
                        size_t tensor, int array, size_t first, size_t n_elems) {
    static __thread float values[ROW_ELEMS + 1];
    const zr_checkpoint_tensor_t *t = zr_checkpoint_tensor(checkpoint, tensor);
    size_t unit = (size_t)(t->name[0] - '0'), offset = offset_of(checkpoint, tensor);
    values[n_elems] = 1.5f;
    assert_ok(zr_checkpoint_read(reader, tensor, (size_t)array, first, n_elems, values));
    for (size_t i = 0; i < n_elems; i++) {
        bool is_zero = array > 0 && (t->frozen || unit == 2);
        uint32_t bits,
            saved = is_zero ? 0 : saved_bits(unit, t->frozen, (size_t)array, offset + first + i);
        memcpy(&bits, &values[i], sizeof(bits));
        if (bits != saved)
            fail_msg("%s, array %d, element %zu of [%zu, %zu): %08x instead of %08x", t->name,
                     array, first + i, first, first + n_elems, bits, saved);
    }
    assert_true(values[n_elems] == 1.5f);
}

static void read_at_random(const zr_checkpoint_t *checkpoint, uint64_t seed, int n) {
    zr_checkpoint_reader_t *reader = NULL;
    assert_ok(zr_checkpoint_reader_create(checkpoint, NULL, &reader));
    zr_checkpoint_info_t info;
    zr_checkpoint_info(checkpoint, &info);
    for (int i = 0; i < n; i++) {
        size_t tensor = hash(seed++) % info.n_tensors;
        size_t n_elems = zr_checkpoint_tensor(checkpoint, tensor)->n_elems;
        size_t first = hash(seed++) % (n_elems + 1);
        size_t n = hash(seed++) % (n_elems - first + 1);
        check_piece(reader, checkpoint, tensor, (int)(hash(seed++) % 3), first, n);
    }
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_reader_destroy(&reader);
}

TEST(test_facts) {
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_checkpoint_info_t info;
    size_t index = 0;
    zr_checkpoint_info(checkpoint, &info);
    assert_string_equal(info.path, "c");
    assert_int_equal(info.step, 7);
    assert_int_equal(info.n_ranks, N_FILES);
    assert_int_equal(info.n_tensors, 28);
    assert_true(info.data_bytes > ROW_ELEMS * 30);
    assert_string_equal(zr_checkpoint_trainer_json(checkpoint), "{}");
    for (size_t i = 0; i < info.n_tensors; i++) {
        const zr_checkpoint_tensor_t *t = zr_checkpoint_tensor(checkpoint, i);
        assert_true(zr_checkpoint_find(checkpoint, t->name, &index));
        assert_int_equal(index, i);
        assert_int_equal(t->has_moments, !t->frozen && t->name[0] != '2');
        assert_int_equal(strncmp(t->unit, "unit ", 5), 0);
        assert_int_equal(t->unit[5], t->name[0]);
    }
    assert_null(zr_checkpoint_tensor(checkpoint, info.n_tensors));
    assert_false(zr_checkpoint_find(checkpoint, "", &index));
    assert_false(zr_checkpoint_find(checkpoint, "1.0", &index));
    assert_false(zr_checkpoint_find(checkpoint, "3", &index));
    zr_checkpoint_close(&checkpoint);
    zr_checkpoint_close(&checkpoint);
    zr_checkpoint_close(NULL);
}

TEST(test_pieces) {
    zr_checkpoint_t *checkpoint = open_it("c");
    read_at_random(checkpoint, 1, 3000);
    reads.most = 1000;
    reads.n_interrupted = 3;
    read_at_random(checkpoint, 5, 100);
    memset(&reads, 0, sizeof(reads));
    zr_checkpoint_close(&checkpoint);
}

static void *read_in_thread(void *checkpoint) {
    read_at_random(checkpoint, (uint64_t)(uintptr_t)&checkpoint, 500);
    return NULL;
}

/* One checkpoint, a reader each. */
TEST(test_threads) {
    zr_checkpoint_t *checkpoint = open_it("c");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_in_thread, checkpoint), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    zr_checkpoint_close(&checkpoint);
}

/* All tensors in order, in small pieces, the three arrays in turn: each byte of data comes once. */
TEST(test_reads_once) {
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_checkpoint_reader_t *reader = NULL;
    zr_checkpoint_info_t info;
    zr_checkpoint_info(checkpoint, &info);
    assert_ok(zr_checkpoint_reader_create(checkpoint, NULL, &reader));
    reads.n_bytes = 0;
    for (size_t tensor = 0; tensor < info.n_tensors; tensor++) {
        size_t n_elems = zr_checkpoint_tensor(checkpoint, tensor)->n_elems;
        for (size_t first = 0; first < n_elems; first += 100)
            for (int array = 0; array < 3; array++)
                check_piece(reader, checkpoint, tensor, array, first,
                            n_elems - first < 100 ? n_elems - first : 100);
    }
    if (reads.n_bytes > info.data_bytes)
        fail_msg("%zu bytes were read of %zu", reads.n_bytes, (size_t)info.data_bytes);
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_close(&checkpoint);
}

TEST(test_wrong_calls) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_checkpoint_reader_t *reader = NULL;
    float value;
    assert_int_equal(zr_checkpoint_reader_create(NULL, &log, &reader), ZR_ERR_ARGUMENT);
    assert_ok(zr_checkpoint_reader_create(checkpoint, &log, &reader));
    assert_int_equal(zr_checkpoint_read(reader, 28, ZR_CHECKPOINT_VALUE, 0, 1, &value),
                     ZR_ERR_ARGUMENT);
    assert_int_equal(zr_checkpoint_read(reader, 0, 3, 0, 1, &value), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_checkpoint_read(reader, 0, 2, 0, 2, &value), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_checkpoint_read(reader, 1, 1, SIZE_MAX, 2, &value), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_checkpoint_read(reader, 1, 1, 0, 1, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_checkpoint_read(reader, 1, 1, 5000, 0, NULL));
    assert_int_equal(kept.n_messages, 6);
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_close(&checkpoint);
    assert_int_equal(zr_checkpoint_open("nowhere", &log, &checkpoint), ZR_ERR_IO);
    assert_int_equal(zr_checkpoint_open(".", &log, &checkpoint), ZR_ERR_IO);
    assert_has(kept.text, "cannot open nowhere: No such file or directory|. has no complete "
                          "checkpoint and is not a checkpoint itself");
}

/* ---- what cannot be read at once ---- */

/* A drive that fails a few times has damaged nothing; one that goes on failing has. */
TEST(a_drive_may_fail_once) {
    assert_int_equal(system("mkdir f && cp -r c f/step-00000009 && cp -r c f/step-00000008"), 0);
    for (int i = 0; i < 30; i++) { /* of the manifest, of checksums, of data */
        kept_log_t kept;
        zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
        zr_checkpoint_t *checkpoint = NULL;
        zr_checkpoint_passed_t *passed = NULL;
        size_t n_passed = 9;
        reads.n_before = i / 2;
        reads.n_failing = 1 + i % 2;
        assert_ok(zr_checkpoint_open_whole("f", NULL, NULL, &log, &checkpoint, &passed, &n_passed));
        assert_int_equal(reads.n_failing, 0);
        assert_int_equal(n_passed, 0);
        assert_int_equal(kept.n_messages, 0);
        zr_checkpoint_close(&checkpoint);
        free(passed);
    }
    reads.error = EIO;
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_passed_t *passed = NULL;
    size_t n_passed = 9;
    assert_true(zr_checkpoint_open_whole("f", NULL, NULL, &log, &checkpoint, &passed, &n_passed) !=
                ZR_OK);
    reads.error = 0;
    assert_int_equal(system("test -d f/step-00000009 -a -d f/step-00000008"), 0);
}

/* ---- what has changed ---- */

static void flip(const char *path, off_t offset) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(__real_pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static uint64_t progressed;

static void note_progress(void *context, uint64_t n_bytes) {
    assert_true(context == &progressed && n_bytes >= progressed);
    progressed = n_bytes;
}

static zr_status_t verify(kept_log_t *kept) {
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_log_t log = kept_log(kept, ZR_LOG_INFO);
    progressed = 0;
    zr_status_t status = zr_checkpoint_verify(checkpoint, &log, note_progress, &progressed);
    zr_checkpoint_close(&checkpoint);
    return status;
}

/* Any tensor that the change meets is refused, and any other is read. */
static size_t count_refused(kept_log_t *kept) {
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_log_t log = kept_log(kept, ZR_LOG_INFO);
    zr_checkpoint_reader_t *reader = NULL;
    static float values[ROW_ELEMS];
    size_t n_refused = 0;
    assert_ok(zr_checkpoint_reader_create(checkpoint, &log, &reader));
    for (size_t tensor = 0; tensor < 28; tensor++)
        for (int array = 0; array < 3; array++) {
            size_t n_elems = zr_checkpoint_tensor(checkpoint, tensor)->n_elems;
            zr_status_t status =
                zr_checkpoint_read(reader, tensor, (size_t)array, 0, n_elems, values);
            assert_true(status == ZR_OK || status == ZR_ERR_FORMAT);
            n_refused += status != ZR_OK;
        }
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_close(&checkpoint);
    return n_refused;
}

TEST(test_verify) {
    kept_log_t kept;
    assert_ok(verify(&kept));
    assert_int_equal(kept.n_messages, 0);
    assert_true(progressed > ROW_ELEMS * 29);
    flip("c/1.data", 50000);
    flip("c/0.data", 5);
    assert_int_equal(verify(&kept), ZR_ERR_FORMAT);
    assert_int_equal(kept.n_messages, 2);
    assert_has(kept.text, "damaged: unit \"unit 0\", trainable elements 0 to 407: "
                          "c/0.data, offset |c/1.data, offset |: 1 of ");
    assert_true(count_refused(&kept) > 0);
    assert_has(
        kept.text,
        "c/0.data: 4096 bytes at offset |, of unit \"unit 0\", are not those that were saved");
    flip("c/1.data", 50000);
    flip("c/0.data", 5);
    assert_int_equal(count_refused(&kept), 0);
    flip("c/2.sums", 9);
    assert_int_equal(verify(&kept), ZR_ERR_FORMAT);
    assert_int_equal(kept.n_messages, 1);
    assert_has(kept.text, "c/2.sums: the checksums of extent ");
    assert_true(count_refused(&kept) > 0);
    flip("c/2.sums", 9);
    assert_ok(verify(&kept));
}

/* Each byte of a data file is one of an extent's, or between extents. */
TEST(test_every_byte) {
    struct stat about;
    kept_log_t kept;
    size_t n_found = 0, n_tried = 0;
    assert_int_equal(stat("c/0.data", &about), 0);
    for (off_t at = 0; at < about.st_size; at += 4999, n_tried++) {
        flip("c/0.data", at);
        n_found += verify(&kept) != ZR_OK;
        flip("c/0.data", at);
    }
    assert_true(n_tried > 10 && n_found + 1 >= n_tried);
}

TEST(test_errors) {
    kept_log_t kept;
    zr_checkpoint_t *checkpoint = open_it("c");
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_checkpoint_reader_t *reader = NULL;
    float values[100];
    assert_ok(zr_checkpoint_reader_create(checkpoint, &log, &reader));
    reads.error = EIO;
    assert_int_equal(zr_checkpoint_read(reader, 1, ZR_CHECKPOINT_VALUE, 0, 100, values), ZR_ERR_IO);
    assert_has(kept.text, ": Input/output error");
    assert_int_equal(kept.n_messages, 1);
    assert_int_equal(zr_checkpoint_verify(checkpoint, &log, NULL, NULL), ZR_ERR_IO);
    assert_int_equal(kept.n_messages, 1 + 28);
    reads.error = 0;
    assert_ok(zr_checkpoint_read(reader, 1, ZR_CHECKPOINT_VALUE, 0, 100, values));
    zr_checkpoint_reader_destroy(&reader);
    /* Shorter after it was opened. */
    log = kept_log(&kept, ZR_LOG_INFO);
    assert_ok(zr_checkpoint_reader_create(checkpoint, &log, &reader));
    assert_int_equal(system("cp c/0.data 0.data && truncate -s 100 c/0.data"), 0);
    assert_int_equal(zr_checkpoint_read(reader, 1, ZR_CHECKPOINT_VALUE, 0, 100, values),
                     ZR_ERR_FORMAT);
    assert_has(kept.text, "c/0.data ends at byte 100; it should have ");
    assert_int_equal(system("cp 0.data c/0.data"), 0);
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_close(&checkpoint);
}

const test_group_t test_group = {enter, leave_test_folder};
