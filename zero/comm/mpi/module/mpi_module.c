/* See ../mpi_module.h. Nothing else in the library includes mpi.h. */
#include "zero/comm/mpi/mpi_module.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/lived_internal.h"

enum {
    N_EAGER_LOOKS = 200,    /* at transfers, before a pause between two looks */
    LEAST_PAUSE_NS = 20000, /* of the first such pause */
    MOST_PAUSE_NS = 500000  /* pauses grow to this */
};

/* What the thread is asked for besides transfers. */
typedef enum job { JOB_NONE, JOB_INIT, JOB_GATHER, JOB_FINALIZE } job_t;

static struct {
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t asked, answered;
    int n_users;
    bool is_running; /* the thread is */
    bool is_begun;   /* MPI is */
    bool is_ended;   /* MPI is, and cannot be begun again */
    bool is_given_up;
    job_t job; /* under way */
    bool job_failed;
    const void *own; /* JOB_GATHER; both are the module's, so that who asks may go */
    void *all;
    int own_bytes;
    zr_mpi_transfer_t *posted, **posted_end; /* not yet taken by the thread */
    zr_mpi_world_t world;
    char error[ZR_MPI_ERROR_BYTES]; /* the first of MPI's, "" without one */
    /* the thread's own: */
    bool owns_mpi; /* it has begun MPI, and not the program */
    MPI_Comm comm;
    MPI_Request *requests; /* under way */
    zr_mpi_transfer_t **transfers;
    int *indices; /* of MPI_Testsome, as are */
    MPI_Status *statuses;
    int n_active, capacity;
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .comm = MPI_COMM_NULL};

/* ---- the thread ------------------------------------------------------------------------------ */

/* Keep the first error of MPI's. Lock held. */
static void note_error(const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (self.error[0] != '\0')
        return;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", code);
    snprintf(self.error, sizeof(self.error), "%s: %.200s", what, text);
}

/* Begin MPI unless the program has, and take a communicator of our own. */
static bool begin(void) {
    int is_initialized = 0, level = MPI_THREAD_SINGLE;
    int code = MPI_Initialized(&is_initialized);
    if (code == MPI_SUCCESS && is_initialized) {
        code = MPI_Query_thread(&level);
        if (code == MPI_SUCCESS && level < MPI_THREAD_MULTIPLE) {
            snprintf(self.error, sizeof(self.error),
                     "the program has initialised MPI without MPI_THREAD_MULTIPLE");
            return false;
        }
    } else if (code == MPI_SUCCESS) {
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        self.owns_mpi = code == MPI_SUCCESS;
    }
    if (code == MPI_SUCCESS)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &self.comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(self.comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(self.comm, &self.world.rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(self.comm, &self.world.n_ranks);
    if (code != MPI_SUCCESS) {
        note_error("MPI cannot be initialised", code);
        return false;
    }
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    (void)MPI_Get_library_version(library, &length);
    snprintf(self.world.library, sizeof(self.world.library), "%.*s", (int)strcspn(library, ",\n"),
             library);
    return true;
}

/* Do what was asked for; true when it went well. Lock not held. */
static bool do_job(job_t job) {
    int code = MPI_SUCCESS;
    if (job == JOB_INIT)
        return begin();
    if (job == JOB_GATHER)
        code = MPI_Allgather(self.own, self.own_bytes, MPI_BYTE, self.all, self.own_bytes, MPI_BYTE,
                             self.comm);
    else if (self.owns_mpi)
        code = MPI_Finalize();
    else
        code = MPI_Comm_free(&self.comm);
    if (code != MPI_SUCCESS)
        note_error(job == JOB_GATHER ? "MPI_Allgather" : "the end of MPI", code);
    return code == MPI_SUCCESS;
}

static bool grow(void) {
    if (self.n_active < self.capacity)
        return true;
    int capacity = self.capacity > 0 ? 2 * self.capacity : 64;
    size_t n = (size_t)capacity;
    void *arrays[] = {&self.requests, &self.transfers, &self.indices, &self.statuses};
    const size_t elem_bytes[] = {sizeof(*self.requests), sizeof(*self.transfers),
                                 sizeof(*self.indices), sizeof(*self.statuses)};
    for (int i = 0; i < 4; i++) {
        void *grown;
        memcpy(&grown, arrays[i], sizeof(grown));
        grown = realloc(grown, n * elem_bytes[i]);
        if (grown == NULL)
            return false;
        memcpy(arrays[i], &grown, sizeof(grown));
    }
    self.capacity = capacity;
    return true;
}

/* Give MPI what was posted. Lock held; such calls do not wait. */
static void take_posted(void) {
    while (self.posted != NULL && self.error[0] == '\0') {
        zr_mpi_transfer_t *transfer = self.posted;
        int size = (int)transfer->size_bytes, code;
        if (!grow()) {
            snprintf(self.error, sizeof(self.error), "no memory for transfers");
            return;
        }
        MPI_Request *request = &self.requests[self.n_active];
        if (transfer->is_send)
            code = MPI_Isend(transfer->buffer, size, MPI_BYTE, transfer->peer, transfer->tag,
                             self.comm, request);
        else
            code = MPI_Irecv(transfer->buffer, size, MPI_BYTE, transfer->peer, transfer->tag,
                             self.comm, request);
        if (code != MPI_SUCCESS) {
            note_error(transfer->is_send ? "MPI_Isend" : "MPI_Irecv", code);
            return;
        }
        self.transfers[self.n_active++] = transfer;
        self.posted = transfer->next;
        if (self.posted == NULL)
            self.posted_end = &self.posted;
    }
}

/* Look at what is under way, and keep the rest together in order. Lock held. True: some are done.
 */
static bool look(void) {
    int n_done = 0;
    int code = MPI_Testsome(self.n_active, self.requests, &n_done, self.indices, self.statuses);
    if (code != MPI_SUCCESS) {
        note_error("MPI_Testsome", code);
        return true;
    }
    if (n_done <= 0) /* MPI_UNDEFINED is negative */
        return false;
    for (int i = 0; i < n_done; i++) {
        zr_mpi_transfer_t *transfer = self.transfers[self.indices[i]];
        int n_bytes = (int)transfer->size_bytes;
        if (!transfer->is_send)
            (void)MPI_Get_count(&self.statuses[i], MPI_BYTE, &n_bytes);
        transfer->is_done = (size_t)n_bytes == transfer->size_bytes;
        if (!transfer->is_done)
            snprintf(self.error, sizeof(self.error), "rank %d has sent %d of %zu bytes",
                     transfer->peer, n_bytes, transfer->size_bytes);
    }
    int n_left = 0;
    for (int i = 0; i < self.n_active; i++) {
        if (self.transfers[i]->is_done)
            continue;
        self.transfers[n_left] = self.transfers[i];
        self.requests[n_left++] = self.requests[i];
    }
    self.n_active = n_left;
    return true;
}

static void pause_between_looks(int n_vain) {
    if (n_vain < N_EAGER_LOOKS) {
        (void)sched_yield();
        return;
    }
    long ns = (long)LEAST_PAUSE_NS * (n_vain - N_EAGER_LOOKS + 1);
    struct timespec pause = {.tv_nsec = ns < MOST_PAUSE_NS ? ns : MOST_PAUSE_NS};
    (void)nanosleep(&pause, NULL);
}

/* Lock held before and after. */
static void run_job(void) {
    job_t job = self.job;
    pthread_mutex_unlock(&self.lock);
    bool is_made = do_job(job);
    pthread_mutex_lock(&self.lock);
    self.job_failed = !is_made;
    self.job = JOB_NONE;
    self.is_begun |= job == JOB_INIT && is_made;
    if (job == JOB_FINALIZE) {
        self.is_ended = self.owns_mpi;
        self.is_begun = false;
        self.is_running = false;
    }
    pthread_cond_broadcast(&self.answered);
}

static void *thread_main(void *argument) {
    (void)argument;
    int n_vain = 0;
    pthread_mutex_lock(&self.lock);
    while (self.is_running && !self.is_given_up) {
        if (self.job != JOB_NONE) {
            run_job();
            continue;
        }
        take_posted();
        bool has_news = self.error[0] != '\0' || (self.n_active > 0 && look());
        if (has_news) {
            n_vain = 0;
            pthread_cond_broadcast(&self.answered);
        }
        if (self.error[0] != '\0' || (self.n_active == 0 && self.posted == NULL)) {
            pthread_cond_wait(&self.asked, &self.lock);
        } else if (!has_news) {
            pthread_mutex_unlock(&self.lock);
            pause_between_looks(n_vain++);
            pthread_mutex_lock(&self.lock);
        }
    }
    pthread_mutex_unlock(&self.lock);
    return NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Have a job done. One at a time: who comes first. Lock held. False: it failed, or takes longer,
 * and then MPI is given up. */
static bool ask(job_t job, int timeout_ms, const char *what, char *error) {
    zr_lived_t clock = {0};
    self.job = job;
    self.job_failed = false;
    pthread_cond_broadcast(&self.asked);
    while (self.job != JOB_NONE && !self.is_given_up) {
        if (zr_lived_ms(&clock) >= timeout_ms) {
            self.is_given_up = true;
            snprintf(error, ZR_MPI_ERROR_BYTES, "%s has not returned for %d ms", what, timeout_ms);
            return false;
        }
        zr_lived_wait(&self.answered, &self.lock, ZR_LIVED_SLICE_MS);
    }
    if (self.job_failed || self.is_given_up) {
        snprintf(error, ZR_MPI_ERROR_BYTES, "%s",
                 self.error[0] != '\0' ? self.error : "MPI was given up in this process");
        return false;
    }
    return true;
}

/* Whether MPI may be used at all. Lock held. */
static bool check_state(char *error) {
    const char *why = NULL;
    if (self.is_ended)
        why =
            "MPI was finalised in this process with the last communicator that used it, and cannot "
            "be initialised again; a program that needs it longer must initialise MPI itself";
    else if (self.is_given_up)
        why = "MPI was given up in this process, when ranks had failed";
    if (why != NULL)
        snprintf(error, ZR_MPI_ERROR_BYTES, "%s", why);
    return why == NULL;
}

static bool start_thread(char *error) {
    pthread_t thread;
    if (self.is_running)
        return true;
    if (self.posted_end == NULL) { /* the first time in this process */
        if (!zr_lived_init_condition(&self.asked) || !zr_lived_init_condition(&self.answered)) {
            snprintf(error, ZR_MPI_ERROR_BYTES, "no memory for the thread that calls MPI");
            return false;
        }
        self.posted_end = &self.posted;
    }
    self.is_running = true;
    if (pthread_create(&thread, NULL, thread_main, NULL) != 0) {
        self.is_running = false;
        snprintf(error, ZR_MPI_ERROR_BYTES, "no memory for the thread that calls MPI");
        return false;
    }
    (void)pthread_detach(thread); /* a call of MPI's that does not return holds nobody up */
    return true;
}

static bool module_open(int timeout_ms, zr_mpi_world_t *world_p, char *error) {
    pthread_mutex_lock(&self.lock);
    bool is_open = check_state(error) && start_thread(error) &&
                   (self.is_begun || ask(JOB_INIT, timeout_ms, "MPI_Init", error));
    if (is_open) {
        self.n_users++;
        *world_p = self.world;
    }
    pthread_mutex_unlock(&self.lock);
    return is_open;
}

static bool module_gather(const void *own, size_t size_bytes, void *all, int timeout_ms,
                          char *error) {
    bool is_made = false;
    pthread_mutex_lock(&self.lock);
    size_t all_bytes = size_bytes * (size_t)self.world.n_ranks;
    char *copy = malloc(size_bytes + all_bytes);
    if (copy == NULL) {
        snprintf(error, ZR_MPI_ERROR_BYTES, "no memory for the messages of %d ranks",
                 self.world.n_ranks);
    } else if (check_state(error)) {
        memcpy(copy, own, size_bytes);
        self.own = copy;
        self.all = copy + size_bytes;
        self.own_bytes = (int)size_bytes;
        is_made = ask(JOB_GATHER, timeout_ms, "MPI_Allgather", error);
        if (is_made)
            memcpy(all, self.all, all_bytes);
    }
    if (!self.is_given_up) /* else MPI may still work on it */
        free(copy);
    pthread_mutex_unlock(&self.lock);
    return is_made;
}

static void module_post(zr_mpi_transfer_t *transfers, size_t n_transfers) {
    pthread_mutex_lock(&self.lock);
    for (size_t i = 0; i < n_transfers; i++) {
        transfers[i].is_done = false;
        transfers[i].next = NULL;
        *self.posted_end = &transfers[i];
        self.posted_end = &transfers[i].next;
    }
    pthread_cond_broadcast(&self.asked);
    pthread_mutex_unlock(&self.lock);
}

static size_t count_left(const zr_mpi_transfer_t *transfers, size_t n_transfers) {
    size_t n_left = 0;
    for (size_t i = 0; i < n_transfers; i++)
        n_left += !transfers[i].is_done;
    return n_left;
}

static bool module_wait(zr_mpi_transfer_t *transfers, size_t n_transfers, int wait_ms,
                        size_t *n_left_p, char *error) {
    pthread_mutex_lock(&self.lock);
    if (count_left(transfers, n_transfers) > 0 && self.error[0] == '\0' && !self.is_given_up)
        zr_lived_wait(&self.answered, &self.lock, wait_ms);
    bool is_fine = check_state(error);
    if (is_fine && self.error[0] != '\0') {
        snprintf(error, ZR_MPI_ERROR_BYTES, "%s", self.error);
        is_fine = false;
    }
    *n_left_p = count_left(transfers, n_transfers);
    pthread_mutex_unlock(&self.lock);
    return is_fine;
}

static void module_give_up(void) {
    pthread_mutex_lock(&self.lock);
    self.is_given_up = true;
    self.posted = NULL;
    self.posted_end = &self.posted;
    self.n_active = 0;
    pthread_cond_broadcast(&self.asked);
    pthread_cond_broadcast(&self.answered);
    pthread_mutex_unlock(&self.lock);
}

static bool module_close(bool is_dead, int timeout_ms, char *error) {
    pthread_mutex_lock(&self.lock);
    bool is_last = --self.n_users == 0;
    bool is_closed = !is_last || is_dead ||
                     (check_state(error) && ask(JOB_FINALIZE, timeout_ms, "MPI_Finalize", error));
    pthread_mutex_unlock(&self.lock);
    return is_closed;
}

__attribute__((visibility("default"))) extern const zr_mpi_module_t zr_mpi_module;

const zr_mpi_module_t zr_mpi_module = {
    .version = ZR_MPI_MODULE_VERSION,
    .open = module_open,
    .gather = module_gather,
    .post = module_post,
    .wait = module_wait,
    .give_up = module_give_up,
    .close = module_close,
};
