/*
 * Checkpoints written, listed, opened, read and verified, with each of the allocations refused in
 * turn: an error is said, nothing is left in memory, and the folder has the checkpoint that it had
 * or the new one.
 */
#include <jansson.h>

#include "examples/checkpoint/commands.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/fault/fault_wrap.h"
#include "zero/checkpoint/checkpoint.h"

#define ERROR_BYTES 512
#define N_ELEMS ((size_t)3000)

static void count_errors(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    *(int *)context += level == ZR_LOG_ERROR;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    for (size_t i = 0; i < n_elems; i++)
        values[i] = (float)(first + i);
}

static zr_status_t write_it(const zr_log_t *log) {
    zr_save_options_t options = {.folder = "c", .keep = 1};
    zr_checkpoint_writer_t *writer = NULL;
    zr_param_desc_t first = {.name = "a", .n_dims = 1, .dims = {N_ELEMS}, .fill = fill};
    zr_param_desc_t second = {.name = "b"};
    ZR_TRY(zr_checkpoint_writer_create(&options, log, &writer));
    zr_status_t status = zr_checkpoint_writer_add(writer, &first);
    ZR_THEN(status, zr_checkpoint_writer_add(writer, &second));
    ZR_THEN(status, zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
    return status;
}

static zr_status_t read_it(const zr_checkpoint_t *checkpoint, const zr_log_t *log) {
    static float values[N_ELEMS];
    zr_checkpoint_reader_t *reader = NULL;
    size_t index = 0;
    assert_true(zr_checkpoint_find(checkpoint, "a", &index));
    ZR_TRY(zr_checkpoint_reader_create(checkpoint, log, &reader));
    zr_status_t status =
        zr_checkpoint_read(reader, index, ZR_CHECKPOINT_VALUE, 0, N_ELEMS - 1, values);
    zr_checkpoint_reader_destroy(&reader);
    for (size_t i = 0; status == ZR_OK && i + 1 < N_ELEMS; i++)
        assert_true(values[i] == (float)i);
    return status;
}

static zr_status_t look(const zr_log_t *log) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0, n_complete = 0;
    ZR_TRY(zr_checkpoint_list("c", log, &entries, &n_entries));
    for (size_t i = 0; i < n_entries; i++)
        n_complete += entries[i].is_complete;
    assert_int_equal(n_complete, 1); /* and what could not be removed, perhaps */
    free(entries);
    ZR_TRY(zr_checkpoint_open("c", log, &checkpoint));
    zr_status_t status = read_it(checkpoint, log);
    ZR_THEN(status, zr_checkpoint_verify(checkpoint, log, NULL, NULL));
    zr_checkpoint_close(&checkpoint);
    return status;
}

/* What it does, with allocation n refused; whether there were so many. */
static bool refuse(zr_status_t (*run)(const zr_log_t *log), long n) {
    int n_errors = 0;
    zr_log_t log = {.sink = count_errors, .context = &n_errors, .level = ZR_LOG_ERROR, .rank = -1};
    long live = fault_live();
    fault_arm(n);
    zr_status_t status = run(&log);
    bool was_hit = fault_hit();
    fault_arm(0);
    if (fault_live() != live)
        fail_msg("allocation %ld refused: %ld are left", n, fault_live() - live);
    if (status != ZR_OK && (n_errors != 1 || !was_hit))
        fail_msg("allocation %ld refused: %s, and %d errors were said", n, zr_status_name(status),
                 n_errors);
    if (status != ZR_OK && status != ZR_ERR_MEMORY)
        fail_msg("allocation %ld refused: taken for %s", n, zr_status_name(status));
    return was_hit;
}

TEST(test_each) {
    long n_written = 0, n_read = 0;
    assert_ok(write_it(NULL));
    while (refuse(write_it, ++n_written))
        assert_ok(look(NULL));
    while (refuse(look, ++n_read))
        continue;
    print_message("writing has %ld allocations, reading %ld\n", n_written - 1, n_read - 1);
    assert_true(n_written > 20 && n_read > 20);
}

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    if (level == ZR_LOG_ERROR)
        snprintf(context, ERROR_BYTES, "%s", message);
}

/* Nobody knows whether it is whole then, so nobody says that it is not. */
TEST(test_verify) {
    char error[ERROR_BYTES] = "";
    zr_log_t log = {.sink = keep_error, .context = error, .level = ZR_LOG_ERROR, .rank = -1};
    command_common_t *common = calloc(1, checkpoint_verify.options_bytes); /* the first of them */
    assert_non_null(common);
    common->words[0] = "c";
    common->n_words = 1;
    common->log = &log;
    bool was_hit = true;
    long n = 0;
    while (was_hit) {
        long live = fault_live();
        fault_arm(++n);
        int code = checkpoint_verify.run(common);
        was_hit = fault_hit();
        fault_arm(0);
        assert_int_equal(fault_live(), live);
        if (code == COMMAND_DONE)
            continue;
        assert_int_equal(code, COMMAND_FAILED);
        assert_string_not_equal(error, "");
        assert_null(strstr(error, "not whole"));
    }
    assert_true(n > 20);
    free(common);
}

static int enter(void **state) {
    /* Its own allocations are counted, and none refused: see test_allocations.c. */
    json_set_alloc_funcs(fault_malloc_always, fault_free);
    return enter_test_folder(state);
}

static int leave(void **state) {
    json_set_alloc_funcs(malloc, free);
    return leave_test_folder(state);
}

const test_group_t test_group = {enter, leave};
