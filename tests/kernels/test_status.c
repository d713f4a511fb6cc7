/* Every status has its name, and ZR_TRY hands failures on. */
#include <limits.h>

#include "kernels/base/status.h"
#include "tests/common/test.h"

TEST(test_names) {
    assert_string_equal(zr_status_name(ZR_OK), "ZR_OK");
    assert_string_equal(zr_status_name(ZR_ERR_ARGUMENT), "ZR_ERR_ARGUMENT");
    assert_string_equal(zr_status_name(ZR_ERR_STATE), "ZR_ERR_STATE");
    assert_string_equal(zr_status_name(ZR_ERR_MEMORY), "ZR_ERR_MEMORY");
    assert_string_equal(zr_status_name(ZR_ERR_BUDGET), "ZR_ERR_BUDGET");
    assert_string_equal(zr_status_name(ZR_ERR_DEVICE), "ZR_ERR_DEVICE");
    assert_string_equal(zr_status_name(ZR_ERR_COMM), "ZR_ERR_COMM");
    assert_string_equal(zr_status_name(ZR_ERR_IO), "ZR_ERR_IO");
    assert_string_equal(zr_status_name(ZR_ERR_UNSUPPORTED), "ZR_ERR_UNSUPPORTED");
    assert_string_equal(zr_status_name(ZR_ERR_FORMAT), "ZR_ERR_FORMAT");
    assert_string_equal(zr_status_name((zr_status_t)-1000), "ZR_ERR_?");
    assert_string_equal(zr_status_name((zr_status_t)1), "ZR_ERR_?");
}

static zr_status_t try_twice(zr_status_t first, zr_status_t second) {
    ZR_TRY(first);
    ZR_TRY(second);
    return ZR_OK;
}

TEST(test_try) {
    assert_ok(try_twice(ZR_OK, ZR_OK));
    assert_int_equal(try_twice(ZR_ERR_IO, ZR_ERR_COMM), ZR_ERR_IO);
    assert_int_equal(try_twice(ZR_OK, ZR_ERR_COMM), ZR_ERR_COMM);
}
