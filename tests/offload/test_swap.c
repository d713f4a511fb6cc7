/*
 * The swap pipeline against arrays in memory: passes that change every byte, with any number of
 * buffers, over both stores; stores whose transfers end late; and one that fails at each request.
 */
#include "offload/store_backend.h"
#include "offload/swap_internal.h"
#include "tests/common/late_device.h"
#include "tests/offload/store_fixture.h"

#define N_EXTENTS 4
#define MAX_ITEMS 32
/* Whole chunks, ragged ends, less than a chunk, nothing. */
static const size_t sizes[N_EXTENTS] = {5 * CHUNK, 7 * CHUNK + 384, 100, 0};
#define BUFFER (2 * CHUNK)

typedef struct swap_fixture {
    fixture_t store;
    zr_device_t *device;
    zr_allocator_t *allocator;
    zr_swap_t *swap;
    zr_swap_options_t options;
    zr_swap_item_t items[MAX_ITEMS];
    size_t n_items;
    unsigned char *oracle[N_EXTENTS];
    uint64_t seed;
    uint64_t random;
    bool has_pauses; /* passes have, in which items are read and written */
} swap_fixture_t;

/* The extents in pieces of at most a buffer. */
static void list_items(swap_fixture_t *f) {
    for (size_t e = 0; e < N_EXTENTS; e++)
        for (size_t offset = 0; offset < sizes[e]; offset += BUFFER) {
            size_t left = sizes[e] - offset;
            f->items[f->n_items++] = (zr_swap_item_t){
                .extent = e, .offset_bytes = offset, .size_bytes = left < BUFFER ? left : BUFFER};
        }
}

static void set_up(swap_fixture_t *f, const char *backend) {
    memset(f, 0, sizeof(*f));
    fixture_open(&f->store, backend, 2);
    assert_ok(fixture_create(&f->store, sizes, N_EXTENTS));
    assert_ok(zr_device_open("host", NULL, &f->device));
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = f->store.options.log;
    assert_ok(zr_allocator_create(f->device, &options, &f->allocator));
    f->options = (zr_swap_options_t){.log = f->store.options.log,
                                     .allocator = f->allocator,
                                     .n_buffers = 3,
                                     .buffer_bytes = BUFFER,
                                     .read_ahead = true,
                                     .write_behind = true};
    list_items(f);
    for (size_t e = 0; e < N_EXTENTS; e++)
        f->oracle[e] = calloc(1, sizes[e] + 8);
}

static void tear_down(swap_fixture_t *f) {
    zr_swap_destroy(&f->swap);
    for (size_t e = 0; e < N_EXTENTS; e++)
        free(f->oracle[e]);
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(f->allocator, ZR_TIER_HOST, &statistics);
    assert_int_equal(statistics.n_live, 0);
    zr_allocator_destroy(&f->allocator);
    fixture_close(&f->store);
    zr_device_close(&f->device);
}

static void create(swap_fixture_t *f) {
    zr_swap_destroy(&f->swap);
    assert_ok(zr_swap_create(&f->options, f->store.store, &f->swap));
}

/* What an item holds is changed so that a lost, doubled or misplaced change shows. */
static void change_part(unsigned char *bytes, size_t first, size_t size_bytes, uint64_t key) {
    for (size_t i = first; i < first + size_bytes; i++)
        bytes[i] = (unsigned char)(bytes[i] * 3 + key + i);
}

static void change(unsigned char *bytes, size_t size_bytes, uint64_t key) {
    change_part(bytes, 0, size_bytes, key);
}

/* Change an item as the optimizer does: slices of three arrays in it side by side, and what is left
 * at the end. */
static zr_status_t change_in_slices(swap_fixture_t *f, unsigned char *bytes, size_t size_bytes,
                                    uint64_t key) {
    size_t third = size_bytes / 3, slice = 1 + random_bits(&f->random) % (CHUNK + CHUNK / 2);
    for (size_t at = 0; at < third; at += slice) {
        size_t size = third - at < slice ? third - at : slice;
        for (size_t array = 0; array < 3; array++) {
            ZR_TRY(zr_swap_open_slice(f->swap, array * third + at, size));
            change_part(bytes, array * third + at, size, key);
        }
        for (size_t array = 0; array < 3; array++)
            if (f->random % 5 != 0) /* what is not closed is hashed in the end */
                ZR_TRY(zr_swap_close_slice(f->swap, array * third + at, size));
    }
    ZR_TRY(zr_swap_open_slice(f->swap, 3 * third, size_bytes - 3 * third));
    change_part(bytes, 3 * third, size_bytes - 3 * third, key);
    return zr_swap_close_slice(f->swap, 3 * third, size_bytes - 3 * third);
}

static zr_status_t run_pass(swap_fixture_t *f, zr_swap_pass_t pass) {
    uint64_t key = ++f->seed;
    ZR_TRY(zr_swap_begin(f->swap, pass, f->items, f->n_items));
    if (f->has_pauses && (pass == ZR_SWAP_UPDATE || pass == ZR_SWAP_SLICES))
        ZR_TRY(zr_swap_expect_pauses(f->swap));
    for (size_t i = 0; i < f->n_items; i++) {
        void *buffer = NULL;
        const zr_swap_item_t *item = &f->items[i];
        ZR_TRY(zr_swap_next(f->swap, &buffer));
        if (pass == ZR_SWAP_FILL)
            memset(buffer, 0, item->size_bytes);
        if (pass == ZR_SWAP_SLICES)
            ZR_TRY(change_in_slices(f, buffer, item->size_bytes, key));
        else
            change(buffer, item->size_bytes, key);
        ZR_TRY(zr_swap_done(f->swap));
    }
    return zr_swap_end(f->swap);
}

static void pass_of_oracle(swap_fixture_t *f, zr_swap_pass_t pass) {
    for (size_t i = 0; i < f->n_items; i++) {
        const zr_swap_item_t *item = &f->items[i];
        unsigned char *bytes = f->oracle[item->extent] + item->offset_bytes;
        if (pass == ZR_SWAP_FILL)
            memset(bytes, 0, item->size_bytes);
        change(bytes, item->size_bytes, f->seed);
    }
}

static void expect_pass(swap_fixture_t *f, zr_swap_pass_t pass) {
    assert_ok(run_pass(f, pass));
    pass_of_oracle(f, pass);
}

static void expect_content(swap_fixture_t *f) {
    for (size_t i = f->n_items; i-- > 0;) {
        const void *buffer = NULL;
        const zr_swap_item_t *item = &f->items[i];
        assert_ok(zr_swap_load(f->swap, item, &buffer));
        assert_memory_equal(buffer, f->oracle[item->extent] + item->offset_bytes, item->size_bytes);
    }
}

static size_t all_bytes(void) {
    size_t sum = 0;
    for (size_t e = 0; e < N_EXTENTS; e++)
        sum += sizes[e];
    return sum;
}

/* ---- what comes out ------------------------------------------------------------------------ */

static void passes_with(swap_fixture_t *f, size_t n_buffers, bool read_ahead, bool write_behind) {
    zr_store_statistics_t before, after;
    zr_swap_statistics_t swap;
    f->options.n_buffers = n_buffers;
    f->options.read_ahead = read_ahead;
    f->options.write_behind = write_behind;
    create(f);
    expect_pass(f, ZR_SWAP_FILL);
    expect_content(f);
    zr_store_statistics(f->store.store, &before);
    for (int i = 0; i < 5; i++)
        expect_pass(f, i % 2 == 0 ? ZR_SWAP_UPDATE : ZR_SWAP_SLICES);
    assert_ok(zr_swap_settle(f->swap));
    zr_store_statistics(f->store.store, &after);
    /* To the byte: everything is read once and written once per pass. */
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
        assert_int_equal(after.count[d].bytes - before.count[d].bytes, 5 * all_bytes());
    expect_content(f);
    zr_swap_statistics(f->swap, &swap);
    assert_int_equal(swap.n_passes, 6);
    assert_int_equal(swap.n_items, 6 * f->n_items);
    /* Half of the buffers read ahead of the one that is worked on, with pauses all. */
    size_t ahead = f->has_pauses ? n_buffers : 1 + (n_buffers > 3 ? n_buffers / 2 : 1);
    ahead = ahead < n_buffers ? ahead : n_buffers;
    ahead = ahead < f->n_items ? ahead : f->n_items;
    assert_int_equal(swap.most_ahead, read_ahead ? ahead : 1);
}

/* ---- slices --------------------------------------------------------------------------------- */

/* Begin a pass over all items, do all before item `n`, and give out that one. */
static unsigned char *go_to_item(swap_fixture_t *f, zr_swap_pass_t pass, size_t n) {
    void *buffer = NULL;
    assert_ok(zr_swap_begin(f->swap, pass, f->items, f->n_items));
    for (size_t i = 0; i <= n; i++) {
        assert_ok(zr_swap_next(f->swap, &buffer));
        if (i < n)
            assert_ok(zr_swap_done(f->swap));
    }
    fixture_log_clear(&f->store);
    return buffer;
}

typedef enum flip { BEFORE_OPEN, NOT_OPENED, AFTER_CLOSE, N_FLIPS } flip_t;

/* A bit of a chunk changes; the pass, or the next one, ends with that. */
static void flip_one(swap_fixture_t *f, size_t n, size_t at, flip_t flip) {
    size_t left = f->items[n].size_bytes - at, size = left < CHUNK ? left : CHUNK;
    unsigned char *buffer = go_to_item(f, ZR_SWAP_SLICES, n);
    if (flip == AFTER_CLOSE) {
        assert_ok(zr_swap_open_slice(f->swap, at, size));
        change_part(buffer, at, size, 1);
        assert_ok(zr_swap_close_slice(f->swap, at, size));
    }
    buffer[at + (at / CHUNK * 577 + n) % size] ^= 32;
    if (flip == AFTER_CLOSE) {
        assert_ok(zr_swap_done(f->swap));
        zr_swap_destroy(&f->swap); /* waits for its write */
        create(f);
        buffer = go_to_item(f, ZR_SWAP_SLICES, n);
    }
    zr_status_t status =
        flip == NOT_OPENED ? zr_swap_done(f->swap) : zr_swap_open_slice(f->swap, at + size / 2, 1);
    assert_refused(&f->store, ZR_ERR_FORMAT, status, "not those that were put");
    assert_refused(&f->store, ZR_ERR_STATE, zr_swap_done(f->swap), "no item is being processed");
}

TEST(each_chunk_is_verified) {
    swap_fixture_t f;
    set_up(&f, "memory");
    create(&f);
    for (flip_t flip = BEFORE_OPEN; flip < N_FLIPS; flip++)
        for (size_t i = 0; i < f.n_items; i++)
            for (size_t at = 0; at < f.items[i].size_bytes; at += CHUNK) {
                expect_pass(&f, ZR_SWAP_FILL);
                flip_one(&f, i, at, flip);
            }
    expect_pass(&f, ZR_SWAP_FILL);
    expect_pass(&f, ZR_SWAP_SLICES);
    expect_content(&f);
    tear_down(&f);
}

/* One mistake in a new pass; it ends the pass. */
static void refuse_slice(swap_fixture_t *f, size_t n_opened, size_t n_closed,
                         zr_status_t (*call)(zr_swap_t *, size_t, size_t), size_t offset_bytes) {
    expect_pass(f, ZR_SWAP_FILL);
    go_to_item(f, ZR_SWAP_SLICES, 0);
    for (size_t i = 0; i < n_opened; i++)
        assert_ok(zr_swap_open_slice(f->swap, 0, CHUNK));
    for (size_t i = 0; i < n_closed; i++)
        assert_ok(zr_swap_close_slice(f->swap, 0, CHUNK - 8));
    bool is_beyond = offset_bytes > BUFFER - 16;
    assert_refused(&f->store, is_beyond ? ZR_ERR_ARGUMENT : ZR_ERR_STATE,
                   call(f->swap, offset_bytes, 16),
                   is_beyond ? "the item has 16384" : "not opened or was closed before");
}

TEST(wrong_slices_are_refused) {
    swap_fixture_t f;
    set_up(&f, "memory");
    create(&f);
    refuse_slice(&f, 0, 0, zr_swap_close_slice, 0);     /* not opened */
    refuse_slice(&f, 1, 0, zr_swap_close_slice, CHUNK); /* another was */
    refuse_slice(&f, 1, 1, zr_swap_close_slice, 0);     /* more is closed than there is */
    refuse_slice(&f, 0, 0, zr_swap_open_slice, 2 * CHUNK - 15);
    refuse_slice(&f, 2, 0, zr_swap_close_slice, SIZE_MAX - 3);
    expect_pass(&f, ZR_SWAP_FILL);
    go_to_item(&f, ZR_SWAP_UPDATE, 0);
    assert_refused(&f.store, ZR_ERR_STATE, zr_swap_open_slice(f.swap, 0, 16), "in slices");
    tear_down(&f);
}

/* Closed, opened again and changed: the last value is what is there. */
TEST(slices_may_be_opened_again) {
    swap_fixture_t f;
    set_up(&f, "memory");
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    for (int n_closed = 1; n_closed <= 2; n_closed++) {
        unsigned char *buffer = go_to_item(&f, ZR_SWAP_SLICES, 0);
        for (int i = 0; i < 2; i++) {
            assert_ok(zr_swap_open_slice(f.swap, 0, CHUNK));
            buffer[7]++;
            if (i < n_closed)
                assert_ok(zr_swap_close_slice(f.swap, 0, CHUNK));
        }
        assert_ok(zr_swap_done(f.swap));
        zr_swap_destroy(&f.swap);
        create(&f);
        f.oracle[0][7] = (unsigned char)(f.oracle[0][7] + 2);
        expect_content(&f);
    }
    tear_down(&f);
}

/* Without checksums slices are what they are with them, but for what is found. */
TEST(slices_without_checksums) {
    swap_fixture_t f;
    set_up(&f, "memory");
    zr_store_destroy(&f.store.store);
    f.store.options.verify = false;
    assert_ok(fixture_create(&f.store, sizes, N_EXTENTS));
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    expect_pass(&f, ZR_SWAP_SLICES);
    expect_content(&f);
    tear_down(&f);
}

static void passes_over(const char *backend) {
    static const size_t counts[] = {1, 2, 3, 4, 7, 40};
    swap_fixture_t f;
    set_up(&f, backend);
    for (size_t i = 0; i < N_OF(counts); i++)
        for (int flags = 0; flags < 4; flags++)
            passes_with(&f, counts[i], (flags & 1) != 0, (flags & 2) != 0);
    tear_down(&f);
}

TEST(passes_over_memory) {
    passes_over("memory");
}

TEST(passes_over_uring) {
    if (fixture_probe() != 0)
        skip();
    passes_over("uring");
}

/* Reads the first n_items, with n_held buffers out at a time where there are so many. */
static void read_some(swap_fixture_t *f, size_t n_items, size_t n_held) {
    size_t n_out = 0;
    assert_ok(zr_swap_begin(f->swap, ZR_SWAP_READ, f->items, f->n_items));
    void *buffers[MAX_ITEMS];
    for (size_t i = 0; i < n_items + n_held; i++) {
        if (i >= n_held && i - n_held < n_items) { /* what was held is as it was */
            const zr_swap_item_t *item = &f->items[i - n_held];
            assert_memory_equal(buffers[i - n_held], f->oracle[item->extent] + item->offset_bytes,
                                item->size_bytes);
            assert_ok(zr_swap_done(f->swap));
            n_out--;
        }
        if (i < n_items) {
            assert_ok(zr_swap_next(f->swap, &buffers[i]));
            n_out++;
        }
    }
    assert_int_equal(n_out, 0);
    assert_ok(zr_swap_end(f->swap));
}

static void reads_over(const char *backend) {
    swap_fixture_t f;
    zr_store_statistics_t before, after;
    set_up(&f, backend);
    for (size_t n_buffers = 1; n_buffers <= 6; n_buffers++)
        for (size_t n_held = 1; n_held <= n_buffers; n_held++) {
            if (!ONE_OF(1, 4))
                continue;
            f.options.n_buffers = n_buffers;
            f.options.read_ahead = n_held % 2 == 0;
            f.options.write_behind = n_buffers % 3 == 0;
            create(&f);
            expect_pass(&f, ZR_SWAP_FILL);
            zr_store_statistics(f.store.store, &before);
            read_some(&f, f.n_items, n_held);
            zr_store_statistics(f.store.store, &after);
            assert_int_equal(after.count[ZR_STORE_GET].bytes - before.count[ZR_STORE_GET].bytes,
                             all_bytes());
            assert_int_equal(after.count[ZR_STORE_PUT].bytes, before.count[ZR_STORE_PUT].bytes);
            read_some(&f, f.n_items / 2, n_held); /* ends before its last item */
            read_some(&f, 0, n_held);
            expect_content(&f);
            expect_pass(&f, ZR_SWAP_UPDATE);
            expect_content(&f);
        }
    tear_down(&f);
}

TEST(reads_over_memory) {
    reads_over("memory");
}

TEST(reads_over_uring) {
    if (fixture_probe() != 0)
        skip();
    reads_over("uring");
}

/* A pass that was begun and is not wanted changes nothing; one that fills has to be filled. */
TEST(passes_may_be_dropped) {
    swap_fixture_t f;
    void *buffer = NULL;
    set_up(&f, "memory");
    f.options.n_buffers = 4;
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    static const zr_swap_pass_t passes[] = {ZR_SWAP_UPDATE, ZR_SWAP_SLICES};
    for (int i = 0; i < 2; i++) {
        assert_ok(zr_swap_begin(f.swap, passes[i], f.items, f.n_items));
        assert_ok(zr_swap_end(f.swap));
        expect_content(&f);
        expect_pass(&f, passes[i]);
        expect_content(&f);
        assert_ok(zr_swap_begin(f.swap, passes[i], f.items, f.n_items));
        assert_ok(zr_swap_next(f.swap, &buffer));
        assert_refused(&f.store, ZR_ERR_STATE, zr_swap_end(f.swap), "0 of 8 items are done");
        zr_swap_destroy(&f.swap);
        create(&f);
    }
    assert_ok(zr_swap_begin(f.swap, ZR_SWAP_FILL, f.items, f.n_items));
    assert_refused(&f.store, ZR_ERR_STATE, zr_swap_end(f.swap), "0 of 8 items are done");
    tear_down(&f);
}

/* Memory is what was asked for, whatever the store holds. */
TEST(buffers_are_exactly_as_large) {
    swap_fixture_t f;
    zr_tier_statistics_t memory;
    zr_swap_statistics_t statistics;
    set_up(&f, "memory");
    create(&f);
    zr_allocator_statistics(f.allocator, ZR_TIER_HOST, &memory);
    zr_swap_statistics(f.swap, &statistics);
    assert_int_equal(memory.by_tag[ZR_TAG_STAGING].live, 3 * BUFFER);
    assert_int_equal(statistics.host_bytes, 3 * BUFFER);
    tear_down(&f);
}

TEST(loads_are_kept) {
    swap_fixture_t f;
    const void *buffer = NULL, *again = NULL;
    zr_swap_statistics_t statistics;
    set_up(&f, "memory");
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    for (size_t i = 0; i < f.options.n_buffers; i++)
        assert_ok(zr_swap_load(f.swap, &f.items[i], &buffer));
    assert_ok(zr_swap_load(f.swap, &f.items[0], &buffer));
    assert_ok(zr_swap_load(f.swap, &f.items[0], &again));
    assert_ptr_equal(buffer, again);
    zr_swap_statistics(f.swap, &statistics);
    assert_int_equal(statistics.n_loads, f.options.n_buffers);
    expect_pass(&f, ZR_SWAP_UPDATE); /* changes it: what was loaded is not what is there */
    expect_content(&f);
    tear_down(&f);
}

TEST(wrong_calls_are_refused) {
    swap_fixture_t f;
    void *buffer = NULL;
    const void *loaded = NULL;
    set_up(&f, "memory");
    create(&f);
    fixture_t *log = &f.store;
    assert_refused(log, ZR_ERR_STATE, zr_swap_next(f.swap, &buffer), "no next item");
    assert_refused(log, ZR_ERR_STATE, zr_swap_done(f.swap), "no item is being processed");
    assert_refused(log, ZR_ERR_STATE, zr_swap_end(f.swap), "cannot end");
    assert_ok(zr_swap_begin(f.swap, ZR_SWAP_FILL, f.items, 2));
    assert_refused(log, ZR_ERR_STATE, zr_swap_begin(f.swap, ZR_SWAP_FILL, f.items, 2), "not ended");
    assert_refused(log, ZR_ERR_STATE, zr_swap_load(f.swap, &f.items[0], &loaded), "in progress");
    assert_ok(zr_swap_next(f.swap, &buffer));
    assert_refused(log, ZR_ERR_STATE, zr_swap_next(f.swap, &buffer), "1 of 2 are given");
    assert_refused(log, ZR_ERR_STATE, zr_swap_end(f.swap), "0 of 2 items are done");
    zr_swap_destroy(&f.swap); /* in the middle of a pass */
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    assert_ok(zr_swap_begin(f.swap, ZR_SWAP_READ, f.items, f.n_items));
    for (size_t i = 0; i < f.options.n_buffers; i++)
        assert_ok(zr_swap_next(f.swap, &buffer));
    assert_refused(log, ZR_ERR_STATE, zr_swap_next(f.swap, &buffer), "3 of 8 are given");
    assert_refused(log, ZR_ERR_STATE, zr_swap_end(f.swap), "0 of 3 given items are done");
    tear_down(&f);
    set_up(&f, "memory");
    create(&f);
    zr_swap_item_t large = {.size_bytes = BUFFER + 1};
    assert_refused(log, ZR_ERR_ARGUMENT, zr_swap_begin(f.swap, ZR_SWAP_UPDATE, &large, 1),
                   "a buffer");
    assert_refused(log, ZR_ERR_ARGUMENT, zr_swap_load(f.swap, &large, &loaded), "a buffer");
    assert_refused(log, ZR_ERR_STATE, zr_swap_load(f.swap, &f.items[0], &loaded), "never put");
    assert_refused(log, ZR_ERR_STATE, zr_swap_begin(f.swap, ZR_SWAP_UPDATE, f.items, 2),
                   "never put");
    expect_pass(&f, ZR_SWAP_FILL); /* refused is not broken */
    expect_content(&f);
    f.options.n_buffers = 0;
    zr_swap_t *none = NULL;
    assert_refused(log, ZR_ERR_ARGUMENT, zr_swap_create(&f.options, f.store.store, &none),
                   "1 to 1024");
    tear_down(&f);
}

TEST(a_budget_holds) {
    swap_fixture_t f;
    set_up(&f, "memory");
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = f.store.options.log;
    options.budget_bytes[ZR_TIER_HOST] = 2 * BUFFER;
    zr_allocator_t *small = NULL;
    assert_ok(zr_allocator_create(f.device, &options, &small));
    f.options.allocator = small;
    assert_refused(&f.store, ZR_ERR_BUDGET, zr_swap_create(&f.options, f.store.store, &f.swap),
                   "staging buffers of the store");
    zr_allocator_destroy(&small);
    tear_down(&f);
}

/* ---- work that streams go on with ------------------------------------------------------------ */

/* A pass whose work is queued on a stream that runs late: each item's bytes come from `source`, or
 * go there. Of a fill, where an item goes is said only when it is done. */
static void queue_pass(swap_fixture_t *f, zr_stream_t *stream, zr_swap_pass_t pass,
                       unsigned char *source) {
    zr_swap_item_t items[MAX_ITEMS] = {{0}};
    if (pass != ZR_SWAP_FILL)
        memcpy(items, f->items, sizeof(items));
    assert_ok(zr_swap_begin(f->swap, pass, items, f->n_items));
    for (size_t i = 0; i < f->n_items; i++) {
        void *buffer = NULL;
        assert_ok(zr_swap_next(f->swap, &buffer));
        size_t size_bytes = f->items[i].size_bytes;
        if (pass == ZR_SWAP_READ)
            assert_ok(zr_copy_async(stream, source, buffer, size_bytes, ZR_COPY_HOST_TO_DEVICE));
        else
            assert_ok(zr_copy_async(stream, buffer, source, size_bytes, ZR_COPY_DEVICE_TO_HOST));
        items[i] = f->items[i];
        assert_ok(i % 5 == 4 && zr_stream_synchronize(stream) == ZR_OK
                      ? zr_swap_done(f->swap)
                      : zr_swap_done_behind(f->swap, stream));
        if (i % 3 == 0)
            zr_store_progress(f->store.store);
        source += size_bytes;
    }
    assert_ok(zr_swap_end(f->swap));
}

TEST(buffers_are_in_use_until_streams_are_done) {
    for (size_t n_buffers = 1; n_buffers <= 5; n_buffers++) {
        swap_fixture_t f;
        zr_stream_t *stream = NULL;
        unsigned char *source = malloc(all_bytes()), *target = calloc(1, all_bytes());
        set_up(&f, "memory");
        assert_ok(late_device_open(&f.options.device));
        assert_ok(zr_stream_create(f.options.device, "late", &stream));
        f.options.n_buffers = n_buffers;
        create(&f);
        for (size_t pass = 0; pass < 2; pass++) {
            for (size_t i = 0; i < all_bytes(); i++)
                source[i] = (unsigned char)random_bits(&f.random);
            queue_pass(&f, stream, pass == 0 ? ZR_SWAP_FILL : ZR_SWAP_UPDATE, source);
            for (size_t i = 0, at = 0; i < f.n_items; at += f.items[i++].size_bytes)
                memcpy(f.oracle[f.items[i].extent] + f.items[i].offset_bytes, source + at,
                       f.items[i].size_bytes);
            expect_content(&f);
            queue_pass(&f, stream, ZR_SWAP_READ, target);
            assert_memory_equal(source, target, all_bytes());
        }
        zr_swap_destroy(&f.swap);
        zr_stream_destroy(&stream);
        zr_device_close(&f.options.device);
        free(source);
        free(target);
        tear_down(&f);
    }
}

/* ---- stores that are late, or fail ---------------------------------------------------------- */

/* The store "memory" behind a backend that ends transfers only when somebody waits, and fails one
 * of them. One store at a time. */
static struct {
    zr_store_backend_t backend;
    size_t n_started, fail_at; /* counted from 1; 0: none */
    zr_store_transfer_t *failing;
} bad;

static void bad_start(zr_store_t *store, zr_store_transfer_t *transfer) {
    if (++bad.n_started == bad.fail_at)
        bad.failing = transfer;
    else
        zr_store_memory_backend.start(store, transfer);
}

static void bad_progress(zr_store_t *store, bool wait) {
    zr_store_transfer_t *transfer = bad.failing;
    if (!wait)
        return;
    zr_store_memory_backend.progress(store, true);
    if (transfer == NULL)
        return;
    bad.failing = NULL;
    zr_store_piece_t piece = {.transfer = transfer,
                              .offset_bytes = transfer->offset_bytes,
                              .size_bytes = transfer->size_bytes,
                              .file = "bad"};
    zr_store_piece_begins(store, &piece);
    zr_store_outcome_t outcome = {.status =
                                      zr_fail(&store->options.log, ZR_ERR_IO, "the drive is bad")};
    zr_store_piece_ended(store, &piece, &outcome);
}

static void make_bad(swap_fixture_t *f, size_t fail_at) {
    bad.backend = zr_store_memory_backend;
    bad.backend.start = bad_start;
    bad.backend.progress = bad_progress;
    bad.n_started = 0;
    bad.fail_at = fail_at;
    f->store.store->backend = &bad.backend;
}

TEST(late_ends_change_nothing) {
    for (size_t n_buffers = 1; n_buffers <= 5; n_buffers++) {
        swap_fixture_t f;
        set_up(&f, "memory");
        make_bad(&f, 0);
        f.has_pauses = n_buffers % 2 == 0;
        passes_with(&f, n_buffers, true, true);
        tear_down(&f);
    }
}

/* Whatever request fails, in whatever pass: that pass ends with the error, said once, and nothing
 * that was not in the pass is harmed. Filled again, it goes on. */
TEST(each_failure_ends_its_pass) {
    size_t n_failed = 0;
    for (size_t n_buffers = 1; n_buffers <= 4; n_buffers++)
        for (size_t fail_at = 1;; fail_at++) {
            swap_fixture_t f;
            set_up(&f, "memory");
            make_bad(&f, fail_at);
            f.options.n_buffers = n_buffers;
            create(&f);
            zr_status_t status = run_pass(&f, ZR_SWAP_FILL);
            ZR_THEN(status, run_pass(&f, ZR_SWAP_UPDATE));
            ZR_THEN(status, run_pass(&f, ZR_SWAP_SLICES));
            ZR_THEN(status, run_pass(&f, ZR_SWAP_READ));
            bool hit = bad.n_started >= fail_at;
            assert_int_equal(status, hit ? ZR_ERR_IO : ZR_OK);
            assert_int_equal(f.store.n_logged[ZR_LOG_ERROR], hit);
            n_failed += hit;
            bad.fail_at = 0;
            expect_pass(&f, ZR_SWAP_FILL);
            expect_pass(&f, ZR_SWAP_UPDATE);
            expect_content(&f);
            tear_down(&f);
            if (!hit)
                break;
        }
    /* A fill writes 8 items, updates read them, too, and a pass that reads does only that. */
    assert_int_equal(n_failed, 4 * 6 * 8);
}

/* After a pass with pauses the last writes are on their way; what they end with is said by the call
 * that waits for them: to settle, or the next pass. */
TEST(last_writes_may_end_behind_their_pass) {
    for (size_t n_buffers = 1; n_buffers <= 5; n_buffers++)
        for (unsigned form = 0; form < 4; form++) {
            bool fails = form % 2 == 1, settles = form < 2;
            swap_fixture_t f;
            set_up(&f, "memory");
            f.options.n_buffers = n_buffers;
            create(&f);
            expect_pass(&f, ZR_SWAP_FILL);
            make_bad(&f, fails ? 2 * f.n_items : 0);
            f.has_pauses = true;
            expect_pass(&f, ZR_SWAP_UPDATE);
            assert_true(f.store.store->n_in_flight > 0);
            zr_status_t status = ZR_OK;
            if (settles)
                status = zr_swap_settle(f.swap);
            else if (fails)
                status = run_pass(&f, ZR_SWAP_UPDATE);
            else
                expect_pass(&f, ZR_SWAP_UPDATE);
            assert_int_equal(status, fails ? ZR_ERR_IO : ZR_OK);
            assert_int_equal(f.store.n_logged[ZR_LOG_ERROR], fails);
            if (settles)
                assert_int_equal(f.store.store->n_in_flight, 0);
            if (!fails)
                expect_content(&f);
            tear_down(&f);
        }
}

TEST(a_failing_load_is_not_kept) {
    swap_fixture_t f;
    const void *buffer = NULL;
    set_up(&f, "memory");
    create(&f);
    expect_pass(&f, ZR_SWAP_FILL);
    make_bad(&f, 1);
    assert_refused(&f.store, ZR_ERR_IO, zr_swap_load(f.swap, &f.items[0], &buffer), "is bad");
    expect_content(&f);
    tear_down(&f);
}
