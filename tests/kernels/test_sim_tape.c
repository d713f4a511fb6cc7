/*
 * Tapes of simulated machines: a run that is told from three shorter ones takes the time that it
 * takes when it is made; and none is told where more is found in it than in those.
 */
#include <math.h>

#include "kernels/device_backend.h"
#include "kernels/simulation.h"
#include "tests/common/test.h"

enum { MOST_BLOCKS = 2400, PIECE = 1000, MOST_BUFFERS = 12 };

/* What a run does per block; all of it in odd mixtures of speeds, so that who waits for whom
 * changes from block to block. */
typedef struct program {
    double compute, gather, transfer, checksum; /* seconds */
    size_t elems;                               /* of a block, of pieces at the end */
    bool has_drive, goes_back, looks;
    size_t n_buffers;   /* that blocks pass through behind it: 0, or up to MOST_BUFFERS */
    size_t first_elems; /* of work before the pieces, of their kind; 0: none */
} program_t;

/* What an observer sees of a part. */
typedef struct sight {
    double n, busy, begins;
} sight_t;

typedef struct run {
    const program_t *program;
    zr_sim_clock_t *clock;
    zr_device_t *device;
    zr_stream_t *a, *b, *c;
    zr_event_t *forward[MOST_BLOCKS], *gathered, *used[MOST_BUFFERS];
    zr_sim_drive_t *drive;
    size_t records[MOST_BLOCKS], written[MOST_BUFFERS];
    double begin, seconds;
    sight_t parts[ZR_N_SIM_PARTS];
    size_t n_again; /* of these, seen at once */
} run_t;

static void see(void *context, const zr_sim_span_t *span) {
    sight_t *part = &((run_t *)context)->parts[span->part];
    part->n += 1;
    part->busy += span->end - span->begin;
    part->begins += span->begin;
}

static void see_again(void *context, const zr_sim_span_t *spans, size_t n, size_t n_times,
                      double seconds) {
    run_t *run = context;
    run->n_again += n * n_times;
    for (size_t time = 1; time <= n_times; time++)
        for (size_t i = 0; i < n; i++) {
            zr_sim_span_t span = spans[i];
            span.begin += (double)time * seconds;
            span.end += (double)time * seconds;
            see(run, &span);
        }
}

static void open_run(run_t *run, const program_t *program) {
    zr_hardware_t hardware = zr_hardware_default();
    zr_device_options_t options = zr_device_options_default();
    *run = (run_t){.program = program};
    hardware.kind = ZR_HARDWARE_CUDA;
    hardware.launch_s = 3.1e-6;
    options.hardware = &hardware;
    assert_ok(zr_sim_clock_create(NULL, &run->clock));
    options.clock = run->clock;
    assert_ok(zr_device_open("sim", &options, &run->device));
    assert_ok(zr_stream_create(run->device, "a", &run->a));
    assert_ok(zr_stream_create(run->device, "b", &run->b));
    assert_ok(zr_stream_create(run->device, "c", &run->c));
    assert_ok(zr_event_create(run->device, &run->gathered));
    for (size_t i = 0; i < MOST_BLOCKS; i++)
        assert_ok(zr_event_create(run->device, &run->forward[i]));
    for (size_t i = 0; i < MOST_BUFFERS; i++)
        assert_ok(zr_event_create(run->device, &run->used[i]));
    run->drive = zr_sim_drive_create(run->clock, 64, hardware.launch_s, NULL, NULL);
    assert_non_null(run->drive);
}

static void close_run(run_t *run) {
    for (size_t i = 0; i < MOST_BLOCKS; i++)
        zr_event_destroy(&run->forward[i]);
    for (size_t i = 0; i < MOST_BUFFERS; i++)
        zr_event_destroy(&run->used[i]);
    zr_event_destroy(&run->gathered);
    zr_stream_destroy(&run->a);
    zr_stream_destroy(&run->b);
    zr_stream_destroy(&run->c);
    zr_sim_drive_destroy(&run->drive);
    zr_device_close(&run->device);
    zr_sim_clock_destroy(&run->clock);
}

/* A block's parameters come over the network, and with a drive from there, three ahead. */
static void read_block(run_t *run, size_t block, size_t n) {
    const program_t *p = run->program;
    const zr_sim_start_t how = {.name = "get",
                                .turn = 1,
                                .seconds = p->transfer,
                                .of_both = 0.6 * p->transfer,
                                .latency = 1e-5,
                                .after = p->checksum};
    if (p->has_drive && block < n)
        run->records[block] = zr_sim_drive_start(run->drive, &how, block);
}

static void forward(run_t *run, size_t n) {
    const program_t *p = run->program;
    for (size_t block = 0; block < 3; block++)
        read_block(run, block, n);
    for (size_t block = 0; block < n; block++) {
        if (p->has_drive)
            assert_true(zr_sim_drive_ask(run->drive, run->records[block], true));
        read_block(run, block + 3, n);
        zr_sim_queue(run->b, ZR_SIM_NETWORK, "all_gather", p->gather);
        assert_ok(zr_event_record(run->gathered, run->b));
        assert_ok(zr_stream_wait(run->a, run->gathered));
        zr_sim_queue(run->a, ZR_SIM_COMPUTE, "matmul", p->compute);
        assert_ok(zr_event_record(run->forward[block], run->a));
    }
}

/* A thread that is ahead of its device finds room in between, as soon as it asks. */
static void send(run_t *run) {
    zr_sim_queue(run->c, ZR_SIM_NETWORK, "send", 0.3e-6);
}

/* Each block waits for what it left, on the stream that is ahead. */
static void backward(run_t *run, size_t n) {
    const program_t *p = run->program;
    for (size_t block = n; block-- > 0;) {
        assert_ok(zr_stream_wait(run->b, run->forward[block]));
        zr_sim_queue(run->b, ZR_SIM_TO_DEVICE, "copy to device", 0.7 * p->compute);
        assert_ok(zr_event_record(run->gathered, run->b));
        assert_ok(zr_stream_wait(run->a, run->gathered));
        zr_sim_queue(run->a, ZR_SIM_COMPUTE, "matmul", 2.03 * p->compute);
    }
}

static void read_behind(run_t *run, size_t block) {
    const program_t *p = run->program;
    const zr_sim_start_t how = {.name = "get",
                                .turn = 1,
                                .core = 1e-7,
                                .seconds = p->transfer,
                                .of_both = 0.6 * p->transfer,
                                .after = p->checksum,
                                .records = {run->written[block % p->n_buffers]},
                                .line = 1};
    run->records[block] = zr_sim_drive_start(run->drive, &how, block);
}

static void write_behind(run_t *run, size_t block) {
    const program_t *p = run->program;
    size_t buffer = block % p->n_buffers;
    const zr_sim_start_t how = {.is_write = true,
                                .name = "put",
                                .turn = 2,
                                .core = 1e-7,
                                .seconds = 1.3 * p->transfer,
                                .of_both = 0.7 * p->transfer,
                                .checksum = p->checksum,
                                .event = run->used[buffer],
                                .line = 2};
    run->written[buffer] = zr_sim_drive_start(run->drive, &how, block);
}

/* Each block comes into a buffer once that is written, and is written once it is worked on. */
static void pass_through(run_t *run, size_t n) {
    size_t n_buffers = run->program->n_buffers, n_read = 0;
    for (size_t block = 0; block < n; block++) {
        for (; n_read < n && n_read <= block + n_buffers / 2; n_read++)
            read_behind(run, n_read);
        (void)zr_sim_drive_ask(run->drive, run->written[block % n_buffers], true);
        (void)zr_sim_drive_ask(run->drive, run->records[block], true);
        zr_sim_queue(run->a, ZR_SIM_COMPUTE, "update", 0.8 * run->program->compute);
        assert_ok(zr_event_record(run->used[block % n_buffers], run->a));
        write_behind(run, block);
        zr_sim_drive_progress(run->drive, false);
    }
    for (size_t i = 0; i < n_buffers; i++)
        (void)zr_sim_drive_ask(run->drive, run->written[(n + i) % n_buffers], true);
}

static void sum(const run_t *run, size_t n_elems) {
    const zr_charge_t charge = {.kernel = "sum_of_squares",
                                .rate = ZR_RATE_VECTOR,
                                .dtype = ZR_DTYPE_F32,
                                .cost = {(double)n_elems, 4.0 * (double)n_elems}};
    if (n_elems > 0)
        zr_stream_charge(run->a, &charge);
}

/* All of the blocks' elements, in pieces of one size and a rest; then what grows with them. */
static void sum_up(run_t *run, size_t n) {
    size_t left = n * run->program->elems;
    sum(run, run->program->first_elems);
    for (; left > PIECE; left -= PIECE)
        sum(run, PIECE);
    sum(run, left);
    zr_sim_queue(run->b, ZR_SIM_NETWORK, "all_gather", 1e-5 + 1e-7 * (double)n);
    assert_ok(zr_stream_synchronize(run->b));
    assert_ok(zr_stream_synchronize(run->a));
}

/* How often somebody has to look, until all is done, depends on how long it takes. */
static void look(run_t *run) {
    bool passed = false;
    assert_ok(zr_event_record(run->gathered, run->b));
    while (!passed)
        assert_ok(zr_event_query(run->gathered, &passed));
}

static void note_mark(void *context, uint32_t mark) {
    run_t *run = context;
    if (mark == 0)
        run->begin = zr_sim_clock_now(run->clock);
    else
        run->seconds = zr_sim_clock_now(run->clock) - run->begin;
}

/* What it was like is left in *run. */
static void make_run(const program_t *program, size_t n, zr_sim_tape_t *tape, run_t *run) {
    open_run(run, program);
    if (tape != NULL)
        zr_sim_clock_keep(run->clock, tape);
    zr_sim_clock_observe(run->clock, see, run);
    zr_sim_mark(run->clock, 0);
    note_mark(run, 0);
    forward(run, n);
    send(run);
    if (program->goes_back)
        backward(run, n);
    send(run);
    if (program->n_buffers > 0)
        pass_through(run, n);
    if (program->looks)
        look(run);
    sum_up(run, n);
    zr_sim_mark(run->clock, 1);
    note_mark(run, 1);
    close_run(run);
}

/* 0 seconds: it is not told. at_once: what is there again may be. */
static run_t tell_run(const program_t *program, size_t first, size_t period, size_t n,
                      bool at_once) {
    zr_sim_tape_t *tapes[3];
    run_t told = {0};
    for (size_t i = 0; i < 3; i++) {
        tapes[i] = zr_sim_tape_create();
        assert_non_null(tapes[i]);
        run_t run;
        make_run(program, first + i * period, tapes[i], &run);
    }
    assert_ok(zr_sim_clock_create(NULL, &told.clock));
    zr_sim_clock_observe(told.clock, see, &told);
    zr_sim_clock_observe_again(told.clock, at_once ? see_again : NULL);
    if (!zr_sim_tape_extend((const zr_sim_tape_t *const *)tapes, (n - first) / period - 2,
                            told.clock, note_mark, &told))
        told.seconds = 0;
    zr_sim_clock_destroy(&told.clock);
    for (size_t i = 0; i < 3; i++)
        zr_sim_tape_destroy(&tapes[i]);
    return told;
}

static double seconds_of(const program_t *program) {
    return tell_run(program, 16, 4, 200, true).seconds;
}

static double one_of(uint64_t *bits, double least, double most) {
    return least + (most - least) * (double)(random_bits(bits) % 4096) / 4096;
}

static bool is_near(double a, double b, double part) {
    return fabs(a - b) <= part * b;
}

/* Spans are seen in another order, so their sums differ by rounding. */
static void check_sights(const run_t *told, const run_t *made, size_t number) {
    for (int i = 0; i < ZR_N_SIM_PARTS; i++) {
        const sight_t *a = &told->parts[i], *b = &made->parts[i];
        if (a->n != b->n || fabs(a->busy - b->busy) > 1e-10 * made->seconds ||
            !is_near(a->begins, b->begins, 1e-10))
            fail_msg("run %zu, part %d: %g spans of %.12g s from %.12g, not %g of %.12g from %.12g",
                     number, i, a->n, a->busy, a->begins, b->n, b->busy, b->begins);
    }
}

static program_t draw_program(uint64_t *bits, size_t n_buffers) {
    return (program_t){.compute = one_of(bits, 1e-6, 2e-5),
                       .gather = one_of(bits, 1e-6, 2e-5),
                       .transfer = one_of(bits, 1e-6, 5e-5),
                       .checksum = random_bits(bits) % 2 ? 3e-6 : 0,
                       .elems = 100 + random_bits(bits) % 3000,
                       .has_drive = random_bits(bits) % 2 == 0,
                       .goes_back = random_bits(bits) % 3 != 0,
                       .n_buffers = n_buffers,
                       .first_elems = 10 * (random_bits(bits) % 3)};
}

TEST(a_longer_run_is_told_from_short_ones) {
    static run_t told, made;
    uint64_t bits = 5;
    size_t n_at_once = 0;
    for (size_t i = 0; i < 240; i++) {
        size_t period = 1 + random_bits(&bits) % 6;
        size_t n_buffers = i % 2 * (random_bits(&bits) % MOST_BUFFERS);
        size_t first = 16 + random_bits(&bits) % 8 + 2 * n_buffers;
        size_t n = first + (3 + random_bits(&bits) % (i % 4 == 0 ? 380 : 50)) * period;
        const program_t program = draw_program(&bits, n_buffers);
        told = tell_run(&program, first, period, n, i % 3 != 0);
        make_run(&program, n, NULL, &made);
        if (!is_near(told.seconds, made.seconds, 2e-12))
            fail_msg("run %zu: %zu blocks from %zu and %zu more: %.12g s, not %.12g", i, n, first,
                     period, told.seconds, made.seconds);
        check_sights(&told, &made, i);
        n_at_once += told.n_again > 0;
    }
    assert_true(n_at_once >= 60);
}

/* A thread that is ahead of its device by more with each block looks for longer. */
TEST(a_run_that_finds_more_is_not_told) {
    program_t program = {.compute = 9e-6, .gather = 2e-5, .elems = 100, .looks = true};
    assert_true(seconds_of(&program) == 0);
    program.looks = false;
    assert_true(seconds_of(&program) > 0);
}

/* A machine that was at work when a tape began is another one each time. */
TEST(a_tape_begins_at_rest) {
    zr_sim_tape_t *tape = zr_sim_tape_create();
    zr_sim_clock_t *clock = NULL;
    run_t told = {0};
    assert_ok(zr_sim_clock_create(NULL, &clock));
    assert_true(zr_sim_clock_work(clock, ZR_SIM_NETWORK, "x", 0, 1.0) == 1.0);
    zr_sim_clock_keep(clock, tape);
    zr_sim_spend(clock, 0.5);
    assert_ok(zr_sim_clock_create(NULL, &told.clock));
    const zr_sim_tape_t *const tapes[3] = {tape, tape, tape};
    assert_false(zr_sim_tape_extend(tapes, 1, told.clock, note_mark, &told));
    zr_sim_clock_rest(clock);
    assert_true(zr_sim_clock_now(clock) == 1.0);
    zr_sim_clock_keep(clock, tape);
    zr_sim_spend(clock, 0.5);
    assert_true(zr_sim_tape_extend(tapes, 1, told.clock, note_mark, &told));
    assert_true(zr_sim_clock_now(told.clock) == 0.5);
    zr_sim_clock_destroy(&clock);
    zr_sim_clock_destroy(&told.clock);
    zr_sim_tape_destroy(&tape);
}
