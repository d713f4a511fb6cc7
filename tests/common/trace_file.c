/* See trace_file.h. */
#include <limits.h>

#include "tests/common/test.h"
#include "tests/common/trace_file.h"

#define DEEPEST 16

static const char *text(json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

static long long whole(json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static long long nanoseconds(json_t *object, const char *key) {
    assert_true(json_is_number(json_object_get(object, key)));
    double ns = 1e3 * json_number_value(json_object_get(object, key));
    return (long long)(ns + (ns < 0 ? -0.5 : 0.5));
}

long long trace_file_begin(json_t *slice) {
    return nanoseconds(slice, "ts");
}

long long trace_file_end(json_t *slice) {
    return trace_file_begin(slice) + nanoseconds(slice, "dur");
}

/* The lane of a thread: its name without a number behind it. NULL: it has no name. */
static const char *thread_name(json_t *file, long long process, long long thread) {
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(file, "traceEvents"), i, event) {
        if (strcmp(text(event, "name"), "thread_name") == 0 && whole(event, "pid") == process &&
            whole(event, "tid") == thread)
            return text(json_object_get(event, "args"), "name");
    }
    return NULL;
}

/* Events of a thread lie one behind the other in the file, and begin in order. */
static void check_nesting(json_t *file) {
    long long ends[DEEPEST] = {0}, process = -1, thread = -1, last = LLONG_MIN;
    int depth = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(file, "traceEvents"), i, event) {
        if (strcmp(text(event, "ph"), "X") != 0)
            continue;
        if (whole(event, "pid") != process || whole(event, "tid") != thread) {
            process = whole(event, "pid");
            thread = whole(event, "tid");
            assert_non_null(thread_name(file, process, thread));
            depth = 0;
            last = LLONG_MIN;
        }
        long long begin = trace_file_begin(event), end = trace_file_end(event);
        assert_true(begin >= last && end >= begin);
        last = begin;
        while (depth > 0 && ends[depth - 1] <= begin)
            depth--;
        if (depth > 0 && end > ends[depth - 1])
            fail_msg("%s ends %lld ns after what it lies within", text(event, "name"),
                     end - ends[depth - 1]);
        assert_true(depth < DEEPEST);
        ends[depth++] = end;
    }
}

json_t *trace_file_load(const char *path) {
    json_error_t error;
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (file == NULL)
        fail_msg("%s: line %d: %s", path, error.line, error.text);
    assert_true(json_is_array(json_object_get(file, "traceEvents")));
    assert_true(json_is_object(json_object_get(file, "otherData")));
    check_nesting(file);
    return file;
}

static bool is_of_lane(const char *thread, const char *lane) {
    size_t n = strlen(lane);
    return strncmp(thread, lane, n) == 0 &&
           (thread[n] == '\0' || strncmp(thread + n, " (", 2) == 0);
}

typedef struct entry {
    json_t *event;
    size_t number;
} entry_t;

static int by_begin(const void *a, const void *b) {
    const entry_t *x = a, *y = b;
    long long p = trace_file_begin(x->event), q = trace_file_begin(y->event);
    if (p != q)
        return p < q ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

json_t **trace_file_slices(json_t *file, int process, const char *lane, const char *category,
                           size_t *n_p) {
    json_t *events = json_object_get(file, "traceEvents"), *event;
    entry_t *found = calloc(json_array_size(events) + 1, sizeof(*found));
    json_t **slices = calloc(json_array_size(events) + 1, sizeof(json_t *));
    size_t i, n = 0;
    long long thread = -1;
    bool is_wanted = false;
    assert_non_null(found);
    assert_non_null(slices);
    json_array_foreach(events, i, event) {
        if (strcmp(text(event, "ph"), "X") != 0 || whole(event, "pid") != process)
            continue;
        if (whole(event, "tid") != thread) {
            thread = whole(event, "tid");
            is_wanted = lane == NULL || is_of_lane(thread_name(file, process, thread), lane);
        }
        if (is_wanted && (category == NULL || strcmp(text(event, "cat"), category) == 0)) {
            found[n] = (entry_t){event, n};
            n++;
        }
    }
    qsort(found, n, sizeof(*found), by_begin);
    for (i = 0; i < n; i++)
        slices[i] = found[i].event;
    free(found);
    *n_p = n;
    return slices;
}

size_t trace_file_count(json_t *file, int process, const char *lane, const char *begin_of_name) {
    size_t n, n_found = 0;
    json_t **slices = trace_file_slices(file, process, lane, NULL, &n);
    for (size_t i = 0; i < n; i++)
        n_found += strncmp(text(slices[i], "name"), begin_of_name, strlen(begin_of_name)) == 0;
    free(slices);
    return n_found;
}

/* The next value of a counter from an event on; false: there is none. */
static bool next_value(json_t *file, int process, const char *counter, size_t *i, double *value_p) {
    json_t *events = json_object_get(file, "traceEvents");
    for (; *i < json_array_size(events); ++*i) {
        json_t *event = json_array_get(events, *i);
        if (strcmp(text(event, "ph"), "C") != 0 || whole(event, "pid") != process ||
            strcmp(text(event, "name"), counter) != 0)
            continue;
        *value_p = json_number_value(json_object_get(json_object_get(event, "args"), "bytes"));
        ++*i;
        return true;
    }
    return false;
}

double trace_file_peak(json_t *file, int process, const char *counter) {
    double peak = -1, value;
    for (size_t i = 0; next_value(file, process, counter, &i, &value);)
        peak = value > peak ? value : peak;
    return peak;
}

double trace_file_last(json_t *file, int process, const char *counter) {
    double last = -1;
    for (size_t i = 0; next_value(file, process, counter, &i, &last);)
        continue;
    return last;
}
