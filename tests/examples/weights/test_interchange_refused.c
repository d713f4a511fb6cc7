/*
 * What is refused of files that are whole by themselves but no GPT-2 of ours, or not what an index
 * or a configuration says; and what becomes of writing that fails: nothing is left.
 */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "examples/weights/in_file.h"
#include "examples/weights/llmc.h"
#include "examples/weights/safetensors.h"
#include "examples/weights/weights_checkpoint.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/examples/weights/made_weights.h"

#define TEXT "layers=1,channels=4,heads=2,seq=3,vocab=7"
static const zr_gpt_shape_t shape = {
    .n_layers = 1, .channels = 4, .heads = 2, .seq = 3, .vocab = 7};

static kept_log_t captured;

/* ---- files that are changed --------------------------------------------------------------- */

typedef struct change {
    const char *left_out;     /* a tensor, by its name in the file */
    const char *renamed, *to; /* likewise */
    const char *prefix;       /* of parameters; NULL: none */
    const char *buffer;       /* one more tensor, of 4 bytes; NULL: none */
    bool output;              /* lm_head.weight as well */
    float output_differs;     /* by so much, in its last element */
    bool transposed;          /* the dims of attn.c_attn.weight */
    const char *model;        /* for the metadata */
    element_kind_t kind;
    const char *dtype_of_wte; /* instead of the kind's name */
} change_t;

typedef struct building {
    safetensors_tensor_t tensors[32];
    char names[32][128];
    size_t n;
    float data[4096];
    size_t n_data;
} building_t;

static void add(building_t *b, const change_t *change, const char *name, const size_t *dims,
                int n_dims, const char *values_of) {
    safetensors_tensor_t *tensor = &b->tensors[b->n];
    if (change->left_out != NULL && strcmp(change->left_out, name) == 0)
        return;
    bool renamed = change->renamed != NULL && strcmp(change->renamed, name) == 0;
    snprintf(b->names[b->n], sizeof(b->names[0]), "%s", renamed ? change->to : name);
    *tensor = (safetensors_tensor_t){
        .name = b->names[b->n], .type = element_type_of(ELEMENT_FP32), .n_dims = n_dims};
    tensor->n_elems = 1;
    for (int i = 0; i < n_dims; i++) {
        tensor->dims[i] = dims[i];
        tensor->n_elems *= dims[i];
    }
    tensor->size_bytes = 4 * tensor->n_elems;
    for (size_t i = 0; i < tensor->n_elems; i++)
        b->data[b->n_data++] = made_value(values_of, i);
    b->n++;
}

/* A file of fp32 with what is to be wrong about it. */
static void write_changed(const char *path, const change_t *change) {
    static building_t b;
    b.n = b.n_data = 0;
    for (size_t i = 0; i < zr_gpt_n_tensors(&shape); i++) {
        zr_gpt_tensor_t tensor = zr_gpt_tensor_at(&shape, i);
        size_t turned[2] = {tensor.dims[1], tensor.dims[0]};
        bool turn = change->transposed && tensor.kind == ZR_GPT_ATTN_IN_WEIGHT;
        char name[128];
        snprintf(name, sizeof(name), "%s%s", change->prefix == NULL ? "" : change->prefix,
                 tensor.name);
        add(&b, change, name, turn ? turned : tensor.dims, tensor.n_dims, tensor.name);
    }
    if (change->output)
        add(&b, change, "lm_head.weight", (size_t[]){7, 4}, 2, "wte.weight");
    b.data[b.n_data - 1] += change->output_differs;
    if (change->buffer != NULL)
        add(&b, change, change->buffer, (size_t[]){1}, 1, "buffer");
    if (change->dtype_of_wte != NULL)
        b.tensors[0].type = element_type_find(change->dtype_of_wte);

    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    char *header;
    size_t n_header;
    assert_ok(safetensors_build(b.tensors, b.n, change->model, &log, &header, &n_header));
    unsigned char *bytes = malloc(n_header + 4 * b.n_data);
    assert_non_null(bytes);
    memcpy(bytes, header, n_header);
    memcpy(bytes + n_header, b.data, 4 * b.n_data);
    made_file(path, bytes, n_header + 4 * b.n_data);
    free(bytes);
    free(header);
}

static zr_status_t try_open(const char *const *paths, size_t n_paths,
                            const zr_model_shape_t *model) {
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    weights_t *weights;
    zr_status_t status = weights_open(paths, n_paths, model, &log, &weights);
    if (status == ZR_OK)
        weights_close(&weights);
    return status;
}

static void refuse(zr_status_t expected, const char *path, const char *said) {
    zr_status_t status = try_open(&path, 1, NULL);
    if (status != expected || strstr(captured.text, said) == NULL)
        fail_msg("%s: %s, and not \"%s\": %s", path, zr_status_name(status), said, captured.text);
}

static void refuse_change(const change_t *change, const char *said) {
    bool is_quantised = strstr(said, "quantised") != NULL;
    write_changed("x.safetensors", change);
    refuse(is_quantised ? ZR_ERR_UNSUPPORTED : ZR_ERR_FORMAT, "x.safetensors", said);
}

/* ---- tensors ----------------------------------------------------------------------------- */

TEST(test_tensors_that_are_refused) {
    refuse_change(&(change_t){.model = TEXT, .left_out = "h.0.mlp.c_fc.bias"},
                  "1 of the 16 tensors of a model with " TEXT
                  " are missing, \"h.0.mlp.c_fc.bias\"");
    refuse_change(&(change_t){.model = TEXT, .left_out = "wte.weight"},
                  "neither wte.weight nor transformer.wte.weight");
    refuse_change(
        &(change_t){.model = TEXT, .renamed = "ln_f.bias", .to = "transformer.wte.weight"},
        "both wte.weight and transformer.wte.weight");
    refuse_change(&(change_t){.model = TEXT, .transposed = true},
                  "\"h.0.attn.c_attn.weight\" has the shape [12, 4]; in a model with " TEXT
                  " it has [4, 12]");
    refuse_change(&(change_t){.model = TEXT, .buffer = "score.weight"},
                  "\"score.weight\" is not a part of a model with");
    refuse_change(&(change_t){.model = TEXT, .buffer = "h.1.attn.bias"},
                  "\"h.1.attn.bias\" is not a part of a model with");
    refuse_change(&(change_t){.model = TEXT, .prefix = "transformer.", .buffer = "h.0.attn.bias"},
                  "\"h.0.attn.bias\" is not a part of a model with");
    refuse_change(&(change_t){.model = TEXT, .dtype_of_wte = "I32"},
                  "\"wte.weight\" is of dtype I32; F32, BF16 and F16 are read");
    refuse_change(&(change_t){.model = TEXT, .output = true, .output_differs = 1.0f},
                  "tensor \"lm_head.weight\" is not wte.weight: this model has one");
}

TEST(test_tensors_that_are_read) {
    static const change_t changes[] = {
        {.model = TEXT},
        {.model = TEXT, .prefix = "transformer."},
        {.model = TEXT, .output = true},
        {.model = TEXT, .prefix = "transformer.", .output = true},
    };
    const char *path = "x.safetensors";
    for (size_t i = 0; i < N_OF(changes); i++) {
        write_changed(path, &changes[i]);
        if (try_open(&path, 1, NULL) != ZR_OK)
            fail_msg("%s", captured.text);
    }
    write_changed(path, &(change_t){.model = TEXT, .buffer = "h.0.attn.masked_bias"});
    assert_ok(try_open(&path, 1, NULL));
    assert_has(captured.text,
               "1 tensor of attention's mask (attn.bias, attn.masked_bias) are ignored");
    write_changed(path, &(change_t){.model = TEXT,
                                    .prefix = "transformer.",
                                    .buffer = "transformer.h.0.attn.bias"});
    assert_ok(try_open(&path, 1, NULL));
}

/* ---- the shape --------------------------------------------------------------------------- */

TEST(test_who_says_the_shape) {
    zr_model_shape_t same = made_shape(TEXT), other = same;
    const char *path = "x.safetensors";
    write_changed(path, &(change_t){.model = NULL});
    refuse(ZR_ERR_FORMAT, path,
           "there is no config.json in the same folder, which says what model it is");
    assert_ok(try_open(&path, 1, &same));
    other.of.gpt.heads = 4;
    assert_ok(try_open(&path, 1, &other)); /* nobody else says how many */
    other.of.gpt.n_layers = 2;
    assert_int_equal(try_open(&path, 1, &other), ZR_ERR_FORMAT);
    assert_has(captured.text, "12 of the 28 tensors");
    write_changed(path, &(change_t){.model = TEXT});
    other = same;
    other.of.gpt.heads = 4;
    assert_int_equal(try_open(&path, 1, &other), ZR_ERR_FORMAT);
    assert_has(captured.text, "--model says heads=4, and x.safetensors says heads=2");
    refuse_change(&(change_t){.model = "gpt5"}, "libzero.model: \"gpt5\" are not sizes of a model");
    refuse_change(&(change_t){.model = "gpt2"}, "libzero.model: \"gpt2\" are not sizes of a model");
    refuse_change(&(change_t){.model = "/etc/a=b"}, "\"/etc/a=b\" are not sizes of a model");
    refuse_change(&(change_t){.model = "layers=1"}, "x.safetensors layers=1: ");
}

#define CONFIG(more)                                                                               \
    "{\"n_layer\":1,\"n_embd\":4,\"n_head\":2,\"n_positions\":3,\"vocab_size\":7" more "}"

static void refuse_config_with(zr_status_t status, const char *config, const char *said) {
    made_file("config.json", config, strlen(config));
    refuse(status, "x.safetensors", said);
    assert_int_equal(unlink("config.json"), 0);
}

static void refuse_config(const char *config, const char *said) {
    refuse_config_with(ZR_ERR_FORMAT, config, said);
}

static void accept_config(const char *config) {
    const char *path = "x.safetensors";
    made_file("config.json", config, strlen(config));
    if (try_open(&path, 1, NULL) != ZR_OK)
        fail_msg("%s: %s", config, captured.text);
    assert_int_equal(unlink("config.json"), 0);
}

TEST(test_configurations) {
    write_changed("x.safetensors", &(change_t){.model = NULL});
    accept_config(CONFIG(""));
    accept_config(CONFIG(",\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,"
                         "\"n_inner\":null,\"scale_attn_weights\":true,\"model_type\":\"gpt2\","
                         "\"resid_pdrop\":0.1,\"tie_word_embeddings\":true"));
    accept_config(CONFIG(",\"activation_function\":\"gelu_pytorch_tanh\",\"n_inner\":16"));
    refuse_config("{", "config.json: line 1");
    refuse_config("[1]", "config.json: not an object");
    refuse_config("{\"n_layer\":1}", "\"n_embd\" is missing");
    refuse_config(CONFIG(",\"n_layer\":1"), "duplicate");
    refuse_config("{\"n_layer\":1.5}", "\"n_layer\" is not a whole number");
    refuse_config("{\"n_layer\":1,\"n_embd\":4,\"n_head\":3,\"n_positions\":3,\"vocab_size\":7}",
                  "heads=3 does not divide channels=4");
    refuse_config("{\"n_layer\":-1,\"n_embd\":4,\"n_head\":2,\"n_positions\":3,\"vocab_size\":7}",
                  "layers=-1");
    refuse_config("{\"n_layer\":1,\"n_embd\":4,\"n_head\":2,\"n_positions\":3,\"vocab_size\":8}",
                  "\"wte.weight\" has the shape [7, 4]");
    refuse_config(CONFIG(",\"activation_function\":\"gelu\""), "\"activation_function\" is gelu;");
    refuse_config(CONFIG(",\"activation_function\":7"), "\"activation_function\" is not a string");
    refuse_config(CONFIG(",\"layer_norm_epsilon\":1e-6"), "\"layer_norm_epsilon\" is 1e-06");
    refuse_config(CONFIG(",\"n_inner\":8"),
                  "\"n_inner\" is 8; this GPT supports only 4 n_embd, here 16");
    refuse_config(CONFIG(",\"scale_attn_weights\":false"), "\"scale_attn_weights\" is not true");
    refuse_config(CONFIG(",\"scale_attn_by_inverse_layer_idx\":true"), "is not false");
    refuse_config(CONFIG(",\"add_cross_attention\":true"), "\"add_cross_attention\" is not false");
    refuse_config(CONFIG(",\"tie_word_embeddings\":false"), "\"tie_word_embeddings\" is not true");
    refuse_config_with(ZR_ERR_UNSUPPORTED, CONFIG(",\"model_type\":\"bert\""),
                       "model_type is bert; supported: gpt2, llama");
    write_changed("x.safetensors", &(change_t){.model = TEXT});
    refuse_config("{\"n_layer\":1,\"n_embd\":4,\"n_head\":4,\"n_positions\":3,\"vocab_size\":7}",
                  "x.safetensors says heads=2, and ./config.json says heads=4");
}

/* ---- paths ------------------------------------------------------------------------------- */

TEST(test_paths) {
    refuse(ZR_ERR_ARGUMENT, "absent", "cannot open absent: No such file");
    assert_int_equal(mkdir("empty", 0777), 0);
    refuse(ZR_ERR_ARGUMENT, "empty", "empty has neither model.safetensors nor");
    assert_int_equal(mkfifo("pipe", 0600), 0);
    refuse(ZR_ERR_ARGUMENT, "pipe", "pipe is not a file");
    made_file("pickle.bin", "PK\3\4rest", 8);
    refuse(ZR_ERR_FORMAT, "pickle.bin", "a file of PyTorch's own kind");
    made_file("model.gguf", "GGUF\3\0\0\0", 8);
    refuse(ZR_ERR_FORMAT, "model.gguf", "quantised weights of llama.cpp (GGUF)");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\nsize 548105171\n";
    made_file("p.safetensors", pointer, sizeof(pointer) - 1);
    refuse(ZR_ERR_FORMAT, "p.safetensors", "a pointer of git-lfs");
    assert_int_equal(mkdir("adapter", 0700), 0);
    made_file("adapter/adapter_config.json", "{}", 2);
    refuse(ZR_ERR_ARGUMENT, "adapter", "give this one with --adapter adapter");
    refuse_change(
        &(change_t){.model = TEXT, .renamed = "h.0.mlp.c_fc.weight", .to = "h.0.mlp.c_fc.qweight"},
        "\"h.0.mlp.c_fc.qweight\" is of quantised weights");
    made_file("none", "", 0);
    refuse(ZR_ERR_FORMAT, "none", "it has 0 bytes");
    int32_t magic = LLMC_MAGIC;
    made_file("short.bin", &magic, sizeof(magic));
    refuse(ZR_ERR_FORMAT, "short.bin", "it has 4 bytes, and the header of llm.c 1024");
    const char *two[] = {"short.bin", "short.bin"};
    assert_int_equal(try_open(two, 2, NULL), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "name it alone");
    write_changed("x.safetensors", &(change_t){.model = TEXT});
    const char *twice[] = {"x.safetensors", "x.safetensors"};
    assert_int_equal(try_open(twice, 2, NULL), ZR_ERR_FORMAT);
    assert_has(captured.text, "both have a tensor");
}

/* ---- an index ---------------------------------------------------------------------------- */

static void write_index(const char *text) {
    made_file("model.safetensors.index.json", text, strlen(text));
}

TEST(test_indexes) {
    const char *index = "model.safetensors.index.json";
    write_changed("x.safetensors", &(change_t){.model = TEXT});
    write_index("{\"weight_map\":{\"wte.weight\":\"model.safetensors.index.json\"}}");
    refuse(ZR_ERR_FORMAT, index, "\"wte.weight\" in \"model.safetensors.index.json\"; allowed:");
    write_index("{\"weight_map\":{\"wte.weight\":\"../x.safetensors\"}}");
    refuse(ZR_ERR_FORMAT, index, "in \"../x.safetensors\"; allowed:");
    write_index("{\"weight_map\":{\"wte.weight\":\"gone.safetensors\"}}");
    refuse(ZR_ERR_FORMAT, index, "model.safetensors.index.json names \"gone.safetensors\"");
    write_index("{\"weight_map\":{\"other\":\"x.safetensors\"}}");
    refuse(ZR_ERR_FORMAT, index, "tensor \"other\" is not in \"x.safetensors\"");
    write_index("{\"weight_map\":{\"wte.weight\":\"x.safetensors\"}}");
    refuse(ZR_ERR_FORMAT, index, "names 1 tensor, and its files have 16");
    write_index("{");
    refuse(ZR_ERR_FORMAT, index, "its JSON, at byte");
    const char *folder = ".";
    made_file("model.safetensors", "", 0);
    assert_int_equal(try_open(&folder, 1, NULL), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "has both model.safetensors and model.safetensors.index.json");
    assert_int_equal(unlink("model.safetensors"), 0);
    assert_int_equal(unlink(index), 0);
}

/* ---- writing ----------------------------------------------------------------------------- */

typedef zr_status_t (*write_fn)(weights_t *, const weights_export_t *, const zr_log_t *,
                                weights_report_t *);

static zr_status_t try_write(write_fn write, made_weights_t *made,
                             const weights_export_t *options) {
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    weights_report_t report;
    return write(&made->base, options, &log, &report);
}

static void enter_empty_folder(const char *name) {
    assert_int_equal(mkdir(name, 0777), 0);
    assert_int_equal(chdir(name), 0);
}

/* Values that a dtype does not have are named, and nothing is left of the file. */
TEST(test_values_too_large) {
    made_weights_t *made = made_weights(TEXT);
    enter_empty_folder("values");
    made->spoiled = "h.0.mlp.c_fc.weight";
    made->spoiled_at = 37;
    made->spoil = 70000.0f;
    weights_export_t options = {.path = "x.safetensors", .kind = ELEMENT_FP16};
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_ARGUMENT);
    assert_has(
        captured.text,
        "element 37 of h.0.mlp.c_fc.weight is 70000, which fp16 does not have; write fp32 or bf16");
    options.path = "folder";
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_ARGUMENT);
    made->spoil = -3.4e38f;
    options = (weights_export_t){.path = "x.bin", .kind = ELEMENT_BF16};
    assert_int_equal(try_write(weights_write_llmc, made, &options), ZR_ERR_ARGUMENT);
    assert_has(
        captured.text,
        "element 37 of h.0.mlp.c_fc.weight is -3.4e+38, which bf16 does not have; write fp32");
    assert_int_equal(made_folder_count("."), 0);
    made->spoil = NAN;
    assert_ok(try_write(weights_write_llmc, made, &options));
    made_weights_free(&made);
    assert_int_equal(chdir(".."), 0);
}

TEST(test_reading_that_fails) {
    made_weights_t *made = made_weights(TEXT);
    enter_empty_folder("reading");
    made->failing = "h.0.mlp.c_proj.weight";
    assert_int_equal(try_write(weights_write_llmc, made, &(weights_export_t){.path = "x.bin"}),
                     ZR_ERR_IO);
    assert_int_equal(try_write(weights_write_safetensors, made,
                               &(weights_export_t){.path = "folder", .shard_bytes = 100}),
                     ZR_ERR_IO);
    assert_int_equal(made_folder_count("."), 0);
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    weights_import_t import = {.folder = "checkpoints"};
    for (size_t i = 0; i < zr_gpt_n_tensors(&shape); i++) {
        zr_gpt_tensor_t tensor = zr_gpt_tensor_at(&shape, i);
        made->failing = tensor.name;
        assert_int_equal(weights_write_checkpoint(&made->base, &import, &log), ZR_ERR_IO);
        assert_false(made_file_is_there("checkpoints"));
    }
    made_weights_free(&made);
    assert_int_equal(chdir(".."), 0);
}

/* A limit on the sizes of files stands for a full drive. */
TEST(test_no_room) {
    made_weights_t *made = made_weights(TEXT);
    struct rlimit before, limit;
    enter_empty_folder("room");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    zr_status_t first =
        try_write(weights_write_safetensors, made, &(weights_export_t){.path = "folder"});
    assert_has(captured.text, "model.safetensors, which needs|File too large");
    zr_status_t second = try_write(weights_write_llmc, made, &(weights_export_t){.path = "x.bin"});
    assert_has(captured.text, "x.bin, which needs");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(first, ZR_ERR_IO);
    assert_int_equal(second, ZR_ERR_IO);
    assert_int_equal(made_folder_count("."), 0);
    made_weights_free(&made);
    assert_int_equal(chdir(".."), 0);
}

TEST(test_places_that_are_taken) {
    made_weights_t *made = made_weights(TEXT);
    size_t n_bytes;
    enter_empty_folder("places");
    made_file("x.safetensors", "mine", 4);
    weights_export_t options = {.path = "x.safetensors"};
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "-o x.safetensors: a file exists already");
    options.path = ".";
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "a folder with files exists already");
    options.path = "x.safetensors/y";
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_IO);
    options.path = "absent/x.bin";
    assert_int_equal(try_write(weights_write_llmc, made, &options), ZR_ERR_IO);
    assert_has(captured.text, "cannot make absent/x.bin");
    options.path = "y.safetensors";
    options.shard_bytes = 1000;
    assert_int_equal(try_write(weights_write_safetensors, made, &options), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--shard-size: -o y.safetensors names one file");
    options = (weights_export_t){.path = ""};
    assert_int_equal(try_write(weights_write_llmc, made, &options), ZR_ERR_ARGUMENT);
    unsigned char *bytes = made_file_read("x.safetensors", &n_bytes);
    assert_int_equal(n_bytes, 4);
    free(bytes);
    assert_int_equal(made_folder_count("."), 1);
    assert_int_equal(mkdir("empty", 0777), 0);
    options = (weights_export_t){.path = "empty"};
    assert_ok(try_write(weights_write_safetensors, made, &options));
    assert_int_equal(made_folder_count("empty"), 2);
    made_weights_free(&made);
    assert_int_equal(chdir(".."), 0);
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
