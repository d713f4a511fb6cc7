/*
 * Ranks that are processes, without data: how they find each other through TCP, what the port does
 * with those that are none, and what the others hear of a rank that ends. What they then agree on
 * is tested by the conformance suite over TCP (tests/emu/).
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/comm/members.h"

/* ---- ranks that end: first, where there are no threads yet where they fork ---- */

/* One of two ranks, as a process that does nothing. */
static pid_t fork_rank(int rank, int port, int timeout_ms) {
    pid_t process = fork();
    if (process != 0)
        return process;
    member_t self = {.launch = {.host = "localhost", .port = port, .rank = rank}};
    self.launch.n_ranks = 2;
    self.launch.start_timeout_ms = LONG_MS;
    self.timeout_ms = timeout_ms;
    member_join(&self);
    for (;;)
        pause();
}

/* A process that is killed is noticed at once, whatever the time limit is. */
TEST(killed_process) {
    for (int victim = 0; victim < 2; victim++) {
        int port = free_port();
        pid_t process = fork_rank(victim, port, LONG_MS);
        member_t member;
        member_start(&member, 1 - victim, 2, port, LONG_MS);
        member_finish(&member, ZR_OK);
        kill(process, SIGKILL);
        member_expect_end(&member,
                          victim == 0 ? "the connection to rank 0 is lost" : "rank 1 is gone");
        waitpid(process, NULL, 0);
        members_leave(&member, 1);
    }
}

/* Where short limits are tested, a busy machine may keep anybody from running for so long. What is
 * not as it should be is tried again with more time, and is wrong when that is long. */
static void note_try(int timeout_ms, int longest_ms, const char *what) {
    if (timeout_ms >= longest_ms)
        fail_msg("with a time limit of %d ms: %s", timeout_ms, what);
    print_message("with a time limit of %d ms: %s; once more\n", timeout_ms, what);
}

/* Whether all of them have come; those that have, leave where not. */
static bool have_all_come(member_t *members, int n_ranks) {
    bool have_come = true;
    for (int i = 0; i < n_ranks; i++) {
        pthread_join(members[i].thread, NULL);
        have_come &= members[i].status == ZR_OK;
    }
    for (int i = 0; i < n_ranks && !have_come; i++)
        if (members[i].status == ZR_OK)
            members_leave(&members[i], 1);
    return have_come;
}

/* A process that is stopped is noticed by its silence, before the time limit. */
static bool notice_stopped_process(int victim, int timeout_ms) {
    int port = free_port();
    char words[128] = "the connection to rank 0 is lost (no answer: its process is stopped";
    pid_t process = fork_rank(victim, port, timeout_ms);
    member_t member;
    if (victim == 1)
        snprintf(words, sizeof(words),
                 "rank 1 has not been heard from for %d ms: its process is stopped",
                 zr_wire_silence_ms(timeout_ms));
    member_start(&member, 1 - victim, 2, port, timeout_ms);
    bool has_come = have_all_come(&member, 1), is_noticed = false;
    if (has_come) {
        kill(process, SIGSTOP);
        const char *reason = member_await_end(&member);
        is_noticed = strstr(reason, words) != NULL;
        snprintf(member.log, sizeof(member.log), "%s", reason);
        members_leave(&member, 1);
    }
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
    if (!is_noticed)
        note_try(timeout_ms, LONG_MS, member.log);
    return is_noticed;
}

TEST(stopped_process) {
    for (int victim = 0; victim < 2; victim++) {
        int timeout_ms = 2000;
        while (!notice_stopped_process(victim, timeout_ms))
            timeout_ms *= 4;
    }
}

static void sleep_ms(int ms) {
    struct timespec moment = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&moment, NULL);
}

/* Two ranks in a process: they compute for long, and one calls before the process is stopped, the
 * other when it goes on. */
static bool talk_when_stopped(int timeout_ms, int ready, int go_on) {
    member_t members[2];
    talk_t talks[2] = {{.member = &members[0]}, {.member = &members[1]}};
    pthread_t thread;
    char byte = 0;
    members_start(members, 2, free_port(), timeout_ms);
    if (!have_all_come(members, 2))
        return false;
    sleep_ms(timeout_ms * 3 / 4);
    if (pthread_create(&thread, NULL, talk_main, &talks[1]) != 0)
        return false;
    sleep_ms(200);
    (void)!write(ready, &byte, 1);
    (void)!read(go_on, &byte, 1);
    (void)talk_main(&talks[0]);
    pthread_join(thread, NULL);
    members_leave(members, 2);
    return talks[0].is_right && talks[1].is_right;
}

static bool talk_after_silence(int timeout_ms, int longest_ms) {
    int ready[2], go_on[2], status = 0;
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go_on), 0);
    pid_t process = fork();
    if (process == 0) {
        close(ready[0]);
        close(go_on[1]);
        _exit(talk_when_stopped(timeout_ms, ready[1], go_on[0]) ? 0 : 1);
    }
    close(ready[1]); /* so that its end is the end of what is read */
    if (read(ready[0], &byte, 1) == 1) {
        kill(process, SIGSTOP);
        sleep_ms(timeout_ms * 5 / 4);
        kill(process, SIGCONT);
        assert_int_equal(write(go_on[1], &byte, 1), 1);
    }
    assert_int_equal(waitpid(process, &status, 0), process);
    close(ready[0]);
    close(go_on[0]);
    close(go_on[1]);
    bool do_talk = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!do_talk)
        note_try(timeout_ms, longest_ms, "the ranks do not talk on");
    return do_talk;
}

/* Ranks that compute for long are there; and a job that is stopped as a whole goes on afterwards,
 * however long that was. */
TEST(long_silence_between_calls) {
    int timeout_ms = 2000, longest_ms = 16 * timeout_ms;
    while (!talk_after_silence(timeout_ms, longest_ms))
        timeout_ms *= 4;
}

/* ---- agreement ---- */

TEST(agreement) {
    for (int n_ranks = 2; n_ranks <= MOST; n_ranks++) {
        member_t members[MOST];
        talk_t talks[MOST];
        pthread_t threads[MOST];
        members_start(members, n_ranks, free_port(), LONG_MS);
        for (int i = 0; i < n_ranks; i++)
            member_finish(&members[i], ZR_OK);
        for (int i = 0; i < n_ranks; i++) {
            talks[i].member = &members[i];
            assert_int_equal(pthread_create(&threads[i], NULL, talk_main, &talks[i]), 0);
        }
        for (int i = 0; i < n_ranks; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < n_ranks; i++)
            assert_true(talks[i].is_right);
        members_leave(members, n_ranks);
    }
}

/* ---- ranks that are missing, too many, or of another run ---- */

/* Ranks 0 and 3 of 5. False: the machine was so busy that rank 3 has not come in time, either. */
static bool miss_ranks(int start_ms) {
    member_t members[MOST];
    int port = free_port();
    member_start_within(&members[0], 0, 5, port, LONG_MS, start_ms);
    member_start_within(&members[3], 3, 5, port, LONG_MS, start_ms);
    member_finish(&members[0], ZR_ERR_COMM);
    member_finish(&members[3], ZR_ERR_COMM);
    if (member_has_logged(&members[0], ": 1, 2, 3, 4"))
        return false;
    char words[128];
    snprintf(words, sizeof(words),
             "after %d ms these ranks of 5 have not come to localhost:%d: 1, 2, 4", start_ms, port);
    assert_true(member_has_logged(&members[0], words));
    assert_true(member_has_logged(&members[3], words));
    return true;
}

TEST(missing_ranks) {
    int start_ms = SHORT_MS;
    while (!miss_ranks(start_ms))
        start_ms *= 4;
}

/* Rank 1 of 3 has come, and gone again. */
static void come_and_go(member_t *members, int port) {
    const zr_hello_t hello = {
        .magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION, .rank = 1, .n_ranks = 3};
    member_start(&members[0], 0, 3, port, LONG_MS);
    int fd = connect_to(port);
    (void)await_challenge(fd);
    assert_int_equal(send_frame(fd, ZR_FRAME_HELLO, &hello, sizeof(hello)), 0);
    await_word(fd); /* it was there */
    close(fd);
}

static const char is_gone[] =
    "rank 1 is gone: its process or connection ended before all ranks had joined localhost:";

/* It may come again. False: the machine was so busy that it has not done so in time. */
static bool come_again(void) {
    member_t members[3];
    int port = free_port();
    come_and_go(members, port);
    member_start(&members[1], 1, 3, port, LONG_MS);
    member_start(&members[2], 2, 3, port, LONG_MS);
    for (int i = 0; i < 3; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < 3; i++) {
        if (members[i].status == ZR_OK)
            continue;
        if (!member_has_logged(&members[0], is_gone))
            fail_msg("rank %d has not come: %s", i, members[i].log);
        return false;
    }
    members_leave(members, 3);
    return true;
}

/* One that was there and is gone is not waited for as long as one that has not come; soon enough,
 * it may come again. */
TEST(ranks_gone_early) {
    enum { MOST_TRIES = 5 };
    member_t members[3];
    int n_tries = 1;
    while (!come_again())
        assert_true(n_tries++ < MOST_TRIES);
    int port = free_port();
    come_and_go(members, port);
    member_start(&members[2], 2, 3, port, LONG_MS);
    for (int i = 0; i < 3; i += 2) {
        member_finish(&members[i], ZR_ERR_COMM);
        assert_true(member_has_logged(&members[i], is_gone));
        assert_true(member_has_logged(&members[i], "missing of 3 ranks: 1"));
    }
}

TEST(no_rank_0) {
    member_t member;
    member_start_within(&member, 1, 2, free_port(), LONG_MS, SHORT_MS);
    member_finish(&member, ZR_ERR_COMM);
    assert_true(member_has_logged(&member, "rank 0 cannot be reached at MASTER_ADDR localhost"));
}

TEST(port_in_use) {
    int listener = -1, port = 0;
    member_t member;
    assert_int_equal(zr_wire_listen("", 0, &listener, &port), 0);
    member_start(&member, 0, 2, port, LONG_MS);
    member_finish(&member, ZR_ERR_COMM);
    close(listener);
    assert_true(member_has_logged(&member, "rank 0 cannot listen at MASTER_PORT"));
}

/* One that does not fit is told why; those that do are not held up by it. */
TEST(ranks_that_do_not_fit) {
    member_t members[3], twice, other_size;
    int port = free_port();
    member_start(&members[0], 0, 3, port, LONG_MS);
    member_start(&other_size, 1, 4, port, LONG_MS);
    member_finish(&other_size, ZR_ERR_COMM);
    assert_true(member_has_logged(&other_size, "rank 1 has WORLD_SIZE 4, rank 0 has 3"));
    /* One of two is refused while the last rank is still awaited. */
    static const char words[] = "rank 2 exists already: two processes have RANK=2";
    member_start(&twice, 2, 3, port, LONG_MS);
    member_start(&members[2], 2, 3, port, LONG_MS);
    while (!member_has_logged(&twice, words) && !member_has_logged(&members[2], words))
        sched_yield();
    member_start(&members[1], 1, 3, port, LONG_MS);
    pthread_join(twice.thread, NULL);
    pthread_join(members[2].thread, NULL);
    assert_true((twice.status == ZR_OK) != (members[2].status == ZR_OK));
    if (twice.status == ZR_OK)
        members[2].control = twice.control;
    member_finish(&members[0], ZR_OK);
    member_finish(&members[1], ZR_OK);
    members_leave(members, 3);
}

/* ---- what is no rank ---- */

TEST(strangers) {
    enum { N_QUIET = 300 };
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    member_t members[2];
    int port = free_port(), quiet[N_QUIET];
    member_start(&members[0], 0, 2, port, LONG_MS);
    int fd = connect_to(port);
    assert_int_equal(send(fd, http, sizeof(http), MSG_NOSIGNAL), sizeof(http));
    assert_true(is_cut_off(fd));
    close(fd);
    uint64_t bits = 7;
    for (int i = 0; i < 50; i++) { /* of any length, also none */
        char noise[700];
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (char)((bits = bits * 6364136223846793005u + 1442695040888963407u) >> 56);
        fd = connect_to(port);
        (void)!send(fd, noise, (size_t)(bits >> 33) % sizeof(noise), MSG_NOSIGNAL);
        close(fd);
    }
    zr_hello_t hello = {.magic = ZR_WIRE_MAGIC + 1, .version = ZR_WIRE_VERSION, .rank = 1};
    hello.n_ranks = 2;
    fd = connect_to(port);
    assert_int_equal(send_frame(fd, ZR_FRAME_HELLO, &hello, sizeof(hello)), 0);
    assert_true(is_cut_off(fd));
    close(fd);
    hello.magic = ZR_WIRE_MAGIC; /* a rank of another version */
    hello.version++;
    fd = connect_to(port);
    (void)await_challenge(fd);
    assert_int_equal(send_frame(fd, ZR_FRAME_HELLO, &hello, sizeof(hello)), 0);
    zr_frame_t frame;
    char text[400] = "";
    assert_int_equal(receive_all(fd, &frame, sizeof(frame), INT64_MAX), 0);
    assert_int_equal(frame.kind, ZR_FRAME_REFUSED);
    assert_true(frame.length < sizeof(text));
    assert_int_equal(receive_all(fd, text, frame.length, INT64_MAX), 0);
    assert_has(text, "version 8 of the protocol");
    close(fd);
    for (int i = 0; i < N_QUIET; i++) /* more than have a place, and silent */
        quiet[i] = connect_to(port);
    member_start(&members[1], 1, 2, port, LONG_MS);
    member_finish(&members[1], ZR_OK);
    member_finish(&members[0], ZR_OK);
    assert_true(member_has_logged(&members[0], "is not from a rank of this run"));
    for (int i = 0; i < N_QUIET; i++)
        close(quiet[i]);
    members_leave(members, 2);
}

/* ---- members that are another program ---- */

/* A member by hand, whose connection can be used against the rules. */
static int join_by_hand(int rank, int n_ranks, int port) {
    zr_hello_t hello = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION, .rank = rank};
    zr_frame_t frame;
    hello.n_ranks = n_ranks;
    int fd = connect_to(port);
    (void)await_challenge(fd);
    assert_int_equal(send_frame(fd, ZR_FRAME_HELLO, &hello, sizeof(hello)), 0);
    assert_int_equal(receive_all(fd, &frame, sizeof(frame), INT64_MAX), 0);
    while (frame.kind == ZR_FRAME_ALIVE)
        assert_int_equal(receive_all(fd, &frame, sizeof(frame), INT64_MAX), 0);
    assert_int_equal(frame.kind, ZR_FRAME_WELCOME);
    return fd;
}

/* Rank 0 of 2, and rank 1 by hand, that sends one frame, kind 0: that ends; what rank 0 hears. */
static void expect_cut_off(uint32_t kind, const void *bytes, size_t length, const char *words) {
    member_t member;
    int port = free_port();
    member_start(&member, 0, 2, port, LONG_MS);
    int fd = join_by_hand(1, 2, port);
    member_finish(&member, ZR_OK);
    if (kind != 0)
        assert_int_equal(send_frame(fd, kind, bytes, length), 0);
    else
        close(fd);
    member_expect_end(&member, words);
    if (kind != 0)
        close(fd);
    members_leave(&member, 1);
}

/* What a member sends that is no message, or its end without a word. */
TEST(members_that_break_the_rules) {
    static const char none[] = "rank 1 sent data that is not a message";
    static const struct {
        uint32_t kind;
        size_t length;
        const char *words;
    } cases[] = {
        {0, 0, "rank 1 is gone: its connection has ended"},
        {ZR_FRAME_POST, 7, none},
        {ZR_FRAME_POST, sizeof(zr_post_t), none},
        {ZR_FRAME_MEET, 5, none},
        {ZR_FRAME_MEET, sizeof(int32_t),
         "rank 1 sent data that is not a message, and was disconnected: st"},
        {ZR_FRAME_LEAVE, 1, none},
        {ZR_FRAME_KILL, 0, none},
        {ZR_FRAME_KILL, ZR_REASON_BYTES + 1, none},
        {77, 0, none},
        {ZR_FRAME_HELLO, sizeof(zr_hello_t), none},
        {ZR_FRAME_KILL, 100, "!!!!"}, /* a reason without a terminating zero */
    };
    char bytes[ZR_WIRE_MOST_TO_HUB + 1];
    memset(bytes, '!', sizeof(bytes));
    for (size_t i = 0; i < N_OF(cases); i++)
        expect_cut_off(cases[i].kind, bytes, cases[i].length, cases[i].words);
}

/* A field of a structure, and what it is changed to: 8 bytes and less, or one byte in each. */
typedef struct field {
    size_t offset, size_bytes;
    int64_t value;
    const char *words;
} field_t;

#define FIELD(type, name) offsetof(type, name), sizeof(((type *)NULL)->name)

static void change(void *bytes, const field_t *field) {
    if (field->size_bytes > sizeof(field->value))
        memset((char *)bytes + field->offset, (int)field->value, field->size_bytes);
    else
        memcpy((char *)bytes + field->offset, &field->value, field->size_bytes);
}

/* A call with one field that cannot be, while others are in it. */
TEST(posts_that_cannot_be) {
    static const field_t fields[] = {
        {FIELD(zr_post_t, sequence), 0,
         "rank 1 sent data that is not a message, and was disconnected: a call without a number"},
        {FIELD(zr_post_t, collective), 7, "disconnected: collective 7; 0 to 6 are allowed"},
        {FIELD(zr_post_t, collective), -1, "disconnected: collective -1"},
        {FIELD(zr_post_t, dtype), 100, "disconnected: dtype 100"},
        {FIELD(zr_post_t, traffic), 2, "disconnected: traffic 2"},
        {FIELD(zr_post_t, root), 2, "disconnected: root 2; 0 to 1 are allowed"},
        {FIELD(zr_post_t, root), -1, "disconnected: root -1"},
        {FIELD(zr_post_t, color), -2, "disconnected: color -2"},
        {FIELD(zr_post_t, payload_bytes), 257, "disconnected: bytes of payload 257"},
        {FIELD(zr_post_t, payload_bytes), 0xFFFFFFFF, "disconnected: bytes of payload 4294967295"},
        {FIELD(zr_post_t, is_agreement), 2, "disconnected: is_agreement 2"},
        {FIELD(zr_post_t, tensor), '!', "disconnected: a tensor's name without a terminating zero"},
        {FIELD(zr_post_t, device), '!', "disconnected: a device's name without a terminating zero"},
    };
    for (size_t i = 0; i < N_OF(fields); i++) {
        zr_post_t post = make_post(1, "x", 0);
        change(&post, &fields[i]);
        expect_cut_off(ZR_FRAME_POST, &post, sizeof(post), fields[i].words);
    }
}

/* A rank that comes to the end of a call where the other begins one, or the other way round: both
 * are named, and nobody is given what was not brought, or waits for ever. */
TEST(ranks_at_other_ends_of_a_call) {
    for (int is_ahead = 0; is_ahead < 2; is_ahead++) {
        member_t member;
        int port = free_port(), all[2] = {0};
        int32_t status = ZR_OK;
        zr_post_t post = make_post(1, "x", 0);
        member_start(&member, 0, 2, port, LONG_MS);
        int fd = join_by_hand(1, 2, port);
        member_finish(&member, ZR_OK);
        zr_control_t *control = member.control;
        if (is_ahead) {
            assert_int_equal(send_frame(fd, ZR_FRAME_POST, &post, sizeof(post)), 0);
            assert_ok(control->backend->arrive(control, &post, all));
            post.sequence = 2;
            assert_int_equal(send_frame(fd, ZR_FRAME_POST, &post, sizeof(post)), 0);
            assert_int_equal(control->backend->meet(control, ZR_OK), ZR_ERR_COMM);
            member_expect_end(&member, "rank 0 comes to the end of a call where rank 1 begins one");
        } else {
            assert_int_equal(send_frame(fd, ZR_FRAME_MEET, &status, sizeof(status)), 0);
            member_expect_end(&member, "rank 1 comes to the end of a call where rank 0 begins one");
        }
        close(fd);
        members_leave(&member, 1);
    }
}

/* ---- a rank 0 that is another program ---- */

/* It answers what is no call, or the first call. */
typedef struct answer {
    uint32_t kind, announced_bytes;
    size_t size_bytes;
    const void *bytes;
    bool is_unasked;
    int listener;
} answer_t;

static void receive(int fd, void *data, size_t length) {
    if (receive_all(fd, data, length, LONG_MS) != 0)
        abort();
}

static void *answer_main(void *argument) {
    const answer_t *answer = argument;
    struct pollfd ready = {.fd = answer->listener, .events = POLLIN};
    zr_frame_t frame = {.kind = answer->kind, .length = answer->announced_bytes}, heard;
    zr_challenge_t challenge = {.magic = ZR_WIRE_MAGIC, .version = ZR_WIRE_VERSION};
    zr_hello_t hello;
    zr_post_t post;
    (void)poll(&ready, 1, LONG_MS);
    int fd = accept4(answer->listener, NULL, NULL, SOCK_CLOEXEC);
    (void)send_frame(fd, ZR_FRAME_CHALLENGE, &challenge, sizeof(challenge));
    receive(fd, &heard, sizeof(heard));
    receive(fd, &hello, sizeof(hello));
    (void)send_frame(fd, ZR_FRAME_WELCOME, NULL, 0);
    heard.kind = ZR_FRAME_ALIVE;
    while (!answer->is_unasked && heard.kind == ZR_FRAME_ALIVE)
        receive(fd, &heard, sizeof(heard));
    if (!answer->is_unasked)
        receive(fd, &post, sizeof(post));
    (void)send(fd, &frame, sizeof(frame), MSG_NOSIGNAL);
    (void)send(fd, answer->bytes, answer->size_bytes, MSG_NOSIGNAL);
    (void)is_cut_off(fd);
    close(fd);
    return NULL;
}

/* Rank 1 of 2 calls, and ends with these words on rank 0. */
static void expect_refusal(answer_t *answer, const zr_post_t *post, const char *words) {
    pthread_t thread;
    int port = 0;
    char all[2 * ZR_PAYLOAD_BYTES];
    member_t member;
    assert_int_equal(zr_wire_listen("", 0, &answer->listener, &port), 0);
    assert_int_equal(pthread_create(&thread, NULL, answer_main, answer), 0);
    member_start(&member, 1, 2, port, LONG_MS);
    member_finish(&member, ZR_OK);
    zr_control_t *control = member.control;
    while (answer->is_unasked && !zr_control_is_dead(control))
        sched_yield();
    assert_int_equal(control->backend->arrive(control, post, all), ZR_ERR_COMM);
    member_expect_end(&member,
                      "the connection to rank 0 is lost (received data that is not a message: ");
    member_expect_end(&member, words);
    members_leave(&member, 1);
    pthread_join(thread, NULL);
    close(answer->listener);
}

TEST(frames_of_another_rank_0) {
    static const struct {
        uint32_t kind, announced_bytes;
        size_t size_bytes;
        const char *words;
    } cases[] = {
        {77, 0, 0, "a frame of kind 77"},
        {ZR_FRAME_POST, sizeof(zr_post_t), 0, "a frame of kind 4"},
        {ZR_FRAME_WELCOME, 0, 0, "a frame of kind 2 after the first"},
        {ZR_FRAME_REFUSED, 1, 1, "a frame of kind 3 after the first"},
        {ZR_FRAME_CHALLENGE, sizeof(zr_challenge_t), sizeof(zr_challenge_t),
         "a frame of kind 12 after the first"},
        {ZR_FRAME_REFUSED, ZR_REASON_BYTES + 1, 0, "a frame of kind 3 and 1025 bytes"},
        {ZR_FRAME_ALIVE, 1, 0, "a frame of kind 10 and 1 byte;"},
        {ZR_FRAME_END, sizeof(zr_end_t) - 1, 0, "a frame of kind 9 and"},
        {ZR_FRAME_OUTCOME, 3, 0, "a frame of kind 8 and 3 bytes"},
        {ZR_FRAME_OUTCOME, UINT32_MAX, 0, "a frame of kind 8 and 4294967295 bytes"},
        {ZR_FRAME_OUTCOME, sizeof(zr_outcome_t) + 2 * ZR_PAYLOAD_BYTES + 1, 0,
         "a frame of kind 8 and 529 bytes"},
    };
    static const char zeros[sizeof(zr_end_t)];
    zr_post_t post = make_post(1, "x", 0);
    for (size_t i = 0; i < N_OF(cases); i++) {
        answer_t answer = {.kind = cases[i].kind,
                           .announced_bytes = cases[i].announced_bytes,
                           .size_bytes = cases[i].size_bytes,
                           .bytes = zeros};
        expect_refusal(&answer, &post, cases[i].words);
    }
}

typedef struct told {
    zr_outcome_t outcome;
    int32_t members[2];
} told_t;

static void expect_outcome(const field_t *field, const zr_post_t *post, const zr_outcome_t *outcome,
                           size_t tail_bytes) {
    told_t told = {.outcome = *outcome, .members = {0, 1}};
    answer_t answer = {.kind = ZR_FRAME_OUTCOME, .bytes = &told};
    change(&told, field);
    answer.size_bytes = sizeof(told.outcome) + tail_bytes;
    answer.announced_bytes = (uint32_t)answer.size_bytes;
    expect_refusal(&answer, post, field->words);
}

TEST(outcomes_that_cannot_be) {
    static const field_t outcomes[] = {
        {FIELD(told_t, outcome.status), 1, "status 1;"},
        {FIELD(told_t, outcome.status), -10, "status -10;"},
        {FIELD(told_t, outcome.group), 3, "group 3;"},
        {FIELD(told_t, outcome.status), ZR_ERR_COMM, "8 bytes with an outcome, expected 0"},
    };
    static const field_t splits[] = {
        {FIELD(told_t, outcome.group), 0, "group 0;"},
        {FIELD(told_t, outcome.group), -1, "group -1;"},
        {FIELD(told_t, outcome.n_ranks), 100000, "ranks of a group 100000;"},
        {FIELD(told_t, outcome.n_ranks), 0, "ranks of a group 0;"},
        {FIELD(told_t, outcome.n_ranks), -1, "ranks of a group -1;"},
        {FIELD(told_t, outcome.n_ranks), 1, "rank of a group 1; 0 to 0 are allowed"},
        {FIELD(told_t, outcome.rank), 2, "rank of a group 2;"},
        {FIELD(told_t, outcome.rank), 50000000, "rank of a group 50000000;"},
        {FIELD(told_t, outcome.rank), -1, "rank of a group -1;"},
        {FIELD(told_t, outcome.rank), 0, "a group with rank 0 of all as its rank 0"},
        {FIELD(told_t, members[0]), 2000, "a group with rank 2000 of all as its rank 0"},
        {FIELD(told_t, members[0]), -1, "a group with rank -1 of all as its rank 0"},
        {FIELD(told_t, members[0]), 1, "a group with rank 1 of all as its rank 0"},
        {FIELD(told_t, members[1]), 0, "a group with rank 0 of all as its rank 1"},
    };
    static const field_t nothing = {0, 0, 0, "7 bytes with an outcome, expected 8"};
    static const zr_outcome_t met = {.group = -1};
    static const zr_outcome_t split = {.group = 1, .rank = 1, .n_ranks = 2};
    zr_post_t post = make_post(1, "x", 0), groups = make_post(1, "groups", 0);
    for (size_t i = 0; i < N_OF(outcomes); i++)
        expect_outcome(&outcomes[i], &post, &met, 8);
    expect_outcome(&nothing, &post, &met, 7);
    answer_t unasked = {.kind = ZR_FRAME_OUTCOME,
                        .announced_bytes = sizeof(met),
                        .size_bytes = sizeof(met),
                        .bytes = &met,
                        .is_unasked = true};
    expect_refusal(&unasked, &post, "the outcome of an unknown meeting");
    groups.collective = ZR_SPLIT;
    groups.payload_bytes = 0;
    for (size_t i = 0; i < N_OF(splits); i++)
        expect_outcome(&splits[i], &groups, &split, 8);
    expect_outcome(&nothing, &groups, &split, 7);
}

TEST(ends_that_cannot_be) {
    static const field_t fields[] = {
        {FIELD(zr_end_t, has_left), 2, "has_left 2"},
        {FIELD(zr_end_t, whose), 2, "a rank that has gone, 2;"},
        {FIELD(zr_end_t, whose), -2, "a rank that has gone, -2;"},
        {FIELD(zr_end_t, reason), '!', "a reason without a terminating zero"},
    };
    zr_post_t post = make_post(1, "x", 0);
    for (size_t i = 0; i < N_OF(fields); i++) {
        zr_end_t end = {.whose = -1};
        answer_t answer = {.kind = ZR_FRAME_END,
                           .announced_bytes = sizeof(end),
                           .size_bytes = sizeof(end),
                           .bytes = &end};
        change(&end, &fields[i]);
        expect_refusal(&answer, &post, fields[i].words);
    }
}

static void *arrive(void *argument) {
    member_t *member = argument;
    zr_post_t post = make_post(1, "x", 0);
    int all[MOST];
    member->status = member->control->backend->arrive(member->control, &post, all);
    return NULL;
}

/* Rank 1 does not come to the end of a call before rank 0 has been let go; the reason that they
 * have, or an empty one. */
static void be_late_within_a_call(member_t *members, char *reason, size_t reason_bytes) {
    reason[0] = '\0';
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&members[i].thread, NULL, arrive, &members[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(members[i].thread, NULL);
    if (members[0].status == ZR_OK && members[1].status == ZR_OK)
        for (int i = 0; i < 2; i++)
            assert_int_equal(members[i].control->backend->meet(members[i].control, ZR_OK),
                             ZR_ERR_COMM);
    const char *death = members[0].control->backend->death(members[0].control, NULL);
    if (death != NULL)
        snprintf(reason, reason_bytes, "%s", death);
}

/* A rank that is there but does not come to the end of a call: the others are let go. Where it
 * comes after all, it is told. */
static bool let_go_of_late_rank(int timeout_ms) {
    member_t members[2];
    char words[128], reason[ZR_REASON_BYTES] = "not all have come";
    snprintf(words, sizeof(words),
             "rank 0 has waited %d ms for rank 1 to finish barrier \"x\" (call 1)", 2 * timeout_ms);
    members_start(members, 2, free_port(), timeout_ms);
    if (have_all_come(members, 2)) {
        be_late_within_a_call(members, reason, sizeof(reason));
        members_leave(members, 2);
    }
    bool are_let_go = strstr(reason, words) != NULL;
    if (!are_let_go)
        note_try(timeout_ms, LONG_MS, reason);
    return are_let_go;
}

TEST(rank_late_within_a_call) {
    int timeout_ms = SHORT_MS;
    while (!let_go_of_late_rank(timeout_ms))
        timeout_ms *= 4;
}

/* ---- the environment ---- */

static const char *const names[] = {"WORLD_SIZE",  "RANK",        "LOCAL_RANK",
                                    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"};

/* Values as in `names`; NULL: not set. */
static zr_status_t read_environment(const char *const *values, member_t *member,
                                    bool *is_launched_p) {
    zr_log_t log = member_log(member);
    member->log[0] = '\0';
    for (size_t i = 0; i < N_OF(names); i++) {
        if (values[i] != NULL)
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    }
    return zr_launch_from_environment(&log, &member->launch, is_launched_p);
}

TEST(environment) {
    const char *const good[] = {"4", "3", "1", "node7", "29500", NULL};
    member_t member;
    bool is_launched = true;
    assert_ok(read_environment(good, &member, &is_launched));
    assert_true(is_launched);
    assert_int_equal(member.launch.n_ranks, 4);
    assert_int_equal(member.launch.rank, 3);
    assert_int_equal(member.launch.local_rank, 1);
    assert_int_equal(member.launch.port, 29500);
    assert_string_equal(member.launch.host, "node7");
    static const char *const wrong[][2] = {
        {"0", "nought"}, {NULL, "4"}, {NULL, "-1"}, {NULL, NULL}, {NULL, "65536"},
    };
    for (int i = 0; i < 5; i++) {
        const char *values[6];
        for (int w = 0; w < 2; w++) {
            if (i == 3 && w == 1)
                continue;
            memcpy(values, good, sizeof(values));
            values[i] = wrong[i][w];
            assert_int_equal(read_environment(values, &member, &is_launched), ZR_ERR_ARGUMENT);
            assert_false(is_launched);
            assert_true(member_has_logged(&member, names[i]));
        }
    }
    const char *const taken[] = {"4", "3", "1", "node7", "29500", "True"};
    assert_ok(read_environment(taken, &member, &is_launched));
    assert_int_equal(member.launch.port, 29501);
    const char *const alone[] = {"1", NULL, NULL, NULL, NULL, NULL};
    assert_ok(read_environment(alone, &member, &is_launched));
    assert_false(is_launched);
    const char *const none[] = {NULL, "x", NULL, NULL, NULL, NULL};
    assert_ok(read_environment(none, &member, &is_launched));
    assert_false(is_launched);
}

/* Slurm says how many ranks each node has in a list, which is believed where it is of all of them.
 */
TEST(environment_of_slurm) {
    static const struct {
        const char *list, *node, *local_rank;
        int n_local_ranks; /* -1: refused */
    } cases[] = {
        {"2(x3),1", "0", "1", 2}, {"2(x3),1", "2", "0", 2},  {"2(x3),1", "3", "0", 1},
        {"7", "0", "6", 7},       {"1,6", "1", "5", 6},      {"1,6", "1", NULL, 6},
        {NULL, "0", "1", 0},      {"2(x3),1", NULL, "1", 0}, /* nobody says */
        {"3", "0", "1", 0},       {"8", "0", "1", 0},        {"2(x3),1", "4", "0", 0},
        {"2(x3),1", "3", "1", 0}, /* not of this step */
        {"2(x3", "0", "1", -1},   {"two", "0", "1", -1},     {"2(x3),", "0", "1", -1},
        {"-7", "0", "1", -1},     {"7", "-1", "1", -1},
    };
    static const char *const slurm[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID",
                                        "SLURM_LOCALID"};
    const char *const none[] = {NULL, NULL, NULL, NULL, NULL, NULL};
    member_t member;
    bool is_launched = false;
    setenv("SLURM_STEP_NUM_TASKS", "7", 1);
    setenv("SLURM_PROCID", "0", 1);
    for (size_t i = 0; i < N_OF(cases); i++) {
        const char *const values[] = {cases[i].list, cases[i].node, cases[i].local_rank};
        for (size_t k = 0; k < 3; k++)
            if (values[k] == NULL || setenv(slurm[k], values[k], 1) != 0)
                unsetenv(slurm[k]);
        zr_status_t expected = cases[i].n_local_ranks < 0 ? ZR_ERR_ARGUMENT : ZR_OK;
        if (read_environment(none, &member, &is_launched) != expected)
            fail_msg("case %zu: %s", i, member.log);
        if (expected == ZR_OK)
            assert_int_equal(member.launch.n_local_ranks, cases[i].n_local_ranks);
        else
            assert_true(member_has_logged(&member, "srun sets it"));
    }
    for (size_t k = 0; k < 3; k++)
        unsetenv(slurm[k]);
    unsetenv("SLURM_STEP_NUM_TASKS");
    unsetenv("SLURM_PROCID");
}
