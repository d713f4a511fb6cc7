/*
 * The stash against arrays in memory: puts and gets in any order and of any size, in every tier,
 * on a device whose streams run late; what is moved, to the byte; and drives that fail.
 */
#include "offload/stash.h"
#include "tests/common/late_device.h"
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"

#define N_SLOTS 9
#define SLOT_BYTES (9 * CHUNK + 200)
#define N_PLACES 3
#define N_OPERATIONS 400

/* Where a stash puts things: the backend of a store, or NULL for the host tier. */
static const char *const places[N_PLACES] = {NULL, "memory", "uring"};

typedef struct stash_fixture {
    fixture_t store;
    zr_device_t *device;
    bool is_late;
    zr_allocator_t *allocator;
    zr_stream_t *stream;
    zr_stash_options_t options;
    zr_stash_t *stash;
    uint64_t random;
    uint64_t n_puts;

    unsigned char *content[N_SLOTS], *read;
    size_t sizes[N_SLOTS]; /* of what is in it */
    uint64_t order[N_SLOTS];
    bool is_full[N_SLOTS];
    size_t most_gets; /* of a tensor; 0: one */
    size_t n_gets[N_SLOTS];
} stash_fixture_t;

static void set_up(stash_fixture_t *f, const char *place, bool is_late) {
    memset(f, 0, sizeof(*f));
    fault_arm(FAULT_NONE, 0, 0, 0);
    fixture_open(&f->store, place == NULL ? "memory" : place, 2);
    f->is_late = is_late;
    assert_ok(is_late ? late_device_open(&f->device) : zr_device_open("host", NULL, &f->device));
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = f->store.options.log;
    assert_ok(zr_allocator_create(f->device, &options, &f->allocator));
    assert_ok(zr_stream_create(f->device, "compute", &f->stream));
    f->store.options.allocator = f->allocator;
    f->options = (zr_stash_options_t){.log = f->store.options.log,
                                      .allocator = f->allocator,
                                      .device = f->device,
                                      .tier = place == NULL ? ZR_TIER_HOST : ZR_TIER_NVME,
                                      .n_slots = N_SLOTS,
                                      .slot_bytes = SLOT_BYTES,
                                      .name = "things",
                                      .tag = ZR_TAG_ACTIVATIONS,
                                      .lifetime = ZR_LIFETIME_MICRO_BATCH,
                                      .n_buffers = 3};
    for (size_t i = 0; i < N_SLOTS; i++)
        f->content[i] = new_buffer(SLOT_BYTES, 0);
    f->read = new_buffer(SLOT_BYTES, 0);
}

/* With an extent of somebody else before those of the stash, and one behind. */
static void create_store(stash_fixture_t *f) {
    size_t sizes[N_SLOTS + 2];
    for (size_t i = 0; i < N_SLOTS + 2; i++)
        sizes[i] = (SLOT_BYTES + 4095) / 4096 * 4096;
    assert_ok(fixture_create(&f->store, sizes, N_SLOTS + 2));
    f->options.store = f->store.store;
    f->options.first_extent = 1;
}

static void create(stash_fixture_t *f) {
    zr_stash_destroy(&f->stash);
    memset(f->is_full, 0, sizeof(f->is_full));
    if (f->options.tier == ZR_TIER_NVME)
        create_store(f);
    assert_ok(zr_stash_create(&f->options, &f->stash));
}

static size_t n_live(stash_fixture_t *f, zr_tier_t tier) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(f->allocator, tier, &statistics);
    return statistics.n_live;
}

static void tear_down(stash_fixture_t *f) {
    zr_stash_destroy(&f->stash);
    assert_null(f->stash);
    zr_store_destroy(&f->store.store);
    assert_ok(zr_stream_synchronize(f->stream));
    assert_int_equal(n_live(f, ZR_TIER_DEVICE), 0);
    assert_int_equal(n_live(f, ZR_TIER_HOST), 0);
    zr_stream_destroy(&f->stream);
    zr_allocator_destroy(&f->allocator);
    fixture_close(&f->store);
    zr_device_close(&f->device);
    for (size_t i = 0; i < N_SLOTS; i++)
        free_buffer(f->content[i]);
    free_buffer(f->read);
}

/* ---- operations ---------------------------------------------------------------------------- */

static void *new_tensor(stash_fixture_t *f, const void *content, size_t size_bytes) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_ACTIVATIONS,
                                       .lifetime = ZR_LIFETIME_MICRO_BATCH,
                                       .name = "test",
                                       .stream = f->stream};
    void *tensor = NULL;
    assert_ok(zr_allocate(f->allocator, &request, &tensor));
    assert_ok(zr_copy_async(f->stream, tensor, content, size_bytes, ZR_COPY_HOST_TO_DEVICE));
    return tensor;
}

/* Others use the memory that was given back: what still needs it loses its content. */
static void scribble(stash_fixture_t *f) {
    static const unsigned char rubbish[SLOT_BYTES] = {0xa5};
    void *tensor = new_tensor(f, rubbish, SLOT_BYTES);
    zr_free(f->allocator, &tensor, f->stream);
}

static zr_status_t put(stash_fixture_t *f, size_t slot, size_t size_bytes) {
    f->order[slot] = ++f->n_puts;
    f->sizes[slot] = size_bytes;
    fill_pattern(f->content[slot], size_bytes, f->n_puts);
    void *tensor = new_tensor(f, f->content[slot], size_bytes);
    f->n_gets[slot] = f->most_gets == 0 ? 1 : 1 + random_bits(&f->random) % f->most_gets;
    zr_status_t status =
        f->most_gets == 0
            ? zr_stash_put(f->stash, slot, &tensor, size_bytes, f->stream)
            : zr_stash_put_for(f->stash, slot, &tensor, size_bytes, f->stream, f->n_gets[slot]);
    f->is_full[slot] = status == ZR_OK;
    assert_true((tensor == NULL) == (status == ZR_OK));
    if (status != ZR_OK)
        zr_stash_clear(f->stash);
    zr_free(f->allocator, &tensor, f->stream);
    scribble(f);
    return status;
}

/* Whether what comes back is what went away. */
static zr_status_t get(stash_fixture_t *f, size_t slot, bool *same_p) {
    void *tensor = NULL;
    ZR_TRY(zr_stash_get(f->stash, slot, f->stream, &tensor));
    f->is_full[slot] = --f->n_gets[slot] > 0;
    memset(f->read, 0, SLOT_BYTES);
    assert_ok(zr_copy_async(f->stream, f->read, tensor, f->sizes[slot], ZR_COPY_DEVICE_TO_HOST));
    zr_free(f->allocator, &tensor, f->stream);
    assert_ok(zr_stream_synchronize(f->stream));
    scribble(f);
    *same_p = memcmp(f->read, f->content[slot], f->sizes[slot]) == 0;
    return ZR_OK;
}

static void expect_get(stash_fixture_t *f, size_t slot) {
    bool is_same = false;
    assert_ok(get(f, slot, &is_same));
    if (!is_same)
        fail_msg("slot %zu of %zu bytes came back different", slot, f->sizes[slot]);
}

/* The next full slot after a random one, or the one put last; N_SLOTS: there is none. */
static size_t choose_full(stash_fixture_t *f) {
    size_t slot = N_SLOTS, first = random_bits(&f->random) % N_SLOTS;
    bool is_last = random_bits(&f->random) % 2 == 0;
    for (size_t i = 0; i < N_SLOTS; i++) {
        size_t at = (first + i) % N_SLOTS;
        if (f->is_full[at] && (slot == N_SLOTS || (is_last && f->order[at] > f->order[slot])))
            slot = at;
    }
    return slot;
}

static size_t random_size(stash_fixture_t *f) {
    static const size_t some[] = {0, 1, CHUNK, SLOT_BYTES};
    size_t n = random_bits(&f->random) % 8;
    return n < 4 ? some[n] : random_bits(&f->random) % (SLOT_BYTES + 1);
}

static void operate(stash_fixture_t *f) {
    size_t n = random_bits(&f->random) % 16, slot = random_bits(&f->random) % N_SLOTS;
    if (n == 0 && random_bits(&f->random) % 8 == 0) {
        zr_stash_clear(f->stash);
        assert_ok(zr_stream_synchronize(f->stream)); /* contents are ours again */
        memset(f->is_full, 0, sizeof(f->is_full));
    } else if (n < 9 && !f->is_full[slot]) {
        assert_ok(put(f, slot, random_size(f)));
    } else if ((slot = choose_full(f)) == N_SLOTS) {
        return;
    } else if (n < 11 && f->options.reads_when_told) {
        assert_ok(zr_stash_read_ahead(f->stash, slot));
    } else if (n < 12) {
        assert_ok(zr_stash_prefetch(f->stash, slot, f->stream));
    } else {
        expect_get(f, slot);
    }
}

/* ---- what comes back ------------------------------------------------------------------------ */

TEST(any_order) {
    stash_fixture_t f;
    for (size_t place = 0; place < N_PLACES; place++) {
        for (int variant = 0; variant < 4; variant++) {
            bool is_late = variant % 2 != 0, is_told = variant / 2 != 0;
            for (size_t n_buffers = 1; n_buffers <= (place == 0 ? 1 : 5); n_buffers += 2) {
                set_up(&f, places[place], is_late);
                f.random = place * 10 + n_buffers;
                f.options.n_buffers = n_buffers;
                f.options.reads_when_told = is_told;
                f.options.n_in_host = n_buffers - 1;
                f.most_gets = is_told ? 3 : 0;
                create(&f);
                for (size_t i = 0; i < N_OPERATIONS; i++)
                    operate(&f);
                for (size_t slot; (slot = choose_full(&f)) != N_SLOTS;)
                    expect_get(&f, slot);
                tear_down(&f);
            }
        }
    }
}

/* In the order in which they were put, twice: what is read ahead is read once each time, and what
 * is got last of all is not written again. */
TEST(reads_what_it_is_told) {
    for (size_t n_buffers = 2; n_buffers <= 6; n_buffers++) {
        stash_fixture_t f;
        zr_stash_statistics_t s;
        set_up(&f, "memory", false);
        f.options.n_buffers = n_buffers;
        f.options.reads_when_told = true;
        create(&f);
        assert_int_equal(zr_stash_most_ahead(f.stash), n_buffers / 2);
        f.most_gets = 1;
        for (size_t i = 0; i < N_SLOTS; i++) {
            void *tensor = new_tensor(&f, f.content[i], CHUNK);
            f.sizes[i] = CHUNK;
            f.n_gets[i] = 2;
            assert_ok(zr_stash_put_for(f.stash, i, &tensor, CHUNK, f.stream, 2));
        }
        for (size_t i = 0; i < 2 * N_SLOTS; i++) {
            for (size_t k = 1; k <= n_buffers / 2 && i + k < 2 * N_SLOTS; k++)
                assert_ok(zr_stash_read_ahead(f.stash, (i + k) % N_SLOTS));
            expect_get(&f, i % N_SLOTS);
        }
        zr_stash_statistics(f.stash, &s);
        assert_int_equal(s.drive_bytes[ZR_STORE_PUT], N_SLOTS * CHUNK);
        assert_true(s.drive_bytes[ZR_STORE_GET] <= 2 * N_SLOTS * CHUNK);
        assert_true(s.drive_bytes[ZR_STORE_GET] >= (2 * N_SLOTS - n_buffers) * CHUNK);
        assert_int_equal(s.n_tensors[ZR_STORE_GET], 2 * N_SLOTS);
        tear_down(&f);
    }
}

/* Memory that others have after a clear is theirs: nothing that was under way comes to it. */
TEST(what_is_cleared_is_at_rest) {
    enum { N_TAKEN = 4 }; /* no less than was given back */
    static const unsigned char own[SLOT_BYTES] = {1, 2, 3};
    for (size_t i = 0; i < 16; i++) {
        stash_fixture_t f;
        set_up(&f, NULL, true);
        create(&f);
        assert_ok(put(&f, 0, SLOT_BYTES));
        if (i % 2 != 0)
            assert_ok(zr_stash_prefetch(f.stash, 0, f.stream));
        zr_stash_clear(f.stash);
        zr_allocation_request_t request = {.size_bytes = SLOT_BYTES,
                                           .tier = ZR_TIER_HOST,
                                           .tag = ZR_TAG_ACTIVATIONS,
                                           .lifetime = ZR_LIFETIME_MICRO_BATCH,
                                           .name = "test"};
        void *host = NULL, *tensors[N_TAKEN];
        for (size_t taken = 0; taken < N_TAKEN; taken++)
            tensors[taken] = new_tensor(&f, own, SLOT_BYTES);
        assert_ok(zr_allocate(f.allocator, &request, &host));
        memcpy(host, own, SLOT_BYTES);
        assert_ok(zr_stream_synchronize(f.stream));
        zr_stash_destroy(&f.stash);
        assert_memory_equal(host, own, SLOT_BYTES);
        zr_free(f.allocator, &host, NULL);
        for (size_t taken = 0; taken < N_TAKEN; taken++) {
            assert_ok(zr_copy_async(f.stream, f.read, tensors[taken], SLOT_BYTES,
                                    ZR_COPY_DEVICE_TO_HOST));
            assert_ok(zr_stream_synchronize(f.stream));
            assert_memory_equal(f.read, own, SLOT_BYTES);
            zr_free(f.allocator, &tensors[taken], f.stream);
        }
        tear_down(&f);
    }
}

/* Forward, then backward, as training does. */
static zr_status_t pass(stash_fixture_t *f, size_t size_bytes, size_t *n_different) {
    for (size_t i = 0; i < N_SLOTS; i++)
        ZR_TRY(put(f, i, size_bytes));
    for (size_t i = N_SLOTS; i-- > 0;) {
        bool is_same = false;
        ZR_TRY(get(f, i, &is_same));
        *n_different += !is_same;
        if (i > 0)
            ZR_TRY(zr_stash_prefetch(f->stash, i - 1, f->stream));
    }
    return ZR_OK;
}

TEST(last_in_first_out) {
    stash_fixture_t f;
    for (size_t place = 0; place < N_PLACES; place++) {
        for (size_t n_buffers = 1; n_buffers <= 12; n_buffers += place == 0 ? 12 : 1) {
            zr_stash_statistics_t s;
            size_t n_different = 0, n_in_host = place == 0 ? 0 : n_buffers % 3;
            size_t n_stored = N_SLOTS - n_in_host;
            size_t n_read = n_buffers < n_stored ? n_stored - n_buffers : 0;
            set_up(&f, places[place], false);
            f.options.n_buffers = n_buffers;
            f.options.n_in_host = n_in_host;
            create(&f);
            for (size_t i = 1; i <= 3; i++)
                assert_ok(pass(&f, i * CHUNK, &n_different));
            assert_int_equal(n_different, 0);
            zr_stash_statistics(f.stash, &s);
            for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
                assert_int_equal(s.n_tensors[d], 3 * N_SLOTS);
                assert_int_equal(s.bytes[d], 6 * CHUNK * N_SLOTS);
            }
            assert_int_equal(s.peak_bytes, 3 * CHUNK * N_SLOTS);
            assert_int_equal(s.has_store, place != 0);
            if (place != 0) { /* whole chunks; the last is never written, and buffers not read */
                assert_int_equal(s.drive_bytes[ZR_STORE_PUT], 6 * CHUNK * (n_stored - 1));
                assert_int_equal(s.store_peak_bytes, 3 * CHUNK * n_stored);
                assert_int_equal(s.drive_bytes[ZR_STORE_GET], 6 * CHUNK * n_read);
                assert_int_equal(s.store_statistics.count[ZR_STORE_PUT].bounced_bytes, 0);
            }
            tear_down(&f);
        }
    }
}

/* What is in a buffer is got without reading, and then the next is read ahead. */
TEST(reads_ahead) {
    stash_fixture_t f;
    zr_stash_statistics_t s;
    set_up(&f, "memory", false);
    create(&f);
    for (size_t i = 0; i < N_SLOTS; i++)
        assert_ok(put(&f, i, CHUNK));
    for (size_t i = 1; i <= 4; i++) {
        expect_get(&f, N_SLOTS - i);
        zr_stash_statistics(f.stash, &s);
        assert_int_equal(s.drive_bytes[ZR_STORE_GET], i * CHUNK);
    }
    tear_down(&f);
}

/* Everything is queued, in both directions, before anything is waited for. */
TEST(much_under_way) {
    stash_fixture_t f;
    void *tensor = NULL;
    for (size_t i = 0; i < 30; i++) {
        set_up(&f, places[i % N_PLACES], true);
        f.options.n_buffers = 1 + i / N_PLACES;
        create(&f);
        unsigned char *all = new_buffer(N_SLOTS * SLOT_BYTES, 0);
        unsigned char *old = new_buffer(N_SLOTS * SLOT_BYTES, 0);
        for (size_t slot = 0; slot < N_SLOTS; slot++)
            assert_ok(put(&f, slot, SLOT_BYTES));
        for (size_t slot = N_SLOTS; slot-- > 0;) {
            if (slot > 0)
                assert_ok(zr_stash_prefetch(f.stash, slot - 1, f.stream));
            assert_ok(zr_stash_get(f.stash, slot, f.stream, &tensor));
            assert_ok(zr_copy_async(f.stream, all + slot * SLOT_BYTES, tensor, SLOT_BYTES,
                                    ZR_COPY_DEVICE_TO_HOST));
            zr_free(f.allocator, &tensor, f.stream);
            unsigned char *content = f.content[slot];
            f.content[slot] = old + slot * SLOT_BYTES; /* the old one stays as it is until then */
            assert_ok(put(&f, slot, SLOT_BYTES));
            f.content[slot] = content;
        }
        assert_ok(zr_stream_synchronize(f.stream));
        for (size_t slot = 0; slot < N_SLOTS; slot++) {
            assert_memory_equal(all + slot * SLOT_BYTES, f.content[slot], SLOT_BYTES);
            memcpy(f.content[slot], old + slot * SLOT_BYTES, SLOT_BYTES);
        }
        for (size_t slot = 0; slot < N_SLOTS; slot++)
            expect_get(&f, slot);
        tear_down(&f);
        free_buffer(all);
        free_buffer(old);
    }
}

/* Another stash, and somebody else's transfers in flight, in the same store: nobody gives back what
 * is not his, and each is counted by itself. */
TEST(a_store_that_is_shared) {
    stash_fixture_t f;
    for (size_t place = 1; place < N_PLACES; place++) {
        zr_store_extent_t extents[1 + 2 * N_SLOTS];
        zr_stash_t *other = NULL;
        zr_stash_statistics_t s;
        zr_store_statistics_t own;
        zr_store_ticket_t ticket;
        set_up(&f, places[place], false);
        for (size_t i = 0; i < 1 + 2 * N_SLOTS; i++)
            extents[i] = (zr_store_extent_t){"shared", 10 * CHUNK, (i + N_SLOTS - 1) / N_SLOTS};
        assert_ok(zr_store_create(f.store.backend, &f.store.options, extents, 1 + 2 * N_SLOTS,
                                  &f.store.store));
        f.options.store = f.store.store;
        f.options.first_extent = 1 + N_SLOTS;
        assert_ok(zr_stash_create(&f.options, &other));
        f.options.first_extent = 1;
        assert_ok(zr_stash_create(&f.options, &f.stash));
        unsigned char *buffer = new_buffer(10 * CHUNK, 0);
        memset(buffer, 1, 10 * CHUNK);
        assert_ok(zr_store_put(f.store.store, 0, 0, 10 * CHUNK, buffer, &ticket));
        void *tensor = new_tensor(&f, buffer, CHUNK);
        assert_ok(zr_stash_put(other, 0, &tensor, CHUNK, f.stream));
        for (size_t i = 0; i < N_SLOTS; i++)
            assert_ok(put(&f, i, CHUNK));
        zr_stash_clear(f.stash);
        memset(f.is_full, 0, sizeof(f.is_full));
        for (size_t i = 0; i < N_SLOTS; i++)
            assert_ok(put(&f, i, CHUNK));
        for (size_t i = N_SLOTS; i-- > 0;)
            expect_get(&f, i);
        zr_stash_destroy(&f.stash);
        assert_ok(zr_stash_get(other, 0, f.stream, &tensor));
        zr_free(f.allocator, &tensor, f.stream);
        zr_stash_statistics(other, &s);
        assert_int_equal(s.store_statistics.count[ZR_STORE_PUT].bytes, 0);
        zr_stash_destroy(&other);
        assert_ok(zr_store_wait(f.store.store, ticket)); /* still ours */
        zr_store_account_statistics(f.store.store, 0, &own);
        assert_int_equal(own.count[ZR_STORE_PUT].bytes, 10 * CHUNK);
        free_buffer(buffer);
        tear_down(&f);
    }
}

/* The test sees what a schedule without events would do. */
TEST(without_events_content_is_lost) {
    stash_fixture_t f;
    size_t n_different = 0;
    set_up(&f, NULL, true);
    create(&f);
    late_device_ignore_waits(true);
    for (int i = 0; i < 4; i++)
        assert_ok(pass(&f, SLOT_BYTES, &n_different));
    late_device_ignore_waits(false);
    assert_true(n_different > 0);
    tear_down(&f);
}

/* Host memory: all that was put, or the buffers whatever was put; the device's is free. */
TEST(memory_that_it_takes) {
    stash_fixture_t f;
    zr_tier_statistics_t host, device;
    for (size_t place = 0; place < N_PLACES; place++) {
        set_up(&f, places[place], false);
        create(&f);
        zr_allocator_reset_peaks(f.allocator);
        for (size_t i = 0; i < N_SLOTS; i++)
            assert_ok(put(&f, i, SLOT_BYTES));
        zr_allocator_statistics(f.allocator, ZR_TIER_HOST, &host);
        zr_allocator_statistics(f.allocator, ZR_TIER_DEVICE, &device);
        assert_int_equal(device.by_tag[ZR_TAG_ACTIVATIONS].live, 0);
        assert_true(device.by_tag[ZR_TAG_ACTIVATIONS].peak <= 2 * SLOT_BYTES);
        assert_int_equal(host.by_tag[ZR_TAG_ACTIVATIONS].live,
                         place == 0 ? N_SLOTS * SLOT_BYTES : 0);
        assert_true(host.by_tag[ZR_TAG_STAGING].live >= (place == 0 ? 0 : 3 * SLOT_BYTES));
        assert_int_equal(host.by_tag[ZR_TAG_STAGING].peak, host.by_tag[ZR_TAG_STAGING].live);
        tear_down(&f);
    }
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

/* Every request of two passes fails once: an error with its cause, or right content; then again. */
TEST(drives_that_fail) {
    static const struct {
        fault_kind_t kind;
        long result;
        zr_status_t expected;
        const char *said;
    } cases[] = {{FAULT_RESULT, -EIO, ZR_ERR_IO, "errno 5"},
                 {FAULT_RESULT, -ENOSPC, ZR_ERR_IO, "errno 28"},
                 {FAULT_FLIP, 0, ZR_ERR_FORMAT, "not those that were put"}};
    stash_fixture_t f;
    for (size_t i = 0; i < N_OF(cases); i++) {
        size_t n_failed = 0;
        bool was_hit = true;
        for (size_t at = 1; was_hit; at++) {
            size_t n_different = 0;
            set_up(&f, "uring", at % 2 == 1);
            create(&f);
            fault_arm(cases[i].kind, cases[i].result, at, 1);
            zr_status_t status = pass(&f, SLOT_BYTES, &n_different);
            ZR_THEN(status, pass(&f, SLOT_BYTES, &n_different));
            if (status == ZR_OK) /* so that all that is under way ends now, by its fault or well */
                status = put(&f, 0, SLOT_BYTES);
            zr_stash_clear(f.stash);
            was_hit = fault.n_hits > 0;
            fault_arm(FAULT_NONE, 0, 0, 0);
            assert_int_equal(n_different, 0);
            if (status != ZR_OK) {
                assert_refused(&f.store, cases[i].expected, status, cases[i].said);
                n_failed++;
            }
            assert_ok(zr_stream_synchronize(f.stream));
            assert_ok(pass(&f, SLOT_BYTES, &n_different));
            assert_int_equal(n_different, 0);
            tear_down(&f);
            assert_true(at < 1000);
        }
        assert_true(n_failed > 4);
    }
}

TEST(a_budget_that_is_too_small) {
    stash_fixture_t f;
    set_up(&f, NULL, false);
    zr_allocator_destroy(&f.allocator);
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = f.store.options.log;
    options.budget_bytes[ZR_TIER_HOST] = 16 * zr_device_info(f.device)->granule_bytes;
    while (options.budget_bytes[ZR_TIER_HOST] < SLOT_BYTES)
        options.budget_bytes[ZR_TIER_HOST] *= 2;
    assert_ok(zr_allocator_create(f.device, &options, &f.allocator));
    f.options.allocator = f.allocator;
    f.options.slot_bytes = options.budget_bytes[ZR_TIER_HOST];
    create(&f);
    assert_ok(put(&f, 0, SLOT_BYTES));
    void *tensor = NULL;
    zr_allocation_request_t request = {
        .size_bytes = f.options.slot_bytes, .tier = ZR_TIER_DEVICE, .stream = f.stream};
    assert_ok(zr_allocate(f.allocator, &request, &tensor));
    void *kept = tensor;
    assert_refused(&f.store, ZR_ERR_BUDGET,
                   zr_stash_put(f.stash, 1, &tensor, f.options.slot_bytes, f.stream), "things");
    assert_ptr_equal(tensor, kept); /* still the caller's */
    assert_refused(&f.store, ZR_ERR_STATE, zr_stash_get(f.stash, 0, f.stream, &tensor),
                   "after an error; clear it");
    zr_stash_clear(f.stash);
    assert_ok(zr_stash_put(f.stash, 1, &tensor, f.options.slot_bytes, f.stream));
    tear_down(&f);
}

TEST(what_is_refused) {
    stash_fixture_t f;
    void *tensor = NULL;
    set_up(&f, "memory", false);
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_create(&f.options, &f.stash), "a store");
    create_store(&f);
    f.options.n_buffers = 0;
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_create(&f.options, &f.stash), "0 buffers");
    f.options.n_buffers = 2;
    f.options.tier = ZR_TIER_DEVICE;
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_create(&f.options, &f.stash),
                   "allowed: host and nvme");
    f.options.tier = ZR_TIER_NVME;
    f.options.first_extent = 3;
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_create(&f.options, &f.stash),
                   "is extent 11 of the store, which has 11");
    f.options.first_extent = 1;
    f.options.slot_bytes = 10 * CHUNK + 1;
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_create(&f.options, &f.stash),
                   "all slots need 81921 or more");
    f.options.slot_bytes = SLOT_BYTES;
    create(&f);
    assert_refused(&f.store, ZR_ERR_STATE, zr_stash_get(f.stash, 1, f.stream, &tensor), "is empty");
    assert_refused(&f.store, ZR_ERR_STATE, zr_stash_prefetch(f.stash, 1, f.stream), "is empty");
    assert_refused(&f.store, ZR_ERR_ARGUMENT, zr_stash_get(f.stash, N_SLOTS, f.stream, &tensor),
                   "there are 9");
    assert_ok(put(&f, 1, 100));
    tensor = new_tensor(&f, f.content[1], 100);
    assert_refused(&f.store, ZR_ERR_STATE, zr_stash_put(f.stash, 1, &tensor, 100, f.stream),
                   "which is full");
    assert_refused(&f.store, ZR_ERR_ARGUMENT,
                   zr_stash_put(f.stash, 2, &tensor, SLOT_BYTES + 1, f.stream), "takes up to");
    zr_free(f.allocator, &tensor, f.stream);
    expect_get(&f, 1); /* none of it did harm */
    tear_down(&f);
}

int main(void) {
    int skipped = fixture_probe();
    return skipped != 0 ? skipped : run_all_tests(NULL, NULL);
}
