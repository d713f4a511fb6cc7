/*
 * A rank that is another program than the others take it for: what it says of itself, of its
 * tensors, on its connections for data and in the page where ranks meet is wrong in one field. The
 * other ranks end with an error that names it, before they use that field. Ranks are processes; the
 * one that lies is this same program, whose calls the linker sends here (--wrap).
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "kernels/kernels.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/coordinator/connection.h"
#include "zero/comm/peer_internal.h"

enum { N_RANKS = 3, N_ELEMS = 100, LONG_MS = 60000 };

/* Where a field is changed. */
typedef enum lie_at {
    OF_ITSELF,  /* in zr_introduction_t */
    OF_TENSORS, /* zr_peer_tensors_t of the second call */
    IN_HELLO,   /* zr_hello_t of a connection for data */
    IN_HEADER,  /* zr_link_header_t */
    CUT_HELLO,  /* of whose frame the first size_bytes are sent; then the process ends */
    CUT_HEADER,
    IN_POST,      /* zr_post_t in the page */
    IN_STATUS,    /* int32_t that is brought to a meeting in the page */
    IN_ECHO,      /* what rank 0 passes on of the others' zr_introduction_t */
    UNSEALED,     /* rank 0's page can be made smaller */
    WRONG_SECRET, /* of its connections for data */
    WRONG_SEAL    /* of its answer to who connects for data */
} lie_at_t;

typedef struct lie {
    lie_at_t at;
    size_t offset, size_bytes;
    int64_t value;     /* 8 bytes and less of it; of more, its lowest byte in each */
    const char *words; /* of the others' errors; %d: the liar's rank, twice at most */
} lie_t;

static const lie_t *lie; /* of this process; NULL: it is honest */

static void change(void *bytes, size_t most_bytes) {
    size_t n = lie->size_bytes;
    assert_true(lie->offset + n <= most_bytes);
    if (n > sizeof(lie->value))
        memset((char *)bytes + lie->offset, (int)lie->value, n);
    else
        memcpy((char *)bytes + lie->offset, &lie->value, n);
}

/* ---- where it lies -------------------------------------------------------------------------- */

/* It does not tell itself. */
WRAP(zr_status_t, zr_control_arrive, zr_comm_t *comm, const zr_comm_call_t *call,
     const void *payload, size_t payload_bytes, void *all) {
    char changed[ZR_PAYLOAD_BYTES];
    bool is_first = payload_bytes == sizeof(zr_introduction_t);
    bool is_changed =
        lie != NULL && ((lie->at == OF_ITSELF && is_first) || (lie->at == OF_TENSORS && !is_first));
    if (!is_changed)
        return __real_zr_control_arrive(comm, call, payload, payload_bytes, all);
    memcpy(changed, payload, payload_bytes);
    change(changed, payload_bytes);
    zr_status_t status = __real_zr_control_arrive(comm, call, changed, payload_bytes, all);
    if (status == ZR_OK)
        memcpy((char *)all + (size_t)comm->rank * payload_bytes, payload, payload_bytes);
    return status;
}

ssize_t __real_send(int socket, const void *data, size_t length, int flags);

/* Who says that it is another rank says it everywhere. */
static bool is_of_hello(void) {
    return lie->at == IN_HELLO || lie->at == CUT_HELLO ||
           (lie->at == OF_ITSELF && lie->offset == offsetof(zr_introduction_t, card.origin_rank));
}

WRAP(int, zr_wire_send, int socket, zr_seal_t *seal, uint32_t kind, uint32_t group,
     const void *data, size_t length) {
    char bytes[sizeof(zr_frame_t) + sizeof(zr_hello_t) + ZR_SEAL_BYTES];
    zr_frame_t frame = {.kind = kind, .group = group};
    const zr_wire_part_t parts[2] = {{data, length}};
    zr_hello_t hello;
    if (kind == ZR_FRAME_HELLO)
        memcpy(&hello, data, sizeof(hello));
    if (lie == NULL || kind != ZR_FRAME_HELLO || hello.proof == 0 || !is_of_hello())
        return __real_zr_wire_send(socket, seal, kind, group, data, length);
    if (lie->at == CUT_HELLO) {
        (void)zr_wire_put(seal, &frame, parts, bytes);
        (void)__real_send(socket, bytes, lie->size_bytes, MSG_NOSIGNAL);
        _exit(0);
    }
    if (lie->at == OF_ITSELF)
        hello.rank = (int32_t)lie->value;
    else
        change(&hello, sizeof(hello));
    return __real_zr_wire_send(socket, seal, kind, group, &hello, sizeof(hello));
}

WRAP(ssize_t, send, int socket, const void *data, size_t length, int flags) {
    zr_link_header_t header;
    bool is_header =
        lie != NULL && (lie->at == IN_HEADER || lie->at == CUT_HEADER) && length == sizeof(header);
    if (is_header)
        memcpy(&header, data, sizeof(header));
    if (!is_header || header.magic != ZR_LINK_MAGIC)
        return __real_send(socket, data, length, flags);
    if (lie->at == CUT_HEADER) {
        (void)__real_send(socket, data, lie->size_bytes, flags);
        _exit(0);
    }
    change(&header, sizeof(header));
    return __real_send(socket, &header, length, flags);
}

WRAP(void, zr_control_tcp_place, const zr_control_t *control, zr_control_place_t *place_p) {
    static const zr_secret_t other = {.is_given = true};
    __real_zr_control_tcp_place(control, place_p);
    if (lie != NULL && lie->at == WRONG_SECRET)
        place_p->secret = &other;
}

static bool is_crowded;

/* Who listens for data has a crowd at its door at once, in this process: they say nothing. */
WRAP(int, zr_wire_listen, const char *address, int port, int *socket_p, int *port_p) {
    enum { N_SILENT = 40 };
    const char *detail;
    int error = __real_zr_wire_listen(address, port, socket_p, port_p), silent;
    for (int i = 0; is_crowded && port == 0 && error == 0 && i < N_SILENT; i++)
        assert_int_equal(zr_wire_connect("127.0.0.1", *port_p, LONG_MS, &silent, &detail), 0);
    return error;
}

WRAP(int, fcntl, int file, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (lie != NULL && lie->at == UNSEALED && command == F_ADD_SEALS)
        return 0;
    return __real_fcntl(file, command, argument);
}

WRAP(unsigned, zr_page_arrive, zr_page_t *page, const zr_post_t *post, zr_status_t status) {
    zr_post_t changed;
    if (lie != NULL && lie->at == IN_STATUS && post == NULL)
        status = (zr_status_t)lie->value;
    if (lie == NULL || lie->at != IN_POST || post == NULL)
        return __real_zr_page_arrive(page, post, status);
    changed = *post;
    change(&changed, sizeof(changed));
    return __real_zr_page_arrive(page, &changed, status);
}

WRAP(void, zr_connection_send, zr_connection_t *connection, uint32_t kind, uint32_t group,
     const void *data, size_t length) {
    if (lie != NULL && lie->at == WRONG_SEAL && connection->rank < 0)
        connection->seal.send_key[0] ^= 1;
    __real_zr_connection_send(connection, kind, group, data, length);
}

WRAP(void, zr_connection_send_parts, zr_connection_t *connection, uint32_t kind, uint32_t group,
     const void *head, size_t head_length, const void *tail, size_t tail_length) {
    char changed[N_RANKS * sizeof(zr_introduction_t)];
    bool is_echo = lie != NULL && lie->at == IN_ECHO && tail_length == sizeof(changed);
    if (is_echo) {
        memcpy(changed, tail, tail_length);
        for (size_t rank = 1; rank < N_RANKS; rank++)
            change(changed + rank * sizeof(zr_introduction_t), sizeof(zr_introduction_t));
    }
    __real_zr_connection_send_parts(connection, kind, group, head, head_length,
                                    is_echo ? changed : tail, tail_length);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)rank;
    expect_one_thing(message);
    if (level == ZR_LOG_ERROR && ((char *)context)[0] == '\0')
        snprintf(context, ZR_REASON_BYTES, "%s", message);
}

/* How ranks are to each other. */
typedef enum setting {
    ONE_MACHINE,
    ONE_MACHINE_SHARED, /* whose ranks map each other's memory */
    MACHINES,           /* of a rank each */
    MACHINES_SECRET,    /* whose ranks have a secret */
    MACHINES_GROUP,     /* of them, in which ranks are in the opposite order */
    MACHINES_BLOCKS     /* whose ranks exchange blocks of an encoding */
} setting_t;

/* A first call with data, and further ones, in which neighbours meet in a page and map memory. */
static zr_status_t talk(zr_comm_t *comm, setting_t setting, float *numbers, zr_stream_t *stream) {
    zr_message_t message = {"numbers", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_message_t blocks = {"blocks", .encoding = &zr_encoding_int8};
    zr_comm_t *group = NULL;
    zr_status_t status = ZR_OK;
    if (setting == MACHINES_GROUP)
        ZR_TRY(zr_comm_split(comm, 0, -zr_comm_rank(comm), &group));
    for (int i = 0; i < 4 && status == ZR_OK; i++)
        status = setting == MACHINES_BLOCKS
                     ? zr_comm_all_to_all(comm, &blocks, numbers, numbers + 512, 256, stream)
                     : zr_comm_all_reduce(group != NULL ? group : comm, &message, numbers, N_ELEMS,
                                          stream);
    zr_comm_destroy(&group);
    return status;
}

enum { EXPECTED, WENT_WELL, SKIPPED = 77, UNEXPECTED };

/* @param error  [ZR_REASON_BYTES] in memory that is shared */
static int run_rank(int rank, int port, setting_t setting, char *error) {
    zr_launch_t launch = {.host = "127.0.0.1", .port = port, .rank = rank, .n_ranks = N_RANKS};
    if (setting == MACHINES_SECRET)
        launch.secret = (zr_secret_t){.is_given = true, .key = "as good as any"};
    zr_comm_options_t options = zr_comm_options_default();
    zr_device_options_t device_options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_comm_t *comm = NULL;
    void *range = NULL;
    options.log = (zr_log_t){.sink = keep_error, .context = error, .level = ZR_LOG_ERROR};
    options.timeout_ms = LONG_MS;
    options.machine_ranks = setting >= MACHINES ? 1 : 0;
    device_options.n_threads = 1;
    device_options.shares_memory = setting == ONE_MACHINE_SHARED;
    if (zr_device_open("host", &device_options, &device) != ZR_OK ||
        zr_stream_create(device, "comm", &stream) != ZR_OK)
        return UNEXPECTED;
    if (device_options.shares_memory && !zr_device_info(device)->shares_memory)
        return SKIPPED;
    size_t granule = zr_device_info(device)->granule_bytes;
    if (zr_range_reserve(device, ZR_TIER_DEVICE, granule, &range) != ZR_OK ||
        zr_range_map(device, ZR_TIER_DEVICE, range, 0, granule) != ZR_OK ||
        zr_comm_create_processes(&launch, &options, &comm) != ZR_OK)
        return UNEXPECTED;
    zr_status_t status = talk(comm, setting, range, stream);
    zr_comm_destroy(&comm);
    zr_stream_destroy(&stream);
    zr_range_release(device, ZR_TIER_DEVICE, &range, granule);
    zr_device_close(&device);
    return status == ZR_OK ? WENT_WELL : status == ZR_ERR_COMM ? EXPECTED : UNEXPECTED;
}

/* False: the machine lets no process map another's memory. */
static bool tell(const lie_t *told, int liar, setting_t setting) {
    char words[ZR_REASON_BYTES];
    pid_t children[N_RANKS];
    int port = free_port();
    bool is_skipped = false;
    char *errors = mmap(NULL, N_RANKS * ZR_REASON_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(errors != MAP_FAILED);
    fflush(NULL);
    for (int rank = 0; rank < N_RANKS; rank++) {
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] != 0)
            continue;
        lie = rank == liar ? told : NULL;
        exit(run_rank(rank, port, setting, errors + rank * ZR_REASON_BYTES));
    }
    snprintf(words, sizeof(words), told->words, liar, liar);
    int n_named = 0;
    for (int rank = 0; rank < N_RANKS; rank++) {
        const char *error = errors + rank * ZR_REASON_BYTES;
        int status = 0;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        is_skipped |= WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
        /* On a busy machine the end of a connection may be known before the reason of it. */
        bool is_named = rank != liar && strstr(error, words) != NULL;
        bool is_right = is_named || strstr(error, "has lost the connection for data to rank");
        n_named += is_named;
        if (WIFSIGNALED(status) ||
            (rank != liar && !is_skipped && (WEXITSTATUS(status) != EXPECTED || !is_right)))
            fail_msg("%d, %zu bytes at %zu are %lld: rank %d ended with signal %d, exit status %d: "
                     "\"%s\" does not say \"%s\"",
                     told->at, told->size_bytes, told->offset, (long long)told->value, rank,
                     WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                     WIFEXITED(status) ? WEXITSTATUS(status) : -1, error, words);
    }
    assert_true(n_named > 0 || is_skipped);
    munmap(errors, N_RANKS * ZR_REASON_BYTES);
    return !is_skipped;
}

#define FIELD(type, name) offsetof(type, name), sizeof(((type *)NULL)->name)
#define SENT "refuses what rank %d has sent: "
#define INTRODUCTION(name) OF_ITSELF, FIELD(zr_introduction_t, name)

/* ---- lies ----------------------------------------------------------------------------------- */

/* Of a rank that one connects to for data, and that connects to another one; and on one machine. */
TEST(introductions) {
    static const lie_t lies[] = {
        {INTRODUCTION(card.origin_rank), 2000, SENT "origin_rank 2000, expected %d;"},
        {INTRODUCTION(card.origin_rank), 100000, SENT "origin_rank 100000, expected %d;"},
        {INTRODUCTION(card.origin_rank), 50000000, SENT "origin_rank 50000000, expected %d;"},
        {INTRODUCTION(card.origin_rank), -1, SENT "origin_rank -1, expected %d;"},
        {INTRODUCTION(card.origin_rank), N_RANKS, SENT "origin_rank 3, expected %d;"},
        {INTRODUCTION(card.origin_rank), 0, SENT "origin_rank 0, expected %d;"},
        {INTRODUCTION(card.pid), 0, SENT "pid 0;"},
        {INTRODUCTION(card.pid), -7, SENT "pid -7;"},
        {INTRODUCTION(card.n_threads), 0, SENT "n_threads 0;"},
        {INTRODUCTION(card.n_threads), INT32_MIN, SENT "n_threads -2147483648;"},
        {INTRODUCTION(card.n_threads), 100000, SENT "n_threads 100000;"},
        {INTRODUCTION(card.file.descriptor), -2, SENT "the descriptor of its memory -2;"},
        {INTRODUCTION(page.descriptor), 5, SENT "the descriptor of its page 5;"},
        {INTRODUCTION(place.port), 65536, SENT "port 65536;"},
        {INTRODUCTION(place.port), -1, SENT "port -1;"},
        {INTRODUCTION(place.address), '1',
         SENT "an address without a terminating zero in 64 bytes;"},
        {OF_ITSELF, offsetof(zr_introduction_t, place.address), 2, 'x', SENT "an address that is"},
        {INTRODUCTION(tensors.send_place), 8, SENT "what it sends at 8 of its memory file, and"},
        {INTRODUCTION(tensors.recv_place), 8, SENT "what it receives at 8 of its memory file"},
        {INTRODUCTION(tensors.file_bytes), 4096, SENT "a memory file of 4096 bytes; it had 0;"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, send_place), 8, SENT "what it sends at 8 of its"},
    };
    static const lie_t of_machine = {INTRODUCTION(card.machine), 7, SENT "machine 7, expected %d;"};
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 1, MACHINES) && tell(&lies[i], 1, ONE_MACHINE));
    assert_true(tell(&of_machine, 1, MACHINES));
}

TEST(group) {
    static const lie_t lies[] = {
        {INTRODUCTION(card.origin_rank), 2, "rank 0 of all has sent: origin_rank 2, expected 0;"},
        {INTRODUCTION(card.origin_rank), 2000, "0 of all has sent: origin_rank 2000, expected 0;"},
        {IN_HELLO, FIELD(zr_hello_t, rank), 2000, "refuses what rank 2000 of all has sent"},
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 0, MACHINES_GROUP));
}

TEST(rank_0) {
    static const lie_t lies[] = {
        {INTRODUCTION(page.pid), 1, SENT "a page of pid 1, expected"},
        {INTRODUCTION(page.descriptor), 0, SENT "a page for meetings that is not where or what"},
        {INTRODUCTION(page.inode), 1, SENT "a page for meetings that is not where or what"},
        {UNSEALED, 0, 0, 0, SENT "a page for meetings that is not where or what"},
        {IN_ECHO, FIELD(zr_introduction_t, tensors.send), 8, SENT "as this rank's own, what"},
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 0, ONE_MACHINE));
    assert_true(tell(&lies[N_OF(lies) - 1], 0, MACHINES));
}

/* Who has the secret of the connection to rank 0, and none for data, is no peer; nor does anybody
 * send to it. What it lies about otherwise is found as without a secret. */
TEST(secrets) {
    static const lie_t of_1[] = {
        {WRONG_SECRET, 0, 0, 0, "cannot connect to rank"}, /* it to 0, or 2 to it */
        {IN_HELLO, FIELD(zr_hello_t, rank), 2000, "refuses what rank 2000 has sent: an unex"},
        {INTRODUCTION(card.origin_rank), 2000, SENT "origin_rank 2000, expected %d;"},
        {IN_HEADER, FIELD(zr_link_header_t, magic), 1, SENT "a header with magic number 1,"},
    };
    static const lie_t of_0[] = {
        {WRONG_SECRET, 0, 0, 0, "cannot connect to rank %d at 127.0.0.1:"},
        {WRONG_SEAL, 0, 0, 0, "for data: a frame of kind 10, or of another secret;"},
        {IN_ECHO, FIELD(zr_introduction_t, tensors.send), 8, SENT "as this rank's own, what"},
    };
    for (size_t i = 0; i < N_OF(of_1); i++)
        assert_true(tell(&of_1[i], 1, MACHINES_SECRET));
    for (size_t i = 0; i < N_OF(of_0); i++)
        assert_true(tell(&of_0[i], 0, MACHINES_SECRET));
}

/* Ranks connect beside those who say nothing: one after the other they took longer than the limit.
 */
TEST(silent_connections_for_data) {
    static char errors[N_RANKS][ZR_REASON_BYTES];
    for (int setting = MACHINES; setting <= MACHINES_SECRET; setting++) {
        pid_t children[N_RANKS];
        int port = free_port();
        fflush(NULL);
        for (int rank = 0; rank < N_RANKS; rank++) {
            children[rank] = fork();
            assert_true(children[rank] >= 0);
            is_crowded = true;
            if (children[rank] == 0)
                exit(run_rank(rank, port, (setting_t)setting, errors[rank]));
        }
        for (int rank = 0; rank < N_RANKS; rank++) {
            int status = 0;
            assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == WENT_WELL);
        }
        is_crowded = false;
    }
}

/* Rank 1 connects to rank 0, and sends to ranks 0 and 2. */
TEST(connections_for_data) {
    static const char words[] = "has sent: an unexpected or duplicate connection for data";
    static const lie_t lies[] = {
        {IN_HELLO, FIELD(zr_hello_t, rank), 2000, "refuses what rank 2000 has sent: an unex"},
        {IN_HELLO, FIELD(zr_hello_t, rank), -1, "refuses what rank -1 has sent: an unexpe"},
        {IN_HELLO, FIELD(zr_hello_t, rank), 0, "refuses what rank 0 has sent: an unexpec"},
        {IN_HELLO, FIELD(zr_hello_t, rank), 2, "refuses what rank 2 has sent: an unexpec"},
        {IN_HELLO, FIELD(zr_hello_t, version), 77, words},
        {CUT_HELLO, 0, 10, 0, "rank %d is gone"},
        {IN_HEADER, FIELD(zr_link_header_t, magic), 1, SENT "a header with magic number 1,"},
        {IN_HEADER, FIELD(zr_link_header_t, size_bytes), INT64_MAX, SENT "922337203685477580"},
        {IN_HEADER, FIELD(zr_link_header_t, size_bytes), 0, SENT "0 bytes of data, expected"},
        {CUT_HEADER, 0, 9, 0, "rank %d"}, /* is gone, or the connection to it */
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 1, MACHINES));
}

/* An encoded block is as long as the encoding says. */
TEST(blocks) {
    static const lie_t lies[] = {
        {IN_HEADER, FIELD(zr_link_header_t, size_bytes), 34, SENT "34 bytes of data, expected 260"},
        {IN_HEADER, FIELD(zr_link_header_t, size_bytes), 1024, SENT "1024 bytes of data, expected"},
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 1, MACHINES_BLOCKS));
}

TEST(page) {
    static const lie_t lies[] = {
        {IN_POST, FIELD(zr_post_t, collective), 1000, SENT "collective 1000;"},
        {IN_POST, FIELD(zr_post_t, dtype), -1, SENT "dtype -1;"},
        {IN_POST, FIELD(zr_post_t, payload_bytes), 1 << 30, SENT "bytes of payload 1073741824;"},
        {IN_POST, FIELD(zr_post_t, tensor), '!',
         SENT "a tensor's name without a terminating zero in"},
        {IN_POST, FIELD(zr_post_t, device), '!',
         SENT "a device's name without a terminating zero in"},
        {IN_STATUS, 0, 4, 77, SENT "status 77;"},
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        assert_true(tell(&lies[i], 1, ONE_MACHINE));
}

/* Places in memory that others have mapped, and the file itself. */
TEST(views) {
    static const lie_t lies[] = {
        {OF_TENSORS, FIELD(zr_peer_tensors_t, send_place), INT64_MAX, SENT "400 bytes of what it"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, send_place), -400, SENT "400 bytes of what it s"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, send_place), 2, SENT "what it sends at 2 of its"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, recv_place), 1ll << 40, SENT "400 bytes of what it"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, file_bytes), 0, SENT "a memory file of 0 bytes;"},
        {OF_TENSORS, FIELD(zr_peer_tensors_t, file_bytes), 1ll << 40, SENT "a memory file that"},
        {INTRODUCTION(tensors.file_bytes), -1, SENT "a memory file of 18446744073709551615"},
        {INTRODUCTION(tensors.file_bytes), 1ll << 40, SENT "a memory file that is not where"},
        {INTRODUCTION(card.file.inode), 1, SENT "a memory file that is not where or what it"},
        {INTRODUCTION(card.file.descriptor), 0, SENT "a memory file that is not where or what"},
        {INTRODUCTION(card.file.descriptor), -1, SENT "a memory file of"},
    };
    for (size_t i = 0; i < N_OF(lies); i++)
        if (!tell(&lies[i], 1, ONE_MACHINE_SHARED))
            skip();
}
