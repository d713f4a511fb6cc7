/*
 * Low-rank adapters as users of zero-train and zero-checkpoint meet them: a run that trains nothing
 * else, at every stage and placement the same bits, as planned; its adapters go out and come in
 * again; merged they say what they say apart; and files that are not what they should be are
 * refused. That PEFT says the same of them, check_hugging_face.py has compared.
 */
#include "tests/common/test.h"
#include "tests/examples/run_program.h"
#include "tests/examples/weights/made_weights.h"

#define MODEL "llama,layers=2,channels=16,heads=2,kv-heads=1,wide=24,seq=16,vocab=256,tied=1"
#define LORA "--lora rank=2,alpha=6,targets=q_proj,mlp.down_proj "
#define HALF LORA "--dtype bf16 "
#define TRAIN                                                                                      \
    "--data text --device host --steps 3 --micro-batch 1 --seq 16 --lr 1e-1 --comm-timeout 60 "

static void expect_err(const char *parts) {
    assert_said("standard error", parts);
}

static void expect(const char *arguments, int code) {
    expect_run("", ZERO_CHECKPOINT, arguments, code);
}

static int enter(void **state) {
    char text[900];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 11);
    if (enter_test_folder(state) != 0)
        return -1;
    made_file("text", text, sizeof(text));
    expect_run("", ZERO_TRAIN,
               "--model " MODEL " --data text --device host --steps 1 --seq 16 "
               "--checkpoint-dir base",
               0);
    expect("export base -o hf --dtype bf16", 0);
    return 0;
}

const test_group_t test_group = {enter, leave_test_folder};

/* A run from the folder's weights: its report. */
static json_t *run(const char *name, const char *arguments) {
    char line[1024];
    snprintf(line, sizeof(line), "import hf --checkpoint-dir %s", name);
    if (access(name, F_OK) != 0)
        expect(line, 0);
    snprintf(line, sizeof(line), TRAIN "--checkpoint-dir %s --resume %s", name, arguments);
    return program_json(ZERO_TRAIN, 0, line);
}

/* ---- training ---------------------------------------------------------------------------- */

TEST(test_every_stage_and_placement) {
    static const char *const placements[] = {
        "--stage 1 --offload-optimizer cpu", "--stage 2 --ranks 1",
        "--stage 3 --offload-params cpu --offload-optimizer cpu",
        "--stage 3 --offload-params nvme --offload-optimizer nvme --nvme-path . --recompute unit",
        "--stage 3 --order block --reduce every-micro-batch"};
    const char *hash = text(run("a0", HALF "--stage 0 --master apart --ranks 2"), "weights_xxh3");
    for (size_t i = 0; i < N_OF(placements); i++) {
        char name[8], arguments[256];
        snprintf(name, sizeof(name), "a%zu", i + 1);
        snprintf(arguments, sizeof(arguments), HALF "--master split --ranks 2 %s", placements[i]);
        json_t *report = run(name, arguments);
        expect_same_peaks(field(report, "planned_peak_bytes"), report, true);
        bool is_same = strcmp(text(report, "weights_xxh3"), hash) == 0;
        if (is_same != (strstr(arguments, "--ranks 1") == NULL))
            fail_msg("%s: %s weights", placements[i], is_same ? "the same" : "other");
    }
}

/* ---- weights in fewer bits ----------------------------------------------------------------- */

static const char *hash_of(const char *name, const char *arguments) {
    json_t *report = run(name, arguments);
    expect_same_peaks(field(report, "planned_peak_bytes"), report, true);
    return text(report, "weights_xxh3");
}

/* Weights that are bf16 anyway are the same in bf16. */
TEST(test_base_in_fewer_bits) {
    static const char *const bases[] = {"dtype", "bf16", "8bit", "nf4"};
    static const char *const placements[] = {
        "--stage 2 --recompute unit", "--stage 3 --prefetch 0",
        "--stage 3 --offload-params cpu --offload-optimizer cpu --order block",
        "--stage 3 --offload-params nvme --offload-optimizer nvme --nvme-path . --recompute unit"};
    const char *hashes[N_OF(bases)];
    double sent[N_OF(bases)];
    for (size_t i = 0; i < N_OF(bases); i++) {
        char arguments[300], name[16];
        snprintf(arguments, sizeof(arguments), LORA "--ranks 2 --stage 0 --lora-base %s", bases[i]);
        snprintf(name, sizeof(name), "f%zu", i);
        hashes[i] = hash_of(name, arguments);
        expect_fields(kept_json(out), "model.lora_base=%s", bases[i]);
        for (size_t k = 0; k < N_OF(placements); k++) {
            snprintf(arguments, sizeof(arguments), LORA "--ranks 2 --lora-base %s %s", bases[i],
                     placements[k]);
            snprintf(name, sizeof(name), "f%zu_%zu", i, k);
            if (strcmp(hash_of(name, arguments), hashes[i]) != 0)
                fail_msg("%s, %s: other weights", bases[i], placements[k]);
            sent[i] = number(kept_json(out), "comm_bytes.all_gather");
        }
    }
    assert_string_equal(hashes[0], hashes[1]);
    assert_string_not_equal(hashes[0], hashes[2]);
    assert_string_not_equal(hashes[0], hashes[3]);
    assert_true(sent[1] < sent[0] && sent[2] < sent[1] && sent[3] < sent[2]);
}

static ino_t file_of(const char *path) {
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    return about.st_ino;
}

/* Checkpoints have the weights that adapters are beside by links, and are whole without each
 * other. */
TEST(test_links) {
    static const char *const bases[] = {"dtype", "8bit", "nf4"};
    for (size_t i = 0; i < N_OF(bases); i++) {
        char arguments[256];
        assert_int_equal(system("rm -rf l1 l2 l_adapter l_merged l_again"), 0);
        snprintf(arguments, sizeof(arguments), LORA "--lora-base %s ", bases[i]);
        const char *whole = text(run("l1", arguments), "weights_xxh3");
        snprintf(arguments, sizeof(arguments),
                 LORA "--lora-base %s --checkpoint-every 1 --checkpoint-keep 2 --ranks 1",
                 bases[i]);
        run("l2", arguments);
        assert_int_equal(access("l2/step-00000000", F_OK), -1);
        assert_true(file_of("l2/step-00000002/base-00000.data") ==
                    file_of("l2/step-00000003/base-00000.data"));
        assert_int_equal(system("rm -r l2/step-00000003"), 0);
        expect("verify l2", 0);
        snprintf(arguments, sizeof(arguments), "--lora-base %s ", bases[i]);
        assert_string_equal(text(run("l2", arguments), "weights_xxh3"), whole);
        expect("export l1 --merge -o l_merged", 0);
        expect("export l2 --merge -o l_again", 0);
        assert_int_equal(system("diff -r l_merged l_again"), 0);
    }
}

/* Where adapters and weights were saved together, they are again. */
TEST(test_nothing_to_link) {
    expect_run("", ZERO_TRAIN, TRAIN "--model " MODEL " --checkpoint-dir s --steps 2 " LORA, 0);
    assert_int_equal(access("s/step-00000002/base-00000.data", F_OK), -1);
    run("s", "--steps 3");
    assert_int_equal(access("s/step-00000003/base-00000.data", F_OK), -1);
    expect_run("", ZERO_TRAIN, TRAIN "--model " MODEL " --checkpoint-dir s2 --lora-base nf4 " LORA,
               2);
    expect_err("--lora-base nf4 with --checkpoint-dir: checkpoints link to the weights");
}

/* ---- there and back ---------------------------------------------------------------------- */

TEST(test_adapters_come_back) {
    run("b", LORA);
    expect("export b --adapter -o b_adapter", 0);
    expect("import hf --adapter b_adapter --checkpoint-dir b2", 0);
    expect("export b2 --adapter -o b2_adapter", 0);
    assert_int_equal(system("diff -r b_adapter b2_adapter"), 0);
    expect("export b --merge -o b_merged --dtype fp32", 0);
    expect("export b2 --merge -o b2_merged --dtype fp32", 0);
    assert_int_equal(system("diff -r b_merged b2_merged"), 0);
    run("b2", "--lora-base nf4"); /* saves links to the weights that were imported */
    assert_true(file_of("b2/step-00000000/base-00000.data") ==
                file_of("b2/step-00000003/base-00000.data"));
}

/* It goes on with the adapters that it finds; others are refused. */
TEST(test_resume) {
    const char *whole = text(run("r", LORA "--checkpoint-every 2"), "weights_xxh3");
    assert_int_equal(system("rm -r r/step-00000003 r/step-00000000"), 0);
    json_t *report = run("r", "");
    assert_string_equal(text(report, "weights_xxh3"), whole);
    assert_string_equal(text(report, "model.lora"), "rank=2,alpha=6,targets=q_proj,mlp.down_proj");
    run("r", "--lora-base nf4");
    expect_err("adapters were trained with --lora-base dtype; this run has nf4");
    expect_run("", ZERO_TRAIN, TRAIN "--checkpoint-dir r --resume --lora rank=3", 2);
    expect_err("has adapters of --lora rank=2,alpha=6,targets=q_proj,mlp.down_proj");
}

static double evaluate(const char *folder) {
    char line[256];
    snprintf(line, sizeof(line),
             "--checkpoint-dir %s --resume --eval-only --val-data text --device host --seq 16 "
             "--dtype fp32",
             folder);
    json_t *loss =
        json_object_get(json_object_get(program_json(ZERO_TRAIN, 0, line), "evaluation"), "loss");
    return json_number_value(json_object_get(loss, "last"));
}

TEST(test_merged_says_the_same) {
    run("m", LORA);
    expect("export m --merge -o m_merged --dtype fp32", 0);
    expect("import m_merged --checkpoint-dir m2", 0);
    expect("import hf --checkpoint-dir m0", 0);
    double apart = evaluate("m"), merged = evaluate("m2"), before = evaluate("m0");
    assert_true(fabs(apart - merged) < 1e-5);
    assert_true(fabs(apart - before) > 1e-3);
}

/* ---- what is refused --------------------------------------------------------------------- */

TEST(test_options) {
    static const char *const wrong[][2] = {
        {"rank=0", "rank is not an allowed number; allowed: 1 to 4096"},
        {"rank=4097", "rank is not an allowed number"},
        {"rank=-1", "rank is not an allowed number"},
        {"alpha=0", "alpha is not an allowed number"},
        {"alpha=nan", "alpha is not an allowed number"},
        {"ranks=3", "an unknown key; allowed: rank, alpha and targets"},
        {"rank=2,q_proj", "an unknown key"},
        {"targets=", "targets are names"},
        {"targets=q_proj,", "the value after the last comma is missing"},
        {"targets=.*", "targets are names"},
        {"targets=c_attn", "\"c_attn\" is not a linear layer of the model; allowed: all-linear, "
                           "and self_attn.q_proj"},
        {"targets=q_proj,embed_tokens", "\"embed_tokens\" is not a linear layer"}};
    for (size_t i = 0; i < N_OF(wrong); i++) {
        char line[512];
        snprintf(line, sizeof(line), TRAIN "--model " MODEL " --lora '%s'", wrong[i][0]);
        expect_run("", ZERO_TRAIN, line, 2);
        expect_err(wrong[i][1]);
        expect_err("--lora");
    }
}

TEST(test_options_that_need_others) {
    expect_run("", ZERO_TRAIN, TRAIN "--model " MODEL " --lora-base nf4", 2);
    expect_err("--lora-base nf4: weights that are trained have the dtype of --dtype; add --lora");
    expect_run("", ZERO_TRAIN, TRAIN "--model " MODEL " --lora rank=2 --freeze layers.0", 2);
    expect_err("--freeze layers.0: --lora freezes all but its adapters");
}

TEST(test_commands) {
    run("o", LORA);
    expect("export o -o x", 2);
    expect_err(
        "has adapters (--lora rank=2,alpha=6,targets=q_proj,mlp.down_proj): add --adapter to");
    expect("export o --adapter --merge -o x", 2);
    expect_err("add --adapter to");
    expect("export o --adapter --shard-size 1MB -o x", 2);
    expect_err("--shard-size");
    expect("export o/step-00000000 --merge -o x", 2);
    expect_err("has no adapters");
    expect("import hf --adapter text --checkpoint-dir x", 2);
    expect_err("--adapter text: no folder");
    expect("import hf --adapter hf --checkpoint-dir x", 2);
    expect_err("adapter_config.json");
    assert_int_equal(access("x", F_OK), -1);
}

/* A change of a good folder's configuration, by sed, or of its tensors. */
TEST(test_hostile_adapters) {
    static const char *const changes[][2] = {
        {"s/\"LORA\"/\"IA3\"/", "peft_type is IA3"},
        {"s/\"r\": 2/\"r\": 3/", "has another shape"},
        {"s/\"r\": 2/\"r\": -2/", "r and lora_alpha must be"},
        {"s/\"r\": 2/\"r\": 1e300/", "r and lora_alpha must be"},
        {"s/\"r\": 2/\"r\": 99999999999999999999/", "no object of JSON"},
        {"s/\"r\": 2/\"r\": 5000000/", "rank is not an allowed number"},
        {"s/\"lora_alpha\": 6/\"lora_alpha\": 0/", "r and lora_alpha must be"},
        {"s/\"none\"/\"all\"/", "bias is set"},
        {"s/\"r\": 2/\"r\": 2, \"use_dora\": true/", "use_dora is set"},
        {"s/\"r\": 2/\"r\": 2, \"alora_invocation_tokens\": [3]/",
         "alora_invocation_tokens is set"},
        {"s/\"r\": 2/\"r\": 2, \"kasa_config\": {\"a\": 1}/", "kasa_config is set"},
        {"s/\"r\": 2/\"r\": 2, \"not_invented_yet\": 0.5/", "not_invented_yet is set"},
        {"s/\"r\": 2/\"r\": 2, \"init_lora_weights\": \"pissa\"/", "init_lora_weights"},
        {"s/\"r\": 2/\"r\": 2, \"rank_pattern\": {\"q\": 3}/", "rank_pattern is set"},
        {"s/\"r\": 2/\"r\": 2, \"r\": 2/", "no object of JSON"},
        {"s/\"q_proj\"/\".*\"/", "targets are names"},
        {"s/\"q_proj\"/\"c_attn\"/", "is not a linear layer"},
        {"s/\"q_proj\"/\"q_proj\", \"k_proj\"/", "k_proj.lora_A.weight\" is missing"},
        {"s/\"q_proj\",//", "is not an adapter of the layers"},
        {"s/\"q_proj\"/7/", "target_modules has no names"},
        {"s/{/[/", "no object of JSON"}};
    run("h", LORA);
    expect("export h --adapter -o h_adapter", 0);
    for (size_t i = 0; i < N_OF(changes); i++) {
        char line[512];
        snprintf(line, sizeof(line),
                 "rm -rf h2 && cp -r h_adapter h2 && tr -d '\\n' <h_adapter/adapter_config.json | "
                 "tr -s ' ' | sed '%s' >h2/adapter_config.json",
                 changes[i][0]);
        assert_int_equal(system(line), 0);
        expect("import hf --adapter h2 --checkpoint-dir x", 2);
        expect_err(changes[i][1]);
        assert_int_equal(access("x", F_OK), -1);
    }
    size_t n;
    unsigned char *bytes = made_file_read("h_adapter/adapter_model.safetensors", &n);
    assert_int_equal(system("rm -rf h2 && cp -r h_adapter h2"), 0);
    made_file("h2/adapter_model.safetensors", bytes, n - 1);
    expect("import hf --adapter h2 --checkpoint-dir x", 2);
    memset(bytes + n - 4, 0xff, 4); /* a NaN */
    made_file("h2/adapter_model.safetensors", bytes, n);
    expect("import hf --adapter h2 --checkpoint-dir x", 2);
    expect_err("use weights without such values");
    free(bytes);
}
