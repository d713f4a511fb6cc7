/* See members.h. */
#include "tests/zero/comm/members.h"

#include <errno.h>
#include <sys/socket.h>

#include "tests/common/one_thing.h"

zr_secret_t members_secret;

/* The coordinator's warnings and rank 0's errors come from two threads. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_message(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    member_t *member = context;
    pthread_mutex_lock(&log_lock);
    size_t length = strlen(member->log);
    snprintf(member->log + length, sizeof(member->log) - length, "%s\n", message);
    pthread_mutex_unlock(&log_lock);
}

bool member_has_logged(member_t *member, const char *text) {
    pthread_mutex_lock(&log_lock);
    bool found = strstr(member->log, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

zr_log_t member_log(member_t *member) {
    return (zr_log_t){.sink = keep_message, .context = member, .level = ZR_LOG_WARNING, .rank = -1};
}

void *member_join(void *argument) {
    member_t *member = argument;
    zr_log_t log = member_log(member);
    member->status =
        zr_control_create_tcp(&member->launch, -1, &log, member->timeout_ms, &member->control);
    return NULL;
}

void member_start_within(member_t *member, int rank, int n_ranks, int port, int timeout_ms,
                         int start_ms) {
    *member = (member_t){.launch = {.host = "localhost", .port = port, .rank = rank},
                         .timeout_ms = timeout_ms};
    member->launch.n_ranks = n_ranks;
    member->launch.secret = members_secret;
    member->launch.start_timeout_ms = start_ms;
    assert_int_equal(pthread_create(&member->thread, NULL, member_join, member), 0);
}

/* However short the limit of its calls is, there is time to begin. */
void member_start(member_t *member, int rank, int n_ranks, int port, int timeout_ms) {
    member_start_within(member, rank, n_ranks, port, timeout_ms, LONG_MS);
}

void members_start(member_t *members, int n_ranks, int port, int timeout_ms) {
    for (int rank = n_ranks - 1; rank >= 0; rank--)
        member_start(&members[rank], rank, n_ranks, port, timeout_ms);
}

void member_finish(member_t *member, zr_status_t status) {
    pthread_join(member->thread, NULL);
    if (member->status != status)
        fail_msg("rank %d of %d: %s, not %s; it logged: %s", member->launch.rank,
                 member->launch.n_ranks, zr_status_name(member->status), zr_status_name(status),
                 member->log);
}

/* They leave at one time, as processes do. */
static void *leave(void *argument) {
    zr_control_destroy(&((member_t *)argument)->control);
    return NULL;
}

void members_leave(member_t *members, int n_ranks) {
    pthread_t threads[MOST];
    for (int i = 0; i < n_ranks; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, leave, &members[i]), 0);
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i], NULL);
}

zr_post_t make_post(uint64_t sequence, const char *name, int payload) {
    zr_comm_call_t call = {.collective = ZR_BARRIER,
                           .message = {.tensor = name, .dtype = ZR_DTYPE_U8},
                           .sequence = sequence};
    zr_post_t post;
    zr_post_fill(&post, &call, &payload, sizeof(payload));
    return post;
}

void *talk_main(void *argument) {
    talk_t *talk = argument;
    zr_control_t *control = talk->member->control;
    talk->is_right = true;
    for (int i = 1; i <= 200; i++) {
        int all[MOST] = {0};
        zr_post_t post = make_post((uint64_t)i, "x", 1000 * i + control->rank);
        zr_status_t status = control->backend->arrive(control, &post, all);
        for (int rank = 0; rank < control->n_ranks; rank++)
            talk->is_right &= status == ZR_OK && all[rank] == 1000 * i + rank;
        zr_status_t brought = i == 100 && control->rank == 1 ? ZR_ERR_DEVICE : ZR_OK;
        zr_status_t outcome = control->backend->meet(control, brought);
        talk->is_right &= outcome == (i == 100 ? ZR_ERR_DEVICE : ZR_OK);
    }
    return NULL;
}

/* Call until the end, and see why it has come. */
const char *member_await_end(member_t *member) {
    zr_control_t *control = member->control;
    zr_post_t post = make_post(1, "x", 0);
    int all[MOST];
    bool has_left = true;
    assert_int_equal(control->backend->arrive(control, &post, all), ZR_ERR_COMM);
    const char *reason = control->backend->death(control, &has_left);
    assert_non_null(reason);
    assert_false(has_left);
    return reason;
}

void member_expect_end(member_t *member, const char *words) {
    const char *reason = member_await_end(member);
    assert_has(reason, words);
}

int receive_all(int socket, void *data, size_t length, int64_t limit_ms) {
    zr_lived_t clock = {0};
    (void)zr_lived_ms(&clock);
    for (size_t received = 0; received < length;) {
        ssize_t n = zr_wire_receive_some(socket, (char *)data + received, length - received,
                                         zr_lived_slice_ms(&clock, limit_ms));
        if (n < 0)
            return (int)-n;
        if (zr_lived_ms(&clock) >= limit_ms && n == 0)
            return ETIMEDOUT;
        received += (size_t)n;
    }
    return 0;
}

int connect_to(int port) {
    int fd = -1;
    const char *detail;
    assert_int_equal(zr_wire_connect("localhost", port, LONG_MS, &fd, &detail), 0);
    return fd;
}

/* As who has no secret. */
int send_frame(int fd, uint32_t kind, const void *data, size_t length) {
    char bytes[2 * ZR_WIRE_MOST_TO_HUB];
    zr_frame_t frame = {.kind = kind};
    zr_seal_t none = {.tag_bytes = 0};
    const zr_wire_part_t parts[2] = {{data, length}};
    size_t n_bytes = zr_wire_put(&none, &frame, parts, bytes);
    return send(fd, bytes, n_bytes, MSG_NOSIGNAL) == (ssize_t)n_bytes ? 0 : errno;
}

/* Who connects is asked who it is. */
zr_challenge_t await_challenge(int fd) {
    zr_frame_t frame;
    zr_challenge_t challenge;
    assert_int_equal(receive_all(fd, &frame, sizeof(frame), INT64_MAX), 0);
    assert_int_equal(frame.kind, ZR_FRAME_CHALLENGE);
    assert_int_equal(receive_all(fd, &challenge, sizeof(challenge), INT64_MAX), 0);
    return challenge;
}

/* Wait until the coordinator has said something, as it does to ranks. */
void await_word(int fd) {
    zr_frame_t frame;
    assert_int_equal(receive_all(fd, &frame, sizeof(frame), INT64_MAX), 0);
}

/* Whether the other side closes. */
bool is_cut_off(int fd) {
    char byte;
    int error;
    while ((error = receive_all(fd, &byte, 1, LONG_MS)) == 0)
        ;
    return error != ETIMEDOUT;
}
