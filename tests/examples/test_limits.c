/*
 * Limits of control groups: of both versions, of the groups above, and where there are none.
 */
#include "examples/plan/limits.h"

#include "tests/common/test.h"

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

TEST(groups_of_both_versions) {
    assert_int_equal(system("mkdir -p two/a/b one/memory/c"), 0);
    write_text("groups2", "0::/a/b\n");
    assert_true(limits_memory("groups2", "two") == LIMITS_NONE); /* no file says anything */
    write_text("two/a/b/memory.max", "max\n");
    assert_true(limits_memory("groups2", "two") == LIMITS_NONE);
    write_text("two/a/memory.max", "5000000\n");
    assert_int_equal(limits_memory("groups2", "two"), 5000000); /* of the group above */
    write_text("two/memory.max", "7000000\n");
    assert_int_equal(limits_memory("groups2", "two"), 5000000);
    write_text("two/a/b/memory.max", "4096\n");
    assert_int_equal(limits_memory("groups2", "two"), 4096);
    write_text("groups1", "4:cpu,cpuacct:/c\n3:memory:/c\n0::/\n");
    write_text("one/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(limits_memory("groups1", "one") == LIMITS_NONE);
    write_text("one/memory/c/memory.limit_in_bytes", "123456\n");
    assert_int_equal(limits_memory("groups1", "one"), 123456);
    write_text("one/memory.max", "1000\n"); /* in a namespace the root is the group */
    assert_int_equal(limits_memory("groups1", "one"), 1000);
    write_text("strange", "no group\n::\n");
    assert_true(limits_memory("strange", "none") == LIMITS_NONE);
    assert_true(limits_memory("none", "two") == LIMITS_NONE);
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
