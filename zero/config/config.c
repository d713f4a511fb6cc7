/*
 * Defaults of a configuration, and the checks that a run stands on. A configuration may come
 * from a file, from options or from code, so what is allowed is checked here once more, by the
 * rows that the others are read by; what involves several fields is here alone.
 */
#include "zero/config.h"

#include <stdio.h>
#include <math.h>
#include <string.h>

#include "offload/swap_internal.h"
#include "zero/config/keys.h"

zr_config_t zr_config_default(void) {
    return (zr_config_t){
        .stage = 0,
        .dtype = ZR_DTYPE_F32,
        .reduce = ZR_REDUCE_AUTO,
        .master = ZR_MASTER_AUTO,
        .adamw = {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8},
        .schedule = {.kind = ZR_SCHEDULE_CONSTANT,
                     .warmup_log = true,
                     .warmup_steps = 1000,
                     .cos_min_ratio = 0.0001},
        .prefetch_elems = ZR_CONFIG_ALL,
        .max_live_elems = ZR_CONFIG_ALL,
        .sub_group_elems = 1000000000,
        .shard_group_size = -1,
        .outer_lr = 0.8,
        .outer_momentum = 0.7,
        .overlap_comm = true,
        .check_overflow = true,
        .device_memory_bytes = ZR_CONFIG_NO_BUDGET,
        .host_memory_bytes = ZR_CONFIG_NO_BUDGET,
        .process_memory_bytes = ZR_CONFIG_NO_BUDGET,
        .process_ranks = 1,
        .plan_check = true,
        .offload_optimizer = {.device = ZR_OFFLOAD_NONE,
                              .ratio = 1,
                              .gradients = ZR_OFFLOAD_CPU,
                              .gradients_ratio = 1,
                              .read_ahead = true,
                              .write_behind = true},
        .offload_param = {.device = ZR_OFFLOAD_NONE, .ratio = 1, .buffer_elems = (size_t)4 << 20},
        .nvme = {.capacity_bytes = ZR_CONFIG_NO_BUDGET,
                 .request_bytes = (size_t)512 << 10,
                 .depth = 64,
                 .submit_batch = 4,
                 .files_per_path = 1,
                 .verify = true,
                 .store = "uring"},
        .plan_memory = true,
        .steps_per_print = 10,
    };
}

/* ---- optimizers ----------------------------------------------------------- */

const zr_optimizer_type_t *zr_config_optimizer(const zr_config_t *config) {
    size_t n;
    return config->own_optimizer != NULL ? config->own_optimizer
                                         : zr_optimizers(&n)[config->optimizer];
}

zr_update_rule_t zr_config_rule(const zr_config_t *config) {
    static const char *const names[ZR_N_OUTER_ARRAYS] = {"outer_params", "outer_momentum"};
    zr_update_rule_t rule =
        zr_update_rule_in(&zr_config_optimizer(config)->rule, config->state_form);
    bool has_room = rule.n_arrays + ZR_N_OUTER_ARRAYS <= ZR_MAX_STATE_ARRAYS;
    for (size_t i = 0; config->outer_every > 0 && has_room && i < ZR_N_OUTER_ARRAYS; i++)
        rule.arrays[rule.n_arrays++] = (zr_state_array_t){names[i], &zr_encoding_fp32};
    return rule;
}

/* Where a hyperparameter of the library's optimizers is, which is a number. NULL: none is. */
static double *named_hyper(zr_config_t *config, const char *name) {
    const struct {
        const char *name;
        double *value;
    } hypers[] = {{"beta1", &config->adamw.beta1},
                  {"beta2", &config->adamw.beta2},
                  {"epsilon", &config->adamw.epsilon},
                  {"momentum", &config->momentum}};
    for (size_t i = 0; i < sizeof(hypers) / sizeof(hypers[0]); i++)
        if (strcmp(hypers[i].name, name) == 0)
            return hypers[i].value;
    return NULL;
}

/* What is as one optimizer has it when nothing is said becomes as another has it. */
static void change_usual(zr_config_t *config, const zr_optimizer_type_t *from,
                         const zr_optimizer_type_t *to) {
    zr_config_t usual = zr_config_default();
    for (size_t i = 0; i < from->rule.n_hypers; i++) {
        const zr_hyper_t *hyper = &from->rule.hypers[i];
        double *value = named_hyper(config, hyper->name);
        if (value != NULL && *value == hyper->usual)
            *value = *named_hyper(&usual, hyper->name);
    }
    for (size_t i = 0; i < to->rule.n_hypers; i++) {
        const zr_hyper_t *hyper = &to->rule.hypers[i];
        double *value = named_hyper(config, hyper->name);
        if (value != NULL && *value == *named_hyper(&usual, hyper->name))
            *value = hyper->usual;
    }
}

double zr_config_hyper(const zr_config_t *config, size_t index) {
    if (config->own_optimizer != NULL)
        return config->own_hyper[index];
    zr_config_t copy = *config;
    const char *name = zr_config_optimizer(config)->rule.hypers[index].name;
    if (strcmp(name, "nesterov") == 0)
        return config->nesterov;
    const double *value = named_hyper(&copy, name);
    return value != NULL ? *value : NAN; /* which the update refuses */
}

void zr_config_set_optimizer(zr_config_t *config, const zr_optimizer_type_t *optimizer) {
    size_t n;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n);
    if (config->own_optimizer != NULL || (size_t)config->optimizer < n)
        change_usual(config, zr_config_optimizer(config), optimizer);
    config->own_optimizer = NULL;
    for (size_t i = 0; i < n; i++) {
        if (optimizers[i] == optimizer) {
            config->optimizer = (zr_optimizer_kind_t)i;
            return;
        }
    }
    config->own_optimizer = optimizer;
    for (size_t i = 0; i < optimizer->rule.n_hypers; i++)
        config->own_hyper[i] = optimizer->rule.hypers[i].usual;
}

/* ---- fields --------------------------------------------------------------- */

/** The first error of several. */
static void keep_first(zr_status_t *status, zr_status_t another) {
    if (*status == ZR_OK)
        *status = another;
}

/** What is in messages of a field: its name, and what files and command lines call it. */
typedef struct names {
    char text[256];
} names_t;

static names_t names_of(const zr_option_t *option) {
    names_t names = {""};
    const char *key = option->key, *name = option->name;
    snprintf(names.text, sizeof(names.text), "%s%s%s%s%s%s%s", option->field,
             key != NULL || name != NULL ? " (" : "", key != NULL ? key : "",
             key != NULL && name != NULL ? ", " : "", name != NULL ? "--" : "",
             name != NULL ? name : "", key != NULL || name != NULL ? ")" : "");
    return names;
}

/** Each field by the range of its row. */
static zr_status_t check_fields(const zr_config_t *config, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    size_t n;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++)
        if (options[i].field != NULL && !zr_option_is_allowed(&options[i], config))
            keep_first(&status,
                       zr_fail(log, ZR_ERR_ARGUMENT, "configuration: %s is %.15g, must be %s",
                               names_of(&options[i]).text, zr_option_number(&options[i], config),
                               zr_option_range(&options[i]).text));
    return status;
}

/** Groups are of equal size. */
static zr_status_t refuse_group_size(int size, int n_ranks, const zr_log_t *log) {
    int nearest = size < n_ranks ? size : n_ranks;
    while (n_ranks % nearest != 0)
        nearest--;
    return zr_fail(
        log, ZR_ERR_ARGUMENT,
        "configuration: shard_group_size (zero_optimization.mics_shard_size, --shard-group-size) "
        "is %d, must divide the number of ranks, %d; the next smaller divisor is %d",
        size, n_ranks, nearest);
}

/** What depends on the number of ranks. */
static zr_status_t check_ranks(const zr_config_t *config, int n_ranks, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    if (n_ranks < 1)
        keep_first(&status, zr_fail(log, ZR_ERR_ARGUMENT,
                                    "configuration: %d ranks, must be at least 1", n_ranks));
    if (config->shard_group_size > 0 && n_ranks > 0 && n_ranks % config->shard_group_size != 0)
        keep_first(&status, refuse_group_size(config->shard_group_size, n_ranks, log));
    return status;
}

/** The first of what goes there says it. */
static zr_status_t refuse_no_path(const zr_config_t *config, const zr_log_t *log) {
    const char *device = "offload_optimizer.gradients (--offload-gradients)";
    const char *section = "offload_optimizer";
    if (config->offload_optimizer.device == ZR_OFFLOAD_NVME) {
        device = "offload_optimizer.device (zero_optimization.offload_optimizer.device)";
    } else if (config->offload_param.device == ZR_OFFLOAD_NVME) {
        device = "offload_param.device (zero_optimization.offload_param.device)";
        section = "offload_param";
    }
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: %s is \"nvme\", but no path is given: set nvme.paths "
                   "(zero_optimization.%s.nvme_path, --nvme-path DIR) to a folder on the drive",
                   device, section);
}

void zr_config_simulate(zr_config_t *config) {
    zr_nvme_options_t *nvme = &config->nvme;
    bool has_drives = nvme->backend == NULL && strcmp(nvme->store, "memory") != 0;
    nvme->store = has_drives ? "sim" : "sim-plain";
    nvme->backend = NULL;
    if (nvme->paths[0] == '\0')
        snprintf(nvme->paths, sizeof(nvme->paths), "."); /* never opened */
}

static zr_status_t check_nvme(const zr_config_t *config, const zr_log_t *log) {
    const zr_nvme_options_t *nvme = &config->nvme;
    zr_status_t status = ZR_OK;
    if (memchr(nvme->paths, '\0', sizeof(nvme->paths)) == NULL || nvme->store == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "configuration: nvme.paths is not NUL-terminated, or nvme.store is NULL");
    size_t length = strlen(nvme->paths);
    if (length > 0 && (nvme->paths[0] == ',' || nvme->paths[length - 1] == ',' ||
                       strstr(nvme->paths, ",,") != NULL))
        keep_first(&status, zr_fail(log, ZR_ERR_ARGUMENT,
                                    "configuration: nvme.paths "
                                    "(zero_optimization.offload_optimizer.nvme_path, --nvme-path) "
                                    "is \"%s\": a folder name is empty",
                                    nvme->paths));
    if (nvme->request_bytes % ZR_STORE_CHUNK_ALIGN_BYTES != 0)
        keep_first(&status, zr_fail(log, ZR_ERR_ARGUMENT,
                                    "configuration: nvme.request_bytes (aio.block_size) is %zu, "
                                    "must be a multiple of %zu, up to %zu",
                                    nvme->request_bytes, ZR_STORE_CHUNK_ALIGN_BYTES,
                                    ZR_STORE_MAX_REQUEST_BYTES));
    size_t n_paths = 1;
    for (const char *at = nvme->paths; *at != '\0'; at++)
        n_paths += *at == ',';
    if (nvme->files_per_path > ZR_STORE_MAX_PATHS / n_paths)
        keep_first(&status, zr_fail(log, ZR_ERR_ARGUMENT,
                                    "configuration: nvme.files_per_path is %zu, with %s; 1 to %d "
                                    "files are allowed together",
                                    nvme->files_per_path, zr_count_text(n_paths, "path").text,
                                    ZR_STORE_MAX_PATHS));
    if (zr_config_uses_nvme(config) && nvme->paths[0] == '\0' && nvme->backend == NULL &&
        strcmp(nvme->store, "memory") != 0)
        keep_first(&status, refuse_no_path(config, log));
    return status;
}

/** Below stage 3 there are no shards of parameters. */
static zr_status_t check_offload_stage(const zr_config_t *config, const zr_log_t *log) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    int device = (int)config->offload_param.device;
    if (device <= ZR_OFFLOAD_NONE || device > ZR_OFFLOAD_NVME || config->stage == 3)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: offload_param.device (zero_optimization.offload_param.device, "
                   "--offload-params) is %s at stage %d, where every rank computes with all "
                   "parameters at all times: allowed at stage 3 (zero_optimization.stage, --stage "
                   "3)",
                   names[device], config->stage);
}

/** The program itself has to have room. */
static zr_status_t check_process(const zr_config_t *config, const zr_log_t *log) {
    if (config->process_ranks < 1)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "configuration: process_ranks is %d, must be at least 1",
                       config->process_ranks);
    if (config->process_memory_bytes > ZR_CONFIG_PROGRAM_BYTES)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: process_memory_bytes (--memory) is %zu; allowed: more than %zu "
                   "(64 MiB), which are for the program itself and the stacks of its threads",
                   config->process_memory_bytes, ZR_CONFIG_PROGRAM_BYTES);
}

/** An update in backward follows a reduction to shards. */
static zr_status_t check_update_at(const zr_config_t *config, const zr_log_t *log) {
    if (config->update_at != ZR_UPDATE_AT_BACKWARD || config->stage >= 2)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: update_at (--update-at) is backward at stage %d, where "
                   "gradients are not sharded: allowed at stages 2 and 3 (--stage 2 or 3)",
                   config->stage);
}

/** What is asked for to have equal bits has them no more where messages lose some. */
static zr_status_t check_messages(const zr_config_t *config, const zr_log_t *log) {
    if (config->reduce_encoding == ZR_MESSAGE_PLAIN ||
        config->reduce != ZR_REDUCE_EVERY_MICRO_BATCH)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: reduce_encoding (--reduce-encoding) with reduce (--reduce) "
                   "every-micro-batch, which guarantees bitwise equal results at every stage: sums "
                   "of encoded gradients differ between stages; leave one out");
}

/** Outer steps are of several groups, and have two arrays of the state. */
static zr_status_t check_outer(const zr_config_t *config, int n_ranks, const zr_log_t *log) {
    size_t most = ZR_MAX_STATE_ARRAYS - ZR_N_OUTER_ARRAYS;
    if (config->outer_every == 0)
        return ZR_OK;
    if (n_ranks < 2)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "configuration: outer_every (--outer-every) is %zu, but there is one rank, and "
            "local steps are of several groups: add --ranks and --shard-group-size",
            config->outer_every);
    if (config->shard_group_size <= 0 || config->shard_group_size >= n_ranks)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "configuration: outer_every (--outer-every) is %zu, but all %s are in one "
                       "group, which has no local steps: add --shard-group-size with less than %d",
                       config->outer_every, zr_count_text((uint64_t)n_ranks, "rank").text, n_ranks);
    if (zr_config_optimizer(config)->rule.n_arrays > most)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "configuration: outer_every (--outer-every) with an optimizer of %zu "
                       "arrays; at most %zu are allowed",
                       zr_config_optimizer(config)->rule.n_arrays, most);
    return ZR_OK;
}

bool zr_config_suits_drives(const zr_config_t *config, size_t n_elems) {
    zr_update_rule_t rule = zr_config_rule(config);
    size_t block = ZR_STORE_CHUNK_ALIGN_BYTES;
    bool is_on_drives = config->offload_optimizer.device == ZR_OFFLOAD_NVME;
    bool has_state = config->offload_optimizer.device != ZR_OFFLOAD_NONE; /* saved as it lies */
    for (size_t i = 0; i < rule.n_arrays; i++) {
        const zr_encoding_t *encoding = rule.arrays[i].encoding;
        if (encoding == NULL || encoding->block_elems == 0)
            has_state = false; /* which is refused when it is used */
        else if (!is_on_drives && zr_encoding_find(encoding->name) != encoding)
            has_state = false; /* which cannot be saved */
    }
    return (!has_state || zr_state_bytes(&rule, n_elems) % block == 0) &&
           (!zr_config_has_grads_on_nvme(config) ||
            n_elems * zr_dtype_size(config->dtype) % block == 0);
}

/* Larger ones suit all encodings. */
#define MOST_LEAST_SUB_GROUP_ELEMS ((size_t)1 << 20)

/* Why sub-groups are not smaller. */
static const char *what_is_in_groups(const zr_config_t *config, size_t least_group) {
    zr_config_t own = *config;
    own.offload_optimizer.gradients = ZR_OFFLOAD_NONE;
    if (least_group == ZR_CONFIG_LEAST_SUB_GROUP_ELEMS)
        return "an offloaded optimizer";
    return zr_config_suits_drives(&own, least_group / 2)
               ? "gradients of bf16 on nvme (--offload-gradients nvme)"
               : "offloaded optimizer state in fewer bits (--state)";
}

/** What is moved at a time may not be less than can be: it would not be what was asked for. */
static zr_status_t check_least(const zr_config_t *config, bool fields_are_valid,
                               const zr_log_t *log) {
    size_t elem_bytes = zr_dtype_size(config->dtype);
    size_t least = elem_bytes == 0 ? 0 : ZR_CONFIG_LEAST_BUFFER_BYTES / elem_bytes;
    size_t group = config->sub_group_elems, buffer = config->offload_param.buffer_elems;
    size_t least_group = ZR_CONFIG_LEAST_SUB_GROUP_ELEMS;
    zr_status_t status = ZR_OK;
    while (fields_are_valid && least_group < MOST_LEAST_SUB_GROUP_ELEMS &&
           !zr_config_suits_drives(config, least_group))
        least_group *= 2;
    if (config->offload_optimizer.device != ZR_OFFLOAD_NONE && group != 0 && group < least_group)
        keep_first(&status,
                   zr_fail(log, ZR_ERR_ARGUMENT,
                           "configuration: sub_group_elems (zero_optimization.sub_group_size, "
                           "--sub-group) is %zu; with %s allowed: at least %zu; the nearest is "
                           "%zu",
                           group, what_is_in_groups(config, least_group), least_group,
                           least_group));
    if (config->offload_param.device != ZR_OFFLOAD_NONE && buffer != 0 && buffer < least)
        keep_first(&status,
                   zr_fail(log, ZR_ERR_ARGUMENT,
                           "configuration: offload_param.buffer_elems "
                           "(zero_optimization.offload_param.buffer_size, --param-buffer) is %zu; "
                           "allowed: at least %zu (%zu bytes of %s); the nearest is %zu",
                           buffer, least, ZR_CONFIG_LEAST_BUFFER_BYTES,
                           zr_dtype_name(config->dtype), least));
    return status;
}

static zr_status_t check_schedule(const zr_schedule_t *schedule, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    switch (schedule->kind) {
    case ZR_SCHEDULE_CONSTANT:
    case ZR_SCHEDULE_WARMUP:
        return ZR_OK;
    case ZR_SCHEDULE_WARMUP_DECAY:
    case ZR_SCHEDULE_WARMUP_COSINE:
        break;
    default:
        return ZR_OK; /* by its row it is wrong */
    }
    if (schedule->total_steps == 0)
        keep_first(
            &status,
            zr_fail(
                log, ZR_ERR_ARGUMENT,
                "configuration: this schedule requires schedule.total_steps "
                "(scheduler.params.total_num_steps), which is not set or is \"auto\"; set it to "
                "the number of steps of the run, at least 1"));
    else if (schedule->warmup_steps > schedule->total_steps)
        keep_first(
            &status,
            zr_fail(log, ZR_ERR_ARGUMENT,
                    "configuration: schedule.warmup_steps (scheduler.params.warmup_num_steps) is "
                    "%zu, must be at most schedule.total_steps (total_num_steps), which is %zu",
                    schedule->warmup_steps, schedule->total_steps));
    return status;
}

/* ---- the three batch sizes ------------------------------------------------- */

/** train_batch = micro_batch * grad_accum * n_ranks, where train_batch is not known. */
static zr_status_t multiply_batch(zr_config_t *config, size_t n_ranks, const zr_log_t *log) {
    size_t per_rank;
    if (__builtin_mul_overflow(config->micro_batch, config->grad_accum, &per_rank) ||
        __builtin_mul_overflow(per_rank, n_ranks, &config->train_batch))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "configuration: train_micro_batch_size_per_gpu %zu x "
                       "gradient_accumulation_steps %zu x %s overflows",
                       config->micro_batch, config->grad_accum,
                       zr_count_text(n_ranks, "rank").text);
    return ZR_OK;
}

/** *missing = train_batch / (known * n_ranks), without a rest. */
static zr_status_t divide_batch(const zr_config_t *config, const char *known_name, size_t known,
                                size_t n_ranks, size_t *missing, const zr_log_t *log) {
    size_t divisor;
    if (!__builtin_mul_overflow(known, n_ranks, &divisor) && divisor <= config->train_batch &&
        config->train_batch % divisor == 0) {
        *missing = config->train_batch / divisor;
        return ZR_OK;
    }
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "configuration: train_batch_size %zu is not a multiple of %s %zu x %s",
                   config->train_batch, known_name, known, zr_count_text(n_ranks, "rank").text);
}

static zr_status_t check_batch(const zr_config_t *config, size_t n_ranks, const zr_log_t *log) {
    zr_config_t product = *config;
    ZR_TRY(multiply_batch(&product, n_ranks, log));
    if (product.train_batch == config->train_batch)
        return ZR_OK;
    size_t per_rank = product.train_batch / n_ranks;
    bool is_multiple = config->train_batch % per_rank == 0;
    return zr_fail(
        log, ZR_ERR_ARGUMENT,
        "configuration: train_batch_size is %zu, but train_micro_batch_size_per_gpu "
        "%zu x gradient_accumulation_steps %zu x %s is %zu; remove one of the three keys%s%s",
        config->train_batch, config->micro_batch, config->grad_accum,
        zr_count_text(n_ranks, "rank").text, product.train_batch,
        is_multiple ? ", or run with " : "",
        is_multiple ? zr_count_text(config->train_batch / per_rank, "rank").text : "");
}

static zr_status_t resolve_batch(zr_config_t *config, size_t n_ranks, const zr_log_t *log) {
    if (config->train_batch && config->micro_batch && config->grad_accum)
        return check_batch(config, n_ranks, log);
    if (config->train_batch && config->micro_batch)
        return divide_batch(config, "train_micro_batch_size_per_gpu", config->micro_batch, n_ranks,
                            &config->grad_accum, log);
    if (!config->grad_accum)
        config->grad_accum = 1;
    if (config->train_batch)
        return divide_batch(config, "gradient_accumulation_steps", config->grad_accum, n_ranks,
                            &config->micro_batch, log);
    if (!config->micro_batch)
        config->micro_batch = 1;
    return multiply_batch(config, n_ranks, log);
}

bool zr_config_has_grads_on_nvme(const zr_config_t *config) {
    const zr_offload_options_t *offload = &config->offload_optimizer;
    return config->stage >= 2 && offload->device != ZR_OFFLOAD_NONE &&
           offload->gradients == ZR_OFFLOAD_NVME;
}

bool zr_config_uses_nvme(const zr_config_t *config) {
    return config->offload_optimizer.device == ZR_OFFLOAD_NVME ||
           config->offload_param.device == ZR_OFFLOAD_NVME || zr_config_has_grads_on_nvme(config);
}

/* The words of options, and what they are. */
static const struct {
    const char *word;
    const zr_encoding_t *encoding;
} messages_as[] = {[ZR_MESSAGE_PLAIN] = {"", NULL},
                   [ZR_MESSAGE_BF16] = {"bf16", &zr_encoding_bf16},
                   [ZR_MESSAGE_8BIT] = {"8bit", &zr_encoding_int8},
                   [ZR_MESSAGE_4BIT] = {"4bit", &zr_encoding_int4}};

const zr_encoding_t *zr_config_message(const zr_config_t *config, zr_message_as_t as) {
    const zr_encoding_t *encoding = messages_as[as].encoding;
    return encoding != zr_encoding_of(config->dtype) ? encoding : NULL;
}

zr_messages_text_t zr_config_messages(const zr_config_t *config) {
    const zr_message_as_t as[] = {config->gather_encoding, config->reduce_encoding};
    static const char *const what[] = {"parameters", "gradients"};
    zr_messages_text_t messages = {""};
    size_t n = 0;
    for (size_t i = 0; i < 2; i++)
        if (zr_config_message(config, as[i]) != NULL)
            n += (size_t)snprintf(messages.text + n, sizeof(messages.text) - n, "%s%s in %s%s",
                                  n > 0 ? ", " : "", what[i], messages_as[as[i]].word,
                                  i == 1 && config->error_feedback ? " with error feedback" : "");
    if (config->outer_every > 0)
        snprintf(messages.text + n, sizeof(messages.text) - n, "%sgroups that meet every %s",
                 n > 0 ? ", " : "", zr_count_text(config->outer_every, "step").text);
    return messages;
}

bool zr_config_takes_back(const zr_config_t *config) {
    return config->update_at == ZR_UPDATE_AT_BACKWARD &&
           (config->clip > 0 || config->check_overflow);
}

int zr_config_least_stage(const zr_config_t *config) {
    bool decodes = config->gather_encoding != ZR_MESSAGE_PLAIN;
    if (config->offload_param.device != ZR_OFFLOAD_NONE ||
        (decodes && config->master == ZR_MASTER_SPLIT)) /* below, ranks keep what they decode */
        return 3;
    if (config->update_at == ZR_UPDATE_AT_BACKWARD)
        return 2;
    return decodes ? 1 : 0;
}

size_t zr_config_n_together(const zr_config_t *config) {
    return config->order == ZR_ORDER_BLOCK ? config->grad_accum : 1;
}

size_t zr_config_rank_memory(const zr_config_t *config) {
    return config->process_memory_bytes == ZR_CONFIG_NO_BUDGET
               ? ZR_CONFIG_NO_BUDGET
               : (config->process_memory_bytes - ZR_CONFIG_PROGRAM_BYTES) /
                     (size_t)config->process_ranks;
}

int zr_config_n_shards(const zr_config_t *config, int n_ranks) {
    return config->shard_group_size > 0 ? config->shard_group_size : n_ranks;
}

zr_status_t zr_config_resolve(zr_config_t *config, int n_ranks, const zr_log_t *log) {
    if (!config)
        return zr_fail(log, ZR_ERR_ARGUMENT, "configuration: NULL");
    zr_status_t status = check_fields(config, log);
    bool fields_are_valid = status == ZR_OK;
    keep_first(&status, check_ranks(config, n_ranks, log));
    keep_first(&status, check_offload_stage(config, log));
    keep_first(&status, check_update_at(config, log));
    keep_first(&status, check_messages(config, log));
    keep_first(&status, check_process(config, log));
    keep_first(&status, check_outer(config, n_ranks, log));
    keep_first(&status, check_least(config, fields_are_valid, log));
    keep_first(&status, check_nvme(config, log));
    keep_first(&status, check_schedule(&config->schedule, log));
    ZR_TRY(status);

    zr_config_t resolved = *config;
    ZR_TRY(resolve_batch(&resolved, (size_t)n_ranks, log));
    *config = resolved;
    return ZR_OK;
}
