/*
 * See nn_test.h.
 */
#include "tests/common/kept_log.h"
#include "tests/kernels/nn/nn_test.h"

#define GUARD_BYTES 64
#define ARENA_BYTES ((size_t)64 << 20)

static const char *device_name = "host";
static nn_device_t *current; /* the device of the moment */

/* Where arrays of devices other than the host lie: taken one behind the other. The latest may be
 * given back; all are free again when the last one is. */
static struct {
    char *base, *latest;
    size_t size_bytes, used_bytes, used_before_latest;
    int n_live;
} arena;

/* ---- devices ---------------------------------------------------------------------- */

static bool is_host(void) {
    return strcmp(device_name, "host") == 0;
}

/* All of its tests, on the device that the program was given. */
int main(int argc, char **argv) {
    zr_device_t *device = NULL;
    device_name = argc > 1 ? argv[1] : "host";
    zr_status_t status = zr_device_open(device_name, NULL, &device);
    zr_device_close(&device);
    if (status != ZR_ERR_UNSUPPORTED && status != ZR_ERR_DEVICE)
        return run_all_tests(NULL, NULL);
    printf("skipped: no device \"%s\" here\n", device_name);
    return TEST_SKIPPED;
}

static void open_arena(zr_device_t *device) {
    size_t granule = zr_device_info(device)->granule_bytes;
    void *base = NULL;
    arena.size_bytes = (ARENA_BYTES + granule - 1) / granule * granule;
    assert_ok(zr_range_reserve(device, ZR_TIER_DEVICE, arena.size_bytes, &base));
    assert_ok(zr_range_map(device, ZR_TIER_DEVICE, base, 0, arena.size_bytes));
    arena.base = base;
    arena.used_bytes = 0;
    arena.n_live = 0; /* a test that failed has freed nothing */
}

static void on_device(nn_device_t *device, void (*body)(nn_device_t *device)) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = device->n_threads;
    options.isa = device->isa;
    options.log.sink = drop_message;
    zr_status_t status = zr_device_open(device_name, &options, &device->device);
    if (status == ZR_ERR_UNSUPPORTED && device->isa != NULL) {
        print_message("no %s here: not tested\n", device->isa);
        return;
    }
    assert_ok(status);
    assert_ok(zr_stream_create(device->device, "compute", &device->stream));
    if (is_host())
        print_message("%d threads, %s\n", device->n_threads,
                      device->isa == NULL ? "best instruction set" : device->isa);
    else
        print_message("arrays %zu elements after an aligned address\n", device->skip_elems);
    if (!is_host())
        open_arena(device->device);
    current = device;
    body(device);
    current = NULL;
    assert_int_equal(arena.n_live, 0);
    zr_stream_destroy(&device->stream);
    void *base = arena.base;
    if (!is_host())
        zr_range_release(device->device, ZR_TIER_DEVICE, &base, arena.size_bytes);
    zr_device_close(&device->device);
}

void nn_on_every_device(void (*body)(nn_device_t *device)) {
    if (!is_host()) {
        on_device(&(nn_device_t){.n_threads = 1}, body);
        on_device(&(nn_device_t){.n_threads = 1, .skip_elems = 1}, body);
        return;
    }
#if defined(__SANITIZE_THREAD__)
    /* It looks at how threads share work, which two show; the rest would take minutes. */
    on_device(&(nn_device_t){.n_threads = 2}, body);
#else
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (int n_threads = 1; n_threads <= 3; n_threads++)
        on_device(&(nn_device_t){.n_threads = n_threads}, body);
    for (size_t i = 0; i < N_OF(isas); i++)
        on_device(&(nn_device_t){.isa = isas[i], .n_threads = 2}, body);
#endif
}

zr_dtype_t nn_activation_dtype(const nn_device_t *device, zr_dtype_t param_dtype) {
    zr_dtype_t dtype = ZR_DTYPE_U8;
    assert_ok(zr_nn_activation_dtype(device->device, param_dtype, &dtype));
    return dtype;
}

/* ---- device memory ------------------------------------------------------------------ */

/* Memory of the arena with guards on both sides, as bytes of ones. */
static void *take(size_t size_bytes, size_t skip_bytes) {
    size_t offset = (arena.used_bytes + GUARD_BYTES + 255) / 256 * 256 + skip_bytes;
    assert_true(offset + size_bytes + GUARD_BYTES <= arena.size_bytes);
    arena.used_before_latest = arena.used_bytes;
    arena.used_bytes = offset + size_bytes + GUARD_BYTES;
    arena.n_live++;
    arena.latest = arena.base + offset;
    return arena.latest;
}

static void give_back(const void *data) {
    if (data == arena.latest)
        arena.used_bytes = arena.used_before_latest;
    arena.latest = NULL;
    if (--arena.n_live == 0)
        arena.used_bytes = 0;
}

static void copy(void *dst, const void *src, size_t size_bytes, zr_copy_t kind) {
    if (size_bytes > 0)
        assert_ok(zr_copy_async(current->stream, dst, src, size_bytes, kind));
    assert_ok(zr_stream_synchronize(current->stream));
}

/* Guards behind and, where there is room, before the bytes: write them, or look at them. */
static void write_guards(char *data, size_t size_bytes) {
    char ones[GUARD_BYTES];
    memset(ones, 0xff, sizeof(ones));
    copy(data - GUARD_BYTES, ones, GUARD_BYTES, ZR_COPY_HOST_TO_DEVICE);
    copy(data + size_bytes, ones, GUARD_BYTES, ZR_COPY_HOST_TO_DEVICE);
}

static void check_guards(char *data, size_t size_bytes) {
    unsigned char bytes[2 * GUARD_BYTES];
    copy(bytes, data - GUARD_BYTES, GUARD_BYTES, ZR_COPY_DEVICE_TO_HOST);
    copy(bytes + GUARD_BYTES, data + size_bytes, GUARD_BYTES, ZR_COPY_DEVICE_TO_HOST);
    for (size_t i = 0; i < sizeof(bytes); i++)
        assert_int_equal(bytes[i], 0xff);
}

/* ---- arrays ------------------------------------------------------------------------- */

static size_t bytes_of(const nn_array_t *array) {
    return array->n * zr_dtype_size(array->dtype);
}

const void *nn_download(const nn_array_t *array) {
    if (!is_host())
        copy(array->host, array->data, bytes_of(array), ZR_COPY_DEVICE_TO_HOST);
    return array->host;
}

void nn_upload(const nn_array_t *array) {
    if (!is_host())
        copy(array->data, array->host, bytes_of(array), ZR_COPY_HOST_TO_DEVICE);
}

double nn_value(const nn_array_t *array, size_t i) {
    switch (array->dtype) {
    case ZR_DTYPE_F32:
        return (double)((float *)array->host)[i];
    case ZR_DTYPE_F64:
        return ((double *)array->host)[i];
    case ZR_DTYPE_I32:
        return (double)((int32_t *)array->host)[i];
    default:
        return (double)zr_bf16_to_f32(((zr_bf16_t *)array->host)[i]);
    }
}

void nn_set_value(nn_array_t *array, size_t i, double value) {
    switch (array->dtype) {
    case ZR_DTYPE_F32:
        ((float *)array->host)[i] = (float)value;
        break;
    case ZR_DTYPE_F64:
        ((double *)array->host)[i] = value;
        break;
    case ZR_DTYPE_I32:
        ((int32_t *)array->host)[i] = (int32_t)value;
        break;
    default:
        ((zr_bf16_t *)array->host)[i] = zr_bf16_from_f32((float)value);
    }
    array->ref[i] = nn_value(array, i);
}

static nn_array_t make_array(size_t n, zr_dtype_t dtype) {
    nn_array_t array = {.n = n, .dtype = dtype};
    array.host = malloc(bytes_of(&array) + 1); /* exact: a sanitizer sees one too far */
    array.ref = malloc(n * sizeof(double) + 1);
    assert_non_null(array.host);
    assert_non_null(array.ref);
    array.data = array.host;
    if (!is_host()) {
        array.data = take(bytes_of(&array), current->skip_elems * zr_dtype_size(dtype));
        write_guards(array.data, bytes_of(&array));
    }
    return array;
}

nn_array_t nn_array_random(size_t n, zr_dtype_t dtype, double scale, uint64_t seed) {
    nn_array_t array = make_array(n, dtype);
    for (size_t i = 0; i < n; i++)
        nn_set_value(&array, i,
                     scale *
                         (2.0 * ((double)(random_bits(&seed) >> 11) / 9007199254740992.0) - 1.0));
    nn_upload(&array);
    return array;
}

nn_array_t nn_array_of(const double *values, size_t n, zr_dtype_t dtype) {
    nn_array_t array = make_array(n, dtype);
    for (size_t i = 0; i < n; i++)
        nn_set_value(&array, i, values[i]);
    nn_upload(&array);
    return array;
}

nn_array_t nn_tokens_random(size_t n, size_t limit, uint64_t seed) {
    nn_array_t array = make_array(n, ZR_DTYPE_I32);
    for (size_t i = 0; i < n; i++)
        nn_set_value(&array, i, (double)(random_bits(&seed) % limit));
    nn_upload(&array);
    return array;
}

nn_array_t nn_documents(size_t batch, size_t seq, size_t step) {
    nn_array_t starts = make_array(batch * seq, ZR_DTYPE_I32);
    for (size_t i = 0, start = 0, length = 0; i < batch * seq; i++) {
        if (i % seq == 0 || i % seq - start == length) {
            start = i % seq;
            length += step;
        }
        nn_set_value(&starts, i, (double)start);
    }
    nn_upload(&starts);
    return starts;
}

void nn_array_free(nn_array_t *array) {
    if (!is_host()) {
        check_guards(array->data, bytes_of(array));
        give_back(array->data);
    }
    free(array->host);
    free(array->ref);
    *array = (nn_array_t){0};
}

void nn_array_free_all(nn_array_t *const *arrays) {
    for (; *arrays != NULL; arrays++)
        nn_array_free(*arrays);
}

/* ---- workspaces ---------------------------------------------------------------------- */

/* Filled with ones: NaN in every float dtype. */
zr_nn_workspace_t nn_workspace(size_t size_bytes) {
    zr_nn_workspace_t workspace = {NULL, size_bytes};
    if (size_bytes == 0)
        return workspace;
    /* In whole pages: mimalloc 2.0 aligns no 256, 512 or 1024 bytes to more than 128. */
    size_t rounded = (size_bytes + GUARD_BYTES + 4095) / 4096 * 4096;
    void *ones = aligned_alloc(256, rounded);
    assert_non_null(ones);
    memset(ones, 0xff, rounded);
    workspace.data = ones;
    if (!is_host()) {
        workspace.data = take(rounded, 0);
        write_guards(workspace.data, size_bytes);
        copy(workspace.data, ones, rounded, ZR_COPY_HOST_TO_DEVICE);
        free(ones);
    }
    return workspace;
}

void nn_workspace_free(zr_nn_workspace_t *workspace) {
    const unsigned char *bytes = workspace->data;
    if (is_host()) {
        for (size_t i = 0; bytes != NULL && i < GUARD_BYTES; i++)
            assert_int_equal(bytes[workspace->size_bytes + i], 0xff);
        free(workspace->data);
    } else if (bytes != NULL) {
        check_guards(workspace->data, workspace->size_bytes);
        give_back(workspace->data);
    }
    *workspace = (zr_nn_workspace_t){0};
}

/* ---- comparisons ----------------------------------------------------------------------- */

void nn_assert_close(const char *what, const nn_array_t *array, double tolerance) {
    double difference = 0.0, norm = 0.0;
    (void)nn_download(array);
    for (size_t i = 0; i < array->n; i++) {
        double value = nn_value(array, i), d = fabs(value - array->ref[i]);
        if (isnan(value))
            fail_msg("%s: element %zu of %zu is NaN, not %g", what, i, array->n, array->ref[i]);
        if (array->dtype == ZR_DTYPE_BF16) /* half a unit: at most 1/256 of the value */
            d = fmax(0.0, d - fabs(array->ref[i]) / 256.0);
        difference += d * d;
        norm += array->ref[i] * array->ref[i];
    }
    if (sqrt(difference) > tolerance * sqrt(norm))
        fail_msg("%s: off by %.3g of %.3g (relative %.3g, tolerated %.3g), %zu elements", what,
                 sqrt(difference), sqrt(norm), sqrt(difference / norm), tolerance, array->n);
}

void nn_assert_same(const char *what, const void *a, const void *b, size_t size_bytes) {
    if (memcmp(a, b, size_bytes) != 0)
        fail_msg("%s: %zu bytes differ", what, size_bytes);
}
