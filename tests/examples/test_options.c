/*
 * One option, one row: with a row more in the library's table, its option is parsed, in the help,
 * in files, compared between ranks, in a recommended command, in the documents, and refused where
 * it means nothing. Nothing else knows of it.
 */
#include "examples/plan/command.h"
#include "examples/train/agree.h"
#include "tests/common/kept_log.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"

static bool is_stage_3(const zr_config_t *config) {
    return config->stage == 3;
}

static const zr_option_when_t at_stage_3 = {is_stage_3, "is of stage 3; add --stage 3", false};

static const zr_option_t row = {"fathoms",
                                "aio.fathoms",
                                .field = "fathoms",
                                .offset = offsetof(zr_config_t, nvme.submit_batch),
                                .type = ZR_OPTION_COUNT,
                                .flags = ZR_OPTION_AGREE,
                                .least = 2,
                                .most = 64,
                                .arg = "N",
                                .help = "how deep",
                                .more = "see there",
                                .usual = "8",
                                .group = ZR_OPTION_GROUP_RANKS,
                                .when = {&at_stage_3},
                                .idle = "0"};

/* What everybody asks for the table. */
WRAP(const zr_option_t *, zr_options, size_t *n_p) {
    static zr_option_t rows[ZR_OPTIONS_MOST];
    static bool is_made; /* before there are threads: by the first test */
    size_t n = 0;
    const zr_option_t *all = __real_zr_options(&n);
    if (!is_made) {
        memcpy(rows, all, n * sizeof(*all));
        rows[n] = row;
        is_made = true;
    }
    *n_p = n + 1;
    return rows;
}

static kept_log_t kept;

/* zero-train's, of words with spaces between. */
static zr_status_t parse(const char *line, train_options_t *options) {
    static char copy[512];
    char *words[32] = {"zero-train"}, *rest = copy;
    int n = 1;
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    snprintf(copy, sizeof(copy), "--data text %s", line);
    while (rest != NULL && n < 32)
        words[n++] = strsep(&rest, " ");
    return train_options_parse(n, words, &log, options);
}

TEST(it_is_parsed_and_has_its_range) {
    train_options_t options;
    assert_ok(parse("--fathoms 7 --stage 3", &options));
    assert_int_equal(options.config.nvme.submit_batch, 7);
    train_options_free(&options);
    assert_int_equal(parse("--stage 3 --fathoms 65", &options), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "--fathoms 65: allowed: 2 to 64; the nearest is 64");
    assert_int_equal(parse("--stage 3 --fathom=7x", &options), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "--fathoms 7x: not a whole number");
    assert_int_equal(parse("--stage 3 --fatohms 7", &options), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "unknown option --fatohms; the nearest is --fathoms");
}

TEST(it_is_refused_where_it_means_nothing) {
    train_options_t options;
    assert_int_equal(parse("--stage 2 --fathoms 7", &options), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "--fathoms 7: is of stage 3; add --stage 3");
    assert_ok(parse("--stage auto --fathoms 7", &options)); /* it may be 3 */
    train_options_free(&options);
}

TEST(it_is_in_the_help_and_in_the_documents) {
    char *text = NULL;
    size_t n = 0;
    train_options_t options = train_options_default();
    FILE *file = open_memstream(&text, &n);
    train_options_help(file);
    fclose(file);
    assert_has(text, "--fathoms=N            how deep (default 4)");
    free(text);
    file = open_memstream(&text, &n);
    train_options_describe(options_man, file);
    fclose(file);
    assert_has(text,
               ".TH ZERO-TRAIN 1|.SH NAME\nzero-train \\- Train a|\n.TP\n\\fB\\-\\-fathoms\\fR=N\n"
               "how deep (default 4)\n");
    free(text);
    file = open_memstream(&text, &n);
    train_options_describe(options_bash, file);
    fclose(file);
    assert_has(text, "--stage) mapfile -t COMPREPLY < <(compgen -W \"0 1 2 3 auto\"| --fathoms ");
    free(text);
    file = open_memstream(&text, &n);
    options_markdown(&train_table, &options, file);
    fclose(file);
    assert_has(text, "| `--fathoms N` | 4 | how deep; see there; `aio.fathoms` |");
    free(text);
}

/* ---- all rows of all programs ------------------------------------------------------------- */

/* A value that is none; NULL: any text is one, or the row takes it in a way of its own. */
static const char *wrong_value(const zr_option_t *option, char *text, size_t size, bool is_large) {
    if (option->take != NULL || option->type == ZR_OPTION_STRING ||
        option->type == ZR_OPTION_PATHS || option->type == ZR_OPTION_FLAG)
        return NULL;
    if (option->type == ZR_OPTION_BYTES)
        return is_large ? "99999999TiB" : "12Mib7";
    if (option->type == ZR_OPTION_SWITCH || option->type == ZR_OPTION_CHOICE)
        return is_large ? "quite another" : "none2";
    if (!is_large)
        return option->least == 0 ? "-1" : "0";
    if (option->type == ZR_OPTION_NUMBER)
        snprintf(text, size, "%.17g", option->most * 1.0001);
    else
        snprintf(text, size, "99999999999999999999%d", 9);
    return text;
}

static void expect_refused(const options_row_t *row, const char *value, void *object) {
    char said[256];
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    assert_int_equal(zr_option_set(&row->option, NULL, value, &log, (char *)object + row->offset),
                     ZR_ERR_ARGUMENT);
    snprintf(said, sizeof(said), "--%s %s: ", row->option.name, value);
    assert_has(kept.text, said);
    assert_has(kept.text, strstr(kept.text, "unknown unit") != NULL ? "allowed: B" : "allowed");
    if (row->option.choices == NULL && row->option.type != ZR_OPTION_BYTES &&
        row->option.type != ZR_OPTION_SWITCH && row->option.type != ZR_OPTION_U64 &&
        strcmp(value, "fast") != 0)
        assert_has(kept.text, "; the nearest is ");
}

static void check_table(const options_table_t *table, void *object, const void *before,
                        size_t size) {
    options_rows_t rows;
    options_rows(table, &rows);
    for (size_t i = 0; i < rows.n; i++) {
        const zr_option_t *option = &rows.all[i].option;
        char text[64];
        assert_non_null(option->help);
        assert_true(option->group >= 1 && option->group <= table->n_groups);
        for (size_t k = i + 1; k < rows.n; k++)
            assert_string_not_equal(rows.all[k].option.name, option->name);
        for (int is_large = 0; is_large < 2; is_large++) {
            const char *value = wrong_value(option, text, sizeof(text), is_large);
            if (value != NULL)
                expect_refused(&rows.all[i], value, object);
        }
        if (option->type == ZR_OPTION_NUMBER || option->type == ZR_OPTION_COUNT)
            if (option->take == NULL)
                expect_refused(&rows.all[i], "fast", object);
    }
    assert_memory_equal(object, before, size); /* what is refused changes nothing */
}

TEST(every_row_refuses_what_is_out_of_its_range) {
    static train_options_t train, train_before;
    static plan_options_t plan, plan_before;
    train = train_options_default();
    memcpy(&train_before, &train, sizeof(train));
    check_table(&train_table, &train, &train_before, sizeof(train));
    check_table(&plan_table, &plan, &plan_before, sizeof(plan));
}

/* A value that says something, and is in its range. */
static const char *some_value(const zr_option_t *option, char *text, size_t size) {
    if (option->type == ZR_OPTION_SWITCH)
        return "off";
    if (option->choices != NULL) {
        const zr_option_choice_t *choice = option->choices;
        while (choice->name == NULL || zr_option_is_redundant(option, choice->name))
            choice++;
        return choice->name;
    }
    snprintf(text, size, option->type == ZR_OPTION_NUMBER ? "%.1f" : "%.0f",
             option->type == ZR_OPTION_NUMBER           ? 0.5
             : option->most != 0 && option->most < 4096 ? option->most
                                                        : 4096);
    return text;
}

/* Where nothing is offloaded, at stage 0, ...: each is refused with its own reason. */
TEST(every_row_is_refused_where_it_means_nothing) {
    train_options_t options = train_options_default();
    size_t n = 0, n_refused = 0;
    const zr_option_t *all = zr_options(&n);
    for (size_t i = 0; i < n; i++) {
        char line[128], said[512], text[64];
        const zr_option_when_t *when = zr_option_idle(&all[i], &options.config);
        if (all[i].name == NULL || when == NULL || when->warns)
            continue;
        const char *value = some_value(&all[i], text, sizeof(text));
        if (zr_option_is_redundant(&all[i], value)) /* all of its values are */
            continue;
        snprintf(line, sizeof(line), "--%s %s", all[i].name, value);
        snprintf(said, sizeof(said), "%s: %s", line, when->otherwise);
        train_options_t parsed;
        if (parse(line, &parsed) != ZR_ERR_ARGUMENT)
            fail_msg("%s is taken", line);
        assert_has(kept.text, said);
        n_refused++;
    }
    assert_true(n_refused >= 14); /* when this was written; none has lost its reason */
}

/* ---- files and ranks ----------------------------------------------------------------------- */

static zr_status_t read_file(const char *text, zr_config_t *config) {
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    FILE *file = fopen("fathoms.json", "w");
    assert_non_null(file);
    fprintf(file, "%s", text);
    assert_int_equal(fclose(file), 0);
    zr_status_t status = zr_config_read_json("fathoms.json", &log, config);
    remove("fathoms.json");
    return status;
}

TEST(files_have_it) {
    zr_config_t config = zr_config_default(), read = config;
    char *text = NULL;
    assert_ok(read_file("{\"aio\": {\"fathoms\": 9}}", &config));
    assert_int_equal(config.nvme.submit_batch, 9);
    assert_int_equal(read_file("{\"aio\": {\"fathoms\": 1}}", &config), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "aio.fathoms is 1, must be 2 to 64");
    assert_int_equal(read_file("{\"aio\": {\"fathom\": 9}}", &config), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "aio.fathom is not a key of DeepSpeed's; did you mean aio.fathoms?");
    config.stage = 3;
    config.nvme.depth = 7; /* the section says something */
    assert_ok(zr_config_write_json(&config, NULL, &text));
    assert_has(text, "\"fathoms\": 9");
    assert_ok(read_file(text, &read));
    assert_int_equal(read.nvme.submit_batch, 9);
    free(text);
    config.nvme.submit_batch = 65;
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    assert_int_equal(zr_config_resolve(&config, 1, &log), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "fathoms (aio.fathoms, --fathoms) is 65, must be 2 to 64");
}

/* Rank 1 has another value. */
static zr_status_t commit(test_rank_t *rank) {
    zr_runtime_t *runtime = NULL;
    zr_unit_t *unit = NULL;
    zr_config_t config = zr_config_default();
    config.nvme.submit_batch += (size_t)rank->rank;
    ZR_TRY(zr_config_resolve(&config, 2, &rank->log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = zr_runtime_add_unit(runtime, "unit", &unit);
    zr_param_desc_t desc = {.name = "weight", .n_dims = 1, .dims = {8}};
    zr_param_t *param = NULL;
    ZR_THEN(status, zr_unit_add_param(unit, &desc, &param));
    ZR_THEN(status, zr_runtime_commit(runtime));
    zr_runtime_destroy(&runtime);
    return status;
}

TEST(ranks_have_to_agree_on_it) {
    test_ranks_t ranks = {.n_ranks = 2, .quiet = true, .run = commit};
    test_run_ranks(&ranks);
    assert_has(ranks.last_error[0], "rank 1 has another configuration than rank 0, in fathoms");
    assert_int_equal(ranks.status[0], ZR_ERR_COMM);
}

/* Processes compare their command lines, and say it as an option. */
static zr_status_t agree(test_rank_t *rank) {
    train_options_t options = train_options_default();
    const char *path = "text";
    data_options_t data_options = {
        .paths = &path, .n_paths = 1, .seq = 4, .vocab = 256, .log = rank->log};
    const train_start_t start = {.step = 0};
    data_t *data = NULL;
    options.is_launched = true;
    bool has_others = rank->context != NULL && strcmp(rank->context, "cuDNN") == 0;
    const char *attention = has_others && rank->rank > 0 ? "cuDNN 9.20.0" : "cuDNN 9.19.0";
    if (rank->context == NULL)
        options.config.nvme.submit_batch += (size_t)rank->rank;
    else if (!has_others)
        options.shape.of.gpt.seq += (size_t)rank->rank;
    ZR_TRY(data_open(&data_options, &data));
    zr_status_t status = train_agree(&options, data, NULL, &start, attention, rank->comm);
    data_close(&data);
    return status;
}

TEST(processes_have_to_agree_on_it) {
    test_ranks_t ranks = {.n_ranks = 2, .quiet = true, .run = agree};
    FILE *file = fopen("text", "w");
    assert_non_null(file);
    fprintf(file, "a text of some words");
    assert_int_equal(fclose(file), 0);
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_ERR_COMM);
    assert_has(ranks.last_error[0], "--fathoms ");
    ranks.context = "another model";
    test_run_ranks(&ranks);
    assert_has(ranks.last_error[0], "rank 1 has --model with seq=1, rank 0 has --model with seq=0");
    ranks.context = "cuDNN";
    test_run_ranks(&ranks);
    remove("text");
    assert_has(ranks.last_error[0], "rank 1 has kernels of attention: cuDNN 9.20.0, rank 0 has");
}

/* It was given, so zero-train gets it again, but where it means nothing; where there is a file,
 * that has it. */
TEST(a_recommended_command_has_it) {
    char *words[] = {"zero-plan", "--model", "layers=1,channels=16,heads=2,seq=16,vocab=256",
                     "--fathoms", "7"};
    static plan_options_t options;
    static zr_run_row_t plan;
    char text[512] = "";
    plan_words_t said = {text, sizeof(text), 0};
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    assert_ok(plan_options_parse(5, words, &log, &options));
    plan.config = options.run.config;
    plan.config.stage = plan.stage = 3;
    plan.micro_batch = 1;
    plan_command_options(&options, &plan, &said);
    assert_has(text, " --fathoms 7");
    said.n = 0;
    plan_command_beside_file(&options, &plan, &said);
    assert_null(strstr(text, "--fathoms"));
    said.n = 0;
    plan.config.stage = plan.stage = 2;
    plan_command_options(&options, &plan, &said);
    assert_null(strstr(text, "--fathoms"));
}
