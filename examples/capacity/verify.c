/* Training at a capacity: see capacity_verify.h. */
#include "examples/capacity/verify.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "examples/train/plan.h"

#define N_WINDOWS 64          /* of data: more than one, and little to hold */
#define TOKENS_MAGIC 20240801 /* of uint32 tokens */
#define TOKENS_VERSION 7
#define TOKENS_HEADER 256

/* ---- data ------------------------------------------------------------------------------------ */

static zr_status_t write_all(int fd, const void *bytes, size_t n, const zr_log_t *log) {
    const char *next = bytes;
    while (n > 0) {
        ssize_t done = write(fd, next, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return zr_fail(log, ZR_ERR_IO, "data of the verifying runs cannot be written: %s",
                           strerror(errno));
        next += done;
        n -= (size_t)done;
    }
    return ZR_OK;
}

/* llm.c's token file, of tokens that follow each other in no order. */
static zr_status_t write_tokens(int fd, const train_options_t *run, const zr_log_t *log) {
    size_t n_tokens = N_WINDOWS * run->seq + 1;
    size_t vocab = zr_model_shape_sizes(&run->shape).vocab;
    int32_t header[TOKENS_HEADER] = {TOKENS_MAGIC, TOKENS_VERSION, (int32_t)n_tokens};
    uint64_t state = run->seed;
    ZR_TRY(write_all(fd, header, sizeof(header), log));
    for (size_t written = 0; written < n_tokens;) {
        uint32_t tokens[4096];
        size_t n = 0;
        for (; n < 4096 && written < n_tokens; n++, written++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            tokens[n] = (uint32_t)((state >> 33) % vocab);
        }
        ZR_TRY(write_all(fd, tokens, n * sizeof(tokens[0]), log));
    }
    return ZR_OK;
}

static zr_status_t make_data(const train_options_t *run, const zr_log_t *log, int *fd_p) {
    int fd = memfd_create("tokens", MFD_CLOEXEC);
    if (fd < 0)
        return zr_fail(log, ZR_ERR_MEMORY, "data of the verifying runs cannot be made: %s",
                       strerror(errno));
    zr_status_t status = write_tokens(fd, run, log);
    if (status == ZR_OK)
        *fd_p = fd;
    else
        close(fd);
    return status;
}

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct verifying {
    const capacity_search_t *search;
    const char *path; /* of the data */
} verifying_t;

/* The first error of any rank: ranks that only were stopped speak after it. */
typedef struct kept {
    atomic_flag is_kept;
    char *text;
    size_t size;
} kept_t;

static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    kept_t *kept = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && !atomic_flag_test_and_set(&kept->is_kept))
        snprintf(kept->text, kept->size, "%s", message);
}

static zr_status_t train(const verifying_t *verifying, const train_options_t *run, char *message,
                         size_t size, train_result_t *result) {
    train_options_t own = *run;
    const char *paths[] = {verifying->path};
    kept_t kept = {.is_kept = ATOMIC_FLAG_INIT, .text = message, .size = size};
    zr_log_t log = {.sink = keep_first, .context = &kept, .level = ZR_LOG_ERROR, .rank = -1};
    zr_model_text_t model = zr_model_shape_text(&own.shape);
    own.model = model.text;
    own.data_paths = paths;
    own.n_data_paths = 1;
    own.stop = verifying->search->stop;
    message[0] = '\0';
    return zero_train_run(&own, &log, NULL, result);
}

static bool is_within(const capacity_search_t *search, const train_result_t *result) {
    const zr_config_t *config = &search->run.config;
    return result->peak[ZR_TIER_DEVICE].reserved <= config->device_memory_bytes &&
           result->peak[ZR_TIER_HOST].reserved <= config->host_memory_bytes &&
           result->peak[ZR_TIER_NVME].reserved <= config->nvme.capacity_bytes;
}

/* Fewer steps than those of the search's plan may need less: a plan of as many says what. */
static zr_status_t plan_of_run(const capacity_search_t *search, zr_run_plan_t *plan_p) {
    zr_run_request_t request = train_plan_request(&search->run, &search->its_case->hardware);
    if (search->run.steps >= request.n_steps) {
        *plan_p = search->plan;
        return ZR_OK;
    }
    request.log = *search->log;
    request.n_steps = search->run.steps;
    return zr_run_plan(&request, plan_p);
}

static bool is_as_planned(const zr_run_plan_t *plan, const train_result_t *result) {
    train_peak_t planned[ZR_N_TIERS];
    bool same = true;
    train_plan_peaks(plan, planned);
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        same &= planned[tier].live == result->peak[tier].live;
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            same &= planned[tier].by_tag[tag] == result->peak[tier].by_tag[tag];
    }
    return same;
}

static bool was_stopped(const capacity_search_t *search) {
    return search->stop != NULL && atomic_load(search->stop);
}

/* The larger one is refused in the step in which its memory does not suffice: the first, or one of
 * those after it whose peaks are a plan's. */
static zr_status_t train_next(const verifying_t *verifying, capacity_proof_t *proof) {
    train_options_t run = verifying->search->next_run;
    train_result_t result;
    if (run.steps < ZR_RUN_PLAN_STEPS)
        run.steps = ZR_RUN_PLAN_STEPS;
    return train(verifying, &run, proof->next_message, sizeof(proof->next_message), &result);
}

static zr_status_t verify(const verifying_t *verifying, capacity_proof_t *proof) {
    const capacity_search_t *search = verifying->search;
    train_result_t *result = &proof->result;
    zr_run_plan_t plan;
    zr_status_t status =
        train(verifying, &search->run, proof->message, sizeof(proof->message), result);
    if (was_stopped(search))
        return ZR_ERR_STATE;
    proof->trained = status == ZR_OK && result->n_steps == search->run.steps &&
                     isfinite(result->last_loss) && result->weights.n_non_finite == 0 &&
                     is_within(search, result);
    if (proof->trained) {
        ZR_TRY(plan_of_run(search, &plan));
        proof->as_planned = is_as_planned(&plan, result);
    }
    bool is_refused = search->has_next && !search->next.fits; /* else none is, or it is too slow */
    proof->refused = !is_refused;
    if (is_refused) {
        status = train_next(verifying, proof);
        if (was_stopped(search))
            return ZR_ERR_STATE;
        proof->refused = status == ZR_ERR_BUDGET;
    }
    proof->is_made = true;
    return ZR_OK;
}

zr_status_t capacity_verify(const capacity_search_t *search, capacity_proof_t *proof_p) {
    capacity_proof_t proof = {.is_made = false};
    char path[64];
    int fd = -1;
    ZR_TRY(make_data(&search->run, search->log, &fd));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    verifying_t verifying = {.search = search, .path = path};
    zr_status_t status = verify(&verifying, &proof);
    close(fd);
    if (status == ZR_OK)
        *proof_p = proof;
    return status;
}
