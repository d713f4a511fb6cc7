/*
 * Options of the library are its rows; what is here are rows of the run around it, and checks that
 * involve several. Options go over a file: what was given is set again over what the file says.
 */
#include "examples/train/options.h"
#include "examples/train/auto.h"
#include "examples/train/checkpoint.h"
#include "examples/train/io_settings.h"
#include "examples/train/kept.h"
#include "examples/train/launch.h"
#include "examples/train/run_file.h"
#include "examples/train/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/args.h"
#include "examples/common/device.h"
#include "examples/common/files.h"
#include "examples/common/gnuplot.h"

#define DEFAULT_MODEL "layers=4,channels=256,heads=4,seq=256,vocab=256"
#define USUAL_SEQ ((size_t)2048)
#define MOST_THREADS 1024
#define MOST_TIMEOUT_SECONDS 86400

/* ---- values that are more than their field ---------------------------------------------- */

static zr_status_t take_data(void *object, const char *label, const char *text,
                             const zr_log_t *log) {
    train_options_t *options = object;
    (void)label, (void)log;
    options->data_paths[options->n_data_paths++] = text;
    return ZR_OK;
}

static zr_status_t take_val_data(void *object, const char *label, const char *text,
                                 const zr_log_t *log) {
    train_evaluation_options_t *evaluation = &((train_options_t *)object)->evaluation;
    (void)label, (void)log;
    evaluation->paths[evaluation->n_paths++] = text;
    return ZR_OK;
}

/* Their range is known with the model. */
static zr_status_t take_seq(void *object, const char *label, const char *text,
                            const zr_log_t *log) {
    (void)label, (void)log;
    ((train_options_t *)object)->seq_text = text;
    return ZR_OK;
}

static zr_status_t take_seq_min(void *object, const char *label, const char *text,
                                const zr_log_t *log) {
    (void)label, (void)log;
    ((train_options_t *)object)->seq_min_text = text;
    return ZR_OK;
}

static zr_status_t take_overlap(void *object, const char *label, const char *text,
                                const zr_log_t *log) {
    static const char *const names[] = {"auto", "on", "off"};
    train_options_t *options = object;
    size_t choice = 0;
    ZR_TRY(args_choice(label, text, names, 3, log, &choice));
    options->overlap = (train_overlap_t)choice;
    options->config.overlap_comm = options->overlap != TRAIN_OVERLAP_OFF;
    return ZR_OK;
}

static zr_status_t take_device(void *object, const char *label, const char *text,
                               const zr_log_t *log) {
    (void)label;
    ZR_TRY(device_check(text, log));
    ((train_options_t *)object)->device = text;
    return ZR_OK;
}

static zr_status_t take_comm(void *object, const char *label, const char *text,
                             const zr_log_t *log) {
    static const char *const names[] = {"threads", "nccl", "processes"};
    train_options_t *options = object;
    size_t choice = 0;
    if (strcmp(text, "mpi") == 0)
        text = "processes"; /* its former name */
    ZR_TRY(args_choice(label, text, names, 3, log, &choice));
    options->comm = (train_comm_t)(choice + TRAIN_COMM_THREADS);
    options->use_nccl = options->comm == TRAIN_COMM_NCCL;
    return ZR_OK;
}

static zr_status_t take_comm_timeout(void *object, const char *label, const char *text,
                                     const zr_log_t *log) {
    size_t seconds = 0;
    ZR_TRY(args_count(label, text, 1, MOST_TIMEOUT_SECONDS, log, &seconds));
    ((train_options_t *)object)->comm_timeout_ms = (int)(seconds * 1000);
    return ZR_OK;
}

static zr_status_t take_trace_steps(void *object, const char *label, const char *text,
                                    const zr_log_t *log) {
    (void)label;
    return train_trace_take_steps(object, text, log);
}

/* ---- rows -------------------------------------------------------------------------------- */

static const zr_option_when_t on_nvme = {
    zr_config_uses_nvme,
    "nothing is offloaded to NVMe; add --offload-optimizer nvme, --offload-params nvme or "
    "--offload-activations nvme",
    false};

static const zr_option_choice_t recomputes[] = {{"none", ZR_RECOMPUTE_CHEAP, NULL},
                                                {"unit", ZR_RECOMPUTE_UNIT, NULL},
                                                {"never", ZR_RECOMPUTE_NEVER, NULL},
                                                {NULL, 0, NULL}};
static const zr_option_choice_t sum_orders[] = {
    {"rank-order", ZR_SUM_RANK_ORDER, NULL}, {"any", ZR_SUM_ANY, NULL}, {NULL, 0, NULL}};
static const zr_option_choice_t engines[] = {
    {"own", ZR_NN_ENGINE_OWN, NULL}, {"cudnn", ZR_NN_ENGINE_CUDNN, NULL}, {NULL, 0, NULL}};
static const zr_option_choice_t places[] = {{"none", ZR_OFFLOAD_NONE, NULL},
                                            {"cpu", ZR_OFFLOAD_CPU, NULL},
                                            {"nvme", ZR_OFFLOAD_NVME, NULL},
                                            {NULL, 0, NULL}};
static const zr_option_choice_t overlaps[] = {{"auto", TRAIN_OVERLAP_AUTO, NULL},
                                              {"on", TRAIN_OVERLAP_ON, NULL},
                                              {"off", TRAIN_OVERLAP_OFF, NULL},
                                              {NULL, 0, NULL}};
static const zr_option_choice_t data_kinds[] = {
    {"auto", 0, NULL}, {"text", 1, NULL}, {NULL, 0, NULL}};
static const zr_option_choice_t resumptions[] = {
    {"continue", 0, NULL}, {"restart", 1, NULL}, {NULL, 0, NULL}};

static const zr_option_choice_t signatures[] = {{"off", TRAIN_SIGN_OFF, NULL},
                                                {"write", TRAIN_SIGN_WRITE, NULL},
                                                {"require", TRAIN_SIGN_REQUIRE, NULL},
                                                {NULL, 0, NULL}};
static const zr_option_choice_t lora_bases[] = {{"dtype", TRAIN_LORA_BASE_DTYPE, NULL},
                                                {"bf16", TRAIN_LORA_BASE_BF16, NULL},
                                                {"8bit", TRAIN_LORA_BASE_8BIT, NULL},
                                                {"nf4", TRAIN_LORA_BASE_NF4, NULL},
                                                {NULL, 0, NULL}};
static const zr_option_choice_t damages[] = {
    {"refuse", 0, NULL}, {"previous", 1, NULL}, {NULL, 0, NULL}};

enum {
    MODEL = 1,
    RANKS,
    MACHINE,
    OFFLOAD,
    STEP,
    EVALUATION,
    CHECKPOINTS,
    OUTPUT,
    AGREE = ZR_OPTION_AGREE,
    KEPT = ZR_OPTION_KEPT
};
static const char *const headers[] = {NULL,
                                      "What to train:",
                                      "How it is spread over ranks:",
                                      "The machine:",
                                      "Offload (cpu: to host memory, nvme: to files on drives):",
                                      "The step:",
                                      "Evaluation:",
                                      "Checkpoints:",
                                      "Output:"};

#define AT(member) .offset = offsetof(train_options_t, member)

static const zr_option_t own[] = {
    {"model", AT(model), .type = ZR_OPTION_STRING, .group = MODEL, .arg = "NAME|PATH|SIZES",
     .help = "gpt2, llama-3.2-1b and other usual names, a config.json of Hugging Face or a folder "
             "with one, or sizes such as " DEFAULT_MODEL " (default with --resume: that of the "
             "checkpoint)",
     .more = "[all names and sizes](../guide/train.md#models)"},
    {"data", .type = ZR_OPTION_STRING, .flags = ZR_OPTION_SEVERAL, .group = MODEL, .arg = "PATH...",
     .initial = "", .take = take_data,
     .help = "text files or folders (a token is a byte), llm.c's token files, or documents, as "
             "examples/data/make_documents.py makes them; several paths are allowed",
     .more = "required ([train.md](../guide/train.md#data))"},
    {"data-as", AT(data_is_text), .type = ZR_OPTION_SWITCH, .flags = AGREE, .choices = data_kinds,
     .group = MODEL,
     .help = "what files are: auto knows tokens and documents by their first bytes and refuses "
             "JSON and compressed files; with text, each byte of any file is a token"},
    {"data-weights", AT(data_weights_text), .type = ZR_OPTION_STRING, .flags = AGREE,
     .group = MODEL, .arg = "W,W...", .initial = "all paths are one row",
     .help = "relative frequency of sequences from each path of --data: 0.7,0.3",
     .more = "([train.md](../guide/train.md#data))"},
    {"seq", AT(seq), .type = ZR_OPTION_COUNT, .flags = AGREE | KEPT, .group = MODEL,
     .arg = "TOKENS", .initial = "the seq of sizes; of named Llama models and files at most 2048",
     .take = take_seq, .help = "tokens per sequence"},
    {"seq-min", AT(seq_min), .type = ZR_OPTION_COUNT, .flags = AGREE | KEPT, .group = MODEL,
     .arg = "TOKENS", .initial = "--seq: all have the same length", .take = take_seq_min,
     .help = "vary the length: cut each micro-batch's sequences to their first TOKENS to --seq "
             "tokens, drawn from the seed",
     .more = "as below"},
    {"steps", AT(steps), .type = ZR_OPTION_COUNT, .flags = AGREE | KEPT, .least = 1, .group = MODEL,
     .arg = "N", .help = "optimizer steps"},
    {"seed", AT(seed), .type = ZR_OPTION_U64, .flags = AGREE | KEPT, .group = MODEL, .arg = "N",
     .help = "of the initial weights and of the order and lengths of the data"},
    {"freeze", AT(freeze), .type = ZR_OPTION_STRING, .flags = AGREE | KEPT, .group = MODEL,
     .arg = "NAMES",
     .help = "parameters that are not trained, by name or prefix before a dot: wte,h.0"},
    {"lora", AT(lora_text), .type = ZR_OPTION_STRING, .flags = AGREE, .group = MODEL,
     .arg = "rank=N,alpha=X,targets=NAMES", .initial = "none",
     .help =
         "train only low-rank adapters of these linear layers; names as in PEFT (q_proj,v_proj or "
         "all-linear). Defaults: rank 8, alpha 8, all-linear; with --resume: as in the checkpoint",
     .more = "[fine-tune.md](../guide/fine-tune.md#adapters-lora)"},
    {"lora-base", AT(lora_base), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = lora_bases,
     .group = MODEL,
     .help = "with --lora: encoding of the layers' weights when stored, gathered and offloaded; "
             "decoded to --dtype for computing",
     .more = "[fine-tune.md](../guide/fine-tune.md#frozen-weights-in-8-or-4-bits)"},

    {"hardware", AT(hardware_path), .type = ZR_OPTION_STRING, .group = RANKS, .arg = "FILE",
     .initial = "those of an assumed one",
     .help = "what auto plans with: rates of this machine, as zero-bench --save-hardware FILE has "
             "measured them with as many ranks",
     .more = "Memory sizes are read from the machine itself. Refused without `auto`"},
    {"ranks", AT(n_ranks), .type = ZR_OPTION_INT, .least = 1, .most = TRAIN_MOST_RANKS,
     .group = RANKS, .arg = "N", .help = "ranks, as threads of this process"},
    {"sums", AT(sums), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = sum_orders,
     .group = RANKS,
     .help = "order of summation over ranks. rank-order: bitwise reproducible everywhere; any: "
             "with --comm nccl, NCCL's order and rounding, which sends less between nodes",
     .more = "without NCCL `any` is warned of ([gpu.md](../internals/gpu.md))"},
    {"overlap-comm", AT(overlap), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = overlaps,
     .group = RANKS, .take = take_overlap,
     .help =
         "compute while ranks gather and reduce; auto: on GPUs, and on the host where ranks are "
         "on several machines",
     .more = "those of one machine share its cores and memory "
             "([clusters.md](../guide/clusters.md)). The "
             "weights are the same bits. `zero_optimization.overlap_comm`: false is `off`"},
    {"recompute", AT(recompute), .type = ZR_OPTION_CHOICE, .flags = AGREE | ZR_OPTION_AUTO,
     .choices = recomputes, .group = RANKS,
     .help =
         "in backward. none: only outputs of norms and activation functions; unit: all but each "
         "layer's input; never: nothing; auto: the fastest of these that fits into memory",
     .more = "`none`, `unit` and `never` give the same bits on the host. On a GPU with bf16 `unit` "
             "and `never` do, and `none` where cuBLASLt has no GELU"},
    {"attention", AT(attention), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = engines,
     .group = RANKS,
     .help = "on a GPU: whose kernels compute attention; cudnn: cuDNN's, the library's own where "
             "it has none (fp32, documents, heads of more than 128 channels)",
     .more = "other bits, and more memory in backward, which is cuDNN's on compute capability 9. "
             "cuDNN 9.16 or later is loaded; its version is the same on all ranks "
             "([gpu.md](../internals/gpu.md#kernels))"},

    {"device", AT(device), .type = ZR_OPTION_STRING, .group = MACHINE, .arg = "auto|host|cuda[:N]",
     .take = take_device, .help = "where it runs",
     .more =
         "`auto` takes the first GPU, or the host if no GPU can be used, and says which and why; "
         "`cuda` without a GPU ends with 2 ([gpu.md](../internals/gpu.md)). All ranks use the same "
         "GPU"},
    {"matmul-choices", AT(matmul_choices_path), .type = ZR_OPTION_STRING, .group = MACHINE,
     .arg = "FILE", .initial = "the first that is proposed",
     .help = "on a GPU: use the algorithms of matrix products that zero-bench matmul "
             "--save-choices FILE has measured there; the same file on all ranks",
     .more = "Another file gives other bits ([gpu.md](../internals/gpu.md#kernels))"},
    {"threads", AT(n_threads), .type = ZR_OPTION_COUNT, .most = MOST_THREADS, .group = MACHINE,
     .arg = "N", .help = "of each rank; 0: the cores, divided by the ranks",
     .more = "Another number gives other bits, as matrix products add in another order "
             "([clusters.md](../guide/clusters.md))"},
    {"comm", .type = ZR_OPTION_STRING, .group = MACHINE, .arg = "threads|nccl|processes",
     .initial = "threads", .take = take_comm,
     .help = "how ranks exchange data: threads of this process; nccl: with a GPU each; "
             "processes: on the host, as mpirun or you start them, and by default there",
     .more =
         "`mpi` is the former name of `processes`. Of processes with GPUs the default is "
         "`nccl`, each with one from that of `--device` on ([clusters.md](../guide/clusters.md))"},
    {"comm-timeout", .type = ZR_OPTION_STRING, .group = MACHINE, .arg = "SECONDS", .initial = "60",
     .take = take_comm_timeout, .help = "how long a rank waits for other ranks",
     .more = "or for a running collective; a rank that is silent for 0.6 of it counts as lost "
             "([clusters.md](../guide/clusters.md))"},
    {"comm-secret", AT(comm_secret), .type = ZR_OPTION_STRING, .group = MACHINE, .arg = "FILE",
     .initial = "",
     .help = "file with the shared secret (at least 16 bytes) for ranks that are processes and for "
             "--checkpoint-sign",
     .more = "connections without it are refused; also the variable `ZR_COMM_SECRET` "
             "([clusters.md](../guide/clusters.md#who-may-join))"},
    {"comm-bind", AT(comm_bind), .type = ZR_OPTION_STRING, .group = MACHINE, .arg = "ADDRESS",
     .initial = "the one that leads to MASTER_ADDR",
     .help = "for ranks that are processes: numeric address of this machine to listen at",
     .more =
         "`0.0.0.0` or `::`: at all of them ([clusters.md](../guide/clusters.md#who-may-join))"},

    {"offload-activations", AT(offload_activations), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | ZR_OPTION_AUTO, .choices = places, .group = OFFLOAD,
     .help = "with --recompute unit: where each layer's input waits for backward; auto: divided "
             "among all tiers",
     .more = "[offload.md](../guide/offload.md)"},
    {"activations-on-device", AT(activations_on_device), .type = ZR_OPTION_COUNT, .flags = AGREE,
     .group = OFFLOAD, .arg = "LAYERS",
     .help = "with --offload-activations: the inputs of the last LAYERS layers stay on the device; "
             "not with --order block"},
    {"activations-in-host", AT(activations_in_host), .type = ZR_OPTION_COUNT, .flags = AGREE,
     .group = OFFLOAD, .arg = "LAYERS",
     .help = "with --offload-activations nvme: of the other layers, the inputs of the last LAYERS "
             "wait in host memory"},
    {"io-settings", AT(io_settings_path), .type = ZR_OPTION_STRING, .group = OFFLOAD, .arg = "FILE",
     .help = "use the best drive settings found by zero-bench io --save-settings FILE, and its "
             "folders if there is no --nvme-path",
     .more =
         "request size, depth, batch and files per folder. It replaces what the file's `aio` and "
         "`nvme_path` say"},
    {"nvme-tbw", AT(nvme_tbw_bytes), .type = ZR_OPTION_BYTES, .flags = ZR_OPTION_OF_TRANSFERS,
     .least = 1, .group = OFFLOAD, .arg = "SIZE", .initial = "", .when = {&on_nvme},
     .help = "rated lifetime writes of the drives, such as 600TB: reports how long they last at "
             "this rate"},

    {"run", AT(run_path), .type = ZR_OPTION_STRING, .flags = ZR_OPTION_ONCE, .group = MODEL,
     .arg = "FILE",
     .help = "options of the run in a file: FILE.toml with lines of name = value, any other as an "
             "object of JSON; options on the command line override it",
     .more = "[train.md](../guide/train.md#options-in-a-file)"},
    {"config", AT(config_path), .type = ZR_OPTION_STRING, .flags = ZR_OPTION_ONCE, .group = STEP,
     .arg = "FILE", .help = "DeepSpeed's JSON; options override it"},

    {"val-data", .type = ZR_OPTION_STRING, .flags = ZR_OPTION_SEVERAL, .group = EVALUATION,
     .arg = "PATH", .initial = "", .take = take_val_data,
     .help = "evaluate the model on these files or folders, which are read like --data but not "
             "trained on: before the first step and after the last. Several times: several paths",
     .more = "Training is the same to the bit ([train.md](../guide/train.md#evaluate))"},
    {"eval-every", AT(evaluation.every), .type = ZR_OPTION_COUNT, .flags = AGREE, .least = 1,
     .group = EVALUATION, .arg = "STEPS", .initial = "never", .needs = "val-data",
     .help = "also evaluate every N steps"},
    {"eval-batches", AT(evaluation.n_batches), .type = ZR_OPTION_COUNT, .flags = AGREE, .least = 1,
     .group = EVALUATION, .arg = "N", .initial = "all there are", .needs = "val-data",
     .help = "evaluate the first N micro-batches of the validation data, counted over all ranks"},
    {"patience", AT(evaluation.patience), .type = ZR_OPTION_COUNT, .flags = AGREE, .least = 1,
     .group = EVALUATION, .arg = "N", .initial = "never", .needs = "eval-every",
     .help = "end the run after N consecutive evaluations without a new best loss"},
    {"keep-best", AT(evaluation.keep_best), .type = ZR_OPTION_FLAG, .flags = AGREE,
     .group = EVALUATION, .needs = "val-data",
     .help = "with --checkpoint-dir: save a checkpoint after each evaluation that has the lowest "
             "loss so far, and keep the last of them, whatever --checkpoint-keep says"},
    {"eval-only", AT(evaluation.only), .type = ZR_OPTION_FLAG, .flags = AGREE, .group = EVALUATION,
     .needs = "val-data",
     .help = "only evaluate the weights (with --resume, or the initial ones): without optimizer "
             "state, gradients and --data"},

    {"checkpoint-dir", AT(checkpoint.dir), .type = ZR_OPTION_STRING, .flags = AGREE,
     .group = CHECKPOINTS, .arg = "DIR",
     .help = "save the run in this folder: at its end, and on SIGTERM, SIGUSR1 or SIGINT",
     .more = "[checkpoints.md](../guide/checkpoints.md)"},
    {"checkpoint-every", AT(checkpoint.every), .type = ZR_OPTION_COUNT, .flags = AGREE, .least = 1,
     .group = CHECKPOINTS, .arg = "STEPS", .initial = "never", .needs = "checkpoint-dir",
     .help = "also save every N steps"},
    {"checkpoint-keep", AT(checkpoint.keep), .type = ZR_OPTION_COUNT, .flags = AGREE,
     .group = CHECKPOINTS, .arg = "N", .needs = "checkpoint-dir", .idle = "0",
     .help = "keep the newest N checkpoints only; 0: all"},
    {"checkpoint-async", AT(checkpoint.is_async), .type = ZR_OPTION_FLAG, .flags = AGREE,
     .group = CHECKPOINTS, .needs = "checkpoint-dir",
     .help = "continue training while a checkpoint is written, if host memory has room for a copy "
             "of what "
             "is saved"},
    {"checkpoint-sign", AT(checkpoint.sign), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = signatures, .group = CHECKPOINTS, .needs = "checkpoint-dir",
     .help = "sign checkpoints with the secret of --comm-secret; require: also resume only from "
             "checkpoints signed with it",
     .more = "See [checkpoints.md](../guide/checkpoints.md#signed-checkpoints)"},
    {"resume", AT(checkpoint.resume), .type = ZR_OPTION_FLAG, .group = CHECKPOINTS,
     .needs = "checkpoint-dir",
     .help = "go on from the newest complete checkpoint of --checkpoint-dir, if there is one; it "
             "may have any number of ranks, stage, placement and dtype"},
    {"resume-data", AT(checkpoint.restarts_data), .type = ZR_OPTION_SWITCH, .choices = resumptions,
     .group = CHECKPOINTS, .needs = "resume",
     .help = "with --resume: continue in the data, which must be the same, or start any data from "
             "the beginning"},
    {"resume-damaged", AT(checkpoint.passes_damaged), .type = ZR_OPTION_SWITCH, .choices = damages,
     .group = CHECKPOINTS, .needs = "resume",
     .help = "with --resume: of a checkpoint whose data is damaged, refuse it, or set it aside and "
             "go on from the one before; that reads all data twice",
     .more = "See [checkpoints.md](../guide/checkpoints.md)"},

    {"log", AT(log_path), .type = ZR_OPTION_STRING, .group = OUTPUT, .arg = "FILE",
     .help = "write each step to this file: FILE.csv as a row of CSV, any other as a line of JSON",
     .more =
         "`step`, `loss`, `lr`, `norm`, `clip`, `skipped`, `tokens`, `step_ms`, `tokens_per_s`; of "
         "more ranks than one `slowest_rank` and `excess_ms` ([json.md](json.md#zero-train)); with "
         "`wall_clock_breakdown` also `time`. Of each evaluation `step`, `val_loss`, "
         "`val_perplexity`, `val_ms`, `best` (the lowest loss so far). CSV has a column for each "
         "of these, empty where a row has none. A file that is there is "
         "replaced; a run that goes "
         "on (`--resume`) writes behind the lines of steps that are done "
         "([checkpoints.md](../guide/checkpoints.md))"},
    {"tensorboard", AT(tensorboard_dir), .type = ZR_OPTION_STRING, .group = OUTPUT, .arg = "DIR",
     .help = "write the numbers of --log to a file in this folder that TensorBoard reads",
     .more = "as `train/loss`, `val/loss`, ...; each run makes a file of its own there"},
    {"plot", AT(plot_path), .type = ZR_OPTION_STRING, .group = OUTPUT, .arg = "FILE",
     .needs = "log",
     .help = "draw losses and learning rate of --log, at the end, as FILE.svg or FILE.png (needs "
             "gnuplot); with --log alone, those of a run that was",
     .more = "A run that goes on (`--resume`) draws the steps before it as well"},
    {"memory-snapshot", AT(memory_snapshot_path), .type = ZR_OPTION_STRING, .group = OUTPUT,
     .arg = "FILE",
     .help =
         "write what was allocated in a typical step, the first that followed its memory plan, "
         "or else the last: FILE.csv (device memory; for planners of offsets), FILE.json (for "
         "ui.perfetto.dev) or FILE.pickle (for pytorch.org/memory_viz); rank N > 0 writes "
         "FILE.rankN.csv and so on. Of a single step, all since the start; of a run that fails, "
         "the last as far as it came",
     .more = "([allocator.md](../internals/allocator.md)). A run that does no step, as the "
             "checkpoint has them all, "
             "warns, and leaves the file as it is"},
    {"trace", AT(trace_path), .type = ZR_OPTION_STRING, .group = OUTPUT, .arg = "FILE",
     .help = "write what ran when on every rank, for ui.perfetto.dev or chrome://tracing: kernels, "
             "collectives, copies, transfers of drives, what a rank waited for, and memory (of "
             "ranks that are processes, rank N > 0 writes NAME.rankN.json)",
     .more = "[trace.md](../internals/trace.md)"},
    {"trace-steps", .type = ZR_OPTION_STRING, .group = OUTPUT, .arg = "FIRST:LAST",
     .initial = "the first ten of the run", .needs = "trace", .take = take_trace_steps,
     .help = "with --trace: of these steps",
     .more = "A run that goes on after them (`--resume`) warns, and leaves the file as it is"},
    {"dry-run", AT(dry_run), .type = ZR_OPTION_FLAG, .flags = AGREE, .group = OUTPUT,
     .help = "check and plan the run as if it began, and end: nothing is allocated, trained or "
             "written; exit status and messages are those of the run as far as plan, data and a "
             "checkpoint's options tell them",
     .more = "with `--json` `result` is `planned`, with the planned peaks"},
    {"json", AT(json), .type = ZR_OPTION_FLAG, .group = OUTPUT,
     .help = "print the result as one JSON object", .more = "on standard output, and nothing else"},
    {"quiet", AT(quiet), .type = ZR_OPTION_FLAG, .group = OUTPUT,
     .help = "no progress and no summary; errors and warnings only"},
    {"verbose", AT(verbose), .type = ZR_OPTION_FLAG, .group = OUTPUT,
     .help = "the whole report at the end: data, time, what was sent, and memory by class and tag"},
    {"help", AT(help), .type = ZR_OPTION_FLAG, .group = OUTPUT, .help = "print this"},
    {"version", AT(version), .type = ZR_OPTION_FLAG, .group = OUTPUT,
     .help = "print the version and how it was built"},
};

const options_table_t train_table = {
    .program = "zero-train",
    .args = "--data PATH...",
    .doc = "Train a GPT-2 or a model of the Llama family with its optimizer state, gradients and "
           "parameters sharded over ranks."
           "\vExit status: 0 success, 1 the run failed, 2 bad usage or input. --man prints this as "
           "a page for man, --completion bash a script that completes options.",
    .headers = headers,
    .n_groups = sizeof(headers) / sizeof(headers[0]) - 1,
    .own = own,
    .n_own = sizeof(own) / sizeof(own[0]),
    .base_offset = offsetof(train_options_t, config),
    .word = "data",
    .known = train_known};

void train_options_describe(options_print_t *print, FILE *file) {
    train_options_t options = train_options_default();
    print(&train_table, &options, file);
}

void train_options_help(FILE *file) {
    train_options_describe(options_help, file);
}

/* ---- defaults and checks ---------------------------------------------------------------- */

train_options_t train_options_default(void) {
    train_options_t options = {.model = DEFAULT_MODEL,
                               .seed = 1,
                               .steps = 100,
                               .config = zr_config_default(),
                               .n_ranks = 1,
                               .device = "auto",
                               .comm_timeout_ms = 60 * 1000};
    options.config.schedule = (zr_schedule_t){.kind = ZR_SCHEDULE_WARMUP_COSINE,
                                              .warmup_steps = SIZE_MAX, /* of --steps */
                                              .warmup_min_ratio = 0.1,
                                              .cos_min_ratio = 0.1};
    return options;
}

/* Sizes are for this run. A published model of the Llama family is seldom trained on as many
 * positions as it has. */
static size_t usual_seq(const train_options_t *options) {
    size_t longest = zr_model_shape_sizes(&options->shape).seq;
    bool are_sizes = options->model != options->own_model && strchr(options->model, '=') != NULL &&
                     access(options->model, F_OK) != 0;
    bool is_limited = options->shape.kind == ZR_MODEL_DECODER && !are_sizes;
    return is_limited && longest > USUAL_SEQ ? USUAL_SEQ : longest;
}

static zr_status_t resolve_shape(train_options_t *options, const zr_log_t *log) {
    files_log_t named = {*log, "--model"};
    zr_log_t model_log = files_log(&named);
    ZR_TRY(zr_model_shape_read(options->model, &model_log, &options->shape));
    size_t longest = zr_model_shape_sizes(&options->shape).seq;
    if (options->seq_text != NULL)
        ZR_TRY(args_count("--seq", options->seq_text, 1, longest, log, &options->seq));
    if (options->seq == 0)
        options->seq = usual_seq(options);
    if (options->seq > longest)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--seq %zu: the model has %s; allowed: 1 to %zu; the nearest is %zu",
                       options->seq, zr_count_text(longest, "position").text, longest, longest);
    if (options->seq_min_text != NULL)
        ZR_TRY(args_count("--seq-min", options->seq_min_text, 1, options->seq, log,
                          &options->seq_min));
    if (options->seq_min == 0)
        options->seq_min = options->seq;
    if (options->seq_min > options->seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--seq-min %zu: sequences have at most %s (--seq); allowed: 1 to %zu; the "
                       "nearest is %zu",
                       options->seq_min, zr_count_text(options->seq, "token").text, options->seq,
                       options->seq);
    return ZR_OK;
}

static zr_status_t resolve_lora(train_options_t *options, const zr_log_t *log) {
    files_log_t named = {*log, "--lora"};
    zr_log_t lora_log = files_log(&named);
    if (options->lora_text == NULL && options->lora_base != TRAIN_LORA_BASE_DTYPE)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--lora-base %s: weights that are trained have the dtype of --dtype; add "
                       "--lora, which freezes them",
                       lora_bases[options->lora_base].name);
    if (options->lora_text == NULL)
        return ZR_OK;
    if (options->freeze != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--freeze %s: --lora freezes all but its adapters; leave --freeze out",
                       options->freeze);
    ZR_TRY(zr_lora_read(options->lora_text, &lora_log, &options->lora));
    return zr_lora_check(&options->lora, &options->shape, &lora_log);
}

/* DeepSpeed's default, of a file with a scheduler that does not say how long it warms up. */
static bool is_usual_warmup(const train_options_t *options) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    const zr_option_t *type = zr_option_find(rows, n, "schedule");
    const zr_option_t *warmup = zr_option_find(rows, n, "warmup");
    return options->in_file.is[type - rows] && !options->in_file.is[warmup - rows] &&
           !options->in_file.is_auto[warmup - rows];
}

static zr_status_t resolve_schedule(train_options_t *options, const zr_log_t *log) {
    zr_schedule_t *schedule = &options->config.schedule;
    bool has_warmup = options_value(&options->given, "warmup") != NULL;
    bool has_kept = train_kept_has(options, "warmup");
    if (schedule->kind == ZR_SCHEDULE_CONSTANT && (has_warmup || has_kept) &&
        schedule->warmup_steps > 0)
        schedule->kind = ZR_SCHEDULE_WARMUP;
    if (schedule->kind == ZR_SCHEDULE_CONSTANT)
        *schedule = zr_config_default().schedule;
    else if (schedule->warmup_steps == SIZE_MAX)
        schedule->warmup_steps = options->steps / 10;
    bool is_usual = (is_usual_warmup(options) || has_kept) && !has_warmup;
    bool has_end =
        schedule->kind == ZR_SCHEDULE_WARMUP_COSINE || schedule->kind == ZR_SCHEDULE_WARMUP_DECAY;
    if (has_end && schedule->total_steps == 0)
        schedule->total_steps = options->steps;
    if (is_usual && has_end && schedule->warmup_steps > schedule->total_steps)
        schedule->warmup_steps = schedule->total_steps / 10;
    if (has_warmup && has_end && schedule->warmup_steps > schedule->total_steps)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--warmup %zu: longer than the schedule; allowed: 0 to %zu; the nearest is %zu",
            schedule->warmup_steps, schedule->total_steps, schedule->total_steps);
    return ZR_OK;
}

/* What a step reads and what a run counts has to fit its numbers. */
static zr_status_t check_sizes(const train_options_t *options, const zr_log_t *log) {
    const zr_config_t *c = &options->config;
    size_t n = 0;
    if (__builtin_mul_overflow(c->micro_batch, c->grad_accum, &n) ||
        __builtin_mul_overflow(n, (size_t)options->n_ranks, &n) ||
        __builtin_mul_overflow(n, options->seq, &n) ||
        __builtin_mul_overflow(n, options->steps, &n))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--micro-batch %zu, --grad-accum %zu, --ranks %d, --seq %zu and --steps "
                       "%zu: the number of tokens overflows; allowed: less than 2^64 together",
                       c->micro_batch, c->grad_accum, options->n_ranks, options->seq,
                       options->steps);
    if (c->micro_batch > (size_t)INT32_MAX / options->seq)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--micro-batch %zu: of sequences of %s, allowed: at most %d tokens; the nearest is %zu",
            c->micro_batch, zr_count_text(options->seq, "token").text, INT32_MAX,
            (size_t)INT32_MAX / options->seq);
    return ZR_OK;
}

bool train_options_overlap(const train_options_t *options, int n_machines) {
    return options->config.overlap_comm && (options->overlap == TRAIN_OVERLAP_ON || n_machines > 1);
}

static const zr_encoding_t *encoding_of(const train_options_t *options) {
    static const zr_encoding_t *const encodings[] = {[TRAIN_LORA_BASE_BF16] = &zr_encoding_bf16,
                                                     [TRAIN_LORA_BASE_8BIT] = &zr_encoding_int8,
                                                     [TRAIN_LORA_BASE_NF4] = &zr_encoding_nf4};
    return encodings[options->lora_base]; /* NULL: that of the dtype */
}

const char *train_options_lora_base(const train_options_t *options) {
    return lora_bases[options->lora_base].name;
}

zr_transformer_options_t train_options_model(const train_options_t *options) {
    bool has_lora = options->lora_text != NULL;
    return (zr_transformer_options_t){.seed = options->seed,
                                      .freeze = options->evaluation.only ? ZR_MODEL_FREEZE_ALL
                                                                         : options->freeze,
                                      .weight_decay = options->config.adamw.weight_decay,
                                      .encoding = encoding_of(options),
                                      .adapter = has_lora ? &options->lora.adapter : NULL,
                                      .trains_added = has_lora,
                                      .has_documents = options->has_documents,
                                      .attention = options->attention};
}

bool train_options_use_nvme(const train_options_t *options) {
    return zr_config_uses_nvme(&options->config) || options->offload_activations == ZR_OFFLOAD_NVME;
}

zr_status_t train_options_check_recompute(const train_options_t *options, const zr_log_t *log) {
    if ((options->offload_activations == ZR_OFFLOAD_NONE && !options->auto_activations) ||
        options->recompute == ZR_RECOMPUTE_UNIT || options->auto_recompute)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--offload-activations: only inputs of layers can be offloaded, and without "
                   "recomputation everything is kept; add --recompute unit");
}

static zr_status_t check_activations_higher_up(const train_options_t *options,
                                               const zr_log_t *log) {
    bool is_block_order = zr_config_n_together(&options->config) > 1;
    if (options->auto_activations &&
        (options->activations_on_device > 0 || options->activations_in_host > 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-activations auto: --activations-on-device and "
                       "--activations-in-host are chosen by it; leave them out, or name cpu or "
                       "nvme");
    if (options->activations_on_device > 0 &&
        (options->offload_activations == ZR_OFFLOAD_NONE || is_block_order))
        return zr_fail(log, ZR_ERR_ARGUMENT, "--activations-on-device %zu has no effect %s",
                       options->activations_on_device,
                       is_block_order
                           ? "with --order block, where all inputs wait elsewhere"
                           : "without --offload-activations cpu or nvme: all stay there");
    if (options->activations_in_host > 0 && options->offload_activations != ZR_OFFLOAD_NVME)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--activations-in-host %zu has no effect without --offload-activations nvme",
                       options->activations_in_host);
    return ZR_OK;
}

static zr_status_t check_offloaded_activations(const train_options_t *options,
                                               const zr_log_t *log) {
    ZR_TRY(train_options_check_recompute(options, log));
    ZR_TRY(check_activations_higher_up(options, log));
    if (options->offload_activations == ZR_OFFLOAD_NVME && options->config.nvme.paths[0] == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-activations nvme: no path is named; add --nvme-path DIR, a "
                       "folder on the drive");
    return ZR_OK;
}

zr_status_t train_options_check_auto_parts(const train_options_t *options, const zr_log_t *log) {
    const zr_offload_options_t *optimizer = &options->config.offload_optimizer;
    const zr_offload_param_options_t *param = &options->config.offload_param;
    if (options->auto_optimizer && (optimizer->ratio < 1 || optimizer->max_in_cpu_elems != 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-optimizer auto: --offload-ratio and --state-in-host are what it "
                       "chooses; leave them out, or name cpu or nvme");
    if (options->auto_params && (param->ratio < 1 || param->max_in_cpu_elems != 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-params auto: --offload-param-ratio and --params-in-host are what "
                       "it chooses; leave them out, or name cpu or nvme");
    return ZR_OK;
}

zr_status_t train_options_check_params_stage(const train_options_t *options, const zr_log_t *log) {
    if (options->config.stage == 3)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--offload-params%s: at stage %d every rank computes with all parameters at all "
                   "times; allowed: none, or --stage 3",
                   options->auto_params ? " auto" : "", options->config.stage);
}

static zr_status_t check_auto(const train_options_t *options, const zr_log_t *log) {
    if (options->auto_params && !options->auto_stage)
        ZR_TRY(train_options_check_params_stage(options, log));
    return train_options_check_auto_parts(options, log);
}

/* Rates that nothing is planned with. */
static zr_status_t check_hardware(const train_options_t *options, const zr_log_t *log) {
    if (options->hardware_path != NULL && !train_auto_is_wanted(options))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--hardware %s: nothing is chosen, so nothing is planned with it; add --stage "
            "auto, --offload-optimizer auto, --offload-params auto, --order auto or "
            "--shard-group-size auto, or ask zero-plan",
            options->hardware_path);
    if (options->hardware_path != NULL && access(options->hardware_path, R_OK) != 0)
        return zr_fail(log, ZR_ERR_IO,
                       "--hardware %s: cannot read it: %s; give a file that zero-bench "
                       "--save-hardware has written (names of machines are zero-plan's)",
                       options->hardware_path, strerror(errno));
    return ZR_OK;
}

/* What a run could make of options whose placements are open. */
static zr_config_t furthest(const train_options_t *options, train_open_t open, bool has_drives) {
    zr_config_t config = options->config;
    zr_offload_device_t far = has_drives ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_CPU;
    if (open.stage)
        config.stage = 3;
    if (open.optimizer)
        config.offload_optimizer.device = far;
    if (open.params)
        config.offload_param.device = far;
    return config;
}

/* Why an option means nothing; NULL: it does. */
const zr_option_when_t *train_options_idle(const train_options_t *options,
                                           const zr_option_t *option, train_open_t open,
                                           bool has_drives) {
    zr_config_t config = furthest(options, open, has_drives);
    bool has_activations = options->offload_activations == ZR_OFFLOAD_NVME ||
                           ((open.activations || options->auto_activations) && has_drives);
    if ((option->flags & ZR_OPTION_OF_TRANSFERS) != 0 && has_activations)
        return NULL;
    return zr_option_idle(option, &config);
}

static zr_status_t refuse_idle(const zr_option_t *option, const char *value, const char *why,
                               const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_ARGUMENT, "--%s %s: %s", option->name, value, why);
}

zr_status_t train_options_check_given(const train_options_t *options, train_open_t open,
                                      const zr_log_t *log) {
    const options_given_t *given = &options->given;
    options_rows_t rows;
    options_rows(&train_table, &rows);
    for (size_t i = 0; i < given->n; i++) {
        const options_row_t *row = options_find(&rows, given->all[i].name);
        const char *value = given->all[i].value;
        if (row == NULL || zr_option_is_redundant(&row->option, value))
            continue;
        const zr_option_when_t *when =
            train_options_idle(options, &row->option, open, !open.no_drives);
        if (when == NULL || when->warns)
            continue;
        if (open.no_drives && train_options_idle(options, &row->option, open, true) == NULL)
            return refuse_idle(&row->option, value,
                               "no drives are named, and nothing is offloaded to NVMe without; add "
                               "--nvme-path DIR",
                               log);
        return refuse_idle(&row->option, value, when->otherwise, log);
    }
    const char *ratio = options_value(given, "offload-gradients-ratio");
    if (ratio != NULL && strtod(ratio, NULL) != 0 &&
        options->config.offload_optimizer.gradients == ZR_OFFLOAD_NONE)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-gradients-ratio %s: with --offload-gradients none all of them "
                       "wait on the device; leave one of the two out",
                       ratio);
    return ZR_OK;
}

/* What is said about offload that does not happen is a slip. */
static zr_status_t check_offload(const train_options_t *options, const zr_log_t *log) {
    train_open_t open = {.stage = options->auto_stage,
                         .optimizer = options->auto_optimizer,
                         .params = options->auto_params,
                         .no_drives = options->config.nvme.paths[0] == '\0'};
    if (options->auto_optimizer || options->auto_params)
        ZR_TRY(check_auto(options, log));
    ZR_TRY(train_options_check_given(options, open, log));
    return check_offloaded_activations(options, log);
}

static zr_status_t check_memory_snapshot(const train_options_t *options, const zr_log_t *log) {
    zr_snapshot_form_t form;
    const char *path = options->memory_snapshot_path;
    if (path == NULL || zr_snapshot_form_of(path, &form))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--memory-snapshot %s: the suffix determines the format; allowed: NAME.csv, "
                   "NAME.json, NAME.pickle",
                   path);
}

int train_options_least_stage(const train_options_t *options) {
    int least = zr_config_least_stage(&options->config);
    bool offloads =
        options->auto_optimizer || options->config.offload_optimizer.device != ZR_OFFLOAD_NONE;
    return options->has_gradients && offloads && least < 2 ? 2 : least;
}

zr_status_t train_options_resolve_run(train_options_t *options, const zr_log_t *log) {
    if (options->auto_stage) {
        options->config.stage = train_options_least_stage(options);
        options->auto_group |= !options->has_group && options->config.shard_group_size <= 0;
    }
    if (!options->config.overlap_comm)
        options->overlap = TRAIN_OVERLAP_OFF;
    ZR_TRY(resolve_shape(options, log));
    ZR_TRY(resolve_lora(options, log));
    ZR_TRY(resolve_schedule(options, log));
    ZR_TRY(zr_config_resolve(&options->config, options->n_ranks, log));
    return check_sizes(options, log);
}

zr_status_t train_options_resolve_without_offload(train_options_t *options, const zr_log_t *log) {
    zr_config_t *config = &options->config;
    zr_offload_device_t optimizer = config->offload_optimizer.device;
    zr_offload_device_t params = config->offload_param.device;
    config->offload_optimizer.device = config->offload_param.device = ZR_OFFLOAD_NONE;
    zr_status_t status = train_options_resolve_run(options, log);
    config->offload_optimizer.device = optimizer;
    config->offload_param.device = params;
    return status;
}

static zr_status_t resolve_data_weights(train_options_t *options, const zr_log_t *log) {
    const char *text = options->data_weights_text;
    size_t n = 0;
    if (text == NULL)
        return ZR_OK;
    free(options->data_weights);
    options->data_weights = calloc(options->n_data_paths, sizeof(double));
    if (options->data_weights == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the weights of the data");
    for (const char *next = text; next != NULL; n++) {
        char *end = NULL;
        double weight = strtod(next, &end);
        if (end == next || (*end != '\0' && *end != ','))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "--data-weights %s: \"%.20s\" is not a number; allowed: numbers greater "
                           "than 0 with commas between, such as 0.7,0.3",
                           text, next);
        if (n < options->n_data_paths)
            options->data_weights[n] = weight;
        next = *end == ',' ? end + 1 : NULL;
    }
    if (n != options->n_data_paths)
        return zr_fail(
            log, ZR_ERR_ARGUMENT, "--data-weights %s: %s for %s of --data; each path has one", text,
            zr_count_text(n, "weight").text, zr_count_text(options->n_data_paths, "path").text);
    return ZR_OK;
}

static zr_status_t check_evaluation(const train_options_t *options, const zr_log_t *log) {
    const train_evaluation_options_t *evaluation = &options->evaluation;
    if (evaluation->keep_best && options->checkpoint.dir == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "--keep-best requires --checkpoint-dir");
    if (evaluation->only && options->checkpoint.dir != NULL && !options->checkpoint.resume)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--eval-only saves nothing in --checkpoint-dir %s; add --resume to evaluate "
                       "the newest checkpoint there, or leave it out to evaluate initial weights",
                       options->checkpoint.dir);
    return ZR_OK;
}

typedef struct list {
    char text[1024];
    size_t used, n;
} list_t;

static void add_name(list_t *list, const char *dashes, const char *name) {
    if (list->used < sizeof(list->text))
        list->used += (size_t)snprintf(list->text + list->used, sizeof(list->text) - list->used,
                                       "%s%s%s", list->n++ > 0 ? ", " : "", dashes, name);
}

/* Without the sections that most keys are in. */
static const char *short_key(const char *key) {
    static const char *const sections[] = {"optimizer.params.", "scheduler.params.",
                                           "zero_optimization."};
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (strncmp(key, sections[i], strlen(sections[i])) == 0)
            return key + strlen(sections[i]);
    return strcmp(key, "bf16.enabled") == 0 ? "dtype" : key;
}

/* What a value was not given for: a sequence shorter than the model's, and "auto" of a file. */
static void say_chosen(const train_options_t *options, const zr_log_t *log) {
    list_t list = {.n = 0};
    size_t n = 0, longest = zr_model_shape_sizes(&options->shape).seq;
    const zr_option_t *rows = zr_options(&n);
    if (options->launch.rank != 0)
        return;
    train_kept_say(options, log);
    if (options->seq_text == NULL && options->seq < longest)
        zr_log_write(log, ZR_LOG_INFO,
                     "sequences of %zu tokens; the model has %zu positions: --seq sets another "
                     "length",
                     options->seq, longest);
    for (size_t i = 0; i < n; i++) {
        zr_option_text_t value = zr_option_text(&rows[i], &options->config);
        char text[sizeof(value) + 128];
        if (!options->in_file.is_auto[i])
            continue;
        bool is_unset = value.text[0] == '\0' ||
                        ((rows[i].flags & ZR_OPTION_UNSET0) != 0 && strcmp(value.text, "0") == 0);
        snprintf(text, sizeof(text), "%s %s", short_key(rows[i].key),
                 is_unset ? "unset" : value.text);
        add_name(&list, "", text);
    }
    if (list.n > 0)
        zr_log_write(log, ZR_LOG_INFO, "--config %s: \"auto\" became: %s", options->config_path,
                     list.text);
    size_t n_warmup = options->config.schedule.warmup_steps;
    if (is_usual_warmup(options) && n_warmup < options->said.schedule.warmup_steps)
        zr_log_write(
            log, ZR_LOG_INFO,
            "--config %s: warmup_num_steps is absent, and DeepSpeed's default of %zu longer "
            "than the schedule: a tenth of that, %s",
            options->config_path, options->said.schedule.warmup_steps,
            zr_count_text(n_warmup, "step").text);
    const zr_option_t *dtype = zr_option_find(rows, n, "dtype");
    if (dtype != NULL && options->in_file.is_auto[dtype - rows] &&
        options->config.dtype == ZR_DTYPE_F32)
        zr_log_write(
            log, ZR_LOG_INFO,
            "--config %s: bf16.enabled is \"auto\": training in fp32; for bf16, give --dtype "
            "bf16 or set bf16.enabled to true",
            options->config_path);
}

static zr_status_t check_plot(const train_options_t *options, const zr_log_t *log) {
    if (options->plot_path == NULL)
        return ZR_OK;
    ZR_TRY(gnuplot_check_form("--plot", options->plot_path, log));
    return gnuplot_check_there("--plot", options->plot_path, log);
}

/* A picture of a log that is there, and nothing else. */
static bool draws_only(const options_given_t *given) {
    bool has_log = false, has_plot = false;
    for (size_t i = 0; i < given->n; i++) {
        const char *name = given->all[i].name;
        has_log = has_log || strcmp(name, "log") == 0;
        has_plot = has_plot || strcmp(name, "plot") == 0;
        if (strcmp(name, "log") != 0 && strcmp(name, "plot") != 0 && strcmp(name, "quiet") != 0)
            return false;
    }
    return has_log && has_plot;
}

zr_status_t train_options_resolve(train_options_t *options, const zr_log_t *log) {
    ZR_TRY(check_plot(options, log));
    options->draws_only = options->n_data_paths == 0 && draws_only(&options->given);
    if (options->draws_only)
        return ZR_OK;
    if (options->n_data_paths == 0 && !options->evaluation.only)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "no data: give files or folders with --data PATH... (--help lists all options)");
    ZR_TRY(resolve_data_weights(options, log));
    options->said = options->config;
    ZR_TRY(train_launch_apply(options, log));
    ZR_TRY(train_options_resolve_run(options, log));
    ZR_TRY(check_hardware(options, log));
    ZR_TRY(check_offload(options, log));
    ZR_TRY(options_check_needs(&train_table, &options->given, log));
    ZR_TRY(check_evaluation(options, log));
    ZR_TRY(train_trace_check(options, log));
    ZR_TRY(check_memory_snapshot(options, log));
    say_chosen(options, log);
    return ZR_OK;
}

/* Options go over files, and what they replace is said. */
static void say_other_paths(const char *option, const char *used, const char *file,
                            const char *replaced, const zr_log_t *log) {
    if (replaced[0] != '\0' && strcmp(used, replaced) != 0)
        zr_log_write(log, ZR_LOG_INFO, "%s: %s is used instead of nvme_path \"%s\" of --config %s",
                     option, used, replaced, file);
}

static zr_status_t read_config(train_options_t *options, const char *path, const zr_log_t *log) {
    files_log_t named = {*log, "--config"};
    zr_log_t file_log = files_log(&named);
    zr_config_t *config = &options->config;
    const size_t before[] = {config->train_batch, config->micro_batch, config->grad_accum};
    config->train_batch = config->micro_batch = config->grad_accum = 0;
    ZR_TRY(zr_config_read_json_given(path, &file_log, &options->config, &options->in_file));
    if (config->train_batch == 0) { /* else the rest follows from it */
        bool has_any = config->micro_batch != 0 || config->grad_accum != 0;
        config->train_batch = has_any ? 0 : before[0];
        config->micro_batch = config->micro_batch != 0 ? config->micro_batch : before[1];
        config->grad_accum = config->grad_accum != 0 ? config->grad_accum : before[2];
    }
    if (options->config.nvme.paths[0] != '\0')
        options->nvme_paths_from = TRAIN_PATHS_OF_CONFIG;
    return ZR_OK;
}

/* Options, and keys of the file, that mean something at another stage only. */
static void warn_of_stage(const train_options_t *options, const zr_log_t *log) {
    list_t list = {.n = 0};
    size_t n = 0;
    const char *why = "";
    const zr_option_t *rows = zr_options(&n);
    for (int of_file = 0; of_file < 2; of_file++)
        for (size_t i = 0; i < n; i++) {
            const zr_option_when_t *when = zr_option_idle(&rows[i], &options->config);
            const char *value =
                rows[i].name != NULL ? options_value(&options->given, rows[i].name) : NULL;
            if (when == NULL || !when->warns)
                continue;
            why = when->otherwise;
            if (of_file == 0 && value != NULL && !zr_option_is_redundant(&rows[i], value))
                add_name(&list, "--", rows[i].name);
            if (of_file == 1 && options->in_file.is[i])
                add_name(&list, "", strrchr(rows[i].key, '.') + 1);
        }
    if (list.n > 0)
        zr_log_write(log, ZR_LOG_WARNING, "%s: no effect at stage %d, %s", list.text,
                     options->config.stage, why);
}

void train_options_warn_left_out(const train_options_t *options, const zr_log_t *log) {
    const options_given_t *given = &options->given;
    options_rows_t rows;
    options_rows(&train_table, &rows);
    for (size_t i = 0; i < given->n; i++) {
        const options_row_t *row = options_find(&rows, given->all[i].name);
        const char *value = given->all[i].value;
        if (row == NULL || zr_option_is_redundant(&row->option, value))
            continue;
        const zr_option_when_t *when =
            train_options_idle(options, &row->option, (train_open_t){.stage = false}, false);
        if (when != NULL && !when->warns)
            zr_log_write(log, ZR_LOG_WARNING, "--%s %s: no effect with what auto chose: %s",
                         row->option.name, value, when->otherwise);
    }
}

void train_options_warn_idle(train_options_t *options, bool is_stage_open, bool has_nccl,
                             const zr_log_t *log) {
    if (!is_stage_open)
        warn_of_stage(options, log);
    if (options->sums != ZR_SUM_ANY || has_nccl)
        return;
    zr_log_write(log, ZR_LOG_WARNING,
                 "--sums any: no effect: the order is NCCL's, and ranks exchange their data "
                 "without; leave it out, or run on GPUs with --comm nccl");
    options->sums = ZR_SUM_RANK_ORDER;
}

static const zr_option_t *find_key(const zr_option_t *rows, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].key != NULL && strcmp(rows[i].key, key) == 0)
            return &rows[i];
    return NULL;
}

zr_status_t train_options_read_under(train_options_t *options, const zr_log_t *log) {
    const char *path = options_value(&options->given, "config");
    const char *paths = options_value(&options->given, "nvme-path");
    const char *schedule = options_value(&options->given, "schedule");
    zr_schedule_t own = options->config.schedule;
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n), *row = zr_option_find(rows, n, "schedule");
    const zr_option_t *warmup = zr_option_find(rows, n, "warmup");
    const zr_option_t *rate = find_key(rows, n, "scheduler.params.warmup_max_lr");
    const char *lr = options_value(&options->given, "lr");
    zr_config_t chosen = options->config;
    zr_config_t *config = &options->config;
    if (path == NULL)
        return ZR_OK;
    if (paths != NULL) /* decide between two of the file that differ */
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", paths);
    config->schedule = zr_config_default().schedule; /* of what a file's scheduler leaves out */
    ZR_TRY(read_config(options, path, log));
    if (!options->in_file.is[row - rows])
        config->schedule = own;
    else if (options->in_file.is_auto[warmup - rows])
        config->schedule.warmup_steps = own.warmup_steps;
    if (!options->in_file.is[row - rows] && schedule == NULL)
        zr_log_write(log, ZR_LOG_INFO,
                     "--config %s has no scheduler, and is taken with zero-train's: --schedule "
                     "cosine (DeepSpeed has --schedule constant without one)",
                     path);
    if (lr != NULL && !options->in_file.is[rate - rows])
        config->schedule.warmup_max_lr = 0; /* the file's default is no wish */
    else if (lr != NULL && config->schedule.warmup_max_lr > 0)
        zr_log_write(
            log, ZR_LOG_WARNING,
            "--lr %s has no effect: the rate after warm-up is warmup_max_lr %g of --config "
            "%s; remove it there",
            lr, config->schedule.warmup_max_lr, path);
    if (paths != NULL)
        say_other_paths("--nvme-path", paths, path, config->nvme.paths, log);
    if (schedule != NULL)
        ZR_TRY(zr_option_set(row, NULL, schedule, log, &chosen));
    if (schedule != NULL && config->schedule.kind != chosen.schedule.kind)
        config->schedule = own; /* nothing of one is another's */
    return ZR_OK;
}

void train_options_note_given(train_options_t *options) {
    const options_given_t *given = &options->given;
    options->auto_stage = options_is_auto(given, "stage");
    options->auto_optimizer = options_is_auto(given, "offload-optimizer");
    options->auto_params = options_is_auto(given, "offload-params");
    options->auto_activations = options_is_auto(given, "offload-activations");
    options->auto_order = options_is_auto(given, "order");
    options->auto_update = options_is_auto(given, "update-at");
    options->auto_recompute = options_is_auto(given, "recompute");
    options->auto_group = options_is_auto(given, "shard-group-size");
    options->has_group = options_value(given, "shard-group-size") != NULL && !options->auto_group;
    options->has_gradients = options_value(given, "offload-gradients") != NULL ||
                             options_value(given, "offload-gradients-ratio") != NULL ||
                             options_value(given, "gradients-in-host") != NULL;
    if (options_value(given, "nvme-path") != NULL)
        options->nvme_paths_from = TRAIN_PATHS_OF_OPTION;
}

static zr_status_t read_io_settings(const zr_log_t *log, train_options_t *options) {
    zr_nvme_options_t before = options->config.nvme, *nvme = &options->config.nvme;
    bool keep_paths = options->nvme_paths_from == TRAIN_PATHS_OF_OPTION;
    ZR_TRY(train_io_settings_read(options->io_settings_path, keep_paths, log, nvme));
    if (strcmp(before.paths, nvme->paths) == 0)
        return ZR_OK;
    options->nvme_paths_from = TRAIN_PATHS_OF_IO_SETTINGS;
    say_other_paths("--io-settings", nvme->paths, options->config_path, before.paths, log);
    return ZR_OK;
}

/* What is wrong with the checkpoint is said when the run opens it. */
static zr_status_t take_saved(train_options_t *options, const zr_log_t *log) {
    const char *dir = options_value(&options->given, "checkpoint-dir");
    bool is_named = options_value(&options->given, "model") != NULL;
    if (!train_checkpoint_said(dir, &options->own_model, &options->own_lora, &options->kept) &&
        !is_named)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--resume: the newest checkpoint in %s does not describe its model: another "
                       "program has saved it; give its --model, or another --checkpoint-dir",
                       dir);
    if (options->own_model != NULL)
        options->model = options->own_model;
    options->lora_text = options->own_lora;
    return train_kept_take(options, log);
}

/* A file may have more paths than the command line has words. */
static zr_status_t make_room(train_options_t *options, size_t n, const zr_log_t *log) {
    const char ***arrays[] = {&options->data_paths, &options->evaluation.paths};
    for (size_t i = 0; i < 2; i++) {
        const char **larger = realloc(*arrays[i], (n + 1) * sizeof(**arrays[i]));
        if (larger == NULL)
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s", zr_count_text(n, "path").text);
        *arrays[i] = larger;
    }
    return ZR_OK;
}

/* Once to see what was given, and then over defaults and files. */
static zr_status_t parse(int argc, char **argv, const zr_log_t *log, train_options_t *options) {
    options_given_t given;
    ZR_TRY(options_parse(&train_table, argc, argv, log, options, &given));
    if (options->help || options->version)
        return ZR_OK;
    const char **data_paths = options->data_paths, **val_paths = options->evaluation.paths;
    *options = train_options_default();
    options->data_paths = data_paths;
    options->evaluation.paths = val_paths;
    if (options_value(&given, "run") != NULL) {
        size_t n = 0;
        ZR_TRY(train_run_file_read(options_value(&given, "run"), log, &given, &n,
                                   &options->run_texts));
        ZR_TRY(make_room(options, (size_t)argc + n, log));
    }
    options->given = given;
    zr_log_t own_log = *log;
    if (options_value(&given, "quiet") != NULL)
        own_log.level = ZR_LOG_WARNING;
    if (options_value(&given, "resume") != NULL)
        ZR_TRY(take_saved(options, &own_log));
    ZR_TRY(train_options_read_under(options, &own_log));
    ZR_TRY(options_apply(&train_table, &given, log, options));
    train_options_note_given(options);
    if (options->io_settings_path != NULL)
        ZR_TRY(read_io_settings(&own_log, options));
    if (options->matmul_choices_path != NULL)
        ZR_TRY(
            matmul_choices_read(options->matmul_choices_path, &own_log, &options->matmul_choices));
    options->matmul_workspace_bytes =
        zr_nn_matmul_choices_workspace(matmul_choices_of(options->matmul_choices));
    return train_options_resolve(options, &own_log);
}

zr_status_t train_options_parse(int argc, char **argv, const zr_log_t *log,
                                train_options_t *options_p) {
    train_options_t options = train_options_default();
    options.data_paths = calloc((size_t)argc + 1, sizeof(*options.data_paths));
    options.evaluation.paths = calloc((size_t)argc + 1, sizeof(*options.evaluation.paths));
    if (options.data_paths == NULL || options.evaluation.paths == NULL) {
        train_options_free(&options);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text((uint64_t)argc, "argument").text);
    }
    zr_status_t status = parse(argc, argv, log, &options);
    if (status != ZR_OK) {
        train_options_free(&options);
        return status;
    }
    *options_p = options;
    if (options.device == options.launched_device) /* which goes with this function */
        options_p->device = options_p->launched_device;
    return ZR_OK;
}

void train_options_free(train_options_t *options) {
    free(options->data_paths);
    free(options->evaluation.paths);
    free(options->data_weights);
    free(options->own_model);
    free(options->own_lora);
    json_decref(options->kept);
    json_decref(options->run_texts);
    options->run_texts = NULL;
    matmul_choices_free(&options->matmul_choices);
    options->own_model = options->own_lora = NULL;
    options->kept = NULL;
    options->data_paths = options->evaluation.paths = NULL;
    options->data_weights = NULL;
    options->n_data_paths = options->evaluation.n_paths = 0;
}
