/*
 * NCCL of the emulation, for ranks that are threads of one process or processes of one machine.
 *
 * What a rank launches (a collective, or all sends and receives of a group) is a gate in its
 * stream. At the head of the stream its parts are posted where the ranks meet. A rank gives its
 * data when all counterparts have come to the heads of theirs, and takes theirs once it is there;
 * the gate opens when all has been given and taken, so that a rank that goes on may overwrite what
 * it sent. A rank that does not come leaves the others hanging, until somebody aborts.
 *
 * Communicators are non-blocking: a call says "in progress", and nothing is in the stream before
 * ncclCommGetAsyncError has been asked until it says otherwise.
 */
#include <nccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "kernels/dtype.h"
#include "tests/emu/emu_internal.h"
#include "tests/emu/emu_nccl_meeting.h"

using namespace emu;

namespace {

const char *const kind_names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                  "ncclBroadcast", "ncclSend",          "ncclRecv"};

/* One call of one rank, and how far it is. */
struct call_t {
    part_t part;
    const void *send;
    void *recv;
    enum { QUEUED, POSTED, GIVEN, DONE } stage = QUEUED;
    int post = -1;
    std::vector<int> posts = {}; /* of all ranks, of a collective that all have come to */
};

/* What one rank queues as one piece. */
struct launch_t {
    ncclComm_t comm;
    int device;
    cudaStream_t stream;
    std::vector<call_t> calls;
    bool is_aborted = false;
};

} // namespace

struct ncclComm {
    meeting_t meeting;
    int rank = 0, n_ranks = 0, device = 0;
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
    std::vector<ncclComm_t> comms;
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

size_t size_of(int type) {
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

/* From a device to a post. */
void fetch(const launch_t &launch, const void *from, size_t size, unsigned char *bytes) {
    if (size > meeting_t::most_bytes) {
        misuse("%zu bytes of one rank in one collective: at most %zu", size, meeting_t::most_bytes);
        abort();
    }
    if (size == 0)
        return;
    if (!may_access(launch.device, from, size, true) ||
        !run_guarded(launch.device, [&] { memcpy(bytes, from, size); }))
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
void add(std::vector<unsigned char> &sum, const unsigned char *other, int type) {
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

/* What this rank sends in a collective. */
size_t sent_bytes(const launch_t &launch, const part_t &part) {
    size_t bytes = part.count * size_of(part.type);
    if (part.kind == BROADCAST && part.peer != launch.comm->rank)
        return 0;
    return part.kind == REDUCE_SCATTER ? bytes * (size_t)launch.comm->n_ranks : bytes;
}

/* The ranks' data in a block of `bytes` at `offset`, added; not in rank order: who relies on it is
 * to be seen. */
std::vector<unsigned char> sum_of(const launch_t &launch, const call_t &call, size_t offset,
                                  size_t bytes) {
    const meeting_t &meeting = launch.comm->meeting;
    size_t last = call.posts.size() - 1;
    const unsigned char *from = meeting.data_of((int)last, call.posts[last]) + offset;
    std::vector<unsigned char> sum(from, from + bytes);
    for (size_t rank = 0; rank < last; rank++)
        add(sum, meeting.data_of((int)rank, call.posts[rank]) + offset, call.part.type);
    return sum;
}

/* A collective whose data is all there: this rank's result. */
void take_result(const launch_t &launch, const call_t &call) {
    const meeting_t &meeting = launch.comm->meeting;
    const part_t &part = call.part;
    size_t bytes = part.count * size_of(part.type);
    char *recv = (char *)call.recv;
    if (part.kind == ALL_GATHER)
        for (size_t rank = 0; rank < call.posts.size(); rank++)
            put(launch, recv + rank * bytes, meeting.data_of((int)rank, call.posts[rank]), bytes);
    else if (part.kind == REDUCE_SCATTER)
        put(launch, recv, sum_of(launch, call, (size_t)launch.comm->rank * bytes, bytes).data(),
            bytes);
    else if (part.kind == ALL_REDUCE)
        put(launch, recv, sum_of(launch, call, 0, bytes).data(), bytes);
    else
        put(launch, recv, meeting.data_of(part.peer, call.posts[(size_t)part.peer]), bytes);
}

/* ---- counterparts ---- */

/* Whether all ranks are in the same collective; one that is not where rank 0 is reports it. */
bool fits(const launch_t &launch, const call_t &call) {
    const part_t &first = launch.comm->meeting.part_of(0, call.posts[0]);
    bool all_fit = true;
    for (int rank = 1; rank < launch.comm->n_ranks; rank++) {
        const part_t &part = launch.comm->meeting.part_of(rank, call.posts[(size_t)rank]);
        if (part.kind == first.kind && part.count == first.count && part.type == first.type &&
            part.peer == first.peer)
            continue;
        all_fit = false;
        if (rank == launch.comm->rank)
            misuse("rank %d is in %s of %zu elements of type %d, rank 0 in %s of %zu of type %d",
                   rank, kind_names[part.kind], part.count, part.type, kind_names[first.kind],
                   first.count, first.type);
    }
    return all_fit;
}

/* Go on with a collective, as far as the other ranks are. False: it is where it was. */
bool advance_collective(launch_t &launch, call_t &call) {
    meeting_t &meeting = launch.comm->meeting;
    int n_ranks = launch.comm->n_ranks;
    std::vector<int> posts;
    if (call.stage == call_t::GIVEN) {
        for (int rank = 0; rank < n_ranks; rank++)
            if (!meeting.is_given(rank, call.posts[(size_t)rank]))
                return false;
        if (fits(launch, call))
            take_result(launch, call);
        for (int rank = 0; rank < n_ranks; rank++)
            meeting.take(rank, call.posts[(size_t)rank]);
        call.stage = call_t::DONE;
        return true;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        posts.push_back(meeting.find(rank, call.part.kind, 0, call.part.number));
        if (posts.back() < 0)
            return false;
    }
    call.posts = posts;
    fetch(launch, call.send, sent_bytes(launch, call.part),
          meeting.data_of(launch.comm->rank, call.post));
    meeting.give(call.post, n_ranks);
    call.stage = call_t::GIVEN;
    return true;
}

/* The peer's receive has come: give what it wants. */
void give_to_peer(launch_t &launch, call_t &call, int found) {
    meeting_t &meeting = launch.comm->meeting;
    const part_t &send = call.part, &recv = meeting.part_of(send.peer, found);
    if (send.count != recv.count || send.type != recv.type)
        misuse("ncclSend of %zu elements of type %d from rank %d meets ncclRecv of %zu of type %d "
               "on rank %d",
               send.count, send.type, launch.comm->rank, recv.count, recv.type, send.peer);
    fetch(launch, call.send, std::min(send.count, recv.count) * size_of(send.type),
          meeting.data_of(launch.comm->rank, call.post));
    meeting.give(call.post, 1);
}

void take_from_peer(launch_t &launch, call_t &call, int found) {
    meeting_t &meeting = launch.comm->meeting;
    const part_t &recv = call.part, &send = meeting.part_of(recv.peer, found);
    put(launch, call.recv, meeting.data_of(recv.peer, found),
        std::min(send.count, recv.count) * size_of(recv.type));
    meeting.take(recv.peer, found);
    meeting.withdraw(call.post);
}

bool advance_pair(launch_t &launch, call_t &call) {
    meeting_t &meeting = launch.comm->meeting;
    bool is_send = call.part.kind == SEND;
    int found =
        meeting.find(call.part.peer, is_send ? RECV : SEND, launch.comm->rank, call.part.number);
    if (found < 0 || (!is_send && !meeting.is_given(call.part.peer, found)))
        return false;
    if (is_send)
        give_to_peer(launch, call, found);
    else
        take_from_peer(launch, call, found);
    call.stage = call_t::DONE;
    return true;
}

bool is_done(const launch_t &launch) {
    return launch.is_aborted ||
           std::all_of(launch.calls.begin(), launch.calls.end(),
                       [](const call_t &call) { return call.stage == call_t::DONE; });
}

/* The launch is at the head of its stream: whether it lets the stream pass. */
bool is_open(const std::shared_ptr<launch_t> &launch) {
    bool has_changed = false;
    for (call_t &call : launch->calls) {
        if (launch->is_aborted || call.stage == call_t::DONE)
            continue;
        if (call.stage == call_t::QUEUED) {
            call.post = launch->comm->meeting.post(call.part);
            call.stage = call_t::POSTED;
            has_changed = true;
        }
        has_changed |= call.part.kind >= SEND ? advance_pair(*launch, call)
                                              : advance_collective(*launch, call);
    }
    if (has_changed)
        note_change();
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

ncclResult_t queue_call(ncclComm_t comm, cudaStream_t stream, call_t call) {
    std::lock_guard<std::mutex> lock(mutex);
    part_t &part = call.part;
    if (next_failure != 0)
        return (ncclResult_t)std::exchange(next_failure, 0);
    if (int failure = failure_to_return(kind_names[part.kind]))
        return (ncclResult_t)failure;
    if (!is_comm(comm, kind_names[part.kind]))
        return ncclInvalidArgument;
    if (comm->n_polls > 0 || !comm->meeting.are_all_here() || comm->is_finalized) {
        misuse("%s on rank %d, whose communicator is %s", kind_names[part.kind], comm->rank,
               comm->is_finalized ? "finalized" : "in progress");
        return ncclInvalidUsage;
    }
    if (size_of(part.type) == 0 || part.peer < 0 || part.peer >= comm->n_ranks ||
        device_of(stream) != comm->device)
        return ncclInvalidArgument;
    part.number =
        part.kind >= SEND ? comm->n_paired[{part.kind, part.peer}]++ : comm->n_collectives++;
    launch_of(comm, stream).calls.push_back(call);
    if (group_depth == 0)
        end_group();
    return ncclInProgress;
}

/* Streams have to go on by themselves where another process waits for what they hold. */
void note_strangers() {
    set_streams_run_alone(std::any_of(nccl.comms.begin(), nccl.comms.end(), [](ncclComm_t comm) {
        return comm->meeting.has_strangers();
    }));
}

void remove(ncclComm_t comm) {
    nccl.comms.erase(std::find(nccl.comms.begin(), nccl.comms.end(), comm));
    delete comm;
    note_strangers();
    note_change();
}

} // namespace

size_t n_live_comms() {
    return nccl.comms.size();
}

} // namespace emu

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
    std::string name;
    memset(id, 0, sizeof(*id));
    if (!meeting_t::make(name))
        return ncclSystemError;
    strncpy(id->internal, name.c_str(), sizeof(id->internal) - 1);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    ENTER;
    id.internal[sizeof(id.internal) - 1] = '\0';
    auto comm = std::make_unique<ncclComm>();
    if (config == NULL || config->size != sizeof(*config) || config->magic != 0xcafebeef ||
        config->blocking != 0 || !comm->meeting.open(id.internal) ||
        !comm->meeting.join(rank, n_ranks, current_device())) {
        misuse("ncclCommInitRankConfig: rank %d of %d, unique id \"%s\", or a bad configuration",
               rank, n_ranks, id.internal);
        return ncclInvalidArgument;
    }
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    comm->device = current_device();
    nccl.comms.push_back(*comm_p = comm.release());
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
    else if (comm->meeting.has_refused())
        *error = ncclInvalidUsage;
    else if (nccl.is_stalled || !comm->meeting.are_all_here())
        *error = ncclInProgress;
    else if (comm->n_polls > 0 && --comm->n_polls > 0)
        *error = ncclInProgress;
    else
        *error = ncclSuccess;
    if (*error == ncclSuccess) {
        note_strangers();
        settle(comm);
    }
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
    return queue_call(comm, stream, {{ALL_GATHER, 0, 0, count, type}, send, recv});
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    return queue_call(comm, stream, {{REDUCE_SCATTER, 0, 0, count, type}, send, recv});
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    return queue_call(comm, stream, {{ALL_REDUCE, 0, 0, count, type}, send, recv});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return queue_call(comm, stream, {{BROADCAST, root, 0, count, type}, send, recv});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    return queue_call(comm, stream, {{SEND, peer, 0, count, type}, send, NULL});
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return queue_call(comm, stream, {{RECV, peer, 0, count, type}, NULL, recv});
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
