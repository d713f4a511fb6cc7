/* The toy model: see toy.h. */
#include <assert.h>

#include "tests/common/late_device.h"
#include "tests/common/test.h"
#include "tests/zero/toy.h"
#include "zero/runtime_internal.h"

/* Sizes 0, 1, 7, primes, and one larger than the staging buffer; -1 ends a unit. */
static const long unit_sizes[][6] = {{101, 1, 7, -1},     {0, 1009, 64, -1}, {1, -1},
                                     {17, 0, 3, 251, -1}, {20011, 2, -1},    {0, -1}};
#define N_UNITS 6
#define MAX_PARAMS 5

/* The unit and parameter that is looked at by peek; its first elements. */
enum { PEEK_UNIT = 4, PEEK_PARAM = 0, PEEK_ELEMS = 64 };

/* The unit that is visited again when the next one has been gathered; and what is in memory that
 * the toy alone uses. */
enum { AGAIN_UNIT = 3, AGAIN_PARAM = 3, N_SPOILT = 20 };
#define OWN_VALUE 12345.0f

typedef struct rank_state {
    const toy_options_t *options;
    toy_result_t *result;
    zr_comm_t *comm;
    int rank;
    zr_runtime_t *runtime;
    zr_unit_t *units[N_UNITS];
    zr_param_t *params[N_UNITS][MAX_PARAMS];
    int n_params[N_UNITS];
    float *values;
    void *raw;
    size_t step;
    size_t micro_batch;
    void *peeked; /* on the device; NULL: nothing */
    void *held;   /* on the device, full of OWN_VALUE; NULL: nothing */
    float before[PEEK_ELEMS];
    bool is_saving;
    uint64_t hash;
    zr_step_report_t last;
} rank_state_t;

#define MAX_ELEMS 20011

toy_options_t toy_options_default(int stage, int n_ranks) {
    toy_options_t options = {.config = zr_config_default(),
                             .n_ranks = n_ranks,
                             .n_steps = 4,
                             .flip_rank = -1,
                             .nan_step = -1,
                             .reorder_step = -1,
                             .stray_rank = -1,
                             .other_rank = -1,
                             .tight_rank = -1,
                             .fail_stream = -1,
                             .write_step = -1,
                             .drop_step = -1,
                             .again_step = -1};
    options.config.stage = stage;
    options.config.adamw.lr = 0.02;
    options.config.adamw.weight_decay = 0.1;
    options.config.micro_batch = 1;
    options.config.grad_accum = 1;
    options.config.host_threads = 1;
    return options;
}

static const zr_option_t *find_option(const char *name) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n), *found = zr_option_find(rows, n, name);
    for (size_t i = 0; i < n && found == NULL; i++)
        if (rows[i].field != NULL && strcmp(rows[i].field, name) == 0)
            found = &rows[i];
    return found;
}

void toy_set(toy_options_t *options, const char *format, ...) {
    char text[512], *rest = text;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    for (char *pair = strsep(&rest, " "); pair != NULL; pair = strsep(&rest, " ")) {
        char *value = strchr(pair, '=');
        assert_non_null(value);
        *value++ = '\0';
        const zr_option_t *option = find_option(pair);
        if (option == NULL)
            fail_msg("there is no option %s", pair);
        assert_ok(zr_option_set(option, NULL, value, NULL, &options->config));
    }
}

toy_options_t toy_mixture(int stage, int n_ranks, zr_dtype_t dtype, unsigned flags) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    options.config.dtype = dtype;
    options.config.clip = flags & 1 ? 0.05 : 0;
    options.tied = (flags & 2) != 0;
    options.frozen = (flags & 4) != 0;
    options.skip_some = (flags & 8) != 0;
    options.config.grad_accum = flags & 16 ? 2 : 1;
    options.n_steps = 3;
    return options;
}

void toy_set_clipping(toy_options_t *options, unsigned number) {
    static const double clips[] = {0, 0, 0.05, 1e9};
    options->config.clip = clips[number % 4];
    options->config.check_overflow = number % 4 != 0;
    options->nan_step = number % 4 != 0 && number % 3 == 1 ? 1 : -1;
    options->quiet = options->nan_step >= 0;
}

void toy_set_optimizer(toy_options_t *options, unsigned number) {
    size_t n = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n);
    const zr_optimizer_type_t *optimizer = optimizers[number % n];
    zr_config_set_optimizer(&options->config, optimizer);
    options->config.momentum = 0.75;
    options->config.nesterov = true;
}

/* ---- numbers ---- */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static float unit_noise(uint64_t key, size_t i) {
    return (float)((double)(mix(key * 1000003u + i) >> 11) * 0x1p-53 - 0.5);
}

const toy_sample_t toy_samples[TOY_N_SAMPLES] = {{0, 0, 0}, {1, 2, 1}, {4, 0, 0}};

static uint64_t fill_key(int unit, int index) {
    return (uint64_t)(100 * unit + index + 1);
}

float toy_initial_value(int unit, int index, size_t elem) {
    return unit_noise(fill_key(unit, index), elem);
}

float toy_gradient(int unit, int index, size_t step, size_t micro_batch, int rank, size_t elem,
                   float value) {
    uint64_t key = (uint64_t)(unit * 100 + index);
    key = key * 64 + step;
    key = key * 16 + micro_batch;
    key = key * 16 + (uint64_t)rank;
    return 0.05f * unit_noise(key, elem) + 0.1f * value;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    uint64_t key = (uint64_t)(uintptr_t)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = unit_noise(key, first + i);
}

static float load(const void *raw, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)raw)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)raw)[i]);
}

static void store(void *raw, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_F32)
        ((float *)raw)[i] = value;
    else
        ((zr_bf16_t *)raw)[i] = zr_bf16_from_f32(value);
}

/* ---- model ---- */

static zr_status_t add_param(rank_state_t *state, int unit, int index, long size, int group) {
    char name[32];
    snprintf(name, sizeof(name), "u%d.p%d", unit, index);
    zr_param_desc_t desc = {.name = name,
                            .n_dims = 1,
                            .dims = {(size_t)size},
                            .group = (unit + index) % 2 ? group : 0,
                            .frozen = state->options->frozen && (index == 1 || unit == 3),
                            .fill = fill,
                            .fill_context = (void *)(uintptr_t)fill_key(unit, index)};
    if (state->options->other_model && unit == 4 && index == 0) {
        desc.n_dims = 2;
        desc.dims[1] = 1;
    }
    state->n_params[unit] = index + 1;
    return zr_unit_add_param(state->units[unit], &desc, &state->params[unit][index]);
}

static zr_status_t commit(rank_state_t *state) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_info_t info = {0};
    if (state->options->expect_saves)
        ZR_TRY(zr_runtime_expect_saves(state->runtime, state->options->save_goes_on));
    if (state->options->restore_from == NULL)
        return zr_runtime_commit(state->runtime);
    ZR_TRY(zr_checkpoint_open(state->options->restore_from, zr_runtime_log(state->runtime),
                              &checkpoint));
    zr_checkpoint_info(checkpoint, &info);
    state->step = info.step;
    zr_status_t status = zr_runtime_restore(state->runtime, checkpoint);
    ZR_THEN(status, zr_runtime_commit(state->runtime));
    zr_checkpoint_close(&checkpoint);
    return status;
}

static zr_status_t build(rank_state_t *state) {
    zr_group_t no_decay = {.name = "no_decay", .weight_decay = 0, .lr_scale = 0.5};
    int group = 0;
    ZR_TRY(zr_runtime_add_group(state->runtime, &no_decay, &group));
    for (int unit = 0; unit < N_UNITS; unit++) {
        char name[32];
        snprintf(name, sizeof(name), "u%d", unit);
        ZR_TRY(zr_runtime_add_unit(state->runtime, name, &state->units[unit]));
        for (int i = 0; unit_sizes[unit][i] >= 0; i++)
            ZR_TRY(add_param(state, unit, i, unit_sizes[unit][i], group));
    }
    return commit(state);
}

static zr_status_t read_params(rank_state_t *state, zr_param_t *param) {
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    size_t n_elems = zr_param_n_elems(param);
    zr_dtype_t dtype = state->options->config.dtype;
    if (n_elems == 0)
        return ZR_OK;
    assert(zr_param_data(param) != NULL);
    ZR_TRY(zr_copy_async(stream, state->raw, zr_param_data(param), n_elems * zr_dtype_size(dtype),
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    for (size_t i = 0; i < n_elems; i++)
        state->values[i] = load(state->raw, dtype, i);
    return ZR_OK;
}

static float gradient(const rank_state_t *state, int unit, int index, size_t i) {
    const toy_options_t *options = state->options;
    float value = toy_gradient(unit, index, state->step, state->micro_batch, state->rank, i,
                               state->values[i]);
    if (options->flip_rank == state->rank && unit == 4 && index == 0 && state->step == 1)
        value = nextafterf(value, 2.0f);
    if (options->nan_step == (int)state->step && i == 0 && unit == 4 && index == 0)
        value = NAN;
    return value;
}

static zr_status_t write_grad(rank_state_t *state, int unit, int index) {
    zr_param_t *param = state->params[unit][index];
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    zr_dtype_t dtype = state->options->config.dtype;
    size_t n_elems = zr_param_n_elems(param);
    size_t size_bytes = n_elems * zr_dtype_size(dtype);
    void *grad;
    bool accumulate;
    ZR_TRY(zr_param_grad(param, &grad, &accumulate));
    for (size_t i = 0; i < n_elems; i++)
        store(state->raw, dtype, i, gradient(state, unit, index, i));
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_WORKSPACE,
                                       .lifetime = ZR_LIFETIME_UNIT,
                                       .name = "toy",
                                       .stream = stream};
    void *device_grad = NULL;
    ZR_TRY(zr_allocate(zr_runtime_allocator(state->runtime), &request, &device_grad));
    zr_status_t status =
        zr_copy_async(stream, device_grad, state->raw, size_bytes, ZR_COPY_HOST_TO_DEVICE);
    if (status == ZR_OK)
        status = zr_stream_synchronize(stream); /* raw is filled again */
    if (status == ZR_OK && accumulate)
        status = zr_kernel_add(stream, grad, dtype, device_grad, dtype, n_elems);
    if (status == ZR_OK && !accumulate)
        status = zr_copy_async(stream, grad, device_grad, size_bytes, ZR_COPY_DEVICE_TO_DEVICE);
    zr_free(zr_runtime_allocator(state->runtime), &device_grad, stream);
    return status;
}

static bool is_blind(const rank_state_t *state, int unit) {
    return state->options->blind && unit == 0;
}

static zr_status_t backward_unit(rank_state_t *state, int unit) {
    for (int i = 0; i < state->n_params[unit]; i++) {
        zr_param_t *param = state->params[unit][i];
        if (zr_param_is_frozen(param) || (state->options->skip_some && unit == 1 && i == 2))
            continue;
        if (!is_blind(state, unit))
            ZR_TRY(read_params(state, param));
        if (unit == PEEK_UNIT && i == PEEK_PARAM)
            memcpy(state->before, state->values, sizeof(state->before));
        ZR_TRY(write_grad(state, unit, i));
    }
    return ZR_OK;
}

/* The first unit's first parameter is used once more, before the others' backward. */
static zr_status_t tied_use(rank_state_t *state) {
    ZR_TRY(zr_unit_acquire(state->units[0], ZR_BACKWARD));
    ZR_TRY(read_params(state, state->params[0][0]));
    ZR_TRY(write_grad(state, 0, 0));
    ZR_TRY(zr_unit_release(state->units[0]));
    return ZR_OK;
}

/* Acquired once more, after its reduction; what compute reads of it is what backward has read. */
static zr_status_t peek(rank_state_t *state) {
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    zr_param_t *param = state->params[PEEK_UNIT][PEEK_PARAM];
    size_t size_bytes = PEEK_ELEMS * zr_dtype_size(state->options->config.dtype);
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_WORKSPACE,
                                       .lifetime = ZR_LIFETIME_STEP,
                                       .name = "peeked",
                                       .stream = stream};
    const zr_config_t *config = &state->options->config;
    if (!state->options->peek ||
        state->micro_batch + zr_config_n_together(config) < config->grad_accum)
        return ZR_OK;
    ZR_TRY(zr_allocate(zr_runtime_allocator(state->runtime), &request, &state->peeked));
    ZR_TRY(zr_unit_acquire(state->units[PEEK_UNIT], ZR_FORWARD));
    zr_status_t status = zr_copy_async(stream, state->peeked, zr_param_data(param), size_bytes,
                                       ZR_COPY_DEVICE_TO_DEVICE);
    zr_status_t released = zr_unit_release(state->units[PEEK_UNIT]);
    return status != ZR_OK ? status : released;
}

/* After the step. */
static zr_status_t check_peeked(rank_state_t *state) {
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    zr_dtype_t dtype = state->options->config.dtype;
    if (state->peeked == NULL)
        return ZR_OK;
    ZR_TRY(zr_copy_async(stream, state->raw, state->peeked, PEEK_ELEMS * zr_dtype_size(dtype),
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    zr_free(zr_runtime_allocator(state->runtime), &state->peeked, stream);
    for (size_t i = 0; i < PEEK_ELEMS; i++)
        if (load(state->raw, dtype, i) != state->before[i])
            return ZR_ERR_STATE;
    return ZR_OK;
}

/* ---- memory that others have freed ---- */

static zr_status_t take_own(rank_state_t *state, zr_lifetime_t lifetime, size_t n_elems,
                            void **memory_p) {
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    zr_allocation_request_t request = {.size_bytes = n_elems * sizeof(float),
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_WORKSPACE,
                                       .lifetime = lifetime,
                                       .name = "own",
                                       .stream = stream};
    ZR_TRY(zr_allocate(zr_runtime_allocator(state->runtime), &request, memory_p));
    return zr_kernel_fill(stream, *memory_p, ZR_DTYPE_F32, n_elems, OWN_VALUE);
}

/* Memory of all sizes, of both classes that are freed behind other streams. */
static zr_status_t spoil(rank_state_t *state) {
    void *memory[N_SPOILT] = {NULL};
    zr_status_t status = ZR_OK;
    for (size_t i = 0; state->options->spoil && i < N_SPOILT && status == ZR_OK; i++)
        status = take_own(state, i % 2 ? ZR_LIFETIME_COLLECTIVE : ZR_LIFETIME_UNIT,
                          (size_t)64 << i / 2, &memory[i]);
    for (size_t i = 0; i < N_SPOILT; i++)
        zr_free(zr_runtime_allocator(state->runtime), &memory[i],
                zr_runtime_stream(state->runtime));
    return status;
}

/* Compute has passed what it was to wait for when it has memory of the size of what was dropped. */
static zr_status_t visit_again(rank_state_t *state) {
    zr_unit_t *unit = state->units[AGAIN_UNIT];
    size_t size_bytes = MAX_ELEMS * zr_dtype_size(state->options->config.dtype);
    ZR_TRY(zr_unit_acquire(unit, ZR_FORWARD));
    ZR_TRY(read_params(state, state->params[AGAIN_UNIT][AGAIN_PARAM]));
    ZR_TRY(take_own(state, ZR_LIFETIME_UNIT, size_bytes / sizeof(float), &state->held));
    ZR_TRY(zr_stream_synchronize(zr_runtime_stream(state->runtime)));
    return zr_unit_release(unit);
}

static zr_status_t check_held(rank_state_t *state) {
    zr_stream_t *stream = zr_runtime_stream(state->runtime);
    size_t n_elems = MAX_ELEMS * zr_dtype_size(state->options->config.dtype) / sizeof(float);
    if (state->held == NULL)
        return ZR_OK;
    ZR_TRY(zr_copy_async(stream, state->values, state->held, n_elems * sizeof(float),
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    zr_free(zr_runtime_allocator(state->runtime), &state->held, stream);
    for (size_t i = 0; i < n_elems; i++)
        if (state->values[i] != OWN_VALUE)
            return ZR_ERR_STATE;
    return ZR_OK;
}

static zr_status_t glance(rank_state_t *state) {
    int n_units = state->options->glance ? 1 + (state->step == 0 && state->micro_batch == 0) : 0;
    for (int i = 0; i < n_units; i++) {
        zr_unit_t *unit = state->units[i == 0 ? 1 : PEEK_UNIT];
        ZR_TRY(zr_unit_acquire(unit, ZR_FORWARD));
        ZR_TRY(zr_unit_release(unit));
    }
    return ZR_OK;
}

static zr_status_t acquire_grads_alone(rank_state_t *state, int unit) {
    if (!state->options->grads_alone)
        return ZR_OK;
    ZR_TRY(zr_unit_acquire(state->units[unit], ZR_GRADIENTS));
    return zr_unit_release(state->units[unit]);
}

static int unit_at(const rank_state_t *state, int position) {
    const toy_options_t *options = state->options;
    bool other = options->stray_rank == state->rank && state->step == 1;
    other = other || (options->reorder_step >= 0 && (int)state->step >= options->reorder_step);
    other = other || (options->alternate && state->micro_batch % 2 == 1);
    if (other && (position == 1 || position == 2))
        return 3 - position;
    return position;
}

/* The gradients of one of the micro-batches that began together. */
static zr_status_t backward_and_reduce(rank_state_t *state, int unit, bool is_last) {
    const toy_options_t *options = state->options;
    bool is_together = zr_config_n_together(&options->config) > 1;
    if (is_together && options->tied && unit == 0)
        ZR_TRY(tied_use(state));
    ZR_TRY(backward_unit(state, unit));
    if (!is_last && options->config.reduce == ZR_REDUCE_AUTO)
        return ZR_OK;
    ZR_TRY(zr_unit_reduce(state->units[unit]));
    if (is_last)
        return ZR_OK;
    ZR_TRY(zr_unit_acquire(state->units[unit], ZR_GRADIENTS));
    return zr_unit_release(state->units[unit]);
}

/* All that begin together; else the one. */
static zr_status_t backward(rank_state_t *state, int unit) {
    const size_t n = zr_config_n_together(&state->options->config), first = state->micro_batch;
    for (size_t i = 0; i < n; i++) {
        state->micro_batch = first + i;
        zr_runtime_at_micro_batch(state->runtime, i);
        ZR_TRY(backward_and_reduce(state, unit, i + 1 == n));
    }
    state->micro_batch = first;
    return ZR_OK;
}

static zr_status_t micro_batches(rank_state_t *state) {
    const size_t n = zr_config_n_together(&state->options->config);
    ZR_TRY(zr_runtime_begin_micro_batches(state->runtime, n));
    for (int i = 0; i < N_UNITS; i++) {
        zr_unit_t *unit = state->units[unit_at(state, i)];
        ZR_TRY(zr_unit_acquire(unit, ZR_FORWARD));
        ZR_TRY(zr_unit_release(unit));
        if (i == AGAIN_UNIT && state->options->again_step == (int)state->step)
            ZR_TRY(visit_again(state));
    }
    if (state->options->tied && n == 1)
        ZR_TRY(tied_use(state));
    for (int i = N_UNITS - 1; i >= 0; i--) {
        int unit = unit_at(state, i);
        ZR_TRY(acquire_grads_alone(state, unit));
        ZR_TRY(zr_unit_acquire(state->units[unit],
                               is_blind(state, unit) ? ZR_GRADIENTS : ZR_BACKWARD));
        ZR_TRY(backward(state, unit));
        ZR_TRY(zr_unit_release(state->units[unit]));
        ZR_TRY(spoil(state));
    }
    ZR_TRY(check_held(state));
    ZR_TRY(glance(state));
    return peek(state);
}

/* Outside of micro-batches, and what is there can be looked at. */
static zr_status_t evaluate(rank_state_t *state) {
    for (int unit = 0; unit < N_UNITS; unit++) {
        ZR_TRY(zr_unit_acquire(state->units[unit], ZR_FORWARD));
        for (int i = 0; i < state->n_params[unit]; i++)
            ZR_TRY(read_params(state, state->params[unit][i]));
        ZR_TRY(zr_unit_release(state->units[unit]));
    }
    return ZR_OK;
}

/* ---- new values ---- */

static float written_value(int unit, int index, size_t elem) {
    return unit_noise(fill_key(unit, index) + 5000, elem);
}

/* What is there, in the parameter's dtype or its master, is what was written. */
static zr_status_t check_written(const rank_state_t *state, int unit, int index, zr_dtype_t dtype) {
    for (size_t i = 0; i < zr_param_n_elems(state->params[unit][index]); i++) {
        float expected = written_value(unit, index, i);
        if (dtype == ZR_DTYPE_BF16)
            expected = zr_bf16_to_f32(zr_bf16_from_f32(expected));
        if (state->values[i] != expected)
            return ZR_ERR_STATE;
    }
    return ZR_OK;
}

/* In two parts; another rank gives the values of each parameter. */
static zr_status_t write_param(rank_state_t *state, int unit, int index) {
    zr_param_t *param = state->params[unit][index];
    size_t n_elems = zr_param_n_elems(param), first = n_elems / 3;
    int root = (unit + index) % state->options->n_ranks;
    for (size_t i = 0; i < n_elems; i++)
        state->values[i] = written_value(unit, index, i);
    const float *values = state->rank == root ? state->values : NULL;
    ZR_TRY(zr_param_write(param, 0, first, values, root));
    return zr_param_write(param, first, n_elems - first, values != NULL ? values + first : NULL,
                          root);
}

/* Every second unit is acquired meanwhile. */
static zr_status_t write_unit(rank_state_t *state, int unit) {
    if (unit % 2)
        ZR_TRY(zr_unit_acquire(state->units[unit], ZR_FORWARD));
    for (int i = 0; i < state->n_params[unit]; i++)
        ZR_TRY(write_param(state, unit, i));
    if (unit % 2 == 0)
        ZR_TRY(zr_unit_acquire(state->units[unit], ZR_FORWARD));
    for (int i = 0; i < state->n_params[unit]; i++) {
        zr_param_t *param = state->params[unit][i];
        ZR_TRY(read_params(state, param));
        ZR_TRY(check_written(state, unit, i, state->options->config.dtype));
        ZR_TRY(zr_param_read(param, 0, zr_param_n_elems(param), state->values));
        bool has_master = !zr_param_is_frozen(param);
        ZR_TRY(check_written(state, unit, i,
                             has_master ? ZR_DTYPE_F32 : state->options->config.dtype));
    }
    return zr_unit_release(state->units[unit]);
}

static zr_status_t write_all(rank_state_t *state, size_t n_steps) {
    for (int unit = 0; unit < N_UNITS && state->options->write_step == (int)n_steps; unit++)
        ZR_TRY(write_unit(state, unit));
    return ZR_OK;
}

/* A save that fails leaves the run as it is. */
static zr_status_t note_save(rank_state_t *state, zr_status_t status,
                             const zr_save_report_t *report) {
    state->result->saved[state->rank] = status;
    if (state->rank == 0)
        state->result->save = *report;
    return status == ZR_ERR_COMM ? status : ZR_OK;
}

static zr_status_t end_save(rank_state_t *state, bool wait) {
    zr_save_report_t report = {.name = ""};
    bool ended = false;
    if (!state->is_saving)
        return ZR_OK;
    zr_status_t status = zr_runtime_save_end(state->runtime, wait, &ended, &report);
    state->is_saving = status == ZR_OK && !ended;
    return state->is_saving ? ZR_OK : note_save(state, status, &report);
}

static zr_status_t save(rank_state_t *state, bool is_wanted) {
    const toy_options_t *options = state->options;
    zr_save_options_t asked = {.folder = options->save_to,
                               .trainer_json = "{\"toy\":1}",
                               .goes_on = options->save_goes_on,
                               .keep = options->keep};
    zr_save_report_t report = {.name = ""};
    if (options->save_to == NULL || !is_wanted)
        return ZR_OK;
    ZR_TRY(end_save(state, true));
    if (!options->save_goes_on)
        return note_save(state, zr_runtime_save(state->runtime, &asked, &report), &report);
    zr_status_t status = zr_runtime_save_begin(state->runtime, &asked);
    state->is_saving = status == ZR_OK;
    return state->is_saving ? ZR_OK : note_save(state, status, &report);
}

static zr_status_t all_micro_batches(rank_state_t *state) {
    const zr_config_t *config = &state->options->config;
    for (state->micro_batch = 0; state->micro_batch < config->grad_accum;
         state->micro_batch += zr_config_n_together(config))
        ZR_TRY(micro_batches(state));
    return ZR_OK;
}

static zr_status_t steps(rank_state_t *state) {
    ZR_TRY(save(state, state->options->save_at_once));
    ZR_TRY(write_all(state, 0));
    for (; state->step < state->options->n_steps; state->step++) {
        ZR_TRY(all_micro_batches(state));
        if (state->options->drop_step == (int)state->step) {
            ZR_TRY(zr_runtime_drop_step(state->runtime));
            ZR_TRY(all_micro_batches(state));
        }
        ZR_TRY(zr_runtime_step(state->runtime, &state->last));
        ZR_TRY(check_peeked(state));
        ZR_TRY(end_save(state, false));
        ZR_TRY(save(state, state->step + 1 == state->options->n_steps ||
                               state->step + 1 == state->options->save_step));
        ZR_TRY(write_all(state, state->step + 1));
        if (state->options->evaluate)
            ZR_TRY(evaluate(state));
        for (int pass = 0; pass < state->options->n_passes; pass++) {
            ZR_TRY(zr_runtime_begin_evaluation(state->runtime));
            ZR_TRY(evaluate(state));
        }
    }
    return state->options->abandon_save ? ZR_OK : end_save(state, true);
}

static void subtract(zr_comm_statistics_t *after, const zr_comm_statistics_t *before) {
    for (int t = 0; t < ZR_N_TRAFFICS; t++)
        for (int c = 0; c < ZR_N_COLLECTIVES; c++) {
            after->count[t][c].n_calls -= before->count[t][c].n_calls;
            after->count[t][c].elems_sent -= before->count[t][c].elems_sent;
            after->count[t][c].bytes_sent -= before->count[t][c].bytes_sent;
        }
}

static zr_status_t read_samples(rank_state_t *state) {
    for (int i = 0; i < TOY_N_SAMPLES; i++) {
        zr_param_t *param = state->params[toy_samples[i].unit][toy_samples[i].index];
        ZR_TRY(zr_param_read(param, 0, TOY_SAMPLE_ELEMS, state->values));
        if (state->rank == 0)
            memcpy(state->result->sample[i], state->values, sizeof(state->result->sample[i]));
    }
    return ZR_OK;
}

/* All parameters, those that were updated last first. */
static zr_status_t look(rank_state_t *state, uint64_t *sum_p) {
    uint64_t sum = 0;
    for (int unit = N_UNITS - 1; unit >= 0; unit--)
        for (int i = 0; i < state->n_params[unit]; i++) {
            zr_param_t *param = state->params[unit][i];
            size_t n_elems = zr_param_n_elems(param);
            ZR_TRY(zr_param_read(param, 0, n_elems, state->values));
            for (size_t elem = 0; elem < n_elems; elem++) {
                uint32_t bits;
                memcpy(&bits, &state->values[elem], sizeof(bits));
                sum = (sum ^ bits) * 0x100000001b3u;
            }
        }
    *sum_p = sum;
    return ZR_OK;
}

/* What is seen at once is what is seen when all is done. */
static zr_status_t look_twice(rank_state_t *state) {
    uint64_t at_once, later;
    ZR_TRY(look(state, &at_once));
    ZR_TRY(look(state, &later));
    return at_once == later ? ZR_OK : ZR_ERR_STATE;
}

/* The ranks' numbers, each time moved by another amount. */
static zr_status_t average_twice(rank_state_t *state) {
    double n_ranks = state->options->n_ranks;
    for (int moved = 1; moved <= 2; moved++) {
        double average = 0;
        ZR_TRY(zr_runtime_average(state->runtime, n_ranks * (state->rank + moved), &average));
        if (average != n_ranks * (n_ranks - 1) / 2 + n_ranks * moved)
            return ZR_ERR_STATE;
    }
    return ZR_OK;
}

static void arm_failure(const rank_state_t *state) {
    const zr_runtime_t *runtime = state->runtime;
    zr_stream_t *streams[TOY_N_STREAMS] = {runtime->base.compute, runtime->base.transfer,
                                           runtime->copies.down, runtime->copies.up};
    int which = state->options->fail_stream;
    if (which >= 0 && streams[which] != NULL)
        late_device_fail_work(streams[which], state->options->fail_nth);
}

static zr_status_t train(rank_state_t *state) {
    zr_comm_statistics_t before[ZR_N_LEVELS], after[ZR_N_LEVELS];
    ZR_TRY(build(state));
    arm_failure(state);
    for (int level = 0; level < ZR_N_LEVELS; level++)
        zr_runtime_comm_statistics(state->runtime, (zr_level_t)level, &before[level]);
    ZR_TRY(steps(state));
    for (int level = 0; level < ZR_N_LEVELS; level++) {
        zr_runtime_comm_statistics(state->runtime, (zr_level_t)level, &after[level]);
        subtract(&after[level], &before[level]);
    }
    zr_runtime_offload(state->runtime, &state->result->offload[state->rank]);
    if (state->rank == 0) {
        memcpy(state->result->traffic, after, sizeof(after));
        zr_allocator_statistics(zr_runtime_allocator(state->runtime), ZR_TIER_DEVICE,
                                &state->result->device_memory);
        zr_allocator_statistics(zr_runtime_allocator(state->runtime), ZR_TIER_HOST,
                                &state->result->host_memory);
        zr_allocator_replay_statistics(zr_runtime_allocator(state->runtime),
                                       &state->result->replay);
        zr_runtime_model_size(state->runtime, &state->result->size);
        state->result->step = state->last;
    }
    ZR_TRY(look_twice(state));
    ZR_TRY(average_twice(state));
    ZR_TRY(read_samples(state));
    return zr_runtime_weights_xxh3(state->runtime, &state->hash);
}

/* ---- ranks ---- */

typedef struct toy_run {
    const toy_options_t *options;
    toy_result_t *result;
    uint64_t hash[TEST_MAX_RANKS];
} toy_run_t;

static zr_status_t create_and_train(rank_state_t *state, test_rank_t *rank) {
    zr_config_t config = state->options->config;
    if (state->options->other_rank == state->rank)
        config.adamw.lr *= 2;
    if (state->options->tight_rank == state->rank)
        config.device_memory_bytes = state->options->tight_bytes;
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &state->runtime));
    return train(state);
}

static zr_status_t run_rank(test_rank_t *rank) {
    toy_run_t *run = rank->context;
    rank_state_t state = {.options = run->options,
                          .result = run->result,
                          .comm = rank->comm,
                          .rank = rank->rank,
                          .values = calloc(MAX_ELEMS, sizeof(float)),
                          .raw = calloc(MAX_ELEMS, sizeof(float))};
    zr_status_t status = create_and_train(&state, rank);
    run->hash[rank->rank] = state.hash;
    zr_runtime_destroy(&state.runtime);
    free(state.values);
    free(state.raw);
    return status;
}

void toy_train(const toy_options_t *options, toy_result_t *result) {
    toy_run_t run = {.options = options, .result = result};
    test_ranks_t ranks = {.n_ranks = options->n_ranks,
                          .device_name = options->device_name,
                          .late = options->late,
                          .concurrent = options->concurrent,
                          .quiet = options->quiet,
                          .run = run_rank,
                          .context = &run};
    *result = (toy_result_t){0};
    test_run_ranks(&ranks);
    memcpy(result->status, ranks.status, sizeof(result->status));
    memcpy(result->last_error, ranks.last_error, sizeof(result->last_error));
    result->hash = run.hash[0];
    for (int r = 0; r < options->n_ranks; r++)
        if (ranks.status[r] == ZR_OK && run.hash[r] != run.hash[0])
            result->status[r] = ZR_ERR_STATE;
}

void toy_train_well(const toy_options_t *options, toy_result_t *result) {
    toy_train(options, result);
    for (int r = 0; r < options->n_ranks; r++)
        if (result->status[r] != ZR_OK || result->saved[r] != ZR_OK)
            fail_msg("rank %d: %s, saved %s: %s", r, zr_status_name(result->status[r]),
                     zr_status_name(result->saved[r]), result->last_error[r]);
}

uint64_t toy_hash(const toy_options_t *options) {
    toy_result_t result;
    toy_train_well(options, &result);
    return result.hash;
}

void toy_expect_hash(const toy_options_t *options, uint64_t hash) {
    if (toy_hash(options) == hash)
        return;
    zr_config_t usual = zr_config_default();
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    for (size_t i = 0; i < n; i++)
        if (rows[i].field != NULL && !zr_option_equal(&rows[i], &usual, &options->config))
            print_error("%s=%s ", rows[i].name != NULL ? rows[i].name : rows[i].field,
                        zr_option_text(&rows[i], &options->config).text);
    fail_msg("%d ranks, %zu steps: other weights", options->n_ranks, options->n_steps);
}

void toy_expect_error(toy_options_t *options, zr_status_t status, const char *text) {
    toy_result_t result;
    options->quiet = true;
    toy_train(options, &result);
    for (int r = 0; r < options->n_ranks; r++)
        if (result.status[r] == status && strstr(result.last_error[r], text) != NULL)
            return;
    fail_msg("no rank ends with %s and \"%s\", but rank 0 with %s: %s", zr_status_name(status),
             text, zr_status_name(result.status[0]), result.last_error[0]);
}
