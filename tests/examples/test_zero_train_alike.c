/*
 * The promise of equal bits with all that loses some: for configurations from a seed, of encoded
 * messages and state, frozen weights, groups, accumulation and local steps, a run ends in the same
 * weights at every stage, with any placement, saved or not, and in two parts; but for the
 * exceptions that docs/guide/lean.md names.
 *
 *   test_zero_train_alike [N [FIRST]]
 *
 * N configurations, from number FIRST.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

static size_t n_cases = 12, first_case = 1;
static bool nvme;

typedef struct configuration {
    char text[768];
    bool gathers, reduces, is_frozen, drops; /* drops: a checkpoint leaves something out */
} configuration_t;

static size_t throw(uint64_t * dice, size_t n) {
    *dice += 0x9e3779b97f4a7c15u;
    uint64_t z = *dice;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

static void add(configuration_t *of, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(configuration_t *of, const char *format, ...) {
    va_list arguments;
    size_t n = strlen(of->text);
    va_start(arguments, format);
    vsnprintf(of->text + n, sizeof(of->text) - n, format, arguments);
    va_end(arguments);
}

/* ---- configurations -------------------------------------------------------------------------- */

static void choose_model(uint64_t *dice, configuration_t *of) {
    size_t heads = 1 + throw(dice, 3), layers = 1 + throw(dice, 3);
    size_t channels = 4 * heads * (1 + throw(dice, 10)), seq = 8 + 8 * throw(dice, 3);
    bool is_llama = throw(dice, 2);
    static const char *const frozen[] = {"", "", "--lora rank=2", "--freeze wte"};
    add(of, "--model %slayers=%zu,channels=%zu,heads=%zu,seq=%zu,vocab=%zu",
        is_llama ? "llama," : "", layers, channels, heads, seq, 256 + throw(dice, 40));
    if (is_llama)
        add(of, ",wide=%zu,kv-heads=%zu,tied=%zu", 4 + 4 * throw(dice, 20), heads, throw(dice, 2));
    const char *some = frozen[throw(dice, is_llama ? 3 : 4)];
    of->is_frozen = some[0] != '\0';
    add(of, " %s", some);
}

static void choose_messages(uint64_t *dice, configuration_t *of, size_t n_ranks) {
    static const char *const ways[] = {"none", "bf16", "8bit", "4bit"};
    size_t gathered = throw(dice, 3), reduced = throw(dice, 4);
    size_t size = n_ranks > 1 ? throw(dice, 3) : 0; /* 0: no groups, else of 1 or of half of all */
    bool has_groups = size == 1 || (size == 2 && n_ranks % 2 == 0);
    of->gathers = gathered > 0;
    of->reduces = reduced > 0;
    add(of, " --gather-encoding %s --reduce-encoding %s", ways[gathered], ways[reduced]);
    if (!has_groups)
        return;
    add(of, " --shard-group-size %zu", size == 1 ? 1 : n_ranks / 2);
    bool feeds_back = of->reduces && throw(dice, 2), is_local = throw(dice, 3) == 0;
    if (feeds_back)
        add(of, " --error-feedback on");
    if (is_local)
        add(of, " --outer-every %zu", 2 + throw(dice, 3));
    of->drops = feeds_back || is_local;
}

static configuration_t choose(uint64_t seed) {
    static const char *const states[] = {"fp32", "bf16", "8bit"};
    static const char *const optimizers[] = {"adamw", "lion", "sgd"};
    uint64_t dice = seed * 1000003;
    configuration_t of = {.gathers = false};
    size_t n_ranks = 1 + throw(&dice, 6), n_together = 1 + throw(&dice, 3);
    choose_model(&dice, &of);
    add(&of, " --data text --threads 1 --steps 6 --quiet --ranks %zu --dtype %s --state %s",
        n_ranks, throw(&dice, 2) ? "bf16" : "fp32", states[throw(&dice, 3)]);
    add(&of, " --optimizer %s --clip %zu", optimizers[throw(&dice, 3)], throw(&dice, 2));
    choose_messages(&dice, &of, n_ranks);
    if (n_together > 1)
        add(&of, " --grad-accum %zu %s", n_together,
            of.reduces || throw(&dice, 2) ? "--order block" : "--reduce every-micro-batch");
    return of;
}

/* ---- comparing ------------------------------------------------------------------------------- */

typedef struct hash {
    char text[17];
} hash_t;

FORMATTED(2) static hash_t hash_of(const configuration_t *of, const char *format, ...) {
    char more[256];
    hash_t hash = {""};
    FORMAT_INTO(more, format);
    json_t *object = run_json(0, "%s %s", of->text, more);
    snprintf(hash.text, sizeof(hash.text), "%s", text(object, "weights_xxh3"));
    expect_fields(object, "planned_fits=true");
    return hash;
}

static void expect_same(const configuration_t *of, const char *what, hash_t a, hash_t b) {
    if (strcmp(a.text, b.text) != 0)
        fail_msg("%s: %s: %s, not %s", of->text, what, a.text, b.text);
}

/* Elsewhere than on the device, and updated when it is wanted. */
static void check_placements(const configuration_t *of, const hash_t hashes[4], uint64_t seed) {
    static const struct {
        int stage;
        bool with_drives;
        const char *options;
    } ways[] = {{1, false, "--offload-optimizer cpu"},
                {2, false, "--offload-optimizer cpu --update-at backward"},
                {2, false, "--offload-optimizer cpu --offload-ratio 0.5 --overlap-comm on"},
                {3, false, "--offload-params cpu --offload-optimizer cpu --memory-plan off"},
                {3, false, "--recompute unit --offload-activations cpu --update-at backward"},
                {3, true, "--offload-params nvme --param-buffer 4096 --nvme-path drive"},
                {2, true, "--offload-optimizer nvme --sub-group 1048576 --nvme-path drive"}};
    for (size_t i = seed % 2; i < N_OF(ways); i += 2)
        if (nvme || !ways[i].with_drives)
            expect_same(of, ways[i].options,
                        hash_of(of, "--stage %d %s", ways[i].stage, ways[i].options),
                        hashes[ways[i].stage]);
}

/* Saved, and in two parts, the second at another stage. */
static void check_saves(const configuration_t *of, const hash_t hashes[4], uint64_t seed) {
    int stage = 1 + (int)(seed % 3);
    int other = of->gathers && of->is_frozen ? stage : 1 + (stage + 1) % 3;
    hash_t saved = hash_of(of, "--stage %d --checkpoint-dir run%d --checkpoint-every 3 %s", stage,
                           (int)seed, seed % 2 == 0 ? "--checkpoint-async" : "");
    char command[64];
    if (!of->drops)
        expect_same(of, "saved", saved, hashes[stage]);
    snprintf(command, sizeof(command), "rm -r run%d/step-00000006", (int)seed);
    assert_int_equal(system(command), 0);
    expect_same(of, "in two parts",
                hash_of(of, "--stage %d --checkpoint-dir run%d --resume", other, (int)seed), saved);
}

TEST(runs_end_in_the_same_bits) {
    for (uint64_t seed = first_case; seed < first_case + n_cases; seed++) {
        configuration_t of = choose(seed);
        hash_t hashes[4] = {{""}};
        for (int stage = of.gathers ? 1 : 0; stage <= 3; stage++)
            hashes[stage] = hash_of(&of, "--stage %d", stage);
        if (!of.gathers && !of.reduces)
            expect_same(&of, "stage 0", hashes[0], hashes[1]);
        expect_same(&of, "stage 2", hashes[2], hashes[1]);
        if (!of.gathers || !of.is_frozen)
            expect_same(&of, "stage 3", hashes[3], hashes[1]);
        check_placements(&of, hashes, seed);
        check_saves(&of, hashes, seed);
    }
}

/* What the guide names as exceptions is: when one ends, its sentence does. */
TEST(exceptions_are_those_of_the_guide) {
    static const struct {
        const char *options, *one, *other;
    } cases[] = {{"--gather-encoding bf16 --freeze wte", "--stage 2", "--stage 3"},
                 {"--reduce-encoding 8bit", "--stage 0", "--stage 1"},
                 {"--reduce-encoding 4bit --shard-group-size 1 --error-feedback on --stage 2", "",
                  "--checkpoint-dir fed --checkpoint-every 3"},
                 {"--shard-group-size 1 --outer-every 4 --stage 2", "",
                  "--checkpoint-dir met --checkpoint-every 3"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        configuration_t of = {.text = TINY "--threads 1 --steps 6 --ranks 2 --quiet "};
        add(&of, "%s", cases[i].options);
        hash_t one = hash_of(&of, "%s", cases[i].one), other = hash_of(&of, "%s", cases[i].other);
        if (strcmp(one.text, other.text) == 0)
            fail_msg("%s: no exception any more: %s", of.text, one.text);
    }
}

/* Weights that are kept encoded are sent as they are kept, whatever other messages are in. */
TEST(frozen_weights_that_are_kept_encoded) {
    static const char *const bases[] = {"bf16", "8bit", "nf4"};
    for (size_t i = 0; i < N_OF(bases); i++) {
        configuration_t of = {.text = TINY "--threads 1 --steps 3 --ranks 3 --quiet --lora rank=2 "
                                           "--reduce-encoding 8bit "};
        add(&of, "--lora-base %s", bases[i]);
        hash_t first = hash_of(&of, "--stage 1");
        expect_same(&of, "stage 2", hash_of(&of, "--stage 2"), first);
        expect_same(&of, "stage 3", hash_of(&of, "--stage 3"), first);
        expect_same(&of, "parameters in host memory",
                    hash_of(&of, "--stage 3 --offload-params cpu"), first);
    }
}

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    nvme = has_nvme();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        n_cases = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        first_case = strtoul(argv[2], NULL, 10);
    return run_all_tests(prepare, leave_test_folder);
}
