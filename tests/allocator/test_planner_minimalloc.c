/*
 * The planner on published hard cases, where they lie beside the repository: each within the
 * capacity in its name, by a bounded number of steps. Without the cases the test is skipped.
 */
#include <dirent.h>
#include <inttypes.h>

#include "tests/allocator/plan_cases.h"
#include "tests/common/test.h"

#define MAX_BUFFERS 4096
#define MAX_STEPS 3000000

static zr_plan_buffer_t buffers[MAX_BUFFERS];
static size_t offsets[MAX_BUFFERS];

/* Read id,lower,upper,size. */
static size_t read_case(const char *path) {
    char line[256];
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_memory_equal(line, "id,lower,upper,size", 19);
    while (n < MAX_BUFFERS && fgets(line, sizeof(line), file) != NULL) {
        zr_plan_buffer_t *buffer = &buffers[n++];
        *buffer = (zr_plan_buffer_t){0};
        assert_int_equal(sscanf(line, "%*[^,],%" SCNd64 ",%" SCNd64 ",%zu", &buffer->lower,
                                &buffer->upper, &buffer->size_bytes),
                         3);
    }
    fclose(file);
    return n;
}

static void plan_case(const char *name) {
    char path[4096];
    size_t capacity = strtoull(strchr(name, '.') + 1, NULL, 10);
    snprintf(path, sizeof(path), "%s/%s", ZR_MINIMALLOC_CASES, name);
    size_t n = read_case(path);
    zr_plan_result_t result;
    zr_plan_options_t options = zr_plan_options_default();
    options.capacity_bytes = capacity;
    options.max_seconds = 0.0;
    options.max_steps = MAX_STEPS;
    assert_true(n > 0 && capacity > 0);
    assert_ok(zr_plan_offsets(buffers, n, &options, offsets, &result));
    print_message("%s: %zu buffers, height %zu, %" PRIu64 " steps, %s\n", name, n,
                  result.height_bytes, result.n_steps, result.strategy);
    assert_true(plan_is_valid(buffers, n, offsets, result.height_bytes));
    assert_true(result.height_bytes <= capacity);
}

static void test_cases(void **state) {
    DIR *folder = *state;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strstr(entry->d_name, ".csv") != NULL)
            plan_case(entry->d_name);
}

int main(void) {
    DIR *folder = opendir(ZR_MINIMALLOC_CASES);
    if (folder == NULL) {
        printf("skipped: there are no cases in %s\n", ZR_MINIMALLOC_CASES);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_cases, folder)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    closedir(folder);
    return n_failed;
}
