/* See ranks.h. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/zero/comm/ranks.h"

enum { MOST_TIMEOUT_MS = 60000, ARENA_BYTES = 48 << 20, GUARD_BYTES = 64, GUARD = 0xa5 };

typedef struct block {
    struct block *next;
    max_align_t data[];
} block_t;

void note_failure(rank_t *self, const char *file, int line, const char *what) {
    if (self->failure[0] == '\0')
        snprintf(self->failure, sizeof(self->failure), "rank %d of %d: %s:%d: %s", self->rank,
                 self->n_ranks, file, line, what);
}

/* Each rank's messages come from its own thread, so that each has its own place. */
static void keep_message(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    rank_t *ranks = context;
    if (rank < 0 || rank >= MAX_TEST_RANKS || level != ZR_LOG_ERROR)
        return;
    char *log = ranks[rank].log;
    size_t length = strlen(log);
    snprintf(log + length, LOG_BYTES - length, "%s\n", message);
}

void clear_log(rank_t *self) {
    self->log[0] = '\0';
}

void *host_take(rank_t *self, size_t size_bytes) {
    block_t *block = malloc(sizeof(*block) + size_bytes);
    if (block == NULL)
        abort();
    block->next = self->host_blocks;
    self->host_blocks = block;
    return block->data;
}

void upload(rank_t *self, void *device, const void *host, size_t size_bytes) {
    if (zr_copy_async(self->stream, device, host, size_bytes, ZR_COPY_HOST_TO_DEVICE) != ZR_OK)
        note_failure(self, __FILE__, __LINE__, "upload");
}

void download(rank_t *self, void *host, const void *device, size_t size_bytes) {
    if (zr_copy_async(self->stream, host, device, size_bytes, ZR_COPY_DEVICE_TO_HOST) != ZR_OK)
        note_failure(self, __FILE__, __LINE__, "download");
}

void *device_take(rank_t *self, size_t size_bytes) {
    size_t begin = self->arena_used + GUARD_BYTES;
    size_t end = begin + size_bytes;
    size_t used = (end + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    if (used + GUARD_BYTES > self->arena_bytes || self->n_takes == MAX_TAKES)
        abort();
    size_t pattern_bytes = size_bytes + 2 * GUARD_BYTES;
    void *pattern = host_take(self, pattern_bytes);
    memset(pattern, GUARD, pattern_bytes);
    upload(self, (char *)self->arena + begin - GUARD_BYTES, pattern, pattern_bytes);
    self->arena_used = used;
    self->takes[self->n_takes][0] = begin;
    self->takes[self->n_takes][1] = end;
    self->n_takes++;
    return (char *)self->arena + begin;
}

bool has_data(const rank_t *self) {
    return !zr_device_info(self->device)->stores_nothing;
}

static bool is_guard(const unsigned char *bytes) {
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (bytes[i] != GUARD)
            return false;
    return true;
}

/* A guard that a later neighbour has laid anew holds the same pattern. */
static void check_guards(rank_t *self) {
    unsigned char *guards = host_take(self, 2 * GUARD_BYTES * MAX_TAKES);
    for (int i = 0; i < self->n_takes; i++) {
        const char *arena = self->arena;
        unsigned char *pair = guards + (size_t)i * 2 * GUARD_BYTES;
        download(self, pair, arena + self->takes[i][0] - GUARD_BYTES, GUARD_BYTES);
        download(self, pair + GUARD_BYTES, arena + self->takes[i][1], GUARD_BYTES);
    }
    if (zr_stream_synchronize(self->stream) != ZR_OK)
        note_failure(self, __FILE__, __LINE__, "the stream failed");
    for (int i = 0; has_data(self) && i < 2 * self->n_takes; i++)
        if (!is_guard(guards + (size_t)i * GUARD_BYTES))
            note_failure(self, __FILE__, __LINE__, "a tensor's surroundings were written");
}

void release_memory(rank_t *self) {
    check_guards(self);
    while (self->host_blocks != NULL) {
        block_t *block = self->host_blocks;
        self->host_blocks = block->next;
        free(block);
    }
    self->arena_used = 0;
    self->n_takes = 0;
}

/* Whether the communicator was made for every rank. */
static bool all_are_made(const rank_t *self) {
    bool are_made = true;
    for (int r = 0; r < self->n_ranks; r++)
        are_made &= self->ranks[r].comm != NULL;
    return are_made;
}

static void *run_rank(void *argument) {
    rank_t *self = argument;
    pthread_barrier_wait(self->together);
    bool are_made = all_are_made(self);
    pthread_barrier_wait(self->together); /* a body may destroy it */
    if (are_made)
        self->body(self);
    if (self->failure[0] != '\0')
        zr_comm_abort(self->comm, self->failure);
    pthread_barrier_wait(self->together); /* leaving is for tests of leaving */
    release_memory(self);
    zr_comm_destroy(&self->comm);
    pthread_barrier_wait(self->together); /* the last that could read this rank's memory */
    return NULL;
}

/* What no test is about. */
static void must(zr_status_t status, const char *what) {
    if (status == ZR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, zr_status_name(status));
    abort();
}

static void open_rank(rank_t *self) {
    must(self->suite->open_device(&self->device), "open_device");
    must(zr_stream_create_concurrent(self->device, "comm", &self->stream),
         "zr_stream_create_concurrent");
    size_t granule = zr_device_info(self->device)->granule_bytes;
    self->arena_bytes = (ARENA_BYTES + granule - 1) / granule * granule;
    must(zr_range_reserve(self->device, ZR_TIER_DEVICE, self->arena_bytes, &self->arena),
         "zr_range_reserve");
    must(zr_range_map(self->device, ZR_TIER_DEVICE, self->arena, 0, self->arena_bytes),
         "zr_range_map");
}

static void close_rank(rank_t *self) {
    zr_stream_destroy(&self->stream);
    zr_range_release(self->device, ZR_TIER_DEVICE, &self->arena, self->arena_bytes);
    self->suite->close_device(&self->device);
}

/* ---- what a test asks for -------------------------------------------------------------------- */

typedef struct test_run {
    const comm_suite_t *suite;
    int n_ranks;
    rank_fn body;
    const void *context;
    zr_comm_options_t options;
    rank_t *ranks; /* [MAX_TEST_RANKS] */
    pthread_barrier_t *together;
} test_run_t;

static rank_t *fill_rank(const test_run_t *run, int rank) {
    run->ranks[rank] = (rank_t){.rank = rank,
                                .n_ranks = run->n_ranks,
                                .suite = run->suite,
                                .context = run->context,
                                .ranks = run->ranks,
                                .together = run->together,
                                .timeout_ms = run->options.timeout_ms,
                                .body = run->body};
    return &run->ranks[rank];
}

static void run_as_threads(const test_run_t *run) {
    zr_comm_t *comms[MAX_TEST_RANKS];
    pthread_t threads[MAX_TEST_RANKS];
    assert_ok(run->suite->create(run->n_ranks, &run->options, comms));
    for (int r = 0; r < run->n_ranks; r++) {
        rank_t *self = fill_rank(run, r);
        self->comm = comms[r];
        open_rank(self);
    }
    for (int r = 0; r < run->n_ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &run->ranks[r]), 0);
    for (int r = 0; r < run->n_ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < run->n_ranks; r++)
        close_rank(&run->ranks[r]);
}

/* This process is the rank. */
static void run_as_rank(const test_run_t *run, int rank) {
    rank_t *self = fill_rank(run, rank);
    zr_comm_t *comm = NULL;
    if (run->suite->create_rank(rank, run->n_ranks, &run->options, &comm) != ZR_OK) {
        note_failure(self, __FILE__, __LINE__, "the communicator is made");
        self->is_too_slow = true;
    }
    open_rank(self); /* which device may depend on the rank */
    self->comm = comm;
    if (comm != NULL && run->suite->warm_up != NULL)
        self->is_too_slow = !run->suite->warm_up(self);
    run_rank(self);
    close_rank(self);
}

/* A child that does not come to its end takes the others with it: they would wait for it. */
static void wait_for_children(const test_run_t *run, pid_t *children) {
    for (int n_left = run->n_ranks; n_left > 0; n_left--) {
        int status = 0, rank = 0;
        pid_t child = wait(&status);
        while (rank < run->n_ranks && children[rank] != child)
            rank++;
        if (rank == run->n_ranks) {
            n_left++;
            continue;
        }
        children[rank] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        note_failure(&run->ranks[rank], __FILE__, __LINE__, "its process came to its end");
        for (int r = 0; r < run->n_ranks; r++)
            if (children[r] > 0)
                (void)kill(children[r], SIGKILL);
    }
}

static void run_as_children(const test_run_t *run) {
    pid_t children[MAX_TEST_RANKS] = {0};
    if (run->suite->prepare != NULL)
        run->suite->prepare();
    fflush(NULL);
    for (int r = 0; r < run->n_ranks; r++) {
        children[r] = fork();
        if (children[r] == 0) {
            run_as_rank(run, r);
            exit(0);
        }
        assert_true(children[r] > 0);
    }
    wait_for_children(run, children);
}

void prepare_board(rank_board_t *board, int n_ranks) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->together, &attributes, (unsigned)n_ranks);
    pthread_barrierattr_destroy(&attributes);
}

/* Print what failed, on whichever rank. */
static bool report_failures(const test_run_t *run) {
    bool failed = false;
    for (int r = 0; r < run->n_ranks; r++) {
        if (run->ranks[r].failure[0] == '\0')
            continue;
        print_error("%s; it logged:\n%s", run->ranks[r].failure, run->ranks[r].log);
        failed = true;
    }
    return failed;
}

void run_ranks(const comm_suite_t *suite, int n_ranks, int timeout_ms, rank_fn body,
               const void *context) {
    const rank_world_t *world = suite->world;
    assert_true(n_ranks <= MAX_TEST_RANKS);
    rank_board_t *board = world != NULL ? world->board
                                        : mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    test_run_t run = {.suite = suite, .n_ranks = n_ranks, .body = body, .context = context};
    run.ranks = board->ranks;
    run.together = &board->together;
    run.options = zr_comm_options_default();
    run.options.log =
        (zr_log_t){.sink = keep_message, .context = run.ranks, .level = ZR_LOG_WARNING, .rank = -1};
    run.options.timeout_ms = timeout_ms;
    bool is_too_slow = false;
    if (world == NULL)
        prepare_board(board, n_ranks);
    if (world != NULL)
        run_as_rank(&run, world->rank);
    else if (suite->create_rank != NULL)
        run_as_children(&run);
    else
        run_as_threads(&run);
    for (int r = 0; r < n_ranks; r++)
        is_too_slow |= run.ranks[r].is_too_slow;
    is_too_slow &= timeout_ms < MOST_TIMEOUT_MS;
    bool failed = !is_too_slow && report_failures(&run);
    if (world != NULL)
        pthread_barrier_wait(run.together); /* all have looked */
    else
        munmap(board, sizeof(*board));
    if (is_too_slow)
        run_ranks(suite, n_ranks, 4 * timeout_ms, body, context);
    if (failed)
        fail_msg("%s with %d ranks", suite->name, n_ranks);
}
