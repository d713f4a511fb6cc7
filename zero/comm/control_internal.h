/*
 * What ranks tell each other beside their data: which call they are in, whether it went well,
 * that one gave up or has left. A communicator whose data goes another way (nccl) or needs the
 * others held still while it moves (threads) is built on it.
 *
 * A call has one first meeting (arrive), where what ends a call early is found: a rank that
 * differs, gives up, leaves or does not come in time. A rank that has come through it comes to
 * the later ones of the same call (meet) as well, with its error if it has one, so that these
 * need no time limit of their own: what a rank does in between has one.
 *
 * Two kinds: ranks that are threads share memory (control_memory.c); ranks that are processes
 * have a connection to rank 0's (control_tcp.c), and may meet in a page of memory where all are of
 * one machine (control_near.c).
 *
 * Threads: a handle belongs to the thread of its rank; kill and death are for any thread while
 * the handle exists.
 */
#pragma once

#include <stdatomic.h>

#include "zero/comm/control_page_internal.h"
#include "zero/comm/launch.h"
#include "zero/comm/membership_internal.h"

typedef struct zr_control zr_control_t;

typedef struct zr_control_backend {
    /* Post, and wait until all ranks have. all: [n_ranks * post->payload_bytes] or NULL, what
     * the ranks' posts carried. ZR_ERR_COMM: none goes on; death() says why. Logs nothing. */
    zr_status_t (*arrive)(zr_control_t *control, const zr_post_t *post, void *all);
    /* Wait until all have brought their status; the first that is not ZR_OK, for each. */
    zr_status_t (*meet)(zr_control_t *control, zr_status_t status);
    /* Behind the arrival at a split: the place in the group of this rank's color, or NULL. The
     * same outcome on every rank: ZR_OK, ZR_ERR_MEMORY (nothing is made) or ZR_ERR_COMM. */
    zr_status_t (*open_group)(zr_control_t *control, int color, zr_control_t **group_p);
    /* End the communicator for all ranks, and the groups split from it, for this reason, which is
     * copied. From any thread. */
    void (*kill)(zr_control_t *control, const char *reason);
    /* Why it has ended, or NULL; the text stays while the handle does. From any thread.
     * has_left_p: whether a rank has left, and nothing else: what was queued before can go on. May
     * be NULL; set only where it has ended. */
    const char *(*death)(zr_control_t *control, bool *has_left_p);
    /* Whether this rank has logged an end of the first communicator, or of any that was split from
     * it, since a call of one of them went well: one for all of them, which stays as long. */
    atomic_bool *(*has_told)(zr_control_t *control);
    /* Leave, which ends it for the others, and free. */
    void (*destroy)(zr_control_t *control);
    /* Optional. Close the descriptors in a fork of the rank's process, so that others see the end
     * of that process while the fork lives. Nothing is said, locked or freed. */
    void (*forget)(zr_control_t *control);
} zr_control_backend_t;

/** First member of either kind. */
struct zr_control {
    const zr_control_backend_t *backend;
    int rank;
    int n_ranks;
    int origin_rank; /* in the first communicator */
    bool is_nested;  /* of a group made by split */
};

/**
 * Places of ranks that are threads of this process.
 *
 * @param controls  [n_ranks], filled
 * @return ZR_OK; ZR_ERR_MEMORY (nothing is made, nothing logged)
 */
ZR_NODISCARD zr_status_t zr_control_create_memory(int n_ranks, int timeout_ms,
                                                  zr_control_t **controls);

/**
 * The place of a rank that is a process: rank 0 listens, the others connect, and this returns when
 * all have come. Rank 0's process keeps the membership, so all of them end when it goes.
 *
 * @param launch   borrowed for the call
 * @param socket   -1: where the launch says. Where ranks have found each other otherwise, rank 0:
 * of zr_wire_listen; else of zr_wire_connect; this call's from now on, whatever comes of it, and
 * the launch's host and port are for messages
 * @param log      of the rank
 * @return ZR_OK; ZR_ERR_ARGUMENT for a launch that is none; ZR_ERR_MEMORY; ZR_ERR_COMM when ranks
 *         are missing after start_timeout_ms of the launch, or come twice, or do not fit; logged
 */
ZR_NODISCARD zr_status_t zr_control_create_tcp(const zr_launch_t *launch, int socket,
                                               const zr_log_t *log, int timeout_ms,
                                               zr_control_t **control_p);

/** How a process's ranks and those of other machines find and trust each other, as the connection
 * to rank 0 has it. */
typedef struct zr_control_place {
    char own[ZR_ADDRESS_BYTES];         /* by which others reach this process; "": as rank 0's */
    char coordinator[ZR_ADDRESS_BYTES]; /* of rank 0's machine */
    char bind[ZR_ADDRESS_BYTES];        /* where this process listens; "": at all addresses */
    const zr_secret_t *secret;          /* the control's */
    int n_ranks;                        /* of the first communicator */
} zr_control_place_t;

/** @param control  of zr_control_create_tcp, or a group of it */
void zr_control_tcp_place(const zr_control_t *control, zr_control_place_t *place_p);

/** [n_ranks] the ranks' numbers in the first communicator, as the coordinator has told them. */
const int *zr_control_tcp_origins(const zr_control_t *control);

/* ---- a page for meetings of ranks of one machine: all ranks do all three, between meetings --- */

/** Rank 0 makes it. @param place_p  where: to be shown to the others; none on other ranks */
void zr_control_offer_page(zr_control_t *control, zr_page_place_t *place_p);

/**
 * @param place  rank 0's
 * @return 0, or an errno; ESTALE: what is there is no page of this communicator
 */
int zr_control_take_page(zr_control_t *control, const zr_page_place_t *place);

/** Meet there from now on, or do not, as ranks have agreed. */
void zr_control_use_page(zr_control_t *control, bool all_have_it);

/** A count of a rank's that all ranks may change (zr_page_count); NULL: they do not meet in a page.
 */
atomic_size_t *zr_control_page_count(zr_control_t *control, int rank);

void zr_control_destroy(zr_control_t **control);

/* ---- for communicators: times are counted, errors are logged ------------------------------- */

/**
 * The first meeting of a call.
 *
 * @param payload  [payload_bytes] of this rank, at most ZR_PAYLOAD_BYTES, as many on every rank
 * @param all      [n_ranks * payload_bytes], what the ranks brought; NULL with 0 bytes
 * @return ZR_OK; ZR_ERR_COMM, logged with the call and why
 */
ZR_NODISCARD zr_status_t zr_control_arrive(zr_comm_t *comm, const zr_comm_call_t *call,
                                           const void *payload, size_t payload_bytes, void *all);

/** A later meeting; nothing is logged. */
zr_status_t zr_control_meet(zr_comm_t *comm, zr_status_t status);

bool zr_control_is_dead(zr_control_t *control);
/** Whether it is dead otherwise than because a rank has left: what was queued is given up, too. */
bool zr_control_has_failed(zr_control_t *control);

/**
 * A call's end by the communicator's, or, where call is NULL, that of calls which are queued on a
 * device. Always ZR_ERR_COMM.
 *
 * What has ended is logged by the first call that finds it, with the reason. Further ones, of this
 * communicator or its relations by zr_comm_split, end for the same cause, and say nothing.
 */
zr_status_t zr_control_refuse(const zr_comm_t *comm, const zr_comm_call_t *call);

/** End the communicator because this rank failed in a call. Unless that is ZR_ERR_COMM, its device,
 * or the device's allocator, has said what it was, and the others are told so. */
void zr_control_kill_for_failure(zr_control_t *control, const zr_comm_call_t *call,
                                 zr_status_t status);

/** End it with "rank R: " and the words. */
void zr_control_kill(zr_control_t *control, const char *format, ...) ZR_PRINTF(2, 3);

/** End it because of what a rank has said, or what is where it has said. @param why  of
 * peer_internal.h */
void zr_control_kill_for_peer(zr_control_t *control, int origin_rank, const char *why);

/** "rank 6", or, from within a group, "rank 6 of all". @return text */
const char *zr_control_describe_other(const zr_control_t *control, int origin_rank, char *text,
                                      size_t text_bytes);

/** A handle's common part, at a place that it takes over. */
void zr_controlled_init(zr_comm_t *comm, const zr_comm_backend_t *backend,
                        const zr_comm_options_t *options, zr_control_t *control);
/** Entries of a backend. */
void zr_controlled_abort(zr_comm_t *comm, const char *reason);
zr_status_t zr_controlled_barrier(zr_comm_t *comm, const zr_comm_call_t *call);
/** A call with data of a single rank: what is not in place is copied. */
zr_status_t zr_controlled_run_alone(zr_comm_t *comm, const zr_comm_call_t *call);

/** A communicator at this place, which it takes over; NULL: no memory, nothing logged or taken. */
typedef zr_comm_t *(*zr_control_adopt_fn)(zr_comm_t *parent, zr_control_t *group);
typedef zr_comm_t *(*zr_control_create_fn)(const zr_comm_options_t *options, zr_control_t *place);

/** Communicators of ranks that are threads of this process: comm.h's zr_comm_create_threads. */
ZR_NODISCARD zr_status_t zr_comm_create_in_process(int n_ranks, const zr_comm_options_t *options,
                                                   zr_control_create_fn create, zr_comm_t **comms);

/** The whole of a split: groups for all ranks, or for none. */
ZR_NODISCARD zr_status_t zr_control_split(zr_comm_t *comm, const zr_comm_call_t *call,
                                          zr_control_adopt_fn adopt);
