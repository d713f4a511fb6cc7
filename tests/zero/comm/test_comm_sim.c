/*
 * The simulated communicator: the conformance suite, with each rank alone, on a device that stores
 * nothing and on the host, where a rank's own data stand for all; and what collectives take of the
 * virtual clock, against numbers by hand.
 */
#include "allocator/allocator.h"
#include "kernels/simulation.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/zero/comm/comm_suite.h"

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    if (n_ranks < 1) /* no rank to make, but options to refuse */
        return zr_comm_create_sim(0, n_ranks, options, comms);
    for (int rank = 0; rank < n_ranks; rank++)
        ZR_TRY(zr_comm_create_sim(rank, n_ranks, options, &comms[rank]));
    return ZR_OK;
}

static zr_status_t open_sim(zr_device_t **device_p) {
    return zr_device_open("sim", NULL, device_p);
}

static zr_status_t open_host(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    return zr_device_open("host", &options, device_p);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* A node has four ranks; a rank sends 1 MB/s within, a node 2 MB/s to others. */
static zr_hardware_t round_hardware(void) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = ZR_HARDWARE_CUDA;
    hardware.launch_s = 1e-15;
    hardware.ranks_per_node = 4;
    hardware.within_node = (zr_link_t){.bytes_per_s = 1e6, .latency_s = 0.001};
    hardware.between_nodes = (zr_link_t){.bytes_per_s = 2e6, .latency_s = 0.1};
    return hardware;
}

typedef struct times {
    double all_gather, reduce_scatter, all_reduce, broadcast, barrier;
} times_t;

static double since(zr_sim_clock_t *clock, zr_stream_t *stream, double *before) {
    assert_ok(zr_stream_synchronize(stream));
    double now = zr_sim_clock_now(clock), seconds = now - *before;
    *before = now;
    return seconds;
}

/* Ranks on described hardware, of which one calls. */
typedef struct place {
    zr_sim_clock_t *clock;
    zr_device_t *device;
    zr_stream_t *stream;
    zr_comm_t *comm;
    char *memory, *part;
    double before;
} place_t;

static place_t open_place(const zr_comm_options_t *comm_options, const zr_hardware_t *hardware,
                          int n_ranks) {
    place_t place = {.clock = NULL};
    zr_device_options_t options = {.log = zr_log_default(), .hardware = hardware};
    void *memory = NULL;
    assert_ok(zr_sim_clock_create(NULL, &place.clock));
    options.clock = place.clock;
    assert_ok(zr_device_open("sim", &options, &place.device));
    assert_ok(zr_stream_create(place.device, "comm", &place.stream));
    assert_ok(zr_range_reserve(place.device, ZR_TIER_DEVICE, (size_t)1 << 30, &memory));
    assert_ok(zr_comm_create_sim(n_ranks - 1, n_ranks, comm_options, &place.comm));
    place.memory = memory;
    place.part = place.memory + ((size_t)1 << 29);
    return place;
}

static void close_place(place_t *place) {
    zr_comm_destroy(&place->comm);
    zr_stream_destroy(&place->stream);
    zr_device_close(&place->device);
    zr_sim_clock_destroy(&place->clock);
}

/* What this call has taken. */
static double took(place_t *place, zr_status_t status) {
    assert_ok(status);
    return since(place->clock, place->stream, &place->before);
}

/* Of n_bytes on every rank, or together where each has a part. */
static times_t measure_with(const zr_comm_options_t *comm_options, const zr_hardware_t *hardware,
                            int n_ranks, size_t n_bytes) {
    place_t p = open_place(comm_options, hardware, n_ranks);
    zr_message_t x = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    size_t n = n_bytes / sizeof(float), n_part = n / (size_t)n_ranks;
    times_t times;
    times.all_gather = took(&p, zr_comm_all_gather(p.comm, &x, p.part, p.memory, n_part, p.stream));
    times.reduce_scatter =
        took(&p, zr_comm_reduce_scatter(p.comm, &x, p.memory, p.part, n_part, p.stream));
    times.all_reduce = took(&p, zr_comm_all_reduce(p.comm, &x, p.memory, n, p.stream));
    times.broadcast = took(&p, zr_comm_broadcast(p.comm, &x, p.memory, n, 0, p.stream));
    times.barrier = took(&p, zr_comm_barrier(p.comm, "barrier"));
    close_place(&p);
    return times;
}

/* Sums in any order: rings and trees. */
static times_t measure(const zr_hardware_t *hardware, int n_ranks, size_t n_bytes) {
    zr_comm_options_t options = zr_comm_options_default();
    options.sums = ZR_SUM_ANY;
    return measure_with(&options, hardware, n_ranks, n_bytes);
}

static void expect(double seconds, double wanted) {
    if (!(seconds > wanted - 1e-9 && seconds < wanted + 1e-9))
        fail_msg("%.12g s, not %.12g", seconds, wanted);
}

static void expect_times(int n_ranks, size_t n_bytes, times_t wanted) {
    zr_hardware_t hardware = round_hardware();
    times_t times = measure(&hardware, n_ranks, n_bytes);
    expect(times.all_gather, wanted.all_gather);
    expect(times.reduce_scatter, wanted.all_gather);
    expect(times.all_reduce, wanted.all_reduce);
    expect(times.broadcast, wanted.broadcast);
    expect(times.barrier, wanted.barrier);
}

TEST(test_one_rank_waits_for_nobody) {
    expect_times(1, 4000000, (times_t){0});
}

/* 4 MB on 4 ranks: 3 of them over 3 edges, and all of them down a tree of 2 levels. */
TEST(test_one_node) {
    expect_times(4, 4000000, (times_t){3.003, 3.003, 6.006, 4.002, 0.004});
    /* Hardly any bytes: sums go over the tree. */
    expect_times(4, 16, (times_t){0.003012, 0.003012, 0.004032, 0.002016, 0.004});
}

/* 8 ranks on 2 nodes: 7 edges, 2 of them between nodes; a rank's own link is the slowest. */
TEST(test_two_nodes) {
    expect_times(8, 8000000,
                 (times_t){7.0 + 5 * 0.001 + 2 * 0.1, 0.0, 2 * (7.0 + 5 * 0.001 + 2 * 0.1),
                           8.0 + 2 * 0.001 + 0.1, 2 * (2 * 0.001 + 0.1)});
}

/* Where every rank is a node, all edges are between nodes; and a node that is not full is one. */
TEST(test_nodes) {
    zr_hardware_t hardware = round_hardware();
    hardware.ranks_per_node = 1;
    times_t times = measure(&hardware, 8, 8000000);
    expect(times.all_gather, 3.5 + 7 * 0.1);
    expect(times.barrier, 2 * 3 * 0.1);
    hardware.ranks_per_node = 4;
    times = measure(&hardware, 5, 20);
    expect(times.all_gather, 16e-6 + 2 * 0.001 + 2 * 0.1);
    hardware.between_nodes.bytes_per_s = 1e5; /* slower than a rank's own link */
    times = measure(&hardware, 8, 8000000);
    expect(times.all_gather, 70.0 + 5 * 0.001 + 2 * 0.1);
}

/* Where a rank adds up slower than bytes come in, sums wait for that, and nothing else does. */
TEST(test_adding_up) {
    zr_hardware_t hardware = round_hardware();
    hardware.reduce_bytes_per_s = 0.25e6;
    times_t times = measure(&hardware, 4, 4000000);
    expect(times.all_gather, 3.003);
    expect(times.reduce_scatter, 12.003);
    expect(times.all_reduce, 15.006);
    expect(times.broadcast, 4.002);
    times = measure(&hardware, 4, 16); /* up a tree and down again */
    expect(times.all_reduce, 2 * 0.002 + 64e-6 + 16e-6);
}

/* By default sums are in rank order: each rank sends every other its slice, and the sums of all are
 * gathered as anything is. */
TEST(test_sums_in_rank_order) {
    zr_hardware_t hardware = round_hardware();
    times_t times = measure_with(NULL, &hardware, 1, 4000000);
    expect(times.reduce_scatter + times.all_reduce, 0.0);
    times = measure_with(NULL, &hardware, 4, 4000000); /* 3 slices of 1 MB to the node's others */
    expect(times.reduce_scatter, 3.001);
    expect(times.all_reduce, 3.001 + times.all_gather);
    times = measure_with(NULL, &hardware, 8, 8000000); /* 4 ranks' 4 slices to the other node */
    expect(times.all_gather, 7.0 + 5 * 0.001 + 2 * 0.1);
    expect(times.reduce_scatter, 8.0 + 0.1);
    expect(times.all_reduce, 8.1 + times.all_gather);
    expect(times.broadcast, 8.0 + 2 * 0.001 + 0.1);
    times = measure_with(NULL, &hardware, 64, 64000); /* 4 ranks' 60 slices of 1 kB */
    expect(times.reduce_scatter, 0.12 + 0.1);
    times = measure_with(NULL, &hardware, 5, 20); /* a full node and one rank of another */
    expect(times.reduce_scatter, 12e-6 + 0.1);
    hardware.between_nodes.bytes_per_s = 1e9; /* 3 slices to the node's others take longer */
    times = measure_with(NULL, &hardware, 8, 8000000);
    expect(times.reduce_scatter, 3.0 + 0.1);
    hardware.reduce_bytes_per_s = 0.25e6; /* and adding 7 up, longer still */
    times = measure_with(NULL, &hardware, 8, 8000000);
    expect(times.reduce_scatter, 28.0 + 0.1);
}

/* A slice of 250,000 numbers goes in pieces that the workspace has room for, from all 7 others. */
TEST(test_pieces) {
    zr_hardware_t hardware = round_hardware();
    zr_comm_options_t options = zr_comm_options_default();
    options.workspace_bytes = (size_t)7 * 6400 * sizeof(float); /* in which two are in flight */
    expect(measure_with(&options, &hardware, 8, 8000000).reduce_scatter, 8.0 + 79 * 0.1);
    options.workspace_bytes = (size_t)7 * 250016 * sizeof(float);
    expect(measure_with(&options, &hardware, 8, 8000000).reduce_scatter, 8.0 + 0.1);
    options.workspace_bytes = 1; /* at least 32 numbers */
    expect(measure_with(&options, &hardware, 8, 8000000).reduce_scatter, 8.0 + 7813 * 0.1);
    /* Of a sum over all, slices are as long as even ones, rounded up. */
    options.workspace_bytes = (size_t)7 * 32 * sizeof(float);
    times_t times = measure_with(&options, &hardware, 8, 8 * 64 * sizeof(float) + 4);
    expect(times.all_reduce, (8 * 64 + 1) / 8.0 * 4 * 16 / 2e6 + 3 * 0.1 + 2052 * 7 / 8.0 / 1e6 +
                                 5 * 0.001 + 2 * 0.1);
}

/* What a sum takes of memory while it is made, as tests/emu/test_emu_nccl.c finds it of nccl. */
static size_t workspace_of(size_t workspace_bytes, bool takes_workspace, zr_sum_order_t sums) {
    enum { N_ELEMS = 5000 };
    zr_message_t x = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_hardware_t hardware = round_hardware();
    zr_comm_options_t options = zr_comm_options_default();
    zr_allocator_t *allocator = NULL;
    zr_tier_statistics_t statistics;
    options.workspace_bytes = workspace_bytes;
    options.takes_workspace = takes_workspace;
    options.sums = sums;
    place_t p = open_place(&options, &hardware, 3);
    assert_ok(zr_allocator_create(p.device, NULL, &allocator));
    zr_comm_set_allocator(p.comm, allocator);
    assert_ok(zr_comm_reduce_scatter(p.comm, &x, p.memory, p.part, N_ELEMS, p.stream));
    assert_ok(zr_comm_all_gather(p.comm, &x, p.part, p.memory, N_ELEMS, p.stream));
    zr_allocator_statistics(allocator, ZR_TIER_DEVICE, &statistics);
    assert_int_equal(statistics.by_tag[ZR_TAG_WORKSPACE].live, 0);
    zr_comm_set_allocator(p.comm, NULL);
    zr_allocator_destroy(&allocator);
    close_place(&p);
    return statistics.by_tag[ZR_TAG_WORKSPACE].peak;
}

TEST(test_workspace) {
    assert_int_equal(workspace_of(40000, true, ZR_SUM_RANK_ORDER), 2 * 5000 * 4);
    assert_int_equal(workspace_of(39999, true, ZR_SUM_RANK_ORDER), 2 * 2 * 2496 * 4);
    assert_int_equal(workspace_of(0, true, ZR_SUM_RANK_ORDER), 2 * 2 * 32 * 4);
    assert_int_equal(workspace_of(40000, false, ZR_SUM_RANK_ORDER), 0);
    assert_int_equal(workspace_of(40000, true, ZR_SUM_ANY), 0);
}

/* Seconds of a collective in a group: a gather or scatter of 1 MB of each rank, or a sum of 1 MB.
 */
static double in_group(zr_collective_t collective, double between, int n_ranks, zr_groups_t groups,
                       int size) {
    zr_message_t x = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_hardware_t hardware = round_hardware();
    hardware.between_nodes.bytes_per_s = between;
    place_t p = open_place(NULL, &hardware, n_ranks);
    zr_comm_t *group = NULL;
    assert_ok(zr_comm_split_evenly(p.comm, groups, size, &group));
    double seconds =
        took(&p, collective == ZR_ALL_GATHER
                     ? zr_comm_all_gather(group, &x, p.part, p.memory, 250000, p.stream)
                 : collective == ZR_REDUCE_SCATTER
                     ? zr_comm_reduce_scatter(group, &x, p.memory, p.part, 250000, p.stream)
                     : zr_comm_all_reduce(group, &x, p.memory, 250000, p.stream));
    zr_comm_destroy(&group);
    close_place(&p);
    return seconds;
}

static double gather_in_group(int n_ranks, zr_groups_t groups, int size) {
    return in_group(ZR_ALL_GATHER, 2e6, n_ranks, groups, size);
}

/* A node's groups share its link to others: 2 MB/s for the 4 ranks that all go over it. */
TEST(test_groups) {
    expect(gather_in_group(8, ZR_GROUPS_NEAR, 4), 3.0 + 3 * 0.001);
    expect(gather_in_group(8, ZR_GROUPS_ACROSS, 4), 2.0 + 0.1);
    expect(gather_in_group(8, ZR_GROUPS_NEAR, 8), 7.0 + 5 * 0.001 + 2 * 0.1);
    expect(gather_in_group(8, ZR_GROUPS_ACROSS, 1), 7.0 + 5 * 0.001 + 2 * 0.1);
    expect(gather_in_group(8, ZR_GROUPS_ACROSS, 2), 3.0 + 0.001 + 2 * 0.1);
    expect(gather_in_group(16, ZR_GROUPS_ACROSS, 8), 2.0 + 0.1);
    expect(gather_in_group(8, ZR_GROUPS_NEAR, 1), 0.0);
}

/* What a node's link of 0.5 MB/s has to carry of all groups, for groups of two nodes, half a node,
 * and others that nodes do not fit: then some lie within a node, and wait for those that do not. */
TEST(test_links_of_groups) {
    /* Groups 0-7 and 8-15, each with 4 nodes' links of its own. */
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 16, ZR_GROUPS_NEAR, 8), 7 / 0.5 + 5 * 0.001 + 2 * 0.1);
    /* Across: 4 rings between nodes 0 and 2, and as many between 1 and 3. */
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 16, ZR_GROUPS_ACROSS, 8), 4 * 1 / 0.5 + 0.1);
    /* Half a node, and across 2 rings of 4 ranks each, 2 on either node. */
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 8, ZR_GROUPS_NEAR, 2), 1.0 + 0.001);
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 8, ZR_GROUPS_ACROSS, 2), 2 * 3 / 0.5 + 0.001 + 2 * 0.1);
    /* Groups 0-5 and 6-11 both leave node 1; 0-2 leaves none, 3-5 and 6-8 both leave node 1. */
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 12, ZR_GROUPS_NEAR, 6),
           2 * 5 / 0.5 + 3 * 0.001 + 2 * 0.1);
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 12, ZR_GROUPS_NEAR, 3), 2 * 2 / 0.5 + 2 * 0.1);
    /* Across 3: ranks 0, 3, 6, 9 are on 3 nodes, as are 1, 4, 7, 10 and 2, 5, 8, 11. */
    expect(in_group(ZR_ALL_GATHER, 0.5e6, 12, ZR_GROUPS_ACROSS, 3), 3 * 3 / 0.5 + 3 * 0.1);
    /* In rank order: on node 1 each of 2 and 2 ranks sends 4 of another node a slice. */
    expect(in_group(ZR_REDUCE_SCATTER, 0.5e6, 12, ZR_GROUPS_NEAR, 6), 16 / 0.5 + 0.1);
    /* A sum of 1 MB of each of a node's 4 ranks with the other node's: half of it there to be
     * added, and the sum of the other half, too. */
    expect(in_group(ZR_ALL_REDUCE, 0.5e6, 8, ZR_GROUPS_ACROSS, 4), 2 * (4 * 0.5 / 0.5 + 0.1));
    expect(in_group(ZR_ALL_REDUCE, 0.5e6, 4, ZR_GROUPS_ACROSS, 2), 0.5 + 0.001 + 0.5 + 0.001);
}

/* A large sum goes the way that costs less, whatever the latencies; and more ranks cost more. */
TEST(test_many_ranks) {
    zr_hardware_t hardware = round_hardware();
    times_t last = {0};
    for (int n_ranks = 1; n_ranks <= 1024; n_ranks *= 2) {
        times_t times = measure(&hardware, n_ranks, 1 << 20);
        assert_true(times.all_gather > last.all_gather || n_ranks == 1);
        assert_true(times.all_reduce >= last.all_reduce);
        assert_true(times.all_reduce <= times.all_gather + times.reduce_scatter + 1e-9);
        last = times;
    }
    expect(last.all_gather, (1 << 20) / 1e6 * 1023 / 1024 + 767 * 0.001 + 256 * 0.1);
    expect(last.all_reduce, 2 * ((1 << 20) / 1e6 + 2 * 0.001 + 8 * 0.1));
}

TEST(test_refused_ranks) {
    zr_comm_options_t options = zr_comm_options_default();
    options.log.sink = drop_message;
    zr_comm_t *comm = NULL;
    assert_int_equal(zr_comm_create_sim(-1, 4, &options, &comm), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_comm_create_sim(4, 4, &options, &comm), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_comm_create_sim(0, 4, &options, NULL), ZR_ERR_ARGUMENT);
    assert_null(comm);
}

int main(void) {
    static const comm_suite_t on_sim = {.name = "sim on sim",
                                        .create = create,
                                        .open_device = open_sim,
                                        .close_device = zr_device_close,
                                        .is_alone = true};
    static const comm_suite_t on_host = {.name = "sim on host",
                                         .create = create,
                                         .open_device = open_host,
                                         .close_device = zr_device_close,
                                         .is_alone = true};
    return run_comm_suite(&on_sim) + run_comm_suite(&on_host) + run_all_tests(NULL, NULL);
}
