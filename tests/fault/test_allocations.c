/*
 * A whole run of two ranks, with one of its first 1,000 allocations refused, once for each:
 * it has to end on every rank, with an error that was said, and with nothing left behind.
 */
#include <jansson.h>
#include <pthread.h>

#include "examples/train/report.h"
#include "examples/train/train.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/fault/fault_wrap.h"

#define MOST 1000
/* Of how many allocations one is refused: most are the same in all tests here, which begin at
 * different ones. Sanitizers make a run many times slower, so they see fewer; ZR_TESTS_ALL in the
 * environment: all. */
#if defined(__SANITIZE_ADDRESS__)
#define STRIDE 13
#elif defined(__SANITIZE_THREAD__)
#define STRIDE 37
#else
#define STRIDE 2
#endif
/* A run takes milliseconds; one that takes this long hangs. */
#define WATCHDOG_SECONDS 100

typedef struct error_count {
    pthread_mutex_t lock;
    size_t n_errors;
    char first[1024];
} error_count_t;

static void count_errors(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    error_count_t *count = context;
    if (level != ZR_LOG_ERROR)
        return;
    pthread_mutex_lock(&count->lock);
    if (count->n_errors++ == 0)
        snprintf(count->first, sizeof(count->first), "%s", message);
    pthread_mutex_unlock(&count->lock);
}

/* Parse, train, free: everything that zero-train does but printing. */
static zr_status_t run(const char *const *words, int n_words, const zr_log_t *log,
                       train_result_t *result) {
    train_options_t options;
    char *arguments[64];
    for (int i = 0; i < n_words; i++)
        arguments[i] = (char *)words[i];
    arguments[n_words] = NULL;
    zr_status_t status = train_options_parse(n_words, arguments, log, &options);
    if (status != ZR_OK)
        return status;
    status = zero_train_run(&options, log, NULL, result);
    train_options_free(&options);
    return status;
}

static void check_failure(long n, zr_status_t status, const error_count_t *count) {
    if (status != ZR_OK && count->n_errors == 0)
        fail_msg("allocation %ld refused: %s, and nobody said why", n, zr_status_name(status));
    bool about_memory = strstr(count->first, "no memory") != NULL;
    bool misread = status == ZR_ERR_ARGUMENT || status == ZR_ERR_FORMAT ||
                   (status == ZR_ERR_STATE && !about_memory);
    if (misread)
        fail_msg("allocation %ld refused: taken for %s: %s", n, zr_status_name(status),
                 count->first);
    if (status == ZR_ERR_COMM)
        fail_msg("allocation %ld refused: the run's status is of a rank that was stopped: %s", n,
                 count->first);
}

/* Before each run: what the one before has left on the drive goes. */
static void (*prepare_run)(void);
/* Such runs wait for the drive: fewer of them. */
#define CHECKPOINT_STRIDE 4

/* The largest number of allocations that a run had. */
static long refuse_each(const char *const *words, int n_words) {
    long most = 0, stride = prepare_run != NULL ? CHECKPOINT_STRIDE * STRIDE : STRIDE;
    static long n_tests;
    uint64_t hash = 0;
    stride = getenv("ZR_TESTS_ALL") != NULL ? 1 : stride;
    for (long n = 0; n <= MOST && n <= most; n += n == 0 ? 1 + n_tests++ % stride : stride) {
        error_count_t count = {.lock = PTHREAD_MUTEX_INITIALIZER};
        zr_log_t log = {
            .sink = count_errors, .context = &count, .level = ZR_LOG_WARNING, .rank = -1};
        train_result_t result = {0};
        if (prepare_run != NULL)
            prepare_run();
        long live = fault_live(), mapped = fault_mapped_bytes();
        alarm(WATCHDOG_SECONDS);
        fault_arm(n);
        zr_status_t status = run(words, n_words, &log, &result);
        bool hit = fault_hit();
        long n_calls = fault_count();
        fault_arm(0);
        alarm(0);
        if (n_calls > most)
            most = n_calls;
        if (fault_live() != live)
            fail_msg("allocation %ld refused: %ld are left (%s)", n, fault_live() - live,
                     count.first);
        if (fault_mapped_bytes() != mapped)
            fail_msg("allocation %ld refused: %ld bytes are left mapped (%s)", n,
                     fault_mapped_bytes() - mapped, count.first);
        check_failure(n, status, &count);
        if (!hit && status != ZR_OK)
            fail_msg("nothing was refused, but %s: %s", zr_status_name(status), count.first);
        if (n == 0)
            hash = result.weights.xxh3;
        /* Who goes on after a refusal (it may: a thread less) has to have the right weights. */
        if (status == ZR_OK)
            assert_true(result.weights.xxh3 == hash);
    }
    print_message("a run has up to %ld allocations\n", most);
    return most;
}

static int prepare(void **state) {
    char text[2000];
    if (enter_test_folder(state) != 0)
        return -1;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 23);
    FILE *file = fopen("text", "wb");
    bool written = file != NULL && fwrite(text, 1, sizeof(text), file) == sizeof(text);
    if (file == NULL || fclose(file) != 0 || !written)
        return -1;
    const char *config = "{\"zero_optimization\": {\"stage\": 3}, \"gradient_clipping\": 1.0,"
                         " \"gradient_accumulation_steps\": 2}";
    file = fopen("config.json", "wb");
    written = file != NULL && fputs(config, file) >= 0;
    if (file == NULL || fclose(file) != 0 || !written)
        return -1;
    /* jansson's scanner drops a character when its buffer cannot grow, and says nothing; so
     * its allocations are refused only where it prints. */
    json_set_alloc_funcs(fault_malloc_always, fault_free);
    return 0;
}

static int clean(void **state) {
    json_set_alloc_funcs(malloc, free);
    return leave_test_folder(state);
}

#define TINY(layers)                                                                               \
    "zero-train", "--model", "layers=" layers ",channels=8,heads=2,seq=8,vocab=128", "--data",     \
        "text", "--ranks", "2", "--comm-timeout", "60", "--log", ".log"

TEST(stage_3_with_config) {
    static const char *const words[] = {TINY("10"),  "--config", "config.json", "--steps", "2",
                                        "--threads", "2",        "--recompute", "unit"};
    assert_true(refuse_each(words, N_OF(words)) >= MOST);
}

TEST(stage_0) {
    static const char *const words[] = {TINY("1"), "--steps", "1", "--threads", "1"};
    assert_true(refuse_each(words, N_OF(words)) > 100);
}

TEST(offload_to_host) {
    static const char *const words[] = {
        TINY("2"), "--steps", "1", "--threads",       "1",   "--offload-optimizer",
        "cpu",     "--stage", "2", "--offload-ratio", "0.5", "--sub-group",
        "1024"};
    assert_true(refuse_each(words, N_OF(words)) > 100);
}

TEST(offload_to_nvme) {
    static const char *const words[] = {
        TINY("2"), "--steps", "1", "--threads",   "1", "--offload-optimizer",
        "nvme",    "--stage", "2", "--nvme-path", ".", "--sub-group",
        "1024"};
    train_result_t result;
    zr_log_t log = {.level = ZR_LOG_WARNING, .rank = -1};
    if (run(words, N_OF(words), &log, &result) == ZR_ERR_UNSUPPORTED)
        skip(); /* said why */
    assert_true(refuse_each(words, N_OF(words)) > 150);
}

static void shell(const char *command) {
    assert_int_equal(system(command), 0);
}

static void remove_checkpoints(void) {
    shell("rm -rf .ckpt");
}

static void put_first_checkpoint(void) {
    shell("rm -rf .ckpt; cp -r .first .ckpt");
}

/* A run that saves, while it goes on; and one that goes on from there at other ranks. */
TEST(checkpoints) {
    static const char *const saves[] = {
        TINY("1"), "--steps",           "2",     "--threads",
        "1",       "--checkpoint-dir",  ".ckpt", "--checkpoint-every",
        "1",       "--checkpoint-async"};
    static const char *const one_step[] = {TINY("1"), "--steps",    "1",        "--threads",
                                           "1",       "--schedule", "constant", "--checkpoint-dir",
                                           ".ckpt"};
    static const char *const resumes[] = {
        TINY("1"),    "--steps",           "2",       "--threads", "1",
        "--schedule", "constant",          "--stage", "3",         "--checkpoint-dir",
        ".ckpt",      "--checkpoint-keep", "1",       "--resume"};
    train_result_t result;
    zr_log_t log = {.level = ZR_LOG_WARNING, .rank = -1};
    prepare_run = remove_checkpoints;
    assert_true(refuse_each(saves, N_OF(saves)) > 250);
    remove_checkpoints();
    assert_ok(run(one_step, N_OF(one_step), &log, &result));
    shell("cp -r .ckpt .first");
    prepare_run = put_first_checkpoint;
    assert_true(refuse_each(resumes, N_OF(resumes)) > 250);
    prepare_run = NULL;
}

/* A recording that fails, or cannot be saved, is not taken for anything else. */
TEST(memory_snapshot) {
    static const char *const words[] = {TINY("1"),           "--steps",       "2", "--threads", "1",
                                        "--memory-snapshot", ".memory.pickle"};
    assert_true(refuse_each(words, N_OF(words)) > 150);
}

/* A report that cannot be made is not half made. */
TEST(report) {
    static const char *const words[] = {TINY("1"), "--steps",     "1", "--offload-optimizer",
                                        "nvme",    "--nvme-path", ".", "--nvme-tbw",
                                        "1TB"};
    train_options_t options;
    train_result_t result = {.status = ZR_ERR_BUDGET, .data_kind = "text", .n_steps = 1};
    train_step_line_t line = {.loss = 1};
    char *arguments[32];
    int n_words = N_OF(words);
    bool printed = false;
    for (int i = 0; i < n_words; i++)
        arguments[i] = (char *)words[i];
    error_count_t count = {.lock = PTHREAD_MUTEX_INITIALIZER};
    zr_log_t log = {.sink = count_errors, .context = &count, .level = ZR_LOG_WARNING, .rank = -1};
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_ok(train_options_parse(n_words, arguments, &log, &options));
    json_set_alloc_funcs(fault_malloc, fault_free);
    long live = fault_live(), n = 0;
    while (!printed) {
        fault_arm(++n);
        result.status = n % 2 ? ZR_OK : ZR_ERR_BUDGET;
        result.offload.has_store = true;
        printed = train_report_json(&options, NULL, &result, "message", file);
        assert_true(printed != fault_hit());
        assert_int_equal(fault_live(), live);
    }
    assert_true(n > 50);
    const train_log_t to = {.lines = file};
    zr_status_t status = ZR_ERR_MEMORY;
    for (n = 1; status != ZR_OK; n++) {
        fault_arm(n);
        count.n_errors = 0;
        status = train_report_log_step(&to, &options, &line, &log);
        assert_true((status != ZR_OK) == fault_hit());
        assert_int_equal(count.n_errors, fault_hit());
        assert_int_equal(fault_live(), live);
    }
    fault_arm(0);
    json_set_alloc_funcs(fault_malloc_always, fault_free);
    train_options_free(&options);
    fclose(file);
}

/* What a file says is read whole or not at all, also where the parser's own buffer cannot grow. */
TEST(a_file_is_read_whole) {
    static const char path[] = "/a/path/that/is/longer/than/the/buffer/that/the/parser/begins/with";
    char text[512];
    snprintf(text, sizeof(text),
             "{\"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\": \"%s\"},"
             " \"stage3_prefetch_bucket_size\": 1234567890123456},"
             " \"gradient_clipping\": 0.1234567890123456789012345678901234567890}",
             path);
    FILE *file = fopen("long.json", "wb");
    assert_true(file != NULL && fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    error_count_t count = {.lock = PTHREAD_MUTEX_INITIALIZER};
    zr_log_t log = {.sink = count_errors, .context = &count, .level = ZR_LOG_WARNING, .rank = -1};
    json_set_alloc_funcs(fault_malloc, fault_free);
    long live = fault_live(), n = 0;
    zr_status_t status = ZR_ERR_MEMORY;
    while (status != ZR_OK) {
        zr_config_t config = zr_config_default();
        fault_arm(++n);
        count.n_errors = 0;
        status = zr_config_read_json("long.json", &log, &config);
        assert_true((status != ZR_OK) == fault_hit());
        assert_int_equal(count.n_errors, fault_hit());
        assert_int_equal(fault_live(), live);
        if (status != ZR_OK)
            continue;
        assert_string_equal(config.nvme.paths, path);
        assert_int_equal(config.prefetch_elems, 1234567890123456);
        assert_true(config.clip == 0.1234567890123456789012345678901234567890);
    }
    assert_true(n > 10);
    fault_arm(0);
    json_set_alloc_funcs(fault_malloc_always, fault_free);
}

const test_group_t test_group = {prepare, clean};
