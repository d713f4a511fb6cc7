/*
 * Descriptions of hardware: the default is possible, and every figure that is not is refused with
 * its name.
 */
#include "kernels/base/hardware.h"
#include "kernels/device.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

TEST(test_default) {
    zr_hardware_t hardware = zr_hardware_default();
    assert_ok(zr_hardware_check(&hardware, NULL));
    hardware.kind = ZR_HARDWARE_CUDA;
    assert_ok(zr_hardware_check(&hardware, NULL));
    assert_string_equal(zr_hardware_kind_name(ZR_HARDWARE_HOST), "host");
    assert_string_equal(zr_hardware_kind_name(ZR_HARDWARE_CUDA), "cuda");
}

/* Every figure is in the table once, and what is set there is what is read. */
TEST(test_figures) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++) {
        zr_hardware_t hardware = zr_hardware_default(), before = hardware;
        double value = figures[i].type == ZR_FIGURE_FRACTION ? 0.25 : 8192.0;
        zr_hardware_set_figure(&hardware, &figures[i], value);
        assert_true(zr_hardware_figure(&hardware, &figures[i]) == value);
        for (size_t k = 0; k < n; k++) {
            if (k != i)
                assert_true(zr_hardware_figure(&hardware, &figures[k]) ==
                            zr_hardware_figure(&before, &figures[k]));
        }
        assert_true(strlen(figures[i].what) > 0);
    }
    /* No field of the structure is missing: they fill it but for name, kind, and the process's own.
     */
    const zr_hardware_t *all = NULL;
    size_t bytes = sizeof(all->name) + sizeof(all->kind) + sizeof(all->pinned_bytes) +
                   sizeof(all->matmul_workspace_bytes);
    for (size_t i = 0; i < n; i++)
        bytes += figures[i].type == ZR_FIGURE_COUNT ? sizeof(int) : sizeof(double);
    assert_true(sizeof(zr_hardware_t) - bytes <= sizeof(double)); /* padding */
}

static void refuse(zr_hardware_kind_t kind, const zr_figure_t *figure, double value) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = kind;
    zr_hardware_set_figure(&hardware, figure, value);
    bool is_used = kind == ZR_HARDWARE_CUDA || !figure->is_of_cuda;
    assert_int_equal(zr_hardware_check(&hardware, &log), is_used ? ZR_ERR_ARGUMENT : ZR_OK);
    if (is_used)
        assert_non_null(strstr(kept.text, figure->name));

    zr_device_options_t options = {.log = log, .hardware = &hardware};
    zr_device_t *device = NULL;
    assert_int_equal(zr_device_open("sim", &options, &device), is_used ? ZR_ERR_ARGUMENT : ZR_OK);
    zr_device_close(&device);
}

TEST(test_refusals) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++) {
        for (int kind = ZR_HARDWARE_HOST; kind <= ZR_HARDWARE_CUDA; kind++) {
            zr_hardware_kind_t of = (zr_hardware_kind_t)kind;
            if (figures[i].type != ZR_FIGURE_SECONDS && !figures[i].may_be_zero)
                refuse(of, &figures[i], 0.0);
            if (figures[i].type <= ZR_FIGURE_FRACTION) {
                refuse(of, &figures[i], -1.0);
                refuse(of, &figures[i], (double)NAN);
                refuse(of, &figures[i], (double)INFINITY);
            }
            if (figures[i].type == ZR_FIGURE_FRACTION)
                refuse(of, &figures[i], 1.5);
            if (figures[i].is_power_of_two)
                refuse(of, &figures[i], 12288.0);
        }
    }
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_WARNING);
    zr_hardware_t hardware = zr_hardware_default();
    hardware.granule_bytes = 2048;
    assert_int_equal(zr_hardware_check(&hardware, &log), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "at least 4096");
    hardware = zr_hardware_default();
    hardware.kind = (zr_hardware_kind_t)7;
    hardware.launch_s = 0.0;
    log = kept_log(&kept, ZR_LOG_WARNING);
    assert_int_equal(zr_hardware_check(&hardware, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 2); /* all that is wrong */
}
