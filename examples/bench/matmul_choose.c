#include "examples/bench/matmul_choose.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"

#define WORTH_A_CHOICE 0.98
/* A gradient of 1600 x 6400 in three parts: 117 MiB of fp32 sums. */
#define USUAL_LIMIT_BYTES ((size_t)128 << 20)

/* A proposal, or, at place 0, what a product has without a choice. */
typedef struct candidate {
    zr_nn_matmul_choice_t choice;
    work_t work;
    bool is_left_out;
} candidate_t;

typedef struct contest {
    zr_nn_matmul_proposals_t proposals;
    candidate_t all[1 + ZR_NN_MAX_PROPOSALS];
    size_t n;
} contest_t;

typedef struct measuring {
    const matmul_choose_t *choose;
    products_t *products;
    const zr_log_t *log;
    zr_nn_algorithm_text_t made_for;
    contest_t *contests; /* [N_PRODUCTS] */
} measuring_t;

zr_status_t matmul_choose_begin(matmul_choose_t *choose, zr_device_t *device) {
    zr_nn_algorithm_text_t here;
    if (choose->path == NULL && choose->limit_bytes != 0)
        return zr_fail(zr_device_log(device), ZR_ERR_ARGUMENT,
                       "--workspace: requires --save-choices");
    if (choose->path == NULL)
        return ZR_OK;
    if (choose->limit_bytes == 0)
        choose->limit_bytes = USUAL_LIMIT_BYTES;
    const zr_nn_matmul_choice_t room = {.product = "", .workspace_bytes = choose->limit_bytes};
    zr_status_t status =
        files_check_writable("--save-choices", choose->path, zr_device_log(device));
    if (status != ZR_OK)
        return status == ZR_ERR_IO ? ZR_ERR_ARGUMENT : status; /* named before anything ran */
    ZR_TRY(zr_nn_matmul_library(device, &here));
    return zr_nn_matmul_choose(device, &(zr_nn_matmul_choices_t){.name = "--save-choices",
                                                                 .made_for = here.text,
                                                                 .choices = &room,
                                                                 .n_choices = 1});
}

/* ---- measuring ---------------------------------------------------------------------------------
 */

/* From now on the product has this algorithm. */
static zr_status_t take(const measuring_t *m, const candidate_t *candidate) {
    return zr_nn_matmul_choose(m->products->on->device,
                               &(zr_nn_matmul_choices_t){.name = "--save-choices",
                                                         .made_for = m->made_for.text,
                                                         .limit_bytes = m->choose->limit_bytes,
                                                         .choices = &candidate->choice,
                                                         .n_choices = 1});
}

static zr_status_t add_contest(const measuring_t *m, size_t i) {
    contest_t *contest = &m->contests[i];
    zr_nn_matmul_proposals_t *proposals = &contest->proposals;
    ZR_TRY(zr_nn_matmul_proposals(m->products->on->device, &m->products->products[i].args,
                                  m->choose->limit_bytes, proposals));
    contest->n = 1 + proposals->n;
    for (size_t j = 0; j < contest->n; j++) {
        candidate_t *candidate = &contest->all[j];
        candidate->choice.product = proposals->product.text;
        candidate->choice.algorithm = j == 0 ? NULL : proposals->algorithms[j - 1].text;
        candidate->choice.workspace_bytes = j == 0 ? 0 : proposals->workspace_bytes[j - 1];
        candidate->work = m->products->works[i];
        candidate->work.times = (bench_times_t){0};
        ZR_TRY(take(m, candidate));
        zr_status_t status = work_warm_up(&candidate->work, m->products->on->stream);
        if (status == ZR_OK)
            continue;
        if (j == 0 || status != ZR_ERR_UNSUPPORTED)
            return status;
        candidate->is_left_out = true;
        zr_log_write(m->log, ZR_LOG_WARNING,
                     "the algorithm \"%s\" is left out: it was proposed, but "
                     "failed when it was used",
                     candidate->choice.algorithm);
    }
    return ZR_OK;
}

/* The first call after a choice asks cuBLASLt, which is not timed. */
static zr_status_t time_candidate(const measuring_t *m, candidate_t *candidate) {
    zr_stream_t *stream = m->products->on->stream;
    if (candidate->is_left_out)
        return ZR_OK;
    ZR_TRY(take(m, candidate));
    ZR_TRY(candidate->work.queue(candidate->work.context, stream));
    return work_time(&candidate->work, stream);
}

static zr_status_t measure(const measuring_t *m, double seconds) {
    for (size_t i = 0; i < N_PRODUCTS; i++)
        ZR_TRY(add_contest(m, i));
    double end = bench_seconds() + seconds;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || bench_seconds() < end; round++)
        for (size_t i = 0; i < N_PRODUCTS; i++)
            for (size_t j = 0; j < m->contests[i].n; j++)
                ZR_TRY(time_candidate(m, &m->contests[i].all[j]));
    return ZR_OK;
}

static double seconds_of(candidate_t *candidate) {
    return bench_times_median(&candidate->work.times);
}

static candidate_t *fastest(contest_t *contest) {
    candidate_t *first = &contest->all[0], *best = first;
    for (size_t j = 1; j < contest->n; j++) {
        candidate_t *own = &contest->all[j];
        if (!own->is_left_out && seconds_of(own) < seconds_of(best) &&
            seconds_of(own) <= WORTH_A_CHOICE * seconds_of(first))
            best = own;
    }
    return best;
}

/* ---- the file ----------------------------------------------------------------------------------
 */

static json_t *describe_choice(contest_t *contest) {
    candidate_t *best = fastest(contest);
    const char *algorithm = best->choice.algorithm;
    return JSON_OBJECT({"algorithm", algorithm != NULL ? json_string(algorithm) : json_null()},
                       {"workspace_bytes", json_count(best->choice.workspace_bytes)},
                       {"seconds", json_number(seconds_of(best))},
                       {"first_seconds", json_number(seconds_of(&contest->all[0]))});
}

static zr_status_t save(const measuring_t *m) {
    const char *path = m->choose->path;
    json_t *object = json_object(), *products = json_object();
    for (size_t i = 0; i < N_PRODUCTS; i++)
        json_put(&products, m->contests[i].proposals.product.text,
                 describe_choice(&m->contests[i]));
    JSON_PUT(&object, {"made_for", json_text(m->made_for.text)},
             {"limit_bytes", json_count(m->choose->limit_bytes)}, {"products", products});
    FILE *file = fopen(path, "w");
    bool is_written = file != NULL && json_print(object, true, file);
    int error = errno;
    if (file != NULL && fclose(file) != 0) {
        is_written = false;
        error = errno;
    }
    json_decref(object);
    return is_written ? ZR_OK
                      : zr_fail(m->log, ZR_ERR_IO, "--save-choices %s: cannot write it: %s", path,
                                strerror(error));
}

static json_t *describe_all(const measuring_t *m) {
    json_t *list = json_array();
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        json_t *object = describe_choice(&m->contests[i]);
        JSON_PUT(&object, {"layer", json_string(m->products->products[i].layer)},
                 {"pass", json_string(m->products->products[i].pass)},
                 {"proposals", json_count(m->contests[i].proposals.n)});
        json_append(&list, object);
    }
    return list;
}

zr_status_t matmul_choose_save(const matmul_choose_t *choose, products_t *products, double seconds,
                               json_t **list_p) {
    zr_device_t *device = products->on->device;
    measuring_t m = {.choose = choose,
                     .products = products,
                     .log = zr_device_log(device),
                     .contests = calloc(N_PRODUCTS, sizeof(*m.contests))};
    if (m.contests == NULL)
        return zr_fail(m.log, ZR_ERR_MEMORY, "no memory for the times of algorithms");
    zr_status_t status = zr_nn_matmul_library(device, &m.made_for);
    ZR_THEN(status, measure(&m, seconds));
    ZR_THEN(status, save(&m));
    if (status == ZR_OK)
        *list_p = describe_all(&m);
    for (size_t i = 0; i < N_PRODUCTS; i++)
        for (size_t j = 0; j < m.contests[i].n; j++)
            works_free(&m.contests[i].all[j].work, 1);
    free(m.contests);
    return status;
}
