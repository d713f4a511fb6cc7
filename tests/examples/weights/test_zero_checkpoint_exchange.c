/*
 * zero-checkpoint export and import as their users meet them: what goes in comes out bit for bit,
 * with which exit status, and what is said; docs/reference/json.md has every field.
 */
#include "tests/common/test.h"
#include "tests/examples/run_program.h"
#include "tests/examples/weights/made_weights.h"

#define MODEL "layers=2,channels=8,heads=2,seq=6,vocab=11"
static const zr_gpt_shape_t shape = {
    .n_layers = 2, .channels = 8, .heads = 2, .seq = 6, .vocab = 11};

static void expect(const char *arguments, int code) {
    expect_run("", ZERO_CHECKPOINT, arguments, code);
}

static void assert_same_files(const char *a, const char *b) {
    size_t n_a, n_b;
    unsigned char *bytes_a = made_file_read(a, &n_a), *bytes_b = made_file_read(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a);
    free(bytes_b);
}

static int enter(void **state) {
    zr_log_t log = zr_log_default();
    weights_report_t report;
    if (enter_test_folder(state) != 0)
        return -1;
    made_weights_t *made = made_weights(MODEL);
    bool is_written =
        weights_write_safetensors(&made->base, &(weights_export_t){.path = "a.safetensors"}, &log,
                                  &report) == ZR_OK &&
        weights_write_llmc(&made->base, &(weights_export_t){.path = "a.bin"}, &log, &report) ==
            ZR_OK;
    made_weights_free(&made);
    return is_written ? 0 : -1;
}

/* ---- there and back ---------------------------------------------------------------------- */

TEST(test_fp32_comes_back_bit_for_bit) {
    expect("import a.safetensors --checkpoint-dir c1", 0);
    expect_out("zero-train --checkpoint-dir c1 --resume");
    expect("export c1 -o b.safetensors", 0);
    assert_same_files("a.safetensors", "b.safetensors");
    expect("export c1/step-00000000 -o b.bin --format llm.c", 0);
    assert_same_files("a.bin", "b.bin");
    expect("import b.bin --checkpoint-dir c2", 0);
    expect("export c2 --output c.safetensors", 0);
    assert_same_files("a.safetensors", "c.safetensors");
    expect("verify c2", 0);
}

/* What a shorter dtype has is exact in the checkpoint, so that it comes back as it was. */
TEST(test_short_dtypes_are_rounded_once) {
    static const char *const dtypes[] = {"bf16", "fp16"};
    expect("import a.safetensors --checkpoint-dir c3", 0);
    for (size_t i = 0; i < 2; i++) {
        char line[512];
        snprintf(line, sizeof(line), "export c3 -o %s --dtype %s --shard-size 2kB", dtypes[i],
                 dtypes[i]);
        expect(line, 0);
        snprintf(line, sizeof(line), "import %s --checkpoint-dir c_%s", dtypes[i], dtypes[i]);
        expect(line, 0);
        snprintf(line, sizeof(line), "export c_%s -o %s_again --dtype %s --shard-size 2000",
                 dtypes[i], dtypes[i], dtypes[i]);
        expect(line, 0);
        snprintf(line, sizeof(line), "diff -r %s %s_again", dtypes[i], dtypes[i]);
        assert_int_equal(system(line), 0);
        assert_true(made_folder_count(dtypes[i]) > 3);
    }
}

/* ---- with zero-train --------------------------------------------------------------------- */

#define TRAIN                                                                                      \
    "--model " MODEL " --data text --device host --steps 2 --micro-batch 1 --lr 1e-2 "             \
    "--comm-timeout 60 "

static void write_text(void) {
    char text[600];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i % 11);
    made_file("text", text, sizeof(text));
}

/* The hash of the weights that a run ends with. */
static const char *train(const char *arguments) {
    return text(program_json(ZERO_TRAIN, 0, arguments), "weights_xxh3");
}

/* Whichever way weights have come, a run goes on from the same ones; and they are the file's: a run
   with a learning rate of 0 gives them back. */
TEST(test_training_goes_on_from_imported_weights) {
    write_text();
    expect("import a.safetensors --checkpoint-dir t1", 0);
    expect("import a.bin --checkpoint-dir t2", 0);
    expect("import a.bin --checkpoint-dir t3", 0);
    const char *first = train(TRAIN "--checkpoint-dir t1 --resume");
    const char *second =
        train(TRAIN "--checkpoint-dir t2 --resume --stage 3 --offload-optimizer cpu");
    const char *third = train(TRAIN "--checkpoint-dir t3 --resume --lr 0");
    assert_string_equal(first, second);
    assert_string_not_equal(first, third);
    expect("export t1 -o t1.safetensors", 0);
    expect("export t2 -o t2.safetensors", 0);
    expect("export t3/step-00000002 -o t3.safetensors", 0);
    assert_same_files("t1.safetensors", "t2.safetensors");
    assert_same_files("t3.safetensors", "a.safetensors");
}

/* Of text a token is a byte, whatever the vocabulary: that is said where the weights are another
   tool's, and not of a run's own. */
TEST(test_text_for_words_is_warned_of) {
    static const char trained[] = "--model layers=1,channels=8,heads=2,seq=6,vocab=257 --data text "
                                  "--device host --steps 1 --checkpoint-dir ";
    char arguments[512];
    write_text();
    for (int is_imported = 0; is_imported <= 1; is_imported++) {
        snprintf(arguments, sizeof(arguments), "%s%s --resume", trained, is_imported ? "b2" : "b1");
        train(arguments);
        assert_int_equal(strstr(err, "every byte is a token") != NULL, is_imported);
        if (!is_imported) {
            train(arguments);
            assert_null(strstr(err, "every byte is a token"));
            expect("export b1 -o b1.safetensors", 0);
            expect("import b1.safetensors --checkpoint-dir b2", 0);
        }
    }
}

/* ---- what is said ------------------------------------------------------------------------ */

TEST(test_json) {
    json_t *object = program_json(ZERO_CHECKPOINT, 0, "import a.bin --checkpoint-dir c4");
    assert_string_equal(err, "");
    expect_fields(object,
                  "format=llm.c dtype=fp32 checkpoint=c4/step-00000000 step=0 tensors=28 "
                  "parameters=%zu bytes=%zu ignored_tensors=0 model.heads=2",
                  zr_gpt_n_params(&shape), 4 * zr_gpt_n_params(&shape));
    assert_int_equal(json_array_size(field(object, "sources")), 1);
    expect_fields_documented(FIELDS_DOC, object, "", " model ");

    object = program_json(ZERO_CHECKPOINT, 0, "export c4 -o d --dtype bf16 --shard-size 2kB");
    expect_fields(object,
                  "format=safetensors dtype=bf16 output=d checkpoint=c4/step-00000000 files=%zu "
                  "model.vocab=11",
                  made_folder_count("d") - 2);
    assert_true(number(object, "bytes") > 2 * (double)zr_gpt_n_params(&shape));
    expect_fields_documented(FIELDS_DOC, object, "", " model ");
}

/* ---- what is refused --------------------------------------------------------------------- */

static void refuse(const char *arguments, const char *said) {
    expect_said(ZERO_CHECKPOINT, 2, arguments, said);
}

/* What the command line is wrong in; what is wrong in files is tested by
 * test_interchange_refused.c. */
TEST(test_refusals) {
    static const said_t cases[] = {
        {"export", "export takes CHECKPOINT, which is missing"},
        {"export c5", "-o PATH is missing"},
        {"export absent -o x", "cannot open absent: No such file"},
        {"export c5 -o x --format llm.c --dtype fp16", "files of llm.c have fp32 or bf16"},
        {"export c5 -o x --format llm.c --shard-size 1GB", "a model of llm.c is one file"},
        {"export c5 -o x --shard-size 0", "--shard-size 0: a size above 0 is needed"},
        {"export c5 -o a.bin", "-o a.bin: a file exists already"},
        {"export c5 -o x --model gpt2", "--model says layers=12, and c5"},
        {"export c5 -o absent/x", "-o absent/x: nothing can be made in absent: No such file"},
        {"export c5 -o a.bin/x", "nothing can be made in a.bin: not a folder"},
        {"import a.bin", "--checkpoint-dir DIR is missing"},
        {"import --checkpoint-dir x", "import takes PATH..., which is missing"},
        {"import a.bin --checkpoint-dir c5", "--checkpoint-dir c5: step-00000000 exists in it"},
        {"import a.bin --checkpoint-dir x --model gpt9", "--model gpt9: not a model's name"},
        {"import a.bin a.safetensors --checkpoint-dir x", "name it alone"},
        {"import a.bin --checkpoint-dir absent/x", "nothing can be made in absent: No such file"},
        {"import a.bin --checkpoint-dir a.bin", "--checkpoint-dir a.bin: nothing can be made in"}};
    expect("import a.bin --checkpoint-dir c5", 0);
    expect_all_said(ZERO_CHECKPOINT, 2, cases, N_OF(cases));
    assert_false(made_file_is_there("x"));
}

/* All of a GPT but what is behind tensor number n, with one dimension more of number `odd`. */
static void write_some(const char *folder, size_t n, size_t odd) {
    zr_checkpoint_writer_t *writer = NULL;
    zr_log_t log = zr_log_default();
    zr_save_options_t options = {.folder = folder};
    made_weights_t *made = made_weights(MODEL);
    assert_ok(zr_checkpoint_writer_create(&options, &log, &writer));
    for (size_t i = 0; i < n; i++) {
        const zr_model_tensor_t *tensor = &made->base.tensors.all[i];
        zr_param_desc_t desc = {.name = tensor->name,
                                .n_dims = tensor->n_dims + (i == odd),
                                .dims = {tensor->dims[0], tensor->dims[1], 1}};
        if (i == odd && tensor->n_dims == 1)
            desc.dims[1] = 1;
        assert_ok(zr_checkpoint_writer_add(writer, &desc));
    }
    made_weights_free(&made);
    assert_ok(zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
}

TEST(test_checkpoints_that_are_not_quite_one) {
    write_some("short", 27, 99);
    refuse("export short -o x --model " MODEL, "it has 27 tensors; a model with " MODEL " has 28");
    write_some("odd", 28, 3);
    refuse("export odd -o x --model " MODEL,
           "\"h.0.ln_1.bias\" has another shape than in a model with");
    write_some("whole", 28, 99);
    expect("export whole -o x --model " MODEL, 0);
    expect("import x --checkpoint-dir whole_again", 0);
    assert_int_equal(system("rm -r x"), 0);
}

/* Weights of another kind of model, and those that do not say of what model they are. */
TEST(test_other_checkpoints) {
    zr_checkpoint_writer_t *writer = NULL;
    zr_log_t log = zr_log_default();
    zr_save_options_t options = {.folder = "other", .trainer_json = "{\"model\":{\"layers\":1}}"};
    zr_param_desc_t desc = {.name = "w", .n_dims = 1, .dims = {8}};
    for (int i = 0; i < 2; i++) {
        assert_ok(zr_checkpoint_writer_create(&options, &log, &writer));
        assert_ok(zr_checkpoint_writer_add(writer, &desc));
        assert_ok(zr_checkpoint_writer_publish(writer));
        zr_checkpoint_writer_destroy(&writer);
        if (i == 0)
            refuse("export other -o x", "layers=1: channels is missing");
        options.trainer_json = NULL;
    }
    refuse("export other -o x", "it does not describe its model; add --model");
    write_text();
    assert_int_equal(run_program("", ZERO_TRAIN, "--checkpoint-dir other --resume --data text"), 2);
    assert_has(err, "other does not describe its model|give its --model");
    refuse("export other -o x --model " MODEL, "tensor \"w\" is not a part of a model with " MODEL);
    assert_false(made_file_is_there("x"));
}

TEST(test_a_damaged_checkpoint) {
    expect("import a.bin --checkpoint-dir c6", 0);
    assert_int_equal(system("printf x | dd of=c6/step-00000000/rank-00000.data bs=1 seek=1000 "
                            "conv=notrunc 2>/dev/null"),
                     0);
    expect("export c6 -o x", 1);
    assert_said("damaged", "rank-00000.data");
    assert_false(made_file_is_there("x"));
}

const test_group_t test_group = {enter, leave_test_folder};
