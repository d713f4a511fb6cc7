/*
 * Data between machines through UCX: what it does to the process, which is nothing that can be seen
 * from outside; and a rank that has no UCX, whose address is none, or that sends more or less than
 * it is to. Ranks are processes that take each other for other machines; the linker sends the calls
 * of one of them here (--wrap).
 */
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "kernels/kernels.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "zero/comm/comm_backend.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/peer_internal.h"
#include "zero/comm/ucx/ucx_links.h"

enum { N_RANKS = 3, LIAR = 1, N_ELEMS = 30000, LONG_MS = 60000, NO_UCX_CODE = 77 };

typedef enum lie { NONE, NO_UCX, OF_ADDRESS, OF_SIZE } lie_t;

static lie_t lie; /* of this process */
static int64_t lie_value;

#define WRAP(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

WRAP(void *, dlopen, const char *path, int flags) {
    bool is_hidden = lie == NO_UCX && strstr(path, "libucp") != NULL;
    return __real_dlopen(is_hidden ? "libucp.so.is.not.here" : path, flags);
}

WRAP(zr_status_t, zr_control_arrive, zr_comm_t *comm, const zr_comm_call_t *call,
     const void *payload, size_t payload_bytes, void *all) {
    char changed[ZR_PAYLOAD_BYTES];
    bool is_address = payload_bytes == sizeof(changed);
    if (lie != OF_ADDRESS || !is_address)
        return __real_zr_control_arrive(comm, call, payload, payload_bytes, all);
    memcpy(changed, payload, sizeof(changed));
    memcpy(changed, &lie_value, sizeof(lie_value));
    return __real_zr_control_arrive(comm, call, changed, payload_bytes, all);
}

WRAP(void, zr_ucx_links_post, zr_ucx_links_t *links, zr_mpi_transfer_t *transfers, size_t n) {
    for (size_t i = 0; lie == OF_SIZE && i < n; i++)
        if (transfers[i].is_send)
            transfers[i].size_bytes += (size_t)lie_value;
    __real_zr_ucx_links_post(links, transfers, n);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)rank;
    expect_one_thing(message);
    if (level == ZR_LOG_ERROR && ((char *)context)[0] == '\0')
        snprintf(context, ZR_REASON_BYTES, "%s", message);
}

/* @param error  [ZR_REASON_BYTES] in memory that is shared. 0: it went well, or has that error */
static int run_rank(int rank, int port, char *error) {
    zr_launch_t launch = {.host = "127.0.0.1", .port = port, .rank = rank, .n_ranks = N_RANKS};
    zr_message_t message = {"numbers", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_comm_options_t options = zr_comm_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_comm_t *comm = NULL;
    options.log = (zr_log_t){.sink = keep_error, .context = error, .level = ZR_LOG_ERROR};
    options.timeout_ms = LONG_MS;
    options.machine_ranks = 1;
    options.through_ucx = true;
    float *numbers = malloc((N_ELEMS + 1) * sizeof(*numbers));
    for (size_t i = 0; i < N_ELEMS; i++)
        numbers[i] = (float)(rank + 1);
    if (zr_device_open("host", NULL, &device) != ZR_OK ||
        zr_stream_create(device, "comm", &stream) != ZR_OK ||
        zr_comm_create_mpi(&launch, &options, &comm) != ZR_OK)
        return 1;
    zr_status_t status = zr_comm_all_reduce(comm, &message, numbers, N_ELEMS, stream);
    bool is_right = status == ZR_OK ? numbers[0] == 6.0f && numbers[N_ELEMS - 1] == 6.0f
                                    : status == ZR_ERR_COMM && error[0] != '\0';
    zr_comm_destroy(&comm);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    free(numbers);
    return !is_right;
}

/* A default for each signal, as this program has left it, and malloc where it was. */
static bool is_process_untouched(void) {
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN)
            return false;
    }
    return true;
}

/* What UCX would take, and this test's framework too. */
static void forget_handlers(void) {
    static const int numbers[] = {SIGHUP, SIGILL, SIGABRT, SIGFPE, SIGSEGV, SIGBUS, SIGSYS};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        signal(numbers[i], SIG_DFL);
}

static bool has_ucx(void) {
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) == NULL);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* @param words  of the others' errors; NULL: there is none */
static void tell(lie_t told, int64_t value, const char *words) {
    pid_t children[N_RANKS];
    int port = free_port();
    if (!has_ucx())
        skip();
    char *errors = mmap(NULL, N_RANKS * ZR_REASON_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(errors != MAP_FAILED);
    fflush(NULL);
    for (int rank = 0; rank < N_RANKS; rank++) {
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] != 0)
            continue;
        lie = rank == LIAR ? told : NONE;
        lie_value = value;
        forget_handlers();
        int code = run_rank(rank, port, errors + rank * ZR_REASON_BYTES);
        _exit(code != 0 ? code : is_process_untouched() ? 0 : 2);
    }
    int n_named = 0;
    for (int rank = 0; rank < N_RANKS; rank++) {
        const char *error = errors + rank * ZR_REASON_BYTES;
        int status = 0;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        n_named += words != NULL && rank != LIAR && strstr(error, words) != NULL;
        if (status != 0 || (words == NULL) != (error[0] == '\0'))
            fail_msg("rank %d: status %x, \"%s\"", rank, (unsigned)status, error);
    }
    if (words != NULL && n_named == 0)
        fail_msg("\"%s\" does not say \"%s\"", errors, words);
    munmap(errors, N_RANKS * ZR_REASON_BYTES);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(the_process_keeps_its_signals) {
    tell(NONE, 0, NULL);
}

TEST(a_rank_without_ucx_is_named) {
    tell(NO_UCX, 0, "rank 1 cannot reach ranks of other machines: UCX: libucp.so.is.not.here");
}

TEST(an_address_without_a_size) {
    static const int64_t sizes[] = {0, -1, 8193, INT64_MIN};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        tell(OF_ADDRESS, sizes[i],
             "refuses what rank 1 has sent: an address for data without a possible size");
}

/* An all-reduce's slices have 40000 bytes. */
TEST(data_of_another_size) {
    tell(OF_SIZE, -4, "refuses what rank 1 has sent: 39996 bytes of data, expected 40000");
    tell(OF_SIZE, 4, "refuses what rank 1 has sent: more bytes of data, expected 40000");
}
