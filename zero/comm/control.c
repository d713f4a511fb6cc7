/* What both kinds of control share: see control_internal.h. */
#include "zero/comm/control_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device_trace.h"
#include "kernels/kernels.h"

void zr_control_destroy(zr_control_t **control) {
    if (*control != NULL)
        (*control)->backend->destroy(*control);
    *control = NULL;
}

bool zr_control_is_dead(zr_control_t *control) {
    return control->backend->death(control, NULL) != NULL;
}

bool zr_control_has_failed(zr_control_t *control) {
    bool has_left = false;
    return control->backend->death(control, &has_left) != NULL && !has_left;
}

const char *zr_control_describe_other(const zr_control_t *control, int origin_rank, char *text,
                                      size_t text_bytes) {
    snprintf(text, text_bytes, "rank %d%s", origin_rank, control->is_nested ? " of all" : "");
    return text;
}

zr_status_t zr_control_refuse(const zr_comm_t *comm, const zr_comm_call_t *call) {
    char text[ZR_COMM_DESCRIPTION_BYTES] = "collectives were given up";
    if (atomic_exchange(comm->control->backend->has_told(comm->control), true))
        return ZR_ERR_COMM;
    if (call != NULL)
        zr_comm_call_describe(call, text, sizeof(text));
    const char *reason = comm->control->backend->death(comm->control, NULL);
    return zr_fail(&comm->options.log, ZR_ERR_COMM, "%s: %s", text,
                   reason != NULL ? reason : "the communicator has ended");
}

/* A call went well: what has ended before was gone on from. */
static void note_life(zr_control_t *control) {
    atomic_store(control->backend->has_told(control), false);
}

/* Of a rank that is alone: ZR_OK while it lives, else refused. */
static zr_status_t check_alive(const zr_comm_t *comm, const zr_comm_call_t *call) {
    if (zr_control_is_dead(comm->control))
        return zr_control_refuse(comm, call);
    note_life(comm->control);
    return ZR_OK;
}

/* Until now, for other ranks. */
static void count_wait(zr_comm_t *comm, double start, const char *tensor) {
    comm->statistics.wait_seconds += zr_comm_clock() - start;
    if (comm->call_device != NULL)
        zr_device_waited(comm->call_device, start, "wait for ranks", tensor);
}

zr_status_t zr_control_arrive(zr_comm_t *comm, const zr_comm_call_t *call, const void *payload,
                              size_t payload_bytes, void *all) {
    zr_post_t post;
    zr_post_fill(&post, call, payload, payload_bytes);
    double start = zr_comm_clock();
    zr_status_t status = comm->control->backend->arrive(comm->control, &post, all);
    count_wait(comm, start, call->message.tensor);
    if (status != ZR_OK)
        return zr_control_refuse(comm, call);
    note_life(comm->control);
    return ZR_OK;
}

zr_status_t zr_control_meet(zr_comm_t *comm, zr_status_t status) {
    double start = zr_comm_clock();
    zr_status_t outcome = comm->control->backend->meet(comm->control, status);
    count_wait(comm, start, NULL);
    return outcome;
}

void zr_control_kill(zr_control_t *control, const char *format, ...) {
    char name[ZR_RANK_TEXT_BYTES], words[ZR_REASON_BYTES - ZR_RANK_TEXT_BYTES];
    char reason[ZR_REASON_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    zr_rank_describe(control->rank, control->origin_rank, control->is_nested, name);
    snprintf(reason, sizeof(reason), "%s %s", name, words);
    control->backend->kill(control, reason);
}

void zr_control_kill_for_peer(zr_control_t *control, int origin_rank, const char *why) {
    char other[ZR_RANK_TEXT_BYTES];
    zr_control_kill(control, "refuses what %s has sent: %s; start all ranks with the same program",
                    zr_control_describe_other(control, origin_rank, other, sizeof(other)), why);
}

void zr_control_kill_for_failure(zr_control_t *control, const zr_comm_call_t *call,
                                 zr_status_t status) {
    char text[ZR_COMM_DESCRIPTION_BYTES], words[ZR_DEVICE_ERROR_BYTES] = "";
    zr_comm_call_describe(call, text, sizeof(text));
    if (status != ZR_ERR_COMM && call->stream != NULL)
        zr_device_last_error(zr_stream_device(call->stream), words);
    zr_control_kill(control, "failed with %s in %s%s%s", zr_status_name(status), text,
                    words[0] != '\0' ? ": " : "", words);
}

void zr_controlled_init(zr_comm_t *comm, const zr_comm_backend_t *backend,
                        const zr_comm_options_t *options, zr_control_t *control) {
    zr_comm_options_t own = *options;
    own.log = zr_log_with_rank(&options->log, control->origin_rank);
    zr_comm_init(comm, backend, &own, control->rank, control->n_ranks);
    comm->control = control;
}

void zr_controlled_abort(zr_comm_t *comm, const char *reason) {
    zr_control_kill(comm->control, "gave up: %s", reason);
}

zr_status_t zr_controlled_barrier(zr_comm_t *comm, const zr_comm_call_t *call) {
    return zr_control_arrive(comm, call, NULL, 0, NULL);
}

zr_status_t zr_controlled_run_alone(zr_comm_t *comm, const zr_comm_call_t *call) {
    ZR_TRY(check_alive(comm, call));
    if (call->send == call->recv || call->n_elems == 0)
        return ZR_OK;
    double start = zr_comm_clock();
    zr_status_t status =
        zr_copy_async(call->stream, call->recv, call->send,
                      call->n_elems * zr_dtype_size(call->message.dtype), ZR_COPY_DEVICE_TO_DEVICE);
    if (status != ZR_OK)
        zr_control_kill_for_failure(comm->control, call, status);
    comm->statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

zr_status_t zr_control_split(zr_comm_t *comm, const zr_comm_call_t *call,
                             zr_control_adopt_fn adopt) {
    zr_control_t *place = NULL;
    zr_comm_t *group = NULL;
    ZR_TRY(zr_control_arrive(comm, call, NULL, 0, NULL));
    zr_status_t status = comm->control->backend->open_group(comm->control, call->color, &place);
    if (status == ZR_OK && place != NULL && (group = adopt(comm, place)) == NULL)
        status = ZR_ERR_MEMORY;
    zr_status_t outcome = zr_control_meet(comm, status);
    if (outcome == ZR_OK) {
        *call->group_p = group;
        return ZR_OK;
    }
    if (group != NULL)
        zr_comm_destroy(&group);
    else
        zr_control_destroy(&place);
    if (outcome == ZR_ERR_COMM)
        return zr_control_refuse(comm, call);
    return zr_fail(&comm->options.log, outcome,
                   "split: no memory for a group on this rank or another; no group was created");
}

zr_status_t zr_comm_create_in_process(int n_ranks, const zr_comm_options_t *options,
                                      zr_control_create_fn create, zr_comm_t **comms) {
    zr_comm_options_t defaults = zr_comm_options_default();
    if (options == NULL)
        options = &defaults;
    ZR_TRY(zr_comm_check_options(options, n_ranks));
    if (comms == NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator: no output pointer (NULL) for the handles of %s",
                       zr_count_text((uint64_t)n_ranks, "rank").text);
    zr_control_t *controls[ZR_MAX_SUM_SOURCES] = {NULL};
    zr_comm_t *made[ZR_MAX_SUM_SOURCES] = {NULL};
    int n_made = 0;
    if (zr_control_create_memory(n_ranks, options->timeout_ms, controls) == ZR_OK)
        while (n_made < n_ranks && (made[n_made] = create(options, controls[n_made])) != NULL)
            n_made++;
    if (n_made == n_ranks) {
        memcpy(comms, made, (size_t)n_ranks * sizeof(made[0]));
        return ZR_OK;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        if (made[rank] != NULL)
            zr_comm_destroy(&made[rank]);
        else
            zr_control_destroy(&controls[rank]);
    }
    return zr_fail(&options->log, ZR_ERR_MEMORY, "communicator: no memory for the state of %s",
                   zr_count_text((uint64_t)n_ranks, "rank").text);
}
