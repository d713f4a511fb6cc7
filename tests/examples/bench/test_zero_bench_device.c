/*
 * zero-bench on devices, with the emulated GPU: every command that has --device runs on the host
 * and there, and the fields of its object fit each other. How fast it is says nothing here.
 */
#include "tests/examples/bench/run_bench.h"

static const char *const devices[] = {"host", "cuda"};
static const char *const dtypes[] = {"fp32", "bf16"};

static bool is_host(const char *device) {
    return strcmp(device, "host") == 0;
}

static json_t *run_json(const char *command, const char *device, const char *dtype) {
    char arguments[512], output[16384];
    snprintf(arguments, sizeof(arguments), "%s --json --device %s --dtype %s 2>/dev/null", command,
             device, dtype);
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_string_equal(json_string_value(json_object_get(object, "dtype")), dtype);
    const char *found = json_string_value(json_object_get(object, "device"));
    const char *expected =
        strcmp(device, "cuda:1") == 0 ? "emulated device 1" : "emulated device 0";
    assert_non_null(found);
    if (strstr(found, is_host(device) ? "thread" : expected) == NULL)
        fail_msg("%s: measured on %s", device, found);
    return object;
}

static void assert_near(double value, double expected) {
    if (!(fabs(value / expected - 1.0) < 1e-6))
        fail_msg("%.9g instead of %.9g", value, expected);
}

static void check_adam(const char *device, const char *dtype) {
    json_t *object = run_json("adam --elems 5001 --seconds 0", device, dtype);
    const json_t *adam = json_object_get(object, "adam");
    const json_t *limit = json_object_get(object, is_host(device) ? "stream" : "copy");
    assert_true(number_at(object, "rounds") >= 5.0);
    assert_near(number_at(object, "ratio"),
                number_at(limit, "seconds") / number_at(adam, "seconds"));
    assert_near(number_at(adam, "bytes_per_s") / number_at(adam, "elems_per_s"),
                strcmp(dtype, "fp32") == 0 ? 32.0 : 28.0);
    json_decref(object);
}

/* Bytes that a kernel has to move, per element of the arrays; 0: not checked here. */
static double bytes_of(const char *name, double activation, double param) {
    const struct {
        const char *name;
        double bytes;
    } kernels[] = {{"fill", activation},
                   {"scale", 2 * activation},
                   {"cast to bf16", 6.0},
                   {"cast to fp32", 6.0},
                   {"add", 8.0 + activation},
                   {"sum", 3 * activation},
                   {"sum of squares", activation},
                   {"layernorm", 2 * activation},
                   {"layernorm backward", 3 * activation},
                   {"gelu", 2 * activation},
                   {"gelu backward", 3 * activation},
                   {"bias gradient", activation},
                   {"embedding", activation + 2 * param},
                   {"embedding backward", 0.0}};
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (strcmp(kernels[i].name, name) == 0)
            return kernels[i].bytes;
    fail_msg("%s is unknown", name);
    return 0.0;
}

static void check_kernels(const char *device, const char *dtype) {
    json_t *object =
        run_json("kernels --tokens 33 --channels 24 --vocab 101 --seconds 0", device, dtype);
    const char *activation_name = json_string_value(json_object_get(object, "activation_dtype"));
    double param = strcmp(dtype, "fp32") == 0 ? 4.0 : 2.0;
    double activation = strcmp(activation_name, "fp32") == 0 ? 4.0 : 2.0;
    assert_true(activation == (is_host(device) ? 4.0 : param));
    const json_t *list = json_object_get(object, "kernels");
    double least = INFINITY;
    assert_int_equal(json_array_size(list), 14);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *kernel = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(kernel, "name"));
        double bytes = bytes_of(name, activation, param);
        if (bytes > 0.0)
            assert_near(number_at(kernel, "bytes"), 33 * 24 * bytes);
        assert_near(number_at(kernel, "bytes_per_s"),
                    number_at(kernel, "bytes") / number_at(kernel, "seconds"));
        double ratio = number_at(kernel, "bytes_per_s") / number_at(kernel, "copy_bytes_per_s");
        assert_near(number_at(kernel, "ratio"), ratio);
        least = ratio < least ? ratio : least;
    }
    assert_near(number_at(object, "ratio"), least);
    json_decref(object);
}

static void check_matmul(const char *device, const char *dtype) {
    json_t *object =
        run_json("matmul --tokens 5 --channels 8 --side 32 --seconds 0", device, dtype);
    const json_t *list = json_object_get(object, "products");
    double machine = number_at(object, "machine_gflop_per_s"), operations = 0.0, seconds = 0.0;
    assert_string_equal(json_string_value(json_object_get(object, "machine")),
                        is_host(device) ? "sgemm" : "cublas");
    assert_true(number_at(object, "machine_side") == 32.0);
    assert_int_equal(json_array_size(list), 12);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *product = json_array_get(list, i);
        double own =
            2.0 * number_at(product, "m") * number_at(product, "n") * number_at(product, "k");
        assert_near(1e9 * number_at(product, "gflop_per_s"), own / number_at(product, "seconds"));
        assert_near(number_at(product, "ratio"), number_at(product, "gflop_per_s") / machine);
        operations += own;
        seconds += number_at(product, "seconds");
    }
    /* A layer has 12 channels^2 weights: 6 operations for each and token. */
    assert_near(operations, 6.0 * 12 * 8 * 8 * 5);
    assert_near(1e9 * number_at(object, "gflop_per_s"), operations / seconds);
    assert_near(number_at(object, "ratio"), number_at(object, "gflop_per_s") / machine);
    json_decref(object);
}

static void check_step(const char *device, const char *dtype) {
    json_t *object = run_json("step --model layers=1,channels=16,heads=2,seq=8,vocab=31 --steps 2 "
                              "--micro-batch 1 --ranks 2 --stage 3 --side 32",
                              device, dtype);
    double per_second = 2 * 8 / (1e-3 * number_at(object, "step_ms"));
    assert_near(number_at(object, "tokens_per_s"), per_second);
    assert_string_equal(json_string_value(json_object_get(object, "machine")),
                        is_host(device) ? "sgemm" : "cublas");
    assert_near(number_at(object, "ratio"),
                number_at(object, "gflop_per_s") / number_at(object, "machine_gflop_per_s"));
    /* It is a real model that learns nothing of random tokens. */
    assert_true(fabs(number_at(object, "first_loss") - log(31.0)) < 0.5);
    assert_true(fabs(number_at(object, "last_loss") - log(31.0)) < 0.5);
    json_decref(object);
}

static void on_all(void (*check)(const char *device, const char *dtype)) {
    for (int device = 0; device < 2; device++)
        for (int dtype = 0; dtype < 2; dtype++)
            check(devices[device], dtypes[dtype]);
    check("cuda:1", "bf16");
}

TEST(test_adam) {
    on_all(check_adam);
}

TEST(test_kernels) {
    on_all(check_kernels);
}

TEST(test_matmul) {
    on_all(check_matmul);
}

/* Times say nothing: whatever is chosen, the file has all products, and what the device proposes.
 */
TEST(test_save_choices) {
    char output[65536];
    assert_int_equal(run("matmul --device cuda --dtype bf16 --tokens 16 --channels 16 --side 32 "
                         "--seconds 0 --json --workspace 6MiB --save-choices choices 2>/dev/null",
                         output, sizeof(output)),
                     0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    json_t *list = json_object_get(object, "choices");
    assert_int_equal(json_array_size(list), 12);
    json_t *file = json_load_file("choices", JSON_REJECT_DUPLICATES, NULL);
    const char *made_for = json_string_value(json_object_get(file, "made_for"));
    assert_non_null(made_for);
    assert_non_null(strstr(made_for, "cuBLASLt 130000, emulated device 0"));
    assert_true(number_at(file, "limit_bytes") == 6 << 20);
    json_t *products = json_object_get(file, "products"), *choice;
    const char *product;
    assert_int_equal(json_object_size(products), 12);
    json_object_foreach(products, product, choice) {
        const char *algorithm = json_string_value(json_object_get(choice, "algorithm"));
        assert_true(json_is_null(json_object_get(choice, "algorithm")) ||
                    strstr(algorithm, "id 2") == algorithm);
        assert_true(algorithm == NULL || strstr(algorithm, "id 22 ") == NULL); /* fails */
        assert_true(number_at(choice, "seconds") <= number_at(choice, "first_seconds"));
    }
    assert_non_null(
        json_object_get(products, "16 x 64 x 16, a transposed, rows of 16 and 64, bf16 to bf16"));
    assert_non_null(json_object_get(
        products, "16 x 64 x 16, rows of 16 and 64, bf16 to bf16, bias bf16, gelu, pre_gelu"));
    json_decref(object);
    json_decref(file);
    assert_bad_usage("matmul --device host --save-choices choices", "they require device");
    assert_bad_usage("matmul --device cuda --workspace 8MiB", "--save-choices");
    assert_bad_usage("matmul --device cuda --save-choices absent/choices", "--save-choices absent");
}

TEST(test_step) {
    on_all(check_step);
}

/* Of a GPU also the link to it and the processors beside it. */
TEST(test_hardware) {
    static const char *const of_cuda[] = {"to_device.bytes_per_s", "to_host.latency_s",
                                          "host.update_bytes_per_s", "device.kernel_latency_s",
                                          "device.matrix_bf16_ops_per_s"};
    for (int device = 0; device < 2; device++) {
        char arguments[128], output[32768];
        snprintf(arguments, sizeof(arguments), "hardware --quick --json --device %s 2>/dev/null",
                 devices[device]);
        assert_int_equal(run(arguments, output, sizeof(output)), 0);
        json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
        assert_string_equal(json_string_value(json_object_get(object, "kind")), devices[device]);
        const json_t *sources = json_object_get(object, "sources");
        for (int i = 0; i < 5; i++) {
            const char *source = json_string_value(json_object_get(sources, of_cuda[i]));
            if (!is_host(devices[device]) || strncmp(of_cuda[i], "device.", 7) == 0)
                assert_true(source != NULL && strncmp(source, "measured on 20", 14) == 0);
            else
                assert_null(source);
        }
        json_decref(object);
    }
}

/* What is no device, what a device has not, and what cannot be measured on it. */
TEST(test_refused) {
    assert_bad_usage("adam --device gpu", "--device gpu");
    assert_bad_usage("kernels --device cuda:x", "--device cuda: index");
    assert_bad_usage("adam --device cuda --isa avx2", "--isa is for --device host");
    assert_bad_usage("matmul --device cuda --threads 2", "--threads is for --device host");
    assert_bad_usage("adam --device cuda --offload cpu", "--device cuda: updates of offloaded");
    assert_bad_usage("matmul --side 4", "--side 4");
}

/* Without a GPU all say what zero-train says. */
TEST(test_without_gpu) {
    const char *const commands[] = {"adam", "kernels", "matmul", "step"};
    char arguments[128];
    assert_int_equal(setenv("EMU_DEVICES", "0", 1), 0);
    for (int i = 0; i < 4; i++) {
        snprintf(arguments, sizeof(arguments), "%s --device cuda", commands[i]);
        assert_bad_usage(arguments, "--device cuda: not available here: ");
        assert_bad_usage(arguments, "not available here");
    }
    assert_int_equal(unsetenv("EMU_DEVICES"), 0);
}
