/*
 * A run that was saved and goes on is the run that was not: bitwise, wherever its state lives. And
 * what was saved by any ranks, stage and placement is what any others load. Runs on the device
 * whose name is the argument, or on the host.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "tests/common/test.h"
#include "tests/zero/checkpoint/folder_fixture.h"
#include "tests/zero/toy.h"

#define N_STEPS 4
#define SAVED_STEP 2

static const char *device_name; /* NULL: the host, or late devices */
static char saved_again[80];    /* other checkpoints */

/* Everything that a run can differ in, from the bits of a number. */
static toy_options_t variant(int stage, int n_ranks, unsigned flags) {
    static const zr_offload_device_t places[] = {ZR_OFFLOAD_NONE, ZR_OFFLOAD_CPU, ZR_OFFLOAD_NVME};
    toy_options_t options = toy_options_default(stage, n_ranks);
    zr_config_t *config = &options.config;
    options.n_steps = N_STEPS;
    config->dtype = flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    options.frozen = (flags & 2) != 0;
    options.tied = (flags & 4) != 0;
    config->grad_accum = flags & 8 ? 2 : 1;
    config->offload_optimizer.device = places[(flags >> 4) % 3];
    config->offload_optimizer.ratio = flags & 64 ? 0.5 : 1;
    config->sub_group_elems = flags & 128 ? 1024 : 1000000;
    config->clip = flags & 256 ? 0.05 : 0;
    if (stage == 3)
        config->offload_param.device = places[(flags >> 9) % 3];
    options.device_name = device_name;
    options.late = device_name == NULL && (flags & 2048) != 0; /* the CPU cannot look into it */
    options.save_goes_on = (flags & 4096) != 0;
    options.expect_saves = (flags & 32) != 0;
    config->offload_optimizer.update_on = flags & 8192 ? ZR_UPDATE_ON_DEVICE : ZR_UPDATE_ON_HOST;
    config->offload_param.buffer_elems = 5000;
    if (n_ranks % 2 == 0 && (flags & 1024) != 0)
        config->shard_group_size = n_ranks / 2; /* two groups, of which each saves a part */
    config->nvme.store = "uring";
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", folder);
    return options;
}

/* ---- going on -------------------------------------------------------------------------------- */

static void expect_same_end(int stage, int n_ranks, unsigned flags) {
    toy_result_t undisturbed, first, second;
    toy_options_t options = variant(stage, n_ranks, flags);
    toy_set_optimizer(&options, flags % 7);
    toy_train_well(&options, &undisturbed);
    options.n_steps = SAVED_STEP;
    options.save_to = saved;
    toy_train_well(&options, &first);
    assert_string_equal(first.save.name, "step-00000002");
    options.n_steps = N_STEPS;
    options.save_to = NULL;
    options.restore_from = saved;
    toy_train_well(&options, &second);
    assert_int_equal(second.step.step, N_STEPS);
    if (second.hash != undisturbed.hash || first.hash == undisturbed.hash)
        fail_msg("stage %d, %d ranks, flags %u: other weights", stage, n_ranks, flags);
    empty(saved);
}

TEST(a_run_goes_on_bitwise) {
    static const int ranks[] = {1, 2, 3, 4};
    unsigned flags = 0;
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 3; n++) {
                flags = (flags + 367) % 16384;
                if (!ONE_OF(1, 5))
                    continue;
                expect_same_end(stage, ranks[i], flags);
            }
}

/* In the middle of a run nothing changes by saving, and what is saved is what there was then, also
 * when it is written while the run goes on. */
TEST(saving_changes_nothing) {
    for (unsigned flags = 0; flags < 16384; flags += 1103) {
        if (!ONE_OF(1, 3))
            continue;
        toy_result_t without, with, from_there;
        char path[128];
        toy_options_t options = variant((int)flags % 4, 1 + (int)flags % 3, flags);
        toy_set_optimizer(&options, flags % 7);
        toy_train_well(&options, &without);
        options.save_to = saved;
        options.save_step = SAVED_STEP;
        toy_train_well(&options, &with);
        snprintf(path, sizeof(path), "%s/step-%08d", saved, SAVED_STEP);
        options.restore_from = path;
        options.save_to = NULL;
        toy_train_well(&options, &from_there);
        if (with.hash != without.hash || from_there.hash != without.hash)
            fail_msg("flags %u: other weights", flags);
        empty(saved);
    }
}

/* It is the same there. */
static void skip_on_device(void) {
    if (device_name != NULL)
        skip();
}

/* ---- files that are carried along --------------------------------------------------------------
 */

/* What a run has saved, as if it had been made of other files, with one for other programs. */
static void import_saved(void) {
    zr_checkpoint_t *from = NULL;
    zr_checkpoint_writer_t *writer = NULL;
    zr_save_options_t options = {.folder = saved_again};
    assert_ok(zr_checkpoint_open(saved, NULL, &from));
    assert_ok(zr_checkpoint_writer_create(&options, NULL, &writer));
    for (size_t i = 0; zr_checkpoint_tensor(from, i) != NULL; i++) {
        const zr_checkpoint_tensor_t *tensor = zr_checkpoint_tensor(from, i);
        zr_param_desc_t desc = {.name = tensor->name, .n_dims = tensor->n_dims};
        memcpy(desc.dims, tensor->dims, sizeof(tensor->dims));
        assert_ok(zr_checkpoint_writer_add(writer, &desc));
    }
    assert_ok(zr_checkpoint_writer_carry(writer, "tokenizer.json", "{}", 2));
    assert_ok(zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
    zr_checkpoint_close(&from);
}

/* From the one that a run goes on from into those that it saves, also when that one has been
 * removed before; and from these on. */
TEST(files_are_carried_along) {
    skip_on_device();
    for (int goes_on = 0; goes_on <= 1; goes_on++) {
        toy_result_t result;
        toy_options_t options = variant(2, 3, goes_on ? 4096 : 0);
        zr_checkpoint_t *checkpoint = NULL;
        size_t index = 0;
        char text[3] = "";
        options.n_steps = SAVED_STEP;
        options.save_to = saved;
        toy_train_well(&options, &result);
        import_saved();
        options.restore_from = options.save_to = saved_again;
        options.keep = 1;
        options.save_step = 1;
        toy_train_well(&options, &result);
        options.n_steps = N_STEPS;
        toy_train_well(&options, &result);
        assert_ok(zr_checkpoint_open(saved_again, NULL, &checkpoint));
        assert_true(zr_checkpoint_find_carried(checkpoint, "tokenizer.json", &index));
        assert_ok(zr_checkpoint_read_carried(checkpoint, index, NULL, text));
        assert_string_equal(text, "{}");
        assert_ok(zr_checkpoint_verify(checkpoint, NULL, NULL, NULL));
        zr_checkpoint_close(&checkpoint);
        empty(saved);
        empty(saved_again);
    }
}

/* ---- other ranks ----------------------------------------------------------------------------- */

/* Every number of a checkpoint, in the order of its tensors. */
static float *read_all(const char *path, size_t *n_elems_p) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_reader_t *reader = NULL;
    zr_checkpoint_info_t info;
    size_t n = 0;
    assert_ok(zr_checkpoint_open(path, NULL, &checkpoint));
    assert_ok(zr_checkpoint_reader_create(checkpoint, NULL, &reader));
    zr_checkpoint_info(checkpoint, &info);
    for (size_t i = 0; i < info.n_tensors; i++)
        n += info.n_arrays * zr_checkpoint_tensor(checkpoint, i)->n_elems;
    float *all = calloc(n + 1, sizeof(*all)), *next = all;
    assert_non_null(all);
    for (size_t i = 0; i < info.n_tensors; i++)
        for (size_t array = 0; array < info.n_arrays; array++) {
            size_t n_elems = zr_checkpoint_tensor(checkpoint, i)->n_elems;
            assert_ok(zr_checkpoint_read(reader, i, array, 0, n_elems, next));
            next += n_elems;
        }
    zr_checkpoint_reader_destroy(&reader);
    zr_checkpoint_close(&checkpoint);
    *n_elems_p = n;
    return all;
}

/* Loaded by others and saved again without a step between, it is the same. */
static void expect_same_states(const float *expected, size_t n_elems, toy_options_t *options) {
    size_t n = 0;
    toy_result_t result;
    options->n_steps = SAVED_STEP;
    options->restore_from = saved;
    options->save_to = saved_again;
    options->save_at_once = true;
    toy_train_well(options, &result);
    float *found = read_all(saved_again, &n);
    assert_int_equal(n, n_elems);
    if (memcmp(found, expected, n * sizeof(float)) != 0)
        fail_msg("stage %d, %d ranks: other states", options->config.stage, options->n_ranks);
    free(found);
    empty(saved_again);
}

static void save_some_of(unsigned optimizer, int stage, int n_ranks, unsigned flags) {
    toy_result_t result;
    toy_options_t options = variant(stage, n_ranks, flags);
    toy_set_optimizer(&options, optimizer);
    options.n_steps = SAVED_STEP;
    options.save_to = saved;
    toy_train_well(&options, &result);
}

static void save_some(int stage, int n_ranks, unsigned flags) {
    save_some_of(0, stage, n_ranks, flags);
}

/* Where every rank has all of it, or every group, each saves about as much: none has nothing. */
static void expect_files_of_all(int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/step-%08d/rank-%05d.data", saved, SAVED_STEP, rank);
        assert_int_equal(access(path, R_OK), 0);
    }
    empty(saved);
}

TEST(all_ranks_save) {
    skip_on_device();
    save_some(0, 3, 0);
    expect_files_of_all(3);
    save_some(3, 4, 0x400);
    expect_files_of_all(4);
}

TEST(any_ranks_load_what_any_have_saved) {
    skip_on_device();
    static const int ranks[] = {1, 2, 3, 8};
    static const struct {
        int stage, n_ranks;
        unsigned flags;
    } savers[] = {
        {3, 4, 0x20}, {3, 4, 0x420}, {0, 3, 2}, {2, 2, 0x80 | 0x10 | 0x40}, {1, 1, 2 | 4}};
    for (size_t s = 0; s < 5; s++) {
        size_t n_elems = 0;
        unsigned of_model = savers[s].flags & 6; /* frozen, tied */
        save_some_of((unsigned)s, savers[s].stage, savers[s].n_ranks, savers[s].flags);
        float *expected = read_all(saved, &n_elems);
        for (int stage = 0; stage <= 3; stage++)
            for (int i = 0; i < 4; i++) {
                if (!ONE_OF(3, 7))
                    continue;
                unsigned flags = (unsigned)(stage * 4 + i) * 577 % 4096;
                toy_options_t options = variant(stage, ranks[i], (flags & ~6u & ~1u) | of_model);
                toy_set_optimizer(&options, (unsigned)s);
                expect_same_states(expected, n_elems, &options);
            }
        free(expected);
        empty(saved);
    }
}

/* fp32 masters are what a run in another dtype begins with. */
TEST(another_dtype_has_the_same_states) {
    skip_on_device();
    size_t n_elems = 0;
    save_some(3, 2, 1);
    float *expected = read_all(saved, &n_elems);
    toy_options_t options = variant(2, 3, 0);
    expect_same_states(expected, n_elems, &options);
    free(expected);
    empty(saved);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(another_model_is_refused) {
    skip_on_device();
    toy_result_t result;
    save_some(1, 2, 0);
    toy_options_t options = variant(1, 2, 0);
    options.restore_from = saved;
    options.other_model = true;
    options.quiet = true;
    toy_train(&options, &result);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(result.status[r], ZR_ERR_ARGUMENT);
        assert_has(result.last_error[r], "a different model");
    }
    empty(saved);
}

/* Momentum of one is nothing to another; the message names both. */
TEST(another_optimizer_is_refused) {
    skip_on_device();
    size_t n = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n);
    for (unsigned from = 0; from < n; from++) {
        save_some_of(from, 1, 2, 0);
        for (unsigned to = 0; to < n; to++) {
            toy_result_t result;
            toy_options_t options = variant(3, 2, 0);
            toy_set_optimizer(&options, to);
            options.restore_from = saved;
            options.quiet = true;
            toy_train(&options, &result);
            assert_int_equal(result.status[0], from == to ? ZR_OK : ZR_ERR_ARGUMENT);
            if (from == to)
                continue;
            assert_has(result.last_error[0], optimizers[from]->name);
            assert_has(result.last_error[0], optimizers[to]->name);
        }
        empty(saved);
    }
}

/* What is frozen, or no longer is, still loads. */
TEST(freezing_may_change) {
    skip_on_device();
    for (unsigned frozen = 0; frozen <= 2; frozen += 2) {
        toy_result_t result;
        save_some(2, 2, frozen);
        toy_options_t options = variant(3, 2, 2 - frozen);
        options.restore_from = saved;
        toy_train_well(&options, &result);
        empty(saved);
    }
}

/* A save that cannot be made is an error on every rank, the run goes on, and the last one stays. */
TEST(a_save_that_fails_leaves_everything) {
    skip_on_device();
    toy_result_t with, without;
    char blocked[96];
    save_some(2, 2, 0x20);
    snprintf(blocked, sizeof(blocked), "%s/blocked", folder);
    FILE *file = fopen(blocked, "w");
    assert_non_null(file);
    fclose(file);
    toy_options_t options = variant(2, 2, 0x20);
    toy_train(&options, &without);
    options.save_to = blocked;
    options.save_step = SAVED_STEP;
    options.quiet = true;
    toy_train(&options, &with);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(with.status[r], ZR_OK);
        assert_int_equal(with.saved[r], ZR_ERR_IO);
    }
    assert_true(with.hash == without.hash);
    toy_options_t again = variant(2, 2, 0x20);
    again.restore_from = saved;
    toy_train(&again, &with);
    assert_true(with.status[0] == ZR_OK && with.hash == without.hash);
    empty(blocked);
    empty(saved);
}

/* Another run saves into the folder: this one's save fails, and what the other makes stays. */
TEST(a_folder_is_of_one_run_at_a_time) {
    skip_on_device();
    char theirs[128];
    toy_result_t result;
    toy_options_t options = variant(2, 2, 0);
    assert_int_equal(mkdir(saved, 0777), 0);
    snprintf(theirs, sizeof(theirs), "%s/.step-%08d.partial", saved, SAVED_STEP);
    assert_int_equal(mkdir(theirs, 0777), 0);
    int lock = open(saved, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    options.save_to = saved;
    options.quiet = true;
    toy_train(&options, &result);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(result.status[r], ZR_OK);
        assert_int_equal(result.saved[r], ZR_ERR_IO);
    }
    assert_has(result.last_error[0], "another run is saving into this folder");
    assert_int_equal(access(theirs, F_OK), 0);
    assert_int_equal(close(lock), 0);
    toy_train_well(&options, &result);
    assert_int_not_equal(access(theirs, F_OK), 0);
    empty(saved);
}

static size_t peak_of_host(bool goes_on, size_t budget) {
    toy_result_t result;
    toy_options_t options = variant(1, 2, 0x10);
    options.config.master = ZR_MASTER_APART; /* split ones are joined in buffers, larger here */
    options.config.host_memory_bytes = budget;
    options.expect_saves = true;
    options.save_to = saved;
    options.save_step = SAVED_STEP;
    options.save_goes_on = goes_on;
    toy_train_well(&options, &result);
    empty(saved);
    return result.host_memory.reserved.peak;
}

/* A copy is within the budget; where there is no room for it, the run waits, and is saved. */
TEST(a_copy_is_made_where_there_is_room) {
    skip_on_device();
    size_t without = peak_of_host(false, ZR_CONFIG_NO_BUDGET);
    size_t with = peak_of_host(true, ZR_CONFIG_NO_BUDGET);
    assert_true(with > without);
    assert_int_equal(peak_of_host(true, with - 4096), without);
    assert_int_equal(peak_of_host(true, with), with);

    toy_result_t result;
    toy_options_t options = variant(1, 2, 0x10);
    options.config.master = ZR_MASTER_APART;
    options.config.host_memory_bytes = without - 4096;
    options.quiet = options.expect_saves = true;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_BUDGET);
    assert_has(result.last_error[0], "buffers of checkpoints");
    assert_int_equal(result.step.step, 0);
}

/* On a device, it is the device that this is about. */
static int make_folders(void **state) {
    int made = device_name != NULL ? make_folder_in_memory(state) : make_folder(state);
    snprintf(saved_again, sizeof(saved_again), "%s/b", folder);
    return made;
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : NULL;
    return run_all_tests(make_folders, remove_folder);
}
