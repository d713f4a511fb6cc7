/*
 * Recordings and snapshots against a naive oracle: thousands of seeded random allocations,
 * frees, marks and restarts, on devices whose streams are done at once and on one whose streams
 * are late. Then each form of a snapshot is read again and held against the recording and the
 * allocator's statistics.
 */
#include <sys/wait.h>
#include <jansson.h>

#include "allocator/internal.h"
#include "allocator/snapshot.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define MIB ((size_t)1 << 20)
#define MAX_LIVE 120
#define N_STREAMS 3
#define N_TIERS_TESTED 2
#define FIELDS 13

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPERATIONS 2500
#else
#define N_OPERATIONS 8000
#endif

/* With all that a format may stumble over. */
static const char *const names[] = {"h.0 parameters", "a,b",      "say \"x\"",         "",
                                    "two\nlines",     "\xff\xc3", "\xc3\xa9t\xc3\xa9", "=1+1"};
static const char *const written_names[] = {"h.0 parameters", "a,b", "say \"x\"",         "",
                                            "two?lines",      "??",  "\xc3\xa9t\xc3\xa9", "=1+1"};
#define N_NAMES N_OF(names)

/* What the oracle knows of a life. Times are intervals: what an operation took. */
typedef struct expected {
    size_t size;
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    size_t name;
    void *pointer; /* NULL: freed */
    int64_t lower_after, lower_until, freed_after, freed_until, upper_after, upper_until;
    size_t first_step, first_micro_batch, last_step, last_micro_batch;
    zr_stream_t *stream; /* freed behind it */
    size_t ticket;
    bool is_pending, is_over;
} expected_t;

typedef struct oracle {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_stream_t *streams[N_STREAMS];
    expected_t *lives; /* by id */
    size_t n_lives, n_live;
    size_t step, micro_batch;
    uint64_t random;
    size_t n_late; /* ends that came after the free */
} oracle_t;

static size_t below(oracle_t *oracle, size_t n) {
    return (size_t)(random_bits(&oracle->random) % n);
}

static int64_t now(const oracle_t *oracle) {
    return oracle->allocator->recording->now;
}

static bool has_passed(const expected_t *life) {
    return fake_stream_n_passed(life->stream) >= life->ticket;
}

/* ---- operations --------------------------------------------------------------------- */

/* After an operation that began at `before`: pending lives end when their streams have passed,
 * and at the latest when the tier is next allocated from. */
static void see_ends(oracle_t *oracle, int64_t before, zr_tier_t tier, const bool *had_passed) {
    for (size_t i = 0; i < oracle->n_lives; i++) {
        expected_t *life = &oracle->lives[i];
        if (!life->is_pending)
            continue;
        bool is_over = oracle->allocator->recording->lives[i].upper != ZR_RECORD_NOT_YET;
        assert_true(!is_over || (life->tier == tier && has_passed(life)));
        assert_true(is_over || life->tier != tier || !had_passed[i]);
        if (is_over) {
            life->is_pending = false;
            life->is_over = true;
            life->upper_after = before;
            life->upper_until = now(oracle);
            oracle->n_late++;
        }
    }
}

static void allocate(oracle_t *oracle) {
    expected_t life = {.size = below(oracle, 20) == 0 ? 0 : below(oracle, 40000),
                       .tier = below(oracle, 3) == 0 ? ZR_TIER_HOST : ZR_TIER_DEVICE,
                       .tag = (zr_tag_t)below(oracle, ZR_N_TAGS),
                       .lifetime = (zr_lifetime_t)below(oracle, ZR_N_LIFETIMES),
                       .name = below(oracle, N_NAMES),
                       .first_step = oracle->step,
                       .first_micro_batch = oracle->micro_batch};
    zr_allocation_request_t request = {.size_bytes = life.size,
                                       .tier = life.tier,
                                       .tag = life.tag,
                                       .lifetime = life.lifetime,
                                       .name = names[life.name]};
    bool *had_passed = calloc(oracle->n_lives + 1, sizeof(bool));
    assert_non_null(had_passed);
    for (size_t i = 0; i < oracle->n_lives; i++)
        had_passed[i] = oracle->lives[i].is_pending && has_passed(&oracle->lives[i]);
    life.lower_after = now(oracle);
    zr_status_t status = zr_allocate(oracle->allocator, &request, &life.pointer);
    life.lower_until = now(oracle);
    see_ends(oracle, life.lower_after, life.tier, had_passed);
    free(had_passed);
    if (status == ZR_ERR_BUDGET)
        return;
    assert_ok(status);
    expected_t *grown = realloc(oracle->lives, (oracle->n_lives + 1) * sizeof(*grown));
    assert_non_null(grown);
    oracle->lives = grown;
    oracle->lives[oracle->n_lives++] = life;
    oracle->n_live++;
}

static void free_one(oracle_t *oracle, size_t skip) {
    expected_t *life = oracle->lives;
    while (life->pointer == NULL || skip-- > 0)
        life++;
    bool waits = below(oracle, 3) > 0;
    life->stream = waits ? oracle->streams[below(oracle, N_STREAMS)] : NULL;
    if (waits)
        life->ticket = fake_stream_queue(life->stream);
    life->freed_after = now(oracle);
    zr_free(oracle->allocator, &life->pointer, life->stream);
    life->freed_until = now(oracle);
    life->last_step = oracle->step;
    life->last_micro_batch = oracle->micro_batch;
    life->is_pending = waits && !zr_device_info(oracle->fake->device)->synchronous;
    life->is_over = !life->is_pending;
    life->upper_after = life->freed_after;
    life->upper_until = life->freed_until;
    oracle->n_live--;
}

/* Only what is not over stays, in the same order; it began at 0. */
static void restart(oracle_t *oracle) {
    size_t n = 0;
    for (size_t i = 0; i < oracle->n_lives; i++) {
        expected_t life = oracle->lives[i];
        if (life.is_over)
            continue;
        life.lower_after = -1;
        life.lower_until = 0;
        life.freed_after = -1;
        life.freed_until = 0;
        oracle->lives[n++] = life;
    }
    oracle->n_lives = n;
    assert_ok(zr_allocator_record_start(oracle->allocator, 0));
    zr_allocator_reset_peaks(oracle->allocator);
    oracle->n_late = 0;
}

static void do_one(oracle_t *oracle) {
    size_t dice = below(oracle, 100);
    if (dice < 3) {
        oracle->step += oracle->micro_batch > 2;
        oracle->micro_batch = (oracle->micro_batch + 1) % 4;
        zr_allocator_mark(oracle->allocator,
                          &(zr_mark_t){.step = oracle->step, .micro_batch = oracle->micro_batch});
    } else if (dice < 15) {
        fake_stream_pass(oracle->streams[below(oracle, N_STREAMS)], 1 + below(oracle, 8));
    } else if (oracle->n_live < MAX_LIVE && dice < 70) {
        allocate(oracle);
    } else if (oracle->n_live > 0) {
        free_one(oracle, below(oracle, oracle->n_live));
    }
}

/* ---- the recording --------------------------------------------------------------------- */

static void check_time(int64_t time, int64_t after, int64_t until) {
    if (time <= after || time > until)
        fail_msg("time %lld is not in (%lld, %lld]", (long long)time, (long long)after,
                 (long long)until);
}

static void check_life(const oracle_t *oracle, const zr_life_t *life, int64_t end) {
    const expected_t *expected = &oracle->lives[life->id];
    assert_int_equal(life->size_bytes, expected->size);
    assert_int_equal(life->tier, expected->tier);
    assert_int_equal(life->tag, expected->tag);
    assert_int_equal(life->lifetime, expected->lifetime);
    assert_string_equal(life->name, names[expected->name]);
    assert_int_equal(life->first_step, expected->first_step);
    assert_int_equal(life->first_micro_batch, expected->first_micro_batch);
    assert_int_equal(life->block_bytes % 256, 0);
    assert_true(life->block_bytes >= life->size_bytes && life->block_bytes <= expected->size + 256);
    assert_true(life->lower < life->upper && life->freed <= life->upper && life->upper <= end);
    check_time(life->lower, expected->lower_after, expected->lower_until);
    assert_int_equal(life->is_open, !expected->is_over);
    if (expected->pointer != NULL) {
        const fake_range_t *range = fake_range_of(oracle->fake, expected->pointer);
        assert_ptr_equal(range->base + life->offset_bytes, expected->pointer);
        assert_int_equal(life->freed, end);
        assert_int_equal(life->upper, end);
        assert_int_equal(life->last_step, oracle->step);
        assert_int_equal(life->last_micro_batch, oracle->micro_batch);
        return;
    }
    check_time(life->freed, expected->freed_after, expected->freed_until);
    assert_int_equal(life->last_step, expected->last_step);
    assert_int_equal(life->last_micro_batch, expected->last_micro_batch);
    assert_int_equal(life->stream > 0, expected->stream != NULL);
    if (expected->is_over)
        check_time(life->upper, expected->upper_after, expected->upper_until);
    else
        assert_int_equal(life->upper, end);
}

/* No two lives share a byte at a time: the reason for ends at the streams' and not the host's. */
static void check_overlap(const zr_recording_t *recording) {
    zr_recording_info_t info;
    zr_recording_info(recording, &info);
    zr_life_t *lives = calloc(info.n_lives + 1, sizeof(*lives));
    assert_non_null(lives);
    for (size_t i = 0; i < info.n_lives; i++) {
        zr_recording_life(recording, i, &lives[i]);
        for (size_t k = 0; k < i; k++) {
            const zr_life_t *a = &lives[i], *b = &lives[k];
            assert_false(a->tier == b->tier && a->lifetime == b->lifetime && a->size_bytes > 0 &&
                         b->size_bytes > 0 && a->lower < b->upper && b->lower < a->upper &&
                         a->offset_bytes < b->offset_bytes + b->block_bytes &&
                         b->offset_bytes < a->offset_bytes + a->block_bytes);
        }
    }
    free(lives);
}

/* ---- CSV ------------------------------------------------------------------------------- */

/* Split a line in place, quotes as in RFC 4180; the number of fields. */
static size_t split(char *line, char *fields[FIELDS + 1]) {
    size_t n = 0;
    char *from = line, *to = line;
    bool is_more = true;
    while (is_more && n <= FIELDS) {
        bool is_quoted = *from == '"';
        from += is_quoted;
        fields[n++] = to;
        while (*from != '\0' && (is_quoted || *from != ',')) {
            if (is_quoted && *from == '"' && *++from != '"')
                break;
            *to++ = *from++;
        }
        is_more = *from++ == ',';
        *to++ = '\0';
    }
    return n;
}

typedef struct edge {
    long long time;
    long long change;
} edge_t;

static int compare_edges(const void *a, const void *b) {
    const edge_t *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->change < y->change ? -1 : x->change > y->change; /* half-open: ends first */
}

static size_t max_live(edge_t *edges, size_t n) {
    long long live = 0, most = 0;
    qsort(edges, n, sizeof(*edges), compare_edges);
    for (size_t i = 0; i < n; i++) {
        live += edges[i].change;
        most = live > most ? live : most;
    }
    return (size_t)most;
}

/* Read the CSV again, compare it, and give the most bytes alive at once. */
static size_t check_csv(const oracle_t *oracle, const zr_recording_t *recording, const char *path) {
    char line[2048], *fields[FIELDS + 1];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_int_equal(strncmp(line, "id,lower,upper,size,", 20), 0);
    edge_t *edges = calloc(2 * oracle->n_lives + 1, sizeof(*edges));
    assert_non_null(edges);
    size_t n = 0, n_of_tier = 0;
    for (size_t i = 0; i < oracle->n_lives; i++)
        n_of_tier += oracle->lives[i].tier == ZR_TIER_DEVICE;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        assert_int_equal(split(line, fields), FIELDS);
        zr_life_t life;
        zr_recording_life(recording, (size_t)atoll(fields[0]), &life);
        assert_int_equal(life.tier, ZR_TIER_DEVICE);
        assert_int_equal(atoll(fields[1]), life.lower);
        assert_int_equal(atoll(fields[2]), life.upper);
        assert_int_equal(atoll(fields[3]), life.size_bytes);
        assert_string_equal(fields[4], zr_tag_name(life.tag));
        assert_string_equal(fields[5], zr_lifetime_name(life.lifetime));
        assert_string_equal(fields[6], written_names[oracle->lives[life.id].name]);
        assert_int_equal(atoll(fields[7]), life.offset_bytes);
        assert_int_equal(atoll(fields[8]), life.stream);
        assert_int_equal(atoll(fields[9]), life.first_step);
        assert_int_equal(atoll(fields[12]), life.last_micro_batch);
        edges[n++] = (edge_t){life.lower, (long long)life.size_bytes};
        edges[n++] = (edge_t){life.upper, -(long long)life.size_bytes};
    }
    fclose(file);
    assert_int_equal(n, 2 * n_of_tier);
    size_t most = max_live(edges, n);
    free(edges);
    return most;
}

/* ---- Chrome's trace ----------------------------------------------------------------------- */

typedef struct counter {
    size_t last, peak;
} counter_t;

static long long integer(const json_t *event, const char *key) {
    const json_t *value = json_object_get(event, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static const char *string(const json_t *event, const char *key) {
    const char *value = json_string_value(json_object_get(event, key));
    assert_non_null(value);
    return value;
}

static counter_t *counter_of(counter_t counters[N_TIERS_TESTED][ZR_N_TAGS + 3],
                             const json_t *event) {
    static const char *const others[] = {"live", "reserved", "pending"};
    long long tier = integer(event, "pid") - 1;
    assert_true(tier == 0 || tier == 1);
    for (int i = 0; i < ZR_N_TAGS + 3; i++) {
        const char *name = i < ZR_N_TAGS ? zr_tag_name((zr_tag_t)i) : others[i - ZR_N_TAGS];
        if (strcmp(name, string(event, "name")) == 0)
            return &counters[tier][i];
    }
    fail_msg("there is no counter %s", string(event, "name"));
    return NULL;
}

static void check_span(const zr_recording_t *recording, const oracle_t *oracle, const json_t *event,
                       size_t *n_begun, size_t *n_ended) {
    zr_life_t life;
    size_t id = (size_t)integer(event, "id");
    assert_true(id < oracle->n_lives);
    zr_recording_life(recording, id, &life);
    const char *name = written_names[oracle->lives[id].name];
    assert_string_equal(string(event, "name"), name[0] == '\0' ? "(no name)" : name);
    assert_string_equal(string(event, "cat"), zr_lifetime_name(life.lifetime));
    assert_int_equal(integer(event, "pid"), (int)life.tier + 1);
    bool is_begin = strcmp(string(event, "ph"), "b") == 0;
    assert_int_equal(integer(event, "ts"), is_begin ? life.lower : life.upper);
    if (is_begin)
        assert_int_equal(integer(json_object_get(event, "args"), "bytes"), life.size_bytes);
    *(is_begin ? n_begun : n_ended) += 1;
}

static void check_chrome(const oracle_t *oracle, const zr_recording_t *recording, const char *path,
                         const zr_tier_statistics_t *statistics) {
    counter_t counters[N_TIERS_TESTED][ZR_N_TAGS + 3] = {{{0}}};
    size_t n_begun = 0, n_ended = 0, n_marks = 0, i;
    long long last_time = 0;
    json_error_t error;
    json_t *trace = json_load_file(path, JSON_REJECT_DUPLICATES, &error), *event;
    if (trace == NULL)
        fail_msg("%s: %s", path, error.text);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        const char *phase = string(event, "ph");
        if (strcmp(phase, "M") == 0)
            continue;
        assert_true(integer(event, "ts") >= last_time);
        last_time = integer(event, "ts");
        if (strcmp(phase, "C") == 0) {
            counter_t *counter = counter_of(counters, event);
            counter->last = (size_t)integer(json_object_get(event, "args"), "bytes");
            counter->peak = counter->last > counter->peak ? counter->last : counter->peak;
        } else if (strcmp(phase, "i") == 0) {
            n_marks++;
        } else {
            check_span(recording, oracle, event, &n_begun, &n_ended);
        }
    }
    json_decref(trace);
    assert_int_equal(n_begun, oracle->n_lives);
    assert_int_equal(n_ended, oracle->n_lives);
    assert_true(n_marks > 1);
    for (int tier = 0; tier < N_TIERS_TESTED; tier++) {
        const zr_tier_statistics_t *s = &statistics[tier];
        const counter_t *c = counters[tier];
        for (int tag = 0; tag < ZR_N_TAGS; tag++) {
            assert_int_equal(c[tag].last, s->by_tag[tag].live);
            assert_int_equal(c[tag].peak, s->by_tag[tag].peak);
        }
        assert_int_equal(c[ZR_N_TAGS].last, s->live.live);
        assert_int_equal(c[ZR_N_TAGS].peak, s->live.peak);
        assert_int_equal(c[ZR_N_TAGS + 1].last, s->reserved.live);
        assert_int_equal(c[ZR_N_TAGS + 1].peak, s->reserved.peak);
        assert_int_equal(c[ZR_N_TAGS + 2].last, s->pending.live);
        assert_int_equal(c[ZR_N_TAGS + 2].peak, s->pending.peak);
    }
}

/* ---- pickle ----------------------------------------------------------------------------- */

static bool has_python(void) {
    return system("python3 -c 'import pickle' 2>/dev/null") == 0;
}

static void check_pickle(const char *path, const zr_tier_statistics_t *statistics) {
    char command[1024];
    size_t used =
        (size_t)snprintf(command, sizeof(command), "python3 '%s' %s", CHECK_MEMORY_VIZ, path);
    for (int tier = 0; tier < N_TIERS_TESTED; tier++) {
        const zr_tier_statistics_t *s = &statistics[tier];
        used += (size_t)snprintf(command + used, sizeof(command) - used,
                                 " %d:live=%zu,peak=%zu,reserved=%zu,pending=%zu", tier,
                                 s->live.live, s->live.peak, s->reserved.live, s->pending.live);
    }
    if (!has_python()) {
        print_message("NOT CHECKED: %s, for there is no python3\n", path);
        return;
    }
    assert_int_equal(WEXITSTATUS(system(command)), 0);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void create(oracle_t *oracle, uint64_t seed, bool is_late) {
    *oracle = (oracle_t){.random = seed, .fake = fake_open(16384, is_late)};
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(oracle->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = 2 * MIB;
    options.budget_bytes[ZR_TIER_HOST] = MIB + 1000;
    assert_ok(zr_allocator_create(oracle->fake->device, &options, &oracle->allocator));
    for (int i = 0; i < N_STREAMS; i++)
        assert_ok(zr_stream_create(oracle->fake->device, "test", &oracle->streams[i]));
}

static void destroy(oracle_t *oracle) {
    for (size_t i = 0; i < oracle->n_lives; i++)
        zr_free(oracle->allocator, &oracle->lives[i].pointer, NULL);
    free(oracle->lives);
    for (int i = 0; i < N_STREAMS; i++)
        zr_stream_destroy(&oracle->streams[i]);
    zr_allocator_destroy(&oracle->allocator);
    fake_close(oracle->fake);
}

static void save(const oracle_t *oracle, const zr_recording_t *recording, const char *path) {
    zr_log_t log = fake_log(oracle->fake);
    assert_ok(zr_snapshot_save(recording, path, &log));
}

/* What stop has ended: everything whose stream has passed. */
static void see_stop(oracle_t *oracle, const zr_recording_t *recording, int64_t before) {
    for (size_t i = 0; i < oracle->n_lives; i++) {
        expected_t *life = &oracle->lives[i];
        if (!life->is_pending)
            continue;
        life->is_over = has_passed(life);
        life->upper_after = before;
        life->upper_until = recording->now;
    }
}

static void run(uint64_t seed, bool is_late, size_t n_restarts) {
    oracle_t oracle;
    zr_recording_t *recording = NULL;
    zr_recording_info_t info;
    zr_tier_statistics_t statistics[N_TIERS_TESTED];
    create(&oracle, seed, is_late);
    assert_ok(zr_allocator_record_start(oracle.allocator, 0));
    for (size_t round = 0; round <= n_restarts; round++) {
        if (round > 0)
            restart(&oracle);
        for (size_t i = 0; i < N_OPERATIONS / (n_restarts + 1); i++)
            do_one(&oracle);
        assert_true(zr_allocator_is_valid(oracle.allocator));
    }
    int64_t before = now(&oracle);
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    see_stop(&oracle, recording, before);
    assert_true(zr_allocator_is_valid(oracle.allocator));
    for (int tier = 0; tier < N_TIERS_TESTED; tier++)
        zr_allocator_statistics(oracle.allocator, (zr_tier_t)tier, &statistics[tier]);

    zr_recording_info(recording, &info);
    assert_true(info.is_complete);
    assert_int_equal(info.n_lives, oracle.n_lives);
    for (size_t i = 0; i < info.n_lives; i++) {
        zr_life_t life;
        zr_recording_life(recording, i, &life);
        check_life(&oracle, &life, info.end);
    }
    check_overlap(recording);
    assert_true(!is_late || oracle.n_late > 20);

    save(&oracle, recording, "lives.csv");
    size_t most = check_csv(&oracle, recording, "lives.csv");
    assert_true(is_late ? most > statistics[0].live.peak : most == statistics[0].live.peak);
    save(&oracle, recording, "trace.json");
    check_chrome(&oracle, recording, "trace.json", statistics);
    save(&oracle, recording, "viz.pickle");
    check_pickle("viz.pickle", statistics);
    zr_recording_destroy(&recording);
    destroy(&oracle);
}

TEST(test_synchronous) {
    run(1, false, 0);
    run(2, false, 4);
}

TEST(test_late) {
    run(3, true, 0);
    run(5, true, 4);
}

/* ---- single cases --------------------------------------------------------------------------- */

static void *take(zr_allocator_t *allocator, const char *name, size_t size) {
    zr_allocation_request_t request = {.size_bytes = size,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_ACTIVATIONS,
                                       .lifetime = ZR_LIFETIME_UNIT,
                                       .name = name};
    void *pointer = NULL;
    assert_ok(zr_allocate(allocator, &request, &pointer));
    return pointer;
}

/* What was live before is in the recording, from 0, and without a name; later ones come after. */
TEST(test_started_late) {
    oracle_t oracle;
    zr_recording_t *recording = NULL;
    zr_life_t life;
    create(&oracle, 1, true);
    void *first = take(oracle.allocator, "first", 100), *gone = take(oracle.allocator, "gone", 50);
    void *pending = take(oracle.allocator, "pending", 200);
    fake_stream_queue(oracle.streams[0]);
    zr_free(oracle.allocator, &pending, oracle.streams[0]);
    zr_free(oracle.allocator, &gone, NULL);
    assert_int_equal(zr_allocator_record_stop(oracle.allocator, &recording), ZR_ERR_STATE);
    assert_null(recording);
    assert_ok(zr_allocator_record_start(oracle.allocator, 0));
    void *second = take(oracle.allocator, "second", 300);
    fake_stream_pass(oracle.streams[0], 1);
    zr_free(oracle.allocator, &first, NULL);
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    zr_free(oracle.allocator, &second, NULL);
    zr_recording_info_t info;
    zr_recording_info(recording, &info);
    assert_int_equal(info.n_lives, 3);
    static const struct {
        const char *name;
        size_t size;
        int64_t lower, freed, upper;
    } wanted[] = {{"", 100, 0, 2, 2}, {"", 200, 0, 0, 3}, {"second", 300, 1, 4, 4}};
    for (size_t i = 0; i < 3; i++) {
        zr_recording_life(recording, i, &life);
        assert_string_equal(life.name, wanted[i].name);
        assert_int_equal(life.size_bytes, wanted[i].size);
        assert_int_equal(life.lower, wanted[i].lower);
        assert_int_equal(life.freed, wanted[i].freed);
        assert_int_equal(life.upper, wanted[i].upper);
        assert_int_equal(life.is_open, i == 2);
    }
    zr_recording_destroy(&recording);
    zr_recording_destroy(&recording);
    destroy(&oracle);
}

/* Enough names that the table grows, and that some of them meet in it. */
TEST(test_many_names) {
    enum { N = 3000 };
    oracle_t oracle;
    zr_recording_t *recording = NULL;
    char name[32];
    create(&oracle, 1, false);
    assert_ok(zr_allocator_record_start(oracle.allocator, 0));
    for (int i = 0; i < 2 * N; i++) {
        snprintf(name, sizeof(name), "tensor %d", i % N);
        void *pointer = take(oracle.allocator, name, 1);
        zr_free(oracle.allocator, &pointer, NULL);
    }
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    for (size_t i = 0; i < 2 * N; i++) {
        zr_life_t life;
        zr_recording_life(recording, i, &life);
        snprintf(name, sizeof(name), "tensor %zu", i % N);
        assert_string_equal(life.name, name);
    }
    assert_int_equal(recording->n_names, N);
    zr_recording_destroy(&recording);
    destroy(&oracle);
}

/* At its limit a recording ends, says so once, is not saved, and can be begun again. */
TEST(test_limit) {
    oracle_t oracle;
    zr_recording_t *recording = NULL;
    zr_recording_info_t info;
    void *pointers[500];
    create(&oracle, 1, false);
    zr_log_t log = fake_log(oracle.fake);
    assert_int_equal(zr_allocator_record_start(oracle.allocator, 16), ZR_ERR_MEMORY);
    assert_int_equal(zr_allocator_record_stop(oracle.allocator, &recording), ZR_ERR_STATE);
    assert_ok(zr_allocator_record_start(oracle.allocator, 32768));
    fake_log_clear(oracle.fake);
    for (int i = 0; i < 500; i++)
        pointers[i] = take(oracle.allocator, "one", 256);
    assert_int_equal(oracle.fake->n_logged[ZR_LOG_WARNING], 1);
    assert_has(oracle.fake->text, "recording");
    assert_true(zr_allocator_is_valid(oracle.allocator));
    for (int i = 0; i < 450; i++)
        zr_free(oracle.allocator, &pointers[i], NULL);
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    zr_recording_info(recording, &info);
    assert_false(info.is_complete);
    assert_true(info.n_lives > 50 && info.n_lives < 500);
    assert_int_equal(zr_snapshot_save(recording, "limit.csv", &log), ZR_ERR_STATE);
    assert_has(oracle.fake->text, "limit.csv");
    assert_int_not_equal(access("limit.csv", F_OK), 0);
    zr_recording_destroy(&recording);

    assert_ok(zr_allocator_record_start(oracle.allocator, 32768));
    for (int i = 450; i < 500; i++)
        zr_free(oracle.allocator, &pointers[i], NULL);
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    zr_recording_info(recording, &info);
    assert_true(info.is_complete);
    assert_int_equal(info.n_lives, 50);
    zr_recording_destroy(&recording);
    assert_ok(zr_allocator_record_start(oracle.allocator, 0));
    destroy(&oracle); /* and the recording with it */
}

/* ---- files that cannot be written ------------------------------------------------------------ */

TEST(test_unwritable) {
    static const char *const endings[] = {"csv", "json", "pickle"};
    oracle_t oracle;
    zr_recording_t *recording = NULL;
    char path[64];
    create(&oracle, 1, false);
    zr_log_t log = fake_log(oracle.fake);
    assert_ok(zr_allocator_record_start(oracle.allocator, 0));
    void *pointer = take(oracle.allocator, "one", 256);
    zr_free(oracle.allocator, &pointer, NULL);
    assert_ok(zr_allocator_record_stop(oracle.allocator, &recording));
    assert_int_equal(zr_snapshot_save(recording, "one.txt", &log), ZR_ERR_ARGUMENT);
    for (int i = 0; i < 3; i++) {
        fake_log_clear(oracle.fake);
        snprintf(path, sizeof(path), "/absent/x.%s", endings[i]);
        assert_int_equal(zr_snapshot_save(recording, path, &log), ZR_ERR_IO);
        assert_non_null(strstr(oracle.fake->text, path));
        assert_has(oracle.fake->text, "No such file");
        if (access("/dev/full", W_OK) != 0)
            continue;
        fake_log_clear(oracle.fake);
        snprintf(path, sizeof(path), "full.%s", endings[i]);
        assert_int_equal(symlink("/dev/full", path), 0);
        assert_int_equal(zr_snapshot_save(recording, path, &log), ZR_ERR_IO);
        assert_has(oracle.fake->text, "No space left");
    }
    zr_recording_destroy(&recording);
    destroy(&oracle);
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
