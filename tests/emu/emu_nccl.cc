/*
 * NCCL of the emulation, for ranks that are threads of one process.
 *
 * What a rank launches (a collective, or all sends and receives of a group) is a gate in its
 * stream. The gate opens when every part of it has met its counterpart: the same collective of all
 * ranks, or the peer's receive or send, each at the head of its stream. Data moves when the last
 * of those that belong together arrives, so that a rank that goes on may overwrite what it sent. A
 * rank that does not come leaves the others hanging, until somebody aborts.
 *
 * Communicators are non-blocking: a call says "in progress", and nothing is in the stream before
 * ncclCommGetAsyncError has been asked until it says otherwise.
 */
#include <nccl.h>

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "kernels/dtype.h"
#include "tests/emu/emu_internal.h"

namespace {

enum kind_t { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, SEND, RECV };
const char *const kind_names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                  "ncclBroadcast", "ncclSend",          "ncclRecv"};

/* One call of one rank. */
struct part_t {
    kind_t kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    int peer;        /* or root */
    uint64_t number; /* of the rank's collectives, or of its sends or receives with the peer */
    bool is_done = false;
};

/* What one rank queues as one piece. */
struct launch_t {
    ncclComm_t comm;
    int device;
    cudaStream_t stream;
    std::vector<part_t> parts;
    bool has_arrived = false;
    bool is_aborted = false;
};

/* The ranks of one unique id. */
struct clique_t {
    std::vector<ncclComm_t> comms;
    int n_joined = 0;
    bool is_refused = false; /* two ranks on one device */
};

} // namespace

struct ncclComm {
    std::shared_ptr<clique_t> clique;
    int rank = 0, device = 0;
    bool is_finalized = false;
    uint64_t n_collectives = 0;
    std::map<std::pair<int, int>, uint64_t> n_paired; /* by kind and peer */
    std::vector<std::shared_ptr<launch_t>> launches;  /* in the stream, not done */
    std::vector<std::shared_ptr<launch_t>> unsettled; /* launched, not in the stream yet */
    int n_polls = 0;                                  /* until what is in progress has ended */
};

namespace emu {

namespace {

struct nccl_t {
    std::map<uint64_t, std::shared_ptr<clique_t>> cliques;
    std::vector<ncclComm_t> comms;
    uint64_t n_ids = 0;
    size_t n_aborted = 0;
    bool is_stalled = false;
    std::map<int, int> failures; /* of a rank */
    std::map<int, int> losses;   /* launches until one is lost */
};
nccl_t &nccl = *new nccl_t; /* is looked at after the last destructor */

/* Calls between ncclGroupStart and ncclGroupEnd. */
thread_local int group_depth = 0;
thread_local int next_failure = 0;
thread_local std::vector<std::shared_ptr<launch_t>> grouped;

size_t size_of(ncclDataType_t type) {
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclFloat64:
        return 8;
    }
    return 0;
}

/* ---- data ---- */

typedef std::vector<unsigned char> bytes_t;

void fetch(const launch_t &launch, const void *from, size_t size, bytes_t &bytes) {
    bytes.resize(size);
    if (size == 0)
        return;
    if (!may_access(launch.device, from, size, true) ||
        !run_guarded(launch.device, [&] { memcpy(bytes.data(), from, size); }))
        fail_device(launch.device, cudaErrorIllegalAddress);
}

void put(const launch_t &launch, void *to, const unsigned char *bytes, size_t size) {
    if (size == 0)
        return;
    if (!may_access(launch.device, to, size, true) ||
        !run_guarded(launch.device, [&] { memcpy(to, bytes, size); }))
        fail_device(launch.device, cudaErrorIllegalAddress);
}

/* sum += other, rounded after every addition: NCCL's way, in an order of our choice. */
void add(bytes_t &sum, const bytes_t &other, ncclDataType_t type) {
    for (size_t i = 0; i < sum.size(); i += size_of(type)) {
        if (type == ncclFloat32) {
            float a, b;
            memcpy(&a, &sum[i], 4);
            memcpy(&b, &other[i], 4);
            a += b;
            memcpy(&sum[i], &a, 4);
        } else {
            zr_bf16_t a, b;
            memcpy(&a, &sum[i], 2);
            memcpy(&b, &other[i], 2);
            a = zr_bf16_from_f32(zr_bf16_to_f32(a) + zr_bf16_to_f32(b));
            memcpy(&sum[i], &a, 2);
        }
    }
}

/* A collective of all ranks, by rank: each with its launch. */
typedef std::vector<std::pair<launch_t *, part_t *>> together_t;

void move_collective(const together_t &ranks) {
    const part_t &first = *ranks[0].second;
    size_t n = ranks.size(), bytes = first.count * size_of(first.type);
    std::vector<bytes_t> sent(n);
    size_t sent_bytes = first.kind == REDUCE_SCATTER ? bytes * n : bytes;
    for (size_t r = 0; r < n; r++)
        fetch(*ranks[r].first, ranks[r].second->send, sent_bytes, sent[r]);
    bytes_t sum = sent[n - 1]; /* not rank order: who relies on it is to be seen */
    if (first.kind == REDUCE_SCATTER || first.kind == ALL_REDUCE)
        for (size_t r = 0; r + 1 < n; r++)
            add(sum, sent[r], first.type);
    for (size_t r = 0; r < n; r++) {
        const launch_t &launch = *ranks[r].first;
        char *recv = (char *)ranks[r].second->recv;
        if (first.kind == ALL_GATHER)
            for (size_t s = 0; s < n; s++)
                put(launch, recv + s * bytes, sent[s].data(), bytes);
        else if (first.kind == REDUCE_SCATTER)
            put(launch, recv, &sum[r * bytes], bytes);
        else if (first.kind == ALL_REDUCE)
            put(launch, recv, sum.data(), bytes);
        else
            put(launch, recv, sent[(size_t)first.peer].data(), bytes);
        ranks[r].second->is_done = true;
    }
}

/* ---- counterparts ---- */

/* A rank's part of this kind and number (and peer, of a pair) that has arrived. */
std::pair<launch_t *, part_t *> find_part(ncclComm_t comm, bool is_pair, kind_t kind, int peer,
                                          uint64_t number) {
    for (auto &launch : comm->launches)
        for (part_t &part : launch->parts)
            if (launch->has_arrived && part.number == number && (part.kind >= SEND) == is_pair &&
                (!is_pair || (part.kind == kind && part.peer == peer)))
                return {launch.get(), &part};
    return {NULL, NULL};
}

void meet_peer(launch_t &launch, part_t &part) {
    ncclComm_t peer = launch.comm->clique->comms[(size_t)part.peer];
    if (peer == NULL)
        return;
    auto found =
        find_part(peer, true, part.kind == SEND ? RECV : SEND, launch.comm->rank, part.number);
    if (found.second == NULL)
        return;
    launch_t &sender = part.kind == SEND ? launch : *found.first;
    launch_t &receiver = part.kind == SEND ? *found.first : launch;
    part_t &send = part.kind == SEND ? part : *found.second;
    part_t &recv = part.kind == SEND ? *found.second : part;
    if (send.count != recv.count || send.type != recv.type)
        misuse("ncclSend of %zu elements of type %d from rank %d meets ncclRecv of %zu of type %d "
               "on rank %d",
               send.count, send.type, sender.comm->rank, recv.count, recv.type,
               receiver.comm->rank);
    bytes_t bytes;
    fetch(sender, send.send, std::min(send.count, recv.count) * size_of(send.type), bytes);
    put(receiver, recv.recv, bytes.data(), bytes.size());
    send.is_done = recv.is_done = true;
}

void meet_all(launch_t &launch, part_t &part) {
    together_t together;
    for (ncclComm_t comm : launch.comm->clique->comms) {
        auto found = comm != NULL ? find_part(comm, false, part.kind, 0, part.number)
                                  : std::pair<launch_t *, part_t *>{};
        if (found.second == NULL)
            return;
        together.push_back(found);
    }
    bool fits = true;
    for (auto &[other, theirs] : together) {
        if (theirs->kind == part.kind && theirs->count == part.count && theirs->type == part.type &&
            theirs->peer == part.peer)
            continue;
        misuse("rank %d is in %s of %zu elements of type %d, rank %d in %s of %zu of type %d",
               launch.comm->rank, kind_names[part.kind], part.count, part.type, other->comm->rank,
               kind_names[theirs->kind], theirs->count, theirs->type);
        fits = false;
    }
    if (fits)
        move_collective(together);
    for (auto &[other, theirs] : together)
        theirs->is_done = true;
}

bool is_done(const launch_t &launch) {
    return launch.is_aborted || std::all_of(launch.parts.begin(), launch.parts.end(),
                                            [](const part_t &part) { return part.is_done; });
}

/* The launch is at the head of its stream: whether it lets the stream pass. */
bool is_open(const std::shared_ptr<launch_t> &launch) {
    if (!launch->has_arrived && !launch->is_aborted) {
        launch->has_arrived = true;
        for (part_t &part : launch->parts) {
            if (part.is_done)
                continue;
            if (part.kind >= SEND)
                meet_peer(*launch, part);
            else
                meet_all(*launch, part);
        }
        note_change();
    }
    return is_done(*launch);
}

/* ---- launches ---- */

void forget_done(ncclComm_t comm) {
    auto &launches = comm->launches;
    launches.erase(std::remove_if(launches.begin(), launches.end(),
                                  [](auto &launch) { return is_done(*launch); }),
                   launches.end());
}

/* Put into the stream what is ready to be launched. */
void settle(ncclComm_t comm) {
    forget_done(comm);
    std::vector<std::shared_ptr<launch_t>> unsettled;
    std::swap(unsettled, comm->unsettled);
    for (auto &launch : unsettled) {
        auto loss = nccl.losses.find(comm->rank);
        if (loss != nccl.losses.end() && --loss->second == 0) {
            nccl.losses.erase(loss);
            continue;
        }
        comm->launches.push_back(launch);
        queue_gate(launch->stream, "a launch of NCCL", [launch] { return is_open(launch); });
    }
}

bool is_comm(ncclComm_t comm, const char *call) {
    if (std::count(nccl.comms.begin(), nccl.comms.end(), comm) > 0)
        return true;
    misuse("%s: %p is no communicator", call, (void *)comm);
    return false;
}

void end_group() {
    for (auto &launch : grouped) {
        launch->comm->unsettled.push_back(launch);
        launch->comm->n_polls = 1 + (int)draw(3);
    }
    grouped.clear();
}

/* The launch of the group that a call belongs to. */
launch_t &launch_of(ncclComm_t comm, cudaStream_t stream) {
    for (auto &launch : grouped)
        if (launch->comm == comm && launch->stream == stream)
            return *launch;
    grouped.push_back(std::make_shared<launch_t>());
    *grouped.back() = {comm, comm->device, stream, {}};
    return *grouped.back();
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, part_t part) {
    std::lock_guard<std::mutex> lock(mutex);
    if (next_failure != 0)
        return (ncclResult_t)std::exchange(next_failure, 0);
    if (int failure = failure_to_return(kind_names[part.kind]))
        return (ncclResult_t)failure;
    if (!is_comm(comm, kind_names[part.kind]))
        return ncclInvalidArgument;
    int n_ranks = (int)comm->clique->comms.size();
    if (comm->n_polls > 0 || comm->clique->n_joined < n_ranks || comm->is_finalized) {
        misuse("%s on rank %d, whose communicator is %s", kind_names[part.kind], comm->rank,
               comm->is_finalized ? "finalized" : "in progress");
        return ncclInvalidUsage;
    }
    if (size_of(part.type) == 0 || part.peer < 0 || part.peer >= n_ranks ||
        device_of(stream) != comm->device)
        return ncclInvalidArgument;
    part.number =
        part.kind >= SEND ? comm->n_paired[{part.kind, part.peer}]++ : comm->n_collectives++;
    launch_of(comm, stream).parts.push_back(part);
    if (group_depth == 0)
        end_group();
    return ncclInProgress;
}

/* Take it from its clique and free it. */
void remove(ncclComm_t comm) {
    comm->clique->comms[(size_t)comm->rank] = NULL;
    nccl.comms.erase(std::find(nccl.comms.begin(), nccl.comms.end(), comm));
    delete comm;
    note_change();
}

} // namespace

size_t n_live_comms() {
    return nccl.comms.size();
}

} // namespace emu

using namespace emu;

#define ENTER                                                                                      \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    if (int failure = failure_to_return(__func__))                                                 \
    return (ncclResult_t)failure

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (size_t)result < sizeof(texts) / sizeof(texts[0]) ? texts[result] : "unknown result";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "an emulated failure";
}

ncclResult_t ncclGetVersion(int *version) {
    ENTER;
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ENTER;
    memset(id, 0x5e, sizeof(*id));
    nccl.n_ids++;
    memcpy(id->internal, &nccl.n_ids, sizeof(nccl.n_ids));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    ENTER;
    uint64_t number;
    memcpy(&number, id.internal, sizeof(number));
    if (config == NULL || config->size != sizeof(*config) || config->magic != 0xcafebeef ||
        config->blocking != 0 || number == 0 || number > nccl.n_ids || rank < 0 ||
        rank >= n_ranks) {
        misuse("ncclCommInitRankConfig: rank %d of %d, unique id %llu, or a bad configuration",
               rank, n_ranks, (unsigned long long)number);
        return ncclInvalidArgument;
    }
    auto &clique = nccl.cliques[number];
    if (clique == nullptr) {
        clique = std::make_shared<clique_t>();
        clique->comms.resize((size_t)n_ranks);
    }
    if (clique->comms.size() != (size_t)n_ranks || clique->comms[(size_t)rank] != NULL) {
        misuse("ncclCommInitRankConfig: rank %d of %d, where there are %zu", rank, n_ranks,
               clique->comms.size());
        return ncclInvalidArgument;
    }
    for (ncclComm_t other : clique->comms)
        clique->is_refused |= other != NULL && other->device == current_device();
    nccl.comms.push_back(*comm_p = new ncclComm{});
    (*comm_p)->clique = clique;
    (*comm_p)->rank = rank;
    (*comm_p)->device = current_device();
    clique->comms[(size_t)rank] = *comm_p;
    clique->n_joined++;
    note_change();
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    ENTER;
    if (!is_comm(comm, __func__))
        return ncclInvalidArgument;
    auto failure = nccl.failures.find(comm->rank);
    if (failure != nccl.failures.end())
        *error = (ncclResult_t)failure->second;
    else if (comm->clique->is_refused)
        *error = ncclInvalidUsage;
    else if (nccl.is_stalled || comm->clique->n_joined < (int)comm->clique->comms.size())
        *error = ncclInProgress;
    else if (comm->n_polls > 0 && --comm->n_polls > 0)
        *error = ncclInProgress;
    else
        *error = ncclSuccess;
    if (*error == ncclSuccess)
        settle(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ENTER;
    if (!is_comm(comm, __func__))
        return ncclInvalidArgument;
    forget_done(comm);
    if (!comm->launches.empty() || !comm->unsettled.empty() || group_depth > 0)
        misuse("ncclCommFinalize of rank %d, where something is still to be done", comm->rank);
    comm->is_finalized = true;
    comm->n_polls = 1 + (int)draw(3);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (!is_comm(comm, __func__))
        return ncclInvalidArgument;
    if (!comm->is_finalized || comm->n_polls > 0)
        misuse("ncclCommDestroy of rank %d, which is not finalized", comm->rank);
    remove(comm);
    return (ncclResult_t)failure_to_return(__func__);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (!is_comm(comm, __func__))
        return ncclInvalidArgument;
    for (auto &launch : comm->launches)
        launch->is_aborted = true;
    nccl.n_aborted++;
    remove(comm);
    return (ncclResult_t)failure_to_return(__func__);
}

ncclResult_t ncclGroupStart(void) {
    ENTER;
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (group_depth == 0) {
        misuse("ncclGroupEnd without a beginning");
        return ncclInvalidUsage;
    }
    group_depth--;
    if (int failure = failure_to_return(__func__)) {
        grouped.clear();
        return (ncclResult_t)failure;
    }
    if (group_depth > 0 || grouped.empty())
        return ncclSuccess;
    end_group();
    return ncclInProgress;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return emu::call(comm, stream, {ALL_GATHER, send, recv, count, type, 0, 0});
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    return emu::call(comm, stream, {REDUCE_SCATTER, send, recv, count, type, 0, 0});
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    return emu::call(comm, stream, {ALL_REDUCE, send, recv, count, type, 0, 0});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return emu::call(comm, stream, {BROADCAST, send, recv, count, type, root, 0});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    return emu::call(comm, stream, {SEND, send, NULL, count, type, peer, 0});
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return emu::call(comm, stream, {RECV, NULL, recv, count, type, peer, 0});
}

/* ---- for tests ---- */

void emu_nccl_fail(int rank, int error) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (error != 0)
        nccl.failures[rank] = error;
    else
        nccl.failures.erase(rank);
}

void emu_nccl_stall(bool stall) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    nccl.is_stalled = stall;
}

void emu_nccl_fail_next(int error) {
    next_failure = error;
}

void emu_nccl_lose_launch(int rank, int nth) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    nccl.losses[rank] = nth;
}

size_t emu_nccl_n_aborted(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return nccl.n_aborted;
}
