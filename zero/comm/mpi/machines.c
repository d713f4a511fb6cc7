/* See machines.h. */
#include "zero/comm/mpi/machines.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xxhash.h>

#include "kernels/kernels.h"

/* Of a call of the kernel's: it can be interrupted in between. */
#define ZR_READ_BYTES ((size_t)1 << 30)

/* ---- cards ----------------------------------------------------------------------------------- */

/* A machine since it was started, and the process numbers that are seen there: a container has its
 * own. What cannot be found out makes the rank a machine of its own. */
static uint64_t identify_machine(uint64_t otherwise) {
    char text[256];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n_boot = file >= 0 ? read(file, text, sizeof(text) / 2) : -1;
    if (file >= 0)
        close(file);
    ssize_t n_space =
        n_boot > 0 ? readlink("/proc/self/ns/pid", text + n_boot, sizeof(text) / 2) : -1;
    return n_space > 0 ? XXH64(text, (size_t)(n_boot + n_space), 0) : otherwise;
}

uint64_t zr_machine_identity(int origin_rank, int machine_ranks, uint64_t otherwise) {
    return machine_ranks > 0 ? (uint64_t)(origin_rank / machine_ranks)
                             : identify_machine(otherwise);
}

zr_status_t zr_machines_count(zr_comm_t *comm, const zr_comm_call_t *call, uint64_t own) {
    uint64_t all[ZR_MAX_SUM_SOURCES];
    ZR_TRY(zr_control_arrive(comm, call, &own, sizeof(own), all));
    int n_machines = 0;
    for (int rank = 0; rank < comm->n_ranks; rank++) {
        int first = 0;
        while (all[first] != all[rank])
            first++;
        n_machines += first == rank;
    }
    *call->n_machines_p = n_machines;
    return ZR_OK;
}

void zr_card_fill(zr_card_t *card, const uint64_t *proof, int origin_rank, int machine_ranks,
                  zr_device_t *device) {
    *card = (zr_card_t){.proof_address = (uint64_t)(uintptr_t)proof,
                        .proof = *proof,
                        .pid = getpid(),
                        .origin_rank = origin_rank,
                        .n_threads = zr_device_info(device)->n_threads,
                        .file = zr_host_shared_file(device)};
    card->machine = zr_machine_identity(origin_rank, machine_ranks, *proof);
    /* Where a process may read its children only (Yama), it may now be read by its neighbours. */
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

/* ---- groups ---------------------------------------------------------------------------------- */

size_t zr_machines_bytes(int n_ranks) {
    return (4 * (size_t)n_ranks + 1) * sizeof(int);
}

void zr_machines_fill(zr_machines_t *machines, int *arrays, int rank, int n_ranks,
                      const zr_card_t *cards, bool is_apart) {
    *machines = (zr_machines_t){.rank = rank, .n_ranks = n_ranks, .cards = cards};
    machines->machine_of = arrays;
    machines->place_of = arrays + n_ranks;
    machines->by_machine = arrays + 2 * n_ranks;
    machines->first_of = arrays + 3 * n_ranks;
    for (int r = 0; r < n_ranks; r++)
        machines->machine_of[r] = -1;
    int n_placed = 0;
    for (int first = 0; first < n_ranks; first++) {
        if (machines->machine_of[first] >= 0)
            continue;
        int machine = machines->n_machines++;
        machines->first_of[machine] = n_placed;
        for (int r = first; r < n_ranks; r++) {
            if (r != first && (is_apart || cards[r].machine != cards[first].machine))
                continue;
            machines->machine_of[r] = machine;
            machines->place_of[r] = n_placed - machines->first_of[machine];
            machines->by_machine[n_placed++] = r;
        }
        int n_members = n_placed - machines->first_of[machine];
        if (n_members > machines->most_members)
            machines->most_members = n_members;
    }
    machines->first_of[machines->n_machines] = n_placed;
}

bool zr_machines_is_neighbour(const zr_machines_t *machines, int rank) {
    return machines->machine_of[rank] == machines->machine_of[machines->rank];
}

int zr_machines_receiver(const zr_machines_t *machines, int rank, int machine) {
    int first = machines->first_of[machine];
    int n_members = machines->first_of[machine + 1] - first;
    return machines->by_machine[first + machines->place_of[rank] % n_members];
}

/* ---- reading --------------------------------------------------------------------------------- */

int zr_machines_read(const zr_machines_t *machines, int rank, void *dst, uint64_t src,
                     size_t size_bytes) {
    for (size_t done = 0; done < size_bytes;) {
        size_t left = size_bytes - done;
        size_t length = left < ZR_READ_BYTES ? left : ZR_READ_BYTES;
        struct iovec to = {.iov_base = (char *)dst + done, .iov_len = length};
        struct iovec from = {.iov_base = (void *)(uintptr_t)(src + done), .iov_len = length};
        ssize_t n = process_vm_readv(machines->cards[rank].pid, &to, 1, &from, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EFAULT;
        done += (size_t)n;
    }
    return 0;
}

int zr_machines_try(const zr_machines_t *machines, int *rank_p) {
    for (int rank = 0; rank < machines->n_ranks; rank++) {
        uint64_t proof = 0;
        if (rank == machines->rank || !zr_machines_is_neighbour(machines, rank))
            continue;
        int error = zr_machines_read(machines, rank, &proof, machines->cards[rank].proof_address,
                                     sizeof(proof));
        if (error == 0 && proof != machines->cards[rank].proof)
            error = ESRCH; /* another process has that number here */
        if (error != 0) {
            *rank_p = rank;
            return error;
        }
    }
    return 0;
}
