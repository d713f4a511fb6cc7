/*
 * Who may be a rank: a secret, how it is read, and what happens to those who do not know it, to
 * frames that are changed, repeated, left out or sent back on their way, and to crowds at the door.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/comm/members.h"
#include "zero/comm/peer_internal.h"

static const zr_secret_t first_secret = {.is_given = true, .key = "first"};
static const zr_secret_t other_secret = {.is_given = true, .key = "other"};

/* ---- how it is read -------------------------------------------------------------------------- */

static char said[1024];

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank;
    snprintf(said, sizeof(said), "%s", message);
}

static zr_status_t read_file(const char *bytes, size_t n_bytes, mode_t mode, zr_secret_t *secret) {
    char path[] = "/tmp/zero-secret-XXXXXX";
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING};
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    zr_status_t status = zr_secret_read(&log, path, secret);
    unlink(path);
    return status;
}

TEST(files) {
    static const char text[] = "sixteen bytes it";
    zr_secret_t plain = {0}, line = {0}, changed = {0}, none = {0};
    assert_ok(read_file(text, 16, 0600, &plain));
    assert_ok(read_file("sixteen bytes it\r\n", 18, 0440, &line));
    assert_ok(read_file("sixteen bytes iT", 16, 0600, &changed));
    assert_true(plain.is_given && memcmp(&plain, &line, sizeof(plain)) == 0);
    assert_true(memcmp(&plain, &changed, sizeof(plain)) != 0);
    assert_null(memmem(&plain, sizeof(plain), text, 8)); /* it is nowhere as it was given */
    static const mode_t open_modes[] = {0644, 0604, 0602, 0601, 0620};
    for (size_t i = 0; i < N_OF(open_modes); i++) {
        assert_int_equal(read_file(text, 16, open_modes[i], &none), ZR_ERR_ARGUMENT);
        assert_has(said, "other users may read or change this secret");
        assert_has(said, "chmod 600 /tmp/zero-secret-");
    }
    assert_int_equal(read_file(text, 15, 0600, &none), ZR_ERR_ARGUMENT);
    assert_has(said, "the secret has 15 bytes; 16 to 4096 are required");
    assert_int_equal(read_file("", 0, 0600, &none), ZR_ERR_ARGUMENT);
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING};
    assert_int_equal(zr_secret_read(&log, "/tmp/no/such/file", &none), ZR_ERR_IO);
    assert_false(none.is_given);
}

static bool is_in_file(const char *path, const char *text) {
    static char bytes[1 << 20];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, bytes, sizeof(bytes)) : -1;
    assert_true(n > 0);
    close(fd);
    return memmem(bytes, (size_t)n, text, strlen(text)) != NULL;
}

static int see_environment(void) {
    zr_launch_t launch, again;
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING};
    bool is_launched = false;
    if (!is_in_file("/proc/self/environ", "not for everybody") ||
        zr_launch_from_environment(&log, &launch, &is_launched) != ZR_OK || !is_launched ||
        !launch.secret.is_given || getenv("ZR_COMM_SECRET") != NULL ||
        is_in_file("/proc/self/environ", "not for everybody"))
        return 1;
    /* A program that finds its ranks once more has it still. */
    return zr_launch_from_environment(&log, &again, &is_launched) != ZR_OK ||
           memcmp(&again.secret, &launch.secret, sizeof(launch.secret)) != 0;
}

/* What the environment has is read once, by a process that was started with it, and gone then. */
TEST(environment) {
    if (getenv("ZR_TEST_IN_ENVIRONMENT") != NULL)
        exit(see_environment());
    assert_int_equal(
        system("ZR_TEST_IN_ENVIRONMENT=1 WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost "
               "MASTER_PORT=29500 ZR_COMM_SECRET='this is not for everybody' /proc/$PPID/exe "
               "environment"),
        0);
}

/* ---- who is let in --------------------------------------------------------------------------- */

static void start_with(member_t *member, const zr_secret_t *secret, int rank, int n_ranks,
                       int port) {
    members_secret = *secret;
    member_start(member, rank, n_ranks, port, LONG_MS);
    members_secret = (zr_secret_t){.is_given = false};
}

TEST(ranks_that_know_it_talk) {
    member_t members[3];
    talk_t talks[3];
    pthread_t threads[3];
    int port = free_port();
    for (int i = 2; i >= 0; i--)
        start_with(&members[i], &first_secret, i, 3, port);
    for (int i = 0; i < 3; i++)
        member_finish(&members[i], ZR_OK);
    for (int i = 0; i < 3; i++) {
        talks[i].member = &members[i];
        assert_int_equal(pthread_create(&threads[i], NULL, talk_main, &talks[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_true(talks[i].is_right);
    }
    members_leave(members, 3);
}

static int port_without(const char *digits) {
    char text[16];
    int port;
    do {
        port = free_port();
        snprintf(text, sizeof(text), "%d", port);
    } while (strstr(text, digits) != NULL);
    return port;
}

/* Who does not know it is told nothing, ends nothing, and knows itself why; the others meet. */
TEST(ranks_that_do_not_know_it) {
    static const zr_secret_t none = {.is_given = false};
    member_t members[2], stranger;
    int port = port_without("78"); /* which messages name */
    start_with(&members[0], &first_secret, 0, 2, port);
    start_with(&stranger, &other_secret, 1, 2, port);
    member_finish(&stranger, ZR_ERR_COMM);
    assert_true(member_has_logged(&stranger, "or does it have another secret?"));
    start_with(&stranger, &none, 1, 2, port);
    member_finish(&stranger, ZR_ERR_COMM);
    assert_true(member_has_logged(&stranger, "it requires a secret, but this rank has none"));
    start_with(&stranger, &other_secret, 77, 78, port); /* no word about its number */
    member_finish(&stranger, ZR_ERR_COMM);
    assert_false(member_has_logged(&stranger, "78"));
    assert_true(member_has_logged(&members[0], "does not know the secret"));
    start_with(&members[1], &first_secret, 1, 2, port);
    member_finish(&members[1], ZR_OK);
    member_finish(&members[0], ZR_OK);
    members_leave(members, 2);
    start_with(&members[0], &none, 0, 2, port);
    start_with(&stranger, &first_secret, 1, 2, port);
    member_finish(&stranger, ZR_ERR_COMM);
    assert_true(member_has_logged(&stranger, "it has no secret, but this rank has one"));
    start_with(&members[1], &none, 1, 2, port);
    member_finish(&members[1], ZR_OK);
    member_finish(&members[0], ZR_OK);
    members_leave(members, 2);
}

/* ---- connections by hand, with the secret ---------------------------------------------------- */

/* A frame as it goes over the wire. */
typedef struct packet {
    char bytes[4096];
    size_t n_bytes;
} packet_t;

static packet_t pack(zr_seal_t *seal, uint32_t kind, const void *data, size_t length) {
    packet_t packet;
    zr_frame_t frame = {.kind = kind};
    const zr_wire_part_t parts[2] = {{data, length}};
    packet.n_bytes = zr_wire_put(seal, &frame, parts, packet.bytes);
    return packet;
}

static void put(int fd, const packet_t *packet) {
    assert_int_equal(send(fd, packet->bytes, packet->n_bytes, MSG_NOSIGNAL), packet->n_bytes);
}

/* Rank 1 says hello. @return the connection; hello_p: what was sent */
static int greet(int port, int n_ranks, const zr_secret_t *secret, zr_seal_t *seal_p,
                 packet_t *hello_p) {
    zr_hello_t hello = {.rank = 1, .n_ranks = n_ranks};
    char why[ZR_PEER_WHY_BYTES];
    int fd = connect_to(port);
    zr_challenge_t challenge = await_challenge(fd);
    assert_true(challenge.has_secret == 1);
    assert_true(zr_wire_answer(seal_p, secret, &challenge, &hello, why));
    *hello_p = pack(seal_p, ZR_FRAME_HELLO, &hello, sizeof(hello));
    put(fd, hello_p);
    return fd;
}

/* The next frame that is sealed. */
static zr_frame_t take_sealed(int fd, zr_seal_t *seal, packet_t *packet) {
    zr_frame_t frame;
    assert_int_equal(receive_all(fd, packet->bytes, sizeof(frame), INT64_MAX), 0);
    memcpy(&frame, packet->bytes, sizeof(frame));
    packet->n_bytes = sizeof(frame) + frame.length + ZR_SEAL_BYTES;
    assert_true(packet->n_bytes <= sizeof(packet->bytes));
    assert_int_equal(
        receive_all(fd, packet->bytes + sizeof(frame), frame.length + ZR_SEAL_BYTES, INT64_MAX), 0);
    assert_true(zr_seal_is_right(seal, packet->bytes, sizeof(frame) + frame.length));
    seal->n_received++;
    return frame;
}

static bool is_silent_until_closed(int fd) {
    char byte;
    return receive_all(fd, &byte, 1, LONG_MS) == ECONNRESET;
}

/* What an eavesdropper has recorded is worth nothing; nor is anything said to who has not proved
 * that it knows the secret, whatever it says it is. */
TEST(recorded_greetings) {
    member_t members[3];
    zr_seal_t seal;
    packet_t hello, answer;
    int port = free_port();
    start_with(&members[0], &first_secret, 0, 3, port);
    int fd = greet(port, 3, &first_secret, &seal, &hello);
    assert_int_equal(take_sealed(fd, &seal, &answer).kind, ZR_FRAME_ALIVE);
    int again = connect_to(port);
    (void)await_challenge(again);
    put(again, &hello);
    assert_true(is_silent_until_closed(again));
    close(again);
    again = greet(port, 3, &other_secret, &seal, &hello);
    assert_true(is_silent_until_closed(again));
    close(again);
    close(fd); /* it may come again */
    start_with(&members[1], &first_secret, 1, 3, port);
    start_with(&members[2], &first_secret, 2, 3, port);
    for (int i = 0; i < 3; i++)
        member_finish(&members[i], ZR_OK);
    members_leave(members, 3);
}

typedef enum harm { NOTHING, REPEATED, SWAPPED, LEFT_OUT, CHANGED, BARE, SENT_BACK, CUT } harm_t;

/* Rank 1 of 2 is by hand, and what it sends comes otherwise than it was sent. */
static void expect_harm(harm_t harm, const char *words) {
    member_t member;
    zr_seal_t seal, none = {.tag_bytes = 0};
    packet_t hello, from;
    zr_frame_t frame;
    int port = free_port();
    start_with(&member, &first_secret, 0, 2, port);
    int fd = greet(port, 2, &first_secret, &seal, &hello);
    do
        frame = take_sealed(fd, &seal, &from);
    while (frame.kind != ZR_FRAME_WELCOME);
    member_finish(&member, ZR_OK);
    zr_post_t post = make_post(1, "x", 0);
    packet_t one = pack(&seal, ZR_FRAME_ALIVE, NULL, 0);
    packet_t two = pack(&seal, ZR_FRAME_POST, &post, sizeof(post));
    packet_t bare = pack(&none, ZR_FRAME_POST, &post, sizeof(post));
    two.bytes[100] ^= harm == CHANGED;
    two.n_bytes -= harm == CUT ? 9 : 0;
    while (harm == SENT_BACK && frame.kind != ZR_FRAME_ALIVE)
        frame = take_sealed(fd, &seal, &from);
    if (harm != SWAPPED && harm != LEFT_OUT)
        put(fd, harm == SENT_BACK ? &from : &one);
    put(fd, harm == REPEATED ? &one : harm == BARE ? &bare : &two);
    if (harm == SWAPPED)
        put(fd, &one);
    if (harm == CUT || harm == BARE) /* of which the rest is awaited */
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
    if (harm == NOTHING) {
        int all[2];
        assert_ok(member.control->backend->arrive(member.control, &post, all));
    } else {
        member_expect_end(&member, words);
    }
    close(fd);
    members_leave(&member, 1);
}

TEST(frames_that_are_harmed) {
    static const char wrong[] =
        "rank 1 sent data that is not a message, and was disconnected: a frame that is not "
        "authenticated with the secret, or is out of order";
    expect_harm(NOTHING, "");
    for (harm_t harm = REPEATED; harm <= CHANGED; harm++)
        expect_harm(harm, wrong);
    expect_harm(SENT_BACK, wrong);
    expect_harm(BARE, "rank 1 is gone: its connection has ended");
    expect_harm(CUT, "rank 1 is gone: its connection has ended");
}

/* A program at rank 0's port that does not know the secret: it asks, and cannot answer. */
typedef struct impostor {
    int listener;
    const zr_secret_t *secret; /* that it has */
    bool says_none;            /* that there is one */
} impostor_t;

static void *impostor_main(void *argument) {
    const impostor_t *self = argument;
    zr_challenge_t challenge = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION};
    struct pollfd ready = {.fd = self->listener, .events = POLLIN};
    char heard[sizeof(zr_frame_t) + sizeof(zr_hello_t) + ZR_SEAL_BYTES];
    zr_hello_t hello;
    zr_seal_t seal = zr_seal_begin(self->secret);
    challenge.has_secret = !self->says_none;
    (void)poll(&ready, 1, LONG_MS);
    int fd = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC);
    (void)send_frame(fd, ZR_FRAME_CHALLENGE, &challenge, sizeof(challenge));
    if (receive_all(fd, heard, sizeof(heard), LONG_MS) == 0) {
        memcpy(&hello, heard + sizeof(zr_frame_t), sizeof(hello));
        zr_seal_make_keys(&seal, self->secret, true, challenge.nonce, hello.nonce);
        (void)zr_wire_send(fd, &seal, ZR_FRAME_WELCOME, 0, NULL, 0);
        (void)is_cut_off(fd);
    }
    close(fd);
    return NULL;
}

TEST(impostors_at_rank_0s_port) {
    static const struct {
        const zr_secret_t *secret;
        bool says_none;
        const char *words;
    } cases[] = {
        {&other_secret, false, "it is not authenticated with the secret, or out of order"},
        {&other_secret, true, "it has no secret, but this rank has one"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        impostor_t impostor = {.secret = cases[i].secret, .says_none = cases[i].says_none};
        pthread_t thread;
        member_t member;
        int port = 0;
        assert_int_equal(zr_wire_listen("", 0, &impostor.listener, &port), 0);
        assert_int_equal(pthread_create(&thread, NULL, impostor_main, &impostor), 0);
        start_with(&member, &first_secret, 1, 2, port);
        member_finish(&member, ZR_ERR_COMM);
        assert_true(member_has_logged(&member, cases[i].words));
        pthread_join(thread, NULL);
        close(impostor.listener);
    }
}

/* ---- crowds ---------------------------------------------------------------------------------- */

enum { N_GARBAGE = 10000, N_SILENT = 300 };

static int count(const char *text, const char *words) {
    int n = 0;
    for (; (text = strstr(text, words)) != NULL; text++)
        n++;
    return n;
}

/* Ten thousand that send anything, of which some look like frames, some go without a word and some
 * stay: no rank is kept out, and the log says it a few times. */
TEST(ten_thousand_clients) {
    static const zr_secret_t secrets[] = {{.is_given = false}, {.is_given = true, .key = "first"}};
    static int silent[N_SILENT];
    for (size_t s = 0; s < N_OF(secrets); s++) {
        member_t members[3];
        uint64_t bits = 7 + s;
        int port = free_port();
        start_with(&members[0], &secrets[s], 0, 3, port);
        for (int i = 0; i < N_SILENT; i++)
            silent[i] = connect_to(port);
        start_with(&members[1], &secrets[s], 1, 3, port);
        for (int i = 0; i < N_GARBAGE / 2; i++) {
            union {
                char bytes[256];
                zr_frame_t frame;
            } noise;
            for (size_t k = 0; k < sizeof(noise); k++)
                noise.bytes[k] =
                    (char)((bits = bits * 6364136223846793005u + 1442695040888963407u) >> 56);
            if (i % 3 == 0)
                noise.frame = (zr_frame_t){.kind = 1 + (uint32_t)i % 12,
                                           .length = i % 2 != 0 ? sizeof(zr_hello_t) : 0};
            int fd = connect_to(port);
            (void)!send(fd, noise.bytes, (size_t)(bits >> 33) % sizeof(noise), MSG_NOSIGNAL);
            close(fd);
        }
        start_with(&members[2], &secrets[s], 2, 3, port);
        for (int i = 0; i < 3; i++)
            member_finish(&members[i], ZR_OK);
        for (int i = 0; i < N_SILENT; i++)
            close(silent[i]);
        assert_in_range(count(members[0].log, "is not from a rank of this run"), 1, 5);
        assert_int_equal(count(members[0].log, "further ones are not reported"), 1);
        members_leave(members, 3);
    }
}

/* ---- words of others ------------------------------------------------------------------------- */

/* What a peer says cannot make a terminal do things, or look like another message. */
TEST(words_without_control_characters) {
    static const char bad[] = "up\033[2Jdown\nnext\302\233line\177 \303\251";
    char text[64], why[ZR_PEER_WHY_BYTES];
    snprintf(text, sizeof(text), "%s", bad);
    zr_peer_clean(text, sizeof(text));
    assert_string_equal(text, "up?[2Jdown?next??line? \303\251");
    memset(text, 'x', sizeof(text));
    zr_peer_clean(text, sizeof(text));
    assert_int_equal(strlen(text), sizeof(text) - 1);
    zr_post_t post = make_post(1, bad, 0);
    assert_true(zr_peer_check_post(&post, 2, why)); /* who posts has cleaned it */
    snprintf(post.tensor, sizeof(post.tensor), "%s", bad);
    assert_false(zr_peer_check_post(&post, 2, why));
    assert_string_equal(why, "a tensor's name with a control character");
    zr_end_t end = {.whose = -1, .reason = "a\rb"};
    assert_false(zr_peer_check_end(&end, 2, why));
    member_t member;
    zr_hello_t hello = {
        .magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION, .rank = 1, .n_ranks = 2};
    int port = free_port();
    member_start(&member, 0, 2, port, LONG_MS);
    int fd = connect_to(port);
    (void)await_challenge(fd);
    assert_int_equal(send_frame(fd, ZR_FRAME_HELLO, &hello, sizeof(hello)), 0);
    member_finish(&member, ZR_OK);
    assert_int_equal(send_frame(fd, ZR_FRAME_KILL, bad, sizeof(bad)), 0);
    member_expect_end(&member, "up?[2Jdown?next??line? \303\251");
    close(fd);
    members_leave(&member, 1);
}

/* ---- where it listens ------------------------------------------------------------------------ */

static bool is_reached(const char *host, int port) {
    const char *detail;
    int fd = -1;
    if (zr_wire_connect(host, port, 0, &fd, &detail) != 0)
        return false;
    close(fd);
    return true;
}

TEST(addresses) {
    char address[ZR_ADDRESS_BYTES];
    int listener, port = 0;
    zr_wire_own_address("127.0.0.1", address);
    assert_string_equal(address, "127.0.0.1");
    zr_wire_own_address("no such host", address);
    assert_string_equal(address, "");
    zr_wire_own_address("localhost", address);
    assert_true(strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0);
    zr_wire_own_address("0.0.0.0", address); /* leads to the loopback, and does not say so */
    assert_string_equal(address, "");
    assert_int_equal(zr_wire_listen("127.0.0.7", 0, &listener, &port), 0);
    assert_true(is_reached("127.0.0.7", port) && !is_reached("127.0.0.1", port));
    close(listener);
    assert_int_equal(zr_wire_listen("", 0, &listener, &port), 0);
    assert_true(is_reached("127.0.0.7", port) && is_reached("127.0.0.1", port));
    close(listener);
    assert_int_equal(zr_wire_listen("192.0.2.1", 0, &listener, &port), EADDRNOTAVAIL);
    assert_int_equal(zr_wire_listen("localhost", 0, &listener, &port), EADDRNOTAVAIL);
    member_t member = {.launch = {.host = "127.0.0.1", .rank = 0, .n_ranks = 2, .port = 1},
                       .timeout_ms = LONG_MS};
    member.launch.port = free_port();
    snprintf(member.launch.bind, sizeof(member.launch.bind), "192.0.2.1");
    member_join(&member);
    assert_int_equal(member.status, ZR_ERR_COMM);
    assert_true(member_has_logged(&member, "give an address of this machine with --comm-bind"));
}
