/*
 * Shapes of decoders: of the usual names as many parameters as their publishers count, and of a
 * config.json what it says, or a message with the key, its value and what is supported.
 */
#include "models/shape.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

const test_group_t test_group = {enter_test_folder, leave_test_folder};

static kept_log_t kept;

/* ---- names ----------------------------------------------------------------------------------- */

/* Sums over the tensors of the published weights. */
TEST(named_models_have_the_published_sizes) {
    static const struct {
        const char *name;
        size_t n_params;
    } cases[] = {
        {"llama-2-7b", 6738415616},   {"llama-2-13b", 13015864320},   {"llama-3.2-1b", 1235814400},
        {"llama-3.1-8b", 8030261248}, {"llama-3.1-70b", 70553706496}, {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-3b", 3085938688},     {"qwen2.5-7b", 7615616512},
        {"qwen2.5-14b", 14770033664}, {"qwen2.5-32b", 32763876352},   {"qwen2.5-72b", 72706203648},
        {"qwen3-0.6b", 596049920},    {"qwen3-1.7b", 1720574976},     {"qwen3-4b", 4022468096},
        {"qwen3-8b", 8190735360},     {"qwen3-14b", 14768307200},     {"qwen3-32b", 32762123264},
        {"mistral-7b", 7241732096},   {"smollm2-135m", 134515008},    {"smollm2-360m", 361821120},
        {"smollm2-1.7b", 1711376384}, {"tinyllama", 1100048384}};
    zr_decoder_shape_t shape;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(zr_decoder_name(i), cases[i].name);
        assert_true(zr_decoder_named(cases[i].name, &shape));
        assert_ok(zr_decoder_check(&shape, NULL));
        if (zr_decoder_n_params(&shape) != cases[i].n_params)
            fail_msg("%s: %zu parameters", cases[i].name, zr_decoder_n_params(&shape));
    }
    assert_null(zr_decoder_name(sizeof(cases) / sizeof(cases[0])));
    assert_false(zr_decoder_named("llama", &shape));
}

/* ---- files ----------------------------------------------------------------------------------- */

#define SIZES                                                                                      \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, "                   \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 100, "                \
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05"

static zr_status_t read_text(const char *text, zr_decoder_shape_t *shape) {
    FILE *file = fopen("config.json", "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    zr_model_shape_t read = {.kind = ZR_MODEL_GPT};
    zr_status_t status = zr_model_shape_read("config.json", &log, &read);
    if (status == ZR_OK) {
        assert_int_equal(read.kind, ZR_MODEL_DECODER);
        *shape = read.of.decoder;
    } else {
        assert_int_equal(read.kind, ZR_MODEL_GPT); /* untouched */
    }
    return status;
}

static zr_decoder_shape_t read_good(const char *text) {
    zr_decoder_shape_t shape;
    if (read_text(text, &shape) != ZR_OK)
        fail_msg("%s: %s", text, kept.text);
    return shape;
}

/* As Meta's, Alibaba's and Hugging Face's folders have them, with their keys that do not matter. */
TEST(published_files) {
    zr_decoder_shape_t shape = read_good(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, "
        "\"attention_dropout\": 0.0, \"bos_token_id\": 128000, \"eos_token_id\": 128001, "
        "\"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 2048, "
        "\"initializer_range\": 0.02, \"intermediate_size\": 8192, "
        "\"max_position_embeddings\": 131072, \"mlp_bias\": false, \"model_type\": \"llama\", "
        "\"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, "
        "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0, "
        "\"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
        "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, "
        "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
        "\"transformers_version\": \"4.45.0.dev0\", \"use_cache\": true, \"vocab_size\": 128256}");
    zr_decoder_shape_t named;
    assert_true(zr_decoder_named("llama-3.2-1b", &named));
    assert_memory_equal(&shape, &named, sizeof(shape));

    shape = read_good(
        "{\"model_type\": \"qwen2\", \"hidden_act\": \"silu\", \"hidden_size\": 896, "
        "\"intermediate_size\": 4864, \"max_position_embeddings\": 32768, "
        "\"max_window_layers\": 24, \"num_attention_heads\": 14, \"num_hidden_layers\": 24, "
        "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, "
        "\"sliding_window\": 32768, \"tie_word_embeddings\": true, \"use_mrope\": false, "
        "\"use_sliding_window\": false, \"vocab_size\": 151936}");
    assert_true(zr_decoder_named("qwen2.5-0.5b", &named));
    assert_memory_equal(&shape, &named, sizeof(shape));

    shape =
        read_good("{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": 576, "
                  "\"intermediate_size\": 1536, \"is_llama_config\": true, "
                  "\"max_position_embeddings\": 8192, \"num_attention_heads\": 9, "
                  "\"num_hidden_layers\": 30, \"num_key_value_heads\": 3, \"pretraining_tp\": 1, "
                  "\"rms_norm_eps\": 1e-05, \"rope_interleaved\": false, \"rope_scaling\": null, "
                  "\"rope_theta\": 100000, \"tie_word_embeddings\": true, \"vocab_size\": 49152, "
                  "\"transformers.js_config\": {\"kv_cache_dtype\": {}}}");
    assert_true(zr_decoder_named("smollm2-135m", &named));
    assert_memory_equal(&shape, &named, sizeof(shape));
}

TEST(switches) {
    zr_decoder_shape_t shape =
        read_good("{\"model_type\": \"qwen3\", " SIZES ", \"use_sliding_window\": true, "
                  "\"sliding_window\": 16, \"max_window_layers\": 3}");
    assert_true(shape.normalises_qk && shape.head_size == 128 && !shape.has_qkv_bias);
    assert_true(shape.windowed[0] == 8 && shape.window == 16);

    shape = read_good("{\"model_type\": \"qwen2\", " SIZES ", \"sliding_window\": 5, "
                      "\"use_sliding_window\": true, \"layer_types\": [\"full_attention\", "
                      "\"sliding_attention\", "
                      "\"sliding_attention\", \"full_attention\"]}");
    assert_true(shape.has_qkv_bias && !shape.has_out_bias && shape.head_size == 8);
    assert_true(shape.windowed[0] == 6 && shape.window == 5);

    shape = read_good("{\"model_type\": \"mistral\", " SIZES ", \"sliding_window\": 32, "
                      "\"head_dim\": 10}");
    assert_true(shape.windowed[0] == 15 && shape.window == 32 && shape.head_size == 10);
    shape = read_good("{\"model_type\": \"mistral\", " SIZES ", \"sliding_window\": null}");
    assert_true(shape.windowed[0] == 0 && shape.window == 0);

    shape = read_good("{\"model_type\": \"smollm3\", " SIZES "}");
    assert_true(shape.is_tied && shape.unrotated[0] == 8 && shape.rotary.theta == 2000000);
    shape = read_good("{\"model_type\": \"smollm3\", " SIZES ", \"no_rope_layers\": [0, 1, 1, 0]}");
    assert_true(shape.unrotated[0] == 9);

    shape = read_good("{\"model_type\": \"llama\", " SIZES ", \"attention_bias\": true, "
                      "\"mlp_bias\": true, \"rope_parameters\": {\"rope_type\": \"linear\", "
                      "\"rope_theta\": 5000, \"factor\": 2}}");
    assert_true(shape.has_qkv_bias && shape.has_out_bias && shape.has_mlp_bias && !shape.is_tied);
    assert_true(shape.rotary.scaling == ZR_NN_ROTARY_LINEAR && shape.rotary.factor == 2);
    assert_true(shape.rotary.theta == 5000);
}

/* What transformers has where a key is absent, or null. */
#define BARE                                                                                       \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 30, "                  \
    "\"num_attention_heads\": 32, \"vocab_size\": 100, \"max_position_embeddings\": 128"

TEST(defaults) {
    zr_decoder_shape_t shape = read_good("{\"model_type\": \"mistral\", " BARE "}");
    assert_true(shape.windowed[0] == 0x3fffffff && shape.window == 4096 && shape.kv_heads == 8);
    assert_true(shape.head_size == 2 && shape.rotary.theta == 10000 && !shape.is_tied);
    shape = read_good("{\"model_type\": \"qwen2\", " BARE ", \"use_sliding_window\": true}");
    assert_true(shape.windowed[0] == 0x30000000 && shape.window == 4096 && shape.kv_heads == 32);
    shape = read_good("{\"model_type\": \"qwen3\", " BARE ", \"use_sliding_window\": true, "
                      "\"max_window_layers\": 0}");
    assert_true(shape.windowed[0] == 0x3fffffff && shape.head_size == 128);
    shape = read_good("{\"model_type\": \"qwen2\", " BARE ", \"use_sliding_window\": true, "
                      "\"sliding_window\": null}");
    assert_true(shape.windowed[0] == 0 && shape.window == 0);
    shape = read_good("{\"model_type\": \"smollm3\", " BARE ", \"use_sliding_window\": true, "
                      "\"sliding_window\": 9, \"num_key_value_heads\": null}");
    assert_true(shape.windowed[0] == 0x08888888 && shape.window == 9 && shape.kv_heads == 32);
    shape = read_good("{\"model_type\": \"smollm3\", " BARE ", \"use_sliding_window\": true}");
    assert_true(shape.windowed[0] == 0 && shape.kv_heads == 4 && shape.is_tied);
    shape = read_good("{\"model_type\": \"llama\", " BARE ", \"head_dim\": null, "
                      "\"rope_parameters\": {\"rope_theta\": 5}, \"rope_scaling\": "
                      "{\"type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 1, "
                      "\"high_freq_factor\": 4}, \"original_max_position_embeddings\": 16}");
    assert_true(shape.rotary.scaling == ZR_NN_ROTARY_LLAMA3 && shape.rotary.theta == 10000);
    assert_true(shape.rotary.original_max_position_embeddings == 16 && shape.kv_heads == 32);
    /* Notes of tools. */
    shape = read_good("{\"model_type\": \"llama\", " BARE ", \"max_length\": 4096, "
                      "\"unsloth_fixed\": true, \"id2label\": {\"0\": \"a\"}, \"top_p\": 0.9, "
                      "\"partial_rotary_factor\": 1.0, \"pruned_heads\": {}, "
                      "\"hidden_dropout\": 0.0}");
    assert_true(shape.channels == 64);
}

TEST(refused) {
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"{\"model_type\": \"gemma\", " SIZES "}",
         "model_type is gemma; supported: gpt2, llama, qwen2, qwen3, mistral, smollm3"},
        {"{" SIZES "}", "model_type is missing"},
        {"{\"model_type\": \"llama\", \"hidden_size\": 64}", "num_hidden_layers is missing"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 9000000000000000000}",
         "num_hidden_layers is 9000000000000000000; allowed: 1 to 100000"},
        {"{\"model_type\": \"llama\", " SIZES ", \"head_dim\": 0}", "head_dim is 0; it must be"},
        {"{\"model_type\": \"llama\", " SIZES ", \"head_dim\": 7}", "head_size=7"},
        {"{\"model_type\": \"llama\", " SIZES ", \"hidden_act\": \"gelu\"}",
         "hidden_act is \"gelu\"; supported: silu"},
        {"{\"model_type\": \"llama\", " SIZES ", \"attention_dropout\": 0.1}",
         "attention_dropout is 0.1"},
        {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"rope_type\": \"yarn\"}}",
         "positions of the type yarn; supported: default, linear, llama3"},
        {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"rope_type\": \"linear\", "
         "\"factor\": 0}}",
         "factor is 0; it must be a number greater than 0"},
        {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"rope_type\": \"linear\", "
         "\"factor\": 2, \"beta\": 1}}",
         "beta of the positions is 1"},
        {"{\"model_type\": \"llama\", " SIZES ", \"quantization_config\": {\"bits\": 4}}",
         "quantization_config is {\"bits\":4}: quantised weights (of no named method)"},
        {"{\"model_type\": \"qwen3\", " SIZES ", \"quantization_config\": "
         "{\"quant_method\": \"gptq\"}}",
         "quantised weights (gptq)"},
        {"{\"model_type\": \"llama\", " SIZES ", \"unheard_of\": 0.5}",
         "unheard_of is 0.5, and not supported for the model type llama; remove"},
        {"{\"model_type\": \"llama\", " SIZES ", \"use_sliding_window\": true}",
         "use_sliding_window is true, and the model type llama has no windows"},
        {"{\"model_type\": \"qwen2\", " SIZES ", \"sliding_window\": 5, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]}",
         "layer_types has sliding_attention, and there is no window: use_sliding_window is not"},
        {"{\"model_type\": \"mistral\", " SIZES ", \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\", \"full_attention\", \"full_attention\"]}",
         "in the model type mistral all layers have the window"},
        {"{\"model_type\": \"qwen2\", " SIZES ", \"rope_theta\": null}", "rope_theta is null"},
        {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"type\": \"linear\"}}",
         "factor is missing"},
        {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"rope_type\": 1}}",
         "positions of the type 1; supported"},
        {"{\"model_type\": \"llama\", " SIZES ", \"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor is not 1"},
        {"{\"model_type\": \"smollm3\", " SIZES ", \"no_rope_layers\": [true, 1, 1, 1]}",
         "no_rope_layers has true; allowed: 1, and 0"},
        {"{\"model_type\": \"llama\", " SIZES ", \"no_rope_layers\": [1, 0, 1, 1]}",
         "no_rope_layers has 0; allowed: 1, and 0"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 4, \"n_head\": 2, "
         "\"n_positions\": 3, \"vocab_size\": 7, \"rotary_dim\": 2}",
         "rotary_dim is 2, and not supported for the model type gpt2"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 4, \"n_head\": 2, "
         "\"n_positions\": 3, \"vocab_size\": 7, \"hidden_size\": 8}",
         "\"hidden_size\" and \"n_embd\" differ"},
        {"{\"model_type\": \"llama\", " SIZES ", \"layer_types\": [\"full_attention\"]}",
         "layer_types has 1 layer, and num_hidden_layers is 4"},
        {"{\"model_type\": \"qwen2\", " SIZES ", \"layer_types\": [\"linear_attention\", "
         "\"full_attention\", \"full_attention\", \"full_attention\"]}",
         "layer_types has \"linear_attention\""},
        {"{\"model_type\": \"smollm3\", " SIZES ", \"no_rope_layers\": []}",
         "no_rope_layers has 0 layers"},
        {"{\"model_type\": \"llama\", " SIZES ", \"tie_word_embeddings\": 1}",
         "tie_word_embeddings is 1; it must be true or false"},
        {"{\"model_type\": \"llama\"", "config.json: line 1"},
        {"[]", "config.json: not an object"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        zr_decoder_shape_t shape = {.seq = 77};
        if (read_text(cases[i].text, &shape) == ZR_OK || shape.seq != 77 ||
            strstr(kept.text, cases[i].said) == NULL)
            fail_msg("%s: \"%s\", which has no \"%s\"", cases[i].text, kept.text, cases[i].said);
    }
}

/* Sizes that are no model, whatever a file may say. */
TEST(no_models) {
    zr_decoder_shape_t good, shape;
    assert_true(zr_decoder_named("smollm2-135m", &good));
    shape = good;
    shape.kv_heads = 2;
    assert_int_equal(zr_decoder_check(&shape, NULL), ZR_ERR_ARGUMENT);
    shape = good;
    shape.n_layers = ZR_DECODER_MAX_LAYERS + 1;
    assert_int_equal(zr_decoder_check(&shape, NULL), ZR_ERR_ARGUMENT);
    shape = good;
    shape.epsilon = 0;
    assert_int_equal(zr_decoder_check(&shape, NULL), ZR_ERR_ARGUMENT);
    shape = good;
    shape.head_size = 63;
    assert_int_equal(zr_decoder_check(&shape, NULL), ZR_ERR_ARGUMENT);
    shape = good;
    shape.window = 5; /* of no layer */
    assert_int_equal(zr_decoder_check(&shape, NULL), ZR_ERR_ARGUMENT);
}
