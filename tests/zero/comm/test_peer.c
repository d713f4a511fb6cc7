/*
 * The checks of what a peer says: what can be is accepted, up to the limits, and of bytes at random
 * nothing is accepted that could not be used. How each field of each structure is refused is tested
 * where ranks meet with it: test_changed_peer.c, test_control_tcp.c.
 */
#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "zero/comm/peer_internal.h"

enum { N_RANDOM = 200000 };

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
        bool is_to_hub;
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
                 {ZR_FRAME_ALIVE, true, 0, 0},
                 {ZR_FRAME_ALIVE, false, 0, 0}};
    for (size_t i = 0; i < N_OF(right); i++) {
        const uint32_t lengths[] = {right[i].least, right[i].most, right[i].least - 1,
                                    right[i].most + 1};
        for (size_t k = 0; k < N_OF(lengths); k++) {
            zr_frame_t frame = {.kind = right[i].kind, .length = lengths[k]};
            assert_int_equal(zr_peer_check_frame(&frame, right[i].is_to_hub, 3, why), k < 2);
            if (right[i].kind != ZR_FRAME_ALIVE)
                assert_false(zr_peer_check_frame(&frame, !right[i].is_to_hub, 3, why));
        }
    }
    for (int is_to_hub = 0; is_to_hub <= 1; is_to_hub++) {
        zr_frame_t none = {.kind = 0}, next = {.kind = ZR_FRAME_APART + 1};
        assert_false(zr_peer_check_frame(&none, is_to_hub, 3, why));
        assert_false(zr_peer_check_frame(&next, is_to_hub, 3, why));
    }
}

TEST(place_told_through_mpi) {
    const zr_mpi_place_t right = {
        .port = 65535, .n_addresses = 8, .network = "host", .addresses = {"10.0.0.7", "localhost"}};
    zr_mpi_place_t place = right;
    static const int ports[] = {0, -1, 65536}, counts[] = {0, -1, 9, 50000000};
    assert_true(zr_peer_check_mpi_place(&place, why));
    for (size_t i = 0; i < N_OF(ports); i++) {
        place.port = ports[i];
        assert_false(zr_peer_check_mpi_place(&place, why));
        assert_memory_equal(why, "port ", 5);
    }
    for (size_t i = 0; i < N_OF(counts); i++) {
        place = right;
        place.n_addresses = counts[i];
        assert_false(zr_peer_check_mpi_place(&place, why));
        assert_memory_equal(why, "number of addresses ", 20);
    }
    place = right;
    memset(place.network, '!', sizeof(place.network));
    assert_false(zr_peer_check_mpi_place(&place, why));
    assert_string_equal(why, "the name of a network without an end in 128 bytes");
    place = right;
    memset(place.addresses[7], '1', sizeof(place.addresses[7]));
    assert_false(zr_peer_check_mpi_place(&place, why));
    assert_string_equal(why, "an address without an end in 64 bytes");
}

/* ---- bytes at random ------------------------------------------------------------------------- */

static uint64_t seed = 1;

/* Mostly small numbers, of either sign, and what has the most bits. */
static int64_t random_number(void) {
    static const int64_t special[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, UINT32_MAX, -1};
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    size_t kind = (size_t)(seed >> 60);
    if (kind < N_OF(special))
        return special[kind];
    return (int64_t)(seed >> 33) % (kind < 12 ? 16 : 2048) - (kind < 8 ? 4 : 0);
}

/* What is right, with some of its bytes at another value, in memory of exactly its size. */
static void *vary(const void *right, size_t size_bytes) {
    char *varied = malloc(size_bytes);
    assert_non_null(varied);
    memcpy(varied, right, size_bytes);
    for (int64_t n = random_number() & 3; n >= 0; n--) {
        int64_t number = random_number();
        size_t length = (size_t)1 << (random_number() & 3);
        size_t at = (size_t)random_number() % size_bytes / length * length;
        memcpy(varied + at, &number, length <= size_bytes - at ? length : size_bytes - at);
    }
    return varied;
}

TEST(tensors_at_random) {
    const zr_peer_tensors_t right = {.send_place = 800, .recv_place = 400, .file_bytes = 1200};
    const zr_peer_call_t call = {
        .send_bytes = 400, .recv_bytes = 800, .elem_bytes = 4, .file_bytes = 800, .has_file = true};
    int n_accepted = 0;
    for (int i = 0; i < N_RANDOM; i++) {
        zr_peer_tensors_t *said = vary(&right, sizeof(right));
        if (zr_peer_check_tensors(said, &call, why)) {
            unsigned __int128 send_end = (unsigned __int128)said->send_place + call.send_bytes;
            unsigned __int128 recv_end = (unsigned __int128)said->recv_place + call.recv_bytes;
            assert_true(said->file_bytes >= call.file_bytes && said->file_bytes <= INT64_MAX);
            assert_true(said->send_place == ZR_NOWHERE ||
                        (send_end <= said->file_bytes && said->send_place % 4 == 0));
            assert_true(said->recv_place == ZR_NOWHERE ||
                        (recv_end <= said->file_bytes && said->recv_place % 4 == 0));
            n_accepted++;
        }
        free(said);
    }
    assert_in_range(n_accepted, 1, N_RANDOM - 1);
}

TEST(outcomes_at_random) {
    struct {
        zr_outcome_t outcome;
        int32_t members[3];
    } right = {.outcome = {.group = 1, .rank = 2, .n_ranks = 3}, .members = {1000, 7, 3}}, *said;
    const zr_peer_question_t question = {
        .rank = 1, .n_ranks = 3, .origins = origins, .is_split = true};
    int n_accepted = 0;
    for (int i = 0; i < N_RANDOM; i++) {
        said = vary(&right, sizeof(right));
        bool is_right = zr_peer_check_outcome(&said->outcome, said->members, sizeof(said->members),
                                              &question, why);
        if (is_right && said->outcome.status == ZR_OK) {
            const int32_t *m = said->members;
            assert_true(said->outcome.group > 0 && said->outcome.n_ranks == 3);
            assert_in_range(said->outcome.rank, 0, 2);
            assert_int_equal(m[said->outcome.rank], origins[1]);
            assert_int_equal(m[0] * m[1] * m[2], 7 * 3 * 1000);
            n_accepted++;
        }
        free(said);
    }
    assert_in_range(n_accepted, 1, N_RANDOM - 1);
}

/* Nothing that is read has more bytes than it says, and what is refused has words. */
TEST(others_at_random) {
    const zr_peer_t peer = {.rank = 1, .origin_rank = 7};
    const zr_introduction_t shown = {.card = {.pid = 1, .origin_rank = 7, .n_threads = 1},
                                     .page = {.descriptor = -1}};
    const zr_post_t post = {.sequence = 1, .n_elems = 100, .tensor = "x", .device = "host"};
    const zr_mpi_place_t place = {.port = 1, .n_addresses = 1};
    const zr_end_t end = {.whose = -1};
    int n_accepted = 0;
    for (int i = 0; i < N_RANDOM; i++) {
        zr_introduction_t *introduction = vary(&shown, sizeof(shown));
        zr_post_t *call = vary(&post, sizeof(post));
        zr_mpi_place_t *told = vary(&place, sizeof(place));
        zr_end_t *ended = vary(&end, sizeof(end));
        why[0] = '!';
        bool are_right[] = {zr_peer_check_introduction(introduction, &peer, why),
                            zr_peer_check_post(call, 3, why), zr_peer_check_mpi_place(told, why),
                            zr_peer_check_end(ended, 3, why)};
        if (are_right[0]) {
            assert_true(introduction->card.origin_rank == 7 && introduction->card.pid > 0);
            assert_true(strlen(introduction->place.address) < sizeof(introduction->place.address));
            assert_in_range(introduction->card.n_threads, 1, 1024);
        }
        if (are_right[1]) {
            assert_true(zr_dtype_size((zr_dtype_t)call->dtype) > 0);
            assert_in_range(call->root, 0, 2);
            assert_true(strlen(call->tensor) < sizeof(call->tensor));
        }
        if (are_right[2])
            assert_in_range(told->n_addresses, 1, ZR_MPI_PLACE_ADDRESSES);
        if (are_right[3])
            assert_true(ended->whose < 3);
        for (int k = 0; k < 4; k++)
            n_accepted += are_right[k];
        assert_true(why[0] != '\0' && memchr(why, '\0', sizeof(why)) != NULL);
        free(introduction);
        free(call);
        free(told);
        free(ended);
    }
    assert_in_range(n_accepted, 1, 4 * N_RANDOM - 1);
}
