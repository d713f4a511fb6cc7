/*
 * Ranks for tests of communicators: threads with a device, a stream, some device memory and
 * the messages they logged. A check that fails notes where, makes the communicator end for
 * the others, and fails the test from the main thread once all ranks are back.
 *
 * Ranks may also be processes: children of the test, or processes that each run all of the tests as
 * one rank. What they note is then in memory that they share.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "zero/comm/comm.h"

typedef struct rank_world rank_world_t;

typedef struct rank rank_t;
typedef void (*rank_fn)(rank_t *self);

/** What a communicator has to be tried with. */
typedef struct comm_suite {
    const char *name;
    int most_ranks; /* 0: as many as tests ask for */
    /* Ranks are processes: make the communicator of one. NULL: threads; `create` makes all. */
    zr_status_t (*create_rank)(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p);
    void (*prepare)(void); /* before children are made, or NULL */
    /* Of ranks that are processes, before the body, or NULL; false: notes a failure. */
    bool (*warm_up)(rank_t *self);
    const char *latest;        /* the call of that, as a message has it; NULL: "no call so far" */
    const rank_world_t *world; /* this process is a rank, and so are others; NULL: make children */
    zr_status_t (*create)(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms);
    zr_status_t (*open_device)(zr_device_t **device_p); /* one per rank */
    void (*close_device)(zr_device_t **device);
    int machine_ranks; /* ranks of a machine, by their number; 0: all are on one */
    bool is_slow;      /* fewer cases */
    bool is_alone;     /* a rank stands for all: it sees no other, which hold what it holds */
    /* The next copy on the stream's device fails; NULL: the device cannot be made to. */
    void (*fail_copy)(zr_stream_t *stream);
    const char *failure; /* what is said of it then */
} comm_suite_t;

enum { MAX_TEST_RANKS = 16, LOG_BYTES = 4096, FAILURE_BYTES = 256, MAX_TAKES = 16 };

struct rank {
    int rank;
    int n_ranks;
    zr_comm_t *comm; /* a body may destroy it */
    zr_device_t *device;
    zr_stream_t *stream;
    const comm_suite_t *suite;
    const void *context;         /* the test's, shared */
    rank_t *ranks;               /* all of them */
    pthread_barrier_t *together; /* of the test, outside of what is tested */
    rank_fn body;
    int timeout_ms;              /* of calls */
    bool is_too_slow;            /* for that, before the body or in it */
    char log[LOG_BYTES];         /* errors since the last clear_log */
    char failure[FAILURE_BYTES]; /* first check that failed, "" without one */
    void *arena;
    size_t arena_bytes;
    size_t arena_used;
    size_t takes[MAX_TAKES][2]; /* begin and end in the arena, of what device_take gave */
    int n_takes;
    void *host_blocks; /* list of what host_take gave */
};

/** What processes that are a rank each share. */
typedef struct rank_board {
    pthread_barrier_t together;
    rank_t ranks[MAX_TEST_RANKS];
} rank_board_t;

/** This process's place among them. */
struct rank_world {
    int rank, n_ranks;
    rank_board_t *board; /* in memory that all share; its barrier is made */
};

/** Make the barrier of a board for processes. */
void prepare_board(rank_board_t *board, int n_ranks);

/** Run `body` on every rank of a new communicator; fails the test when a check did. Where a busy
 * machine leaves a short time limit no time to warm up, or to come to what is tested, it is run
 * again with a longer one. */
void run_ranks(const comm_suite_t *suite, int n_ranks, int timeout_ms, rank_fn body,
               const void *context);

/** Whether device memory holds what is put there, so that results can be compared. */
bool has_data(const rank_t *self);

void note_failure(rank_t *self, const char *file, int line, const char *what);

/** Inside a body, or a function of it that returns nothing. */
#define CHECK(self, condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            note_failure(self, __FILE__, __LINE__, #condition);                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/** A call's outcome: good, of a communicator that has ended, or bad arguments. */
#define CHECK_OK(self, call) CHECK(self, (call) == ZR_OK)
#define CHECK_ENDED(self, call) CHECK(self, (call) == ZR_ERR_COMM)
#define CHECK_REFUSED(self, call) CHECK(self, (call) == ZR_ERR_ARGUMENT)
/** The rank has logged this. */
#define CHECK_LOGGED(self, part) CHECK(self, strstr((self)->log, part) != NULL)

void clear_log(rank_t *self);

/** Host memory until release_memory. */
void *host_take(rank_t *self, size_t size_bytes);
/** Device memory until release_memory, between guards; the bytes are queued to be 0xa5. */
void *device_take(rank_t *self, size_t size_bytes);
/** Wait for the stream, check the guards, then give all of it back. */
void release_memory(rank_t *self);
/** Queue copies; host memory is from host_take. */
void upload(rank_t *self, void *device, const void *host, size_t size_bytes);
void download(rank_t *self, void *host, const void *device, size_t size_bytes);
