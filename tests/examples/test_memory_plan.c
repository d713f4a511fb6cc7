/*
 * What plans of memory are worth in real runs: zero-train at every stage, with and without
 * recomputation and accumulation, with sequences of equal and of varying length. A step's plan is
 * as low as it can be, and the whole run, its first steps included, reserves hardly more than
 * was ever live at once.
 */
#include <jansson.h>
#include <sys/wait.h>

#include "tests/common/test.h"

#define SHAPE "layers=4,channels=128,heads=4,seq=64,vocab=256"

static char folder[] = "/tmp/zr-test-memory-plan-XXXXXX";

static int prepare(void **state) {
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return -1;
    FILE *file = fopen("text", "wb");
    if (file == NULL)
        return -1;
    for (int i = 0; i < 20000; i++)
        fputc("the quick brown fox jumps over the lazy dog. "[i * (i % 13) % 45], file);
    return fclose(file);
}

static int clean(void **state) {
    return unlink("text") != 0 || unlink("out") != 0 || chdir("/") != 0 || rmdir(folder) != 0;
}

/* The object that a run prints. */
static json_t *train(const char *options) {
    char command[1024];
    snprintf(command, sizeof(command),
             "'%s' --data text --model " SHAPE " --ranks 2 --json --quiet %s >out", ZERO_TRAIN,
             options);
    int status = system(command);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: status %d", command, status);
    json_error_t error;
    json_t *object = json_load_file("out", 0, &error);
    assert_non_null(object);
    return object;
}

static double number(const json_t *object, const char *path) {
    char key[64];
    for (size_t n; *path != '\0'; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)n, path);
        object = json_object_get(object, key);
    }
    assert_true(json_is_number(object));
    return json_number_value(object);
}

/* How a run has to use memory. */
typedef struct expectation {
    double most_reserved; /* over what is live, each at its peak in the whole run */
    int least_followed;   /* steps that went by plan from end to end */
} expectation_t;

static void check(const char *options, const expectation_t *expected) {
    json_t *object = train(options);
    double live = number(object, "peak_bytes.device.live");
    double reserved = number(object, "peak_bytes.device.reserved");
    double height = number(object, "memory.device.plan.height");
    double bound = number(object, "memory.device.plan.bound");
    double followed = number(object, "memory.replay.steps_followed");
    if (reserved > expected->most_reserved * live)
        fail_msg("%s: %.0f bytes reserved, %.0f live: %.4f", options, reserved, live,
                 reserved / live);
    if (height > 1.001 * bound)
        fail_msg("%s: a plan of %.0f bytes, where %.0f are live", options, height, bound);
    if (followed < expected->least_followed)
        fail_msg("%s: %.0f of %.0f steps followed their plan", options, followed,
                 number(object, "memory.replay.steps"));
    json_decref(object);
}

/* At all stages, with and without recomputation, with 1 and 4 micro-batches. */
static void check_all(const char *more, const expectation_t *expected) {
    char options[256];
    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < 4; i++) {
            snprintf(options, sizeof(options), "--stage %d --recompute %s --grad-accum %d %s",
                     stage, i & 1 ? "unit" : "none", i & 2 ? 4 : 1, more);
            check(options, expected);
        }
    }
}

TEST(equal_lengths) {
    check_all("--steps 5", &(expectation_t){.most_reserved = 1.01, .least_followed = 2});
}

TEST(varying_lengths) {
    check_all("--steps 16 --seq-min 16",
              &(expectation_t){.most_reserved = 1.05, .least_followed = 4});
}

/* In fp32 the host's products of up to 192 rows need a workspace of their own. */
TEST(lengths_around_a_workspace) {
    const expectation_t expected = {.most_reserved = 1.05, .least_followed = 8};
    check("--steps 16 --seq-min 16 --micro-batch 4 --stage 1 --grad-accum 4", &expected);
    check("--steps 16 --seq-min 16 --micro-batch 4 --stage 2 --grad-accum 2", &expected);
}

/* The weights do not depend on where anything lies. */
TEST(same_weights_without) {
    char options[256], with[17];
    for (int stage = 0; stage <= 3; stage++) {
        for (int on = 1; on >= 0; on--) {
            snprintf(options, sizeof(options),
                     "--steps 6 --grad-accum 2 --clip 0.5 --stage %d --memory-plan %s", stage,
                     on ? "on" : "off");
            json_t *object = train(options);
            const char *hash = json_string_value(json_object_get(object, "weights_xxh3"));
            assert_non_null(hash);
            if (on)
                snprintf(with, sizeof(with), "%s", hash);
            else
                assert_string_equal(hash, with);
            assert_true(
                on == json_is_object(json_object_get(json_object_get(object, "memory"), "replay")));
            json_decref(object);
        }
    }
}

const test_group_t test_group = {prepare, clean};
