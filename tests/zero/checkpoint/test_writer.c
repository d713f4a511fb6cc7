/*
 * Checkpoints that no run has saved: what is written tensor by tensor is read back, whatever the
 * sizes, and nothing of it appears before it is published, or when a drive is full.
 */
#include "tests/common/test.h"
#include "tests/zero/checkpoint/sample.h"

static int n_writes, fail_at;

WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t n_bytes, off_t offset) {
    if (++n_writes == fail_at) {
        errno = ENOSPC;
        return -1;
    }
    /* Some are short, and some are interrupted. */
    if (n_writes % 3 == 1 && n_writes % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return __real_pwrite(fd, bytes, n_writes % 3 == 0 && n_bytes > 10 ? n_bytes / 2 : n_bytes,
                         offset);
}

/* Values in order, from the first, each once. */
typedef struct source {
    size_t next;
    float scale;
} source_t;

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    source_t *source = context;
    assert_int_equal(first, source->next);
    for (size_t i = 0; i < n_elems; i++)
        values[i] = source->scale * (float)(first + i);
    source->next += n_elems;
}

static const size_t sizes[][4] = {{3, 5}, {0, 7}, {1 << 20, 1}, {300001, 7}, {65536, 1}, {1, 1}};
#define N_TENSORS (N_OF(sizes))

/* They have files of their own, in the middle of the others. */
static bool is_frozen(size_t index) {
    return index == 3 || index == 5;
}

static zr_status_t add(zr_checkpoint_writer_t *writer, size_t index, size_t *n_p) {
    char name[32];
    source_t source = {.scale = (float)(index + 1)};
    snprintf(name, sizeof(name), "tensor %zu", index);
    zr_param_desc_t desc = {.name = name,
                            .n_dims = 2,
                            .dims = {sizes[index][0], sizes[index][1]},
                            .frozen = is_frozen(index),
                            .fill = index == 4 ? NULL : fill,
                            .fill_context = &source};
    zr_status_t status = zr_checkpoint_writer_add(writer, &desc);
    if (status == ZR_OK && index != 4)
        assert_int_equal(source.next, sizes[index][0] * sizes[index][1]);
    *n_p = sizes[index][0] * sizes[index][1];
    return status;
}

static bool is_frozen_name(const void *context, const char *name) {
    (void)context;
    return is_frozen((size_t)(name[strlen("tensor ")] - '0'));
}

static char carried[100000];

static zr_status_t write_all(const zr_log_t *log) {
    zr_save_options_t options = {.folder = "f", .trainer_json = "{\"a\": 1}", .keep = 1};
    zr_checkpoint_writer_t *writer = NULL;
    size_t n = 0;
    ZR_TRY(zr_checkpoint_writer_create(&options, log, &writer));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < N_TENSORS && status == ZR_OK; i++)
        status = add(writer, i, &n);
    ZR_THEN(status, zr_checkpoint_writer_carry(writer, "tokenizer.json", carried, sizeof(carried)));
    ZR_THEN(status, zr_checkpoint_writer_carry(writer, "empty", carried, 0));
    ZR_THEN(status, zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
    return status;
}

static void check_carried(const zr_checkpoint_t *checkpoint) {
    zr_carried_file_t file;
    size_t index = 0;
    static char bytes[sizeof(carried)];
    assert_true(zr_checkpoint_carried(checkpoint, 0, &file));
    assert_string_equal(file.name, "tokenizer.json");
    assert_int_equal(file.n_bytes, sizeof(carried));
    assert_ok(zr_checkpoint_read_carried(checkpoint, 0, NULL, bytes));
    assert_memory_equal(bytes, carried, sizeof(carried));
    assert_true(zr_checkpoint_find_carried(checkpoint, "empty", &index));
    assert_int_equal(index, 1);
    assert_ok(zr_checkpoint_read_carried(checkpoint, 1, NULL, bytes));
    assert_false(zr_checkpoint_find_carried(checkpoint, "tokenizer", &index));
    assert_false(zr_checkpoint_carried(checkpoint, 2, &file));
}

static void check_all(void) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_reader_t *reader = NULL;
    zr_checkpoint_info_t info;
    assert_ok(zr_checkpoint_open("f", NULL, &checkpoint));
    zr_checkpoint_info(checkpoint, &info);
    assert_string_equal(info.path, "f/step-00000000");
    assert_int_equal(info.n_tensors, N_TENSORS);
    assert_string_equal(zr_checkpoint_trainer_json(checkpoint), "{\"a\":1}");
    assert_ok(zr_checkpoint_verify(checkpoint, NULL, NULL, NULL));
    assert_ok(zr_checkpoint_reader_create(checkpoint, NULL, &reader));
    for (size_t i = 0; i < N_TENSORS; i++) {
        const zr_checkpoint_tensor_t *t = zr_checkpoint_tensor(checkpoint, i);
        size_t n = sizes[i][0] * sizes[i][1];
        float *values = malloc((n + 1) * sizeof(*values));
        assert_non_null(values);
        assert_true(t->n_elems == n && t->n_dims == 2 && !t->has_moments);
        assert_int_equal(t->frozen, is_frozen(i));
        assert_ok(zr_checkpoint_read(reader, i, ZR_CHECKPOINT_VALUE, 0, n, values));
        for (size_t k = 0; k < n; k++)
            assert_true(values[k] == (i == 4 ? 0.0f : (float)(i + 1) * (float)k));
        assert_ok(zr_checkpoint_read(reader, i, 2, 0, n, values));
        assert_true(n == 0 || values[n / 2] == 0.0f);
        free(values);
    }
    zr_checkpoint_reader_destroy(&reader);
    check_carried(checkpoint);
    assert_true(
        zr_checkpoint_can_be_linked(checkpoint, (zr_frozen_names_t){.has = is_frozen_name}));
    assert_int_equal(access("f/step-00000000/base-00000.data", F_OK), 0);
    zr_checkpoint_close(&checkpoint);
}

TEST(test_round_trip) {
    for (size_t i = 0; i < sizeof(carried); i++)
        carried[i] = (char)(i * i >> 3);
    assert_ok(write_all(NULL));
    check_all();
    assert_ok(write_all(NULL)); /* over itself */
    check_all();
    assert_int_equal(
        system("test \"$(ls -A f | grep -v '^.spare$' | tr '\\n' ' ')\" = 'latest step-00000000 '"),
        0);
}

/* A byte of one that is another is found by verifying, reading, and going on from it; one that is
 * shorter, by opening. */
TEST(test_damaged_carried_file) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_checkpoint_t *checkpoint = NULL;
    static char bytes[sizeof(carried)];
    assert_ok(write_all(NULL));
    assert_int_equal(system("printf x | dd of=f/step-00000000/tokenizer.json bs=1 seek=70000 "
                            "conv=notrunc 2>/dev/null"),
                     0);
    assert_ok(zr_checkpoint_open("f", &log, &checkpoint));
    assert_int_equal(zr_checkpoint_verify(checkpoint, &log, NULL, NULL), ZR_ERR_FORMAT);
    assert_has(kept.text, "damaged: f/step-00000000/tokenizer.json: not what was saved");
    assert_int_equal(zr_checkpoint_read_carried(checkpoint, 0, &log, bytes), ZR_ERR_FORMAT);
    assert_int_equal(zr_checkpoint_read_carried(checkpoint, 2, &log, bytes), ZR_ERR_ARGUMENT);
    zr_checkpoint_close(&checkpoint);
    assert_int_equal(truncate("f/step-00000000/tokenizer.json", 5), 0);
    assert_int_equal(zr_checkpoint_open("f", &log, &checkpoint), ZR_ERR_IO);
    assert_has(kept.text, "tokenizer.json has 5 bytes; 100000 were saved");
    assert_ok(write_all(NULL));
    check_all();
}

TEST(test_full_drive) {
    for (int at = 1;; at++) {
        kept_log_t kept;
        zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
        n_writes = 0;
        fail_at = at;
        zr_status_t status = write_all(&log);
        if (n_writes < at) {
            assert_int_equal(status, ZR_OK);
            assert_true(at > 10);
            break;
        }
        assert_int_equal(status, ZR_ERR_IO);
        assert_int_equal(kept.n_messages, 1);
        assert_has(kept.text, "No space left on device");
        assert_int_equal(system("! test -e f/.step-00000000.partial"), 0);
        fail_at = 0;
        check_all(); /* the one before */
    }
    fail_at = 0;
}

/* Trainer's objects at the limit of depth are read back; deeper ones are refused at once. */
static void check_depth(zr_save_options_t *options) {
    enum { MAX = 63 }; /* one is around them */
    char text[8 * MAX + 16] = "";
    for (int i = 0; i < MAX - 1; i++)
        strcat(text, "{\"a\":");
    strcat(text, "[]");
    for (int i = 0; i < MAX - 1; i++)
        strcat(text, "}");
    zr_checkpoint_writer_t *writer = NULL;
    zr_checkpoint_t *checkpoint = NULL;
    options->trainer_json = text;
    assert_ok(zr_checkpoint_writer_create(options, NULL, &writer));
    assert_ok(zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
    assert_ok(zr_checkpoint_open(options->folder, NULL, &checkpoint));
    assert_string_equal(zr_checkpoint_trainer_json(checkpoint), text);
    zr_checkpoint_close(&checkpoint);
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    memcpy(strchr(text, '[') - 1, ":[[]]", 6);
    for (int i = 0; i < MAX - 1; i++)
        strcat(text, "}");
    assert_int_equal(zr_checkpoint_writer_create(options, &log, &writer), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "trainer_json: objects and lists lie 65 deep");
}

/* A manifest that no reader takes does not replace an older checkpoint. */
static void check_read_back(zr_save_options_t *options) {
    enum { N_LISTS = 1000 };
    char text[3 * N_LISTS + 16] = "{\"a\":[[]";
    for (int i = 1; i < N_LISTS; i++)
        strcat(text, ",[]");
    strcat(text, "]}");
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_checkpoint_writer_t *writer = NULL;
    zr_checkpoint_t *checkpoint = NULL;
    options->trainer_json = text;
    assert_ok(zr_checkpoint_writer_create(options, &log, &writer));
    assert_int_equal(zr_checkpoint_writer_publish(writer), ZR_ERR_FORMAT);
    assert_has(kept.text, "objects and lists in ");
    zr_checkpoint_writer_destroy(&writer);
    assert_ok(zr_checkpoint_open(options->folder, NULL, &checkpoint));
    assert_has(zr_checkpoint_trainer_json(checkpoint), "{\"a\":{\"a\":");
    zr_checkpoint_close(&checkpoint);
}

TEST(test_refusals) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_save_options_t options = {.folder = "g", .trainer_json = "[]"};
    zr_checkpoint_writer_t *writer = NULL;
    assert_int_equal(zr_checkpoint_writer_create(NULL, &log, &writer), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_checkpoint_writer_create(&options, &log, &writer), ZR_ERR_ARGUMENT);
    options.trainer_json = "{";
    assert_int_equal(zr_checkpoint_writer_create(&options, &log, &writer), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 3);
    check_depth(&options);
    check_read_back(&options);
    options.trainer_json = NULL;
    assert_ok(zr_checkpoint_writer_create(&options, &log, &writer));
    zr_param_desc_t desc = {.name = "a", .n_dims = 1, .dims = {3}};
    assert_ok(zr_checkpoint_writer_add(writer, &desc));
    log = kept_log(&kept, ZR_LOG_INFO);
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "\"a\": this name exists already");
    desc = (zr_param_desc_t){.name = "b", .n_dims = 2, .dims = {SIZE_MAX, 3}};
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    desc = (zr_param_desc_t){.name = "b", .n_dims = 4, .dims = {1u << 20, 1u << 20, 1u << 20, 16}};
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "\"b\": it has more elements than a checkpoint may have");
    desc = (zr_param_desc_t){.name = "b", .n_dims = 5};
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    desc = (zr_param_desc_t){.name = ""};
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    desc = (zr_param_desc_t){.name = "\xff"};
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 6);
    static const char *const names[] = {"a/b", "", ".a", "rank-00000.data", "manifest.json", NULL};
    for (size_t i = 0; i < N_OF(names); i++)
        assert_int_equal(zr_checkpoint_writer_carry(writer, names[i], "", 0), ZR_ERR_ARGUMENT);
    assert_ok(zr_checkpoint_writer_carry(writer, "a", "b", 1));
    assert_int_equal(zr_checkpoint_writer_carry(writer, "a", "b", 1), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "file \"a\": this name exists already");
    desc = (zr_param_desc_t){.name = "scalar"};
    assert_ok(zr_checkpoint_writer_add(writer, &desc));
    assert_ok(zr_checkpoint_writer_publish(writer));
    assert_int_equal(zr_checkpoint_writer_publish(writer), ZR_ERR_STATE);
    assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_ERR_STATE);
    zr_checkpoint_writer_destroy(&writer);
    zr_checkpoint_writer_destroy(&writer);
    /* Given up: nothing is left. */
    options.folder = "h";
    assert_ok(zr_checkpoint_writer_create(&options, &log, &writer));
    zr_checkpoint_writer_destroy(&writer);
    assert_int_equal(system("test -z \"$(ls -A h)\""), 0);
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
