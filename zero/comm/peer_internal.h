/*
 * What other processes say, and whether it can be so: the structures that ranks of `processes` show
 * to each other, and a check for each structure that a peer sends or writes to memory that is
 * shared.
 *
 * Who receives one asks its check before the first use of a field. What a check has accepted can be
 * used as an index, a size or an offset. Checks compare with what a rank knows by its control
 * connection: which ranks there are, their numbers in the first communicator, and what it has asked
 * itself. They are plain functions of their arguments, without state or calls of the system, so
 * that they can be fuzzed. Addresses in another process are not checked: the kernel does that when
 * they are read (machines.h).
 *
 * Threads: any.
 */
#pragma once

#include "kernels/host/host_share.h"
#include "zero/comm/control_page_internal.h"
#include "zero/comm/wire_internal.h"

/* ---- what ranks of `processes` show to each other ------------------------------------------- */

/** Of a tensor that is not in its device's memory file. */
#define ZR_NOWHERE UINT64_MAX

/** Where a rank's tensors are, in each call. */
typedef struct zr_peer_tensors {
    uint64_t send, recv;             /* addresses in its process */
    uint64_t send_place, recv_place; /* offsets in the memory file; ZR_NOWHERE */
    uint64_t file_bytes;             /* of its device's memory file; 0: none */
} zr_peer_tensors_t;

/** What a rank shows of itself, once. */
typedef struct zr_card {
    uint64_t
        machine; /* the same for ranks that see each other's processes; else most unlikely so */
    uint64_t proof_address; /* in the rank's memory, of a copy of */
    uint64_t proof;         /* what only a rank of this communicator has */
    int32_t pid;
    int32_t origin_rank; /* in the first communicator, and so in MPI's world */
    int32_t n_threads;   /* of its device */
    int32_t reserved;
    zr_host_file_t file; /* of its device's memory */
} zr_card_t;

/** Where a rank listens for data. */
typedef struct zr_link_place {
    int32_t port; /* 0: it cannot listen */
    int32_t reserved;
    char address[ZR_ADDRESS_BYTES]; /* "": that of rank 0's machine */
} zr_link_place_t;

/** With the first call that has data. */
typedef struct zr_introduction {
    zr_peer_tensors_t tensors;
    zr_card_t card;
    zr_page_place_t page;  /* rank 0's, for meetings */
    zr_link_place_t place; /* where ranks were not started by MPI's launcher */
} zr_introduction_t;

#define ZR_LINK_MAGIC 0x316B6E694C5A5245u

/** Before each transfer. */
typedef struct zr_link_header {
    uint64_t magic, size_bytes;
} zr_link_header_t;

/* ---- checks: false, and what is wrong, in words, in why[ZR_PEER_WHY_BYTES] ------------------- */

enum { ZR_PEER_WHY_BYTES = 160 };

/** Words of a peer, to be printed: they have an end, and no control characters, which become '?'.
 */
void zr_peer_clean(char *text, size_t text_bytes);

/** What a rank knows of another one by its control connection. */
typedef struct zr_peer {
    int rank;
    int origin_rank;   /* in the first communicator */
    int machine_ranks; /* of a machine, where the communicator's options say it; 0: they do not */
} zr_peer_t;

bool zr_peer_check_introduction(const zr_introduction_t *said, const zr_peer_t *peer, char *why);

/** What a rank knows of a call, and of a peer from the calls before. */
typedef struct zr_peer_call {
    size_t send_bytes, recv_bytes; /* of the tensors of any rank */
    size_t elem_bytes;
    uint64_t file_bytes; /* of the memory file in the call before */
    bool has_file;
} zr_peer_call_t;

bool zr_peer_check_tensors(const zr_peer_tensors_t *said, const zr_peer_call_t *call, char *why);

/** @param size_bytes  of the transfer that comes next */
bool zr_peer_check_header(const zr_link_header_t *said, size_t size_bytes, char *why);

/** Of a place with a port. */
bool zr_peer_check_place(const zr_place_t *said, char *why);

/** A frame's kind and length, before its data is received.
 * @param n_ranks  of the first communicator; of a frame to the coordinator ignored */
bool zr_peer_check_frame(const zr_frame_t *frame, bool is_to_coordinator, int n_ranks, char *why);

/** @param has_secret  whether this rank has one */
bool zr_peer_check_challenge(const zr_challenge_t *said, bool has_secret, char *why);
/** @param n_ranks  that are expected */
bool zr_peer_check_hello(const zr_hello_t *said, int n_ranks, char *why);

/** A call, from a frame or from a page; of the latter a copy, since its rank may still write.
 *
 * @param n_ranks  of its communicator */
bool zr_peer_check_post(const zr_post_t *said, int n_ranks, char *why);
/** What a rank has brought to a meeting, or what has come of one. */
bool zr_peer_check_status(int32_t status, char *why);

/** What a rank has asked the coordinator, and who the ranks of its communicator are. */
typedef struct zr_peer_question {
    int rank, n_ranks;
    const int *origins;     /* [n_ranks] in the first communicator */
    uint32_t payload_bytes; /* of its post; 0 of a later meeting */
    bool is_split;
    int color; /* of a split */
} zr_peer_question_t;

/** @param tail  [tail_bytes] behind the outcome */
bool zr_peer_check_outcome(const zr_outcome_t *said, const void *tail, size_t tail_bytes,
                           const zr_peer_question_t *question, char *why);
/** @param n_ranks  of the communicator that has ended */
bool zr_peer_check_end(const zr_end_t *said, int n_ranks, char *why);
