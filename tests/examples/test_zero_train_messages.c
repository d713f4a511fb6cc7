/*
 * What zero-train says when something is refused or goes wrong: it has to help the one who reads
 * it.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define NVME "--nvme-path drive "

static void write_text(const char *name, const char *text) {
    write_file(name, text, strlen(text));
}

static int prepare(void **state) {
    if (make_folder(state) != 0 || mkdir("other", 0777) != 0)
        return -1;
    write_text("there.csv", "");
    if (link("there.csv", "link.csv") != 0)
        return -1;
    write_text("size.json", "{\"request_bytes\": 5000}");
    write_text("depth.json", "{\"depth\": 4000}");
    write_text("files.json", "{\"files_per_path\": 9, \"paths\": [\"drive\", \"other\"]}");
    write_text("settings.json", "{\"depth\": 5, \"paths\": [\"other\"]}");
    write_text("lost.json", "{\"paths\": [\"lost\"]}");
    write_text("config.json", "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\":"
                              " {\"device\": \"nvme\", \"nvme_path\": \"absent\"}}}");
    write_text("two.json", "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\":"
                           " {\"device\": \"nvme\", \"nvme_path\": \"absent\"}, \"offload_param\":"
                           " {\"device\": \"nvme\", \"nvme_path\": \"drive\"}}}");
    return 0;
}

/* ---- what is refused -------------------------------------------------------------------- */

/* Option, file, key, value and what is allowed, before anything is made. */
TEST(refusals) {
    static const struct {
        const char *arguments;
        const char *said[4];
    } cases[] = {
        {TINY "--offload-optimizer nvme --nvme-path /proc",
         {"--nvme-path /proc", "no files can be made there"}},
        {TINY "--config config.json", {"--config config.json: nvme_path absent", "No such file"}},
        {TINY "--offload-optimizer nvme --io-settings lost.json",
         {"--io-settings lost.json: paths lost", "No such file", "or with --nvme-path"}},
        {TINY "--config two.json", {"two.json", "only the same for both"}},
        {TINY NVME "--offload-optimizer nvme --io-settings size.json",
         {"--io-settings size.json: request_bytes is 5000", "multiples of 4096",
          "nearest is 4096"}},
        {TINY NVME "--offload-optimizer nvme --io-settings depth.json",
         {"--io-settings depth.json: depth is 4000", "nearest is 1024"}},
        {TINY "--offload-optimizer nvme --io-settings files.json",
         {"--io-settings files.json: files_per_path is 9, with 2 folders", "16 files together"}},
        {TINY "--log same.csv --memory-snapshot ./same.csv",
         {"--log same.csv and --memory-snapshot ./same.csv", "are one file"}},
        {TINY "--ranks 2 --log m.rank1.csv --memory-snapshot m.csv", {"m.rank1.csv", "one file"}},
        {TINY "--log link.csv --memory-snapshot there.csv", {"link.csv", "are one file"}},
        {TINY "--config config.json --log config.json",
         {"--log config.json", "one of the files of --config"}},
        {TINY NVME "--offload-optimizer nvme --io-settings settings.json --memory-snapshot "
                   "settings.json",
         {"--memory-snapshot settings.json", "one of the files of --io-settings"}},
        {TINY "--schedule constant --warmup 7", {"--warmup 7", "--schedule cosine"}},
        {TINY "--warmup 7 --schedule constant", {"--warmup 7", "--schedule cosine"}},
        {TINY "--min-lr-ratio 0.3 --schedule constant", {"--min-lr-ratio 0.3"}},
        {TINY "--log ''", {"option --log needs a value, and \"\" is empty: --log FILE"}},
        {TINY "--lr 1e-400", {"--lr 1e-400: too small to be told from 0; allowed are 0 to 1000"}},
        {TINY "--trace t --trace-steps 3:1", {"--trace-steps 3:1: LAST 1: allowed are 3 to"}},
        {TINY "--trace t --trace-steps 1:2:3", {"--trace-steps 1:2:3: LAST 2:3: not a whole"}},
        {TINY "--checkpoint-dir ck --resume-data continue",
         {"--resume-data continue: requires --resume; add --resume"}},
        {TINY NVME "--offload-optimizer nvme --nvme-tbw 0TB",
         {"--nvme-tbw 0TB: allowed are sizes of at least 1"}},
        {TINY "--offload-optimizer auto --nvme-capacity 1GB",
         {"--nvme-capacity 1GB: no drives are named", "add --nvme-path DIR"}},
        {TINY "--offload-optimizer auto --param-buffers 2",
         {"--param-buffers 2: no parameters are offloaded", "add --offload-params nvme"}},
        {TINY "--offload-optimizer cpu --sub-group 10",
         {"--sub-group", "is 10", "nearest is 1024"}},
        {TINY NVME "--stage 3 --offload-params nvme --param-buffer 1",
         {"--param-buffer", "is 1;", "nearest is 1024"}},
        {TINY NVME "--stage 3 --offload-params nvme --param-buffer 2047 --dtype bf16",
         {"--param-buffer", "is 2047", "4096 bytes of bf16", "nearest is 2048"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ran(cases[i].arguments, 2);
        assert_string_equal(out, "");
        for (size_t k = 0; k < 4 && cases[i].said[k] != NULL; k++)
            assert_said(cases[i].arguments, cases[i].said[k]);
    }
}

/* ---- what has no effect ------------------------------------------------------------------- */

/* One line for each reason, and the run goes on. Folders that nobody goes to need not be there. */
TEST(what_has_no_effect) {
    static const struct {
        const char *arguments, *said; /* NULL: nothing */
    } cases[] = {
        {"--stage 2 --prefetch 9 --max-live 8", "--prefetch, --max-live: no effect at stage 2, "},
        {"--config stage1.json", "stage3_max_live_parameters, stage3_max_reuse_distance: no effect "
                                 "at stage 1, "},
        {"--config stage1.json --max-live 8", "--max-live, stage3_max_live_parameters, "},
        {"--config stage1.json --stage 3", NULL},
        {"--stage 3 --prefetch 9 --max-live 8", NULL},
        {"--ranks 2 --sums any", "--sums any: no effect: "},
        {"--ranks 2 --sums rank-order", NULL},
        {"--config cpu.json", NULL},
        {"--schedule constant --warmup 0 --min-lr-ratio 1", NULL}, /* what is so anyhow */
        {"--nvme-path absent --nvme-verify on --nvme-capacity 0", NULL},
        {"--offload-ratio 0 --state-in-host 0 --update-on auto --offload-gradients none", NULL},
        {"--offload-optimizer cpu --stage 1 --offload-gradients-ratio 0.0 --prefetch 0", NULL},
        {"--offload-param-ratio 0 --params-in-host 0", NULL},
        {"--checkpoint-keep 0 --io-settings settings.json", NULL},
    };
    write_text("cpu.json", "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", "
                           "\"nvme_path\": \"absent\"}}}");
    write_text("stage1.json",
               "{\"zero_optimization\": {\"stage\": 1, \"stage3_prefetch_bucket_size\": \"auto\", "
               "\"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 0}}");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char arguments[512], warning[256];
        snprintf(arguments, sizeof(arguments), TINY "--steps 1 --quiet %s", cases[i].arguments);
        assert_ran(arguments, 0);
        snprintf(warning, sizeof(warning), "zero-train: warning: %s",
                 cases[i].said != NULL ? cases[i].said : "");
        if (cases[i].said == NULL)
            assert_string_equal(err, "");
        else if (strncmp(err, warning, strlen(warning)) != 0 ||
                 strchr(err, '\n') != err + strlen(err) - 1)
            fail_msg("%s: \"%s\" instead of one line \"%s\"", arguments, err, warning);
    }
}

/* ---- options over files ------------------------------------------------------------------ */

/* The folder of an option is used, whatever the file names, and it is said. */
TEST(options_override_folders) {
    static const struct {
        const char *arguments;
        const char *said;
        const char *paths;
    } cases[] = {
        {TINY "--config config.json " NVME "--json --steps 1",
         "--nvme-path: drive is used instead of nvme_path \"absent\" of --config config.json",
         "drive"},
        {TINY "--config two.json --json --steps 1 --nvme-path other", "used is \"other\"", "other"},
        {TINY "--config config.json --io-settings settings.json --json --steps 1",
         "--io-settings: other is used instead of nvme_path \"absent\"", "other"},
        {TINY "--config config.json --io-settings settings.json --json --steps 1 " NVME,
         "--nvme-path: drive is used instead", "drive"},
    };
    if (!has_nvme())
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *object = run_json(cases[i].arguments, 0);
        const json_t *nvme = json_object_get(json_object_get(object, "offload"), "nvme");
        assert_string_equal(json_string_value(json_object_get(nvme, "paths")), cases[i].paths);
        assert_said(cases[i].arguments, cases[i].said);
        json_decref(object);
    }
    assert_ran(TINY "--config config.json --quiet --steps 1 " NVME, 0);
    assert_string_equal(err, "");
    assert_ran(TINY "--steps 1 --offload-optimizer nvme --io-settings settings.json " NVME, 0);
    assert_not_said("without a configuration", "instead of");
}

/* ---- budgets ---------------------------------------------------------------------------- */

/* The advice is for the tier that is full, and for what fills it. */
TEST(budgets) {
    static const struct {
        const char *arguments;
        const char *said[4];
        const char *not_said;
    } cases[] = {
        {TINY "--ranks 2 --device-memory 64KiB",
         {"device memory", "try a larger --device-memory, --stage 1, 2 or 3"},
         "host-memory"},
        {TINY "--device-memory 64KiB",
         {"device memory", "try a larger --device-memory, --stage 3 with --offload-params cpu"},
         "--stage 1"},
        {TINY "--offload-optimizer cpu --host-memory 64KiB",
         {"host memory", "try a larger --host-memory", "--offload-optimizer nvme"},
         "--stage"},
        {TINY "--stage 3 --offload-params cpu --host-memory 100KiB",
         {"host memory", "a larger --host-memory", "--offload-params nvme"},
         "cpu"},
        {TINY NVME "--offload-optimizer nvme --host-memory 700KiB",
         {"host memory", "a larger --host-memory", "--nvme-buffers, --sub-group"},
         "cpu"},
        {TINY NVME "--offload-optimizer nvme --host-memory 80KiB",
         {"the store's bounce buffers", "a larger --host-memory", "request_bytes"},
         "--stage"},
        {TINY "--recompute unit --offload-activations cpu --micro-batch 64 --host-memory 140KiB",
         {"host memory", "a larger --host-memory", "--offload-activations nvme"},
         "--stage"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ran(cases[i].arguments, 1);
        for (size_t k = 0; k < 4 && cases[i].said[k] != NULL; k++)
            assert_said(cases[i].arguments, cases[i].said[k]);
        assert_not_said(cases[i].arguments, cases[i].not_said);
    }
}

/* ---- the summary ------------------------------------------------------------------------- */

TEST(numbers_and_nouns_agree) {
    assert_ran(TINY "--steps 2 --threads 1", 0);
    assert_non_null(strstr(out, " 1 file, "));
    assert_non_null(strstr(out, " 1 rank with 1 thread each"));
    assert_non_null(strstr(out, " 1 plan; "));
    assert_non_null(strstr(out, " 1 allocation in ")); /* of the host */
    assert_ran(TINY "text --steps 2 --threads 2 --ranks 2", 0);
    assert_non_null(strstr(out, " 2 ranks with 2 threads each"));
    assert_non_null(strstr(out, ", in 1 of 1 step; "));
    assert_ran(TINY "--seq 4000 --model layers=1,channels=16,heads=2,seq=4000,vocab=256 --steps 1",
               0);
    assert_non_null(strstr(out, ", 1 sequence of 4000 per epoch"));
}

/* ---- the document ------------------------------------------------------------------------- */

static char document[131072];

static void assert_documented(const char *name, const char *before, const char *after) {
    char wanted[128];
    snprintf(wanted, sizeof(wanted), "%s%s%s", before, name, after);
    if (strstr(document, wanted) == NULL)
        fail_msg("docs/config.md says nothing of %s", wanted);
}

TEST(every_option_is_documented) {
    size_t n = 0;
    read_file(CONFIG_DOC, document, sizeof(document));
    assert_ran("--help", 0);
    for (const char *at = out; (at = strstr(at, "\n      --")) != NULL; n++) {
        char name[64];
        at += 9;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, "=[ \n"), at);
        assert_documented(name, "`--", "");
    }
    assert_true(n > 50);
}

/* Keys of tables of tags and classes are said by their tables' names. */
static void assert_keys_documented(json_t *object) {
    static const char *const lists[] = {"tags", "classes", "comm_bytes", "comm_control_bytes"};
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        bool is_list = false;
        assert_documented(key, "`", "`");
        for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
            is_list |= strcmp(key, lists[i]) == 0;
        json_t *inner = json_is_array(value) ? json_array_get(value, 0) : value;
        if (json_is_object(inner) && !is_list)
            assert_keys_documented(inner);
    }
}

TEST(every_field_is_documented) {
    read_file(CONFIG_DOC, document, sizeof(document));
    json_t *object = run_json(TINY "--json --steps 3 --ranks 2", 0);
    assert_keys_documented(object);
    json_decref(object);
    object = run_json(TINY "--json --device-memory 64KiB", 1);
    assert_keys_documented(object);
    json_decref(object);
    if (!has_nvme())
        skip();
    object = run_json(TINY NVME "--json --steps 3 --ranks 2 --stage 3 --offload-optimizer nvme "
                                "--offload-params nvme --recompute unit --offload-activations nvme "
                                "--nvme-tbw 600TB",
                      0);
    assert_keys_documented(object);
    json_decref(object);
}

const test_group_t test_group = {prepare, leave_test_folder};
