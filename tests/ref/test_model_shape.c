/*
 * Models of any architecture: what --model may say, that a description is read back as the same
 * model, and what follows from it without making it.
 */
#include <math.h>
#include <sys/stat.h>

#include "models/gpt2/tensors.h"
#include "models/shape.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

const test_group_t test_group = {enter_test_folder, leave_test_folder};

static kept_log_t kept;

#define GPT "layers=4,channels=256,heads=4,seq=128,vocab=300"
#define LLAMA "llama,layers=4,channels=64,heads=4,wide=96,seq=128,vocab=300"

static zr_model_shape_t read_good(const char *text) {
    zr_model_shape_t shape = {.kind = ZR_MODEL_GPT};
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    if (zr_model_shape_read(text, &log, &shape) != ZR_OK)
        fail_msg("%s: %s", text, kept.text);
    return shape;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- reading and writing --------------------------------------------------------------------- */

TEST(usual_names_are_read_and_found) {
    size_t n = 0, n_of_kind[ZR_N_MODEL_KINDS] = {0};
    for (const char *name; (name = zr_model_name(n)) != NULL; n++) {
        zr_model_shape_t shape = read_good(name);
        n_of_kind[shape.kind]++;
        assert_string_equal(zr_model_shape_name(&shape), name);
    }
    assert_int_equal(n, 30);
    assert_int_equal(n_of_kind[ZR_MODEL_GPT], 7);
    zr_model_shape_t own = read_good(GPT);
    assert_null(zr_model_shape_name(&own));
}

/* Ids of the Hugging Face hub; weights of another shape are not taken for those that are known. */
TEST(hub_ids_are_read) {
    static const char *const ids[][2] = {{"meta-llama/Llama-3.1-8B", "llama-3.1-8b"},
                                         {"meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"},
                                         {"Llama-3.2-1B", "llama-3.2-1b"},
                                         {"NousResearch/Llama-2-7b-chat-hf", "llama-2-7b"},
                                         {"Qwen/Qwen3-0.6B", "qwen3-0.6b"},
                                         {"Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"},
                                         {"mistralai/Mistral-7B-v0.1", "mistral-7b"},
                                         {"HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"},
                                         {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama"},
                                         {"openai-community/GPT2-XL", "gpt2-xl"}};
    static const char *const others[][2] = {{"mistralai/Mistral-7B-v0.3", "mistral-7b"},
                                            {"meta-llama/Llama-3.1-405B", "llama-3.1-"},
                                            {"a/b/llama-3.1-8b", ""},
                                            {"./llama-3.1-8b", ""}};
    for (size_t i = 0; i < N_OF(ids); i++) {
        zr_model_shape_t shape = read_good(ids[i][0]), known = read_good(ids[i][1]);
        assert_false(zr_model_shapes_differ(&shape, &known, NULL));
        assert_int_equal(zr_model_is_published_in_16_bits(ids[i][0]), i + 1 < N_OF(ids));
    }
    for (size_t i = 0; i < N_OF(others); i++) {
        kept_log_t messages;
        zr_log_t log = kept_log(&messages, ZR_LOG_ERROR);
        zr_model_shape_t shape;
        assert_int_equal(zr_model_shape_read(others[i][0], &log, &shape), ZR_ERR_ARGUMENT);
        assert_has(messages.text, "not a model's name");
        if (others[i][1][0] != '\0')
            assert_has(messages.text, others[i][1]);
    }
}

static void check_round_trip(const zr_model_shape_t *shape) {
    zr_model_text_t text = zr_model_shape_text(shape);
    zr_model_shape_t again = read_good(text.text);
    zr_model_difference_t d;
    if (zr_model_shapes_differ(shape, &again, &d))
        fail_msg("%s: %s was %s, and is %s", text.text, d.a.name, d.a.text, d.b.text);
    if (memcmp(shape, &again, sizeof(again)) != 0 && shape->kind == ZR_MODEL_DECODER)
        fail_msg("%s: a value has no key", text.text);
}

TEST(descriptions_are_read_back) {
    static const char *const texts[] = {
        LLAMA,
        LLAMA ",kv-heads=2,head-size=10,tied=1,qkv-bias=1,out-bias=1,mlp-bias=1,qk-norm=1",
        LLAMA ",epsilon=3e-7,theta=123456.789,rope=linear,rope-factor=2.5",
        LLAMA ",rope=llama3,rope-factor=8,rope-low=1.5,rope-high=3,rope-seq=64",
        LLAMA ",window=7",
        LLAMA ",window=7,windowed=0+2-3,unrotated=1-2",
        LLAMA ",window=7,windowed=all,unrotated=all",
        LLAMA ",window=7,windowed=0+2-3,unrotated=1,repeat=4"};
    for (size_t i = 0; i < N_OF(texts); i++) {
        zr_model_shape_t shape = read_good(texts[i]);
        check_round_trip(&shape);
    }
    const char *name;
    for (size_t i = 0; (name = zr_model_name(i)) != NULL; i++) {
        zr_model_shape_t shape = read_good(name);
        check_round_trip(&shape);
    }
    zr_model_shape_t shape = read_good(GPT);
    assert_string_equal(zr_model_shape_text(&shape).text, GPT);
    shape = read_good(LLAMA ",kv-heads=2,window=7,windowed=0+2-3");
    assert_string_equal(zr_model_shape_text(&shape).text,
                        "llama,layers=4,channels=64,heads=4,kv-heads=2,wide=96,seq=128,vocab=300,"
                        "window=7,windowed=0+2-3");
    shape = read_good(LLAMA ",theta=5e5,epsilon=1e-6");
    assert_string_equal(zr_model_shape_text(&shape).text, LLAMA ",epsilon=1e-06,theta=500000");
    shape = read_good("gpt2," GPT);
    assert_int_equal(shape.kind, ZR_MODEL_GPT);
}

/* The longest sets of layers. */
TEST(layers_fit_a_description) {
    zr_model_shape_t shape =
        read_good("llama,layers=256,channels=64,heads=4,wide=96,seq=128,vocab=300,window=9");
    zr_decoder_shape_t *s = &shape.of.decoder;
    for (size_t i = 0; i < 4; i++) {
        s->windowed[i] = 0xaaaaaaaaaaaaaaaau;
        s->unrotated[i] = 0xb6db6db6db6db6dbu; /* two of three */
    }
    check_round_trip(&shape);
    s->n_layers = 1000; /* more than have bits */
    assert_int_equal(zr_model_shape_check(&shape, NULL), ZR_ERR_ARGUMENT);
    s->repeat = ZR_DECODER_SET_LAYERS;
    check_round_trip(&shape);
    assert_true(zr_decoder_has_layer(s, s->windowed, 999));
    assert_false(zr_decoder_has_layer(s, s->windowed, 998));
    shape = read_good("llama,layers=1000,channels=64,heads=4,wide=96,seq=128,vocab=300,window=9");
    check_round_trip(&shape);
    assert_true(zr_decoder_has_layer(s, s->windowed, 999));
}

/* ---- files ----------------------------------------------------------------------------------- */

#define LLAMA_FILE                                                                                 \
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, "                 \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"vocab_size\": 300, "                  \
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05}"
#define GPT_SIZES                                                                                  \
    "\"n_layer\": 4, \"n_embd\": 256, \"n_head\": 4, \"n_positions\": 128, \"vocab_size\": 300"

TEST(files_and_folders) {
    static const char *const texts[] = {"{" GPT_SIZES "}",
                                        "{\"model_type\": \"gpt2\", " GPT_SIZES "}", LLAMA_FILE};
    static const char *const same[] = {GPT, GPT, LLAMA};
    assert_int_equal(mkdir("folder", 0777), 0);
    for (size_t i = 0; i < N_OF(texts); i++) {
        write_file("folder/config.json", texts[i]);
        static const char *const paths[] = {"folder", "folder/", "./folder//",
                                            "folder/config.json"};
        zr_model_shape_t said = read_good(same[i]);
        for (size_t k = 0; k < N_OF(paths); k++) {
            zr_model_shape_t shape = read_good(paths[k]);
            assert_false(zr_model_shapes_differ(&shape, &said, NULL));
        }
    }
}

TEST(refused) {
    static const struct {
        const char *text, *said;
        zr_status_t status;
    } cases[] = {
        {"", ": not a model's name (such as gpt2 or llama-2-7b), sizes", ZR_ERR_ARGUMENT},
        {"lama-3.1-8b", "the nearest name is llama-3.1-8b", ZR_ERR_ARGUMENT},
        {"models/none", "or an existing file or folder", ZR_ERR_ARGUMENT},
        {"empty", "empty: the folder has no config.json", ZR_ERR_ARGUMENT},
        {"gemma.json",
         "gemma.json: model_type is gemma; supported: gpt2, llama, qwen2, qwen3, mistral, smollm3",
         ZR_ERR_UNSUPPORTED},
        {"bare.json", "bare.json: model_type is missing; supported:", ZR_ERR_UNSUPPORTED},
        {"erf.json", "erf.json: \"activation_function\" is gelu; this GPT has", ZR_ERR_FORMAT},
        {"list.json", "list.json: not an object", ZR_ERR_FORMAT},
        {"cut.json", "cut.json: line 1", ZR_ERR_FORMAT},
        {GPT ",wide=5",
         "\"wide\" is not a part of a model; known: layers, channels, heads, seq, vocab",
         ZR_ERR_ARGUMENT},
        {"llama,layers=4,channels=64",
         "heads is missing; a model is llama,layers=..,channels=..,"
         "heads=..,wide=..,seq=..,vocab=..",
         ZR_ERR_ARGUMENT},
        {LLAMA ",heads=3", "heads is given twice", ZR_ERR_ARGUMENT},
        {LLAMA ",kv-heads=3", "kv_heads=3 does not divide heads=4", ZR_ERR_ARGUMENT},
        {LLAMA ",head-size=9", "head_size=9; must be even", ZR_ERR_ARGUMENT},
        {LLAMA ",head-size=258", "head_size=258: a whole number from 0 to 256", ZR_ERR_ARGUMENT},
        {LLAMA ",tied=yes", "tied=yes: allowed: 0 and 1", ZR_ERR_ARGUMENT},
        {LLAMA ",rope=yarn", "rope=yarn: allowed: default, linear, llama3", ZR_ERR_ARGUMENT},
        {LLAMA ",theta=-1", "theta=-1: a number that is not negative", ZR_ERR_ARGUMENT},
        {LLAMA ",theta=nan", "theta=nan: a number", ZR_ERR_ARGUMENT},
        {LLAMA ",windowed=1", "window=0, and some layer is windowed", ZR_ERR_ARGUMENT},
        {LLAMA ",window=8,windowed=none,unrotated=4",
         "unrotated has layer 4; there are layers 0 to 3", ZR_ERR_ARGUMENT},
        {LLAMA ",unrotated=1-", "unrotated=1-: allowed: layers", ZR_ERR_ARGUMENT},
        {LLAMA ",unrotated=2-1", "unrotated=2-1: allowed: layers", ZR_ERR_ARGUMENT},
        {LLAMA ",unrotated=256", "unrotated=256: allowed: layers", ZR_ERR_ARGUMENT},
        {"llama,layers=100001,channels=64,heads=4,wide=96,seq=128,vocab=300",
         "layers=100001: a whole number from 1 to 100000", ZR_ERR_ARGUMENT},
        {"llama,layers=256,channels=16777216,heads=1048576,head-size=256,wide=67108864,seq=1,vocab="
         "9",
         "too large to address", ZR_ERR_ARGUMENT}};
    assert_int_equal(mkdir("empty", 0777), 0);
    write_file("gemma.json", "{\"model_type\": \"gemma\"}");
    write_file("bare.json", "{\"hidden_size\": 5}");
    write_file("erf.json", "{" GPT_SIZES ", \"activation_function\": \"gelu\"}");
    write_file("list.json", "[1]");
    write_file("cut.json", "{\"model_type\": ");
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_model_shape_t shape = {.kind = ZR_MODEL_GPT, .of.gpt.vocab = 77};
        zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
        zr_status_t status = zr_model_shape_read(cases[i].text, &log, &shape);
        if (status != cases[i].status || strstr(kept.text, cases[i].said) == NULL)
            fail_msg("%s: status %d, \"%s\", which has no \"%s\"", cases[i].text, (int)status,
                     kept.text, cases[i].said);
        assert_int_equal(strncmp(kept.text, cases[i].text, strlen(cases[i].text)), 0);
        assert_int_equal(shape.of.gpt.vocab, 77);
    }
}

#define LONG16 "layers=4,heads=4"
#define LONG LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 /* 128 characters */
#define LONG512 LONG LONG LONG LONG

TEST(refused_sizes) {
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"layers=4", "channels is missing"},
        {"layers=4,channels=256,heads=4,seq=256", "vocab is missing"},
        {GPT ",", "neither"},
        {GPT ",depth=3", "\"depth\" is not a part"},
        {"layers=4," GPT, "layers is given twice"},
        {"layers=0,channels=256,heads=4,seq=256,vocab=256", "layers=0"},
        {"layers=-4,channels=256,heads=4,seq=256,vocab=256", "layers=-4"},
        {"layers= 4,channels=256,heads=4,seq=256,vocab=256", "layers= 4"},
        {"layers=4x,channels=256,heads=4,seq=256,vocab=256", "layers=4x"},
        {"layers=,channels=256,heads=4,seq=256,vocab=256", "layers="},
        {"layers=4,channels=256,heads=3,seq=256,vocab=256", "heads=3 does not divide channels=256"},
        {"layers=4,channels=256,heads=512,seq=256,vocab=256", "heads=512 does not divide"},
        {"layers=99999999999999999999,channels=8,heads=4,seq=2,vocab=256", "layers=999"},
        {"layers=4,channels=8,heads=4,seq=2,vocab=2147483648", "1 to 2147483647"},
        {"layers=100000,channels=1000000,heads=4,seq=256,vocab=256", "too large"},
        {LONG512 LONG512 LONG512 LONG512,
         "...\" has 2048 characters; a model's description has 2047 at most"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_model_shape_t shape = {.kind = ZR_MODEL_GPT, .of.gpt.vocab = 77};
        zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
        zr_status_t status = zr_model_shape_read(cases[i].text, &log, &shape);
        if (status != ZR_ERR_ARGUMENT || strstr(kept.text, cases[i].said) == NULL)
            fail_msg("%s: status %d, \"%s\", which has no \"%s\"", cases[i].text, (int)status,
                     kept.text, cases[i].said);
        assert_int_equal(shape.of.gpt.vocab, 77);
    }
}

/* ---- what they are --------------------------------------------------------------------------- */

TEST(differences_are_named) {
    zr_model_shape_t a = read_good(LLAMA), b = read_good(GPT);
    zr_model_difference_t d;
    assert_true(zr_model_shapes_differ(&a, &b, &d));
    assert_string_equal(d.a.name, "architecture");
    assert_string_equal(d.a.text, "llama");
    assert_string_equal(d.b.text, "gpt2");
    b = read_good(LLAMA ",kv-heads=2,theta=5");
    assert_true(zr_model_shapes_differ(&a, &b, &d));
    assert_string_equal(d.a.name, "kv_heads");
    assert_string_equal(d.a.text, "4");
    assert_string_equal(d.b.text, "2");
    assert_false(zr_model_shapes_differ(&a, &a, &d));
}

TEST(sizes_and_operations) {
    zr_model_shape_t shape = read_good(LLAMA ",kv-heads=2,head-size=10");
    zr_model_sizes_t sizes = zr_model_shape_sizes(&shape);
    assert_true(sizes.n_layers == 4 && sizes.channels == 64 && sizes.heads == 4 &&
                sizes.kv_heads == 2 && sizes.head_size == 10 && sizes.seq == 128 &&
                sizes.vocab == 300);
    double layer = 64 * (40 + 20 + 20) + 40 * 64 + 3 * 64 * 96 + 2 * 64;
    double products = 4 * layer + 64 + 300 * 64;
    assert_true((double)zr_model_shape_n_params(&shape) == products + 300 * 64);
    assert_true(zr_model_shape_flops_per_token(&shape, 7) == 6 * products + 12 * 4 * 40 * 4);
    /* Of 7 tokens in a window of 3, the first sees 1, the second 2, the others 3. */
    shape = read_good(LLAMA ",kv-heads=2,head-size=10,window=3,windowed=1,tied=1");
    double expected = 6 * products + 12 * 40 * (3 * 4 + (1 + 2 + 5 * 3) / 7.0);
    assert_true(fabs(zr_model_shape_flops_per_token(&shape, 7) - expected) < 1e-6 * expected);
    assert_true((double)zr_model_shape_n_params(&shape) == products);
}

TEST(sizes_and_operations_of_gpts) {
    static const struct {
        const char *name;
        size_t n_params;
    } usual[] = {{"gpt2", 124439808},
                 {"gpt2-medium", 354823168},
                 {"gpt2-large", 774030080},
                 {"gpt2-xl", 1557611200}};
    zr_model_shape_t shape;
    for (size_t i = 0; i < N_OF(usual); i++) {
        shape = read_good(usual[i].name);
        assert_int_equal(zr_model_shape_n_params(&shape), usual[i].n_params);
    }
    shape = read_good("vocab=257,layers=3,heads=5,channels=40,seq=33");
    const zr_gpt_shape_t *gpt = &shape.of.gpt;
    assert_true(gpt->n_layers == 3 && gpt->channels == 40 && gpt->heads == 5 && gpt->seq == 33 &&
                gpt->vocab == 257);
    /* Per layer: 12 c^2 of matrices, 9 c of their biases, 4 c of norms. */
    size_t n_params = zr_model_shape_n_params(&shape);
    assert_int_equal(n_params, 3 * (12 * 1600 + 13 * 40) + 80 + 290 * 40);
    /* 6 per parameter; scores and their use over 4 of 7 positions on average, three times. */
    assert_true(zr_model_shape_flops_per_token(&shape, 7) ==
                6.0 * (double)n_params + 3.0 * 3.0 * 4.0 * 40.0 * 4.0);
}

/* As many elements as are counted without them, and of GPT-2 just its table. */
TEST(parameters_are_those_of_the_blocks) {
    static const char *const texts[] = {
        GPT,
        LLAMA,
        LLAMA ",kv-heads=2,head-size=10,tied=1,qkv-bias=1,out-bias=1,mlp-bias=1,qk-norm=1",
        "llama-3.1-70b",
        "smollm2-135m",
        "qwen3-0.6b",
        "gpt3-175b"};
    for (size_t i = 0; i < N_OF(texts); i++) {
        zr_model_shape_t shape = read_good(texts[i]);
        zr_model_tensors_t tensors;
        size_t n_elems = 0;
        assert_ok(zr_model_shape_tensors(&shape, NULL, NULL, &tensors));
        for (size_t k = 0; k < tensors.n; k++) {
            const zr_model_tensor_t *tensor = &tensors.all[k];
            size_t n = 1;
            for (int d = 0; d < tensor->n_dims; d++)
                n *= tensor->dims[d];
            assert_int_equal(n, tensor->n_elems);
            assert_ptr_equal(zr_model_tensors_find(&tensors, tensor->name), tensor);
            n_elems += n;
        }
        assert_int_equal(n_elems, zr_model_shape_n_params(&shape));
        assert_null(zr_model_tensors_find(&tensors, "lm_head"));
        if (shape.kind == ZR_MODEL_GPT) {
            assert_int_equal(tensors.n, zr_gpt_n_tensors(&shape.of.gpt));
            for (size_t k = 0; k < tensors.n; k++) {
                zr_gpt_tensor_t known;
                assert_true(zr_gpt_tensor_find(&shape.of.gpt, tensors.all[k].name, &known));
            }
        }
        zr_model_tensors_free(&tensors);
    }
    zr_model_shape_t shape = read_good("smollm2-135m");
    zr_model_tensors_t tensors;
    assert_ok(zr_model_shape_tensors(&shape, NULL, NULL, &tensors));
    const zr_model_tensor_t *k =
        zr_model_tensors_find(&tensors, "model.layers.3.self_attn.k_proj.weight");
    assert_non_null(k);
    assert_string_equal(k->unit, "layers.3");
    assert_true(k->n_dims == 2 && k->dims[0] == 192 && k->dims[1] == 576);
    assert_null(zr_model_tensors_find(&tensors, "lm_head.weight"));
    zr_model_tensors_free(&tensors);
}
