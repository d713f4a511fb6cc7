/*
 * zero-train as its users meet it: a process with a command line, an exit status, standard
 * output and standard error.
 */
#include <glob.h>

#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define NVME "--offload-optimizer nvme --nvme-path drive "
#define NVME_PARAMS "--offload-params nvme --nvme-path drive "
#define KEEP "--recompute unit --offload-activations "

static int prepare(void **state) {
    static const char settings[] = "{\"request_bytes\": 8192, \"depth\": 5, \"submit_batch\": 9,"
                                   " \"files_per_path\": 2, \"paths\": [\"drive\", \"./drive\"]}";
    static const char config[] =
        "{\"zero_optimization\": {\"stage\": 2}, \"gradient_clipping\": 0.5,"
        " \"train_micro_batch_size_per_gpu\": 3, \"wall_clock_breakdown\": true,"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}}";
    if (make_folder(state) != 0)
        return -1;
    write_file("settings.json", settings, sizeof(settings) - 1);
    write_file("good.json", config, sizeof(config) - 1);
    return 0;
}

/* ---- what is reported ------------------------------------------------------------------- */

/* What went within groups and what between them is all that was sent. */
TEST(groups_of_ranks) {
    for (int stage = 0; stage <= 3; stage++) {
        json_t *object =
            run_json(0, TINY "--steps 3 --stage %d --ranks 4 --shard-group-size 2", stage);
        json_t *sent = field(object, "comm_bytes"), *levels = field(object, "comm_levels");
        assert_true(number(levels, "between_groups.all_reduce") > 0);
        expect_fields(object, "shard_group_size=2 comm_levels.between_groups.all_gather=0");
        expect_fields(levels, "within_groups.all_gather=%.0f within_groups.reduce_scatter=%.0f",
                      number(sent, "all_gather"), number(sent, "reduce_scatter"));
    }
}

TEST(promised_fields) {
    static const char *const classes[] = {"persistent", "step",       "micro_batch",
                                          "unit",       "collective", "planned"};
    static const char *const parts[] = {"compute", "comm", "optimizer", "stall", "data"};
    json_t *object = run_json(0, TINY "--steps 5 --stage 3 --ranks 2 --lr 1e-2");
    expect_fields(object, "result=trained seq=16 seq_min=16 tokens=160 steps=5 n_skipped=0 stage=3 "
                          "ranks=2 dtype=fp32 comm_bytes.all_reduce=0 comm_bytes.broadcast=0 "
                          "padding.frozen=0");
    assert_in_range((long)(number(object, "loss.first") * 10), 54, 60); /* ln 256 = 5.55 */
    assert_true(number(object, "loss.last") < number(object, "loss.first"));
    assert_float_equal(number(object, "tokens_per_s") * 1e-3 * number(object, "step_ms") / 32, 1,
                       1e-3);
    assert_int_equal(strlen(text(object, "weights_xxh3")), 16);
    assert_int_equal(strspn(text(object, "weights_xxh3"), "0123456789abcdef"), 16);
    assert_true(number(object, "comm_bytes.all_gather") > 0);
    assert_true(number(object, "comm_bytes.reduce_scatter") > 0);
    for (size_t i = 0; i < N_OF(parts); i++)
        assert_true(number(object, "time.%s", parts[i]) >= 0);
    assert_true(number(object, "time.compute") > 0);

    double n = number(object, "model.trainable"), padded = n + number(object, "padding.trainable");
    assert_true(n == number(object, "model.parameters"));
    json_t *device = field(object, "peak_bytes.device");
    assert_true(number(device, "reserved") >= number(device, "live"));
    double tables = number(object, "metadata_bytes.live");
    assert_true(tables > 0 && number(object, "metadata_bytes.peak") >= tables);
    expect_fields(device, "tags.optimizer_state=%.0f tags.parameters=%.0f tags.gradients=%.0f",
                  8 * padded / 2, 4 * padded / 2, 4 * padded / 2);
    assert_true(number(device, "tags.activations") > 0);
    double at_peak = 0;
    const char *tag;
    json_t *bytes;
    json_object_foreach(field(object, "at_peak_bytes.device"), tag, bytes) {
        at_peak += json_number_value(bytes);
        assert_true(json_number_value(bytes) <= number(field(device, "tags"), tag));
    }
    assert_true(at_peak == number(device, "live"));

    json_t *memory = field(object, "memory.device");
    assert_true(number(object, "memory.replay.steps") > 0);
    assert_true(number(memory, "plan.height") >= number(memory, "plan.max_live"));
    double live = 0;
    for (size_t i = 0; i < N_OF(classes); i++) {
        json_t *own = field(memory, "classes.%s", classes[i]);
        assert_true(number(own, "reserved") >= number(own, "live"));
        assert_true(number(own, "reserved") >= number(own, "largest_hole"));
        live += number(own, "live");
    }
    assert_true(live >= number(device, "live"));
    assert_true(number(memory, "classes.persistent.live") >= 20 * padded / 2);
    /* Nothing is reported of what there is not. */
    expect_fields(object, "nvme_bytes=absent offload=absent time.io=absent peak_bytes.nvme=absent "
                          "planned_peak_bytes.nvme=absent");
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Runs that end in the weights of the first of their kind. The first way meets all stages, each
 * other one of them in turn; sanitizers meet some of the many. */
enum { EVERY = TEST_IS_SLOW ? 5 : 1 };

/* Six layers, whose inputs of 2 x 16 tokens have 16 channels. */
#define DEEP                                                                                       \
    "--model layers=6,channels=16,heads=2,seq=16,vocab=256 --data text --comm-timeout 60 "         \
    "--micro-batch 2 "
#define INPUT_BYTES (2 * 16 * 16 * 4)

typedef struct same_weights {
    const char *common;      /* options of all of them */
    const char *const *ways; /* NULL: the end */
    int first_stage, last_stage;
    bool is_other; /* each way ends in weights of its own */
} same_weights_t;

static const same_weights_t same_weights[] = {
    {TINY "--ranks 3 --clip 0.5",
     (const char *const[]){"", "--recompute unit --prefetch 3000", "--max-live 100000 --sums any",
                           "--overlap-comm on", "--memory-plan off", NULL},
     0, 3, false},
    {TINY "--ranks 2",
     (const char *const[]){"", "--offload-optimizer cpu",
                           "--offload-optimizer cpu --offload-ratio 0.3", NVME,
                           NVME "--offload-ratio 0.3 --sub-group 1024 --nvme-verify off",
                           NVME "--sub-group 1024 --nvme-buffers 2 --state-in-host 3000",
                           "--offload-optimizer nvme --io-settings settings.json", NULL},
     1, 2, false},
    {TINY "--ranks 2",
     (const char *const[]){
         "", "--offload-params cpu",
         "--offload-params cpu --offload-optimizer cpu --offload-param-ratio 0.5",
         "--offload-optimizer cpu --offload-gradients none",
         NVME_PARAMS "--param-buffer 1024 --param-buffers 2",
         NVME_PARAMS "--offload-optimizer nvme --params-in-host 2000 --offload-param-ratio 0.8",
         NVME_PARAMS "--offload-optimizer cpu --recompute unit --prefetch 0", NULL},
     3, 3, false},
    {TINY "--ranks 2 --model layers=4,channels=64,heads=2,seq=32,vocab=256",
     (const char *const[]){"",
                           NVME_PARAMS
                           "--param-buffer 1024 --param-buffers 12 --update-at backward "
                           "--master split --check-overflow off",
                           NULL},
     3, 3, false},
    {DEEP "--ranks 2 --grad-accum 2 --seq-min 3 --reduce every-micro-batch --recompute unit",
     (const char *const[]){
         "", KEEP "cpu", KEEP "nvme --nvme-path drive",
         KEEP "nvme --nvme-path drive,drive --nvme-buffers 1 --nvme-verify off",
         KEEP "cpu --activations-on-device 2",
         KEEP "nvme --nvme-path drive --activations-on-device 1 --activations-in-host 2",
         KEEP "nvme --offload-optimizer nvme --nvme-path drive --nvme-buffers 2 --sub-group 1024",
         NULL},
     0, 3, false},
    {TINY "--ranks 2 --grad-accum 2", (const char *const[]){"", "--seq-min 16", NULL}, 0, 1, false},
    {TINY "--grad-accum 2",
     (const char *const[]){"", "--seed 2", "--seq 9", "--seq-min 3", "--seq-min 4", NULL}, 0, 0,
     true}};

/* A run's weights do not depend on its stage, nor on where anything is or how it gets there. */
TEST(same_weights_every_way) {
    bool nvme = has_nvme();
    for (size_t i = 0; i < N_OF(same_weights); i++) {
        const same_weights_t *same = &same_weights[i];
        char first[17] = "";
        size_t n = 0;
        for (size_t way = 0; same->ways[way] != NULL; way++)
            for (int stage = same->first_stage; stage <= same->last_stage; stage++) {
                int n_stages = same->last_stage - same->first_stage + 1;
                if (way > 0 && stage - same->first_stage != (int)way % n_stages)
                    continue;
                if ((strstr(same->ways[way], "nvme") != NULL && !nvme) || n++ % EVERY != 0)
                    continue;
                json_t *object =
                    run_json(0, "%s --steps 3 --stage %d %s", same->common, stage, same->ways[way]);
                if (first[0] == '\0' || same->is_other)
                    assert_string_not_equal(text(object, "weights_xxh3"), first);
                else if (strcmp(text(object, "weights_xxh3"), first) != 0)
                    fail_msg("%s --stage %d %s: other weights", same->common, stage,
                             same->ways[way]);
                snprintf(first, sizeof(first), "%s", text(object, "weights_xxh3"));
            }
    }
    assert_int_equal(rmdir("drive"), 0); /* nothing was left in it */
    assert_int_equal(mkdir("drive", 0777), 0);
}

/* Collectives beside compute: no bit of the weights is another, no peak of memory, and they are no
 * part of the time that a rank's own work takes. A file may say no, and the option is over it. */
TEST(collectives_during_compute) {
    static const char no[] =
        "{\"gradient_clipping\": 0, \"zero_optimization\": {\"overlap_comm\": false}}";
    static const char *const off[] = {"--overlap-comm off", "--overlap-comm auto", "",
                                      "--config no.json"};
    static const char *const ways[] = {
        "1 --stage 3",
        "2 --stage 1 --grad-accum 2 --reduce every-micro-batch",
        "3 --stage 2 --dtype bf16 --grad-accum 2 --memory-plan off",
        "2 --stage 3 --recompute unit --offload-optimizer cpu --offload-params cpu",
        "4 --stage 3 --shard-group-size 2",
        "2 --stage 3 --offload-optimizer nvme --offload-params nvme --nvme-path drive"};
    write_file("no.json", no, sizeof(no) - 1);
    for (size_t i = 0; i < (has_nvme() ? N_OF(ways) : N_OF(ways) - 1); i++) {
        json_t *with = run_json(0,
                                TINY "--steps 4 --threads 1 --config no.json --overlap-comm on "
                                     "--ranks %s",
                                ways[i]);
        json_t *without =
            run_json(0, TINY "--steps 4 --threads 1 %s --ranks %s", off[i % N_OF(off)], ways[i]);
        expect_fields(with, "overlap_comm=true time.comm=0 weights_xxh3=%s",
                      text(without, "weights_xxh3"));
        expect_fields(without, "overlap_comm=false time.concurrent=absent");
        assert_non_null(field(with, "time.concurrent"));
        for (int tier = 0; tier < 2; tier++) {
            const char *name = tier == 0 ? "device" : "host";
            double live = number(with, "peak_bytes.%s.live", name);
            assert_true(live > 0 && number(with, "planned_peak_bytes.%s.live", name) == live);
            assert_true(number(without, "peak_bytes.%s.live", name) == live);
        }
    }
}

/* ---- offload -------------------------------------------------------------------------------- */

/* Parameters are read forward and backward, and written once. */
TEST(what_is_moved_of_parameters_is_reported) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(0, TINY NVME_PARAMS "--steps 4 --stage 3 --ranks 2 --freeze h.0 "
                                                  "--param-buffer 1024 --nvme-tbw 600TB");
    json_t *params = field(object, "offload.params");
    double trainable = number(object, "model.trainable") + number(object, "padding.trainable");
    double frozen = number(object, "model.frozen") + number(object, "padding.frozen");
    double all = 4 * (trainable + frozen);
    assert_true(frozen > 0);
    assert_true(number(params, "nvme.read.bytes") >= 4 * 2 * all); /* wte is used twice */
    expect_fields(params, "device=nvme bytes.nvme=%.0f nvme.written.bytes=%.0f", all,
                  4 * 4 * trainable);
    expect_fields(object, "nvme_bytes.written=%.0f peak_bytes.nvme.live=%.0f", all + 16 * trainable,
                  all / 2);
    assert_int_equal(json_integer_value(field(object, "peak_bytes.device.tags.parameters")), 0);
    assert_true(number(params, "nvme.endurance_days") > 0 && number(object, "time.io") >= 0);
    assert_ran(0, TINY NVME_PARAMS "--steps 2 --stage 3 --verbose");
    expect_out("gathers read|written per day");
}

/* 8 bytes per parameter and step in each direction, and at the start 8 written; parameters in fp32
 * are the masters, so that nothing more is read at the end. */
TEST(what_is_moved_is_reported) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(0, TINY NVME "--steps 4 --stage 2 --ranks 2 --sub-group 1024 "
                                           "--nvme-tbw 600TB");
    double states = number(object, "offload.state_bytes.nvme");
    double padded = number(object, "model.trainable") + number(object, "padding.trainable");
    assert_true(states == 8 * padded);
    expect_fields(object,
                  "offload.nvme.read.bytes=%.0f offload.nvme.written.bytes=%.0f "
                  "nvme_bytes.written=%.0f peak_bytes.nvme.live=%.0f offload.update=host",
                  4 * states, 4 * states, 5 * states, states / 2);
    double looked_at = number(object, "nvme_bytes.read") - 4 * states;
    assert_true(looked_at == 0);
    assert_true(number(object, "peak_bytes.nvme.reserved") >= states / 2);
    assert_int_equal(json_integer_value(field(object, "peak_bytes.device.tags.optimizer_state")),
                     0);
    assert_true(number(object, "offload.nvme.endurance_days") > 0 &&
                number(object, "time.io") >= 0);
    assert_true(number(object, "offload.nvme.bytes_per_day") > 0);
    assert_ran(0, TINY NVME "--steps 2 --nvme-tbw 1TB --verbose");
    expect_out("on nvme in|last ");
}

/* Updates in backward take time of their own, and their waits for the drive are not taken off what
 * is left of them at the end of the step: no part of it is below 0. */
TEST(updates_in_backward_have_their_time) {
    if (!has_nvme())
        skip();
    json_t *time = field(run_json(0, TINY NVME "--steps 4 --stage 2 --sub-group 1024 --update-at "
                                               "backward --clip 0 --check-overflow off"),
                         "time");
    assert_true(number(time, "optimizer") > 0 && number(time, "compute") > 0);
    assert_true(number(time, "io") >= 0); /* nothing has to be waited for */
}

static double activations_peak(json_t *object, const char *tier) {
    return number(object, "peak_bytes.%s.tags.activations", tier);
}

/* On the device are the input in use and the next one, of six; the rest is where it was put. */
TEST(activations_leave_the_device) {
    static const char *const places[] = {"cpu", "nvme --nvme-path drive --nvme-buffers 2 "
                                                "--nvme-tbw 1TB"};
    json_t *kept = run_json(0, DEEP "--steps 4 --ranks 2 --recompute unit");
    for (int i = 0; i < 1 + has_nvme(); i++) {
        json_t *object = run_json(0, DEEP "--steps 4 --ranks 2 " KEEP "%s", places[i]);
        json_t *moved = field(object, "offload.activations");
        expect_fields(moved, "device=%s away.bytes=%d back.bytes=%d", i == 0 ? "cpu" : "nvme",
                      2 * 4 * 6 * INPUT_BYTES, 2 * 4 * 6 * INPUT_BYTES);
        assert_true(activations_peak(kept, "device") - activations_peak(object, "device") ==
                    4 * INPUT_BYTES);
        assert_true(activations_peak(object, "host") == (i == 0 ? 6 * INPUT_BYTES : 0));
        if (i == 0)
            continue;
        /* Chunks of 4096; the last of six is never written, two are in buffers. */
        expect_fields(moved, "nvme.written.bytes=%d nvme.read.bytes=%d", 2 * 4 * 5 * 4096,
                      2 * 4 * 4 * 4096);
        expect_fields(object, "nvme_bytes.written=%d", 2 * 4 * 5 * 4096);
        assert_true(activations_peak(object, "nvme") == 6 * INPUT_BYTES);
        assert_true(number(moved, "nvme.endurance_days") > 0);
    }
    if (!has_nvme())
        return;
    json_t *object = run_json(0, DEEP "--steps 4 --ranks 2 " KEEP "nvme --nvme-path drive "
                                      "--activations-on-device 1 --activations-in-host 2");
    assert_true(activations_peak(object, "host") == 2 * INPUT_BYTES);
    assert_true(activations_peak(object, "nvme") == 3 * INPUT_BYTES);
    assert_true(activations_peak(kept, "device") - activations_peak(object, "device") ==
                4 * INPUT_BYTES); /* the one that stays is done with when two are back */
}

TEST(auto_divides_activations) {
#define WIDE DEEP "--steps 4 --micro-batch 16 --recompute unit "
    json_t *kept = run_json(0, WIDE);
    double device = number(kept, "peak_bytes.device.reserved") - 2 * 8 * INPUT_BYTES;
    json_t *object = run_json(0,
                              WIDE "--offload-activations auto --device-memory %.0f "
                                   "--host-memory 1MiB",
                              device);
    assert_string_equal(text(object, "weights_xxh3"), text(kept, "weights_xxh3"));
    expect_parts("what was chosen", text(object, "chosen.options"),
                 "--offload-activations cpu --activations-on-device ");
    assert_true(activations_peak(object, "host") > 0);
    assert_true(activations_peak(object, "host") < 6 * 8 * INPUT_BYTES);
    expect_fields(object, "planned_fits=true offload.activations.device=cpu");
}

TEST(drives_and_memory_too_small_fail_the_run) {
    static const struct {
        const char *arguments, *said;
    } cases[] = {{DEEP KEEP "cpu --host-memory 4096", "host memory"},
                 {TINY NVME "--nvme-capacity 10kB", "a larger --nvme-capacity"},
                 {DEEP KEEP "nvme --nvme-path drive --nvme-capacity 10kB", "inputs of 6 layers"}};
    for (size_t i = 0; i < (has_nvme() ? 3 : 1); i++) {
        json_t *object = run_json(1, "%s", cases[i].arguments);
        expect_fields(object, "result=failed error=ZR_ERR_BUDGET");
        assert_has(text(object, "message"), cases[i].said);
        assert_true(i == 1 || strstr(text(object, "message"), "--offload-ratio") == NULL);
    }
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
        json_t *object = kept_json(line);
        double tokens = number(object, "tokens"), per_s = number(object, "tokens_per_s");
        assert_float_equal(per_s * 1e-3 * number(object, "step_ms") / tokens, 1, 1e-3);
        assert_true(lengths.n_steps < 64);
        lengths.rates[lengths.n_steps++] = per_s;
        lengths.n_changes += tokens != last;
        lengths.n_tokens += tokens;
        lengths.fewest = tokens < lengths.fewest ? tokens : lengths.fewest;
        lengths.most = tokens > lengths.most ? tokens : lengths.most;
        last = tokens;
    }
    return lengths;
}

static int by_rate(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One micro-batch of 3 sequences on each of 2 ranks: a step has 6 times its length. */
TEST(lengths_vary) {
    json_t *object =
        run_json(0, TINY "--steps 41 --ranks 2 --micro-batch 3 --seq-min 5 --log lengths.jsonl");
    lengths_t lengths = read_lengths("lengths.jsonl");
    assert_int_equal(lengths.n_steps, 41);
    assert_true(lengths.n_changes > 20);
    assert_int_equal(lengths.fewest, 6 * 5);
    assert_int_equal(lengths.most, 6 * 16);
    expect_fields(object, "seq=16 seq_min=5 tokens=%.0f", lengths.n_tokens);
    qsort(lengths.rates, 41, sizeof(double), by_rate);
    assert_float_equal(number(object, "tokens_per_s") / lengths.rates[20], 1, 1e-3);

    assert_ran(0, TINY "--steps 8 --seq-min 5 --verbose");
    expect_out("sequences of 16 per epoch, cut to their first 5 to 16");
    assert_ran(0, TINY "--steps 2 --grad-accum 2 --seq 7 --verbose");
    assert_null(strstr(out, "cut to"));
    expect_out(", 28 tokens trained on");
}

/* Tokens wait for their copy in room for the longest: a place that no plan has may not vary. */
TEST(tokens_have_room_for_the_longest) {
    json_t *shorter = run_json(0, TINY "--steps 1 --quiet --seq-min 1 --seed 2");
    json_t *longest = run_json(0, TINY "--steps 1 --quiet");
    assert_true(number(shorter, "tokens") < 16);
    assert_true(number(shorter, "peak_bytes.host.live") == number(longest, "peak_bytes.host.live"));
}

/* ---- runs that fail ----------------------------------------------------------------------- */

/* It fails before its ranks begin, as they make the model, or in a step: what was not reached is
 * left out, and is not 0. */
TEST(what_was_not_reached) {
    static const struct {
        const char *budget, *reached;
    } cases[] = {{"20KiB --stage auto", "device=absent threads=absent overlap_comm=absent "
                                        "peak_bytes=absent metadata_bytes=absent "
                                        "memory=absent padding=absent "
                                        "offload=absent model.units=absent"},
                 {"64KiB --plan-check off", "overlap_comm=false memory=present padding=absent "
                                            "offload=absent model.units=absent"},
                 {"170KiB --plan-check off",
                  "overlap_comm=false memory=present padding=present offload=present"}};
    run_json(0, TINY "--steps 2 --ranks 2 --checkpoint-dir reached");
    for (size_t i = 0; i < N_OF(cases); i++) {
        json_t *object = run_json(1,
                                  TINY "--steps 3 --ranks 2 --checkpoint-dir reached --resume "
                                       "--offload-optimizer cpu --device-memory %s",
                                  cases[i].budget);
        expect_fields(object,
                      "result=failed error=ZR_ERR_BUDGET loss=absent steps=2 "
                      "checkpoint.resumed_at=2 %s",
                      cases[i].reached);
        assert_true(number(object, "model.parameters") > 0 && number(object, "data.tokens") > 0);
        assert_true(i != 1 || number(object, "peak_bytes.device.reserved") <= 65536);
        assert_true(i != 2 || number(object, "model.units") > 0);
        json_t *ranks = field(object, "per_rank");
        assert_int_equal(json_array_size(ranks), 2);
        for (size_t r = 0; r < 2; r++) {
            json_t *rank = json_array_get(ranks, r);
            expect_fields(rank, "step_ms=null own_ms=null");
            assert_true((field(rank, "peak_bytes") != NULL) == (i > 0));
            assert_true((field(rank, "metadata_bytes.peak") != NULL) == (i > 0));
            assert_true(i == 0 || number(rank, "peak_bytes.host.live") > 0);
        }
    }
}

/* ---- lines of --log, files and options ------------------------------------------------------ */

TEST(log_lines) {
    static const char *const fields[] = {"step", "loss",   "lr",      "norm",
                                         "clip", "tokens", "step_ms", "tokens_per_s"};
    char lines[8192], *rest = lines;
    size_t n_lines = 0;
    assert_ran(0, TINY "--steps 6 --clip 0.1 --log steps.jsonl --quiet");
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    read_file("steps.jsonl", lines, sizeof(lines));
    for (char *line = strsep(&rest, "\n"); line != NULL && *line != '\0';
         line = strsep(&rest, "\n")) {
        json_t *object = kept_json(line);
        for (size_t i = 0; i < N_OF(fields); i++)
            assert_true(number(object, "%s", fields[i]) > 0);
        expect_fields(object, "skipped=false tokens=16 step=%zu", ++n_lines);
        assert_true(number(object, "clip") < 1);
    }
    assert_int_equal(n_lines, 6);
}

/* A header, and a cell for each field that a line of JSON has. */
TEST(log_as_csv) {
    char lines[8192], *rest = lines;
    assert_ran(0, TINY "--steps 2 --ranks 2 --quiet --log steps.csv --val-data text --lr 1e-3");
    read_file("steps.csv", lines, sizeof(lines));
    assert_string_equal(strsep(&rest, "\n"),
                        "step,loss,lr,norm,clip,skipped,tokens,step_ms,tokens_per_s,slowest_rank,"
                        "excess_ms,val_loss,val_perplexity,val_ms,best,time.compute,time.comm,"
                        "time.optimizer,time.stall,time.data,time.concurrent,time.io");
    double step = -1, loss = 0, lr = 0;
    char *before = strsep(&rest, "\n"), *first = strsep(&rest, "\n"), *last = strsep(&rest, "\n");
    assert_memory_equal(before, "0,,,,,,,,,,,5.", 14);
    assert_non_null(strstr(before, ",true,,,,,,,"));
    assert_int_equal(sscanf(first, "1,%lf,%lf,", &loss, &lr), 2);
    assert_true(loss > 5 && loss < 6 && lr > 0);
    assert_int_equal(sscanf(last, "%lf,%lf", &step, &loss), 2);
    assert_true(step == 2 && strstr(last, ",false,32,") != NULL);
    assert_string_equal(strchr(rest, '\n'), "\n"); /* the evaluation at the end is the last line */
    /* A run that goes on cuts the steps that it does again. */
    assert_ran(0, TINY "--steps 3 --checkpoint-dir kept --checkpoint-every 3 --quiet --log go.csv");
    read_file("go.csv", lines, sizeof(lines));
    strcat(lines, "4,1\n5,1\n");
    write_file("go.csv", lines, strlen(lines));
    assert_ran(0, TINY "--steps 4 --checkpoint-dir kept --resume --log go.csv");
    assert_said("--resume", "--log go.csv: goes on behind step 3; cut from it: 2 lines");
    read_file("go.csv", lines, sizeof(lines));
    rest = lines;
    for (int i = 0; i <= 4; i++) {
        char *line = strsep(&rest, "\n");
        assert_int_equal(strtol(line, NULL, 10), i); /* 0: the header */
    }
    assert_string_equal(rest, "");
}

/* Options in a file are those of the command line, which overrides them. */
TEST(options_in_files) {
    static const char *const files[][2] = {
        {"run.json", "{\"model\": \"layers=2,channels=16,heads=2,seq=16,vocab=256\", \"data\": "
                     "[\"text\", \"text2\"], \"data-weights\": [0.75, 0.25], \"steps\": 3, \"lr\": "
                     "1e-2, \"check-overflow\": false, \"json\": true, \"quiet\": false}"},
        {"run.toml", "# of a run\nmodel = \"layers=2,channels=16,heads=2,seq=16,vocab=256\"\n"
                     "data = [\"text\", \"text2\"] # two\n\n  data_weights = '0.75,0.25'\nsteps=3\n"
                     "lr = 1e-2\ncheck_overflow = false\njson = true\nquiet = false\n"}};
    static const said_t wrong[] = {{"{\"lrr\": 1}",
                                    "--run wrong.json: lrr is not an option of a run; "
                                    "the nearest is lr"},
                                   {"{\"lr\": null}", "lr is null; allowed: a text"},
                                   {"{\"json\": 1}", "json is 1; allowed: true or false"},
                                   {"{\"run\": \"a\"}", "run is for the command line alone"},
                                   {"{\"micro-batch\": 2, \"micro_batch\": 3}", "there twice"},
                                   {"{\"seed\": 18446744073709551615}", "write it in quotes"},
                                   {"", "is empty"},
                                   {"{\"lr\": 1, \"lr\": 2}", "duplicate"},
                                   {"{\"lr\": \"fast\"}", "--lr fast: "},
                                   {"[1]", "is no object"}};
    write_file("text2", "another text of some words, again and again", 43);
    json_t *object = run_json(0, TINY "text2 --data-weights 0.75,0.25 --steps 3 --lr 1e-2 "
                                      "--check-overflow off");
    for (size_t i = 0; i < N_OF(files); i++) {
        write_file(files[i][0], files[i][1], strlen(files[i][1]));
        expect_fields(run_json(0, "--run %s", files[i][0]), "weights_xxh3=%s data.files=2",
                      text(object, "weights_xxh3"));
        expect_fields(
            run_json(0, "--lr 0.5 --run %s --data text --data-weights 1 --steps 2", files[i][0]),
            "data.files=1 steps=2");
    }
    for (size_t i = 0; i < N_OF(wrong); i++) {
        write_file("wrong.json", wrong[i].arguments, strlen(wrong[i].arguments));
        expect_said(ZERO_TRAIN, 2, "--data text --run wrong.json", wrong[i].parts);
    }
    static const char odd[] =
        "\xef\xbb\xbfsteps = 2.0\n\"lr\" = 1e-2\nseed = 18446744073709551615\n";
    write_file("odd.toml", odd, sizeof(odd) - 1);
    expect_fields(run_json(0, TINY "--run odd.toml"), "steps=2");
    expect_said(ZERO_TRAIN, 2, TINY "--run odd.toml --run odd.toml", "--run is given twice");
    expect_said(ZERO_TRAIN, 2, "--run .", "is a folder");
    write_file("wrong.toml", "steps = 3\n[optimizer]\n", 22);
    expect_said(ZERO_TRAIN, 2, "--run wrong.toml", "line 2: \"[optimizer]\" is not NAME = VALUE");
    write_file("wrong.toml", "steps = three\n", 14);
    expect_said(ZERO_TRAIN, 2, "--run wrong.toml", "line 1: the value of steps is not a string");
    expect_said(ZERO_TRAIN, 2, "--run none.toml", "--run none.toml: cannot open it");
}

/* What the run would plan and refuse, and nothing is left of it. */
TEST(dry_runs) {
    static const char *const ways[] = {"--stage 0", "--stage 3 --ranks 2 --offload-optimizer cpu",
                                       "--dtype bf16 --grad-accum 2"};
    for (size_t i = 0; i < N_OF(ways); i++) {
        json_t *real = run_json(0,
                                TINY "--steps 3 --checkpoint-dir real --memory-snapshot real.csv "
                                     "--trace real.json %s",
                                ways[i]);
        assert_int_equal(system("rm -r real*"), 0);
        json_t *dry = run_json(0,
                               TINY "--steps 3 --dry-run --log dry.jsonl --trace dry.json "
                                    "--checkpoint-dir dry --memory-snapshot dry.csv %s",
                               ways[i]);
        expect_fields(dry, "result=planned steps=0 weights_xxh3=absent");
        for (int tier = 0; tier < 2; tier++) {
            const char *name = tier == 0 ? "device" : "host";
            assert_true(number(dry, "planned_peak_bytes.%s.live", name) ==
                        number(real, "planned_peak_bytes.%s.live", name));
        }
        assert_int_equal(system("! ls -d dry* 2>/dev/null"), 0);
    }
    assert_ran(0, TINY "--steps 3 --dry-run");
    expect_out("planned      step 1 to 3: device |Nothing was trained (--dry-run)");
    expect_said(ZERO_TRAIN, 1, TINY "--steps 3 --dry-run --device-memory 64KiB", "does not fit");
    expect_said(ZERO_TRAIN, 2, TINY "--steps 3 --dry-run --checkpoint-dir none/dry",
                "--checkpoint-dir none/dry: ");
    expect_said(ZERO_TRAIN, 2, TINY "--dry-run --log none/log", "cannot write --log none/log");
    expect_said(ZERO_TRAIN, 2, TINY "--dry-run --freeze nothing", "names no parameter");
    expect_said(ZERO_TRAIN, 2, TINY "--dry-run --tensorboard text", "--tensorboard text: ");
}

/* Rates of each schedule with warm-up; a file's schedule gives way to another of an option, and
 * what it leaves out is DeepSpeed's: a logarithmic rise. */
TEST(schedules) {
    static const struct {
        const char *options;
        double rates[5];
    } cases[] = {{"--schedule linear --warmup 2", {0, 0.5, 1, 2 / 3.0, 1 / 3.0}},
                 {"--schedule linear --warmup 0", {1, 0.8, 0.6, 0.4, 0.2}},
                 {"--schedule constant --warmup 4", {0, 0.25, 0.5, 0.75, 1}},
                 {"--schedule constant", {1, 1, 1, 1, 1}},
                 {"--config decay.json", {0.5, 0.6, 0.7, 0.65, 0.6}},
                 {"--config decay.json --schedule constant", {1, 1, 1, 1, 1}},
                 {"--config log.json --warmup 4", {0, 0.5, 0.792481250360578, 1, 1}},
                 {"--config auto.json", {1, 1, 1, 1, 1}},
                 {"--config line.json", {1, 0.8, 0.6, 0.4, 0.2}},
                 {"--config line.json --lr 0.01", {0.01, 0.008, 0.006, 0.004, 0.002}}};
    static const char line_file[] =
        "{\"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": {\"type\": \"WarmupDecayLR\"}}";
    static const char log_file[] = "{\"scheduler\": {\"type\": \"WarmupLR\"}}";
    static const char auto_file[] = "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
                                    "{\"warmup_num_steps\": \"auto\"}}}";
    static const char decay[] =
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 0.5,"
        " \"warmup_max_lr\": 0.7, \"warmup_num_steps\": 2, \"total_num_steps\": 6,"
        " \"warmup_type\": \"linear\"}}}";
    write_file("decay.json", decay, sizeof(decay) - 1);
    write_file("line.json", line_file, sizeof(line_file) - 1);
    write_file("log.json", log_file, sizeof(log_file) - 1);
    write_file("auto.json", auto_file, sizeof(auto_file) - 1);
    for (size_t i = 0; i < N_OF(cases); i++) {
        char lines[8192], *rest = lines;
        assert_ran(0, TINY "--steps 5 --lr 1 --log rates.jsonl --quiet %s", cases[i].options);
        read_file("rates.jsonl", lines, sizeof(lines));
        for (size_t k = 0; k < 5; k++)
            assert_float_equal(number(kept_json(strsep(&rest, "\n")), "lr"), cases[i].rates[k],
                               1e-9);
        if (strcmp(cases[i].options, "--config decay.json") == 0)
            assert_said("the rate of the file", "--lr 1 has no effect: the rate after warm-up is");
    }
    assert_ran(0, TINY "--steps 5 --log rates.jsonl --config line.json");
    assert_said("defaults of DeepSpeed", "lr 0.001, betas[1] 0.999, warmup_max_lr 0.001|"
                                         "warmup_num_steps is absent");
    assert_ran(0, TINY "--steps 5 --config no.json");
    assert_said("no scheduler", "no.json has no scheduler, and is taken with zero-train's");
}

/* The file counts, and options count more, wherever they stand. */
TEST(options_override_config) {
    char line[1024];
    expect_fields(run_json(0, "--stage 1 --config good.json " TINY "--steps 2"),
                  "stage=1 micro_batch=3");
    expect_fields(run_json(0, TINY "--config good.json --steps 2 --log steps.jsonl"), "stage=2");
    read_file("steps.jsonl", line, sizeof(line));
    assert_has(line, "\"stall\""); /* wall_clock_breakdown */
    assert_said("wall_clock_breakdown", "step 2/2|stall");
}

/* Output that cannot be written is a failed run, and not a quiet one. JSON is UTF-8; the names of
 * files need not be. */
TEST(full_disk) {
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(symlink("/dev/full", "full.pickle") | symlink("/dev/full", "log\xff"), 0);
    assert_ran(1, TINY "--steps 2 --memory-snapshot full.pickle");
    assert_said("--memory-snapshot", "full.pickle|No space left");
    json_t *object = run_json(1, TINY "--steps 2 --log log\xff");
    assert_has(text(object, "message"), "log\\xff: No space left");
    assert_int_equal(run_after("exec >/dev/full;", TINY "--steps 1 --json"), 1);
}

/* ---- files for TensorBoard --------------------------------------------------------------- */

/* CRC-32C by way of polynomials: the remainder of the bits, each byte's lowest first, that follow
 * 32 ones; rotated and shifted as the form has it. */
static uint32_t masked_sum(const unsigned char *bytes, size_t n) {
    uint32_t rest = UINT32_MAX, turned = 0;
    for (size_t i = 0; i < 8 * n; i++) {
        bool bit = (bytes[i / 8] >> i % 8 & 1) != 0;
        bool top = (rest & UINT32_C(0x80000000)) != 0;
        rest = rest << 1 ^ (bit != top ? UINT32_C(0x1edc6f41) : 0);
    }
    for (int i = 0; i < 32; i++)
        turned |= (rest >> i & 1) << (31 - i);
    turned = ~turned;
    return (turned >> 15 | turned << 17) + UINT32_C(0xa282ead8);
}

/* The value of a scalar in an event: behind its tag, a byte for its key and four of a float. */
static double scalar_of(const unsigned char *event, size_t n, const char *tag) {
    const unsigned char *at = memmem(event, n, tag, strlen(tag));
    float value = NAN;
    if (at == NULL)
        return NAN;
    at += strlen(tag);
    assert_int_equal(*at, 2 << 3 | 5);
    memcpy(&value, at + 1, sizeof(value));
    return value;
}

/* Records of a file whose checksums are right: scalars of a tag, in order. Returns how many. */
static size_t scalars_of(const unsigned char *bytes, size_t n_bytes, const char *tag,
                         double *values, size_t most) {
    size_t n = 0;
    for (size_t at = 0; at < n_bytes;) {
        uint64_t length;
        uint32_t sum;
        memcpy(&length, bytes + at, 8);
        memcpy(&sum, bytes + at + 8, 4);
        assert_int_equal(sum, masked_sum(bytes + at, 8));
        assert_true(length <= n_bytes - at - 16);
        memcpy(&sum, bytes + at + 12 + length, 4);
        assert_int_equal(sum, masked_sum(bytes + at + 12, length));
        double value = scalar_of(bytes + at + 12, length, tag);
        if (!isnan(value) && n < most)
            values[n++] = value;
        at += 16 + length;
    }
    return n;
}

static size_t scalars_in_files(const char *tag, double *values, size_t most) {
    static char bytes[1 << 16];
    size_t n = 0;
    glob_t names;
    assert_int_equal(glob("events/*", 0, NULL, &names), 0);
    for (size_t i = 0; i < names.gl_pathc; i++) {
        struct stat about;
        assert_int_equal(stat(names.gl_pathv[i], &about), 0);
        read_file(names.gl_pathv[i], bytes, sizeof(bytes));
        n += scalars_of((unsigned char *)bytes, (size_t)about.st_size, tag, values + n, most - n);
    }
    globfree(&names);
    return n;
}

/* What --log has, also of a run that goes on. */
TEST(tensorboard) {
    static const char *const tags[][2] = {{"train/loss", "loss"}, {"val/loss", "val_loss"}};
    static char lines[1 << 15];
    assert_int_equal(masked_sum((const unsigned char *)"123456789", 9),
                     (UINT32_C(0xe3069283) >> 15 | UINT32_C(0xe3069283) << 17) +
                         UINT32_C(0xa282ead8));
    for (int steps = 3; steps <= 5; steps += 2)
        assert_ran(0,
                   TINY "--steps %d --val-data text --eval-every 2 --checkpoint-dir tb %s --log "
                        "tb.jsonl --tensorboard events",
                   steps, steps > 3 ? "--resume" : "");
    read_file("tb.jsonl", lines, sizeof(lines));
    double values[2][16] = {{0}};
    size_t n[2], seen[2] = {0};
    for (int i = 0; i < 2; i++)
        n[i] = scalars_in_files(tags[i][0], values[i], 16);
    for (char *rest = lines, *line = strsep(&rest, "\n"); line != NULL && *line != '\0';
         line = strsep(&rest, "\n"))
        for (int i = 0; i < 2; i++) {
            const json_t *value = json_object_get(kept_json(line), tags[i][1]);
            if (value != NULL)
                assert_float_equal(values[i][seen[i]++], json_number_value(value), 1e-6);
        }
    assert_true(seen[0] == 5 && n[0] == 5 && n[1] == seen[1] && n[1] >= 3);
    assert_ran(2, TINY "--steps 1 --tensorboard text/none");
    assert_said("a file is no folder", "--tensorboard text/none");
}

/* ---- pictures of losses ------------------------------------------------------------------- */

TEST(plot_of_losses) {
    static char picture[1 << 18];
    assert_ran(2, TINY "--plot p.svg");
    assert_said("without a log", "--plot|--log");
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    static const char *const logs[] = {"p.jsonl", "p.csv"};
    for (int i = 0; i < 2; i++) {
        assert_ran(0, TINY "--steps 5 --val-data text --plot p.svg --log %s", logs[i]);
        read_file("p.svg", picture, sizeof(picture));
        assert_has(picture, ">validation loss<");
        assert_has(picture, ">learning rate<");
        unlink("p.svg");
        assert_ran(0, "--plot again.svg --log %s", logs[i]);
        read_file("again.svg", picture, sizeof(picture));
        assert_has(picture, ">validation loss<");
    }
    assert_ran(2, "--plot p.svg --log text");
    assert_said("no log", "--log text has no line with a step and a loss");
    assert_ran(2, "--plot p.gif --log p.csv");
    assert_said("another form", "NAME.svg, NAME.png");
    assert_ran(2, TINY "--plot p.csv.svg --log p.csv.svg");
}

/* ---- memory snapshots ------------------------------------------------------------------- */

/* The most bytes alive at once of a step: the naive way. Names have no commas here. */
static double max_live(const char *path, unsigned step, size_t *n_p) {
    static double lower[4096], upper[4096], size[4096];
    char line[512];
    double most = 0;
    unsigned last_step;
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    for (; fgets(line, sizeof(line), file) != NULL; n++) {
        assert_true(n < 4096);
        assert_int_equal(sscanf(line, "%*u,%lf,%lf,%lf,%*[^,],%*[^,],%*[^,],%*u,%*u,%*u,%*u,%u",
                                &lower[n], &upper[n], &size[n], &last_step),
                         4);
        assert_true(lower[n] < upper[n] && last_step == step);
    }
    fclose(file);
    for (size_t i = 0; i < n; i++) {
        double live = 0;
        for (size_t k = 0; k < n; k++)
            live += lower[k] <= lower[i] && lower[i] < upper[k] ? size[k] : 0;
        most = live > most ? live : most;
    }
    *n_p = n;
    return most;
}

/* The step that is recorded, the first that follows its plan, has the run's peak. At stage 3 the
 * first step gathers without foresight, and the second is planned by it. */
TEST(memory_snapshot_csv) {
    for (int stage = 0; stage <= 3; stage++) {
        size_t n[2];
        json_t *object = run_json(0,
                                  TINY "--steps 4 --stage %d --ranks 2 --grad-accum 2 "
                                       "--recompute %s --memory-snapshot lives.csv",
                                  stage, stage % 2 ? "unit" : "none");
        double peak = number(object, "peak_bytes.device.live");
        assert_true(max_live("lives.csv", stage == 3 ? 3 : 2, &n[0]) == peak);
        assert_true(max_live("lives.rank1.csv", stage == 3 ? 3 : 2, &n[1]) == peak);
        assert_true(n[0] > 50 && n[0] == n[1]);
        assert_said("--memory-snapshot", "lives.rank1.csv");
    }
}

/* The largest value of a counter of the device's memory. */
static double counter_peak(json_t *trace, const char *name) {
    double peak = 0;
    size_t i;
    json_t *event;
    json_array_foreach(field(trace, "traceEvents"), i, event) {
        if (strcmp(text(event, "ph"), "C") == 0 && number(event, "pid") == 1 &&
            strcmp(text(event, "name"), name) == 0 && number(event, "args.bytes") > peak)
            peak = number(event, "args.bytes");
    }
    return peak;
}

TEST(memory_snapshot_chrome) {
    static const char *const tags[] = {"parameters", "optimizer_state", "gradient_buckets",
                                       "activations"};
    static char trace_text[1 << 22];
    json_t *object = run_json(0, TINY "--steps 3 --stage 3 --ranks 2 --memory-snapshot t.json");
    read_file("t.json", trace_text, sizeof(trace_text));
    json_t *device = field(object, "peak_bytes.device"), *trace = kept_json(trace_text);
    assert_true(counter_peak(trace, "live") == number(device, "live"));
    for (size_t i = 0; i < 4; i++)
        assert_true(counter_peak(trace, tags[i]) == number(device, "tags.%s", tags[i]));
}

TEST(memory_snapshot_pickle) {
    char command[512];
    if (system("python3 -c 'import pickle' 2>/dev/null") != 0) {
        print_message("skipped: there is no python3 to read a pickle with\n");
        skip();
    }
    json_t *object = run_json(0, TINY "--steps 2 --stage 2 --ranks 2 --memory-snapshot t.pickle");
    snprintf(command, sizeof(command), "python3 '%s' t.pickle 0:peak=%.0f,pending=0",
             CHECK_MEMORY_VIZ, number(object, "peak_bytes.device.live"));
    assert_int_equal(WEXITSTATUS(system(command)), 0);
}

/* Of a single step, and of one that fails, there is what there is. */
TEST(memory_snapshot_of_short_runs) {
    char text_of[4096];
    assert_ran(0, TINY "--steps 1 --memory-snapshot one.csv --quiet");
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    read_file("one.csv", text_of, sizeof(text_of));
    assert_has(text_of, "optimizer_state,persistent,");
    assert_ran(1, TINY "--steps 3 --device-memory 256KiB --plan-check off "
                       "--memory-snapshot failed.csv");
    assert_said("--device-memory", "does not fit");
    read_file("failed.csv", text_of, sizeof(text_of));
    assert_has(text_of, "optimizer_state,persistent,");
}

/* ---- the process ---------------------------------------------------------------------------- */

/* What a run writes never takes the place of what it reads. */
TEST(output_over_data) {
    static const char *const outputs[] = {"--log own.csv", "--log ./link.csv",
                                          "--memory-snapshot own.csv",
                                          "--ranks 2 --memory-snapshot base.csv"};
    assert_int_equal(system("cp text own.csv; cp text base.rank1.csv; ln -s own.csv link.csv"), 0);
    for (size_t i = 0; i < N_OF(outputs); i++) {
        assert_ran(2, TINY "own.csv base.rank1.csv --steps 2 %s", outputs[i]);
        assert_said(outputs[i], "are the same file");
        assert_int_equal(system("cmp text own.csv && cmp text base.rank1.csv"), 0);
    }
}

/* What is printed does not get into a file that took the place of a closed standard file. */
TEST(closed_standard_files) {
    static const struct {
        const char *closed;
        int expected;
    } cases[] = {{"2>&-", 0}, {">&-", 1}, {"<&- >&- 2>&-", 1}};
    for (size_t i = 0; i < N_OF(cases); i++) {
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
    assert_ran(0, "--help");
    expect_out("--device-memory");
    assert_string_equal(err, "");
    assert_ran(0, "--version");
    expect_out("zero-train 0.");
    assert_ran(0, TINY "--steps 2");
    expect_out(
        "run          layers=2|stage 0, 1 rank, fp32|loss         5.|steps        2, 0 skipped; |"
        "FLOP/s per rank, compute |memory       device |(planned |weights      xxh3 ");
    size_t n_lines = 0;
    for (const char *at = out; (at = strchr(at, '\n')) != NULL; at++)
        n_lines++;
    assert_int_equal(n_lines, 5);
    assert_said("", "step 2/2  loss 5.|  compute |  device |iB  0:00 left");
    assert_ran(0, TINY "--steps 2 --verbose");
    expect_out("xxh3|largest hole|optimizer_state|time         compute|data         1 file");
    assert_ran(0, TINY "--steps 1 --verbose --offload-optimizer cpu --offload-ratio 0.1");
    expect_out(" on host in 1 sub-group\n");
}

const test_group_t test_group = {prepare, leave_test_folder};
