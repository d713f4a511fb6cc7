/*
 * The programs with models of the Llama family: at every stage, placement and dtype they train to
 * the same bits, in the memory that was planned; checkpoints say what they are of; a config.json is
 * enough to plan.
 */
#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

/* Every switch, in two models. */
#define ALL                                                                                        \
    "llama,layers=3,channels=20,heads=6,kv-heads=2,head-size=8,wide=28,seq=16,vocab=256,tied=1,"   \
    "qkv-bias=1,out-bias=1,mlp-bias=1,qk-norm=1,rope=llama3,rope-factor=4,window=5,windowed=0+2,"  \
    "unrotated=1"
#define PLAIN                                                                                      \
    "llama,layers=2,channels=24,heads=4,wide=40,seq=16,vocab=256,rope=linear,rope-factor=2"
#define DATA " --data text --comm-timeout 60 --lr 0.01 --schedule constant "

static bool nvme;

/* ---- training -------------------------------------------------------------------------------- */

TEST(all_ways_train_the_same) {
    static const char *const models[] = {ALL, PLAIN}, *const dtypes[] = {"fp32", "bf16"};
    static const char *const ways[] = {
        "--stage 1",
        "--stage 2 --offload-optimizer cpu",
        "--stage 3 --recompute unit",
        "--stage 3 --offload-optimizer cpu --offload-params cpu --recompute unit "
        "--offload-activations cpu",
        "--stage 0 --recompute never --offload-optimizer nvme --nvme-path drive",
        "--stage 3 --offload-optimizer nvme --offload-params nvme --nvme-path drive "
        "--recompute unit --offload-activations nvme --sub-group 2048 --param-buffer 2048"};
    for (size_t m = 0; m < N_OF(models); m++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            const char *dtype = dtypes[((size_t)ranks + m) % 2];
            json_t *first = run_json(0, "--model %s" DATA "--ranks %d --dtype %s --steps 4",
                                     models[m], ranks, dtype);
            expect_same_peaks(field(first, "planned_peak_bytes"), first, false);
            assert_true(number(first, "loss.last") < number(first, "loss.first"));
            for (size_t i = 0; i < N_OF(ways); i++) {
                if (!nvme && strstr(ways[i], "nvme") != NULL)
                    continue;
                json_t *other = run_json(0, "--model %s" DATA "--ranks %d --dtype %s --steps 4 %s",
                                         models[m], ranks, dtype, ways[i]);
                expect_fields(other, "weights_xxh3=%s", text(first, "weights_xxh3"));
                expect_same_peaks(field(other, "planned_peak_bytes"), other, false);
            }
        }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* A run in two parts, the second without --model, ends as one in one part. */
TEST(the_model_is_in_the_checkpoint) {
    static const char *const models[] = {ALL, PLAIN,
                                         "layers=2,channels=16,heads=2,seq=16,vocab=256"};
    for (size_t i = 0; i < N_OF(models); i++) {
        json_t *whole = run_json(0, "--model %s" DATA "--steps 4 --stage 2", models[i]);
        assert_ran(0, "--model %s" DATA "--steps 2 --stage 2 --checkpoint-dir ckpt", models[i]);
        json_t *rest = run_json(0, DATA "--steps 4 --stage 2 --checkpoint-dir ckpt --resume");
        expect_fields(rest, "checkpoint.resumed_at=2 weights_xxh3=%s", text(whole, "weights_xxh3"));
        expect_fields(rest, "model.parameters=%.0f", number(whole, "model.parameters"));
        assert_int_equal(system("rm -r ckpt"), 0);
    }
    assert_ran(0, "--model %s" DATA "--steps 1 --checkpoint-dir ckpt", ALL);
    static const struct {
        const char *model, *said;
    } others[] = {{PLAIN, "is of a model with layers=3, --model " PLAIN " has 2"},
                  {ALL ",epsilon=1e-6", "is of a model with epsilon=1e-05"},
                  {"layers=3,channels=20,heads=2,seq=16,vocab=256",
                   "is of a model with architecture=llama, --model layers=3,channels=20,heads=2,"
                   "seq=16,vocab=256 has gpt2"}};
    for (size_t i = 0; i < N_OF(others); i++) {
        assert_ran(2, "--model %s" DATA "--steps 2 --checkpoint-dir ckpt --resume",
                   others[i].model);
        assert_said(others[i].model, others[i].said);
    }
    assert_int_equal(system("rm -r ckpt"), 0);
}

/* ---- files and names ------------------------------------------------------------------------- */

#define CONFIG                                                                                     \
    "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 40, "                 \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 256, "                  \
    "\"max_position_embeddings\": 16, \"rms_norm_eps\": 1e-05, "                                   \
    "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}}"

TEST(a_configuration_is_enough) {
    assert_int_equal(mkdir("hf", 0777), 0);
    write_file("hf/config.json", CONFIG, strlen(CONFIG));
    json_t *by_sizes = run_json(0, "--model " PLAIN DATA "--steps 2");
    static const char *const paths[] = {"hf", "hf/config.json"};
    for (size_t i = 0; i < N_OF(paths); i++) {
        json_t *by_file = run_json(0, "--model %s" DATA "--steps 2", paths[i]);
        expect_fields(by_file, "model.name=%s weights_xxh3=%s", paths[i],
                      text(by_sizes, "weights_xxh3"));
        json_t *planned = plan_json(0, "--model %s --ranks 2 --hardware 8x-a100-80g", paths[i]);
        expect_fields(planned, "model.architecture=llama model.name=%s model.parameters=%.0f",
                      paths[i], number(by_file, "model.parameters"));
    }
    static const char bad[] = "{\"model_type\": \"llama\", \"hidden_act\": \"gelu\"}";
    write_file("hf/config.json", bad, strlen(bad));
    assert_ran(2, "--model hf" DATA);
    assert_said("hf", "--model hf/config.json: num_hidden_layers is missing");
    assert_not_said("hf", "wte");
}

/* What lies beside the configuration goes through checkpoints, also those of a run that goes on,
 * and comes back with the weights. */
TEST(a_folder_is_given_back_whole) {
    static const char tokenizer[] = "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 255}}}";
    static const char too_many[] = "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 256}}}";
    assert_int_equal(system("rm -rf hf && mkdir hf"), 0);
    write_file("hf/config.json", CONFIG, strlen(CONFIG));
    write_file("hf/tokenizer.json", too_many, strlen(too_many));
    assert_ran(2, "--model hf" DATA "--steps 1 --checkpoint-dir ckpt");
    assert_said("too many", "hf/tokenizer.json: token \"b\" has the id 256");
    write_file("hf/tokenizer.json", tokenizer, strlen(tokenizer));
    write_file("hf/chat_template.jinja", "{{ messages }}", 14);
    assert_ran(0, "--model hf" DATA "--steps 1 --ranks 2 --stage 3 --checkpoint-dir ckpt");
    assert_not_said("hf", "are not read");
    assert_int_equal(system("mv hf gone"), 0);
    assert_ran(0, DATA "--steps 2 --checkpoint-dir ckpt --resume");
    expect_run("", ZERO_CHECKPOINT, "export ckpt -o tuned", 0);
    assert_int_equal(system("cmp gone/tokenizer.json tuned/tokenizer.json && "
                            "cmp gone/chat_template.jinja tuned/chat_template.jinja && "
                            "test -f tuned/model.safetensors"),
                     0);
    assert_ran(0, "--model tuned" DATA "--steps 1");
    assert_said("tuned",
                "its weights (model.safetensors) are not read|zero-checkpoint import tuned");
    assert_int_equal(system("rm -r ckpt gone tuned"), 0);
}

/* A model of this size in seconds, and sequences that are trained on, not all that it could see. */
TEST(usual_models_are_planned) {
    json_t *object = plan_json(
        0, "--model llama-3.1-8b --ranks 8 --dtype bf16 --hardware 8x-a100-80g --recompute unit");
    expect_fields(object, "result=planned seq=2048 model.parameters=8030261248 model.kv_heads=8 "
                          "model.seq=131072");
    assert_true(number(recommended_plan(object), "stage") >= 1);
    assert_ran(2, "--model llama-3.1-9b" DATA);
    assert_said("llama-3.1-9b", "the nearest name is llama-3.1-8b");
}

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    nvme = has_nvme();
    return 0;
}

int main(void) {
    return run_all_tests(prepare, leave_test_folder);
}
