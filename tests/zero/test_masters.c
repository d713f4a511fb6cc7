/*
 * --master: masters that are held once. Random mixtures of options end in the bits, and in the
 * checkpoint, of those with masters apart, in fewer bytes of state; checkpoints of one form are
 * gone on from in the other. ZR_TEST_MIXTURES=FIRST:N asks for others, or for more of them. The
 * first argument names another device than the host.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

static const char *device_name;
static uint64_t first_mixture = 1, n_mixtures = 40;

typedef struct mixture {
    uint64_t random;
    toy_options_t options;
    char text[512];
} mixture_t;

static size_t pick(mixture_t *m, size_t n) {
    return random_bits(&m->random) % n;
}

static void ask(mixture_t *m, const char *text) {
    snprintf(m->text + strlen(m->text), sizeof(m->text) - strlen(m->text), " %s", text);
    toy_set(&m->options, "%s", text);
}

/* One of the words between bars; an empty one asks for nothing. */
static void ask_one(mixture_t *m, const char *words) {
    char copy[512], *rest = copy, *word = NULL;
    size_t n = 1;
    snprintf(copy, sizeof(copy), "%s", words);
    for (const char *c = words; *c != '\0'; c++)
        n += *c == '|';
    for (size_t i = pick(m, n) + 1; i > 0; i--)
        word = strsep(&rest, "|");
    if (*word != '\0')
        ask(m, word);
}

static void ask_places(mixture_t *m) {
    const zr_config_t *config = &m->options.config;
    bool is_8bit = config->state_form == ZR_STATE_8BIT;
    ask_one(m, "|offload-optimizer=cpu|offload-optimizer=nvme|offload-optimizer=nvme");
    if (config->stage == 3)
        ask_one(m, "|offload-params=cpu|offload-params=nvme|offload-params=nvme");
    if (config->offload_optimizer.device == ZR_OFFLOAD_NVME)
        ask_one(m, is_8bit ? "sub-group=262144" : "sub-group=1024|sub-group=2048");
    else
        ask_one(m, is_8bit ? "" : "|sub-group=1024|sub-group=4096");
    if (config->offload_optimizer.device != ZR_OFFLOAD_NONE)
        ask_one(m, "||offload-ratio=0.5");
    if (config->offload_param.device != ZR_OFFLOAD_NONE)
        ask_one(m, "||param-buffer=4096|offload-param-ratio=0.5");
}

static void ask_steps(mixture_t *m) {
    const zr_config_t *config = &m->options.config;
    ask_one(m, "||order=block");
    ask_one(m, "||reduce=every-micro-batch");
    if (config->stage >= 2)
        ask_one(m, "|update-at=backward");
    if (config->stage > 0)
        ask_one(m, "|||gather-encoding=bf16|gather-encoding=8bit");
    ask_one(m, "||reduce-encoding=8bit");
    if (m->options.n_ranks == 4)
        ask_one(m, "|shard-group-size=2|shard-group-size=2 outer-every=2");
}

static void make(mixture_t *m, uint64_t seed) {
    static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};
    int n_ranks;
    *m = (mixture_t){.random = seed * 7919};
    n_ranks = 1 + (int)pick(m, 4);
    m->options = toy_mixture((int)pick(m, 4), n_ranks, dtypes[pick(m, 2)], (unsigned)pick(m, 32));
    m->options.device_name = device_name;
    m->options.config.nvme.store = "memory";
    m->options.quiet = true;
    toy_set_clipping(&m->options, (unsigned)pick(m, 12));
    toy_set_optimizer(&m->options, (unsigned)pick(m, 3));
    m->options.n_steps = 4;
    snprintf(m->text, sizeof(m->text), "mixture %llu: %d ranks, stage %d, %s",
             (unsigned long long)seed, n_ranks, m->options.config.stage,
             zr_dtype_name(m->options.config.dtype));
    ask_one(m, "||state=bf16|state=8bit");
    ask_places(m);
    ask_steps(m);
    bool is_written = pick(m, 4) == 0 && m->options.config.gather_encoding == ZR_MESSAGE_PLAIN;
    m->options.write_step = is_written ? 2 : -1;
    m->options.late = device_name == NULL && pick(m, 3) == 0;
    m->options.expect_saves = pick(m, 2) == 0;
    m->options.save_goes_on = m->options.expect_saves && pick(m, 2) == 0;
    m->options.evaluate = pick(m, 4) == 0;
    if (m->options.late)
        snprintf(m->text + strlen(m->text), sizeof(m->text) - strlen(m->text), " (late device)");
}

static uint64_t state_bytes(const toy_result_t *result) {
    uint64_t sum = 0;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        sum += result->offload[0].state_bytes[tier];
    return sum;
}

static void same_files(const mixture_t *m, const char *folder) {
    char command[256];
    snprintf(command, sizeof(command),
             "cd %s && ls apart/*/rank* > names && sed 's/^apart/split/' names | paste names - | "
             "xargs -n 2 cmp",
             folder);
    if (system(command) != 0)
        fail_msg("%s: checkpoints differ", m->text);
}

static void train(mixture_t *m, const char *folder, zr_master_t master, toy_result_t *result) {
    static char path[128];
    m->options.config.master = master;
    if (folder != NULL) {
        snprintf(path, sizeof(path), "%s/%s", folder,
                 master == ZR_MASTER_APART ? "apart" : "split");
        m->options.save_to = path;
        m->options.save_step = 2;
    }
    toy_train(&m->options, result);
    for (int rank = 0; rank < m->options.n_ranks; rank++)
        if (result->status[rank] != ZR_OK)
            fail_msg("%s, master %d: rank %d (%d): %s", m->text, (int)master, rank,
                     (int)result->status[rank], result->last_error[rank]);
}

/* From the last checkpoint of one form in the other. */
static uint64_t go_on(mixture_t *m, const char *folder, zr_master_t to) {
    char path[128];
    toy_result_t result;
    toy_options_t saved = m->options;
    snprintf(path, sizeof(path), "%s/%s", folder, to == ZR_MASTER_APART ? "split" : "apart");
    m->options.save_to = NULL;
    m->options.restore_from = path;
    m->options.n_steps = 2;
    m->options.write_step = m->options.nan_step = -1;
    train(m, NULL, to, &result);
    m->options = saved;
    return result.hash;
}

/* Whether it was possible. */
static bool meet(uint64_t seed) {
    mixture_t m;
    toy_result_t apart, split;
    char folder[] = "/tmp/zr-masters-XXXXXX", command[128];
    make(&m, seed);
    toy_options_t asked = m.options;
    asked.n_steps = 0;
    toy_train(&asked, &apart);
    if (apart.status[0] == ZR_ERR_ARGUMENT) /* options that refuse each other */
        return false;
    assert_non_null(mkdtemp(folder));
    train(&m, folder, ZR_MASTER_APART, &apart);
    assert_false(apart.offload[0].has_split_masters);
    asked = m.options;
    asked.config.master = ZR_MASTER_SPLIT;
    asked.save_to = NULL;
    toy_train(&asked, &split);
    bool is_possible = split.status[0] == ZR_OK;
    if (!is_possible) {
        assert_has(split.last_error[0], "--master split is not possible with|use --master auto");
        train(&m, NULL, ZR_MASTER_AUTO, &split);
        assert_int_equal(state_bytes(&split), state_bytes(&apart));
    } else {
        train(&m, folder, ZR_MASTER_SPLIT, &split);
        assert_true(split.offload[0].has_split_masters);
        size_t elems = apart.size.trainable_padded_elems;
        int n_shards = m.options.config.stage == 0             ? 1
                       : m.options.config.shard_group_size > 0 ? m.options.config.shard_group_size
                                                               : m.options.n_ranks;
        uint64_t saved = m.options.config.dtype == ZR_DTYPE_F32 ? 4 : 2;
        assert_int_equal(state_bytes(&apart) - state_bytes(&split),
                         saved * elems / (size_t)n_shards);
        assert_int_equal(split.saved[0], apart.saved[0]);
        if (split.hash == apart.hash && apart.saved[0] == ZR_OK) {
            same_files(&m, folder);
            assert_true(go_on(&m, folder, ZR_MASTER_SPLIT) == go_on(&m, folder, ZR_MASTER_APART));
        }
    }
    if (split.hash != apart.hash)
        fail_msg("%s: split ends in %016llx, apart in %016llx", m.text,
                 (unsigned long long)split.hash, (unsigned long long)apart.hash);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    return is_possible;
}

TEST(split_masters_have_the_bits_of_those_apart) {
    uint64_t n_met = 0;
    (void)state;
    for (uint64_t i = 0; i < n_mixtures; i++)
        n_met += meet(first_mixture + i);
    print_message("%llu of %llu mixtures could split\n", (unsigned long long)n_met,
                  (unsigned long long)n_mixtures);
    assert_true(n_mixtures < 40 || 3 * n_met > n_mixtures);
}

/* Of a rank alone on the host with everything in a store; its parameters' bytes got. */
static uint64_t update_at_once(bool is_blind, zr_master_t master, bool is_split) {
    mixture_t m = {.options = toy_mixture(3, 1, ZR_DTYPE_BF16, 0)};
    toy_result_t result;
    snprintf(m.text, sizeof(m.text), "at once%s:", is_blind ? ", blind" : "");
    ask(&m, "offload-optimizer=nvme offload-params=nvme sub-group=2048 param-buffer=4096 "
            "update-at=backward check-overflow=off grad-accum=2");
    m.options.config.nvme.store = "memory";
    m.options.config.clip = 0;
    m.options.n_steps = 4;
    m.options.blind = is_blind;
    train(&m, NULL, master, &result);
    assert_true(result.offload[0].has_split_masters == is_split);
    static uint64_t hash;
    if (master == ZR_MASTER_APART)
        hash = result.hash;
    assert_true(result.hash == hash);
    return result.offload[0].params.all.count[ZR_STORE_GET].bytes;
}

TEST(an_update_at_once_takes_parameters_from_where_they_are_gathered) {
    (void)state;
    uint64_t bytes = update_at_once(false, ZR_MASTER_APART, false);
    assert_int_equal(update_at_once(false, ZR_MASTER_AUTO, true), bytes);
    bytes = update_at_once(true, ZR_MASTER_APART, false);
    assert_true(update_at_once(true, ZR_MASTER_AUTO, true) > bytes); /* the unit's, once more */
}

int main(int argc, char **argv) {
    const char *asked = getenv("ZR_TEST_MIXTURES");
    char *rest = NULL;
    device_name = argc > 1 ? argv[1] : NULL;
    if (asked != NULL) {
        first_mixture = strtoull(asked, &rest, 10);
        n_mixtures = *rest == ':' ? strtoull(rest + 1, NULL, 10) : 1;
    }
    return run_all_tests(NULL, NULL);
}
