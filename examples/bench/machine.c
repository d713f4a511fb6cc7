/*
 * The description that the ranks' measurements give, with the source of each figure. What decides
 * whether a run fits is looked up, as for plans without measurements (this_machine.h).
 */
#include "examples/bench/machine.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/bench/machine_rank.h"
#include "examples/plan/this_machine.h"

/** One description in the making. */
typedef struct making {
    machine_t *machine;
    char date[16];
    const machine_options_t *options;
} making_t;

/* ---- figures and their sources -------------------------------------------------------------- */

static size_t index_of(const char *name) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(figures[i].name, name) == 0)
            return i;
    return MACHINE_MAX_FIGURES; /* a test would have seen it: machine_measure fails */
}

static void say(making_t *making, const char *name, const char *format, ...) ZR_PRINTF(3, 4);

static void say(making_t *making, const char *name, const char *format, ...) {
    size_t i = index_of(name);
    va_list arguments;
    if (i == MACHINE_MAX_FIGURES)
        return;
    va_start(arguments, format);
    vsnprintf(making->machine->sources[i], MACHINE_SOURCE_BYTES, format, arguments);
    va_end(arguments);
}

/* A figure that was measured; of one that was not the default stays, and its source says so. */
static void take(making_t *making, const char *name, double value, const char *what) {
    size_t n = 0, i = index_of(name);
    const zr_figure_t *figures = zr_hardware_figures(&n);
    const machine_options_t *o = making->options;
    if (i == MACHINE_MAX_FIGURES)
        return;
    zr_hardware_set_figure(&making->machine->hardware, &figures[i], value);
    say(making, name, "measured on %s by zero-bench, %s of %s at once: %s%s", making->date,
        zr_count_text((uint64_t)o->n_ranks, "rank").text,
        zr_count_text((uint64_t)o->n_threads, "thread").text, what,
        o->is_quick ? "; with tiny sizes, so figures are meaningless" : "");
}

static void leave(making_t *making, const char *name, const char *why) {
    say(making, name, "not measured: %s; the default is a typical server value", why);
}

/* ---- from measurements to figures ----------------------------------------------------------- */

/* Of fp32 and bf16. A GPU's attention in fp32 goes without its matrix units, and nobody trains so.
 */
static double usual(const double values[2], bool is_host) {
    return is_host ? 0.5 * (values[0] + values[1]) : values[1];
}

static void take_processor(making_t *making, const char *section,
                           const machine_processor_t *measured, bool is_synchronous) {
    char name[64];
    double fraction = usual(measured->attention_ratio, is_synchronous);
    const struct {
        const char *figure;
        double value;
        const char *what;
    } all[] = {
        {"matrix_fp32_ops_per_s", measured->matrix_ops_per_s[0],
         "matrix products of transformer layers of two sizes, with bias, residual addition and "
         "GELU"},
        {"matrix_bf16_ops_per_s", measured->matrix_ops_per_s[1],
         "matrix products of transformer layers of two sizes, with bias, residual addition and "
         "GELU"},
        {"matrix_fp32_bytes_per_s", measured->matrix_bytes_per_s[0],
         "from the time of the smaller layer's products that their operations do not explain; "
         "1e18: none"},
        {"matrix_bf16_bytes_per_s", measured->matrix_bytes_per_s[1],
         "from the time of the smaller layer's products that their operations do not explain; "
         "1e18: none"},
        {"attention_fraction", fraction < 1.0 ? fraction : 1.0,
         is_synchronous
             ? "attention forward and backward, 256 tokens, head size 64; mean of fp32 and bf16"
             : "attention forward and backward, 1024 tokens, head size 64, bf16"},
        {"lm_head_ratio", usual(measured->lm_head_ratio, is_synchronous),
         is_synchronous ? "language model head, forward and backward; mean of fp32 and bf16"
                        : "language model head, forward and backward, bf16"},
        {"vector_ops_per_s", measured->vector_per_s, "GELU"},
        {"memory_bytes_per_s", measured->memory_bytes_per_s,
         "copies, sums and layer normalisation of 6 MiB and more"},
        {"update_bytes_per_s", measured->update_bytes_per_s,
         "AdamW update of 16777216 fp32 parameters"},
        {"kernel_latency_s", is_synchronous ? 0.0 : measured->kernel_s, "a fill of 64 bytes"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        snprintf(name, sizeof(name), "%s.%s", section, all[i].figure);
        take(making, name, all[i].value, all[i].what);
    }
}

static void take_comm(making_t *making, const machine_figures_t *measured) {
    int n = making->options->n_ranks;
    leave(making, "between_nodes.bytes_per_s", "there is one machine");
    leave(making, "between_nodes.latency_s", "there is one machine");
    if (n == 1) {
        leave(making, "within_node.bytes_per_s", "there is only one rank");
        leave(making, "within_node.latency_s", "there is only one rank");
        leave(making, "reduce_bytes_per_s", "there is only one rank");
        return;
    }
    machine_sizes_t sizes =
        machine_sizes(making->options, making->machine->hardware.kind == ZR_HARDWARE_HOST);
    double moved = (double)sizes.comm_bytes * (n - 1) / n;
    take(making, "within_node.bytes_per_s", moved / measured->gather_s,
         "an all-gather of 28 MiB, by threads of one process");
    take(making, "within_node.latency_s", measured->small_gather_s / (n - 1),
         "an all-gather of next to nothing");
    take(making, "reduce_bytes_per_s", moved / measured->scatter_s,
         "a reduce-scatter of 28 MiB, by threads of one process");
}

static void take_links(making_t *making, const machine_figures_t *measured) {
    take(making, "to_device.bytes_per_s", measured->copy_bytes_per_s[0], "copies of 64 MiB");
    take(making, "to_device.latency_s", measured->copy_s[0], "copies of 256 bytes");
    take(making, "to_host.bytes_per_s", measured->copy_bytes_per_s[1], "copies of 64 MiB");
    take(making, "to_host.latency_s", measured->copy_s[1], "copies of 256 bytes");
}

static void take_drives(making_t *making, const machine_figures_t *measured) {
    static const char *const all[] = {"disk_read.bytes_per_s",  "disk_read.latency_s",
                                      "disk_write.bytes_per_s", "disk_write.latency_s",
                                      "disk_both_bytes_per_s",  "checksum_bytes_per_s",
                                      "disk_core_bytes_per_s",  "disk_block_bytes",
                                      "disk_align_bytes",       "disk_bytes"};
    if (making->options->paths == NULL) {
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            leave(making, all[i], "no --path was named");
        return;
    }
    const double *rates = measured->disk_bytes_per_s, *latencies = measured->disk_s;
    take(making, "disk_read.bytes_per_s", rates[ZR_STORE_GET], "the store, 512 MiB");
    take(making, "disk_read.latency_s", latencies[ZR_STORE_GET], "the store, blocks of 4 KiB");
    take(making, "disk_write.bytes_per_s", rates[ZR_STORE_PUT], "the store, 512 MiB");
    take(making, "disk_write.latency_s", latencies[ZR_STORE_PUT], "the store, blocks of 4 KiB");
    take(making, "disk_both_bytes_per_s", measured->disk_both_bytes_per_s,
         "the store, 512 MiB, every other transfer a write");
    take(making, "checksum_bytes_per_s", measured->checksum_bytes_per_s, "during transfers");
    take(making, "disk_core_bytes_per_s", measured->disk_core_bytes_per_s,
         "processor time of the store's passes, checksums aside");
    say(making, "disk_block_bytes", "looked up: what the store says of these folders");
    say(making, "disk_align_bytes", "looked up: what the store says of these folders");
    say(making, "disk_bytes", "looked up: what was free there on %s, shared by the ranks",
        making->date);
}

/* What was looked up before anything was measured. */
static void note_looked_up(making_t *making) {
    say(making, "n_threads", "asked for, or the cores, shared by the ranks");
    say(making, "cuda_major", "looked up: the device's");
    say(making, "granule_bytes", "looked up: the device's");
    say(making, "ranks_per_node", "asked for: measured with so many");
    say(making, "device_memory_bytes", "looked up: the device's, shared by its ranks");
    say(making, "device_in_use_bytes", "looked up: in use when the device was opened, likewise");
    say(making, "host_memory_bytes", "looked up: the machine's, shared by the ranks");
}

static void compose(making_t *making, const machine_figures_t *measured) {
    bool is_host = making->machine->hardware.kind == ZR_HARDWARE_HOST;
    note_looked_up(making);
    take_processor(making, "device", &measured->device, is_host);
    if (!is_host) {
        take_processor(making, "host", &measured->host, true);
        take_links(making, measured);
    }
    take(making, "launch_s", measured->device.queue_s, "a fill of 64 bytes");
    take_comm(making, measured);
    take_drives(making, measured);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

/* All figures are doubles, and a rank's share is the mean of what the ranks have seen. */
static void average(const machine_rank_t *ranks, int n_ranks, machine_figures_t *mean_p) {
    enum { N = sizeof(machine_figures_t) / sizeof(double) };
    double sums[N] = {0}, values[N];
    for (int i = 0; i < n_ranks; i++) {
        memcpy(values, &ranks[i].figures, sizeof(values));
        for (size_t k = 0; k < N; k++)
            sums[k] += values[k] / n_ranks;
    }
    memcpy(mean_p, sums, sizeof(*mean_p));
}

static zr_status_t run_rank(zr_rank_t *of) {
    machine_rank_t *rank = (machine_rank_t *)of->context + of->rank;
    rank->number = of->rank;
    rank->comm = of->comm;
    return machine_rank_run(rank);
}

static zr_status_t measure(const machine_options_t *options, bool is_host,
                           machine_figures_t *mean_p) {
    size_t n_ranks = (size_t)options->n_ranks;
    machine_rank_t *all = calloc(n_ranks, sizeof(*all));
    double *times = calloc(2 * n_ranks, sizeof(*times));
    machine_shared_t shared = {.begins = times, .ends = times + n_ranks};
    if (all == NULL || times == NULL) {
        free(all);
        free(times);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text((uint64_t)options->n_ranks, "rank").text);
    }
    for (int i = 0; i < options->n_ranks; i++) {
        all[i].options = options;
        all[i].shared = &shared;
        all[i].is_host = is_host;
        all[i].sizes = machine_sizes(options, is_host);
    }
    zr_run_options_t run = zr_run_options_default();
    run.log = options->log;
    run.comm = "threads";
    run.device_options.n_threads = 1; /* idle: a rank opens devices of its own */
    zr_status_t status = zr_run_ranks(NULL, options->n_ranks, run_rank, all, &run);
    if (status == ZR_OK)
        average(all, options->n_ranks, mean_p);
    free(times);
    free(all);
    return status;
}

static zr_status_t look_up(const machine_options_t *options, zr_hardware_t *hardware_p) {
    train_options_t train = train_options_default();
    train.device = options->device;
    train.n_ranks = options->n_ranks;
    train.n_threads = (size_t)options->n_threads;
    if (options->paths != NULL)
        snprintf(train.config.nvme.paths, sizeof(train.config.nvme.paths), "%s", options->paths);
    return this_machine_describe(&train, &options->log, hardware_p);
}

zr_status_t machine_measure(const machine_options_t *options, machine_t *machine_p) {
    machine_figures_t mean;
    machine_t machine = {0};
    making_t making = {.machine = &machine, .options = options};
    time_t now = time(NULL);
    struct tm day;
    strftime(making.date, sizeof(making.date), "%Y-%m-%d", gmtime_r(&now, &day));
    ZR_TRY(look_up(options, &machine.hardware));
    ZR_TRY(measure(options, machine.hardware.kind == ZR_HARDWARE_HOST, &mean));
    compose(&making, &mean);
    ZR_TRY(zr_hardware_check(&machine.hardware, &options->log));
    *machine_p = machine;
    return ZR_OK;
}

zr_status_t machine_save(const machine_t *machine, const char *path, const zr_log_t *log) {
    const char *sources[MACHINE_MAX_FIGURES];
    size_t n = 0;
    (void)zr_hardware_figures(&n);
    for (size_t i = 0; i < n && i < MACHINE_MAX_FIGURES; i++)
        sources[i] = machine->sources[i][0] != '\0' ? machine->sources[i] : NULL;
    return zr_hardware_write_json(&machine->hardware, sources, path, log);
}
