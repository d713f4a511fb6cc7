/*
 * A save of which one call fails, on one rank of two: each in turn of those of the system and of
 * the ring, and of what is allocated. Every rank has the error, or none has; nothing of it is left,
 * and what was saved before is there; the run goes on as if nothing had been, and its next
 * checkpoint is the one that it would have saved. And a run that goes on from a checkpoint of which
 * a call fails: it ends on every rank.
 *
 * ZR_TESTS_ALL=1 in the environment goes through all calls, instead of some.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <dirent.h>
#include <jansson.h>

#include "offload/uring_ring_internal.h"
#include "tests/common/test.h"
#include "tests/fault/fault_wrap.h"
#include "tests/zero/checkpoint/folder_fixture.h"
#include "tests/zero/toy.h"
#include "zero/checkpoint/save_internal.h"
#include "zero/runtime_internal.h"

#define N_RANKS 2
#define N_STEPS 3
/* Saves of a run: at once, after two steps, after the last; one of them fails. */
enum { FIRST_STEP = 0, SAVED_STEP = 2, FAULTY_SAVE = 2, N_SAVES = 3 };
/* A run takes milliseconds; one that takes this long hangs. */
#define WATCHDOG_SECONDS 100

/* ---- what fails ------------------------------------------------------------------------------ */

typedef enum kind { CALLS, SHORT_TRANSFERS, FLIPPED_READS } kind_t;

static kind_t kind;
static bool is_restoring; /* what fails is a call of commit */
static int faulty_rank;
static atomic_int n_saves[N_RANKS]; /* begun */
static zr_status_t ended_in[N_RANKS];
static zr_save_writer_t *_Atomic writer_of[N_RANKS];

#define WRAP(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

/* Requests of rings, by ring and tag: what a completion is of. */
#define MOST_REQUESTS 4096
typedef struct noted {
    zr_ring_t *ring;
    zr_ring_request_t request;
} noted_t;
static _Thread_local noted_t noted[MOST_REQUESTS];

static bool is_faulty(int rank) {
    return !is_restoring && rank == faulty_rank && atomic_load(&n_saves[rank]) == FAULTY_SAVE;
}

/* What is there after the save that fails: one that has its name is whole. */
static atomic_bool has_first, has_second, has_damaged, has_unfinished;

static bool is_whole(size_t step) {
    char path[160];
    zr_log_t log = {.level = ZR_LOG_ERROR};
    zr_checkpoint_t *checkpoint = NULL;
    snprintf(path, sizeof(path), "%s/step-%08zu", saved, step);
    if (access(path, F_OK) != 0)
        return false;
    bool whole = zr_checkpoint_open(path, &log, &checkpoint) == ZR_OK &&
                 zr_checkpoint_verify(checkpoint, &log, NULL, NULL) == ZR_OK;
    zr_checkpoint_close(&checkpoint);
    if (!whole)
        atomic_store(&has_damaged, true);
    return whole;
}

static bool is_empty_of_others(void) {
    DIR *stream = opendir(saved);
    const struct dirent *entry;
    bool is_empty = true;
    if (stream == NULL)
        return false;
    while ((entry = readdir(stream)) != NULL)
        is_empty &= strncmp(entry->d_name, ".step", 5) != 0;
    closedir(stream);
    return is_empty;
}

static void look_between(void) {
    fault_spare_allocations(true);
    atomic_store(&has_first, is_whole(FIRST_STEP));
    atomic_store(&has_second, is_whole(SAVED_STEP));
    atomic_store(&has_unfinished, !is_empty_of_others());
    fault_spare_allocations(kind != CALLS);
}

static void note_end(int rank, zr_status_t status) {
    fault_enter(false);
    if (atomic_load(&n_saves[rank]) == FAULTY_SAVE && ended_in[rank] == ZR_OK)
        ended_in[rank] = status;
}

static void note_begin(int rank) {
    if (atomic_fetch_add(&n_saves[rank], 1) == FAULTY_SAVE && rank == 0)
        look_between();
    fault_enter(is_faulty(rank));
}

WRAP(zr_status_t, zr_runtime_save, zr_runtime_t *runtime, const zr_save_options_t *options,
     zr_save_report_t *report_p) {
    note_begin(runtime->base.rank);
    zr_status_t status = __real_zr_runtime_save(runtime, options, report_p);
    note_end(runtime->base.rank, status);
    return status;
}

WRAP(zr_status_t, zr_runtime_save_begin, zr_runtime_t *runtime, const zr_save_options_t *options) {
    note_begin(runtime->base.rank);
    zr_status_t status = __real_zr_runtime_save_begin(runtime, options);
    note_end(runtime->base.rank, status);
    return status;
}

WRAP(zr_status_t, zr_runtime_save_end, zr_runtime_t *runtime, bool wait, bool *ended_p,
     zr_save_report_t *report_p) {
    fault_enter(is_faulty(runtime->base.rank));
    zr_status_t status = __real_zr_runtime_save_end(runtime, wait, ended_p, report_p);
    note_end(runtime->base.rank, status);
    return status;
}

WRAP(zr_status_t, zr_save_writer_create, const zr_saves_t *saves, const zr_slices_t *slices,
     const char *path, bool copies, zr_save_writer_t **writer_p) {
    zr_status_t status = __real_zr_save_writer_create(saves, slices, path, copies, writer_p);
    atomic_store(&writer_of[saves->base->rank], status == ZR_OK ? *writer_p : NULL);
    return status;
}

/* Of a thread of its own, where the run goes on. */
WRAP(zr_status_t, zr_save_writer_finish, zr_save_writer_t *writer, zr_written_file_t *file_p) {
    bool inside = atomic_load(&writer_of[faulty_rank]) == writer && is_faulty(faulty_rank);
    bool before = fault_enter(inside);
    zr_status_t status = __real_zr_save_writer_finish(writer, file_p);
    fault_enter(before);
    return status;
}

WRAP(zr_status_t, zr_runtime_commit, zr_runtime_t *runtime) {
    fault_enter(is_restoring && runtime->base.rank == faulty_rank);
    zr_status_t status = __real_zr_runtime_commit(runtime);
    fault_enter(false);
    return status;
}

/* Memory of a budget; who refuses it here does not say so. */
static bool is_said;

WRAP(zr_status_t, zr_allocate, zr_allocator_t *allocator, const zr_allocation_request_t *request,
     void **pointer_p) {
    if (kind != CALLS || !fault_meets(ENOMEM))
        return __real_zr_allocate(allocator, request, pointer_p);
    is_said = false;
    return ZR_ERR_BUDGET;
}

/* ---- calls of the system --------------------------------------------------------------------- */

WRAP(int, open, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    return kind == CALLS && fault_meets(EMFILE) ? -1 : __real_open(path, flags, mode);
}

WRAP(int, openat, int fd, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    return kind == CALLS && fault_meets(EMFILE) ? -1 : __real_openat(fd, path, flags, mode);
}

#define FAILS(error) (kind == CALLS && fault_meets(error))

WRAP(int, mkdirat, int fd, const char *path, mode_t mode) {
    return FAILS(ENOSPC) ? -1 : __real_mkdirat(fd, path, mode);
}
WRAP(int, unlinkat, int fd, const char *path, int flags) {
    return FAILS(EIO) ? -1 : __real_unlinkat(fd, path, flags);
}
WRAP(int, renameat, int from, const char *old, int to, const char *name) {
    return FAILS(EIO) ? -1 : __real_renameat(from, old, to, name);
}
WRAP(int, renameat2, int from, const char *old, int to, const char *name, unsigned flags) {
    return FAILS(EIO) ? -1 : __real_renameat2(from, old, to, name, flags);
}
WRAP(int, rename, const char *old, const char *name) {
    return FAILS(EIO) ? -1 : __real_rename(old, name);
}
WRAP(int, fsync, int fd) {
    return FAILS(EIO) ? -1 : __real_fsync(fd);
}
WRAP(int, ftruncate, int fd, off_t length) {
    return FAILS(EIO) ? -1 : __real_ftruncate(fd, length);
}
WRAP(int, fallocate, int fd, int mode, off_t offset, off_t length) {
    return FAILS(ENOSPC) ? -1 : __real_fallocate(fd, mode, offset, length);
}
WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t n_bytes, off_t offset) {
    if (FAILS(EIO))
        return -1;
    if (kind == SHORT_TRANSFERS && n_bytes > 1 && fault_meets(0))
        n_bytes /= 2;
    return __real_pwrite(fd, bytes, n_bytes, offset);
}

/* Of a checkpoint: a store reads what it has written as well, to see what the drive can do. */
static bool is_of_checkpoint(int fd) {
    char link[64], name[256];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof(name) - 1);
    name[n > 0 ? n : 0] = '\0';
    return strncmp(name, saved, strlen(saved)) == 0;
}

WRAP(ssize_t, pread, int fd, void *bytes, size_t n_bytes, off_t offset) {
    if (FAILS(EIO))
        return -1;
    if (kind == SHORT_TRANSFERS && n_bytes > 1 && fault_meets(0))
        n_bytes /= 2;
    ssize_t n = __real_pread(fd, bytes, n_bytes, offset);
    if (kind == FLIPPED_READS && is_restoring && n > 0 && is_of_checkpoint(fd) && fault_meets(0))
        ((unsigned char *)bytes)[n / 3] ^= 4;
    return n;
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* The ring of the save that is to fail. The run's own takes nothing more once the system has not
 * taken its requests. */
static zr_ring_t *_Atomic own_ring;

WRAP(int, zr_ring_open, unsigned depth, bool poll, zr_ring_t **ring_p) {
    int error = FAILS(ENOMEM) ? -ENOMEM : __real_zr_ring_open(depth, poll, ring_p);
    if (fault_is_inside() && error == 0)
        atomic_store(&own_ring, *ring_p);
    return error;
}
WRAP(int, zr_ring_register_files, zr_ring_t *ring, const int *files, unsigned n_files) {
    return FAILS(ENOMEM) ? -ENOMEM : __real_zr_ring_register_files(ring, files, n_files);
}
WRAP(int, zr_ring_register_buffers, zr_ring_t *ring, const struct iovec *buffers, unsigned n) {
    return FAILS(ENOMEM) ? -ENOMEM : __real_zr_ring_register_buffers(ring, buffers, n);
}
WRAP(int, zr_ring_submit, zr_ring_t *ring) {
    bool fails = atomic_load(&own_ring) == ring && FAILS(EIO);
    return fails ? -EIO : __real_zr_ring_submit(ring);
}

WRAP(int, zr_ring_queue, zr_ring_t *ring, const zr_ring_request_t *request) {
    zr_ring_request_t changed = *request;
    size_t length = request->size_bytes / 2 / 4096 * 4096;
    if (kind == SHORT_TRANSFERS && length > 0 && fault_meets(0))
        changed.size_bytes = (uint32_t)length;
    noted[request->tag % MOST_REQUESTS] = (noted_t){ring, *request};
    return __real_zr_ring_queue(ring, &changed);
}

/* A request that was made by this thread: those of others are not known here. */
static const zr_ring_request_t *request_of(const zr_ring_t *ring, uint64_t tag) {
    const noted_t *note = &noted[tag % MOST_REQUESTS];
    return note->ring == ring ? &note->request : NULL;
}

WRAP(int, zr_ring_next, zr_ring_t *ring, int timeout_ms, zr_ring_completion_t *completion_p) {
    int n = __real_zr_ring_next(ring, timeout_ms, completion_p);
    if (n != 1)
        return n;
    const zr_ring_request_t *request = request_of(ring, completion_p->tag);
    if (FAILS(EIO))
        completion_p->result = -EIO;
    if (kind == FLIPPED_READS && request != NULL && !request->is_write && fault_meets(0))
        ((unsigned char *)request->memory)[1] ^= 4;
    return n;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The whole of a small file. */
static char *read_text(const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return NULL;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    assert_int_equal(fclose(file), 0);
    text[n] = '\0';
    return text;
}

static void path_of(size_t step, const char *name, char path[160]) {
    snprintf(path, 160, "%s/step-%08zu%s", saved, step, name);
}

typedef struct undisturbed {
    uint64_t hash;
    char manifest[1 << 16];
} undisturbed_t;

/* In these words every run is told apart. */
static char run_name[160];

static void check_saved(const undisturbed_t *expected) {
    char path[160];
    zr_status_t status = ended_in[0];
    for (int rank = 0; rank < N_RANKS; rank++)
        if ((ended_in[rank] == ZR_OK) != (status == ZR_OK))
            fail_msg("%s: rank %d ended in %s, rank 0 in %s", run_name, rank,
                     zr_status_name(ended_in[rank]), zr_status_name(status));
    if (kind == SHORT_TRANSFERS && status != ZR_OK)
        fail_msg("%s: what was moved in two parts is %s", run_name, zr_status_name(status));
    if (kind == FLIPPED_READS && fault_hit() && status != ZR_ERR_FORMAT)
        fail_msg("%s: a changed bit is %s", run_name, zr_status_name(status));
    bool has_last = is_whole(N_STEPS);
    if (atomic_load(&has_damaged))
        fail_msg("%s: a checkpoint that has its name is not whole", run_name);
    if (!has_last || !atomic_load(status == ZR_OK ? &has_second : &has_first))
        fail_msg("%s: a checkpoint is gone", run_name);
    if (!is_empty_of_others() || (status != ZR_OK && atomic_load(&has_unfinished)))
        fail_msg("%s: something is left", run_name);
    path_of(N_STEPS, "/manifest.json", path);
    if (strcmp(read_text(path), expected->manifest) != 0)
        fail_msg("%s: another checkpoint is saved later", run_name);
}

/* One run; false: fewer calls were made than were to fail. */
static bool train(const toy_options_t *options, long at, const undisturbed_t *expected) {
    toy_result_t result;
    long live = fault_live(), mapped = fault_mapped_bytes();
    size_t descriptors = fault_descriptors();
    for (int rank = 0; rank < N_RANKS; rank++) {
        atomic_store(&n_saves[rank], 0);
        ended_in[rank] = ZR_OK;
    }
    alarm(WATCHDOG_SECONDS);
    fault_arm(at);
    toy_train(options, &result);
    bool hit = fault_hit();
    alarm(0);
    for (int rank = 0; rank < N_RANKS; rank++)
        if (result.status[rank] != ZR_OK || result.saved[rank] != ZR_OK)
            fail_msg("%s: rank %d: %s, the last save: %s: %s", run_name, rank,
                     zr_status_name(result.status[rank]), zr_status_name(result.saved[rank]),
                     result.last_error[rank]);
    if (fault_live() != live || fault_mapped_bytes() != mapped)
        fail_msg("%s: %ld allocations, %ld mapped bytes are left", run_name, fault_live() - live,
                 fault_mapped_bytes() - mapped);
    if (fault_descriptors() != descriptors)
        fail_msg("%s: a file is left open", run_name);
    if (expected != NULL) {
        if (result.hash != expected->hash)
            fail_msg("%s: other weights", run_name);
        check_saved(expected);
        empty(saved);
    }
    return hit;
}

static undisturbed_t *train_undisturbed(toy_options_t *options) {
    static undisturbed_t undisturbed;
    toy_result_t result;
    char path[160];
    fault_arm(0);
    toy_train(options, &result);
    assert_int_equal(result.saved[0], ZR_OK);
    undisturbed.hash = result.hash;
    path_of(N_STEPS, "/manifest.json", path);
    snprintf(undisturbed.manifest, sizeof(undisturbed.manifest), "%s", read_text(path));
    empty(saved);
    return &undisturbed;
}

typedef struct way {
    const char *name;
    int stage;
    zr_offload_device_t state, params;
    bool goes_on;
    bool expects;
    size_t keep;
} way_t;

static const way_t ways[] = {
    {"memory", 2, ZR_OFFLOAD_NONE, ZR_OFFLOAD_NONE, false, false, 0},
    {"memory, one is kept", 1, ZR_OFFLOAD_NONE, ZR_OFFLOAD_NONE, false, false, 1},
    {"memory, going on", 1, ZR_OFFLOAD_CPU, ZR_OFFLOAD_NONE, true, true, 0},
    {"nvme", 3, ZR_OFFLOAD_NVME, ZR_OFFLOAD_NVME, false, true, 2},
    {"nvme, going on", 0, ZR_OFFLOAD_NVME, ZR_OFFLOAD_NONE, true, false, 1},
};
#define N_WAYS (N_OF(ways))

static toy_options_t options_of(const way_t *way) {
    toy_options_t options = toy_options_default(way->stage, N_RANKS);
    options.n_steps = N_STEPS;
    options.frozen = true;
    options.quiet = true;
    options.save_to = saved;
    options.save_at_once = true;
    options.save_step = SAVED_STEP;
    options.save_goes_on = way->goes_on;
    options.expect_saves = way->expects;
    options.keep = way->keep;
    options.config.offload_optimizer.device = way->state;
    options.config.offload_param.device = way->params;
    options.config.offload_param.buffer_elems = 8192;
    options.config.sub_group_elems = 4096;
    options.config.nvme.store = "uring";
    snprintf(options.config.nvme.paths, sizeof(options.config.nvme.paths), "%s", folder);
    return options;
}

static void fail_each(kind_t of_kind, size_t stride) {
    kind = of_kind;
    fault_spare_allocations(kind != CALLS);
    if (TEST_IS_SLOW)
        stride = 2 * stride + 1;
    if (getenv("ZR_TESTS_ALL") != NULL)
        stride = 1;
    for (size_t w = 0; w < N_WAYS; w++) {
        toy_options_t options = options_of(&ways[w]);
        faulty_rank = 0;
        const undisturbed_t *expected = train_undisturbed(&options);
        for (faulty_rank = 0; faulty_rank < N_RANKS; faulty_rank++) {
            long n = 1 + (long)(w % stride);
            bool hit = true;
            for (; hit; n += (long)stride) {
                snprintf(run_name, sizeof(run_name), "%s: call %ld of rank %d", ways[w].name, n,
                         faulty_rank);
                hit = train(&options, n, expected);
            }
            print_message("%s: rank %d makes about %ld calls\n", ways[w].name, faulty_rank, n);
        }
    }
    fault_arm(0);
}

/* ---- going on from one ----------------------------------------------------------------------- */

static void check_restored(const toy_result_t *result, uint64_t hash) {
    bool failed = result->status[faulty_rank] != ZR_OK;
    if (kind == SHORT_TRANSFERS && failed)
        fail_msg("%s: what was read in two parts is %s", run_name,
                 zr_status_name(result->status[faulty_rank]));
    if (kind == FLIPPED_READS && fault_hit() && result->status[faulty_rank] != ZR_ERR_FORMAT)
        fail_msg("%s: a changed bit is %s", run_name, zr_status_name(result->status[faulty_rank]));
    if (failed && is_said && result->last_error[faulty_rank][0] == '\0')
        fail_msg("%s: nobody said why", run_name);
    if (!failed && result->hash != hash)
        fail_msg("%s: other weights", run_name);
    if (result->status[1 - faulty_rank] != (failed ? ZR_ERR_COMM : ZR_OK))
        fail_msg("%s: the other rank ended in %s", run_name,
                 zr_status_name(result->status[1 - faulty_rank]));
}

static bool restore(const toy_options_t *options, long at, uint64_t hash) {
    toy_result_t result;
    long live = fault_live(), mapped = fault_mapped_bytes();
    size_t descriptors = fault_descriptors();
    alarm(WATCHDOG_SECONDS);
    fault_arm(at);
    is_said = true;
    toy_train(options, &result);
    alarm(0);
    check_restored(&result, hash);
    if (fault_live() != live || fault_mapped_bytes() != mapped ||
        fault_descriptors() != descriptors)
        fail_msg("%s: %ld allocations, %ld mapped bytes, or files, are left", run_name,
                 fault_live() - live, fault_mapped_bytes() - mapped);
    return fault_hit();
}

static void fail_each_restore(kind_t of_kind, size_t stride) {
    kind = of_kind;
    is_restoring = true;
    fault_spare_allocations(kind != CALLS);
    if (TEST_IS_SLOW)
        stride = 2 * stride + 1;
    if (getenv("ZR_TESTS_ALL") != NULL)
        stride = 1;
    for (size_t w = 0; w < N_WAYS; w++) {
        toy_options_t options = options_of(&ways[w]);
        faulty_rank = 0;
        toy_result_t result;
        fault_arm(0);
        options.keep = 0;
        toy_train(&options, &result);
        uint64_t hash = result.hash;
        char path[160];
        path_of(SAVED_STEP, "", path);
        options.restore_from = path;
        options.save_to = NULL;
        for (faulty_rank = 0; faulty_rank < N_RANKS; faulty_rank++) {
            long n = 1 + (long)(w % stride);
            for (bool hit = true; hit; n += (long)stride) {
                snprintf(run_name, sizeof(run_name), "restore, %s: call %ld of rank %d",
                         ways[w].name, n, faulty_rank);
                hit = restore(&options, n, hash);
            }
            print_message("%s: rank %d makes about %ld calls\n", ways[w].name, faulty_rank, n);
        }
        assert_true(is_whole(SAVED_STEP));
        empty(saved);
    }
    is_restoring = false;
    fault_arm(0);
}

TEST(a_restore_may_fail) {
    fail_each_restore(CALLS, 11);
    fail_each_restore(SHORT_TRANSFERS, 7);
    fail_each_restore(FLIPPED_READS, 7);
}

TEST(each_call_may_fail) {
    fail_each(CALLS, 5);
}

TEST(transfers_may_be_short) {
    fail_each(SHORT_TRANSFERS, 3);
}

TEST(a_changed_bit_is_not_saved) {
    fail_each(FLIPPED_READS, 2);
}

static int prepare(void **state) {
    int made = make_folder_in_memory(state);
    fault_scope(true);
    json_set_alloc_funcs(fault_malloc_always, fault_free);
    return made;
}

const test_group_t test_group = {prepare, remove_folder};
