/*
 * zero-train as its users meet it: a process with a command line, an exit status, standard
 * output and standard error.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define NVME "--offload-optimizer nvme --nvme-path drive "
#define NVME_PARAMS "--offload-params nvme --nvme-path drive "
#define KEEP "--recompute unit --offload-activations "

static int prepare(void **state) {
    int32_t header[256] = {20240520, 1, 1000};
    if (make_folder(state) != 0)
        return -1;
    write_file("empty", "", 0);
    write_file("short", "sixteen letters.", 16);
    write_file("truncated.bin", header, sizeof(header));
    write_file("high", "\xff\xfe\xfd\xfc", 4);
    write_file("not.json", "{\"train_batch_size\": }", 22);
    write_file("unknown.json", "{\"train_batch_sise\": 4}", 23);
    const char *settings = "{\"request_bytes\": 8192, \"depth\": 5, \"submit_batch\": 9,"
                           " \"files_per_path\": 2, \"paths\": [\"drive\", \"./drive\"]}";
    write_file("settings.json", settings, strlen(settings));
    write_file("odd.json", "{\"request_bytes\": 5000}", 23);
    write_file("no_depth.json", "{\"depth\": 0}", 12);
    write_file("no_paths.json", "{\"paths\": []}", 13);
    const char *tiny_eps = "{\"optimizer\": {\"params\": {\"eps\": 1e-50}}}";
    write_file("tiny_eps.json", tiny_eps, strlen(tiny_eps));
    const char *config = "{\"zero_optimization\": {\"stage\": 2}, \"gradient_clipping\": 0.5,"
                         " \"train_micro_batch_size_per_gpu\": 3, \"wall_clock_breakdown\": true,"
                         " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}}";
    write_file("good.json", config, strlen(config));
    return mkdir("folder.json", 0700);
}

/* ---- what is refused -------------------------------------------------------------------- */

/* Each ends with exit 2, nothing on standard output, and a message that has all the parts. */
TEST(bad_usage_and_input) {
    static const struct {
        const char *arguments;
        const char *said[3];
    } cases[] = {
        {TINY "--ranks 0", {"--ranks 0", "1 to 1024", "nearest is 1"}},
        {TINY "--shard-group-size 0", {"--shard-group-size 0", "1 to 1024", "nearest is 1"}},
        {TINY "--ranks 6 --shard-group-size 4",
         {"--shard-group-size) is 4", "divide the number of ranks, 6", "below that does is 3"}},
        {TINY "--device gpu", {"--device gpu", "auto, host, cuda"}},
        {TINY "--device cuda", {"--device cuda", "not available here", "allowed are auto, host"}},
        {TINY "--device cuda:1", {"--device cuda:1", "not available here"}},
        {TINY "--micro-batch 1000000000000 --steps 1000000000000", {"--micro-batch", "overflows"}},
        {TINY "--seq 0", {"--seq 0: allowed are 1 to 16; the nearest is 1"}},
        {TINY "--seq 17", {"--seq 17", "1 to 16; the nearest is 16"}},
        {TINY "--seq-min 0", {"--seq-min 0: allowed are 1 to 16; the nearest is 1"}},
        {TINY "--seq-min -3", {"--seq-min -3", "nearest is 1"}},
        {TINY "--seq-min few", {"--seq-min few", "not a whole number"}},
        {TINY "--seq-min 17", {"--seq-min 17", "1 to 16; the nearest is 16"}},
        {TINY "--seq 8 --seq-min 9", {"--seq-min 9", "1 to 8; the nearest is 8"}},
        {TINY "--config tiny_eps.json", {"optimizer.params.eps", "1e-50", "has to be 1e-37 to 1"}},
        {TINY "--warmup 101", {"--warmup 101", "nearest is 100"}},
        {TINY "--schedule constant --warmup 3", {"--warmup 3", "--schedule cosine"}},
        {TINY "--schedule constant --min-lr-ratio 0", {"--min-lr-ratio 0", "--schedule cosine"}},
        {TINY "--freeze wte,wtf", {"--freeze \"wte,wtf\": \"wtf\" names no parameter"}},
        {TINY "--offload-params cpu --stage 2",
         {"--offload-params) is cpu at stage 2", "allowed at stage 3"}},
        {TINY "--offload-params nvme --stage 3", {"no path is named", "--nvme-path DIR"}},
        {TINY "--offload-params cpu --stage 3 --param-buffers 3",
         {"--param-buffers", "add --offload-params nvme"}},
        {TINY "--offload-params nvme --stage 3 --nvme-path drive --nvme-buffers 3",
         {"--nvme-buffers", "add --offload-optimizer nvme"}},
        {TINY "--offload-params nvme --stage 3 --nvme-path absent", {"--nvme-path absent"}},
        {TINY "--stage 3 --offload-param-ratio 0.5",
         {"--offload-param-ratio", "add --offload-params cpu or nvme"}},
        {TINY "--offload-ratio 0.5", {"--offload-ratio", "--offload-optimizer cpu or nvme"}},
        {TINY "--offload-optimizer cpu --state-in-host 5",
         {"--state-in-host", "--offload-optimizer nvme"}},
        {TINY "--update-on host", {"--update-on", "--offload-optimizer cpu"}},
        {TINY "--offload-gradients cpu", {"--offload-gradients", "--offload-optimizer cpu"}},
        {TINY "--offload-optimizer cpu --stage 1 --offload-gradients-ratio 0.5",
         {"--offload-gradients-ratio 0.5: below stage 2", "at --stage 2 or 3"}},
        {TINY "--offload-optimizer cpu --stage 2 --offload-gradients none "
              "--offload-gradients-ratio 0.5",
         {"--offload-gradients-ratio 0.5: with --offload-gradients none"}},
        {TINY "--offload-activations cpu", {"--offload-activations", "add --recompute unit"}},
        {TINY KEEP "nvme", {"--offload-activations nvme", "add --nvme-path DIR"}},
        {TINY KEEP "nvme --nvme-path absent", {"--nvme-path absent", "No such file"}},
        {TINY "--offload-optimizer cpu --nvme-capacity 1GB", {"--nvme-capacity", "nvme"}},
        {TINY "--offload-optimizer cpu --nvme-tbw 1TB", {"--nvme-tbw", "nvme"}},
        {TINY "--offload-optimizer nvme", {"no path is named", "--nvme-path DIR"}},
        {TINY "--offload-optimizer nvme --nvme-path drive,absent",
         {"--nvme-path absent", "No such"}},
        {TINY "--offload-optimizer nvme --nvme-path text", {"--nvme-path text", "not a folder"}},
        {TINY "--offload-optimizer nvme --nvme-path drive,,drive", {"drive,,drive", "no name"}},
        {TINY NVME "--io-settings absent", {"--io-settings absent", "No such file"}},
        {TINY NVME "--io-settings not.json", {"--io-settings not.json", "line 1"}},
        {TINY NVME "--io-settings unknown.json", {"train_batch_sise", "request_bytes, depth"}},
        {TINY NVME "--io-settings odd.json", {"request_bytes", "5000"}},
        {TINY NVME "--io-settings no_depth.json --nvme-verify on",
         {"depth is 0", "1 to 1024", "nearest is 1"}},
        {TINY "--offload-optimizer nvme --io-settings no_paths.json", {"paths has to be a list"}},
        {TINY "--trace-steps 1:2", {"--trace-steps 1:2", "add --trace FILE"}},
        {TINY "--trace t.json --trace-steps 3", {"--trace-steps 3", "FIRST:LAST"}},
        {TINY "--trace t.json --trace-steps 3:2",
         {"--trace-steps 3:2: LAST 2", "the nearest is 3"}},
        {TINY "--trace t.json --trace-steps 0:2", {"--trace-steps 0", "the nearest is 1"}},
        {TINY "--trace t.json --steps 2 --trace-steps 3:3", {"--trace-steps 3:3", "steps 1 to 2"}},
        {TINY "--trace /absent/x.json", {"--trace /absent/x.json", "No such file"}},
        {TINY "--trace text", {"--trace text", "one of the files of --data"}},
        {TINY "--trace same.json --log same.json", {"--trace same.json", "one file"}},
        {TINY "--trace same.json --memory-snapshot same.json", {"--trace same.json", "one file"}},
        {"", {"--data"}},
        {"--data absent", {"--data absent: cannot read it: No such file"}},
        {"--data empty", {"--data empty: is empty"}},
        {"--data short", {"16 tokens", "257"}},
        {"--data truncated.bin", {"truncated.bin", "truncated", "1000 tokens"}},
        {TINY "absent", {"--data absent: cannot read it", "No such file"}},
        {TINY "--config absent", {"--config absent: cannot open it: No such file"}},
        {TINY "--config text", {"--config text: line 1, column"}},
        {TINY "truncated.bin", {"truncated"}},
        {"--data high --seq 2 --model layers=1,channels=8,heads=2,seq=8,vocab=250",
         {"high: token 0 is 255", "vocabulary of 250"}},
        {"--data text --model gpt3", {"--model gpt3"}},
        {"--data text --model layers=2,channels=16,heads=3,seq=16,vocab=256",
         {"heads", "3", "channels"}},
        {"--data text --model layers=2,channels=16,heads=0,seq=16,vocab=256", {"heads", "0"}},
        {"--data text --model layers=0,channels=16,heads=2,seq=16,vocab=256", {"layers", "0"}},
        {"--data text --model layers=2,chanels=16,heads=2,seq=16,vocab=256",
         {"chanels", "channels"}},
        {"--data text --model layers=2,channels=99999999999999999999,heads=2,seq=16,vocab=256",
         {"channels", "99999999999999999999"}},
        {"--data text --model "
         "layers=1000000000,channels=4294967296,heads=2,seq=16,vocab=256",
         {"--model"}},
        {TINY "--config absent.json", {"absent.json"}},
        {TINY "--config not.json", {"not.json", "1"}},
        {TINY "--config unknown.json", {"train_batch_sise", "train_batch_size"}},
        {TINY "--log /absent/log", {"/absent/log", "No such file"}},
        {TINY "--memory-snapshot x.txt", {"--memory-snapshot x.txt", ".csv", ".pickle"}},
        {TINY "--memory-snapshot /absent/x.csv", {"/absent/x.csv", "No such file"}},
        {TINY "--memory-snapshot folder.json", {"folder.json", "Is a directory"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ran(cases[i].arguments, 2);
        assert_string_equal(out, "");
        for (size_t k = 0; k < 3 && cases[i].said[k] != NULL; k++)
            assert_said(cases[i].arguments, cases[i].said[k]);
    }
}

/* ---- what is reported ------------------------------------------------------------------- */

/* What went within groups and what between them is all that was sent; weights do not depend on the
 * stage. */
TEST(groups_of_ranks) {
    char weights[17] = "";
    for (int stage = 0; stage <= 3; stage++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 TINY "--steps 3 --stage %d --ranks 4 --shard-group-size 2 --json", stage);
        json_t *object = run_json(arguments, 0), *levels = json_object_get(object, "comm_levels");
        assert_int_equal(number(object, "shard_group_size", NULL), 2);
        assert_true(number(levels, "between_groups", "all_reduce") > 0);
        assert_true(number(levels, "between_groups", "all_gather") == 0);
        assert_true(number(levels, "within_groups", "all_gather") ==
                    number(object, "comm_bytes", "all_gather"));
        assert_true(number(levels, "within_groups", "reduce_scatter") ==
                    number(object, "comm_bytes", "reduce_scatter"));
        assert_true(stage == 0 || strcmp(weights, text(object, "weights_xxh3")) == 0);
        snprintf(weights, sizeof(weights), "%s", text(object, "weights_xxh3"));
        json_decref(object);
    }
}

TEST(promised_fields) {
    json_t *object = run_json(TINY "--steps 5 --stage 3 --ranks 2 --lr 1e-2 --json", 0);
    assert_string_equal(text(object, "result"), "trained");
    assert_in_range((long)(number(object, "loss", "first") * 10), 54, 60); /* ln 256 = 5.55 */
    assert_true(number(object, "loss", "last") < number(object, "loss", "first"));
    assert_true(number(object, "step_ms", NULL) > 0);
    assert_int_equal(number(object, "seq", NULL), 16);
    assert_int_equal(number(object, "seq_min", NULL), 16);
    assert_int_equal(number(object, "tokens", NULL), 5 * 32);
    double tokens_per_s = 32 / (1e-3 * number(object, "step_ms", NULL));
    assert_true(number(object, "tokens_per_s", NULL) > 0.999 * tokens_per_s);
    assert_true(number(object, "tokens_per_s", NULL) < 1.001 * tokens_per_s);
    assert_int_equal(strlen(text(object, "weights_xxh3")), 16);
    assert_int_equal(strspn(text(object, "weights_xxh3"), "0123456789abcdef"), 16);
    assert_int_equal(number(object, "steps", NULL), 5);
    assert_int_equal(number(object, "n_skipped", NULL), 0);
    assert_int_equal(number(object, "stage", NULL), 3);
    assert_int_equal(number(object, "ranks", NULL), 2);
    assert_string_equal(text(object, "dtype"), "fp32");
    assert_true(number(object, "padding", "trainable") >= 0);
    assert_true(number(object, "padding", "frozen") >= 0);
    assert_true(number(object, "comm_bytes", "all_gather") > 0);
    assert_true(number(object, "comm_bytes", "reduce_scatter") > 0);
    assert_true(number(object, "comm_bytes", "all_reduce") == 0);
    assert_true(number(object, "comm_bytes", "broadcast") == 0);
    static const char *const parts[] = {"compute", "comm", "optimizer", "stall", "data"};
    for (size_t i = 0; i < 5; i++)
        assert_true(number(object, "time", parts[i]) >= 0);
    assert_true(number(object, "time", "compute") > 0);

    json_t *model = json_object_get(object, "model");
    double n = number(model, "trainable", NULL);
    double padded = n + number(object, "padding", "trainable");
    assert_true(n == number(model, "parameters", NULL));
    json_t *device = json_object_get(json_object_get(object, "peak_bytes"), "device");
    assert_true(number(device, "reserved", NULL) >= number(device, "live", NULL));
    assert_true(number(device, "tags", "optimizer_state") == 12 * padded / 2);
    assert_true(number(device, "tags", "parameters") == 4 * padded / 2);
    assert_true(number(device, "tags", "gradients") == 4 * padded / 2);
    assert_true(number(device, "tags", "activations") > 0);

    static const char *const classes[] = {"persistent", "step",       "micro_batch",
                                          "unit",       "collective", "planned"};
    json_t *memory = json_object_get(json_object_get(object, "memory"), "device");
    assert_true(number(json_object_get(object, "memory"), "replay", "steps") > 0);
    assert_true(number(memory, "plan", "height") >= number(memory, "plan", "max_live"));
    double live = 0;
    for (size_t i = 0; i < 6; i++) {
        json_t *own = json_object_get(json_object_get(memory, "classes"), classes[i]);
        assert_true(number(own, "reserved", NULL) >= number(own, "live", NULL));
        assert_true(number(own, "reserved", NULL) >= number(own, "largest_hole", NULL));
        live += number(own, "live", NULL);
    }
    assert_true(live >= number(device, "live", NULL));
    assert_true(number(json_object_get(memory, "classes"), "persistent", "live") >=
                20 * padded / 2);
    json_decref(object);
}

/* Nothing that is not built is reported. */
TEST(no_other_fields) {
    static const char *const later[] = {"nvme_bytes", "offload"};
    json_t *object = run_json(TINY "--steps 1 --json", 0);
    for (size_t i = 0; i < 2; i++)
        assert_null(json_object_get(object, later[i]));
    assert_null(json_object_get(json_object_get(object, "time"), "io"));
    assert_null(json_object_get(json_object_get(object, "peak_bytes"), "nvme"));
    assert_null(json_object_get(json_object_get(object, "planned_peak_bytes"), "nvme"));
    json_decref(object);
}

TEST(same_weights_at_every_stage) {
    char hash[17] = "", arguments[512];
    for (int stage = 0; stage <= 3; stage++) {
        snprintf(arguments, sizeof(arguments),
                 TINY "--steps 3 --stage %d --ranks 3 --clip 0.5 --json --recompute %s --prefetch "
                      "%d --max-live 100000 --sums %s",
                 stage, stage % 2 ? "unit" : "none", stage * 1000,
                 stage % 2 ? "any" : "rank-order");
        json_t *object = run_json(arguments, 0);
        if (stage == 0)
            snprintf(hash, sizeof(hash), "%s", text(object, "weights_xxh3"));
        assert_string_equal(text(object, "weights_xxh3"), hash);
        json_decref(object);
    }
    json_t *object = run_json(TINY "--steps 3 --ranks 3 --clip 0.5 --json --seed 2", 0);
    assert_string_not_equal(text(object, "weights_xxh3"), hash);
    json_decref(object);
}

/* ---- offload -----------------------------------------------------------------------------------
 */

static double number_at(const json_t *object, const char *a, const char *b, const char *c) {
    const json_t *value = json_object_get(json_object_get(object, a), b);
    value = c == NULL ? value : json_object_get(value, c);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

TEST(same_weights_at_every_placement) {
    static const char *const placements[] = {
        "",
        "--offload-optimizer cpu",
        "--offload-optimizer cpu --offload-ratio 0.3",
        NVME,
        NVME "--offload-ratio 0.3 --sub-group 1024 --nvme-verify off",
        NVME "--sub-group 1024 --nvme-buffers 2 --state-in-host 3000",
        "--offload-optimizer nvme --io-settings settings.json"};
    static const char *const of_params[] = {
        "--offload-params cpu",
        "--offload-params cpu --offload-optimizer cpu --offload-param-ratio 0.5",
        "--offload-optimizer cpu --offload-gradients none",
        NVME_PARAMS "--param-buffer 1024 --param-buffers 2",
        NVME_PARAMS "--offload-optimizer nvme --params-in-host 2000 --offload-param-ratio 0.8",
        NVME_PARAMS "--offload-optimizer cpu --recompute unit --prefetch 0"};
    char hash[17] = "", arguments[512];
    bool nvme = has_nvme();
    size_t n_placements = nvme ? 7 : 3, n_of_params = nvme ? 6 : 3;
    for (size_t i = 0; i < n_placements; i++) {
        snprintf(arguments, sizeof(arguments), TINY "--steps 3 --stage %zu --ranks 2 --json %s",
                 i % 4, placements[i]);
        json_t *object = run_json(arguments, 0);
        if (i == 0)
            snprintf(hash, sizeof(hash), "%s", text(object, "weights_xxh3"));
        assert_string_equal(text(object, "weights_xxh3"), hash);
        json_decref(object);
    }
    for (size_t i = 0; i < n_of_params; i++) {
        snprintf(arguments, sizeof(arguments), TINY "--steps 3 --stage 3 --ranks 2 --json %s",
                 of_params[i]);
        json_t *object = run_json(arguments, 0);
        assert_string_equal(text(object, "weights_xxh3"), hash);
        json_decref(object);
    }
}

/* Parameters are read forward and backward, and written once. */
TEST(what_is_moved_of_parameters_is_reported) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(TINY NVME_PARAMS "--steps 4 --stage 3 --ranks 2 --freeze h.0 --json "
                                               "--param-buffer 1024 --nvme-tbw 600TB",
                              0);
    json_t *params = json_object_get(json_object_get(object, "offload"), "params");
    double trainable = number_at(object, "model", "trainable", NULL) +
                       number_at(object, "padding", "trainable", NULL);
    double frozen =
        number_at(object, "model", "frozen", NULL) + number_at(object, "padding", "frozen", NULL);
    double all = 4 * (trainable + frozen);
    assert_true(frozen > 0);
    assert_string_equal(text(params, "device"), "nvme");
    assert_true(number_at(params, "bytes", "nvme", NULL) == all);
    assert_true(number_at(params, "nvme", "read", "bytes") >= 4 * 2 * all); /* wte is used twice */
    assert_true(number_at(params, "nvme", "written", "bytes") == 4 * 4 * trainable);
    assert_true(number_at(object, "nvme_bytes", "written", NULL) == all + 4 * 4 * trainable);
    assert_true(number_at(object, "peak_bytes", "nvme", "live") == all / 2);
    const json_t *tags =
        json_object_get(json_object_get(json_object_get(object, "peak_bytes"), "device"), "tags");
    assert_int_equal(json_integer_value(json_object_get(tags, "parameters")), 0);
    assert_true(json_is_number(json_object_get(json_object_get(params, "nvme"), "endurance_days")));
    assert_true(json_is_number(json_object_get(json_object_get(object, "time"), "io")));
    json_decref(object);
    assert_ran(TINY NVME_PARAMS "--steps 2 --stage 3", 0);
    assert_non_null(strstr(out, "gathers read"));
    assert_non_null(strstr(out, "written per day"));
    assert_int_equal(rmdir("drive"), 0); /* nothing was left in it */
    assert_int_equal(mkdir("drive", 0777), 0);
}

/* 12 bytes per parameter and step in each direction; at the start 12 written, at the end the
 * masters read. */
TEST(what_is_moved_is_reported) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(TINY NVME "--steps 4 --stage 2 --ranks 2 --json --sub-group 1024 "
                                        "--nvme-tbw 600TB",
                              0);
    json_t *offload = json_object_get(object, "offload");
    const json_t *nvme = json_object_get(offload, "nvme");
    double states = number_at(object, "offload", "state_bytes", "nvme");
    double padded = number_at(object, "model", "trainable", NULL) +
                    number_at(object, "padding", "trainable", NULL);
    assert_true(states == 12 * padded);
    assert_true(number_at(offload, "nvme", "read", "bytes") == 4 * states);
    assert_true(number_at(offload, "nvme", "written", "bytes") == 4 * states);
    assert_true(number_at(object, "nvme_bytes", "written", NULL) == 5 * states);
    double looked_at = number_at(object, "nvme_bytes", "read", NULL) - 4 * states;
    assert_true(looked_at >= states / 3 && looked_at < states / 2); /* hardly anything twice */
    assert_true(number_at(object, "peak_bytes", "nvme", "live") == states / 2);
    assert_true(number_at(object, "peak_bytes", "nvme", "reserved") >= states / 2);
    const json_t *tags =
        json_object_get(json_object_get(json_object_get(object, "peak_bytes"), "device"), "tags");
    assert_int_equal(json_integer_value(json_object_get(tags, "optimizer_state")), 0);
    assert_true(json_is_number(json_object_get(nvme, "endurance_days")));
    assert_true(json_number_value(json_object_get(nvme, "bytes_per_day")) > 0);
    assert_string_equal(text(offload, "update"), "host");
    assert_true(json_is_number(json_object_get(json_object_get(object, "time"), "io")));
    json_decref(object);
    assert_ran(TINY NVME "--steps 2 --nvme-tbw 1TB", 0);
    assert_non_null(strstr(out, "on nvme in"));
    assert_non_null(strstr(out, "written per day"));
    assert_non_null(strstr(out, "last "));
    assert_int_equal(rmdir("drive"), 0); /* nothing was left in it */
    assert_int_equal(mkdir("drive", 0777), 0);
}

TEST(a_drive_too_small_fails_the_run) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(TINY NVME "--json --nvme-capacity 10kB", 1);
    assert_string_equal(text(object, "error"), "ZR_ERR_BUDGET");
    assert_non_null(strstr(text(object, "message"), "a larger --nvme-capacity"));
    json_decref(object);
}

/* ---- activations offloaded ----------------------------------------------------------------- */

/* Six layers, whose inputs of 2 x 16 tokens have 16 channels. */
#define DEEP                                                                                       \
    "--model layers=6,channels=16,heads=2,seq=16,vocab=256 --data text --comm-timeout 60 "         \
    "--micro-batch 2 --json "
#define INPUT_BYTES (2 * 16 * 16 * 4)

/* Sanitizers meet every stage and every placement, not each with each. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { EVERY_PLACEMENT = 3 };
#else
enum { EVERY_PLACEMENT = 1 };
#endif

TEST(same_weights_wherever_activations_wait) {
    static const char *const placements[] = {
        "none", "cpu", "nvme --nvme-path drive",
        "nvme --nvme-path drive,drive --nvme-buffers 1 --nvme-verify off",
        "nvme --offload-optimizer nvme --nvme-path drive --nvme-buffers 2 --sub-group 1024"};
    size_t n_placements = has_nvme() ? 5 : 2;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        char hash[17] = "", arguments[512];
        for (size_t i = 0; i < 4 * n_placements; i += EVERY_PLACEMENT) {
            snprintf(arguments, sizeof(arguments),
                     DEEP "--steps 3 --grad-accum 2 --seq-min 3 --reduce every-micro-batch "
                          "--ranks %d --stage %zu " KEEP "%s",
                     n_ranks, i % 4, placements[i / 4]);
            json_t *object = run_json(arguments, 0);
            if (i == 0)
                snprintf(hash, sizeof(hash), "%s", text(object, "weights_xxh3"));
            assert_string_equal(text(object, "weights_xxh3"), hash);
            json_decref(object);
        }
    }
    assert_int_equal(rmdir("drive"), 0); /* nothing was left in it */
    assert_int_equal(mkdir("drive", 0777), 0);
}

static double activations_peak(const json_t *object, const char *tier) {
    const json_t *peak = json_object_get(json_object_get(object, "peak_bytes"), tier);
    return number(json_object_get(peak, "tags"), "activations", NULL);
}

/* On the device are the input in use and the next one, of six; the rest is where it was put. */
TEST(activations_leave_the_device) {
    bool nvme = has_nvme();
    json_t *kept = run_json(DEEP "--steps 4 --ranks 2 --recompute unit", 0);
    for (int i = 0; i < 1 + nvme; i++) {
        json_t *object = run_json(i == 0 ? DEEP "--steps 4 --ranks 2 " KEEP "cpu"
                                         : DEEP "--steps 4 --ranks 2 --nvme-path drive "
                                                "--nvme-buffers 2 --nvme-tbw 1TB " KEEP "nvme",
                                  0);
        json_t *moved = json_object_get(json_object_get(object, "offload"), "activations");
        assert_string_equal(text(moved, "device"), i == 0 ? "cpu" : "nvme");
        assert_true(number_at(moved, "away", "bytes", NULL) == 2 * 4 * 6 * INPUT_BYTES);
        assert_true(number_at(moved, "back", "bytes", NULL) == 2 * 4 * 6 * INPUT_BYTES);
        assert_true(activations_peak(kept, "device") - activations_peak(object, "device") ==
                    4 * INPUT_BYTES);
        assert_true(activations_peak(object, "host") == (i == 0 ? 6 * INPUT_BYTES : 0));
        if (i == 1) { /* chunks of 4096; the last of six is never written, two are in buffers */
            assert_true(number_at(moved, "nvme", "written", "bytes") == 2 * 4 * 5 * 4096);
            assert_true(number_at(moved, "nvme", "read", "bytes") == 2 * 4 * 4 * 4096);
            assert_true(number_at(object, "nvme_bytes", "written", NULL) == 2 * 4 * 5 * 4096);
            assert_true(activations_peak(object, "nvme") == 6 * INPUT_BYTES);
            assert_true(number_at(moved, "nvme", "endurance_days", NULL) > 0);
        }
        json_decref(object);
    }
    json_decref(kept);
}

TEST(activations_within_budgets) {
    json_t *object = run_json(DEEP KEEP "cpu --host-memory 4096", 1);
    assert_string_equal(text(object, "error"), "ZR_ERR_BUDGET");
    json_decref(object);
    if (!has_nvme())
        return;
    object = run_json(DEEP KEEP "nvme --nvme-path drive --nvme-capacity 10kB", 1);
    assert_string_equal(text(object, "error"), "ZR_ERR_BUDGET");
    assert_non_null(strstr(text(object, "message"), "inputs of 6 layers"));
    assert_non_null(strstr(text(object, "message"), "a larger --nvme-capacity"));
    assert_null(strstr(text(object, "message"), "--offload-ratio"));
    json_decref(object);
    assert_ran("--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data text --steps 2 "
               "--nvme-path drive " KEEP "nvme",
               0);
    assert_non_null(strstr(out, "away from the device"));
    assert_non_null(strstr(out, "written per day"));
}

/* ---- sequences of varying length --------------------------------------------------------- */

typedef struct lengths {
    size_t n_steps, n_changes;
    double n_tokens, fewest, most, rates[64];
} lengths_t;

/* What the lines of --log say of each step's tokens. */
static lengths_t read_lengths(const char *name) {
    char lines[16384], *rest = lines;
    lengths_t lengths = {.fewest = 1e9};
    double last = 0;
    read_file(name, lines, sizeof(lines));
    for (char *line = strsep(&rest, "\n"); line != NULL && *line != '\0';
         line = strsep(&rest, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        double tokens = number(object, "tokens", NULL);
        double per_s = number(object, "tokens_per_s", NULL);
        double expected = tokens / (1e-3 * number(object, "step_ms", NULL));
        assert_true(per_s > 0.999 * expected && per_s < 1.001 * expected);
        assert_true(lengths.n_steps < 64);
        lengths.rates[lengths.n_steps++] = per_s;
        lengths.n_changes += tokens != last;
        lengths.n_tokens += tokens;
        lengths.fewest = tokens < lengths.fewest ? tokens : lengths.fewest;
        lengths.most = tokens > lengths.most ? tokens : lengths.most;
        last = tokens;
        json_decref(object);
    }
    return lengths;
}

static int by_rate(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One micro-batch of 3 sequences on each of 2 ranks: a step has 6 times its length. */
TEST(lengths_vary) {
    json_t *object = run_json(
        TINY "--steps 41 --ranks 2 --micro-batch 3 --seq-min 5 --log lengths.jsonl --json", 0);
    lengths_t lengths = read_lengths("lengths.jsonl");
    assert_int_equal(lengths.n_steps, 41);
    assert_true(lengths.n_changes > 20);
    assert_int_equal(lengths.fewest, 6 * 5);
    assert_int_equal(lengths.most, 6 * 16);
    assert_int_equal(number(object, "seq", NULL), 16);
    assert_int_equal(number(object, "seq_min", NULL), 5);
    assert_int_equal(number(object, "tokens", NULL), lengths.n_tokens);
    qsort(lengths.rates, 41, sizeof(double), by_rate);
    double per_s = number(object, "tokens_per_s", NULL);
    assert_true(per_s > 0.999 * lengths.rates[20] && per_s < 1.001 * lengths.rates[20]);
    json_decref(object);

    assert_ran(TINY "--steps 8 --seq-min 5", 0);
    assert_non_null(strstr(out, "sequences of 16 per epoch, cut to their first 5 to 16"));
    assert_ran(TINY "--steps 2 --grad-accum 2 --seq 7", 0);
    assert_null(strstr(out, "cut to"));
    assert_non_null(strstr(out, "; 28 tokens; loss"));
}

static double host_bytes(const char *more) {
    char arguments[256];
    snprintf(arguments, sizeof(arguments), TINY "--steps 1 --json --quiet %s", more);
    json_t *object = run_json(arguments, 0);
    double bytes = number(json_object_get(object, "peak_bytes"), "host", "live");
    assert_true((number(object, "tokens", NULL) < 16) == (more[0] != '\0'));
    json_decref(object);
    return bytes;
}

/* Tokens wait for their copy in room for the longest: a place that no plan has may not vary. */
TEST(tokens_have_room_for_the_longest) {
    assert_true(host_bytes("--seq-min 1 --seed 2") == host_bytes(""));
}

/* The hash of a run of two ranks that accumulates two micro-batches; free it. */
static char *hash_with(const char *arguments, int stage) {
    char all[512];
    snprintf(all, sizeof(all), TINY "--steps 4 --ranks 2 --grad-accum 2 --json --stage %d %s",
             stage, arguments);
    json_t *object = run_json(all, 0);
    char *hash = strdup(text(object, "weights_xxh3"));
    json_decref(object);
    assert_non_null(hash);
    return hash;
}

static void assert_same_hash(const char *arguments, int stage, const char *expected) {
    char *hash = hash_with(arguments, stage);
    assert_string_equal(hash, expected);
    free(hash);
}

static void assert_other_hash(const char *arguments, const char *expected) {
    char *hash = hash_with(arguments, 0);
    assert_string_not_equal(hash, expected);
    free(hash);
}

TEST(varying_lengths_at_every_stage) {
    char *all = hash_with("--seq-min 3 --reduce every-micro-batch", 0);
    for (int stage = 1; stage <= 3; stage++)
        assert_same_hash("--seq-min 3 --reduce every-micro-batch", stage, all);
    assert_same_hash("--seq-min 3", 2, all);
    assert_same_hash("--seq-min 3 --recompute unit", 3, all);
    char *once = hash_with("--seq-min 3", 0);
    assert_same_hash("--seq-min 3", 1, once);
    assert_other_hash("--seq-min 4", once);
    assert_other_hash("", once);
    free(once);
    free(all);
}

TEST(equal_lengths_as_without) {
    char *hash = hash_with("", 0), *shorter = hash_with("--seq 9", 0);
    assert_same_hash("--seq-min 16", 0, hash);
    assert_same_hash("--seq-min 9 --seq 9", 0, shorter);
    assert_string_not_equal(hash, shorter);
    free(shorter);
    free(hash);
}

/* What was not reached is left out, and is not 0. */
static void assert_reached(json_t *object, bool had_device, bool was_made) {
    static const char *const of_device[] = {"device", "threads", "overlap_comm", "peak_bytes",
                                            "memory"};
    json_t *ranks = json_object_get(object, "per_rank");
    for (size_t i = 0; i < sizeof(of_device) / sizeof(of_device[0]); i++)
        assert_true((json_object_get(object, of_device[i]) != NULL) == had_device);
    assert_true((json_object_get(object, "padding") != NULL) == was_made);
    assert_true((json_object_get(object, "offload") != NULL) == was_made);
    assert_true((json_object_get(json_object_get(object, "model"), "units") != NULL) == was_made);
    assert_true(number(object, "model", "parameters") > 0);
    assert_true(number(object, "data", "tokens") > 0);
    assert_null(json_object_get(object, "loss"));
    assert_int_equal(json_array_size(ranks), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *rank = json_array_get(ranks, i);
        json_t *peaks = json_object_get(rank, "peak_bytes");
        assert_true(json_is_null(json_object_get(rank, "step_ms")));
        assert_true(json_is_null(json_object_get(rank, "own_ms")));
        assert_true((peaks != NULL) == had_device);
        assert_true(!had_device || number(peaks, "host", "live") > 0);
    }
}

TEST(out_of_budget) {
    json_t *object = run_json(TINY "--steps 3 --ranks 2 --device-memory 64KiB --json", 1);
    assert_string_equal(text(object, "result"), "failed");
    assert_string_equal(text(object, "error"), "ZR_ERR_BUDGET");
    assert_non_null(strstr(text(object, "message"), "--stage"));
    assert_non_null(strstr(err, "--stage"));
    json_t *device = json_object_get(json_object_get(object, "peak_bytes"), "device");
    assert_true(number(device, "reserved", NULL) <= 65536);
    json_decref(object);
}

/* It fails before its ranks begin, as they make the model, or in a step. */
TEST(what_was_not_reached) {
    static const struct {
        const char *budget;
        bool had_device, was_made;
    } cases[] = {
        {"20KiB --stage auto", false, false}, {"64KiB", true, false}, {"170KiB", true, true}};
    json_decref(run_json(TINY "--steps 2 --ranks 2 --checkpoint-dir reached --json", 0));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 TINY "--steps 3 --ranks 2 --checkpoint-dir reached --resume --json "
                      "--offload-optimizer cpu --device-memory %s",
                 cases[i].budget);
        json_t *object = run_json(arguments, 1);
        assert_string_equal(text(object, "result"), "failed");
        assert_reached(object, cases[i].had_device, cases[i].was_made);
        assert_int_equal(number(object, "steps", NULL), 2);
        assert_int_equal(number(object, "checkpoint", "resumed_at"), 2);
        json_decref(object);
    }
}

TEST(log_lines) {
    static const char *const fields[] = {"step", "loss",   "lr",      "norm",
                                         "clip", "tokens", "step_ms", "tokens_per_s"};
    char lines[8192], *rest = lines;
    size_t n_lines = 0;
    assert_ran(TINY "--steps 6 --clip 0.1 --log steps.jsonl --quiet", 0);
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    read_file("steps.jsonl", lines, sizeof(lines));
    for (char *line = strsep(&rest, "\n"); line != NULL && *line != '\0';
         line = strsep(&rest, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        n_lines++;
        for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
            assert_true(number(object, fields[i], NULL) > 0);
        assert_true(json_is_false(json_object_get(object, "skipped")));
        assert_int_equal(number(object, "step", NULL), n_lines);
        assert_true(number(object, "clip", NULL) < 1);
        assert_int_equal(number(object, "tokens", NULL), 16);
        json_decref(object);
    }
    assert_int_equal(n_lines, 6);
}

/* The file counts, and options count more, wherever they stand. */
TEST(options_override_config) {
    json_t *object = run_json("--stage 1 --config good.json " TINY "--steps 2 --json", 0);
    assert_int_equal(number(object, "stage", NULL), 1);
    assert_int_equal(number(object, "micro_batch", NULL), 3);
    json_decref(object);
    object = run_json(TINY "--config good.json --steps 2 --json --log steps.jsonl", 0);
    assert_int_equal(number(object, "stage", NULL), 2);
    json_decref(object);
    char line[1024];
    read_file("steps.jsonl", line, sizeof(line));
    assert_non_null(strstr(line, "\"stall\"")); /* wall_clock_breakdown */
    assert_non_null(strstr(err, "step 2/2"));
    assert_non_null(strstr(err, "stall"));
}

/* Output that cannot be written is a failed run, and not a quiet one. */
TEST(full_disk) {
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_ran(TINY "--steps 2 --log /dev/full", 1);
    assert_non_null(strstr(err, "/dev/full"));
    char command[1024];
    snprintf(command, sizeof(command), "'%s' " TINY "--steps 1 --json >/dev/full 2>err",
             ZERO_TRAIN);
    assert_int_equal(WEXITSTATUS(system(command)), 1);
}

/* ---- memory snapshots ------------------------------------------------------------------- */

/* The most bytes alive at once: the naive way. Names have no commas here. */
static double max_live(const char *path, unsigned step, size_t *n_lives) {
    typedef struct row {
        double lower, upper, size;
        unsigned last_micro_batch;
    } row_t;
    static row_t rows[4096];
    char line[512], name[256];
    double most = 0, last_upper = 0;
    unsigned first_step, first_micro_batch, last_step, last_micro_batch;
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    while (fgets(line, sizeof(line), file) != NULL) {
        row_t *row = &rows[n++];
        assert_true(n < 4096);
        assert_int_equal(sscanf(line, "%*u,%lf,%lf,%lf,%*[^,],%*[^,],%255[^,],%*u,%*u,%u,%u,%u,%u",
                                &row->lower, &row->upper, &row->size, name, &first_step,
                                &first_micro_batch, &last_step, &last_micro_batch),
                         8);
        assert_true(row->lower < row->upper);
        assert_int_equal(last_step, step);
        assert_true(first_step == step || row->lower == 0);
        assert_true(first_step != step || row->lower > 0);
        assert_true(last_micro_batch <= 2);
        row->last_micro_batch = last_micro_batch;
        last_upper = row->upper > last_upper ? row->upper : last_upper;
    }
    fclose(file);
    for (size_t i = 0; i < n; i++) {
        double live = 0;
        /* Recording ended after the update, which is outside micro-batches. */
        assert_true(rows[i].upper != last_upper || rows[i].last_micro_batch == 0);
        for (size_t k = 0; k < n; k++)
            if (rows[k].lower <= rows[i].lower && rows[i].lower < rows[k].upper)
                live += rows[k].size;
        most = live > most ? live : most;
    }
    *n_lives = n;
    return most;
}

/* The step that is recorded, the first that follows its plan, has the run's peak. At stage 3 the
 * first step gathers without foresight, and the second is planned by it. */
TEST(memory_snapshot_csv) {
    char arguments[512];
    for (int stage = 0; stage <= 3; stage++) {
        size_t n = 0, n_other = 0;
        snprintf(arguments, sizeof(arguments),
                 TINY "--steps 4 --stage %d --ranks 2 --grad-accum 2 --recompute %s --json "
                      "--memory-snapshot lives.csv",
                 stage, stage % 2 ? "unit" : "none");
        json_t *object = run_json(arguments, 0);
        json_t *device = json_object_get(json_object_get(object, "peak_bytes"), "device");
        assert_true(max_live("lives.csv", stage == 3 ? 3 : 2, &n) == number(device, "live", NULL));
        assert_true(max_live("lives.rank1.csv", stage == 3 ? 3 : 2, &n_other) ==
                    number(device, "live", NULL));
        assert_true(n > 50 && n == n_other);
        assert_non_null(strstr(err, "lives.rank1.csv"));
        json_decref(object);
    }
}

/* The largest value of a counter of the device's memory. */
static double counter_peak(json_t *trace, const char *name) {
    double peak = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        if (strcmp(phase, "C") == 0 && number(event, "pid", NULL) == 1 &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
            number(event, "args", "bytes") > peak)
            peak = number(event, "args", "bytes");
    }
    return peak;
}

TEST(memory_snapshot_chrome) {
    static const char *const tags[] = {"parameters", "optimizer_state", "gradient_buckets",
                                       "activations"};
    json_t *object =
        run_json(TINY "--steps 3 --stage 3 --ranks 2 --json --memory-snapshot t.json", 0);
    json_t *device = json_object_get(json_object_get(object, "peak_bytes"), "device");
    json_t *trace = json_load_file("t.json", JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(trace);
    assert_true(counter_peak(trace, "live") == number(device, "live", NULL));
    for (size_t i = 0; i < 4; i++)
        assert_true(counter_peak(trace, tags[i]) == number(device, "tags", tags[i]));
    json_decref(trace);
    json_decref(object);
}

TEST(memory_snapshot_pickle) {
    char command[512];
    if (system("python3 -c 'import pickle' 2>/dev/null") != 0) {
        print_message("skipped: there is no python3 to read a pickle with\n");
        skip();
    }
    json_t *object = run_json(TINY "--steps 2 --stage 2 --ranks 2 --json --memory-snapshot "
                                   "t.pickle",
                              0);
    json_t *device = json_object_get(json_object_get(object, "peak_bytes"), "device");
    snprintf(command, sizeof(command), "python3 '%s' t.pickle 0:peak=%.0f,pending=0",
             CHECK_MEMORY_VIZ, number(device, "live", NULL));
    assert_int_equal(WEXITSTATUS(system(command)), 0);
    json_decref(object);
}

/* Of a single step, and of one that fails, there is what there is. */
TEST(memory_snapshot_of_short_runs) {
    char text_of[4096];
    assert_ran(TINY "--steps 1 --memory-snapshot one.csv --quiet", 0);
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    read_file("one.csv", text_of, sizeof(text_of));
    assert_non_null(strstr(text_of, "optimizer_state,persistent,"));
    assert_ran(TINY "--steps 3 --device-memory 300KiB --memory-snapshot failed.csv", 1);
    assert_non_null(strstr(err, "does not fit"));
    read_file("failed.csv", text_of, sizeof(text_of));
    assert_non_null(strstr(text_of, "optimizer_state,persistent,"));
}

TEST(memory_snapshot_on_full_disk) {
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(symlink("/dev/full", "full.pickle"), 0);
    assert_ran(TINY "--steps 2 --memory-snapshot full.pickle", 1);
    assert_non_null(strstr(err, "full.pickle"));
    assert_non_null(strstr(err, "No space left"));
}

/* What a run writes never takes the place of what it reads. */
TEST(output_over_data) {
    static const char *const outputs[] = {"--log own.csv", "--log ./link.csv",
                                          "--memory-snapshot own.csv",
                                          "--ranks 2 --memory-snapshot base.csv"};
    char before[8192], after[8192], arguments[512];
    read_file("text", before, sizeof(before));
    write_file("own.csv", before, strlen(before));
    write_file("base.rank1.csv", before, strlen(before));
    assert_int_equal(symlink("own.csv", "link.csv"), 0);
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        snprintf(arguments, sizeof(arguments), TINY "own.csv base.rank1.csv --steps 2 %s",
                 outputs[i]);
        assert_ran(arguments, 2);
        assert_non_null(strstr(err, "overwritten"));
        read_file("own.csv", after, sizeof(after));
        assert_string_equal(after, before);
        read_file("base.rank1.csv", after, sizeof(after));
        assert_string_equal(after, before);
    }
}

/* JSON is UTF-8; the names of files need not be. */
TEST(message_with_odd_bytes) {
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(symlink("/dev/full", "log\xff"), 0);
    json_t *object = run_json(TINY "--steps 2 --json --log log\xff", 1);
    assert_non_null(strstr(text(object, "message"), "log?: No space left"));
    json_decref(object);
}

/* What is printed does not get into a file that took the place of a closed standard file. */
TEST(closed_standard_files) {
    static const struct {
        const char *closed;
        int expected;
    } cases[] = {{"2>&-", 0}, {">&-", 1}, {"<&- >&- 2>&-", 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char command[1024], lines[4096];
        int n_lines = 0;
        snprintf(command, sizeof(command), "'%s' " TINY "--steps 2 --log kept.jsonl >out 2>err %s",
                 ZERO_TRAIN, cases[i].closed);
        assert_int_equal(WEXITSTATUS(system(command)), cases[i].expected);
        read_file("kept.jsonl", lines, sizeof(lines));
        for (char *line = strtok(lines, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            assert_memory_equal(line, "{\"step\": ", 9);
            n_lines++;
        }
        assert_int_equal(n_lines, 2);
    }
}

TEST(help_version_summary) {
    assert_ran("--help", 0);
    assert_non_null(strstr(out, "--device-memory"));
    assert_non_null(strstr(out, "--checkpoint-dir"));
    assert_string_equal(err, "");
    assert_ran("--version", 0);
    assert_non_null(strstr(out, "zero-train 0."));
    assert_ran(TINY "--steps 2", 0);
    assert_non_null(strstr(out, "loss"));
    assert_non_null(strstr(out, "xxh3"));
    assert_non_null(strstr(out, "largest hole"));
    assert_non_null(strstr(out, "optimizer_state"));
    assert_ran(TINY "--steps 1 --offload-optimizer cpu --offload-ratio 0.1", 0);
    assert_non_null(strstr(out, " on host in 1 sub-group\n"));
}

const test_group_t test_group = {prepare, leave_test_folder};
