/*
 * Updates of tensors that stay the caller's: wherever the state lies, in whatever pieces, they end
 * in the bits of the kernel on whole arrays; a tensor that is left out is not touched; state is
 * read and written as it is; budgets hold; what is wrong is refused.
 */
#include <math.h>
#include <string.h>

#include "tests/common/test.h"
#include "zero/zero.h"

enum { N_TENSORS = 4, N_STEPS = 3, LEFT_OUT = 2 /* in every second step */ };
static const size_t sizes[N_TENSORS] = {5, 0, 70001, 4096};
#define MOST_ELEMS ((size_t)70001)

/* Parameters, gradients and state of all tensors, as one who keeps all of it has them. */
typedef struct tensors {
    float *grad[N_TENSORS];
    void *param[N_TENSORS];
    float *arrays[N_TENSORS][ZR_MAX_STATE_ARRAYS];
} tensors_t;

static float noise(size_t key, size_t i) {
    return sinf((float)(key * 7919 + i * 31 % 1009)) * 0.5f;
}

static void make(tensors_t *tensors, zr_dtype_t dtype) {
    for (size_t t = 0; t < N_TENSORS; t++) {
        tensors->grad[t] = calloc(sizes[t] + 1, sizeof(float));
        tensors->param[t] = calloc(sizes[t] + 1, sizeof(float));
        for (size_t a = 0; a < ZR_MAX_STATE_ARRAYS; a++)
            tensors->arrays[t][a] = calloc(sizes[t] + 1, sizeof(float));
        for (size_t i = 0; i < sizes[t]; i++) {
            tensors->arrays[t][0][i] = noise(t, i);
            if (dtype == ZR_DTYPE_F32)
                ((float *)tensors->param[t])[i] = noise(t, i);
            else
                ((zr_bf16_t *)tensors->param[t])[i] = zr_bf16_from_f32(noise(t, i));
        }
    }
}

static void drop(tensors_t *tensors) {
    for (size_t t = 0; t < N_TENSORS; t++) {
        free(tensors->grad[t]);
        free(tensors->param[t]);
        for (size_t a = 0; a < ZR_MAX_STATE_ARRAYS; a++)
            free(tensors->arrays[t][a]);
    }
}

static void set_grads(tensors_t *tensors, size_t step) {
    for (size_t t = 0; t < N_TENSORS; t++)
        for (size_t i = 0; i < sizes[t]; i++)
            tensors->grad[t][i] = noise(100 * step + t, i);
}

/* The updates of a step, of tensors that are not left out. */
static size_t ask(const zr_update_rule_t *rule, const tensors_t *tensors, zr_dtype_t dtype,
                  size_t step, zr_tensor_update_t updates[N_TENSORS]) {
    size_t n = 0;
    for (size_t t = 0; t < N_TENSORS; t++) {
        if (t == LEFT_OUT && step % 2 == 0)
            continue;
        zr_update_t *update = &updates[n].update;
        *update = (zr_update_t){.n_elems = sizes[t],
                                .grad = tensors->grad[t],
                                .param = tensors->param[t],
                                .grad_dtype = ZR_DTYPE_F32,
                                .param_dtype = dtype,
                                .grad_scale = 0.5f,
                                .lr = 0.01f * (float)(t + 1),
                                .weight_decay = 0.1f,
                                .step = (int)step};
        for (size_t h = 0; h < rule->n_hypers; h++)
            update->hyper[h] = (float)(rule->hypers[h].is_switch ? 1 : rule->hypers[h].usual);
        updates[n++].tensor = t;
    }
    return n;
}

/* What the kernel makes of whole arrays. */
static void train_plainly(zr_device_t *device, const zr_update_rule_t *rule, zr_dtype_t dtype,
                          tensors_t *tensors) {
    zr_stream_t *stream = NULL;
    assert_ok(zr_stream_create(device, "plain", &stream));
    for (size_t step = 1; step <= N_STEPS; step++) {
        zr_tensor_update_t updates[N_TENSORS];
        set_grads(tensors, step);
        size_t n = ask(rule, tensors, dtype, step, updates);
        for (size_t i = 0; i < n; i++) {
            for (size_t a = 0; a < rule->n_arrays; a++)
                updates[i].update.arrays[a] = tensors->arrays[updates[i].tensor][a];
            assert_ok(zr_kernel_update(stream, rule, &updates[i].update));
        }
    }
    zr_stream_destroy(&stream);
}

static void expect_state(zr_updater_t *updater, const zr_update_rule_t *rule, size_t first_array,
                         const tensors_t *expected) {
    static float values[MOST_ELEMS];
    for (size_t t = 0; t < N_TENSORS; t++)
        for (size_t a = first_array; a < rule->n_arrays; a++) {
            assert_ok(zr_updater_read(updater, t, a, values));
            assert_memory_equal(values, expected->arrays[t][a], sizes[t] * sizeof(float));
        }
}

static void train(zr_updater_t *updater, const zr_update_rule_t *rule, zr_dtype_t dtype,
                  tensors_t *tensors) {
    for (size_t t = 0; t < N_TENSORS && dtype == ZR_DTYPE_BF16; t++)
        assert_ok(zr_updater_write(updater, t, 0, tensors->arrays[t][0]));
    for (size_t step = 1; step <= N_STEPS; step++) {
        zr_tensor_update_t updates[N_TENSORS];
        set_grads(tensors, step);
        size_t n = ask(rule, tensors, dtype, step, updates);
        assert_ok(zr_updater_update(updater, updates, n));
    }
}

static void expect_same(zr_device_t *device, const zr_config_t *config, zr_dtype_t dtype,
                        const tensors_t *expected) {
    const zr_update_rule_t *rule = &zr_config_optimizer(config)->rule;
    size_t first_array = dtype == ZR_DTYPE_F32 ? 1 : 0;
    zr_updater_t *updater = NULL;
    tensors_t tensors;
    make(&tensors, dtype);
    assert_ok(zr_updater_create(config, device, NULL, dtype, sizes, N_TENSORS, &updater));
    train(updater, rule, dtype, &tensors);
    for (size_t t = 0; t < N_TENSORS; t++)
        assert_memory_equal(tensors.param[t], expected->param[t], sizes[t] * zr_dtype_size(dtype));
    expect_state(updater, rule, first_array, expected);
    for (size_t a = first_array; a < rule->n_arrays; a++) /* what is written comes back */
        assert_ok(zr_updater_write(updater, LEFT_OUT, a, tensors.grad[LEFT_OUT]));
    static float values[MOST_ELEMS];
    for (size_t a = first_array; a < rule->n_arrays; a++) {
        assert_ok(zr_updater_read(updater, LEFT_OUT, a, values));
        assert_memory_equal(values, tensors.grad[LEFT_OUT], sizeof(values));
    }
    zr_updater_destroy(&updater);
    drop(&tensors);
}

static zr_config_t variant(const zr_optimizer_type_t *optimizer, zr_offload_device_t device,
                           size_t sub_group, size_t in_host) {
    zr_config_t config = zr_config_default();
    zr_config_set_optimizer(&config, optimizer);
    config.offload_optimizer.device = device;
    config.offload_optimizer.max_in_cpu_elems = in_host;
    config.sub_group_elems = sub_group;
    config.nvme.store = "memory";
    return config;
}

static zr_device_t *open_host(void) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    options.n_threads = 2;
    assert_ok(zr_device_open("host", &options, &device));
    return device;
}

TEST(every_placement_ends_in_the_bits_of_the_kernel) {
    size_t n = 0;
    const zr_optimizer_type_t *const *types = zr_optimizers(&n);
    zr_device_t *device = open_host();
    for (size_t i = 0; i < 2 * n; i++) {
        const zr_optimizer_type_t *type = types[i / 2];
        zr_dtype_t dtype = i % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
        tensors_t expected;
        make(&expected, dtype);
        train_plainly(device, &type->rule, dtype, &expected);
        for (int placement = ZR_OFFLOAD_NONE; placement <= ZR_OFFLOAD_NVME; placement++)
            for (size_t sub_group = 1024; sub_group < 10000000; sub_group *= 300)
                for (size_t in_host = 0; in_host <= 9000; in_host += 9000) {
                    zr_config_t config =
                        variant(type, (zr_offload_device_t)placement, sub_group, in_host);
                    expect_same(device, &config, dtype, &expected);
                }
        drop(&expected);
    }
    zr_device_close(&device);
}

static void expect_refused(zr_config_t config, zr_device_t *device, zr_dtype_t dtype,
                           zr_status_t status, const char *words) {
    zr_updater_t *updater = NULL;
    assert_int_equal(zr_updater_create(&config, device, NULL, dtype, sizes, N_TENSORS, &updater),
                     status);
    assert_null(updater);
    assert_non_null(strstr(zr_last_error(), words));
}

TEST(budgets_hold) {
    zr_device_t *device = open_host();
    zr_config_t config = variant(&zr_adamw, ZR_OFFLOAD_CPU, 1000000, 0);
    config.host_memory_bytes = 300000;
    expect_refused(config, device, ZR_DTYPE_F32, ZR_ERR_BUDGET, "host memory");
    config.host_memory_bytes = 2000000;
    config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    config.nvme.capacity_bytes = 300000;
    expect_refused(config, device, ZR_DTYPE_F32, ZR_ERR_BUDGET, "--nvme-capacity");
    expect_refused(config, device, ZR_DTYPE_U8, ZR_ERR_ARGUMENT, "fp32 and bf16");
    zr_device_close(&device);
}

TEST(what_is_wrong_is_refused) {
    zr_device_t *device = open_host();
    zr_config_t config = variant(&zr_sgd, ZR_OFFLOAD_CPU, 1000000, 0);
    zr_updater_t *updater = NULL;
    float values[5] = {0};
    zr_tensor_update_t updates[2] = {{.tensor = 1}, {.tensor = 0}};
    assert_int_equal(zr_updater_create(&config, device, NULL, ZR_DTYPE_F32, sizes, 0, &updater),
                     ZR_ERR_ARGUMENT);
    assert_ok(zr_updater_create(&config, device, NULL, ZR_DTYPE_F32, sizes, N_TENSORS, &updater));
    updates[1].update = (zr_update_t){.param = values, .grad = values};
    assert_int_equal(zr_updater_update(updater, updates, 2), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(zr_last_error(), "tensor 0 comes after tensor 1"));
    updates[0] = (zr_tensor_update_t){.tensor = 0};
    assert_int_equal(zr_updater_update(updater, updates, 1), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(zr_last_error(), "tensor 0 has no parameters"));
    updates[0].tensor = N_TENSORS;
    assert_int_equal(zr_updater_update(updater, updates, 1), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_updater_read(updater, 0, 0, values), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(zr_last_error(), "keeps arrays 1 to 1"));
    assert_int_equal(zr_updater_write(updater, 0, 1, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_updater_write(updater, 0, 1, values)); /* it goes on */
    zr_updater_destroy(&updater);
    zr_updater_destroy(&updater);
    zr_device_close(&device);
}
