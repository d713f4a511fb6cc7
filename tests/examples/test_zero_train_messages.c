/*
 * What zero-train says when something is refused or goes wrong: it has to help the one who reads
 * it.
 */
#include <sys/ioctl.h>

#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define NVME "--nvme-path drive "

static void write_text(const char *name, const char *text) {
    write_file(name, text, strlen(text));
}

static int prepare(void **state) {
    static const struct {
        const char *name, *text;
    } files[] = {{"there.csv", ""},
                 {"high", "\xff\xfd\xfc\xfb"},
                 {"not.json", "{\"train_batch_size\": }"},
                 {"unknown.json", "{\"train_batch_sise\": 4}"},
                 {"size.json", "{\"request_bytes\": 5000}"},
                 {"depth.json", "{\"depth\": 4000}"},
                 {"no_paths.json", "{\"paths\": []}"},
                 {"files.json", "{\"files_per_path\": 9, \"paths\": [\"drive\", \"other\"]}"},
                 {"settings.json", "{\"depth\": 5, \"paths\": [\"other\"]}"},
                 {"lost.json", "{\"paths\": [\"lost\"]}"},
                 {"config.json", "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\":"
                                 " {\"device\": \"nvme\", \"nvme_path\": \"absent\"}}}"},
                 {"two.json",
                  "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\":"
                  " {\"device\": \"nvme\", \"nvme_path\": \"absent\"}, \"offload_param\":"
                  " {\"device\": \"nvme\", \"nvme_path\": \"drive\"}}}"}};
    if (make_folder(state) != 0 || mkdir("other", 0777) != 0 || mkdir("folder.json", 0700) != 0)
        return -1;
    for (size_t i = 0; i < N_OF(files); i++)
        write_text(files[i].name, files[i].text);
    return link("there.csv", "link.csv");
}

/* ---- what is refused -------------------------------------------------------------------- */

/* Option, file, key, value and what is allowed, before anything is made. Rows of the tables of
 * options and their conditions are tested by test_options.c, files by tests of what reads them;
 * here is what zero-train makes of them, each reason once. */
TEST(refusals) {
    static const said_t cases[] = {
        {TINY "--ranks 6 --shard-group-size 4",
         "--shard-group-size) is 4|divide the number of ranks, 6|next smaller divisor is 3"},
        {TINY "--device cuda", "--device cuda|not available here|allowed: auto, host"},
        {TINY "--device cuda:1", "--device cuda:1|not available here"},
        {TINY "--micro-batch 1000000000000 --steps 1000000000000", "--micro-batch|overflows"},
        {TINY "--seq 17", "--seq 17|1 to 16; the nearest is 16"},
        {TINY "--seq 8 --seq-min 9", "--seq-min 9|1 to 8; the nearest is 8"},
        {TINY "--warmup 101", "--warmup 101|nearest is 100"},
        {TINY "--min-lr-ratio 0.2 --schedule linear", "--min-lr-ratio 0.2|--schedule cosine"},
        {TINY "--freeze wte,wtf", "--freeze \"wte,wtf\": \"wtf\" names no parameter"},
        /* options of other trainers */
        {TINY "--batch-size 4", "--batch-size; here it is --micro-batch N"},
        {TINY "--learning-rate 1e-3", "here it is --lr RATE"},
        {TINY "--epochs 3", "here it is --steps N: optimizer steps"},
        {TINY "--bf16", "here it is --dtype bf16"},
        {TINY "--zero_stage=2", "here it is --stage 0, 1, 2 or 3"},
        {TINY "--dtype fp16", "--dtype fp16 is not supported; here it is --dtype bf16: bf16"},
        {TINY "--offload-params cpu --stage 2", "--offload-params) is cpu at stage 2|at stage 3"},
        {TINY "--offload-optimizer cpu --stage 1 --offload-gradients-ratio 0.5",
         "--offload-gradients-ratio 0.5: at stages 0 and 1|at --stage 2 or 3"},
        {TINY "--offload-activations cpu", "--offload-activations|add --recompute unit"},
        {TINY "--offload-activations auto", "--offload-activations|add --recompute unit"},
        {TINY "--recompute unit --activations-on-device 2",
         "--activations-on-device 2|without --offload-activations cpu or nvme"},
        {TINY "--recompute unit --offload-activations cpu --activations-in-host 2",
         "--activations-in-host 2|without --offload-activations nvme"},
        {TINY "--recompute unit --offload-activations auto --activations-on-device 2",
         "--offload-activations auto|leave them out"},
        {TINY "--recompute unit --offload-activations nvme",
         "--offload-activations nvme|add --nvme-path DIR"},
        {TINY "--checkpoint-dir ck --resume-data continue",
         "--resume-data continue: requires --resume; add --resume"},
        {TINY "--log ''", "option --log needs a value, and \"\" is empty: --log FILE"},
        /* drives */
        {TINY "--offload-optimizer auto --nvme-capacity 1GB",
         "--nvme-capacity 1GB: no drives are named|add --nvme-path DIR"},
        {TINY "--offload-optimizer auto --param-buffers 2",
         "--param-buffers 2: no parameters are offloaded|add --offload-params nvme"},
        {TINY "--offload-optimizer nvme", "no path is given|--nvme-path DIR"},
        {TINY "--offload-optimizer nvme --nvme-path drive,absent", "--nvme-path absent|No such"},
        {TINY "--offload-optimizer nvme --nvme-path there.csv",
         "--nvme-path there.csv|not a folder"},
        {TINY "--offload-optimizer nvme --nvme-path /proc",
         "--nvme-path /proc|no files can be created there"},
        {TINY "--config config.json", "--config config.json: nvme_path absent|No such file"},
        {TINY "--config two.json", "two.json|only the same for both"},
        {TINY NVME "--stage 3 --offload-params nvme --param-buffer 2047 --dtype bf16",
         "--param-buffer|is 2047|4096 bytes of bf16|nearest is 2048"},
        {TINY NVME "--offload-optimizer nvme --nvme-tbw 0TB",
         "--nvme-tbw 0TB: allowed: sizes of at least 1"},
        {TINY NVME "--offload-optimizer nvme --io-settings absent",
         "--io-settings absent|No such file"},
        {TINY NVME "--offload-optimizer nvme --io-settings not.json",
         "--io-settings not.json|line 1"},
        {TINY NVME "--offload-optimizer nvme --io-settings unknown.json",
         "train_batch_sise|request_bytes, depth"},
        {TINY NVME "--offload-optimizer nvme --io-settings size.json",
         "--io-settings size.json: request_bytes is 5000|multiples of 4096|nearest is 4096"},
        {TINY NVME "--offload-optimizer nvme --io-settings depth.json",
         "--io-settings depth.json: depth is 4000|nearest is 1024"},
        {TINY "--offload-optimizer nvme --io-settings no_paths.json", "paths must be a list"},
        {TINY "--offload-optimizer nvme --io-settings files.json",
         "--io-settings files.json: files_per_path is 9, with 2 folders|16 files together"},
        {TINY "--offload-optimizer nvme --io-settings lost.json",
         "--io-settings lost.json: paths lost|No such file|or with --nvme-path"},
        /* files */
        {"", "--data"},
        {TINY "absent", "--data absent: cannot read it|No such file"},
        {"--data high --seq 2 --model layers=1,channels=8,heads=2,seq=8,vocab=250",
         "high: token 0 is 255|vocabulary of 250"},
        {"--data text --model layers=2,chanels=16,heads=2,seq=16,vocab=256", "chanels|channels"},
        {TINY "--config absent.json", "--config absent.json: cannot open it: No such file"},
        {TINY "--config unknown.json", "train_batch_sise|train_batch_size"},
        {TINY "--log /absent/log", "/absent/log|No such file"},
        {TINY "--memory-snapshot x.txt", "--memory-snapshot x.txt|.csv|.pickle"},
        {TINY "--memory-snapshot folder.json", "folder.json|Is a directory"},
        {TINY "--trace-steps 1:2", "--trace-steps 1:2|add --trace FILE"},
        {TINY "--trace t --trace-steps 3", "--trace-steps 3|FIRST:LAST"},
        {TINY "--trace t --trace-steps 3:1", "--trace-steps 3:1: LAST 1: allowed: 3 to"},
        {TINY "--trace t --trace-steps 1:2:3", "--trace-steps 1:2:3: LAST 2:3: not a whole"},
        {TINY "--trace t.json --steps 2 --trace-steps 3:3", "--trace-steps 3:3|steps 1 to 2"},
        {TINY "--trace text", "--data text and --trace text|are the same file"},
        {TINY "--trace same.json --log same.json", "--trace same.json|same file"},
        {TINY "--log same.csv --memory-snapshot ./same.csv",
         "--log same.csv and --memory-snapshot ./same.csv|are the same file"},
        {TINY "--ranks 2 --log m.rank1.csv --memory-snapshot m.csv", "m.rank1.csv|same file"},
        {TINY "--log link.csv --memory-snapshot there.csv", "link.csv|are the same file"},
        {TINY "--config config.json --log config.json",
         "--config config.json and --log config.json|are the same file"},
        {TINY NVME "--offload-optimizer nvme --io-settings settings.json --memory-snapshot "
                   "settings.json",
         "--io-settings settings.json and --memory-snapshot settings.json|are the same file"},
    };
    expect_all_said(ZERO_TRAIN, 2, cases, N_OF(cases));
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
    for (size_t i = 0; i < N_OF(cases); i++) {
        char warning[256];
        assert_ran(0, TINY "--steps 1 --quiet %s", cases[i].arguments);
        snprintf(warning, sizeof(warning), "zero-train: warning: %s",
                 cases[i].said != NULL ? cases[i].said : "");
        if (cases[i].said == NULL)
            assert_string_equal(err, "");
        else if (strncmp(err, warning, strlen(warning)) != 0 ||
                 strchr(err, '\n') != err + strlen(err) - 1)
            fail_msg("%s: \"%s\" instead of one line \"%s\"", cases[i].arguments, err, warning);
    }
}

/* Each key of a file that is "auto" is told with what it became. */
TEST(what_auto_became) {
    write_text(
        "auto.json",
        "{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_clipping\": \"auto\", "
        "\"bf16\": {\"enabled\": \"auto\"}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
        "{\"warmup_max_lr\": \"auto\"}}, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": "
        "\"auto\"}}, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": \"auto\"}}");
    assert_ran(0, TINY "--steps 1 --lr 0.25 --config auto.json");
    assert_said("auto", "--config auto.json: \"auto\" became: |dtype fp32|warmup_max_lr unset|lr "
                        "0.25|betas[0] 0.9|betas[1] 0.95"
                        "|gradient_clipping 0|train_micro_batch_size_per_gpu ");
    assert_ran(0, TINY "--steps 1 --lr 0.25 --config auto.json --quiet");
    assert_string_equal(err, "");
}

/* ---- options over files ------------------------------------------------------------------ */

/* The folder of an option is used, whatever the file names, and it is said. */
TEST(options_override_folders) {
    static const struct {
        const char *arguments, *said, *paths;
    } cases[] = {
        {"--config config.json " NVME,
         "--nvme-path: drive is used instead of nvme_path \"absent\" of --config config.json",
         "drive"},
        {"--config two.json --nvme-path other", "used is \"other\"", "other"},
        {"--config config.json --io-settings settings.json",
         "--io-settings: other is used instead of nvme_path \"absent\"", "other"},
        {"--config config.json --io-settings settings.json " NVME,
         "--nvme-path: drive is used instead", "drive"},
    };
    if (!has_nvme())
        skip();
    for (size_t i = 0; i < N_OF(cases); i++) {
        json_t *object = run_json(0, TINY "--steps 1 %s", cases[i].arguments);
        expect_fields(object, "offload.nvme.paths=%s", cases[i].paths);
        assert_said(cases[i].arguments, cases[i].said);
    }
    assert_ran(0, TINY "--config config.json --quiet --steps 1 " NVME);
    assert_not_said("quiet", "instead of");
    assert_ran(0, TINY "--steps 1 --offload-optimizer nvme --io-settings settings.json " NVME);
    assert_not_said("without a configuration", "instead of");
}

/* ---- budgets ---------------------------------------------------------------------------- */

/* The advice is for the tier that is full, and for what fills it. */
TEST(budgets) {
    static const struct {
        said_t said;
        const char *not_said;
    } cases[] = {
        {{TINY "--ranks 2 --device-memory 64KiB",
          "device memory|try a larger --device-memory, --stage 1, 2 or 3"},
         "host-memory"},
        {{TINY "--device-memory 64KiB",
          "device memory|try a larger --device-memory, --stage 3 with --offload-params cpu"},
         "--stage 1"},
        {{TINY "--offload-optimizer cpu --host-memory 64KiB",
          "host memory|try a larger --host-memory|--offload-optimizer nvme"},
         "--stage"},
        {{TINY "--stage 3 --offload-params cpu --host-memory 100KiB",
          "host memory|a larger --host-memory|--offload-params nvme"},
         "cpu"},
        {{TINY NVME "--offload-optimizer nvme --host-memory 700KiB",
          "host memory|a larger --host-memory|--nvme-buffers, --sub-group"},
         "cpu"},
        {{TINY NVME "--offload-optimizer nvme --host-memory 80KiB",
          "the store's bounce buffers|a larger --host-memory|request_bytes"},
         "--stage"},
        {{TINY "--recompute unit --offload-activations cpu --micro-batch 64 --host-memory 140KiB",
          "host memory|a larger --host-memory|--offload-activations nvme"},
         "--stage"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        expect_all_said(ZERO_TRAIN, 1, &cases[i].said, 1);
        assert_not_said(cases[i].said.arguments, cases[i].not_said);
    }
}

/* ---- the summary ------------------------------------------------------------------------- */

TEST(numbers_and_nouns_agree) {
    assert_ran(0, TINY "--steps 2 --threads 1 --verbose");
    expect_out(" 1 file, | 1 rank, | 1 thread of each rank| 1 plan; | 1 allocation in ");
    assert_ran(0, TINY "text --steps 2 --threads 2 --ranks 2 --verbose");
    expect_out(" 2 ranks, | 2 threads of each rank|, in 1 of 1 step; ");
    assert_ran(0, "--seq 4000 --model layers=1,channels=16,heads=2,seq=4000,vocab=256 --steps 1 "
                  "--data text --verbose");
    expect_out(", 1 sequence of 4000 per epoch");
}

/* ---- the document ------------------------------------------------------------------------- */

/* Keys of tables of tags and classes are said by their tables' names. */
TEST(every_field_is_documented) {
    static const char lists[] = " tags classes at_peak_bytes comm_bytes comm_control_bytes ";
    expect_fields_documented(FIELDS_DOC, run_json(0, TINY "--steps 3 --ranks 2"), "", lists);
    expect_fields_documented(FIELDS_DOC, run_json(1, TINY "--device-memory 64KiB"), "", lists);
    expect_fields_documented(FIELDS_DOC, run_json(0, TINY "--steps 3 --val-data text"), "", lists);
    if (!has_nvme())
        skip();
    json_t *object =
        run_json(0, TINY NVME "--steps 3 --ranks 2 --stage 3 --offload-optimizer nvme "
                              "--offload-params nvme --recompute unit --offload-activations nvme "
                              "--nvme-tbw 600TB");
    expect_fields_documented(FIELDS_DOC, object, "", lists);
}

/* ---- on a terminal -------------------------------------------------------------------------- */

/* What a run writes to a terminal of so many columns, in err. */
static int run_on_terminal(unsigned short columns, const char *arguments) {
    int status, terminal = posix_openpt(O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    char command[1024], side[64];
    size_t n = 0;
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    assert_int_equal(ptsname_r(terminal, side, sizeof(side)), 0);
    int other = open(side, O_RDWR | O_NOCTTY);
    assert_true(other >= 0 && ioctl(other, TIOCSWINSZ, &size) == 0);
    snprintf(command, sizeof(command), "exec '%s' %s >out 2>%s", ZERO_TRAIN, arguments, side);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(other); /* once nobody has that side open, reading ends */
    for (ssize_t got; n < sizeof(err) - 1; n += (size_t)got)
        if ((got = read(terminal, err + n, sizeof(err) - 1 - n)) <= 0)
            break;
    err[n] = '\0';
    close(terminal);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

/* Each progress line, also one that stays, is one line of the terminal with what matters most. */
static void expect_progress(unsigned short columns, const char *parts, const char *left_out) {
    size_t n_lines = 0;
    assert_int_equal(run_on_terminal(columns, TINY "--steps 3"), 0);
    for (char *rest = err, *line; (line = strsep(&rest, "\r\n")) != NULL;) {
        size_t length = strcspn(line, "\033");
        if (strncmp(line, "step ", 5) != 0 || strncmp(line, "step time", 9) == 0)
            continue;
        n_lines++;
        line[length] = '\0';
        if (length >= columns || strstr(line, left_out) != NULL)
            fail_msg("%u columns: %s", columns, line);
        assert_has(line, parts);
    }
    assert_true(n_lines >= 3);
}

/* Lines fit: words of messages go on in the next, and parts of a progress line are left out. */
TEST(terminal) {
    assert_int_equal(run_on_terminal(60, TINY "--zero-stage 2"), 2);
    assert_has(
        err,
        "zero-train: error: unknown option --zero-stage; here it is\r\n    --stage 0, 1, 2 or 3");
    assert_int_equal(run_on_terminal(40, TINY "--steps 3"), 0);
    assert_has(err, "\rstep 1/3  loss 5.");
    assert_has(err, " 0:00 left\033[K\r\n"); /* of the last step, which stays */
    for (char *rest = err, *line; (line = strsep(&rest, "\r\n")) != NULL;) {
        size_t length = strcspn(line, "\033");
        if (length > 40)
            fail_msg("%zu columns: %s", length, line);
    }
    expect_progress(80, "/3  loss 5.|  lr | ms  | tokens/s| left", "compute");
    expect_progress(60, "/3  loss 5.| ms  | tokens/s| left", "norm");
    expect_progress(33, "/3  loss 5.| left", "tokens/s");
    expect_progress(23, "/3  loss 5.", "left");
    expect_progress(200, "/3  loss 5.|  lr |  norm | ms  | tokens/s|  compute |  device | left",
                    "s(");
}

const test_group_t test_group = {prepare, leave_test_folder};
