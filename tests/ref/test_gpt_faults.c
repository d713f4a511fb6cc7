/*
 * The GPT on a drive that fails: everything is on NVMe, over the real store, and one request of one
 * rank goes wrong. The run ends with the precise error, on every rank, or in the weights of the
 * undisturbed run; and either way it leaves nothing behind (gpt_on_drive.h).
 *
 *   test_gpt_faults [RUNS [SEED [KIND]]]    so many runs for each kind of fault, or for one; with a
 *                                           seed other than 1, of variants drawn at random
 */
#include <sys/stat.h>

#include "tests/common/test.h"
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"
#include "tests/ref/gpt_on_drive.h"

#define N_FOLDERS 2
#define MOST_RANKS 2
#define NEVER (SIZE_MAX / 2)

static size_t n_runs = TEST_IS_SLOW ? 3 : 5;
static uint64_t random_state = 1;
static const char *only_kind; /* NULL: all */

static char folders[N_FOLDERS][64], moved[N_FOLDERS][80], paths[256];

static gpt_variant_t variants[] = {
    {1, 2, ZR_DTYPE_F32, .n_buffers = 3},
    {1, 3, ZR_DTYPE_BF16, .n_buffers = 3},
    {2, 2, ZR_DTYPE_BF16, .n_buffers = 3},
    {2, 3, ZR_DTYPE_F32, .n_buffers = 3},
    {2, 2, ZR_DTYPE_F32, .mixed = true, .n_buffers = 3},
    {2, 3, ZR_DTYPE_BF16, .mixed = true, .n_buffers = 3},
    {1, 3, ZR_DTYPE_F32, .in_backward = true, .n_buffers = 3},
    {2, 2, ZR_DTYPE_BF16, .in_backward = true, .n_buffers = 3},
    {2, 3, ZR_DTYPE_BF16, .mixed = true, .in_backward = true, .n_buffers = 3},
    {1, 2, ZR_DTYPE_BF16, .in_backward = true, .is_final = true},
    {1, 3, ZR_DTYPE_BF16, .in_backward = true, .is_final = true, .is_block = true},
    {2, 3, ZR_DTYPE_F32, .in_backward = true, .is_final = true, .n_buffers = 2},
};
#define N_VARIANTS (N_OF(variants))
static uint64_t references[N_VARIANTS];

/* ---- what may happen ------------------------------------------------------------------------ */

typedef enum end {
    GOES_ON,   /* the run shall train the right weights */
    ENDS,      /* it shall say this error, once */
    ENDS_OR_ON /* what the drive has lost may be of no use any more */
} end_t;

typedef struct kind {
    const char *name;
    fault_kind_t kind;
    long result;
    void (*event)(int file);
    end_t end;
    zr_status_t status;
    const char *said; /* the cause, in the message */
    bool for_ever;    /* all later requests as well */
} kind_t;

/* The file becomes shorter, under requests that are with the system. */
static void truncate_file(int file) {
    off_t size = lseek(file, 0, SEEK_END);
    assert_true(size > 0);
    assert_int_equal(ftruncate(file, (off_t)(random_bits(&random_state) % (uint64_t)size)), 0);
}

/* How many files all ranks have made. */
static int n_files;

static int count_files(void) {
    char path[64], target[256];
    int n = 0;
    for (int file = 0; file < 256; file++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = '\0';
        for (size_t i = 0; i < N_FOLDERS; i++)
            n += strstr(target, folders[i]) != NULL;
    }
    return n;
}

static void await_files(void) {
    while (count_files() < n_files)
        usleep(100);
}

/* Once all ranks have made their files there. */
static void move_folders(int file) {
    await_files();
    for (size_t i = 0; i < N_FOLDERS; i++)
        assert_int_equal(rename(folders[i], moved[i]), 0);
}

static void remove_folders(int file) {
    await_files();
    for (size_t i = 0; i < N_FOLDERS; i++)
        assert_int_equal(rmdir(folders[i]), 0);
}

#define CHANGED "are not those that were put"

static const kind_t kinds[] = {
    {.name = "EIO",
     .kind = FAULT_RESULT,
     .result = -EIO,
     .end = ENDS,
     .status = ZR_ERR_IO,
     .said = "Input/output error (errno 5)"},
    {.name = "ENOSPC",
     .kind = FAULT_RESULT,
     .result = -ENOSPC,
     .end = ENDS,
     .status = ZR_ERR_IO,
     .said = "No space left on device (errno 28)"},
    {.name = "a drive that dies",
     .kind = FAULT_RESULT,
     .result = -EIO,
     .end = ENDS,
     .status = ZR_ERR_IO,
     .said = "Input/output error (errno 5)",
     .for_ever = true},
    {.name = "a short transfer", .kind = FAULT_SHORT, .result = 4096},
    {.name = "a ragged transfer", .kind = FAULT_SHORT, .result = 1000},
    {.name = "EAGAIN", .kind = FAULT_RESULT, .result = -EAGAIN},
    {.name = "EINTR", .kind = FAULT_RESULT, .result = -EINTR},
    {.name = "a late completion", .kind = FAULT_LATE},
    {.name = "a flipped bit",
     .kind = FAULT_FLIP,
     .end = ENDS,
     .status = ZR_ERR_FORMAT,
     .said = CHANGED},
    {.name = "a flipped bit anywhere", /* also in padding */
     .kind = FAULT_FLIP,
     .result = 3001,
     .end = ENDS_OR_ON,
     .status = ZR_ERR_FORMAT,
     .said = CHANGED},
    {.name = "a lost write",
     .kind = FAULT_LOST,
     .end = ENDS_OR_ON,
     .status = ZR_ERR_FORMAT,
     .said = CHANGED},
    {.name = "a misplaced write",
     .kind = FAULT_MISPLACED,
     .end = ENDS_OR_ON,
     .status = ZR_ERR_FORMAT,
     .said = CHANGED},
    {.name = "a truncated file",
     .kind = FAULT_EVENT,
     .event = truncate_file,
     .end = ENDS_OR_ON,
     .status = ZR_ERR_IO,
     .said = "another process truncated it"},
    {.name = "a folder that moves", .kind = FAULT_EVENT, .event = move_folders},
    {.name = "a folder that vanishes", .kind = FAULT_EVENT, .event = remove_folders},
    {.name = "submissions fail",
     .kind = FAULT_SUBMIT,
     .result = -EBADF,
     .end = ENDS,
     .status = ZR_ERR_IO,
     .said = "handing requests over (io_uring_enter) failed: Bad file descriptor (errno 9)"},
    {.name = "waiting fails",
     .kind = FAULT_NEXT,
     .result = -EBADF,
     .end = ENDS,
     .status = ZR_ERR_IO,
     .said = "waiting for requests (io_uring_enter) failed: Bad file descriptor (errno 9)"},
};
#define N_KINDS (N_OF(kinds))

/* ---- runs ----------------------------------------------------------------------------------- */

/* A run with a fault at the at-th request or call of its kind. */
static void run_with(const kind_t *kind, size_t variant, int bad_rank, size_t at, gpt_run_t *run) {
    *run = (gpt_run_t){.variant = variants[variant], .paths = paths, .bad_rank = bad_rank};
    for (size_t i = 0; i < N_FOLDERS; i++)
        assert_true(mkdir(folders[i], 0700) == 0 || errno == EEXIST);
    n_files = run->variant.n_ranks * N_FOLDERS;
    fault_event = kind->event;
    fault_arm(kind->kind, kind->result, at, kind->for_ever ? NEVER : 1);
    gpt_run(run);
    for (size_t i = 0; i < N_FOLDERS; i++) {
        const char *folder = access(moved[i], F_OK) == 0 ? moved[i] : folders[i];
        if (access(folder, F_OK) == 0)
            assert_int_equal(count_names(folder), 0);
        rmdir(moved[i]);
    }
}

/* How it shall be named where the message is of a transfer: operation, file, offset and length. */
static void expect_place(const gpt_run_t *run, const char *said) {
    char file[64];
    snprintf(file, sizeof(file), "rank %d's file in test-gpt-faults-", run->bad_rank);
    const char *const parts[] = {"et of \"", file, ", offset ", ", length "};
    if (strstr(said, "io_uring_enter") != NULL)
        return; /* all requests are lost */
    for (size_t i = 0; i < 4; i++)
        if (strstr(said, parts[i]) == NULL && strstr(said, i == 0 ? "put of \"" : parts[i]) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", said, parts[i]);
}

/* The bad rank has said what it met; the others have ended because of that, and say so. */
static void expect_error(const kind_t *kind, const gpt_run_t *run) {
    const test_ranks_t *ranks = &run->ranks;
    const char *said = ranks->last_error[run->bad_rank];
    bool is_changed = strstr(said, CHANGED) != NULL;
    if (strstr(said, kind->said) == NULL && !(kind->end == ENDS_OR_ON && is_changed))
        fail_msg("\"%s\" does not say \"%s\"", said, kind->said);
    expect_place(run, said);
    /* A store that takes nothing more says so, with what has made it useless. */
    if (kind->end == ENDS && !kind->for_ever && strstr(said, "the store is unusable") == NULL)
        assert_int_equal(ranks->n_errors[run->bad_rank], 1);
    zr_status_t status = ranks->status[run->bad_rank];
    bool is_other = kind->end == ENDS_OR_ON && status == ZR_ERR_FORMAT; /* of several that fail */
    if (status != ZR_OK && !is_other)
        assert_int_equal(status, kind->status);
    for (int r = 0; r < ranks->n_ranks; r++) {
        char text[96];
        if (r == run->bad_rank || ranks->status[r] == ZR_OK)
            continue;
        snprintf(text, sizeof(text), "rank %d gave up: %.60s", run->bad_rank, said);
        assert_int_equal(ranks->status[r], ZR_ERR_COMM);
        assert_int_equal(ranks->n_errors[r], 1);
        assert_has(ranks->last_error[r], text);
    }
}

/* Whoever has ended well has the right weights. True: all have. */
static bool expect_weights(const gpt_run_t *run, uint64_t reference) {
    bool all = true;
    for (int r = 0; r < run->ranks.n_ranks; r++) {
        if (run->ranks.status[r] == ZR_OK && run->hash[r] != reference)
            fail_msg("rank %d has trained wrong weights", r);
        all &= run->ranks.status[r] == ZR_OK;
    }
    return all;
}

static bool check(const kind_t *kind, const gpt_run_t *run, uint64_t reference) {
    bool has_hit = fault.n_hits > 0, all_right = expect_weights(run, reference);
    size_t n_errors = run->ranks.n_errors[run->bad_rank];
    if (!has_hit || kind->end == GOES_ON) {
        if (!all_right || n_errors > 0)
            fail_msg("it did not go on: %s", run->ranks.last_error[run->bad_rank]);
    } else if (kind->end == ENDS || n_errors > 0 || !all_right) {
        expect_error(kind, run);
    }
    return !all_right;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static int setup(void **state) {
    for (size_t i = 0; i < N_FOLDERS; i++) {
        snprintf(folders[i], sizeof(folders[i]), "test-gpt-faults-XXXXXX");
        assert_non_null(mkdtemp(folders[i]));
        snprintf(moved[i], sizeof(moved[i]), "%.60s-moved", folders[i]);
    }
    snprintf(paths, sizeof(paths), "%s,%s", folders[0], folders[1]);
    return 0;
}

static int teardown(void **state) {
    fault_arm(FAULT_NONE, 0, 0, 0);
    for (size_t i = 0; i < N_FOLDERS; i++)
        assert_true(rmdir(folders[i]) == 0 || errno == ENOENT);
    return 0;
}

static bool draw(void) {
    return random_bits(&random_state) % 2 == 0;
}

static void draw_variants(void) {
    for (size_t i = 0; i < N_VARIANTS; i++) {
        gpt_variant_t *variant = &variants[i];
        *variant = (gpt_variant_t){.n_ranks = draw() ? 1 : 2,
                                   .stage = draw() ? 2 : 3,
                                   .dtype = draw() ? ZR_DTYPE_F32 : ZR_DTYPE_BF16,
                                   .mixed = draw(),
                                   .in_backward = draw() || draw(),
                                   .is_final = draw(),
                                   .is_block = draw(),
                                   .n_buffers = draw() ? 0 : 1 + random_bits(&random_state) % 6,
                                   .master = draw() ? ZR_MASTER_AUTO : ZR_MASTER_APART};
    }
}

/* With everything on the drives, and nothing. */
TEST(undisturbed) {
    for (size_t i = 0; i < N_VARIANTS; i++) {
        gpt_run_t run = {.variant = variants[i]};
        gpt_run(&run);
        if (run.ranks.status[0] != ZR_OK)
            fail_msg("variant %zu: %s", i, run.ranks.last_error[0]);
        references[i] = run.hash[0];
        run.paths = paths;
        fault_arm(FAULT_NONE, 0, 0, 0);
        gpt_run(&run);
        if (!expect_weights(&run, references[i]))
            fail_msg("variant %zu: %s", i, run.ranks.last_error[0]);
        assert_true(fault.n_calls > 50);
    }
}

/* How many requests or calls a fault of this kind has to choose from, in one run: how often
 * requests are handed over and waited for, and who asks for them first, is another time something
 * else. */
static size_t count_calls(const kind_t *kind, size_t variant, int bad_rank) {
    gpt_run_t run;
    run_with(kind, variant, bad_rank, NEVER, &run);
    assert_false(check(kind, &run, references[variant]));
    return fault.n_calls;
}

/* Whether a run in which the fault is met, at the at-th of its calls or where there were not so
 * many at an earlier one, has ended by it. */
static bool fail_at(const kind_t *kind, size_t variant, int bad_rank, size_t at) {
    for (; at > 0; at /= 2) {
        gpt_run_t run;
        run_with(kind, variant, bad_rank, at, &run);
        bool has_ended = check(kind, &run, references[variant]);
        if (fault.n_hits > 0)
            return has_ended;
    }
    fail_msg("%s: not met, as it has not even one call", kind->name);
    return false;
}

static void fail_at_random(const kind_t *kind) {
    size_t n_calls[N_VARIANTS][MOST_RANKS] = {0}, n_ended = 0;
    for (size_t i = 0; i < n_runs; i++) {
        size_t variant = random_bits(&random_state) % N_VARIANTS;
        int bad_rank = (int)(random_bits(&random_state) % (uint64_t)variants[variant].n_ranks);
        size_t *n = &n_calls[variant][bad_rank];
        if (*n == 0)
            *n = count_calls(kind, variant, bad_rank);
        n_ended += fail_at(kind, variant, bad_rank, 1 + random_bits(&random_state) % *n);
    }
    print_message("%s: %zu runs, ended by it %zu\n", kind->name, n_runs, n_ended);
}

TEST(each_fault) {
    for (size_t i = 0; i < N_KINDS; i++)
        if (only_kind == NULL || strcmp(only_kind, kinds[i].name) == 0)
            fail_at_random(&kinds[i]);
}

int main(int n_arguments, char **arguments) {
    n_runs = n_arguments > 1 ? strtoul(arguments[1], NULL, 10) : n_runs;
    random_state = n_arguments > 2 ? strtoull(arguments[2], NULL, 10) : random_state;
    only_kind = n_arguments > 3 ? arguments[3] : NULL;
    if (random_state != 1)
        draw_variants();
    if (fixture_probe() != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
