/* See ucx_links.h. */
#include "zero/comm/ucx/ucx_links.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "zero/comm/deadline_internal.h"
#include "zero/comm/ucx/ucx_library.h"
#include "zero/comm/wire_internal.h"

enum {
    WAIT_MS = 100,             /* for data, until the communicator is looked at */
    WORD_MS = 2000,            /* for the communicator's own word on a rank whose link has ended */
    CLOSE_MS = 1000,           /* for UCX to let go of what was posted */
    MOST_ADDRESS_BYTES = 8192, /* of a rank's UCX */
    DEVICES_BYTES = 1024
};

typedef struct link {
    zr_ucx_links_t *links;
    ucp_ep_h endpoint; /* NULL: none */
    int rank;          /* in the first communicator */
    uint64_t proof;
    ucs_status_t status; /* why it has ended; UCS_OK. Guarded by the lock */
} link_t;

struct zr_ucx_links {
    zr_ucx_library_t ucx;
    zr_control_t *control;
    int timeout_ms, origin_rank;
    uint64_t proof;        /* this rank's */
    ucp_context_h context; /* NULL: none, as are */
    ucp_worker_h worker;   /* the thread's own while that runs */
    ucp_address_t *address;
    size_t address_bytes;
    int descriptor; /* readable when the worker has something to do */
    bool has_thread;
    pthread_t thread;
    atomic_bool is_ending, has_moved;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool is_posted; /* and not taken by the thread */
    zr_mpi_transfer_t *transfers;
    size_t n_transfers, n_open;
    int wrong_rank; /* who has sent something else; -1 */
    char why[ZR_PEER_WHY_BYTES];
    link_t of[ZR_MAX_SUM_SOURCES]; /* by rank of the first communicator */
};

/* ---- transfers, in the thread -------------------------------------------------------------------
 */

/* What only the receiver, and those who it has told, know of it; and who sends. */
static ucp_tag_t tag_of(uint64_t proof, int sender) {
    return (proof & ~(uint64_t)0xffff) | (uint64_t)sender;
}

static void finish(zr_mpi_transfer_t *transfer, ucs_status_t status, size_t size_bytes) {
    zr_ucx_links_t *links = transfer->links;
    pthread_mutex_lock(&links->lock);
    link_t *link = &links->of[transfer->peer];
    bool is_wrong =
        !transfer->is_send && (status == UCS_ERR_MESSAGE_TRUNCATED ||
                               (status == UCS_OK && size_bytes != transfer->size_bytes));
    if (is_wrong && links->wrong_rank < 0) {
        links->wrong_rank = transfer->peer;
        snprintf(links->why, sizeof(links->why), "%s of data, expected %zu",
                 status == UCS_OK ? zr_count_text(size_bytes, "byte").text : "more bytes",
                 transfer->size_bytes);
    } else if (status != UCS_OK && link->status == UCS_OK) {
        link->status = status;
    }
    transfer->request = NULL;
    transfer->is_done = status == UCS_OK;
    links->n_open--;
    if (links->n_open == 0 || status != UCS_OK || is_wrong)
        pthread_cond_signal(&links->changed);
    pthread_mutex_unlock(&links->lock);
}

static void on_sent(void *request, ucs_status_t status, void *context) {
    zr_mpi_transfer_t *transfer = context;
    ((zr_ucx_links_t *)transfer->links)->ucx.ucp_request_free_p(request);
    finish(transfer, status, transfer->size_bytes);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *context) {
    zr_mpi_transfer_t *transfer = context;
    ((zr_ucx_links_t *)transfer->links)->ucx.ucp_request_free_p(request);
    finish(transfer, status, info->length);
}

static void on_lost(void *context, ucp_ep_h endpoint, ucs_status_t status) {
    link_t *link = context;
    (void)endpoint;
    pthread_mutex_lock(&link->links->lock);
    link->status = status;
    pthread_cond_signal(&link->links->changed);
    pthread_mutex_unlock(&link->links->lock);
}

static void begin_transfer(zr_ucx_links_t *links, zr_mpi_transfer_t *transfer) {
    const link_t *link = &links->of[transfer->peer];
    ucp_tag_recv_info_t info = {.length = transfer->size_bytes};
    ucp_request_param_t how = {.op_attr_mask =
                                   UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                               .user_data = transfer};
    ucs_status_ptr_t request;
    if (transfer->is_send) {
        how.cb.send = on_sent;
        request =
            links->ucx.ucp_tag_send_nbx_p(link->endpoint, transfer->buffer, transfer->size_bytes,
                                          tag_of(link->proof, links->origin_rank), &how);
    } else {
        how.cb.recv = on_received;
        how.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
        how.recv_info.tag_info = &info; /* where it has come already */
        request =
            links->ucx.ucp_tag_recv_nbx_p(links->worker, transfer->buffer, transfer->size_bytes,
                                          tag_of(links->proof, transfer->peer), UINT64_MAX, &how);
    }
    if (UCS_PTR_IS_PTR(request))
        transfer->request = request;
    else
        finish(transfer, UCS_PTR_RAW_STATUS(request), info.length);
}

static void begin_posted(zr_ucx_links_t *links) {
    pthread_mutex_lock(&links->lock);
    size_t n = links->is_posted ? links->n_transfers : 0;
    links->is_posted = false;
    pthread_mutex_unlock(&links->lock);
    for (size_t i = 0; i < n; i++)
        begin_transfer(links, &links->transfers[i]);
}

static void *move_data(void *context) {
    zr_ucx_links_t *links = context;
    while (!atomic_load(&links->is_ending)) {
        begin_posted(links);
        if (links->ucx.ucp_worker_progress_p(links->worker) != 0) {
            atomic_store_explicit(&links->has_moved, true, memory_order_relaxed);
        } else if (links->ucx.ucp_worker_arm_p(links->worker) == UCS_OK) {
            struct pollfd ready = {.fd = links->descriptor, .events = POLLIN};
            (void)poll(&ready, 1, -1); /* zr_ucx_links_post and _cut signal the worker */
        }
    }
    return NULL;
}

/* ---- transfers, for the rank --------------------------------------------------------------------
 */

void zr_ucx_links_post(zr_ucx_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers) {
    for (size_t i = 0; i < n_transfers; i++) {
        transfers[i].links = links;
        transfers[i].request = NULL;
        transfers[i].is_done = false;
    }
    pthread_mutex_lock(&links->lock);
    links->transfers = transfers;
    links->n_transfers = links->n_open = n_transfers;
    links->is_posted = true;
    pthread_mutex_unlock(&links->lock);
    (void)links->ucx.ucp_worker_signal_p(links->worker);
}

/* A link has ended. Its rank may have been ended by another one's death: what the communicator says
 * of that comes first. */
static void kill_for_loss(zr_ucx_links_t *links, int rank, ucs_status_t status) {
    char other[ZR_RANK_TEXT_BYTES];
    int64_t until_ms = zr_wire_now_ms() + WORD_MS;
    struct timespec pause = {.tv_nsec = 5000000};
    while (!zr_control_is_dead(links->control) && zr_wire_now_ms() < until_ms)
        nanosleep(&pause, NULL);
    zr_control_kill(links->control, "has lost the connection for data to %s: %s",
                    zr_control_describe_other(links->control, rank, other, sizeof(other)),
                    links->ucx.ucs_status_string_p(status));
}

static void kill_for_lateness(zr_ucx_links_t *links, const zr_mpi_transfer_t *late) {
    char other[ZR_RANK_TEXT_BYTES];
    zr_control_kill(links->control, "has waited %d ms for %s to %s data", links->timeout_ms,
                    zr_control_describe_other(links->control, late->peer, other, sizeof(other)),
                    late->is_send ? "take" : "send");
}

/* The first transfer that is not done: of a link that has ended, if there is one. Lock held. */
static const zr_mpi_transfer_t *find_open(const zr_ucx_links_t *links) {
    const zr_mpi_transfer_t *open = NULL;
    for (size_t i = 0; i < links->n_transfers; i++) {
        const zr_mpi_transfer_t *transfer = &links->transfers[i];
        if (!transfer->is_done && links->of[transfer->peer].status != UCS_OK)
            return transfer;
        if (!transfer->is_done && open == NULL)
            open = transfer;
    }
    return open;
}

zr_status_t zr_ucx_links_wait(zr_ucx_links_t *links) {
    int64_t until_ms = zr_wire_now_ms() + links->timeout_ms;
    for (;;) {
        struct timespec moment = zr_deadline_after(WAIT_MS);
        pthread_mutex_lock(&links->lock);
        const zr_mpi_transfer_t *open = find_open(links);
        if (open != NULL && links->of[open->peer].status == UCS_OK && links->wrong_rank < 0) {
            (void)pthread_cond_timedwait(&links->changed, &links->lock, &moment);
            open = find_open(links);
        }
        ucs_status_t status = open != NULL ? links->of[open->peer].status : UCS_OK;
        int wrong_rank = links->wrong_rank;
        pthread_mutex_unlock(&links->lock);
        if (open == NULL && wrong_rank < 0)
            return ZR_OK;
        int64_t now = zr_wire_now_ms();
        if (atomic_exchange_explicit(&links->has_moved, false, memory_order_relaxed))
            until_ms = now + links->timeout_ms;
        if (wrong_rank >= 0)
            zr_control_kill_for_peer(links->control, wrong_rank, links->why);
        else if (status != UCS_OK)
            kill_for_loss(links, open->peer, status);
        else if (now >= until_ms)
            kill_for_lateness(links, open);
        if (zr_control_is_dead(links->control)) {
            zr_ucx_links_cut(links);
            return ZR_ERR_COMM;
        }
    }
}

/* ---- the end ------------------------------------------------------------------------------------
 */

static bool has_ended(const zr_ucx_links_t *links, ucs_status_ptr_t closing) {
    return !UCS_PTR_IS_PTR(closing) ||
           links->ucx.ucp_request_check_status_p(closing) != UCS_INPROGRESS;
}

/* Without the others: who is dead does not answer. */
static void close_link(zr_ucx_links_t *links, link_t *link) {
    const ucp_request_param_t at_once = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                         .flags = UCP_EP_CLOSE_FLAG_FORCE};
    int64_t until_ms = zr_wire_now_ms() + CLOSE_MS;
    if (link->endpoint == NULL)
        return;
    ucs_status_ptr_t closing = links->ucx.ucp_ep_close_nbx_p(link->endpoint, &at_once);
    link->endpoint = NULL;
    while (!has_ended(links, closing) && zr_wire_now_ms() < until_ms)
        (void)links->ucx.ucp_worker_progress_p(links->worker);
    if (UCS_PTR_IS_PTR(closing))
        links->ucx.ucp_request_free_p(closing);
}

static void close_worker(zr_ucx_links_t *links) {
    for (size_t i = 0; i < links->n_transfers; i++)
        if (links->transfers[i].request != NULL)
            links->ucx.ucp_request_cancel_p(links->worker, links->transfers[i].request);
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++)
        close_link(links, &links->of[rank]);
    for (int64_t until_ms = zr_wire_now_ms() + CLOSE_MS;
         links->n_open > 0 && !links->is_posted && zr_wire_now_ms() < until_ms;)
        (void)links->ucx.ucp_worker_progress_p(links->worker);
    if (links->address != NULL)
        links->ucx.ucp_worker_release_address_p(links->worker, links->address);
    links->ucx.ucp_worker_destroy_p(links->worker);
    links->worker = NULL;
    links->address = NULL;
}

void zr_ucx_links_cut(zr_ucx_links_t *links) {
    if (links->has_thread) {
        atomic_store(&links->is_ending, true);
        (void)links->ucx.ucp_worker_signal_p(links->worker);
        pthread_join(links->thread, NULL);
        links->has_thread = false;
    }
    if (links->worker != NULL)
        close_worker(links);
    if (links->context != NULL)
        links->ucx.ucp_cleanup_p(links->context);
    links->context = NULL;
    links->n_transfers = links->n_open = 0;
}

void zr_ucx_links_destroy(zr_ucx_links_t **links) {
    if (*links == NULL)
        return;
    zr_ucx_links_cut(*links);
    pthread_cond_destroy(&(*links)->changed);
    pthread_mutex_destroy(&(*links)->lock);
    free(*links);
    *links = NULL;
}

/* ---- the beginning ------------------------------------------------------------------------------
 */

/* What can be said to UCX itself, unless its user says otherwise. Ranks that cannot read each
 * other's memory are taken for those of different machines; UCX would have them share some in
 * /dev/shm, which containers limit to little. */
static void configure(const zr_ucx_library_t *ucx, ucp_config_t *config, const char *address) {
    char devices[DEVICES_BYTES];
    if (getenv("UCX_TLS") == NULL)
        (void)ucx->ucp_config_modify_p(config, "TLS", "^shm,cma,xpmem,knem");
    if (getenv("UCX_NET_DEVICES") == NULL && address != NULL &&
        zr_ucx_list_devices(address, devices, sizeof(devices)))
        (void)ucx->ucp_config_modify_p(config, "NET_DEVICES", devices);
}

static bool open_worker(zr_ucx_links_t *links, const char *address, char *error) {
    const zr_ucx_library_t *ucx = &links->ucx;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_config_t *config = NULL;
    if (!zr_ucx_library_open(&links->ucx, error))
        return false;
    ucs_status_t status = ucx->ucp_config_read_p(NULL, NULL, &config);
    if (status == UCS_OK) {
        configure(ucx, config, address);
        status =
            ucx->ucp_init_version_p(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &links->context);
        ucx->ucp_config_release_p(config);
    }
    if (status == UCS_OK)
        status = ucx->ucp_worker_create_p(links->context, &worker, &links->worker);
    if (status == UCS_OK)
        status = ucx->ucp_worker_get_efd_p(links->worker, &links->descriptor);
    if (status == UCS_OK)
        status =
            ucx->ucp_worker_get_address_p(links->worker, &links->address, &links->address_bytes);
    if (status != UCS_OK)
        snprintf(error, ZR_UCX_ERROR_BYTES, "%s", ucx->ucs_status_string_p(status));
    else if (links->address_bytes > MOST_ADDRESS_BYTES)
        snprintf(error, ZR_UCX_ERROR_BYTES, "its address has %zu bytes", links->address_bytes);
    return status == UCS_OK && links->address_bytes <= MOST_ADDRESS_BYTES;
}

/* A part of a rank's address, as a post carries it. */
typedef struct address_part {
    uint64_t address_bytes; /* in all */
    unsigned char bytes[ZR_PAYLOAD_BYTES - sizeof(uint64_t)];
} address_part_t;

/* @param all  [n_ranks][MOST_ADDRESS_BYTES], and [n_ranks] parts of addresses behind */
static zr_status_t exchange_addresses(zr_ucx_links_t *links, zr_comm_t *comm,
                                      const zr_comm_call_t *call, const zr_machines_t *machines,
                                      unsigned char *all) {
    enum { PART_BYTES = sizeof((address_part_t *)NULL)->bytes };
    address_part_t own = {.address_bytes = links->address_bytes};
    address_part_t *parts =
        (address_part_t *)(all + (size_t)machines->n_ranks * MOST_ADDRESS_BYTES);
    size_t most_bytes = PART_BYTES;
    for (size_t at = 0; at < most_bytes; at += PART_BYTES) {
        size_t left = at < links->address_bytes ? links->address_bytes - at : 0;
        memcpy(own.bytes, (const char *)links->address + (left > 0 ? at : 0),
               left < PART_BYTES ? left : PART_BYTES);
        ZR_TRY(zr_control_arrive(comm, call, &own, sizeof(own), parts));
        for (int rank = 0; rank < machines->n_ranks; rank++) {
            uint64_t size_bytes = parts[rank].address_bytes;
            if (size_bytes == 0 || size_bytes > MOST_ADDRESS_BYTES ||
                (at > 0 && at >= most_bytes)) {
                zr_control_kill_for_peer(links->control, machines->cards[rank].origin_rank,
                                         "an address for data without a possible size");
                return ZR_ERR_COMM;
            }
            most_bytes = size_bytes > most_bytes ? size_bytes : most_bytes;
            size_t room = MOST_ADDRESS_BYTES - at;
            memcpy(all + (size_t)rank * MOST_ADDRESS_BYTES + at, parts[rank].bytes,
                   room < PART_BYTES ? room : PART_BYTES);
        }
    }
    return ZR_OK;
}

static zr_status_t connect_to(zr_ucx_links_t *links, const zr_card_t *card,
                              const unsigned char *address) {
    link_t *link = &links->of[card->origin_rank];
    *link = (link_t){.links = links, .rank = card->origin_rank, .proof = card->proof};
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = (const ucp_address_t *)address,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = on_lost, .arg = link}};
    char other[ZR_RANK_TEXT_BYTES];
    ucs_status_t status = links->ucx.ucp_ep_create_p(links->worker, &params, &link->endpoint);
    if (status == UCS_OK)
        return ZR_OK;
    link->endpoint = NULL;
    zr_control_kill(
        links->control,
        "cannot connect to %s for data: UCX: %s; UCX_NET_DEVICES and UCX_TLS say what "
        "it may use (docs/clusters.md)",
        zr_control_describe_other(links->control, card->origin_rank, other, sizeof(other)),
        links->ucx.ucs_status_string_p(status));
    return ZR_ERR_COMM;
}

/* All say a word to all: after that, connections are made. */
static zr_status_t greet(zr_ucx_links_t *links, const zr_machines_t *machines) {
    size_t n = 0, n_ranks = (size_t)machines->n_ranks;
    uint64_t *words = malloc((n_ranks + 1) * sizeof(*words)); /* the last is this rank's own */
    zr_mpi_transfer_t *transfers = malloc(2 * n_ranks * sizeof(*transfers));
    zr_status_t status = words != NULL && transfers != NULL ? ZR_OK : ZR_ERR_COMM;
    if (status != ZR_OK)
        zr_control_kill(links->control, "has no memory for connections to %zu ranks", n_ranks);
    for (size_t rank = 0; status == ZR_OK && rank < n_ranks; rank++) {
        int peer = machines->cards[rank].origin_rank;
        words[n_ranks] = ZR_WIRE_VERSION;
        for (int is_send = 0; links->of[peer].endpoint != NULL && is_send < 2; is_send++)
            transfers[n++] = (zr_mpi_transfer_t){.buffer = &words[is_send ? n_ranks : rank],
                                                 .size_bytes = sizeof(words[0]),
                                                 .peer = peer,
                                                 .is_send = is_send};
    }
    if (status == ZR_OK) {
        zr_ucx_links_post(links, transfers, n);
        status = zr_ucx_links_wait(links);
    }
    free(transfers);
    free(words);
    return status;
}

static zr_status_t connect_all(zr_ucx_links_t *links, zr_comm_t *comm, const zr_comm_call_t *call,
                               const zr_machines_t *machines) {
    unsigned char *all =
        malloc((size_t)machines->n_ranks * (MOST_ADDRESS_BYTES + sizeof(address_part_t)));
    if (all == NULL) {
        zr_control_kill(links->control, "has no memory for the addresses of %d ranks",
                        machines->n_ranks);
        return ZR_ERR_COMM;
    }
    zr_status_t status = exchange_addresses(links, comm, call, machines, all);
    for (int rank = 0; status == ZR_OK && rank < machines->n_ranks; rank++)
        if (!zr_machines_is_neighbour(machines, rank))
            status =
                connect_to(links, &machines->cards[rank], all + (size_t)rank * MOST_ADDRESS_BYTES);
    free(all);
    links->has_thread =
        status == ZR_OK && pthread_create(&links->thread, NULL, move_data, links) == 0;
    if (status == ZR_OK && !links->has_thread) {
        zr_control_kill(links->control, "has no memory for a thread that moves data");
        status = ZR_ERR_COMM;
    }
    return status == ZR_OK ? greet(links, machines) : status;
}

zr_status_t zr_ucx_links_create(zr_comm_t *comm, const zr_comm_call_t *call,
                                const zr_machines_t *machines, const char *address,
                                zr_ucx_links_t **links_p) {
    const zr_card_t *own = &machines->cards[machines->rank];
    char error[ZR_UCX_ERROR_BYTES] = "no memory";
    zr_ucx_links_t *links = calloc(1, sizeof(*links));
    if (links == NULL || !zr_deadline_init(&links->lock, &links->changed)) {
        free(links);
        zr_control_kill(comm->control, "has no memory for connections to %d ranks",
                        machines->n_ranks);
        return ZR_ERR_COMM;
    }
    links->control = comm->control;
    links->timeout_ms = comm->options.timeout_ms;
    links->origin_rank = own->origin_rank;
    links->proof = own->proof;
    links->wrong_rank = -1;
    zr_status_t status = ZR_ERR_COMM;
    if (open_worker(links, address, error))
        status = connect_all(links, comm, call, machines);
    else
        zr_control_kill(
            comm->control,
            "cannot reach ranks of other machines: UCX: %s; is UCX installed (libucx0), "
            "and its folder in LD_LIBRARY_PATH?",
            error);
    if (status != ZR_OK)
        zr_ucx_links_destroy(&links);
    else
        *links_p = links;
    return status;
}
