/*
 * Options and values: what is accepted, and that a message names key, value and the nearest
 * valid one.
 */
#include "examples/common/args.h"

#include <sys/stat.h>

#include "examples/common/files.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

static kept_log_t captured;

TEST(sizes_with_units) {
    static const struct {
        const char *text;
        size_t bytes;
    } cases[] = {
        {"0", 0},
        {"1024", 1024},
        {"7B", 7},
        {"512MiB", (size_t)512 << 20},
        {"512 MiB", (size_t)512 << 20},
        {"16GB", 16000000000u},
        {"3kib", 3072},
        {"2kB", 2000},
        {"4TiB", (size_t)4 << 40},
        {"16777215TiB", (size_t)16777215 << 40},
        {"18446744073709551614", SIZE_MAX - 1},
    };
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    for (size_t i = 0; i < N_OF(cases); i++) {
        size_t bytes = 1;
        assert_ok(args_size("--device-memory", cases[i].text, &log, &bytes));
        assert_int_equal(bytes, cases[i].bytes);
    }
}

TEST(wrong_sizes) {
    static const struct {
        const char *text;
        const char *said;
    } cases[] = {
        {"", "not a size"},
        {"-1", "not a size"},
        {" 1", "not a size"},
        {"MiB", "not a size"},
        {"1.5GiB", "not a whole number; use a smaller unit"},
        {"512MB!", "nearest is MB"},
        {"512parsecs",
         "unknown unit \"parsecs\"; allowed: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB\n"},
        {"512Mi", "nearest is MiB"},
        {"16777216TiB", "overflows"},
        {"18446744073709551615", "overflows"}, /* would mean: no budget */
        {"99999999999999999999999", "overflows"},
        {"18446744073709551616B", "overflows"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        size_t bytes = 77;
        zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
        assert_int_equal(args_size("--device-memory", cases[i].text, &log, &bytes),
                         ZR_ERR_ARGUMENT);
        assert_int_equal(bytes, 77);
        assert_has(captured.text, "--device-memory");
        assert_has(captured.text, cases[i].text);
        assert_has(captured.text, cases[i].said);
    }
}

static zr_status_t set_number(const char *label, const char *text, const zr_log_t *log,
                              double *number_p) {
    const zr_option_t option = {.type = ZR_OPTION_NUMBER, .most = 1};
    return zr_option_set(&option, label, text, log, number_p);
}

static zr_status_t set_u64(const char *label, const char *text, const zr_log_t *log,
                           uint64_t *value_p) {
    const zr_option_t option = {.type = ZR_OPTION_U64};
    return zr_option_set(&option, label, text, log, value_p);
}

TEST(counts_and_numbers) {
    size_t count = 0;
    double number = 0;
    uint64_t value = 0;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    assert_ok(args_count("--ranks", "8", 1, 1024, &log, &count));
    assert_int_equal(count, 8);
    assert_ok(set_number("--lr", "3e-4", &log, &number));
    assert_true(number == 3e-4);
    assert_ok(set_u64("--seed", "0xffffffffffffffff", &log, &value));
    assert_true(value == UINT64_MAX);
    assert_ok(set_u64("--seed", "12", &log, &value));
    assert_true(value == 12);
    assert_string_equal(captured.text, "");

    assert_int_equal(args_count("--ranks", "0", 1, 1024, &log, &count), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--ranks 0: allowed: 1 to 1024; the nearest is 1\n");
    assert_int_equal(args_count("--ranks", "-3", 1, 1024, &log, &count), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--ranks -3: allowed: 1 to 1024; the nearest is 1\n");
    assert_int_equal(args_count("--ranks", "1025", 1, 1024, &log, &count), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--ranks 1025: allowed: 1 to 1024; the nearest is 1024\n");
    assert_int_equal(args_count("--ranks", "99999999999999999999", 1, 1024, &log, &count),
                     ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--ranks 99999999999999999999: allowed");
    assert_int_equal(args_count("--ranks", "2x", 1, 1024, &log, &count), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--ranks 2x: not a whole number");
    assert_int_equal(set_number("--lr", "nan", &log, &number), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--lr nan: not a number");
    assert_int_equal(set_number("--lr", "2", &log, &number), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--lr 2: allowed: 0 to 1; the nearest is 1\n");
    assert_int_equal(set_u64("--seed", "-1", &log, &value), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--seed -1: not a whole number");
    assert_int_equal(set_u64("--seed", "99999999999999999999", &log, &value), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--seed 99999999999999999999: too large");
}

TEST(choices) {
    static const char *const stages[] = {"0", "1", "2", "3", "auto"};
    static const char *const dtypes[] = {"fp32", "bf16"};
    size_t choice = 9;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    assert_ok(args_choice("--stage", "2", stages, 5, &log, &choice));
    assert_int_equal(choice, 2);
    assert_int_equal(args_choice("--stage", "4", stages, 5, &log, &choice), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--stage 4: allowed: 0, 1, 2, 3, auto; the nearest is 3\n");
    assert_int_equal(args_choice("--dtype", "b16", dtypes, 2, &log, &choice), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--dtype b16: allowed: fp32, bf16; the nearest is bf16\n");
    assert_int_equal(args_choice("--dtype", "float", dtypes, 2, &log, &choice), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--dtype float: allowed: fp32, bf16\n");
}

TEST(nearest_name) {
    static const char *const names[] = {"steps", "stage", "seed"};
    assert_string_equal(zr_name_nearest("sage", names, 3), "stage");
    assert_string_equal(zr_name_nearest("step", names, 3), "steps");
    assert_string_equal(zr_name_nearest("eed", names, 3), "seed");
    assert_string_equal(zr_name_nearest("SEED", names, 3), "seed");
    assert_string_equal(zr_name_nearest("tag", names, 3), "stage"); /* a part of it */
    assert_null(zr_name_nearest("model", names, 3));
    assert_null(zr_name_nearest("a", names, 3));
    assert_null(zr_name_nearest("", names, 3));
    assert_null(zr_name_nearest("x", names, 0));
}

/* ---- whole command lines ---------------------------------------------------------------- */

static const struct argp_option options[] = {
    {"grad-accum", 1, "K", 0, "", 0},  {"grad-clip", 2, "NORM", 0, "", 0},
    {"json", 3, NULL, 0, "", 0},       {"stage", 4, "0|1|2|3", 0, "", 0},
    {"output", 'o', "PATH", 0, "", 0}, {0},
};
static const args_known_t known[] = {{"per-device-batch-size batch-size", "--output PATH: here"},
                                     {"zero-stage", "--stage N"},
                                     {"stage=4 stage=5", "--stage 3: there is no more"},
                                     {"elsewhere", "--absent"},
                                     {NULL, NULL}};
static char seen[256];

static error_t see(int key, char *argument, struct argp_state *state) {
    size_t used = strlen(seen);
    if ((key >= 1 && key <= 4) || key == 'o')
        snprintf(seen + used, sizeof(seen) - used, "%d=%s ", key, argument ? argument : "");
    else if (key == ARGP_KEY_ARG)
        snprintf(seen + used, sizeof(seen) - used, "arg=%s ", argument);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static zr_status_t parse(const char *line) {
    static const struct argp argp = {.options = options, .parser = see};
    char copy[256], *words[16] = {"program"};
    int n = 1;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        words[n++] = word;
    seen[0] = '\0';
    return args_parse(&argp, known, n, words, &log, NULL);
}

TEST(command_lines) {
    static const struct {
        const char *line;
        const char *seen; /* NULL: refused, and this was said: */
        const char *said;
    } cases[] = {
        {"--stage 3 --json", "4=3 3= ", ""},
        {"--stage=3 data", "4=3 arg=data ", ""},
        {"--st 3", "4=3 ", ""},
        {"--grad-accum --json", "1=--json ", ""},
        {"-- --stage", "arg=--stage ", ""},
        {"--output path --output=x", "111=path 111=x ", ""},
        {"--output --json", "111=--json ", ""},
        {"--sage 3", NULL, "unknown option --sage; the nearest is --stage"},
        {"--jsn", NULL, "unknown option --jsn; the nearest is --json"},
        {"--stages=3", NULL, "unknown option --stages; the nearest is --stage"},
        {"--frobnicate 3", NULL, "unknown option --frobnicate (--help lists all)"},
        {"--grad 3", NULL, "option --grad is ambiguous: --grad-accum or --grad-clip?"},
        {"--stage", NULL, "option --stage needs a value: --stage 0|1|2|3"},
        {"--stage= --json", NULL,
         "option --stage needs a value, and \"\" is empty: --stage 0|1|2|3"},
        {"--output", NULL, "option --output needs a value: --output PATH"},
        {"--batch_size 3", NULL,
         "unknown option --batch_size; here it is --output PATH: here (--help lists all)"},
        {"--batch-size=3", NULL, "unknown option --batch-size; here it is --output PATH"},
        {"--zero-stage 3", NULL, "unknown option --zero-stage; here it is --stage N"},
        {"--batch 3", NULL, "unknown option --batch (--help lists all)"},
        {"--elsewhere", NULL, "unknown option --elsewhere (--help lists all)"},
        {"--stage 5", NULL, "--stage 5 is not supported; here it is --stage 3: there is no more"},
        {"--stage=4", NULL, "--stage 4 is not supported; here it is --stage 3"},
        {"-s 3", NULL, "unknown option -s: options begin with two dashes (--help lists all)"},
        {"--json=yes", NULL, "option --json takes no value, but got \"yes\""},
        {"-stage 3", NULL,
         "unknown option -stage: options begin with two dashes; the nearest is "
         "--stage"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_status_t status = parse(cases[i].line);
        assert_int_equal(status, cases[i].seen != NULL ? ZR_OK : ZR_ERR_ARGUMENT);
        if (cases[i].seen != NULL)
            assert_string_equal(seen, cases[i].seen);
        else
            assert_has(captured.text, cases[i].said);
    }
}

/* ---- help --------------------------------------------------------------------------------- */

static const struct argp_option documented[] = {
    {NULL, 0, NULL, 0, "First:", 1},
    {"zebra", 1, "N", 0, "the last by name", 1},
    {"an-option-with-a-long-name", 2, "VALUE", 0, "below", 1},
    {"just-as-long-as-fits", 6, NULL, 0, "beside", 1},
    {"hidden", 3, NULL, OPTION_HIDDEN, NULL, 1},
    {NULL, 0, NULL, 0, "Then:", 2},
    {"apple", 'a', NULL, 0,
     "words that fill a line to its seventy-ninth column and then one word more", 2},
    {0},
};

/* In the order of the table, and no line beyond the width. */
TEST(help_in_order) {
    static const struct argp argp = {
        .options = documented, .parser = see, .args_doc = "FILE", .doc = "What it is.\vThe end."};
    static const char expected[] = "Usage: program [OPTION...] FILE\n"
                                   "What it is.\n"
                                   "\n"
                                   " First:\n"
                                   "      --zebra=N              the last by name\n"
                                   "      --an-option-with-a-long-name=VALUE\n"
                                   "                             below\n"
                                   "      --just-as-long-as-fits beside\n"
                                   "\n"
                                   " Then:\n"
                                   "      --apple                words that fill a line to its "
                                   "seventy-ninth column\n"
                                   "                             and then one word more\n"
                                   "\n"
                                   "The end.\n";
    char text[2048];
    FILE *file = tmpfile();
    assert_non_null(file);
    args_help(&argp, "program", file);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, expected);
}

/* Opening a pipe would wait for its reader, and looking for one would take the reader away. */
TEST(pipes_to_write_to) {
    char folder[] = "/tmp/zero-pipe-XXXXXX", path[64];
    int ends[2];
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(mkfifo("named", 0600), 0);
    assert_int_equal(files_check_writable("--log", "named", &log), ZR_ERR_IO);
    assert_has(captured.text, "cannot write --log named: is a named pipe");
    assert_int_equal(unlink("named"), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof(path), "/dev/fd/%d", ends[1]);
    assert_ok(files_check_writable("--log", path, &log));
    assert_ok(files_check_writable("--log", "/dev/null", &log));
}
