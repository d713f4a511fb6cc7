/*
 * zero-train on documents with masks: the same bits at every stage, planned to the byte, in two
 * parts as in one; other data are refused; several paths by weight.
 */
#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"

#define DOCUMENTS                                                                                  \
    "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data documents --comm-timeout 60 "

/* Documents of 1 to 40 bytes, of which the second half has a loss; the last ones have none, so that
 * there are steps and ranks without any. */
static void write_documents(const char *name, size_t n, size_t first) {
    static uint32_t words[256 + 4000];
    uint32_t header[4] = {20261123, 1, (uint32_t)n, 0};
    memset(words, 0, sizeof(words));
    memcpy(words, header, sizeof(header));
    for (size_t i = 0, length = 0, at = 0; i < n; i++, at++) {
        uint32_t begins = at == length ? (uint32_t)1 << 30 : 0;
        if (begins != 0) {
            length = 1 + (i * 7 + first) % 40;
            at = 0;
        }
        bool has_loss = at >= length / 2 && i < n / 2;
        words[256 + i] = (uint32_t)("lazy dogs and foxes"[(i * i + first) % 19]) | begins |
                         (has_loss ? 0 : (uint32_t)1 << 31);
    }
    write_file(name, words, (256 + n) * sizeof(*words));
}

static void expect_same_weights(json_t *a, json_t *b) {
    assert_string_equal(text(a, "weights_xxh3"), text(b, "weights_xxh3"));
}

/* Of one rank there are steps without a target that counts; of more, ranks. */
static void expect_same_bits(const char *model, int n_ranks) {
    json_t *first = NULL;
    for (int stage = 0; stage <= 3; stage++) {
        json_t *object = run_json(
            0,
            "--model %s --data documents --steps 6 --micro-batch 1 --grad-accum 2 --ranks %d "
            "--stage %d --reduce every-micro-batch --recompute %s --threads 1",
            model, n_ranks, stage, stage % 2 ? "unit" : "none");
        first = first != NULL ? first : object;
        expect_same_weights(object, first);
        expect_same_peaks(field(object, "planned_peak_bytes"), object, false);
        expect_fields(object, "data.kind=documents data.targets=496 planned_fits=true");
    }
}

/* What it costs to leave out --pack is said once, by one process, with the number. */
TEST(padding_is_told) {
    assert_ran(0, DOCUMENTS "--steps 1 --ranks 2");
    const char *told = strstr(err, "warning: --data: ");
    assert_non_null(told);
    assert_has(told,
               "% of the tokens computed are padding: the documents have 2000 tokens in total, ");
    assert_has(told, "--pack 16 to reduce padding");
    assert_null(strstr(strstr(told, "are padding") + 1, "are padding"));
    assert_int_equal(run_by_hand(2, DOCUMENTS "--steps 1"), 0);
    assert_said("rank 0", "% of the tokens computed are padding");
    read_file("err.1", err, sizeof(err));
    assert_null(strstr(err, "padding"));
}

TEST(stages_end_in_the_same_bits) {
    static const char *const models[] = {
        "layers=2,channels=16,heads=2,seq=16,vocab=256",
        "llama,layers=2,channels=16,heads=2,kv-heads=1,wide=24,seq=16,vocab=256"};
    for (size_t i = 0; i < N_OF(models); i++)
        for (int n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
            expect_same_bits(models[i], n_ranks);
}

/* A step's loss is the mean over its targets, however they are spread. */
TEST(a_loss_is_of_the_steps_targets) {
    json_t *one = run_json(0, DOCUMENTS "--steps 1 --micro-batch 8");
    double loss = number(one, "loss.first");
    json_t *four = run_json(0, DOCUMENTS "--steps 1 --micro-batch 1 --grad-accum 2 --ranks 4");
    assert_true(fabs(number(four, "loss.first") - loss) < 1e-6);
}

TEST(it_goes_on_as_it_was) {
    json_t *whole = run_json(0, DOCUMENTS "--steps 6 --ranks 2");
    for (int is_rest = 0; is_rest < 2; is_rest++) {
        json_t *object = run_json(
            0, DOCUMENTS "--steps 6 --ranks 2 --checkpoint-dir ckpt --checkpoint-every 3 %s",
            is_rest ? "--resume" : "");
        expect_same_weights(object, whole);
        assert_int_equal(system("rm -r ckpt/step-00000006"), 0);
    }
    expect_said(ZERO_TRAIN, 2, TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume",
                "data of other kind: \"documents\", now \"text\"|--resume-data restart");
    write_documents("documents", 2000, 5);
    expect_said(ZERO_TRAIN, 2, DOCUMENTS "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume",
                "data of other hash: ");
    assert_ran(0, TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume --resume-data restart");
    write_documents("documents", 2000, 0);
}

#define TWO "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data documents others "
TEST(paths_have_weights) {
    json_t *object = run_json(0, TWO "--data-weights 3,1 --steps 4 --checkpoint-dir weighted");
    expect_fields(object, "data.files=2 data.tokens=3000");
    expect_said(ZERO_TRAIN, 2,
                TWO "--data-weights 1,1 --steps 8 --checkpoint-dir weighted --resume",
                "data of other weights: \"3,1\", now \"1,1\"");
    expect_said(ZERO_TRAIN, 2, TWO "--steps 8 --checkpoint-dir weighted --resume",
                "data of other weights: \"3,1\", now \"\"");
    assert_ran(0, TWO "--data-weights 3,1 --steps 8 --checkpoint-dir weighted --resume");
    expect_said(ZERO_TRAIN, 2, TWO "--data-weights 1", "1 weight for 2 paths of --data");
    expect_said(ZERO_TRAIN, 2, TWO "--data-weights 1,x", "\"x\" is not a number");
    expect_said(ZERO_TRAIN, 2, TWO "--data-weights 1,0", "--data-weights: 0 for others");
    expect_said(ZERO_TRAIN, 2, DOCUMENTS "--seq-min 4",
                "documents, whose sequences cannot be shortened");
}

/* The mean over all targets that count, in micro-batches of any size, some without any. */
TEST(documents_are_evaluated) {
#define EVALUATE_OF(data)                                                                          \
    "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --threads 1 --eval-only "               \
    "--val-data " data " "
#define EVALUATE EVALUATE_OF("others")
    double loss = number(run_json(0, EVALUATE "--micro-batch 1"), "evaluation.loss.first");
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++) {
        json_t *object = run_json(0, EVALUATE "--ranks %d --stage 3", n_ranks);
        expect_fields(object, "evaluation.data.kind=documents evaluation.loss.first=%.15g", loss);
        expect_same_peaks(field(object, "planned_peak_bytes"), object, true);
        object = run_json(0, EVALUATE "--ranks %d --micro-batch %d", n_ranks, 3 * n_ranks);
        assert_true(fabs(number(object, "evaluation.loss.first") - loss) < 1e-6);
    }
    json_t *without = run_json(0, DOCUMENTS "--steps 4 --ranks 2 --stage 3");
    json_t *with =
        run_json(0, DOCUMENTS "--steps 4 --ranks 2 --stage 3 --val-data others --eval-every 1");
    expect_same_weights(with, without);
    expect_same_peaks(field(with, "planned_peak_bytes"), with, true);
    expect_said(ZERO_TRAIN, 2, DOCUMENTS "--steps 4 --val-data text",
                "--val-data is text and --data is documents");
}

/* There is no mean of nothing: an evaluation whose windows are all ignored is refused, whoever
 * would have made it and however many; as soon as one token counts there is a loss. */
TEST(an_evaluation_has_targets) {
    static const char *const ways[] = {"--eval-batches 1", "--eval-batches 3 --ranks 3 --stage 3",
                                       "--eval-batches 1 --micro-batch 4"};
    uint32_t words[256 + 400] = {20261123, 1, 400};
    for (uint32_t i = 0; i < 400; i++)
        words[256 + i] = (97 + i % 26) | (i % 20 == 0) << 30 | (uint32_t)(i < 200) << 31;
    write_file("late", words, sizeof(words));
    for (size_t i = 0; i < N_OF(ways); i++) {
        assert_ran(2, EVALUATE_OF("late") "%s", ways[i]);
        assert_has(err, "no token of what is evaluated");
        assert_has(err, "of --val-data) has a loss");
        assert_ran(2, DOCUMENTS "--steps 2 --val-data late %s", ways[i]);
        assert_has(err, "give more, or leave it out");
    }
    json_t *object = run_json(0, EVALUATE_OF("late") "--eval-batches 30 --ranks 3");
    assert_true(json_is_real(field(object, "evaluation.loss.first")));
}

/* What zero-plan says of such data is what the run takes. */
TEST(zero_plan_knows_documents) {
    json_t *trained = run_json(0, DOCUMENTS "--steps 3 --ranks 2 --stage 2");
    double of_data = number(trained, "peak_bytes.device.tags.data");
    assert_true(of_data == 3 * 16 * 4);
    json_t *planned = program_json(
        ZERO_PLAN, 0,
        "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --documents --ranks 2 --stage 2 "
        "--micro-batch 1 --offload-optimizer none --offload-params none --recompute none --json");
    assert_true(number(json_array_get(field(planned, "plans"), 0), "peak_bytes.device.live") ==
                number(trained, "peak_bytes.device.live"));
}

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    write_documents("documents", 2000, 0);
    write_documents("others", 1000, 3);
    return 0;
}

const test_group_t test_group = {prepare, leave_test_folder};
