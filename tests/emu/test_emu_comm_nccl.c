/*
 * The communicators' conformance suite on nccl: every rank has an emulated GPU of its own.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/comm/comm_suite.h"

static int n_ranks_now, n_opened; /* of the communicator made last; devices opened for it */

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    n_ranks_now = n_ranks;
    n_opened = 0;
    return zr_comm_create_nccl_threads(n_ranks, options, comms);
}

/* The same ranks as if they were processes: they find each other, and agree, over TCP. */
typedef struct process {
    pthread_t thread;
    zr_launch_t launch;
    const zr_comm_options_t *options;
    zr_comm_t *comm;
    zr_status_t status;
} process_t;

static void *start_process(void *argument) {
    process_t *process = argument;
    process->status = zr_comm_create_nccl(&process->launch, process->options, &process->comm);
    return NULL;
}

static zr_status_t create_over_tcp(int n_ranks, const zr_comm_options_t *options,
                                   zr_comm_t **comms) {
    process_t processes[MAX_TEST_RANKS];
    if (n_ranks < 2 || options->timeout_ms < 1 || n_ranks > MAX_TEST_RANKS)
        return create(n_ranks, options, comms); /* one rank needs nobody; or it is refused */
    zr_comm_options_t patient = *options;
    n_ranks_now = n_ranks;
    n_opened = 0;
    zr_launch_t launch = {.host = "127.0.0.1", .port = free_port(), .n_ranks = n_ranks};
    for (int rank = 0; rank < n_ranks; rank++) {
        processes[rank] = (process_t){.launch = launch, .options = &patient};
        processes[rank].launch.rank = rank;
        if (pthread_create(&processes[rank].thread, NULL, start_process, &processes[rank]) != 0)
            abort();
    }
    zr_status_t status = ZR_OK;
    for (int rank = 0; rank < n_ranks; rank++) {
        pthread_join(processes[rank].thread, NULL);
        status = processes[rank].status != ZR_OK ? processes[rank].status : status;
        comms[rank] = processes[rank].comm;
    }
    return status;
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.index = n_opened++;
    return zr_device_open("cuda", &options, device_p);
}

/* A single rank copies; others have NCCL do it. */
static void fail_copy(zr_stream_t *stream) {
    (void)stream; /* what this thread asks for next is for it */
    if (n_ranks_now == 1)
        emu_fail_call("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    else
        emu_nccl_fail_next(ncclUnhandledCudaError);
}

int main(int argc, char **argv) {
    emu_options_t machine = emu_options_default();
    machine.n_devices = 8;
    emu_configure(&machine);
    comm_suite_t suite = {
        .name = "nccl on emulated GPUs",
        .create = create,
        .open_device = open_device,
        .close_device = zr_device_close,
        .fail_copy = fail_copy,
    };
    if (argc > 1 && strcmp(argv[1], "tcp") == 0) {
        suite.name = "nccl on emulated GPUs, over TCP";
        suite.create = create_over_tcp;
    }
    return run_comm_suite(&suite);
}
