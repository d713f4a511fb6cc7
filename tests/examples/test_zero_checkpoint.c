/*
 * zero-checkpoint list and verify as their users meet them: exit status, standard output and
 * standard error, on checkpoints that are whole, damaged, half made, and on what is none.
 */
#include <jansson.h>
#include <sys/wait.h>

#include "tests/common/test.h"
#include "zero/zero.h"

static char out[65536], err[65536];

static void read_text(const char *name, char *text, size_t size) {
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
}

static void shell(const char *command) {
    if (system(command) != 0)
        fail_msg("%s", command);
}

/* Run it with these arguments, of a shell. */
static void expect(const char *arguments, int code) {
    char command[1024];
    snprintf(command, sizeof(command), "'%s' %s >out 2>err", ZERO_CHECKPOINT, arguments);
    int status = system(command);
    read_text("out", out, sizeof(out));
    read_text("err", err, sizeof(err));
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != code)
        fail_msg("%s: exit %d instead of %d\n%s%s", arguments, WEXITSTATUS(status), code, out, err);
}

static void expect_in(const char *text, const char *part) {
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, text);
}

static json_t *json_of_out(void) {
    json_error_t error;
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object))
        fail_msg("line %d: %s: %s", error.line, error.text, out);
    return object;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    for (size_t i = 0; i < n_elems; i++)
        values[i] = (float)(first + i);
}

/* Folder c has step 0, whole, of 800000 bytes and 4; step 3, a copy without a file; and 7, which
 * was never finished. */
static int enter(void **state) {
    zr_checkpoint_writer_t *writer = NULL;
    zr_save_options_t options = {.folder = "c"};
    zr_param_desc_t large = {.name = "large", .n_dims = 2, .dims = {200, 1000}, .fill = fill};
    zr_param_desc_t small = {.name = "small", .fill = fill};
    if (enter_test_folder(state) != 0 ||
        zr_checkpoint_writer_create(&options, NULL, &writer) != ZR_OK ||
        zr_checkpoint_writer_add(writer, &large) != ZR_OK ||
        zr_checkpoint_writer_add(writer, &small) != ZR_OK ||
        zr_checkpoint_writer_publish(writer) != ZR_OK)
        return -1;
    zr_checkpoint_writer_destroy(&writer);
    return system("mkdir c/.step-00000007.partial && cp -r c/step-00000000 c/step-00000003 && "
                  "rm c/step-00000003/rank-00000.sums");
}

TEST(test_list) {
    expect("list c", 0);
    assert_string_equal(err, "");
    const char *unfinished = strstr(out, "\n.step-00000007.partial "), *broken = NULL;
    assert_true(unfinished != NULL);
    broken = strstr(unfinished, "\nstep-00000003 ");
    assert_true(broken != NULL && strstr(broken, "\nstep-00000000 ") != NULL);
    expect_in(unfinished, "not complete: it was never finished");
    expect_in(broken, "not complete: cannot open step-00000003/rank-00000.sums: No such file");
    expect_in(broken, " 1      0   fp32   781.3 KiB ");
    expect_in(broken, "seconds  complete\n");
    expect("list --json c", 0);
    json_t *object = json_of_out(), *list = json_object_get(object, "checkpoints");
    assert_int_equal(json_array_size(list), 3);
    json_t *last = json_array_get(list, 2);
    assert_string_equal(json_string_value(json_object_get(last, "name")), "step-00000000");
    assert_true(json_is_true(json_object_get(last, "complete")));
    assert_int_equal(json_integer_value(json_object_get(last, "data_bytes")), 800004);
    assert_true(json_is_false(json_object_get(json_array_get(list, 0), "complete")));
    assert_non_null(json_object_get(json_array_get(list, 0), "problem"));
    json_decref(object);
    expect("list c/step-00000000", 0);
    expect_in(out,
              "there are no checkpoints in c/step-00000000, but it is one: zero-checkpoint verify");
    expect("list c/step-00000000 --json", 0);
    shell("mkdir none");
    expect("list none", 0);
    assert_string_equal(out, "there are no checkpoints in none\n");
    expect("list nowhere", 2);
    expect_in(err, "cannot open nowhere: No such file or directory");
}

TEST(test_verify) {
    expect("verify c/step-00000000", 0);
    assert_string_equal(out, "c/step-00000000 is whole: step 0, 2 tensors, 781.3 KiB\n");
    assert_string_equal(err, "");
    expect("verify c", 0);
    expect_in(out, "c/step-00000000 is whole");
    expect_in(err, "passed over c/step-00000003, which is not complete");
    expect_in(err, "passed over c/.step-00000007.partial, which was never finished");
    expect("verify c/step-00000003", 1);
    expect_in(err, "cannot open c/step-00000003/rank-00000.sums: No such file");
    expect_in(err, "c/step-00000003 is not whole");
    assert_string_equal(out, "");
    expect("verify nowhere", 2);
    expect_in(err, "cannot open nowhere: No such file or directory");
    expect("verify .", 2);
    expect_in(err, ". has no checkpoint, and is none itself");
    expect("verify err", 2); /* a file */
}

/* The file in a folder that names its newest leads there, and no other file of that name does. */
TEST(test_latest) {
    expect("verify c/latest", 0);
    assert_string_equal(out, "c/step-00000000 is whole: step 0, 2 tensors, 781.3 KiB\n");
    expect("list c/latest", 0);
    expect_in(out, "in c/step-00000000, but it is one");
    expect("export c/latest -o x", 2); /* it is found, and is no GPT's */
    expect_in(err, "its trainer has not said what model it is of");
    shell("mkdir l && echo step-00000009 >l/latest");
    expect("verify l/latest", 2);
    expect_in(err, "cannot open l/step-00000009: No such file or directory");
    shell("echo ../c/step-00000000 >l/latest");
    expect("verify l/latest", 2);
    expect_in(err, "cannot open l/latest: Not a directory");
}

/* Whoever meets damage ends with 1: the path is right, and what is there is not what was saved. */
TEST(test_damage_is_no_bad_input) {
    static const char *const damages[] = {"rm e/step-00000000/rank-00000.data",
                                          "truncate -s 100 e/step-00000000/manifest.json"};
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        shell("rm -rf e && mkdir e && cp -r c/step-00000000 e");
        shell(damages[i]);
        expect("list e", 0);
        expect_in(out, "not complete");
        expect("verify e", 1);
        expect("verify e/step-00000000", 1);
        expect("export e -o x", 1);
        expect("export e/step-00000000 -o x", 1);
    }
    expect("export none -o x", 2);
    expect("export nowhere -o x", 2);
}

TEST(test_damage) {
    shell("rm -rf d && cp -r c/step-00000000 d && printf x | dd of=d/rank-00000.data bs=1 "
          "seek=300000 conv=notrunc status=none");
    expect("verify d", 1);
    expect_in(err, "damaged: unit \"weights\", trainable elements 0 to 199999: d/rank-00000.data, "
                   "offset 0: not what was saved: 1 of 4 chunks, the first at offset 262144");
    expect("verify d --json", 1);
    json_t *object = json_of_out();
    assert_true(json_is_false(json_object_get(object, "whole")));
    assert_int_equal(json_array_size(json_object_get(object, "problems")), 1);
    assert_int_equal(json_integer_value(json_object_get(object, "tensors")), 2);
    json_decref(object);
    shell("printf x | dd of=d/rank-00000.data bs=1 seek=800001 conv=notrunc status=none");
    expect("verify d", 1);
    expect_in(err, "elements 200000 to 200000: d/rank-00000.data, offset 800000: not what was "
                   "saved: 1 of 1 chunk,");
    shell("sed -i 's/\"step\": 0/\"step\": 1/' d/manifest.json");
    expect("verify d --json", 1);
    object = json_of_out();
    assert_null(json_object_get(object, "step"));
    expect_in(json_string_value(json_array_get(json_object_get(object, "problems"), 0)),
              "d/manifest.json: it is not as it was saved");
    json_decref(object);
}

TEST(test_usage) {
    expect("", 2);
    expect_in(err, "a command is missing");
    expect("--help", 0);
    expect_in(out, "  verify  ");
    expect("--version", 0);
    expect_in(out, "zero-checkpoint 0.");
    expect("verfy c", 2);
    expect_in(err, "unknown command verfy; the nearest is verify");
    expect("verify --help", 0);
    expect_in(out, "Usage: zero-checkpoint verify [OPTION...] PATH\n");
    expect("list --version", 0);
    expect_in(out, "zero-checkpoint 0.");
    expect("list", 2);
    expect_in(err, "list takes DIR, which is missing");
    expect("list a b", 2);
    expect_in(err, "list takes DIR, and \"b\" is one too many");
    expect("list --jsn c", 2);
    expect_in(err, "unknown option --jsn; the nearest is --json");
    expect("list c --json >/dev/full; exit $?;", 1);
}

const test_group_t test_group = {enter, leave_test_folder};
