/*
 * Folders of Hugging Face's models of the Llama family: what is imported is exported with the same
 * names, dtypes and bytes, and with the files beside the weights. Hostile ones are refused with
 * file and tensor or token, and nothing is written.
 */
#include <sys/stat.h>

#include "examples/weights/hf_config.h"
#include "examples/weights/in_file.h"
#include "examples/weights/safetensors_set.h"
#include "examples/weights/weights_checkpoint.h"
#include "examples/weights/weights_hf.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/examples/weights/made_weights.h"

#define SIZES                                                                                      \
    "\"hidden_size\": 16, \"intermediate_size\": 20, \"num_hidden_layers\": 2, "                   \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 11, "                 \
    "\"max_position_embeddings\": 32"
#define LLAMA "{\"model_type\": \"llama\", " SIZES "}\n"
#define TIED "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, " SIZES "}\n"

static kept_log_t captured;

/* ---- folders that are made ------------------------------------------------------------------- */

typedef struct change {
    const char *left_out, *renamed, *to; /* tensors */
    const char *added;                   /* of 2 x 3; NULL: none */
    const char *narrow;                  /* one row less */
    const char *spoiled;                 /* its element 3 is `spoil` */
    float spoil;
    bool has_head; /* beside a tied embedding */
    bool head_differs;
    bool is_bare;   /* names without "model.", as models without a head have them */
    bool is_mixed;  /* dtypes in turn; else fp32 */
    size_t n_files; /* 0 and 1: one without an index */
    size_t cut;     /* bytes that the last file lacks */
} change_t;

#define MOST_TENSORS 64
typedef struct making {
    const change_t *change;
    safetensors_tensor_t tensors[MOST_TENSORS];
    char names[MOST_TENSORS][128];
    unsigned char *bytes[MOST_TENSORS];
    size_t n;
} making_t;

static void add(making_t *m, const char *name, const zr_model_tensor_t *of) {
    const change_t *change = m->change;
    element_kind_t kind = change->is_mixed ? (element_kind_t)(m->n % 3) : ELEMENT_FP32;
    bool is_head = strcmp(name, "lm_head.weight") == 0;
    safetensors_tensor_t *tensor = &m->tensors[m->n];
    if (change->left_out != NULL && strcmp(change->left_out, name) == 0)
        return;
    bool is_renamed = change->renamed != NULL && strcmp(change->renamed, name) == 0;
    bool is_stripped = change->is_bare && of->name[0] == 'm'; /* "model.norm.weight" */
    const char *own = is_stripped ? name + strlen("model.") : name;
    snprintf(m->names[m->n], sizeof(m->names[0]), "%s", is_renamed ? change->to : own);
    *tensor = (safetensors_tensor_t){
        .name = m->names[m->n], .type = element_type_of(kind), .n_dims = of->n_dims, .n_elems = 1};
    memcpy(tensor->dims, of->dims, sizeof(of->dims));
    tensor->dims[0] -= change->narrow != NULL && strcmp(change->narrow, name) == 0;
    for (int i = 0; i < tensor->n_dims; i++)
        tensor->n_elems *= tensor->dims[i];
    tensor->size_bytes = tensor->n_elems * tensor->type->size_bytes;
    float *values = malloc(tensor->n_elems * sizeof(*values));
    m->bytes[m->n] = malloc(tensor->size_bytes);
    assert_true(values != NULL && m->bytes[m->n] != NULL);
    for (size_t i = 0; i < tensor->n_elems; i++)
        values[i] = made_value(of->name, i);
    if (change->is_mixed) /* those that all dtypes have: a head is its embedding in another */
        for (size_t i = 0; i < tensor->n_elems; i++)
            values[i] = (float)(int)(64.0f * values[i]) / 64.0f;
    if (change->spoiled != NULL && strcmp(change->spoiled, name) == 0)
        values[3] = change->spoil;
    if (is_head && change->head_differs)
        values[tensor->n_elems - 1] += 1.0f;
    assert_int_equal(elements_from_fp32(kind, values, tensor->n_elems, m->bytes[m->n]),
                     tensor->n_elems);
    free(values);
    m->n++;
}

/* Tensors [first, end) as a file. */
static void write_file(const making_t *m, const char *path, size_t first, size_t end) {
    char *header;
    size_t n_header, n_bytes = 0;
    zr_log_t log = zr_log_default();
    assert_ok(safetensors_build(m->tensors + first, end - first, NULL, &log, &header, &n_header));
    for (size_t i = first; i < end; i++)
        n_bytes += m->tensors[i].size_bytes;
    char *all = malloc(n_header + n_bytes), *at = all + n_header;
    assert_non_null(all);
    memcpy(all, header, n_header);
    for (size_t i = first; i < end; at += m->tensors[i++].size_bytes)
        memcpy(at, m->bytes[i], m->tensors[i].size_bytes);
    made_file(path, all, n_header + n_bytes - (end == m->n ? m->change->cut : 0));
    free(all);
    free(header);
}

static void write_files(const making_t *m, const char *folder) {
    size_t n_files = m->change->n_files;
    char path[256], index[8192];
    size_t used = (size_t)snprintf(index, sizeof(index), "{\"weight_map\": {");
    if (n_files <= 1) {
        snprintf(path, sizeof(path), "%s/" HF_WEIGHTS_NAME, folder);
        write_file(m, path, 0, m->n);
        return;
    }
    for (size_t i = 0; i < n_files; i++) {
        size_t first = i * m->n / n_files, end = (i + 1) * m->n / n_files;
        snprintf(path, sizeof(path), "%s/m%zu.safetensors", folder, i);
        write_file(m, path, first, end);
        for (size_t k = first; k < end; k++)
            used += (size_t)snprintf(index + used, sizeof(index) - used,
                                     "%s\"%s\": \"m%zu.safetensors\"", k > 0 ? ", " : "",
                                     m->tensors[k].name, i);
    }
    used += (size_t)snprintf(index + used, sizeof(index) - used, "}}");
    snprintf(path, sizeof(path), "%s/" HF_INDEX_NAME, folder);
    made_file(path, index, used);
}

/* A file of a folder. */
static void put(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    made_file(path, text, strlen(text));
}

static void make_folder(const char *folder, const char *config, const change_t *change) {
    static making_t m;
    zr_model_shape_t shape;
    zr_model_tensors_t tensors;
    zr_log_t log = zr_log_default();
    m = (making_t){.change = change};
    assert_int_equal(mkdir(folder, 0777), 0);
    put(folder, "config.json", config);
    assert_ok(zr_model_shape_read_config(config, strlen(config), folder, &log, &shape));
    assert_ok(zr_model_shape_tensors(&shape, NULL, &log, &tensors));
    assert_in_range(tensors.n, 1, MOST_TENSORS - 2);
    for (size_t i = 0; i < tensors.n; i++)
        add(&m, tensors.all[i].name, &tensors.all[i]);
    if (change->has_head)
        add(&m, "lm_head.weight", zr_model_tensors_find(&tensors, "model.embed_tokens.weight"));
    if (change->added != NULL)
        add(&m, change->added, &(zr_model_tensor_t){.name = "?", .n_dims = 2, .dims = {2, 3}});
    write_files(&m, folder);
    for (size_t i = 0; i < m.n; i++)
        free(m.bytes[i]);
    zr_model_tensors_free(&tensors);
}

static void remove_all(const char *paths) {
    char command[256];
    snprintf(command, sizeof(command), "rm -rf %s", paths);
    assert_int_equal(system(command), 0);
}

/* ---- there and back -------------------------------------------------------------------------- */

static zr_status_t import(const char *folder, const char *checkpoints) {
    weights_t *weights = NULL;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    ZR_TRY(weights_open(&folder, 1, NULL, &log, &weights));
    zr_status_t status =
        weights_write_checkpoint(weights, &(weights_import_t){.folder = checkpoints}, &log);
    weights_close(&weights);
    return status;
}

static zr_status_t export(const char *checkpoints, const weights_export_t *options,
                          weights_report_t *report_p) {
    zr_checkpoint_t *checkpoint = NULL;
    weights_t *weights = NULL;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    ZR_TRY(zr_checkpoint_open(checkpoints, &log, &checkpoint));
    zr_status_t status = weights_of_checkpoint(checkpoint, NULL, &log, &weights);
    if (status == ZR_OK)
        status = weights_write_safetensors(weights, options, &log, report_p);
    weights_close(&weights);
    zr_checkpoint_close(&checkpoint);
    return status;
}

static safetensors_set_t open_set(const char *folder) {
    safetensors_set_t set;
    zr_log_t log = zr_log_default();
    char one[256], index[256];
    snprintf(one, sizeof(one), "%s/" HF_WEIGHTS_NAME, folder);
    snprintf(index, sizeof(index), "%s/" HF_INDEX_NAME, folder);
    assert_ok(made_file_is_there(index)
                  ? safetensors_set_open_index(index, &log, &set)
                  : safetensors_set_open(&(const char *){one}, 1, &log, &set));
    return set;
}

static unsigned char *read_bytes(const safetensors_set_t *set, safetensors_place_t place) {
    zr_log_t log = zr_log_default();
    unsigned char *bytes = malloc(place.tensor->size_bytes);
    assert_non_null(bytes);
    assert_ok(in_file_read(&set->files[place.file].file, bytes, place.tensor->size_bytes,
                           set->files[place.file].data_offset_bytes + place.tensor->offset_bytes,
                           &log));
    return bytes;
}

/* The same tensors: names, dtypes, shapes and bytes. */
static void assert_same_tensors(const char *folder_a, const char *folder_b) {
    safetensors_set_t a = open_set(folder_a), b = open_set(folder_b);
    size_t n_a = 0, n_b = 0;
    for (size_t i = 0; i < b.n_files; i++)
        n_b += b.files[i].header.n_tensors;
    for (size_t i = 0; i < a.n_files; i++)
        for (size_t k = 0; k < a.files[i].header.n_tensors; k++, n_a++) {
            const safetensors_tensor_t *tensor = &a.files[i].header.tensors[k];
            safetensors_place_t other = safetensors_set_find(&b, tensor->name);
            if (other.tensor == NULL || other.tensor->type != tensor->type ||
                other.tensor->size_bytes != tensor->size_bytes)
                fail_msg("%s: missing, or of another dtype", tensor->name);
            unsigned char *x = read_bytes(&a, (safetensors_place_t){i, tensor});
            unsigned char *y = read_bytes(&b, other);
            assert_memory_equal(x, y, tensor->size_bytes);
            free(x);
            free(y);
        }
    assert_int_equal(n_a, n_b);
    safetensors_set_close(&a);
    safetensors_set_close(&b);
}

static const char *const types[] = {
    LLAMA,
    TIED,
    "{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, \"head_dim\": 6, "
    "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e4, \"factor\": 8.0, "
    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
    "\"original_max_position_embeddings\": 16}, \"unk_token_id\": 0, " SIZES "}",
    "{\"model_type\": \"qwen2\", \"tie_word_embeddings\": true, " SIZES "}",
    "{\"model_type\": \"qwen3\", \"head_dim\": 8, \"rms_norm_eps\": 9.999999747378752e-06, "
    "\"layer_types\": [\"full_attention\", \"sliding_attention\"], \"sliding_window\": 4, "
    "\"use_sliding_window\": true, " SIZES "}",
    "{\"model_type\": \"mistral\", \"sliding_window\": 8, \"rope_theta\": 1000000.0, " SIZES "}",
    "{\"model_type\": \"smollm3\", \"no_rope_layers\": [1, 0], " SIZES "}"};

TEST(test_round_trips_of_each_type) {
    for (size_t i = 0; i < N_OF(types); i++)
        for (int mixed = 0; mixed <= 1; mixed++) {
            weights_report_t report;
            bool is_tied = strstr(types[i], "tie_word_embeddings") != NULL;
            change_t change = {.is_mixed = mixed == 1,
                               .has_head = is_tied && mixed == 1,
                               .n_files = mixed == 1 ? 3 : 1};
            weights_export_t options = {
                .path = "out", .as_origin = true, .shard_bytes = mixed == 1 ? 4000 : 0};
            make_folder("in", types[i], &change);
            if (import("in", "c") != ZR_OK || export("c", &options, &report) != ZR_OK)
                fail_msg("%s: %s", types[i], captured.text);
            assert_string_equal(report.dtype, mixed == 1 ? "mixed" : "fp32");
            assert_int_equal(report.n_files > 1, mixed == 1);
            assert_same_tensors("in", "out");
            assert_int_equal(system("cmp in/config.json out/config.json"), 0);
            remove_all("in out c");
        }
}

static void refuse(const char *config, const change_t *change, const char *said) {
    make_folder("in", config, change);
    zr_status_t status = import("in", "c");
    if (status == ZR_OK || strstr(captured.text, said) == NULL)
        fail_msg("%s, and not \"%s\": %s", zr_status_name(status), said, captured.text);
    assert_false(made_file_is_there("c"));
    remove_all("in c");
}

/* Models of embeddings have no head, and no "model." in front of names: so they come back. */
TEST(test_names_without_a_prefix) {
    change_t bare = {.is_bare = true, .is_mixed = true};
    for (size_t i = 0; i < N_OF(types); i++) {
        weights_report_t report;
        weights_export_t options = {.path = "out", .as_origin = true};
        make_folder("in", types[i], &bare);
        if (import("in", "c") != ZR_OK || export("c", &options, &report) != ZR_OK)
            fail_msg("%s: %s", types[i], captured.text);
        assert_same_tensors("in", "out");
        remove_all("in out c");
    }
    bare.is_mixed = false;
    bare.added = "model.norm.weight";
    refuse(LLAMA, &bare, "tensor \"model.norm.weight\" is not a part of a model");
    bare.added = "model.embed_tokens.weight";
    refuse(LLAMA, &bare, "it has both embed_tokens.weight and model.embed_tokens.weight");
    bare.added = NULL;
    bare.left_out = "model.embed_tokens.weight";
    refuse(LLAMA, &bare, "it has neither embed_tokens.weight nor model.embed_tokens.weight");
}

/* What beside the weights makes a model generate comes back byte by byte; the rest is said. */
TEST(test_carried_files) {
    weights_report_t report;
    weights_export_t options = {.path = "out", .as_origin = true};
    static const char *const names[] = {
        "config.json",           "generation_config.json", "tokenizer.json",      "tokenizer.model",
        "tokenizer_config.json", "added_tokens.json",      "chat_template.jinja", "merges.txt"};
    make_folder("in", LLAMA, &(change_t){.n_files = 1});
    put("in", "generation_config.json", "{\"eos_token_id\": [2, 3]}");
    put("in", "tokenizer.json",
        "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 9}}, \"added_tokens\": "
        "[{\"id\": 10, \"content\": \"<x>\"}]}");
    put("in", "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656}\n\n");
    put("in", "added_tokens.json", "{\"<x>\": 10}");
    put("in", "chat_template.jinja", "{{ messages }}");
    put("in", "merges.txt", "#version: 0.2\n\xff\xfe b\n");
    made_file("in/tokenizer.model", "\n\0\n\3\0\xff\1", 7); /* two pieces, of any bytes */
    put("in", "README.md", "of other weights");
    assert_ok(import("in", "c"));
    assert_has(captured.text, "not carried along from in: README.md");
    assert_ok(export("c", &options, &report));
    for (size_t i = 0; i < N_OF(names); i++) {
        char command[256];
        snprintf(command, sizeof(command), "cmp in/%s out/%s", names[i], names[i]);
        assert_int_equal(system(command), 0);
    }
    assert_int_equal(made_folder_count("out"), N_OF(names) + 1);
    remove_all("in out c");
}

/* A dtype that is asked for is also the configuration's; the rest of it stays. */
TEST(test_another_dtype) {
    weights_report_t report;
    weights_export_t options = {.path = "out", .kind = ELEMENT_BF16};
    static const char config[] = "{\"model_type\": \"llama\", \"torch_dtype\": \"float32\", "
                                 "\"rms_norm_eps\": 1e-05, " SIZES "}";
    make_folder("in", config, &(change_t){.n_files = 1});
    assert_ok(import("in", "c"));
    assert_ok(export("c", &options, &report));
    assert_string_equal(report.dtype, "bf16");
    json_t *written = json_load_file("out/config.json", 0, NULL),
           *came = json_loads(config, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(written, "torch_dtype")), "bfloat16");
    json_object_set_new(written, "torch_dtype", json_string("float32"));
    assert_true(json_equal(written, came));
    json_decref(written);
    json_decref(came);
    options = (weights_export_t){.path = "same", .kind = ELEMENT_FP32};
    assert_ok(export("c", &options, &report));
    assert_int_equal(system("cmp in/config.json same/config.json"), 0);
    remove_all("in out same c");
}

/* Names of files of the cache are links, which lead to files of other names. */
TEST(test_the_cache_of_hugging_face) {
    make_folder("in", LLAMA, &(change_t){.n_files = 1});
    put("in", "tokenizer.json", "{}");
    assert_int_equal(
        system("mkdir -p hub/blobs hub/snapshots/rev && mv in/config.json hub/blobs/1 "
               "&& mv in/model.safetensors hub/blobs/2 && mv in/tokenizer.json "
               "hub/blobs/3 && cd hub/snapshots/rev && ln -s ../../blobs/1 config.json "
               "&& ln -s ../../blobs/2 model.safetensors && "
               "ln -s ../../blobs/3 tokenizer.json"),
        0);
    if (import("hub/snapshots/rev", "c") != ZR_OK)
        fail_msg("%s", captured.text);
    assert_true(made_file_is_there("c/step-00000000/tokenizer.json"));
    remove_all("in hub c");
}

/* ---- configurations that are written --------------------------------------------------------- */

static zr_status_t make_config(const char *model, char **text_p) {
    size_t n_bytes;
    zr_model_shape_t shape = made_shape(model);
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    return hf_config_make(&shape, ELEMENT_FP32, &log, text_p, &n_bytes);
}

#define DECODER "llama,layers=4,channels=16,heads=4,kv-heads=2,wide=20,seq=32,vocab=11"

/* That it means the same model is seen to when it is made. */
TEST(test_configurations_of_models_that_were_not_imported) {
    static const struct {
        const char *model, *has;
    } cases[] = {
        {"layers=2,channels=8,heads=2,seq=6,vocab=50257", "\"eos_token_id\": 50256"},
        {DECODER, "\"model_type\": \"llama\""},
        {DECODER ",tied=1,epsilon=9.999999747378752e-06", "\"tie_word_embeddings\": true"},
        {DECODER ",qkv-bias=1", "\"model_type\": \"qwen2\""},
        {DECODER ",qk-norm=1,head-size=6", "\"model_type\": \"qwen3\""},
        {DECODER ",window=7,windowed=all", "\"model_type\": \"mistral\""},
        {DECODER ",window=7,windowed=1-2", "\"model_type\": \"smollm3\""},
        {DECODER ",unrotated=3", "\"model_type\": \"smollm3\""},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        char *text = NULL;
        if (make_config(cases[i].model, &text) != ZR_OK || strstr(text, cases[i].has) == NULL)
            fail_msg("%s: %s: %s", cases[i].model, text != NULL ? text : "", captured.text);
        free(text);
    }
    char *text = NULL;
    assert_int_equal(make_config(DECODER ",qkv-bias=1,unrotated=3", &text), ZR_ERR_UNSUPPORTED);
    assert_has(captured.text, "no model type of transformers is a model with llama,layers=4");
}

/* ---- hostile folders ------------------------------------------------------------------------- */

#define Q_PROJ "model.layers.1.self_attn.q_proj.weight"

TEST(test_tensors_that_are_refused) {
    refuse(LLAMA, &(change_t){.narrow = Q_PROJ},
           "in/model.safetensors: tensor \"" Q_PROJ "\" has the shape [15, 16]; in a model with "
           "llama,");
    refuse(LLAMA, &(change_t){.left_out = Q_PROJ}, "are missing, \"" Q_PROJ "\" alone");
    refuse(LLAMA, &(change_t){.left_out = "lm_head.weight"}, "\"lm_head.weight\" alone");
    refuse(LLAMA, &(change_t){.renamed = Q_PROJ, .to = "model.layers.2.self_attn.q_proj.weight"},
           "are missing, \"" Q_PROJ "\" alone");
    refuse(LLAMA, &(change_t){.added = "model.layers.1.self_attn.q_proj.bias"},
           "\"model.layers.1.self_attn.q_proj.bias\" is not a part of a model with llama,");
    refuse(LLAMA, &(change_t){.added = "model.layers.2.self_attn.rotary_emb.inv_freq"},
           "is not a part of a model with llama,");
    refuse(LLAMA, &(change_t){.spoiled = Q_PROJ, .spoil = NAN},
           "in/model.safetensors: tensor \"" Q_PROJ "\": element 3 is nan");
    refuse(LLAMA, &(change_t){.spoiled = "model.norm.weight", .spoil = -INFINITY, .n_files = 2},
           "in/m1.safetensors: tensor \"model.norm.weight\": element 3 is -inf");
    refuse(TIED, &(change_t){.has_head = true, .head_differs = true},
           "tensor \"lm_head.weight\" is not model.embed_tokens.weight");
    refuse(LLAMA, &(change_t){.cut = 1}, "in/model.safetensors: ");
    refuse(LLAMA, &(change_t){.cut = 1, .n_files = 2}, "in/m1.safetensors: ");
}

TEST(test_buffers_are_passed_over) {
    make_folder("in", LLAMA, &(change_t){.added = "model.layers.1.self_attn.rotary_emb.inv_freq"});
    assert_ok(import("in", "c"));
    assert_has(captured.text, "1 tensor of rotary positions (inv_freq) are ignored");
    remove_all("in c");
}

/* A change of a folder that was whole. */
static void refuse_after(const change_t *change, const char *command, const char *said) {
    make_folder("in", LLAMA, change);
    assert_int_equal(system(command), 0);
    zr_status_t status = import("in", "c");
    if (status == ZR_OK || strstr(captured.text, said) == NULL)
        fail_msg("%s: %s, and not \"%s\": %s", command, zr_status_name(status), said,
                 captured.text);
    assert_false(made_file_is_there("c"));
    remove_all("in c");
}

#define INDEX "in/model.safetensors.index.json"

TEST(test_files_that_are_refused) {
    change_t two = {.n_files = 2}, one = {.n_files = 1};
    refuse_after(&two, "rm in/m1.safetensors", "cannot open in/m1.safetensors");
    refuse_after(&two, "cp in/m0.safetensors in/m1.safetensors", "both have a tensor \"");
    refuse_after(&two, "sed -i s,m1.safetensors,../m1.safetensors,g " INDEX,
                 "in \"../m1.safetensors\"; allowed: names of .safetensors files in the folder");
    refuse_after(&two, "sed -i s,m1.safetensors,/etc/m1.safetensors,g " INDEX, "allowed: names");
    refuse_after(&two, "sed -i s,m1.safetensors,.m1.safetensors,g " INDEX, "allowed: names");
    refuse_after(&two, "truncate -s 100 " INDEX, INDEX ": its JSON");
    refuse_after(&two, "truncate -s 20M " INDEX, "at most 16777216 are read");
    refuse_after(&one, "rm in/model.safetensors && mkfifo in/model.safetensors", "is not a file");
    refuse_after(&one,
                 "rm in/model.safetensors && ln -s loop in/model.safetensors && "
                 "ln -s model.safetensors in/loop",
                 "has neither model.safetensors nor");
    refuse_after(&one,
                 "printf '\\377\\377\\377\\377\\377\\377\\377\\177' | dd of=in/model.safetensors "
                 "conv=notrunc 2>/dev/null",
                 "in/model.safetensors: no safetensors file, or cut off");
    refuse_after(&one,
                 "truncate -s 40M in/model.safetensors && printf '\\0\\0\\0\\2\\0\\0\\0\\0' | "
                 "dd of=in/model.safetensors conv=notrunc 2>/dev/null",
                 "its header has 33554432 bytes; at most 16777216 are read");
    refuse_after(&one, "truncate -s 2M in/config.json", "in/config.json has 2097152 bytes");
    refuse_after(&one, "truncate -s 50 in/config.json", "in/config.json");
    refuse_after(&one, "sed -i s/llama/gemma/ in/config.json",
                 "in/config.json: model_type is gemma; supported:");
    refuse_after(&one, "sed -i 's/\"hidden_size\": 16/\"hidden_size\": 32/' in/config.json",
                 "has the shape [11, 16]; in a model with");
    refuse_after(&one,
                 "sed -i 's/\"hidden_size\": 16/\"hidden_size\": 16, \"hidden_size\": 16/' "
                 "in/config.json",
                 "duplicate");
    refuse_after(&one, "rm in/config.json", "there is no config.json in the same folder");
}

TEST(test_tokenizers_that_are_refused) {
    static const struct {
        const char *name, *text, *said;
    } cases[] = {
        {"tokenizer.json", "{\"model\": {\"vocab\": {\"a\": 0, \"bad\": 11}}}",
         "in/tokenizer.json: token \"bad\" has the id 11, and the model has 11 words"},
        {"tokenizer.json", "{\"model\": {\"vocab\": {\"a\": -1}}}", "has the id -1"},
        {"tokenizer.json", "{\"model\": {\"vocab\": {\"a\": \"1\"}}}", "its id is not a number"},
        {"tokenizer.json", "{\"added_tokens\": [{\"id\": 10}, {\"id\": 11, \"content\": \"<x>\"}]}",
         "token \"<x>\" has the id 11"},
        {"tokenizer.json", "{\"added_tokens\": [7]}", "its id is not a number"},
        {"tokenizer.json", "{\"model\": {\"vocab\": [1,2,3,4,5,6,7,8,9,10,11,12]}}",
         "in/tokenizer.json: it has 12 tokens, and the model 11 words"},
        {"tokenizer.json", "{\"model\": ", "in/tokenizer.json: line 1"},
        {"tokenizer.json", "", "in/tokenizer.json: line 1"},
        {"vocab.json", "{\"a\": 11}", "in/vocab.json: token \"a\" has the id 11"},
        {"added_tokens.json", "{\"a\": 1e30}", "in/added_tokens.json: token \"a\" has the id 1000"},
        {"tokenizer_config.json", "{", "in/tokenizer_config.json: line 1"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        make_folder("in", LLAMA, &(change_t){.n_files = 1});
        put("in", cases[i].name, cases[i].text);
        zr_status_t status = import("in", "c");
        if (status != ZR_ERR_FORMAT || strstr(captured.text, cases[i].said) == NULL)
            fail_msg("%s: %s: %s", cases[i].text, zr_status_name(status), captured.text);
        assert_false(made_file_is_there("c"));
        remove_all("in");
    }
}

/* A file of SentencePiece with so many pieces of a letter, and a field behind them. */
static size_t make_pieces(char *bytes, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++, used += 5)
        memcpy(bytes + used, "\n\3\n\1a", 5);
    memcpy(bytes + used, "\22\2\30\1", 4);
    return used + 4;
}

TEST(test_pieces_that_are_too_many) {
    static const char *const names[] = {"tokenizer.model", "spiece.model"};
    char bytes[128];
    for (size_t i = 0; i < N_OF(names); i++)
        for (size_t n = 10; n <= 12; n++) {
            char path[64];
            make_folder("in", LLAMA, &(change_t){.n_files = 1});
            snprintf(path, sizeof(path), "in/%s", names[i]);
            made_file(path, bytes, make_pieces(bytes, n));
            assert_int_equal(import("in", "c"), n > 11 ? ZR_ERR_FORMAT : ZR_OK);
            if (n > 11)
                assert_has(captured.text, "it has 12 pieces, and the model 11 words");
            remove_all("in c");
        }
    for (size_t n = 0; n < make_pieces(bytes, 3); n++) {
        make_folder("in", LLAMA, &(change_t){.n_files = 1});
        made_file("in/tokenizer.model", bytes, n);
        bool is_whole = n == 5 || n == 10 || n == 15; /* without the field behind */
        assert_int_equal(import("in", "c"), is_whole ? ZR_OK : ZR_ERR_FORMAT);
        if (!is_whole)
            assert_has(captured.text, "in/tokenizer.model: it is not a model of SentencePiece");
        remove_all("in c");
    }
}

/* What would hand on a file that nobody meant to, or never ends. */
TEST(test_carried_files_that_are_refused) {
    change_t one = {.n_files = 1};
    made_file("secret", "key", 3);
    refuse_after(&one, "ln -s ../secret in/merges.txt", "in/merges.txt is a link to ");
    refuse_after(&one, "ln -s /dev/zero in/tokenizer.model", "outside the folder; copy");
    refuse_after(&one,
                 "mkdir -p in/x/blobs && ln -s ../blobs/s in/x/y && ln -s $PWD/secret "
                 "in/tokenizer.model",
                 "outside the folder; copy");
    refuse_after(&one, "mkfifo in/merges.txt", "in/merges.txt is not a file");
    refuse_after(&one, "mkdir in/merges.txt", "in/merges.txt is not a file");
    refuse_after(&one, "truncate -s 65M in/merges.txt",
                 "in/merges.txt has 68157440 bytes; at most");
    make_folder("in", LLAMA, &one);
    assert_int_equal(system("echo x > in/other && ln -s other in/merges.txt"), 0);
    assert_ok(import("in", "c"));
    remove_all("in c secret");
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
