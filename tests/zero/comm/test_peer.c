/*
 * The checks of what a peer says: what can be is accepted, up to the limits. That of bytes at
 * random nothing is accepted that could not be used is tests/fuzz/fuzz_peer.c; how each field of
 * each structure is refused is tested where ranks meet with it: test_changed_peer.c,
 * test_control_tcp.c.
 */
#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "zero/comm/peer_internal.h"

static const int origins[] = {7, 3, 1000};

static char why[ZR_PEER_WHY_BYTES];

TEST(what_can_be) {
    const zr_peer_t peer = {.rank = 0, .origin_rank = 7, .machine_ranks = 2};
    zr_introduction_t shown = {.card = {.machine = 3, .pid = 1, .origin_rank = 7, .n_threads = 1},
                               .page = {.pid = 1},
                               .place = {.port = 65535, .address = "fe80::1%eth0.1"}};
    const zr_peer_call_t call = {.send_bytes = 400,
                                 .recv_bytes = 800,
                                 .elem_bytes = 4,
                                 .file_bytes = 1200,
                                 .has_file = true};
    const zr_peer_tensors_t tensors = {.send_place = 800, .recv_place = 400, .file_bytes = 1200};
    const zr_peer_tensors_t nowhere = {.send_place = ZR_NOWHERE, .recv_place = ZR_NOWHERE};
    const zr_peer_call_t fileless = {.send_bytes = 400, .recv_bytes = 800, .elem_bytes = 4};
    assert_true(zr_peer_check_introduction(&shown, &peer, why));
    shown.card.n_threads = 1024;
    shown.card.pid = shown.page.pid = INT32_MAX;
    memset(&shown.place, 0, sizeof(shown.place));
    assert_true(zr_peer_check_introduction(&shown, &peer, why));
    assert_true(zr_peer_check_tensors(&tensors, &call, why));
    assert_true(zr_peer_check_tensors(&nowhere, &fileless, why));
    for (int status = ZR_ERR_FORMAT; status <= ZR_OK; status++)
        assert_true(zr_peer_check_status(status, why));
    const zr_peer_question_t question = {
        .rank = 1, .n_ranks = 3, .origins = origins, .is_split = true};
    const zr_outcome_t outcome = {.group = 1, .rank = 2, .n_ranks = 3};
    const int32_t members[] = {1000, 7, 3};
    assert_true(zr_peer_check_outcome(&outcome, members, sizeof(members), &question, why));
}

/* A kind in its direction, with so many bytes, and with none fewer or more. */
TEST(frames) {
    static const struct {
        uint32_t kind;
        bool is_to_coordinator;
        uint32_t least, most;
    } right[] = {{ZR_FRAME_HELLO, true, sizeof(zr_hello_t), sizeof(zr_hello_t)},
                 {ZR_FRAME_WELCOME, false, 0, 0},
                 {ZR_FRAME_REFUSED, false, 1, ZR_REASON_BYTES},
                 {ZR_FRAME_POST, true, sizeof(zr_post_t), sizeof(zr_post_t)},
                 {ZR_FRAME_MEET, true, sizeof(int32_t), sizeof(int32_t)},
                 {ZR_FRAME_KILL, true, 1, ZR_REASON_BYTES},
                 {ZR_FRAME_LEAVE, true, 0, 0},
                 {ZR_FRAME_OUTCOME, false, sizeof(zr_outcome_t),
                  sizeof(zr_outcome_t) + 3 * ZR_PAYLOAD_BYTES},
                 {ZR_FRAME_END, false, sizeof(zr_end_t), sizeof(zr_end_t)},
                 {ZR_FRAME_APART, true, 0, 0},
                 {ZR_FRAME_CHALLENGE, false, sizeof(zr_challenge_t), sizeof(zr_challenge_t)},
                 {ZR_FRAME_ALIVE, true, 0, 0},
                 {ZR_FRAME_ALIVE, false, 0, 0}};
    for (size_t i = 0; i < N_OF(right); i++) {
        const uint32_t lengths[] = {right[i].least, right[i].most, right[i].least - 1,
                                    right[i].most + 1};
        for (size_t k = 0; k < N_OF(lengths); k++) {
            zr_frame_t frame = {.kind = right[i].kind, .length = lengths[k]};
            assert_int_equal(zr_peer_check_frame(&frame, right[i].is_to_coordinator, 3, why),
                             k < 2);
            if (right[i].kind != ZR_FRAME_ALIVE)
                assert_false(zr_peer_check_frame(&frame, !right[i].is_to_coordinator, 3, why));
        }
    }
    for (int is_to_coordinator = 0; is_to_coordinator <= 1; is_to_coordinator++) {
        zr_frame_t none = {.kind = 0}, next = {.kind = ZR_FRAME_CHALLENGE + 1};
        assert_false(zr_peer_check_frame(&none, is_to_coordinator, 3, why));
        assert_false(zr_peer_check_frame(&next, is_to_coordinator, 3, why));
    }
}

TEST(place_told_through_mpi) {
    const zr_place_t right = {
        .port = 65535, .n_addresses = 8, .network = "host", .addresses = {"10.0.0.7", "localhost"}};
    zr_place_t place = right;
    static const int ports[] = {0, -1, 65536}, counts[] = {0, -1, 9, 50000000};
    assert_true(zr_peer_check_place(&place, why));
    for (size_t i = 0; i < N_OF(ports); i++) {
        place.port = ports[i];
        assert_false(zr_peer_check_place(&place, why));
        assert_memory_equal(why, "port ", 5);
    }
    for (size_t i = 0; i < N_OF(counts); i++) {
        place = right;
        place.n_addresses = counts[i];
        assert_false(zr_peer_check_place(&place, why));
        assert_memory_equal(why, "number of addresses ", 20);
    }
    place = right;
    memset(place.network, '!', sizeof(place.network));
    assert_false(zr_peer_check_place(&place, why));
    assert_string_equal(why, "the name of a network without a terminating zero in 128 bytes");
    place = right;
    memset(place.addresses[7], '1', sizeof(place.addresses[7]));
    assert_false(zr_peer_check_place(&place, why));
    assert_string_equal(why, "an address without a terminating zero in 64 bytes");
}
