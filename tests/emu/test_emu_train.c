/*
 * zero-train on the emulated CUDA device: every stage ends in the same weights, with whatever
 * is recomputed or kept elsewhere, in whatever order streams run; losses are the host's, to
 * rounding. And what --device takes on machines with a GPU and without.
 */
#define ZERO_TRAIN ZERO_TRAIN_EMU
#include "examples/train/train.h"
#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"

enum { N_STEPS = 4 };

#define RUN                                                                                        \
    TINY "--steps 4 --seq 8 --micro-batch 2 --lr 0.01 --schedule constant --threads 1 --log log "

typedef struct run {
    double losses[N_STEPS];
    char hash[32];
} run_t;

/* Of what was run with --json last: the losses of all steps and the weights that they ended in. */
static run_t read_run(const char *arguments) {
    run_t run = {.hash = ""};
    char line[4096];
    json_t *object = kept_json(out);
    if (object == NULL)
        fail_msg("%s: no JSON: %s", arguments, out);
    strncpy(run.hash, text(object, "weights_xxh3"), sizeof(run.hash) - 1);
    if (json_object_get(object, "offload") ==
        NULL) /* updates run where they are found to be faster */
        expect_same_peaks(field(object, "planned_peak_bytes"), object, false);
    FILE *log = fopen("log", "r");
    assert_non_null(log);
    for (size_t i = 0; i < N_STEPS; i++) {
        assert_non_null(fgets(line, sizeof(line), log));
        json_t *step = kept_json(line);
        run.losses[i] = number(step, "loss");
    }
    assert_int_equal(fclose(log), 0);
    return run;
}

static run_t train(const char *device, const char *arguments) {
    char command[1024];
    snprintf(command, sizeof(command), RUN "--json --device %s %s", device, arguments);
    assert_ran(0, "%s", command);
    return read_run(arguments);
}

/* With ranks that are processes, of which rank 0 alone has a log. */
static run_t train_processes(int n_ranks, const char *arguments) {
    char command[1024];
    snprintf(command, sizeof(command), RUN "--json --device cuda %s", arguments);
    int code = run_by_hand(n_ranks, command);
    if (code != 0)
        fail_msg("%s: exit %d: %s", arguments, code, err);
    return read_run(arguments);
}

static void assert_near(const char *arguments, const run_t *cuda, const run_t *host,
                        double tolerance) {
    for (size_t i = 0; i < N_STEPS; i++)
        if (!(fabs(cuda->losses[i] - host->losses[i]) <= tolerance))
            fail_msg("%s: a loss of %.6f in step %zu, %.6f on the host", arguments, cuda->losses[i],
                     i + 1, host->losses[i]);
    if (!(cuda->losses[N_STEPS - 1] < cuda->losses[0] - 0.1))
        fail_msg("%s: a loss from %.6f to %.6f: it does not fall", arguments, cuda->losses[0],
                 cuda->losses[N_STEPS - 1]);
}

static void assert_same_weights(const char *arguments, const run_t *run, const run_t *other) {
    if (strcmp(run->hash, other->hash) != 0)
        fail_msg("%s: weights %s, not %s", arguments, run->hash, other->hash);
}

static void check_stages(const char *dtype, int n_ranks, double tolerance) {
    char arguments[256];
    run_t first = {.hash = ""};
    snprintf(arguments, sizeof(arguments), "--dtype %s --ranks %d", dtype, n_ranks);
    run_t host = train("host", arguments);
    for (int stage = 0; stage <= 3; stage += n_ranks == 1 ? 3 : 1) {
        snprintf(arguments, sizeof(arguments), "--dtype %s --ranks %d --stage %d", dtype, n_ranks,
                 stage);
        run_t cuda = train("cuda", arguments);
        assert_near(arguments, &cuda, &host, tolerance);
        first = stage == 0 ? cuda : first;
        assert_same_weights(arguments, &cuda, &first);
    }
}

TEST(test_stages) {
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        check_stages("fp32", n_ranks, 1e-4);
        check_stages("bf16", n_ranks, 1e-2);
    }
}

/* A GPU for each rank, and NCCL between them: the same weights as ranks that share one. */
TEST(test_nccl) {
    char arguments[256];
    assert_int_equal(setenv("EMU_DEVICES", "3", 1), 0);
    for (int stage = 1; stage <= 3; stage += 2) {
        snprintf(arguments, sizeof(arguments), "--dtype bf16 --ranks 3 --stage %d", stage);
        run_t shared = train("cuda", arguments);
        strcat(arguments, " --comm nccl");
        run_t nccl = train("cuda:0", arguments);
        assert_same_weights(arguments, &nccl, &shared);
    }
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

/* The same with processes, which are ranks of NCCL because they have GPUs. */
TEST(test_nccl_processes) {
    char arguments[256];
    assert_int_equal(setenv("EMU_DEVICES", "4", 1), 0);
    for (int n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
        snprintf(arguments, sizeof(arguments), "--dtype bf16 --stage 3 --ranks %d", n_ranks);
        run_t shared = train("cuda:0", arguments);
        run_t processes = train_processes(n_ranks, "--dtype bf16 --stage 3");
        assert_same_weights("--stage 3, processes", &processes, &shared);
        processes = train_processes(n_ranks, "--dtype bf16 --stage 1 --comm nccl");
        assert_same_weights("--stage 1, processes", &processes, &shared);
        read_file("err.1", err, sizeof(err));
        assert_not_said("processes", "emulation:");
    }
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

/* What the driver says is in use is what was planned, to 2%. */
TEST(test_memory_in_use) {
    static const char *const changes[] = {"", " --stage 3", " --recompute unit --grad-accum 2",
                                          " --offload-optimizer cpu"};
    assert_int_equal(setenv("EMU_GRANULE_BYTES", "16384", 1), 0);
    for (size_t i = 0; i < N_OF(changes); i++) {
        assert_ran(0, RUN "--json --device cuda --dtype bf16%s", changes[i]);
        json_t *object = kept_json(out);
        double in_use = number(object, "device_in_use_bytes");
        double planned = number(object, "planned_device_in_use_bytes");
        print_message("%s: %.0f in use, %.0f planned\n", changes[i], in_use, planned);
        if (!(fabs(in_use - planned) <= 0.02 * planned))
            fail_msg("%s: %.0f bytes in use, %.0f planned", changes[i], in_use, planned);
    }
    assert_int_equal(unsetenv("EMU_GRANULE_BYTES"), 0);
}

/* A device that fails as ranks are told each other's results, when all steps are done: the run has
 * failed, too. */
TEST(test_results_that_are_lost) {
    char bytes[32];
    snprintf(bytes, sizeof(bytes), "%zu", 2 * sizeof(train_result_t));
    assert_int_equal(setenv("EMU_FAIL_COPY_BYTES", bytes, 1), 0);
    assert_int_equal(run_by_hand(2, RUN "--json --device cuda --dtype bf16"), 1);
    assert_int_equal(unsetenv("EMU_FAIL_COPY_BYTES"), 0);
    assert_said("results", "error: rank 0: ");
}

/* Started by mpirun, and so without a word of where rank 0 is: MPI tells it. */
TEST(test_nccl_by_mpirun) {
    char command[2048];
    if (ZR_MPIRUN[0] == '\0') {
        print_message("this build is without MPI, or mpirun is not found\n");
        skip();
    }
    assert_int_equal(setenv("EMU_DEVICES", "2", 1), 0);
    run_t shared = train("cuda:0", "--dtype bf16 --stage 3 --ranks 2");
    snprintf(command, sizeof(command), "exec >out 2>err; %s -n 2 '%s' %s", ZR_MPIRUN, ZERO_TRAIN,
             RUN "--json --device cuda --dtype bf16 --stage 3");
    int code = run_shell(command);
    if (code != 0)
        fail_msg("mpirun: exit %d: %s", code, err);
    run_t processes = read_run("mpirun");
    assert_same_weights("mpirun", &processes, &shared);
    assert_not_said("mpirun", "emulation:");
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

/* What the victim had queued never comes: the others' devices hang in it, until their watch ends
 * them. */
TEST(test_killed_process) {
    assert_int_equal(setenv("EMU_DEVICES", "3", 1), 0);
    kill_rank(TINY "--device cuda --threads 1 --steps 1000000 --stage 3 --dtype bf16");
    assert_not_said("a killed rank", "emulation:");
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

static void expect_refused(const char *arguments, const char *words) {
    char command[1024];
    snprintf(command, sizeof(command), RUN "%s", arguments);
    assert_ran(2, "%s", command);
    assert_said(arguments, words);
}

/* A process that is one rank of several, as its environment says: what is wrong is named. */
TEST(test_environment) {
    expect_refused("--device host --comm nccl", "--comm nccl: NCCL is for GPUs");
    assert_int_equal(setenv("WORLD_SIZE", "2", 1), 0);
    expect_refused("--device cuda", "RANK is not set");
    assert_int_equal(setenv("RANK", "2", 1), 0);
    expect_refused("--device cuda", "RANK=\"2\" in the environment");
    assert_int_equal(setenv("RANK", "0", 1), 0);
    expect_refused("--device cuda", "LOCAL_RANK is not set");
    assert_int_equal(setenv("LOCAL_RANK", "0", 1), 0);
    expect_refused("--device cuda", "MASTER_ADDR");
    assert_int_equal(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
    expect_refused("--device cuda", "MASTER_PORT");
    assert_int_equal(setenv("MASTER_PORT", "1", 1), 0);
    expect_refused("--device cuda --comm threads", "--comm threads: WORLD_SIZE");
    expect_refused("--device cuda --ranks 3", "--ranks 3: WORLD_SIZE says that 2");
    assert_int_equal(setenv("MASTER_PORT", "29431", 1), 0);
    assert_ran(1, RUN "--device cuda --comm-timeout 1");
    assert_said("one of two", strstr(err, "cannot listen") != NULL /* the port is in use */
                                  ? "MASTER_PORT"
                                  : "these ranks of 2 have not come to 127.0.0.1:29431: 1");
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(unsetenv(((const char *const[]){"WORLD_SIZE", "RANK", "LOCAL_RANK",
                                                         "MASTER_ADDR", "MASTER_PORT"})[i]),
                         0);
}

/* What lies elsewhere changes nothing; nor does the order of streams. */
static void check_placements(const char *const *placements, size_t n, run_t *first_p) {
    char arguments[256], seed[8];
    bool nvme = has_nvme();
    for (size_t i = 0; i < n; i++) {
        if (!nvme && strstr(placements[i], "nvme") != NULL)
            continue;
        snprintf(seed, sizeof(seed), "%zu", i + 2);
        assert_int_equal(setenv("EMU_SEED", seed, 1), 0);
        snprintf(arguments, sizeof(arguments), "--ranks 2 --stage 2 --dtype bf16 %s",
                 placements[i]);
        run_t run = train("cuda", arguments);
        *first_p = i == 0 ? run : *first_p;
        assert_same_weights(arguments, &run, first_p);
    }
    assert_int_equal(unsetenv("EMU_SEED"), 0);
}

TEST(test_placements) {
    static const char *const kept[] = {"",
                                       "--offload-optimizer cpu",
                                       "--offload-optimizer nvme --nvme-path drive",
                                       "--stage 3 --offload-params cpu",
                                       "--stage 3 --offload-params nvme --nvme-path drive",
                                       "--offload-optimizer cpu --offload-gradients cpu"};
    static const char *const again[] = {
        "--recompute unit", "--recompute never", "--recompute unit --offload-activations cpu",
        "--recompute unit --stage 3 --offload-activations nvme --nvme-path drive"};
    run_t runs[2];
    check_placements(kept, N_OF(kept), &runs[0]);
    check_placements(again, N_OF(again), &runs[1]);
    /* Backward has GELU of what was kept; what is computed again has it from the product, before
     * anything was rounded. */
    assert_near("recomputed", &runs[1], &runs[0], 1e-2);
    assert_int_equal(setenv("EMU_NO_EPILOGUES", "1", 1), 0);
    for (size_t i = 0; i < 2; i++)
        runs[i] = train("cuda", i == 0 ? "--dtype bf16" : "--dtype bf16 --recompute unit");
    assert_int_equal(unsetenv("EMU_NO_EPILOGUES"), 0);
    assert_same_weights("recomputed, without epilogues", &runs[1], &runs[0]);
}

/* Heads of 64: attention on matrix units. Accumulation adds to gradients. No epilogues: kernels
 * behind the products. */
TEST(test_variants) {
    static const char *const variants[] = {
        "--model layers=1,channels=64,heads=1,seq=16,vocab=256 --micro-batch 1 --dtype bf16",
        "--grad-accum 2 --dtype bf16", "--stage 3 --grad-accum 2 --dtype fp32"};
    for (size_t i = 0; i < N_OF(variants); i++) {
        double tolerance = strstr(variants[i], "bf16") != NULL ? 1e-2 : 1e-4;
        run_t host = train("host", variants[i]), cuda = train("cuda", variants[i]);
        assert_near(variants[i], &cuda, &host, tolerance);
        if (i == 0)
            continue;
        assert_int_equal(setenv("EMU_NO_EPILOGUES", "1", 1), 0);
        run_t plain = train("cuda", variants[i]);
        assert_int_equal(unsetenv("EMU_NO_EPILOGUES"), 0);
        assert_near(variants[i], &plain, &host, tolerance);
    }
}

/* By cuDNN: both passes on 9.0, on 8.0 the forward pass alone. What is planned is needed. */
TEST(test_attention_by_cudnn) {
    run_t host = train("host", "--dtype bf16");
    for (const char *major = "9"; major != NULL; major = *major == '9' ? "8" : NULL) {
        assert_int_equal(setenv("EMU_MAJOR", major, 1), 0);
        run_t run = train("cuda", "--dtype bf16 --attention cudnn");
        json_t *object = kept_json(out);
        assert_near("cuDNN", &run, &host, 1e-2);
        json_t *attention = field(object, "attention");
        assert_string_equal(text(attention, "engine"), "cuDNN 9.19.0");
        assert_true(number(attention, "forward") > 0);
        assert_int_equal(number(attention, "backward") > 0, *major == '9');
        json_t *planned = field(field(object, "planned_peak_bytes"), "device");
        json_t *peak = field(field(object, "peak_bytes"), "device");
        assert_true(json_equal(field(planned, "tags"), field(peak, "tags")));
        run_t sharded = train("cuda", "--dtype bf16 --attention cudnn --stage 3 --recompute unit");
        assert_near("cuDNN, stage 3", &sharded, &host, 1e-2);
    }
    assert_int_equal(unsetenv("EMU_MAJOR"), 0);
    assert_ran(2, TINY "--steps 1 --device host --attention cudnn");
    assert_said("host", "device \"host\" has no cuDNN");
    assert_int_equal(setenv("EMU_CUDNN_VERSION", "91002", 1), 0);
    assert_ran(2, TINY "--steps 1 --device cuda --attention cudnn");
    assert_said("old", "cuDNN 9.10.2 is too old: at least 9.16 is needed");
    assert_ran(0, TINY "--steps 1 --device cuda --json");
    assert_has(out, "\"engine\": \"own\"");
    assert_int_equal(unsetenv("EMU_CUDNN_VERSION"), 0);
}

#define ALGORITHM(id, splits)                                                                      \
    "id " #id " tile 0 stages 0 splits " #splits                                                   \
    " reduction 0 swizzling 0 option 0 inner 0 cluster 0"
#define LIBRARY "cuBLASLt 130000, emulated device 0, compute capability 8.0, 4 multiprocessors"
#define CHOICES(made_for, limit, product, choice)                                                  \
    "{\"made_for\": " made_for ", \"limit_bytes\": " limit ", \"products\": {" product ": " choice \
    "}}"
/* The gradient of a wide weight. */
#define PRODUCT "\"16 x 64 x 16, a transposed, rows of 16 and 64, fp32 to fp32\""
#define CHOICE(algorithm, bytes) "{\"algorithm\": " algorithm ", \"workspace_bytes\": " bytes "}"

static void write_choices(const char *text) {
    write_file("choices", text, strlen(text));
}

/* Chosen algorithms give other bits, the same at all stages, in whatever order streams run; their
 * workspace is in the plan. */
TEST(test_matmul_choices) {
    static const char *const arguments[] = {"--dtype fp32 --ranks 2 --matmul-choices choices",
                                            "--dtype fp32 --ranks 2 --matmul-choices choices "
                                            "--stage 3 --offload-optimizer cpu"};
    run_t runs[2], usual = train("cuda", "--dtype fp32 --ranks 2");
    write_choices(CHOICES("\"" LIBRARY "\"", "6000000", PRODUCT,
                          CHOICE("\"" ALGORITHM(24, 5) "\"", "5242880")));
    for (size_t i = 0; i < 2; i++) {
        runs[i] = train("cuda", arguments[i]);
        json_t *object = kept_json(out);
        assert_near(arguments[i], &runs[i], &usual, 1e-4);
        assert_same_weights(arguments[i], &runs[i], &runs[0]);
        assert_said(arguments[i], "choices: has no choice for the product ");
        assert_true(number(object, "matmul_choices.chosen") ==
                    2 * 4 * 2); /* ranks, steps, layers */
        assert_true(number(object, "matmul_choices.unknown") > 0);
        assert_true(number(object, "peak_bytes.device.tags.workspace") >= 5242880);
        assert_true(number(object, "peak_bytes.device.live") ==
                    number(object, "planned_peak_bytes.device.live"));
        assert_int_equal(strlen(text(object, "matmul_choices.xxh3")), 16);
    }
    if (strcmp(runs[0].hash, usual.hash) == 0)
        fail_msg("chosen algorithms left the weights as they were");
}

/* Rank 1 has the file choices.1, rank 0 choices.2 (run_by_hand). Rank 1's device has another name,
 * which is found when they have agreed on the file. */
TEST(test_matmul_choices_of_ranks) {
    static const char *const files[] = {"choices.1", "choices.2"};
    assert_int_equal(setenv("EMU_DEVICES", "2", 1), 0);
    for (int differ = 0; differ < 2; differ++) {
        for (int i = 0; i < 2; i++) {
            const char *bytes = i == differ ? "8" : "9";
            char text[1024];
            snprintf(text, sizeof(text),
                     CHOICES("\"" LIBRARY "\"", "%s", PRODUCT, CHOICE("null", "0")),
                     differ ? bytes : "8");
            write_file(files[i], text, strlen(text));
        }
        (void)run_by_hand(2, RUN "--device cuda --matmul-choices choices.$rank");
        assert_said("choices",
                    differ ? "--matmul-choices of a file with hash" : "emulated device 1");
        if (!differ)
            assert_not_said("choices", "with hash");
    }
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

/* Files that are none of zero-bench's, or were made elsewhere. */
TEST(test_broken_matmul_choices) {
    static const struct {
        const char *file, *said;
    } cases[] = {
        {"", "line 1|--matmul-choices choices"},
        {"[]", "not an object|zero-bench matmul --save-choices FILE writes such a file"},
        {"{}", "\"made_for\" must be a text"},
        {"{\"made_for\": \"x\"}", "\"limit_bytes\" must be a number from 0 to 1073741824"},
        {"{\"made_for\": \"x\", \"limit_bytes\": 8}", "\"products\" must be an object"},
        {"{\"made_fir\": \"x\"}", "unknown key \"made_fir\""},
        {"{\"made_for\": \"x\", \"made_for\": \"x\"}", "duplicate"},
        {CHOICES("1", "8", PRODUCT, "{}"), "\"made_for\" must be a text"},
        {CHOICES("\"x\"", "-1", PRODUCT, "{}"), "\"limit_bytes\" must be"},
        {CHOICES("\"x\"", "1073741825", PRODUCT, "{}"), "\"limit_bytes\" must be"},
        {CHOICES("\"x\"", "8", PRODUCT, "[]"), "product \"16 x 64|not an object"},
        {CHOICES("\"x\"", "8", PRODUCT, "{}"), "\"algorithm\" must be a text, or null"},
        {CHOICES("\"x\"", "8", PRODUCT, CHOICE("7", "8")), "\"algorithm\" must be a text"},
        {CHOICES("\"x\"", "8", PRODUCT, CHOICE("null", "9")),
         "\"workspace_bytes\" must be a number from 0 to \"limit_bytes\""},
        {CHOICES("\"x\"", "8", PRODUCT, CHOICE("null", "-8")), "\"workspace_bytes\" must be"},
        {CHOICES("\"x\"", "8", PRODUCT, CHOICE("null", "1e300")), "\"workspace_bytes\" must be"},
        {CHOICES("\"cuBLASLt 1, another GPU\"", "8", PRODUCT, CHOICE("null", "8")),
         "made for \"cuBLASLt 1, another GPU\", but this is \"cuBLASLt 130000|leave it out, or "
         "measure here: zero-bench matmul --save-choices FILE"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        write_choices(cases[i].file);
        expect_refused("--device cuda --matmul-choices choices", cases[i].said);
    }
    for (int i = 0; i < 2; i++) { /* one that is not proposed: at all, or with so little memory */
        write_choices(i == 0 ? CHOICES("\"" LIBRARY "\"", "9000", PRODUCT, CHOICE("\"id 1\"", "9"))
                             : CHOICES("\"" LIBRARY "\"", "8", PRODUCT, CHOICE("\"id 1\"", "8")));
        assert_ran(1, RUN "--device cuda --matmul-choices choices");
        assert_said("choices", "cuBLASLt does not propose \"id 1\" for the product 16 x 64|measure "
                               "again");
    }
    expect_refused("--device cuda --matmul-choices absent", "--matmul-choices absent|No such file");
    expect_refused("--device host --matmul-choices choices",
                   "they require device \"cuda\", not \"host\"; leave it out");
}

/* auto is the GPU where there is one. Where there is none, it is the host, with the reason, and
 * cuda is refused. */
TEST(test_device) {
    assert_ran(0, TINY "--steps 1");
    assert_said("auto", "device: cuda:0 (auto)");
    assert_ran(0, TINY "--steps 1 --device cuda:1 --json");
    assert_has(out, "emulated device 1");
    assert_ran(2, TINY "--steps 1 --device cuda:2");
    assert_said("cuda:2", "this machine has 2, numbered from 0");
    assert_int_equal(setenv("EMU_DEVICES", "0", 1), 0);
    assert_ran(0, TINY "--steps 1");
    assert_said("auto", "device: host (auto; device \"cuda\": no GPU can be used here");
    assert_ran(2, TINY "--steps 1 --device cuda");
    assert_said("cuda", "--device cuda: not available here: device \"cuda\": no GPU");
    assert_said("cuda", "allowed: auto, host");
    assert_string_equal(out, "");
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}

/* An argument says which of the tests: a pattern. */
int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return run_all_tests(make_folder, leave_test_folder);
}
