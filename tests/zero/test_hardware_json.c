/*
 * Hardware descriptions as files: what is written is read back as it was, and whatever is wrong in
 * a file is named, all of it, with the nearest figure there is.
 */
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "zero/hardware_json.h"

static const char *const path = "test_hardware_json.tmp";

static zr_status_t read_back(kept_log_t *kept, zr_hardware_t *hardware) {
    zr_log_t log = kept_log(kept, ZR_LOG_WARNING);
    return zr_hardware_read_json(path, &log, hardware);
}

static char *read_text(void) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 16384);
    assert_true(file != NULL && text != NULL);
    assert_true(fread(text, 1, 16383, file) > 0);
    fclose(file);
    return text;
}

static void write_text(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

/* Values that no two figures share, and that no rounding leaves as they are. */
static zr_hardware_t unusual(zr_hardware_kind_t kind) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = kind;
    snprintf(hardware.name, sizeof(hardware.name), "a \"machine\" of kind %d", (int)kind);
    for (size_t i = 0; i < n; i++) {
        double value = (double)(i + 1) / 3.0 * 1e7;
        if (figures[i].type == ZR_FIGURE_FRACTION)
            value = 1.0 / (double)(i + 2);
        if (figures[i].type == ZR_FIGURE_COUNT)
            value = (double)(i + 1);
        if (figures[i].is_power_of_two)
            value = (double)((size_t)4096 << i % 8);
        if (!figures[i].is_of_cuda || kind == ZR_HARDWARE_CUDA)
            zr_hardware_set_figure(&hardware, &figures[i], value);
    }
    return hardware;
}

static void expect_same(const zr_hardware_t *a, const zr_hardware_t *b) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->kind, b->kind);
    for (size_t i = 0; i < n; i++)
        assert_true(zr_hardware_figure(a, &figures[i]) == zr_hardware_figure(b, &figures[i]));
}

TEST(test_round_trip) {
    for (int kind = ZR_HARDWARE_HOST; kind <= ZR_HARDWARE_CUDA; kind++) {
        zr_hardware_t written = unusual((zr_hardware_kind_t)kind), hardware;
        const char *sources[64] = {"a source", NULL, "another"};
        kept_log_t kept;
        assert_ok(zr_hardware_write_json(&written, sources, path, NULL));
        assert_ok(read_back(&kept, &hardware));
        assert_int_equal(kept.n_messages, 0);
        expect_same(&written, &hardware);
        char *text = read_text();
        assert_has(text, "\"n_threads\": \"a source\"");
        assert_null(strstr(text, "\"cuda_major\": \""));
        assert_int_equal(strstr(text, "to_device") != NULL, kind == ZR_HARDWARE_CUDA);
        free(text);
        assert_ok(zr_hardware_write_json(&written, NULL, path, NULL));
        assert_ok(read_back(&kept, &hardware));
        expect_same(&written, &hardware);
    }
}

/* What is said of a file's figures begins with the file. */
TEST(test_impossible) {
    zr_hardware_t written = zr_hardware_default(), hardware;
    char expected[512];
    kept_log_t kept;
    assert_ok(zr_hardware_write_json(&written, NULL, path, NULL));
    char *whole = read_text(), *place = strstr(whole, "\"granule_bytes\": 4096");
    assert_non_null(place);
    memcpy(place, "\"granule_bytes\": 2048", strlen("\"granule_bytes\": 2048"));
    write_text(whole);
    free(whole);
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    snprintf(expected, sizeof(expected), "%s: granule_bytes is 2048; it must be at least 4096\n",
             path);
    assert_string_equal(kept.text, expected);
}

/* What is left out is named, all of it in one message. */
TEST(test_missing) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    zr_hardware_t written = unusual(ZR_HARDWARE_CUDA), hardware;
    assert_ok(zr_hardware_write_json(&written, NULL, path, NULL));
    char *whole = read_text();
    for (size_t i = 0; i < n; i++) {
        const char *dot = strchr(figures[i].name, '.');
        char section[64] = "", quoted[96], *place = whole;
        if (dot != NULL) {
            snprintf(section, sizeof(section), "\"%.*s\": {", (int)(dot - figures[i].name),
                     figures[i].name);
            place = strstr(whole, section);
        }
        snprintf(quoted, sizeof(quoted), "\"%s\":", dot != NULL ? dot + 1 : figures[i].name);
        place = place != NULL ? strstr(place, quoted) : NULL;
        assert_non_null(place);
        place[1] ^= 1; /* another name */
        write_text(whole);
        place[1] ^= 1;
        kept_log_t kept;
        assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
        assert_has(kept.text, "unknown figure");
        assert_has(kept.text, figures[i].name); /* the nearest */
    }
    free(whole);
    kept_log_t kept;
    write_text("{\"name\": \"x\", \"kind\": \"cuda\"}");
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 1);
    assert_has(kept.text, "missing: n_threads, cuda_major, granule_bytes, device, host, launch_s, |"
                          ", disk_bytes; every figure is required: |--save-hardware FILE");
    assert_null(strstr(kept.text, "device.")); /* the section stands for its figures */
    write_text("{\"name\": \"x\", \"kind\": \"host\"}");
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 1);
    assert_null(strstr(kept.text, "to_device"));
    write_text("{\"name\": \"x\", \"kind\": \"host\", \"device\": {\"lm_head_ratio\": 1}}");
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "device.attention_fraction, device.vector_ops_per_s");
    write_text("{}");
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "missing: name, kind, n_threads");
}

static void refuse(const char *text, zr_status_t status, const char *message) {
    kept_log_t kept;
    zr_hardware_t hardware;
    memset(&hardware, 0x5a, sizeof(hardware));
    zr_hardware_t before = hardware;
    write_text(text);
    assert_int_equal(read_back(&kept, &hardware), status);
    assert_has(kept.text, message);
    assert_has(kept.text, path);
    assert_memory_equal(&hardware, &before, sizeof(hardware));
}

TEST(test_refusals) {
    refuse("", ZR_ERR_FORMAT, "line 1");
    refuse("[1]", ZR_ERR_FORMAT, "an object");
    refuse("{\"name\": 1,}", ZR_ERR_FORMAT, "line 1, column");
    refuse("{\"kind\": \"host\", \"kind\": \"cuda\"}", ZR_ERR_FORMAT, "duplicate");
    refuse("{\"name\": \"\"}", ZR_ERR_ARGUMENT, "name must be a text of 1 to 63 bytes");
    refuse("{\"kind\": \"gpu\"}", ZR_ERR_ARGUMENT, "\"host\" or \"cuda\"");
    refuse("{\"knid\": \"host\"}", ZR_ERR_ARGUMENT, "\"knid\"; is it \"kind\"?");
    refuse("{\"launch\": 1}", ZR_ERR_ARGUMENT, "is it \"launch_s\"?");
    refuse("{\"device\": {\"vector_op_per_s\": 1}}", ZR_ERR_ARGUMENT,
           "is it \"device.vector_ops_per_s\"?");
    refuse("{\"device\": 3}", ZR_ERR_ARGUMENT, "device must be an object");
    refuse("{\"launch_s\": \"fast\"}", ZR_ERR_ARGUMENT, "launch_s must be a number");
    refuse("{\"ranks_per_node\": 1.5}", ZR_ERR_ARGUMENT, "ranks_per_node is 1.5");
    refuse("{\"ranks_per_node\": 3000000000}", ZR_ERR_ARGUMENT, "ranks_per_node is 3000000000");
    refuse("{\"disk_bytes\": -1}", ZR_ERR_ARGUMENT, "disk_bytes is -1");
    refuse("{\"sources\": 1}", ZR_ERR_ARGUMENT, "sources must be");
    refuse("{\"sources\": {\"launch_s\": 1}}", ZR_ERR_ARGUMENT, "source of launch_s");
    refuse("{\"sources\": {\"lunch_s\": \"x\"}}", ZR_ERR_ARGUMENT, "is it \"launch_s\"?");
    zr_hardware_t hardware = unusual(ZR_HARDWARE_CUDA);
    kept_log_t kept;
    assert_ok(zr_hardware_write_json(&hardware, NULL, path, NULL));
    char *text = read_text(), *place = strstr(text, "\"granule_bytes\": ");
    assert_non_null(place);
    place[strlen("\"granule_bytes\": ")] = '5'; /* no power of two any more */
    write_text(text);
    free(text);
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "power of two");
    assert_int_equal(remove(path), 0);
    assert_int_equal(read_back(&kept, &hardware), ZR_ERR_IO);
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    assert_int_equal(zr_hardware_write_json(&hardware, NULL, "/no/such/folder", &log), ZR_ERR_IO);
    hardware.launch_s = -1.0;
    assert_int_equal(zr_hardware_write_json(&hardware, NULL, path, &log), ZR_ERR_ARGUMENT);
    assert_int_not_equal(access(path, F_OK), 0);
}
