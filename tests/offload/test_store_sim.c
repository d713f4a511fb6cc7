/*
 * The store "sim": when transfers end, what waiting for them takes, what it has room for, and that
 * it is asked for where nothing is stored, and only there.
 */
#include "kernels/simulation.h"
#include "tests/common/kept_log.h"
#include "tests/offload/store_fixture.h"

/* A byte takes 1 us to read and 2 us to write; checksums go 100 times as fast. */
typedef struct machine {
    zr_sim_clock_t *clock;
    zr_device_t *device;
    zr_store_t *store;
    zr_store_options_t options;
    char *memory; /* an address */
    void *range;
} machine_t;

enum { N_CHUNKS = 8 };
#define RANGE_BYTES ((size_t)1 << 20)

static void open_shared(machine_t *m, bool verify, size_t disk_bytes, double core_bytes_per_s,
                        double both_bytes_per_s) {
    zr_hardware_t hardware = zr_hardware_default();
    zr_device_options_t options = zr_device_options_default();
    *m = (machine_t){.options = zr_store_options_default()};
    hardware.launch_s = 1e-15;
    hardware.checksum_bytes_per_s = 1e8;
    hardware.disk_core_bytes_per_s = core_bytes_per_s;
    hardware.disk_read = (zr_link_t){1e6, 0.5};
    hardware.disk_write = (zr_link_t){0.5e6, 0.25};
    hardware.disk_both_bytes_per_s = both_bytes_per_s;
    hardware.disk_bytes = disk_bytes;
    assert_ok(zr_sim_clock_create(NULL, &m->clock));
    options.hardware = &hardware;
    options.clock = m->clock;
    assert_ok(zr_device_open("sim", &options, &m->device));
    assert_ok(zr_range_reserve(m->device, ZR_TIER_HOST, RANGE_BYTES, &m->range));
    m->memory = m->range;
    m->options.chunk_bytes = m->options.request_bytes = CHUNK;
    m->options.device = m->device;
    m->options.verify = verify;
}

static void open_machine(machine_t *m, bool verify, size_t disk_bytes, double core_bytes_per_s) {
    open_shared(m, verify, disk_bytes, core_bytes_per_s, 1.5e6);
}

static void close_machine(machine_t *m) {
    zr_store_destroy(&m->store);
    zr_device_close(&m->device);
    zr_sim_clock_destroy(&m->clock);
}

static void create(machine_t *m) {
    const zr_store_extent_t extent = {.name = "x", .size_bytes = N_CHUNKS * CHUNK};
    assert_ok(zr_store_create("sim", &m->options, &extent, 1, &m->store));
}

static void expect_now(const machine_t *m, double wanted) {
    double now = zr_sim_clock_now(m->clock);
    if (!(now > wanted - 1e-9 && now < wanted + 1e-9))
        fail_msg("it is %.12g s, not %.12g", now, wanted);
}

static void put(machine_t *m, size_t chunk, zr_store_ticket_t *ticket_p) {
    assert_ok(zr_store_put(m->store, 0, chunk * CHUNK, CHUNK, m->memory + chunk * CHUNK, ticket_p));
}

static void get(machine_t *m, size_t chunk, zr_store_ticket_t *ticket_p) {
    assert_ok(zr_store_get(m->store, 0, chunk * CHUNK, CHUNK, m->memory + chunk * CHUNK, ticket_p));
}

/* Transfers of one direction share its bandwidth, and their latencies pass at once. */
TEST(test_times) {
    machine_t m;
    zr_store_ticket_t tickets[4];
    const double write = CHUNK * 2e-6, read = CHUNK * 1e-6;
    bool done = true;
    open_machine(&m, false, (size_t)1 << 30, 1e20);
    create(&m);
    put(&m, 0, &tickets[0]);
    put(&m, 1, &tickets[1]);
    expect_now(&m, 0.0); /* nothing was waited for */
    assert_ok(zr_store_wait(m.store, tickets[0]));
    expect_now(&m, write + 0.25);
    assert_ok(zr_store_wait(m.store, tickets[1]));
    expect_now(&m, 2 * write + 0.25);

    double begin = zr_sim_clock_now(m.clock);
    get(&m, 0, &tickets[0]);
    put(&m, 2, &tickets[1]); /* beside it */
    get(&m, 1, &tickets[2]);
    assert_ok(zr_store_wait(m.store, tickets[1]));
    expect_now(&m, begin + write + 0.25);
    assert_ok(zr_store_poll(m.store, tickets[0], &done));
    assert_false(done);
    zr_sim_clock_wait(m.clock, begin + read + 0.5);
    assert_ok(zr_store_poll(m.store, tickets[0], &done));
    assert_true(done);
    zr_sim_clock_wait(m.clock, begin + 9.0); /* it ended long ago */
    assert_ok(zr_store_wait(m.store, tickets[2]));
    expect_now(&m, begin + 9.0);

    /* Bytes that a put is still on its way with are read after it. */
    begin = zr_sim_clock_now(m.clock);
    put(&m, 3, &tickets[0]);
    get(&m, 3, &tickets[1]);
    expect_now(&m, begin);
    assert_ok(zr_store_wait_all(m.store));
    expect_now(&m, begin + write + 0.25 + read + 0.5);
    close_machine(&m);
}

/* What goes first ends as if only others like it were there, and those behind it end later. */
TEST(test_some_go_first) {
    machine_t m;
    zr_store_ticket_t tickets[8];
    const zr_store_extent_t extents[] = {
        {.name = "x", .size_bytes = N_CHUNKS * CHUNK},
        {.name = "first", .size_bytes = 2 * CHUNK, .goes_first = true}};
    const double write = CHUNK * 2e-6, read = CHUNK * 1e-6;
    open_shared(&m, false, (size_t)1 << 30, 1e20, 1e20);
    assert_ok(zr_store_create("sim", &m.options, extents, 2, &m.store));
    for (size_t i = 0; i < 4; i++)
        put(&m, i, &tickets[i]);
    assert_ok(zr_store_put(m.store, 1, 0, 2 * CHUNK, m.memory, &tickets[4]));
    assert_ok(zr_store_wait(m.store, tickets[4]));
    expect_now(&m, 2 * write + 0.25);
    assert_ok(zr_store_wait_all(m.store));
    double begin = 4 * write + 0.25;
    expect_now(&m, begin);
    for (size_t i = 0; i < 4; i++)
        get(&m, i, &tickets[i]);
    for (size_t i = 0; i < 2; i++)
        assert_ok(zr_store_get(m.store, 1, i * CHUNK, CHUNK, m.memory, &tickets[4 + i]));
    get(&m, 0, &tickets[6]);
    assert_ok(zr_store_wait(m.store, tickets[5]));
    expect_now(&m, begin + 2 * read + 0.5);
    assert_ok(zr_store_wait(m.store, tickets[6]));
    expect_now(&m, begin + 7 * read + 0.5);
    close_machine(&m);
}

/* What is read does not wait for what is written, where both share a drive. */
TEST(test_reads_go_ahead_of_writes) {
    machine_t m;
    zr_store_ticket_t tickets[8];
    const double both = CHUNK * 4e-6;
    open_shared(&m, false, (size_t)1 << 30, 1e20, 2.5e5);
    create(&m);
    for (size_t i = 0; i < 6; i++)
        put(&m, i, &tickets[i]);
    assert_ok(zr_store_wait_all(m.store));
    double begin = zr_sim_clock_now(m.clock) + 10.0;
    zr_sim_clock_wait(m.clock, begin);
    for (size_t i = 0; i < 4; i++)
        put(&m, i, &tickets[i]);
    for (size_t i = 4; i < 6; i++)
        get(&m, i, &tickets[i]);
    assert_ok(zr_store_wait(m.store, tickets[5]));
    expect_now(&m, begin + 2 * both + 0.5);
    close_machine(&m);
}

TEST(test_checksums_take_the_processor) {
    machine_t m;
    zr_store_ticket_t ticket;
    zr_store_statistics_t statistics;
    const double sum = CHUNK * 1e-8;
    open_machine(&m, true, (size_t)1 << 30, 1e20);
    create(&m);
    put(&m, 0, &ticket);
    expect_now(&m, sum);
    assert_ok(zr_store_wait(m.store, ticket));
    expect_now(&m, sum + CHUNK * 2e-6 + 0.25);
    get(&m, 0, &ticket);
    assert_ok(zr_store_wait(m.store, ticket));
    expect_now(&m, 2 * sum + CHUNK * 3e-6 + 0.75);
    zr_store_statistics(m.store, &statistics);
    assert_true(statistics.checksum_seconds > 1.99 * sum &&
                statistics.checksum_seconds < 2.01 * sum);
    /* The wait for a get includes what is made of it then. */
    assert_true(statistics.wait_seconds[ZR_STORE_PUT] > 0.25);
    assert_true(statistics.wait_seconds[ZR_STORE_GET] > 0.5);
    assert_true(statistics.wait_seconds[ZR_STORE_GET] < 0.6);
    close_machine(&m);
}

/* Where both directions together are slower than each alone adds up to, they wait for that. */
TEST(test_directions_share_a_drive) {
    machine_t m;
    zr_store_ticket_t tickets[2];
    open_shared(&m, false, (size_t)1 << 30, 1e20, 1e6);
    create(&m);
    put(&m, 0, &tickets[0]);
    assert_ok(zr_store_wait_all(m.store));
    double begin = zr_sim_clock_now(m.clock);
    get(&m, 0, &tickets[0]);
    put(&m, 1, &tickets[1]);
    assert_ok(zr_store_wait(m.store, tickets[0]));
    expect_now(&m, begin + CHUNK * 1e-6 + 0.5);
    begin = zr_sim_clock_now(m.clock) + 10.0;
    zr_sim_clock_wait(m.clock, begin);
    assert_ok(zr_store_wait_all(m.store));
    get(&m, 0, &tickets[0]);
    get(&m, 1, &tickets[0]);
    put(&m, 2, &tickets[1]);
    assert_ok(zr_store_wait(m.store, tickets[1]));
    expect_now(&m, begin + 3 * CHUNK * 1e-6 + 0.25); /* behind both, not 2 us for each byte */
    assert_ok(zr_store_wait_all(m.store));
    close_machine(&m);
}

/* So does queueing transfers, where that is said to take time. */
TEST(test_transfers_take_the_processor) {
    machine_t m;
    zr_store_ticket_t ticket;
    const double core = CHUNK * 1e-7;
    open_machine(&m, false, (size_t)1 << 30, 1e7);
    create(&m);
    put(&m, 0, &ticket);
    expect_now(&m, core);
    assert_ok(zr_store_wait(m.store, ticket));
    expect_now(&m, core + CHUNK * 2e-6 + 0.25);
    get(&m, 0, &ticket);
    expect_now(&m, 2 * core + CHUNK * 2e-6 + 0.25);
    assert_ok(zr_store_wait(m.store, ticket));
    close_machine(&m);
}

/* Drives hold what the description says, to the block. */
TEST(test_capacity) {
    machine_t m;
    kept_log_t kept;
    zr_store_extent_t extents[] = {{.name = "x", .size_bytes = 3 * CHUNK},
                                   {.name = "y", .size_bytes = 1}};
    open_machine(&m, false, 3 * CHUNK + 4096, 1e20);
    m.options.log = kept_log(&kept, ZR_LOG_ERROR);
    assert_ok(zr_store_create("sim", &m.options, extents, 2, &m.store));
    assert_int_equal(zr_store_info(m.store)->reserved_bytes, 3 * CHUNK + 4096);
    zr_store_destroy(&m.store);
    extents[1].size_bytes = 4097;
    assert_int_equal(zr_store_create("sim", &m.options, extents, 2, &m.store), ZR_ERR_BUDGET);
    assert_has(kept.text, "no room|more folders");
    assert_null(m.store);
    close_machine(&m);
}

TEST(test_refusals) {
    machine_t m;
    kept_log_t kept;
    open_machine(&m, false, 1 << 20, 1e20);
    m.options.log = kept_log(&kept, ZR_LOG_ERROR);
    assert_int_equal(zr_store_create("memory", &m.options, NULL, 0, &m.store), ZR_ERR_UNSUPPORTED);
    assert_has(kept.text, "use \"sim\"");
    m.options.device = NULL;
    m.options.log = kept_log(&kept, ZR_LOG_ERROR);
    assert_int_equal(zr_store_create("sim", &m.options, NULL, 0, &m.store), ZR_ERR_ARGUMENT);
    assert_has(kept.text, "use \"uring\"");
    zr_device_t *host = NULL;
    assert_ok(zr_device_open("host", NULL, &host));
    m.options.device = host;
    assert_int_equal(zr_store_create("sim", &m.options, NULL, 0, &m.store), ZR_ERR_ARGUMENT);
    zr_device_close(&host);
    assert_null(m.store);
    close_machine(&m);
}
