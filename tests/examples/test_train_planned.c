/*
 * What zero-train foretells of its own run is what the run needs: for configurations from a seed,
 * planned peaks are the measured ones, to the byte, in every tier and tag, with sequences of
 * varying length, too; and the plan fits where the run does.
 *
 *   test_train_planned [llama] [documents] [N [FIRST]]
 *
 * N configurations, from number FIRST; of models of the Llama family, with any of their switches;
 * all with documents, else every fourth.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

static size_t n_cases = 24, first_case = 1;
static bool nvme, is_llama, are_documents;

static size_t throw(uint64_t * dice, size_t n) {
    *dice += 0x9e3779b97f4a7c15u;
    uint64_t z = *dice;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

static void add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *text, const char *format, ...) {
    va_list arguments;
    size_t n = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + n, 1024 - n, format, arguments);
    va_end(arguments);
}

/* ---- configurations -------------------------------------------------------------------------- */

static void choose_offload(uint64_t *dice, char *text, size_t stage) {
    static const char *const devices[] = {"none", "cpu", "nvme"};
    size_t n = nvme ? 3 : 2, optimizer = throw(dice, n), params = 0, activations = 0;
    bool recompute = throw(dice, 2);
    if (stage == 3)
        params = throw(dice, n);
    if (recompute)
        activations = throw(dice, n);
    add(text, " --offload-optimizer %s --offload-params %s --recompute %s", devices[optimizer],
        devices[params],
        recompute        ? "unit"
        : stage % 2 == 1 ? "never"
                         : "none");
    if (recompute)
        add(text, " --offload-activations %s", devices[activations]);
    if (activations == 2 && throw(dice, 2))
        add(text, " --activations-in-host %zu", throw(dice, 3));
    if (optimizer != 0 && throw(dice, 2))
        add(text, " --offload-ratio 0.%zu", throw(dice, 10));
    /* Refused: of bf16 so few are no whole blocks of a drive. */
    bool is_tiny = strstr(text, "bf16") != NULL && strstr(text, "--sub-group 1024 ") != NULL;
    size_t gradients = optimizer != 0 && stage >= 2 ? throw(dice, nvme && !is_tiny ? 4 : 3) : 1;
    if (gradients != 1)
        add(text, " --offload-gradients %s",
            gradients == 0   ? "none"
            : gradients == 2 ? "cpu --offload-gradients-ratio 0.4"
                             : "nvme");
    if (stage >= 2 && throw(dice, 2))
        add(text, " --check-overflow %s --update-at backward", throw(dice, 2) ? "on" : "off");
    if (gradients == 3 && throw(dice, 2))
        add(text, " --gradients-in-host 2000 --offload-gradients-ratio 0.7");
    if (optimizer == 2 || params == 2 || activations == 2 || gradients == 3)
        add(text, " --nvme-path drive");
    if (params == 2)
        add(text, " --param-buffer %zu", (size_t)2048 << throw(dice, 4));
}

static void choose_layers(uint64_t *dice, char *text, const char *key, size_t layers) {
    const char *before = "";
    add(text, ",%s=", key);
    for (size_t i = 0; i < layers; i++)
        if (throw(dice, 2) || i == layers - 1) {
            add(text, "%s%zu", before, i);
            before = "+";
        }
}

static void choose_llama(uint64_t *dice, char *text, size_t seq) {
    static const char *const flags[] = {"tied", "qkv-bias", "out-bias", "mlp-bias", "qk-norm"};
    static const char *const ropes[] = {"", ",rope=linear,rope-factor=2.5",
                                        ",rope=llama3,rope-factor=8"};
    size_t layers = 1 + throw(dice, 4), kv_heads = 1 + throw(dice, 3);
    add(text, "--model llama,layers=%zu,channels=%zu,heads=%zu,kv-heads=%zu,head-size=%zu", layers,
        1 + throw(dice, 40), kv_heads * (1 + throw(dice, 3)), kv_heads, 2 + 2 * throw(dice, 12));
    add(text, ",wide=%zu,seq=%zu,vocab=%zu%s", 1 + throw(dice, 90), seq, 256 + throw(dice, 50),
        ropes[throw(dice, 3)]);
    for (size_t i = 0; i < N_OF(flags); i++)
        add(text, ",%s=%zu", flags[i], throw(dice, 2));
    if (throw(dice, 2)) {
        add(text, ",window=%zu", 1 + throw(dice, seq + 5));
        choose_layers(dice, text, "windowed", layers);
    }
    if (throw(dice, 2))
        choose_layers(dice, text, "unrotated", layers);
}

/* What is evaluated between steps, the rest of a micro-batch too, needs nothing that is not
 * planned.
 */
static void choose_evaluations(uint64_t *dice, char *text, const char *val) {
    add(text, " --val-data %s", val);
    if (throw(dice, 3))
        add(text, " --eval-every %zu", 1 + throw(dice, 4));
    if (throw(dice, 2))
        add(text, " --eval-batches %zu", 1 + throw(dice, 12));
}

/* The arguments of one: whatever a run may be asked for that memory depends on. */
static void choose(uint64_t seed, char *text) {
    uint64_t dice = seed * 1000003;
    size_t heads = 1 + throw(&dice, 3), seq = 4 + throw(&dice, 28), stage = throw(&dice, 4);
    bool has_documents = are_documents || seed % 4 == 2;
    text[0] = '\0';
    if (is_llama)
        choose_llama(&dice, text, seq);
    else
        add(text, "--model layers=%zu,channels=%zu,heads=%zu,seq=%zu,vocab=256",
            1 + throw(&dice, 4), heads * (4 + 4 * throw(&dice, 5)), heads, seq);
    add(text, " --data %s --json --quiet --plan-check off --sub-group %zu",
        has_documents ? "documents" : "text", (size_t)1024 << throw(&dice, 4));
    size_t ranks = 1 + throw(&dice, 3);
    const char *dtype = throw(&dice, 2) ? "bf16" : "fp32";
    if (seed % 3 == 0) /* several groups of 1 or of 2 ranks */
        ranks = 2 + 2 * (seed % 2);
    add(text, " --stage %zu --ranks %zu --dtype %s", stage, ranks, dtype);
    if (seed % 3 == 0)
        add(text, " --shard-group-size %zu", ranks == 2 || seed % 4 == 1 ? 1 : ranks / 2);
    add(text, " --steps %zu --micro-batch %zu --grad-accum %zu", 1 + throw(&dice, 7),
        1 + throw(&dice, 3), 1 + throw(&dice, 3));
    add(text, " --clip %zu --memory-plan %s", throw(&dice, 2), throw(&dice, 4) ? "on" : "off");
    if (throw(&dice, 3) == 0 && !has_documents)
        add(text, " --seq-min %zu --seed %zu", 1 + throw(&dice, seq), throw(&dice, 99));
    if (throw(&dice, 3) == 0)
        add(text, " --reduce every-micro-batch --prefetch %zu", throw(&dice, 20000));
    choose_offload(&dice, text, stage);
    if (throw(&dice, 4) == 0) /* often too little */
        add(text, " --device-memory %zu", (size_t)100000 << throw(&dice, 4));
    if (throw(&dice, 6) == 0)
        add(text, " --host-memory %zu", (size_t)150000 << throw(&dice, 3));
    if (seed % 2 == 1)
        add(text, " --checkpoint-dir saved%zu --checkpoint-every %zu%s", (size_t)seed,
            1 + throw(&dice, 3), throw(&dice, 2) ? " --checkpoint-async" : "");
    if (throw(&dice, 3) == 0)
        add(text, " --overlap-comm on");
    if (throw(&dice, 2))
        choose_evaluations(&dice, text, has_documents ? "val-documents" : "val");
    uint64_t messages = seed * 9000011;
    if (throw(&messages, 3) == 0 && stage > 0)
        add(text, " --gather-encoding %s", throw(&messages, 2) ? "8bit" : "bf16");
    if (throw(&messages, 3) == 0 && strstr(text, "every-micro-batch") == NULL) {
        add(text, " --reduce-encoding %s", throw(&messages, 2) ? "8bit" : "4bit");
        if (seed % 3 == 0)
            add(text, " --error-feedback on");
    }
    if (seed % 3 == 0 && throw(&messages, 3) == 0)
        add(text, " --outer-every %zu", 1 + throw(&messages, 3));
    uint64_t order = seed * 7000003;
    if (throw(&order, 2))
        add(text, " --order %s", throw(&order, 4) ? "block" : "auto");
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* `reserved` is as planned, or less where a better plan of memory was found beside training. */
static void expect_planned(const char *arguments, json_t *object, bool may_be_less) {
    json_t *planned = field(object, "planned_peak_bytes"), *peak;
    const char *tier;
    static const char *const kinds[] = {"live", "peak"};
    expect_same_peaks(planned, object, !may_be_less);
    for (size_t i = 0; i < N_OF(kinds); i++) {
        double tables = number(object, "metadata_bytes.%s", kinds[i]);
        double own_tables = number(object, "planned_metadata_bytes.%s", kinds[i]);
        bool saves = strstr(arguments, "--checkpoint-dir") != NULL; /* real files have names */
        if (saves ? tables > own_tables + 4096 : tables != own_tables)
            fail_msg("%s: %.0f bytes of tables, %s, %.0f planned", arguments, tables, kinds[i],
                     own_tables);
    }
    double pinned = number(object, "pinned_bytes");
    if (pinned != number(object, "planned_pinned_bytes"))
        fail_msg("%s: %.0f bytes pinned, %.0f planned", arguments, pinned,
                 number(object, "planned_pinned_bytes"));
    json_object_foreach(field(object, "peak_bytes"), tier, peak) {
        double needed = number(peak, "reserved"), own = number(planned, "%s.reserved", tier);
        if (needed > own)
            fail_msg("%s: %s: %.0f reserved, %.0f planned", arguments, tier, needed, own);
    }
}

static bool check(uint64_t seed) {
    char arguments[1024];
    choose(seed, arguments);
    int code = run(arguments);
    json_t *object = kept_json(out);
    bool fits = json_is_true(field(object, "planned_fits"));
    if (fits != (code == 0))
        fail_msg("%s: the plan %s\n%s", arguments, fits ? "fits" : "does not fit", err);
    if (fits)
        expect_planned(arguments, object, strstr(arguments, "--memory-plan on") != NULL);
    return fits;
}

TEST(planned_is_measured) {
    size_t n_fitted = 0;
    for (size_t i = 0; i < n_cases; i++)
        n_fitted += check(first_case + i);
    print_message("%zu of %zu configurations fitted\n", n_fitted, n_cases);
    if (n_cases >= 24) { /* both must have been tried */
        assert_true(n_fitted >= n_cases / 2);
        assert_true(n_cases - n_fitted >= n_cases / 24);
    }
}

/* Whatever lengths sequences have: the first steps, in which a rank does not know yet which unit is
 * next, need less; each step that is longer than all before finds what those have left; a run that
 * goes on has the lengths that are left, and need not have been through the longest. All plans of
 * memory are as low as any can be, so that no better one is looked for. */
TEST(lengths_are_followed) {
#define FIRST TINY "--stage 3 --ranks 2 --micro-batch 2 --memory-plan off "
#define LONGER "--data text --seq-min 8 --model heads=2,seq=64,"
#define GONE_ON TINY "--stage 3 --ranks 2 --seq-min 2 --seed 4 --checkpoint-dir gone-on "
    static const char *const cases[] = {
        FIRST "--steps 1", FIRST "--steps 2", FIRST "--steps 20 --seq-min 2 --seed 2",
        FIRST "--steps 20 --seq-min 2 --seed 3 --grad-accum 2",
        FIRST "--steps 4 --seq-min 2 --seed 5", FIRST "--steps 3 --grad-accum 9",
        FIRST "--steps 4 --grad-accum 30 --seq-min 7",
        FIRST "--steps 2 --grad-accum 17 --seq-min 3 --seed 9",
        LONGER "layers=2,channels=32,vocab=256 --stage 3 --ranks 2 --micro-batch 2 --steps 12 "
               "--seed 11",
        LONGER "layers=2,channels=32,vocab=256 --stage 2 --ranks 2 --offload-optimizer cpu "
               "--grad-accum 3 --steps 12 --seed 3",
        LONGER "layers=2,channels=32,vocab=256 --stage 3 --ranks 2 --grad-accum 12 --steps 8 "
               "--seed 1",
        LONGER "layers=2,channels=32,vocab=256 --stage 0 --memory-plan off --recompute unit "
               "--steps 20 --seed 1",
        /* Tokens on their way to a late device have no place in the plan. */
        LONGER "layers=1,channels=32,vocab=256 --micro-batch 10 --grad-accum 2 --overlap-comm on "
               "--recompute unit --offload-activations cpu --steps 14 --seed 19",
        /* Products of few rows need memory, and those of more take as much. */
        LONGER "layers=1,channels=64,vocab=256 --stage 2 --micro-batch 4 --steps 12 --seed 8",
        /* Logits do not all exist at once: of fewer rows, more words did. */
        LONGER "layers=1,channels=8,vocab=5000 --stage 0 --micro-batch 64 --steps 12 --seed 1",
        GONE_ON "--steps 14", GONE_ON "--steps 24 --resume", GONE_ON "--steps 26 --resume"};
    for (size_t i = 0; i < N_OF(cases); i++)
        expect_planned(cases[i], run_json(0, "%s --quiet", cases[i]), false);
}

/* An evaluation before the first step reads parameters ahead, and the plan's early steps drop them.
 */
TEST(evaluations_with_drives) {
    static const char *const cases[] = {
        "--offload-params nvme", "--offload-params nvme --param-buffer 2048 --param-buffers 2",
        "--offload-params nvme --offload-param-ratio 0.5 --ranks 2 --eval-every 1",
        "--offload-params nvme --offload-optimizer nvme --update-at backward --eval-every 2",
        "--recompute unit --offload-activations nvme --eval-every 2"};
    if (!nvme)
        skip();
    for (size_t i = 0; i < N_OF(cases); i++) {
        char arguments[1024];
        snprintf(arguments, sizeof(arguments),
                 TINY "--stage 3 --steps 5 --quiet --nvme-path drive --val-data val %s", cases[i]);
        expect_planned(arguments, run_json(0, "%s", arguments), true);
    }
}

/* Ranks that save whole units save more or less than the first does, and some nothing. */
TEST(savers_pin_alike) {
    static const char *const cases[] = {"--stage 0 --ranks 2",
                                        "--stage 0 --ranks 5",
                                        "--stage 0 --ranks 8",
                                        "--stage 3 --ranks 4 --shard-group-size 1",
                                        "--stage 1 --ranks 4 --shard-group-size 2",
                                        "--stage 3 --ranks 3 --freeze wte,wpe",
                                        "--stage 0 --ranks 3 --checkpoint-async"};
    for (size_t i = 0; i < N_OF(cases); i++) {
        char arguments[1024];
        snprintf(arguments, sizeof(arguments),
                 "--model layers=1,channels=48,heads=2,seq=32,vocab=256 --data text --steps 2 "
                 "--quiet --checkpoint-dir pinned%zu %s",
                 i, cases[i]);
        expect_planned(arguments, run_json(0, "%s", arguments), true);
    }
}

/* Of a run that does not fit: what it takes without the budget. */
TEST(what_it_would_take) {
    json_t *within = run_json(1, TINY "--steps 3 --ranks 2 --device-memory 64KiB");
    json_t *without = run_json(0, TINY "--steps 3 --ranks 2");
    expect_fields(within, "planned_fits=false");
    assert_true(json_equal(json_object_get(within, "planned_peak_bytes"),
                           json_object_get(without, "planned_peak_bytes")));
}

/* For people, each peak has what was foretold beside it: two columns, the same here. */
TEST(people_are_told) {
    char copy[sizeof(err)], first[32], second[32], *rest = NULL;
    size_t n_lines = 0;
    assert_ran(0, TINY "--steps 3 --ranks 2 --stage 3 --offload-optimizer cpu --verbose");
    snprintf(copy, sizeof(copy), "%s", strstr(out, "  tag                        live    planned"));
    *strstr(copy, "  plan of a step") = '\0';
    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strlen(line) > 22 &&
            sscanf(line + 22, " %31[0-9.] %*[BKMi] %31[0-9.]", first, second) == 2) {
            assert_string_equal(first, second);
            n_lines++;
        }
    assert_true(n_lines >= 6);
}

/* Of 1 to 30 bytes each, half of which have no loss. */
static void write_documents(const char *name, size_t n) {
    static uint32_t words[256 + 3000];
    memset(words, 0, sizeof(words));
    words[0] = 20261123;
    words[1] = 1;
    words[2] = (uint32_t)n;
    for (size_t i = 0, left = 0; i < n; i++, left--) {
        bool begins = left == 0;
        if (begins)
            left = 1 + i * 7 % 30;
        words[256 + i] =
            (uint32_t)(97 + i * i % 26) | (uint32_t)begins << 30 | (uint32_t)(left % 2) << 31;
    }
    write_file(name, words, (256 + n) * sizeof(*words));
}

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    nvme = has_nvme();
    write_documents("documents", 3000);
    write_documents("val-documents", 150);
    write_file("val",
               "other words, which nobody learns, and of them a few hundred bytes at most; "
               "what is said here is not said again, so that windows differ from each other",
               150);
    return 0;
}

int main(int argc, char **argv) {
    is_llama = argc > 1 && strcmp(argv[1], "llama") == 0;
    if (is_llama) {
        n_cases = 12;
        argc--;
        argv++;
    }
    are_documents = argc > 1 && strcmp(argv[1], "documents") == 0;
    if (are_documents) {
        argc--;
        argv++;
    }
    if (argc > 1)
        n_cases = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        first_case = strtoul(argv[2], NULL, 10);
    return run_all_tests(prepare, leave_test_folder);
}
