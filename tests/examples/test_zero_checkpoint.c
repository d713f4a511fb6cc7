/*
 * zero-checkpoint list and verify as their users meet them: exit status, standard output and
 * standard error, on checkpoints that are whole, damaged, half made, and on what is none.
 */
#include "tests/common/test.h"
#include "tests/examples/run_program.h"
#include "zero/zero.h"

static void shell(const char *command) {
    if (system(command) != 0)
        fail_msg("%s", command);
}

/* It ends with this status, and what it prints, or says, has all of these parts. */
static void expect(const char *arguments, int code, const char *printed, const char *said) {
    expect_run("", ZERO_CHECKPOINT, arguments, code);
    expect_parts(arguments, out, printed);
    expect_parts(arguments, err, said);
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
    expect("list c", 0, "seconds  complete\n| 1      0   fp32   781.3 KiB ", "");
    assert_string_equal(err, "");
    const char *unfinished = strstr(out, "\n.step-00000007.partial "), *broken = NULL;
    assert_true(unfinished != NULL);
    broken = strstr(unfinished, "\nstep-00000003 ");
    assert_true(broken != NULL && strstr(broken, "\nstep-00000000 ") != NULL);
    expect_parts("list", unfinished,
                 "not complete: it was never finished"
                 "|not complete: cannot open step-00000003/rank-00000.sums: No such file");
    json_t *list = field(program_json(ZERO_CHECKPOINT, 0, "list c"), "checkpoints");
    assert_int_equal(json_array_size(list), 3);
    expect_fields(json_array_get(list, 2), "name=step-00000000 complete=true data_bytes=800004");
    expect_fields(json_array_get(list, 0), "complete=false");
    assert_non_null(field(json_array_get(list, 0), "problem"));
    expect("list c/step-00000000", 0,
           "there are no checkpoints in c/step-00000000, but it is a checkpoint itself: use "
           "zero-checkpoint verify",
           "");
    expect("list c/step-00000000 --json", 0, "", "");
    shell("mkdir none");
    expect("list none", 0, "there are no checkpoints in none\n", "");
    expect("list nowhere", 2, "", "cannot open nowhere: No such file or directory");
}

TEST(test_verify) {
    expect("verify c/step-00000000", 0, "", "");
    assert_string_equal(out, "c/step-00000000 is whole: step 0, 2 tensors, 781.3 KiB\n");
    assert_string_equal(err, "");
    expect("verify c", 0, "c/step-00000000 is whole",
           "skipped c/step-00000003, which is not complete"
           "|skipped c/.step-00000007.partial, which was never finished");
    expect("verify c/step-00000003", 1, "",
           "cannot open c/step-00000003/rank-00000.sums: No such file"
           "|c/step-00000003 is not whole");
    assert_string_equal(out, "");
    expect("verify nowhere", 2, "", "cannot open nowhere: No such file or directory");
    expect("verify .", 2, "", ". has no checkpoint and is not a checkpoint itself");
    expect("verify err", 2, "", ""); /* a file */
    shell("mkdir -p unfinished/.step-00000007.partial");
    expect("verify unfinished", 2, "", "passed over 1 checkpoint in unfinished: never finished");
}

/* The file in a folder that names its newest leads there, and no other file of that name does. */
TEST(test_latest) {
    expect("verify c/latest", 0, "c/step-00000000 is whole: step 0, 2 tensors, 781.3 KiB\n", "");
    expect("list c/latest", 0, "in c/step-00000000, but it is a checkpoint", "");
    /* It is found, and is no GPT's. */
    expect("export c/latest -o x", 2, "", "it does not describe its model");
    shell("mkdir l && echo step-00000009 >l/latest");
    expect("verify l/latest", 2, "", "cannot open l/step-00000009: No such file or directory");
    shell("echo ../c/step-00000000 >l/latest");
    expect("verify l/latest", 2, "", "cannot open l/latest: Not a directory");
}

/* Whoever meets damage ends with 1: the path is right, and what is there is not what was saved. */
TEST(test_damage_is_no_bad_input) {
    static const char *const damages[] = {"rm e/step-00000000/rank-00000.data",
                                          "truncate -s 100 e/step-00000000/manifest.json"};
    for (size_t i = 0; i < N_OF(damages); i++) {
        shell("rm -rf e && mkdir e && cp -r c/step-00000000 e");
        shell(damages[i]);
        expect("list e", 0, "not complete", "");
        expect("verify e", 1, "", "");
        expect("verify e/step-00000000", 1, "", "");
        expect("export e -o x", 1, "", "");
        expect("export e/step-00000000 -o x", 1, "", "");
    }
    expect("export none -o x", 2, "", "");
    expect("export nowhere -o x", 2, "", "");
}

TEST(test_damage) {
    shell("rm -rf d && cp -r c/step-00000000 d && printf x | dd of=d/rank-00000.data bs=1 "
          "seek=300000 conv=notrunc status=none");
    expect(
        "verify d", 1, "",
        "damaged: unit \"weights\", trainable elements 0 to 199999: d/rank-00000.data, offset 0: "
        "not what was saved: 1 of 4 chunks, the first at offset 262144");
    json_t *object = program_json(ZERO_CHECKPOINT, 1, "verify d");
    expect_fields(object, "whole=false tensors=2");
    assert_int_equal(json_array_size(field(object, "problems")), 1);
    shell("printf x | dd of=d/rank-00000.data bs=1 seek=800001 conv=notrunc status=none");
    expect("verify d", 1, "",
           "elements 200000 to 200000: d/rank-00000.data, offset 800000: not what was saved: 1 of "
           "1 chunk,");
    shell("sed -i 's/\"step\": 0/\"step\": 1/' d/manifest.json");
    object = program_json(ZERO_CHECKPOINT, 1, "verify d");
    expect_fields(object, "step=absent");
    expect_parts("problems", json_string_value(json_array_get(field(object, "problems"), 0)),
                 "d/manifest.json: it was changed");
}

TEST(test_usage) {
    static const struct {
        const char *arguments;
        int code;
        const char *printed, *said;
    } cases[] = {{"", 2, "", "a command is missing"},
                 {"--help", 0, "  verify  ", ""},
                 {"--version", 0, "zero-checkpoint 0.", ""},
                 {"verfy c", 2, "", "unknown command verfy; the nearest is verify"},
                 {"generate c", 2, "", "transformers import pipeline"},
                 {"--man", 0, ".TH ZERO-CHECKPOINT 1", ""},
                 {"--completion zsh", 2, "", "--completion zsh: allowed: bash"},
                 {"verify --help", 0, "Usage: zero-checkpoint verify [OPTION...] PATH\n", ""},
                 {"list --version", 0, "zero-checkpoint 0.", ""},
                 {"list", 2, "", "list takes DIR, which is missing"},
                 {"list a b", 2, "", "list takes DIR, but got \"b\" too"},
                 {"list --jsn c", 2, "", "unknown option --jsn; the nearest is --json"},
                 {"list c --json >/dev/full", 1, "", ""}};
    for (size_t i = 0; i < N_OF(cases); i++)
        expect(cases[i].arguments, cases[i].code, cases[i].printed, cases[i].said);
}

/* What bash completes: commands, their options, and values that are words. */
TEST(test_completion) {
    static const char *const cases[][2] = {{"veri", "verify"},
                                           {"export --form", "--format"},
                                           {"export --dtype b", "bf16"},
                                           {"export --dtype = b", "bf16"},
                                           {"export --output b", ""}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        char command[1024];
        snprintf(command, sizeof(command),
                 "bash -c 'source <(\"%s\" --completion=bash); COMP_WORDS=(zero-checkpoint %s); "
                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _zero_checkpoint; "
                 "[ \"${COMPREPLY[*]}\" = \"%s\" ]'",
                 ZERO_CHECKPOINT, cases[i][0], cases[i][1]);
        shell(command);
    }
}

const test_group_t test_group = {enter, leave_test_folder};
