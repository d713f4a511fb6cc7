/*
 * zero-checkpoint export and import as their users meet them: what goes in comes out bit for bit,
 * with which exit status, and what is said; docs/checkpoints.md has every option and field.
 */
#include <ctype.h>
#include <jansson.h>
#include <sys/wait.h>

#include "tests/common/test.h"
#include "tests/examples/weights/made_weights.h"

#define MODEL "layers=2,channels=8,heads=2,seq=6,vocab=11"
static const gpt_shape_t shape = {.n_layers = 2, .channels = 8, .heads = 2, .seq = 6, .vocab = 11};

static char *out, *err;

static char *read_text(const char *path) {
    size_t n;
    unsigned char *bytes = made_file_read(path, &n);
    bytes[n] = '\0';
    return (char *)bytes;
}

/* Run a program with arguments of a shell. */
static void expect_of(const char *program, const char *arguments, int code) {
    char command[1024];
    snprintf(command, sizeof(command), "'%s' %s >out 2>err", program, arguments);
    int status = system(command);
    free(out);
    free(err);
    out = read_text("out");
    err = read_text("err");
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != code)
        fail_msg("%s: exit %d instead of %d\n%s%s", arguments, WEXITSTATUS(status), code, out, err);
}

static void expect(const char *arguments, int code) {
    expect_of(ZERO_CHECKPOINT, arguments, code);
}

static void refuse(const char *arguments, const char *said) {
    expect(arguments, 2);
    if (strstr(err, said) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", arguments, said, err);
    assert_string_equal(out, "");
}

static json_t *json_of_out(void) {
    json_error_t error;
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object))
        fail_msg("line %d: %s: %s", error.line, error.text, out);
    return object;
}

static long long number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("%s is no whole number", key);
    return json_integer_value(value);
}

static void assert_text(const json_t *object, const char *key, const char *expected) {
    assert_string_equal(json_string_value(json_object_get(object, key)), expected);
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
    made_weights_t made = made_weights(&shape);
    return weights_write_safetensors(&made.base, &(weights_export_t){.path = "a.safetensors"}, &log,
                                     &report) != ZR_OK ||
           weights_write_llmc(&made.base, &(weights_export_t){.path = "a.bin"}, &log, &report) !=
               ZR_OK;
}

/* ---- there and back ---------------------------------------------------------------------- */

TEST(test_fp32_comes_back_bit_for_bit) {
    expect("import a.safetensors --checkpoint-dir c1", 0);
    assert_non_null(strstr(out, "zero-train --model " MODEL " --checkpoint-dir c1 --resume"));
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
    "--model " MODEL " --data text --device host --steps 2 --micro-batch 1 --lr 1e-2 --json "      \
    "--comm-timeout 60 "

static void write_text(void) {
    char text[600];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i % 11);
    made_file("text", text, sizeof(text));
}

/* The hash of the weights that a run ends with. */
static char *train(const char *arguments) {
    expect_of(ZERO_TRAIN, arguments, 0);
    json_t *object = json_of_out();
    char *hash = strdup(json_string_value(json_object_get(object, "weights_xxh3")));
    assert_non_null(hash);
    json_decref(object);
    return hash;
}

/* Whichever way weights have come, a run goes on from the same ones; and they are the file's: a run
   with a learning rate of 0 gives them back. */
TEST(test_training_goes_on_from_imported_weights) {
    write_text();
    expect("import a.safetensors --checkpoint-dir t1", 0);
    expect("import a.bin --checkpoint-dir t2", 0);
    expect("import a.bin --checkpoint-dir t3", 0);
    char *first = train(TRAIN "--checkpoint-dir t1 --resume");
    char *second = train(TRAIN "--checkpoint-dir t2 --resume --stage 3 --offload-optimizer cpu");
    char *third = train(TRAIN "--checkpoint-dir t3 --resume --lr 0");
    assert_string_equal(first, second);
    assert_string_not_equal(first, third);
    expect("export t1 -o t1.safetensors", 0);
    expect("export t2 -o t2.safetensors", 0);
    expect("export t3/step-00000002 -o t3.safetensors", 0);
    assert_same_files("t1.safetensors", "t2.safetensors");
    assert_same_files("t3.safetensors", "a.safetensors");
    free(first);
    free(second);
    free(third);
}

/* Of text a token is a byte, whatever the vocabulary: that is said where the weights are another
   tool's, and not of a run's own. */
TEST(test_text_for_words_is_warned_of) {
    static const char trained[] = "--model layers=1,channels=8,heads=2,seq=6,vocab=257 --data text "
                                  "--device host --steps 1 --json --checkpoint-dir ";
    char arguments[512];
    write_text();
    for (int is_imported = 0; is_imported <= 1; is_imported++) {
        snprintf(arguments, sizeof(arguments), "%s%s --resume", trained, is_imported ? "b2" : "b1");
        free(train(arguments));
        assert_int_equal(strstr(err, "every byte is a token") != NULL, is_imported);
        if (!is_imported) {
            free(train(arguments));
            assert_null(strstr(err, "every byte is a token"));
            expect("export b1 -o b1.safetensors", 0);
            expect("import b1.safetensors --checkpoint-dir b2", 0);
        }
    }
}

/* ---- what is said ------------------------------------------------------------------------ */

/* In backticks: `name`. */
static void assert_documented(const char *document, const char *name) {
    char quoted[128];
    snprintf(quoted, sizeof(quoted), "`%s", name);
    size_t n = strlen(quoted);
    for (const char *at = document; (at = strstr(at, quoted)) != NULL; at++)
        if (at[n] == '`' || at[n] == ' ')
            return;
    fail_msg("docs/checkpoints.md says nothing of %s", name);
}

static void assert_fields_documented(const char *document, const json_t *object) {
    const char *key;
    json_t *value;
    union { /* jansson walks over objects that may change; this one does not */
        const json_t *given;
        json_t *object;
    } walked = {.given = object};
    json_object_foreach(walked.object, key, value) assert_documented(document, key);
}

TEST(test_json) {
    char *document = read_text(CHECKPOINTS_DOC);
    expect("import a.bin --checkpoint-dir c4 --json", 0);
    assert_string_equal(err, "");
    json_t *object = json_of_out();
    assert_text(object, "format", "llm.c");
    assert_text(object, "dtype", "fp32");
    assert_text(object, "checkpoint", "c4/step-00000000");
    assert_int_equal(json_array_size(json_object_get(object, "sources")), 1);
    assert_int_equal(number_of(object, "step"), 0);
    assert_int_equal(number_of(object, "tensors"), 28);
    assert_int_equal(number_of(object, "parameters"), gpt_n_params(&shape));
    assert_int_equal(number_of(object, "bytes"), 4 * gpt_n_params(&shape));
    assert_int_equal(number_of(object, "ignored_tensors"), 0);
    assert_int_equal(number_of(json_object_get(object, "model"), "heads"), 2);
    assert_fields_documented(document, object);
    json_decref(object);

    expect("export c4 -o d --dtype bf16 --shard-size 2kB --json", 0);
    object = json_of_out();
    assert_text(object, "format", "safetensors");
    assert_text(object, "dtype", "bf16");
    assert_text(object, "output", "d");
    assert_text(object, "checkpoint", "c4/step-00000000");
    assert_int_equal(number_of(object, "files") + 2, made_folder_count("d"));
    assert_true(number_of(object, "bytes") > 2 * (long long)gpt_n_params(&shape));
    assert_int_equal(number_of(json_object_get(object, "model"), "vocab"), 11);
    assert_fields_documented(document, object);
    json_decref(object);
    free(document);
}

TEST(test_options_are_documented) {
    char *document = read_text(CHECKPOINTS_DOC);
    static const char *const commands[] = {"export --help", "import --help"};
    for (size_t i = 0; i < 2; i++) {
        expect(commands[i], 0);
        size_t n = 0;
        for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            char name[64];
            /* "  -o, --output=PATH" or "      --json" */
            if (strlen(line) < 8 || strncmp(line + 6, "--", 2) != 0)
                continue;
            size_t length = strspn(line + 6, "abcdefghijklmnopqrstuvwxyz-");
            snprintf(name, sizeof(name), "%.*s", (int)length, line + 6);
            assert_documented(document, name);
            n++;
        }
        assert_true(n >= 5);
    }
    free(document);
}

/* ---- what is refused --------------------------------------------------------------------- */

TEST(test_refusals) {
    expect("import a.bin --checkpoint-dir c5", 0);
    refuse("export", "export takes CHECKPOINT, which is missing");
    refuse("export c5", "-o PATH is missing");
    refuse("export absent -o x", "cannot open absent: No such file");
    refuse("export c5 -o x --format gguf", "--format gguf: allowed are safetensors, llm.c");
    refuse("export c5 -o x --dtype fp8", "--dtype fp8: allowed are fp32, bf16, fp16");
    refuse("export c5 -o x --format llm.c --dtype fp16", "files of llm.c have fp32 or bf16");
    refuse("export c5 -o x --format llm.c --shard-size 1GB", "a model of llm.c is one file");
    refuse("export c5 -o x --shard-size 0", "--shard-size 0: a size above 0 is needed");
    refuse("export c5 -o a.bin", "-o a.bin: a file is there already");
    refuse("export c5 -o x --model gpt2", "--model says layers=12");
    refuse("import a.bin", "--checkpoint-dir DIR is missing");
    refuse("import --checkpoint-dir x", "import takes PATH..., which is missing");
    refuse("import a.bin --checkpoint-dir c5", "--checkpoint-dir c5: step-00000000 is in it");
    refuse("import a.bin --checkpoint-dir x --model gpt2", "--model says layers=12");
    refuse("import a.bin --checkpoint-dir x --model gpt9", "--model gpt9: \"gpt9\" is neither");
    refuse("import absent --checkpoint-dir x", "cannot open absent");
    refuse("import a.bin a.safetensors --checkpoint-dir x", "name it alone");
    refuse("export c5 -o absent/x", "-o absent/x: nothing can be made in absent: No such file");
    refuse("export c5 -o a.bin/x", "nothing can be made in a.bin: not a folder");
    refuse("export c5 -o ''", "option --output needs a value, and \"\" is empty");
    refuse("import a.bin --checkpoint-dir absent/x", "nothing can be made in absent: No such file");
    refuse("import a.bin --checkpoint-dir a.bin", "--checkpoint-dir a.bin: nothing can be made in");
    refuse("import a.bin --checkpoint-dir ''",
           "option --checkpoint-dir needs a value, and \"\" is empty");
    assert_false(made_file_is_there("x"));
}

/* All of a GPT but what is behind tensor number n, with one dimension more of number `odd`. */
static void write_some(const char *folder, size_t n, size_t odd) {
    zr_checkpoint_writer_t *writer = NULL;
    zr_log_t log = zr_log_default();
    zr_save_options_t options = {.folder = folder};
    assert_int_equal(zr_checkpoint_writer_create(&options, &log, &writer), ZR_OK);
    for (size_t i = 0; i < n; i++) {
        gpt_tensor_t tensor = gpt_tensor_at(&shape, i);
        zr_param_desc_t desc = {.name = tensor.name,
                                .n_dims = tensor.n_dims + (i == odd),
                                .dims = {tensor.dims[0], tensor.dims[1], 1}};
        if (i == odd && tensor.n_dims == 1)
            desc.dims[1] = 1;
        assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_OK);
    }
    assert_int_equal(zr_checkpoint_writer_publish(writer), ZR_OK);
    zr_checkpoint_writer_destroy(&writer);
}

TEST(test_checkpoints_that_are_not_quite_one) {
    write_some("short", 27, 99);
    refuse("export short -o x --model " MODEL, "it has 27 tensors; a GPT with " MODEL " has 28");
    write_some("odd", 28, 3);
    refuse("export odd -o x --model " MODEL, "\"h.0.ln_1.bias\" has another shape than in a GPT");
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
        assert_int_equal(zr_checkpoint_writer_create(&options, &log, &writer), ZR_OK);
        assert_int_equal(zr_checkpoint_writer_add(writer, &desc), ZR_OK);
        assert_int_equal(zr_checkpoint_writer_publish(writer), ZR_OK);
        zr_checkpoint_writer_destroy(&writer);
        if (i == 0)
            refuse("export other -o x", "\"channels\" is missing");
        options.trainer_json = NULL;
    }
    refuse("export other -o x", "its trainer has not said what model it is of; add --model");
    refuse("export other -o x --model " MODEL, "tensor \"w\" is no part of a GPT with " MODEL);
    assert_false(made_file_is_there("x"));
}

TEST(test_a_damaged_checkpoint) {
    expect("import a.bin --checkpoint-dir c6", 0);
    assert_int_equal(system("printf x | dd of=c6/step-00000000/rank-00000.data bs=1 seek=1000 "
                            "conv=notrunc 2>/dev/null"),
                     0);
    expect("export c6 -o x", 1);
    assert_non_null(strstr(err, "rank-00000.data"));
    assert_false(made_file_is_there("x"));
}

const test_group_t test_group = {enter, leave_test_folder};
