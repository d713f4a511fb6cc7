/*
 * The question is a list: each combination of what is swept, and for each all placements that are
 * open. A capacity that --state has is taken from there, in its place, so that a run that was
 * stopped ends in what it would have ended in.
 */
#include "examples/capacity/run.h"

#include <stdlib.h>
#include <string.h>

#include "examples/capacity/point.h"
#include "examples/capacity/search.h"
#include "examples/capacity/state.h"
#include "examples/capacity/verify.h"
#include "examples/plan/this_machine.h"

#define MOST_PLACES 40 /* of all stages */
#define BAR_WIDTH 24

/* A capacity that is asked for. */
typedef struct wanted {
    const capacity_case_t *its_case;
    const capacity_place_t *place;
    json_t *point;             /* NULL: not found yet, or appended */
    capacity_search_t *search; /* that found it; NULL: an earlier run's */
} wanted_t;

typedef struct running {
    const capacity_options_t *options;
    const zr_log_t *log;
    messages_t *messages;
    const atomic_bool *stop;
    zr_plan_cache_t *plans;  /* of memory, made before */
    json_t *question, *kept; /* kept: points of an earlier run; NULL: none */
    json_t *points;
    capacity_place_t places[MOST_PLACES];
    capacity_case_t *cases; /* [n_cases] */
    wanted_t *wanted;       /* [n_wanted] */
    size_t n_places, n_cases, n_wanted;
    atomic_size_t n_ended; /* threads show it */
} running_t;

/* ---- what is asked for ----------------------------------------------------------------------- */

/* Of placements that are chosen in parts there is one, or the one that was asked for. */
static bool is_asked(const capacity_options_t *o, const capacity_place_t *place) {
    capacity_where_t usual = place->stage == 3 && o->params_open ? CAPACITY_AUTO : o->params;
    if (o->stage_open ? place->stage < o->least_stage : place->stage != o->run.config.stage)
        return false;
    if (place->stage != 3 && place->params != CAPACITY_NONE)
        return false;
    if (!o->optimizer_open && place->optimizer != o->optimizer)
        return false;
    if (!o->params_open && place->params != o->params)
        return false;
    if (!o->has_drives && (place->optimizer == CAPACITY_NVME || place->params == CAPACITY_NVME))
        return false;
    if (place->optimizer == CAPACITY_AUTO && o->optimizer_open)
        return place->params == (place->stage == 3 ? usual : CAPACITY_NONE);
    if (place->params == CAPACITY_AUTO && o->params_open)
        return false;
    return true;
}

static void list_places(running_t *running) {
    for (int stage = 0; stage <= 3; stage++)
        for (int optimizer = 0; optimizer <= CAPACITY_AUTO; optimizer++)
            for (int params = 0; params <= CAPACITY_AUTO; params++) {
                capacity_place_t place = {stage, (capacity_where_t)optimizer,
                                          (capacity_where_t)params};
                if (is_asked(running->options, &place) && running->n_places < MOST_PLACES)
                    running->places[running->n_places++] = place;
            }
}

/* With one rank there is nothing to share: optimizer state alone, or parameters that stay on the
 * device, are no more sharded at this stage than at the one before. */
static bool is_of_stage_before(const capacity_options_t *o, const capacity_case_t *its_case,
                               const capacity_place_t *place) {
    return o->stage_open && its_case->run.n_ranks == 1 && place->stage > o->least_stage &&
           (place->stage == 1 || (place->stage == 3 && place->params == CAPACITY_NONE));
}

static void set_axis(train_options_t *run, capacity_axis_t axis, size_t value) {
    switch (axis) {
    case CAPACITY_RANKS:
        run->n_ranks = (int)value;
        return;
    case CAPACITY_DEVICE_MEMORY:
        run->config.device_memory_bytes = value;
        return;
    case CAPACITY_HOST_MEMORY:
        run->config.host_memory_bytes = value;
        return;
    default:
        run->config.nvme.capacity_bytes = value;
    }
}

#define MOST_SUB_GROUP_ELEMS ((size_t)1 << 20)
#define STAGING_PART 512 /* of host memory, that a kind of buffers may take */

/* As large as a small part of host memory holds, and no smaller than the usual ones here: larger
 * ones are fewer to move and to plan. */
static size_t buffer_elems(size_t usual, size_t n_buffers, size_t elem_bytes, size_t host_bytes) {
    size_t elems = usual;
    while (elems < MOST_SUB_GROUP_ELEMS &&
           2 * elems * n_buffers * elem_bytes <= host_bytes / STAGING_PART)
        elems *= 2;
    return elems;
}

static void size_buffers(const capacity_options_t *o, capacity_case_t *its_case) {
    zr_config_t *config = &its_case->run.config;
    size_t host = its_case->hardware.host_memory_bytes;
    host = config->host_memory_bytes < host ? config->host_memory_bytes : host;
    if (o->sub_group_open)
        config->sub_group_elems = buffer_elems(
            config->sub_group_elems, config->offload_optimizer.n_buffers, 3 * sizeof(float), host);
    if (o->param_buffer_open)
        config->offload_param.buffer_elems =
            buffer_elems(config->offload_param.buffer_elems, config->offload_param.n_buffers,
                         zr_dtype_size(config->dtype), host);
}

/* The sweep that was given last moves first. */
static zr_status_t make_case(const running_t *running, size_t index, capacity_case_t *case_p) {
    const capacity_options_t *o = running->options;
    *case_p = (capacity_case_t){.run = o->run};
    case_p->run.plans = running->plans;
    for (size_t i = o->n_sweeps; i-- > 0;) {
        const capacity_sweep_t *sweep = &o->sweeps[i];
        set_axis(&case_p->run, sweep->axis, sweep->values[index % sweep->n_values]);
        index /= sweep->n_values;
    }
    case_p->hardware = o->hardware;
    if (o->is_this)
        ZR_TRY(this_machine_describe(&case_p->run, running->log, &case_p->hardware));
    size_buffers(o, case_p);
    return ZR_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

static void show(const running_t *running, const capacity_case_t *its_case,
                 const capacity_place_t *place, const char *what) {
    char bar[BAR_WIDTH + 1];
    size_t n = running->n_wanted, done = atomic_load(&running->n_ended);
    if (running->messages == NULL)
        return;
    for (size_t i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < done * BAR_WIDTH / n ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    messages_progress(running->messages, false, "[%s] %zu/%zu  %s, stage %d, %s/%s: %s", bar, done,
                      n, zr_count_text((uint64_t)its_case->run.n_ranks, "rank").text, place->stage,
                      capacity_where_name(place->optimizer), capacity_where_name(place->params),
                      what);
}

static void show_training(const running_t *running, const capacity_search_t *search) {
    char what[96];
    double n_params = (double)zr_model_shape_n_params(&search->run.shape);
    snprintf(what, sizeof(what), "training %.4g %s parameters",
             n_params >= 1e9 ? 1e-9 * n_params : 1e-6 * n_params,
             n_params >= 1e9 ? "billion" : "million");
    show(running, search->its_case, &search->place, what);
}

/* ---- a capacity ------------------------------------------------------------------------------ */

static json_t *find_kept(const running_t *running, const json_t *key) {
    size_t i;
    json_t *point;
    json_array_foreach(running->kept, i, point) {
        if (capacity_point_is(point, key))
            return json_incref(point);
    }
    return NULL;
}

/* What another placement has come to, too, is not trained twice. */
static json_t *find_proof(const running_t *running, const json_t *point) {
    size_t i;
    json_t *other;
    json_array_foreach(running->points, i, other) {
        if (capacity_point_runs_as(other, point))
            return json_object_get(other, "proof");
    }
    return NULL;
}

static zr_status_t prove(const running_t *running, const capacity_search_t *search, json_t *point) {
    capacity_proof_t proof;
    json_t *known = find_proof(running, point);
    if (running->options->verify_steps == 0 || !search->found)
        return ZR_OK;
    if (known != NULL)
        return json_object_set(point, "proof", known) == 0 ? ZR_OK : ZR_ERR_MEMORY;
    show_training(running, search);
    ZR_TRY(capacity_verify(search, &proof));
    return capacity_point_prove(point, &proof) ? ZR_OK : ZR_ERR_MEMORY;
}

static zr_status_t fail_memory(const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_MEMORY, "the system has no memory for a capacity");
}

static zr_status_t find_new_point(const running_t *running, wanted_t *wanted, const zr_log_t *log) {
    if (wanted->search == NULL)
        wanted->search = calloc(1, sizeof(*wanted->search)); /* plans are large */
    if (wanted->search == NULL)
        return fail_memory(log);
    *wanted->search = (capacity_search_t){.options = running->options,
                                          .its_case = wanted->its_case,
                                          .place = *wanted->place,
                                          .log = log,
                                          .stop = running->stop};
    show(running, wanted->its_case, wanted->place, "planning");
    ZR_TRY(capacity_search(wanted->search));
    wanted->point = capacity_point_object(wanted->search);
    return wanted->point != NULL ? ZR_OK : fail_memory(log);
}

/* A job of a thread. */
static zr_status_t find_point(void *context, size_t index, const zr_log_t *log) {
    const running_t *running = context;
    wanted_t *wanted = &running->wanted[index];
    json_t *key = capacity_point_key(wanted->its_case, wanted->place);
    if (key == NULL)
        return fail_memory(log);
    wanted->point = find_kept(running, key);
    json_decref(key);
    return wanted->point != NULL ? ZR_OK : find_new_point(running, wanted, log);
}

/* It is proved and appended, and the state is written, where there is one. */
static zr_status_t add_point(void *context, size_t index, const zr_log_t *log) {
    running_t *running = context;
    wanted_t *wanted = &running->wanted[index];
    bool is_new = wanted->search != NULL;
    if (is_new)
        ZR_TRY(prove(running, wanted->search, wanted->point));
    json_t *point = wanted->point;
    wanted->point = NULL;
    if (json_array_append_new(running->points, point) != 0)
        return fail_memory(log);
    free(wanted->search);
    wanted->search = NULL;
    atomic_fetch_add(&running->n_ended, 1);
    return is_new && running->options->state_path != NULL
               ? capacity_state_write(running->options->state_path, running->question,
                                      running->points, log)
               : ZR_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static zr_status_t open_state(running_t *running, const zr_hardware_t *hardware) {
    const capacity_options_t *o = running->options;
    running->points = json_array();
    running->question = capacity_question(o, hardware);
    if (running->points == NULL || running->question == NULL)
        return zr_fail(running->log, ZR_ERR_MEMORY, "no memory for the question");
    return o->resume
               ? capacity_state_read(o->state_path, running->question, running->log, &running->kept)
               : ZR_OK;
}

static zr_status_t make_cases(running_t *running) {
    const capacity_options_t *o = running->options;
    running->n_cases = 1;
    for (size_t i = 0; i < o->n_sweeps; i++)
        running->n_cases *= o->sweeps[i].n_values;
    running->cases = calloc(running->n_cases, sizeof(*running->cases));
    running->wanted = calloc(running->n_cases * MOST_PLACES, sizeof(*running->wanted));
    if (running->cases == NULL || running->wanted == NULL)
        return fail_memory(running->log);
    for (size_t i = 0; i < running->n_cases; i++) {
        capacity_case_t *its_case = &running->cases[i];
        ZR_TRY(make_case(running, i, its_case));
        for (size_t k = 0; k < running->n_places; k++)
            if (!is_of_stage_before(o, its_case, &running->places[k]))
                running->wanted[running->n_wanted++] =
                    (wanted_t){.its_case = its_case, .place = &running->places[k]};
    }
    return ZR_OK;
}

/* On all cores; but one after the other where each is trained, which takes all of them. */
static zr_status_t run_all(running_t *running) {
    ZR_TRY(make_cases(running));
    ZR_TRY(open_state(running, &running->cases[0].hardware));
    const zr_run_jobs_t jobs = {.n = running->n_wanted,
                                .run = find_point,
                                .ended = add_point,
                                .context = running,
                                .n_threads = running->options->verify_steps == 0 ? 0 : 1};
    return zr_run_jobs(&jobs, running->log);
}

static void free_wanted(running_t *running) {
    for (size_t i = 0; running->wanted != NULL && i < running->n_wanted; i++) {
        json_decref(running->wanted[i].point);
        free(running->wanted[i].search);
    }
    free(running->wanted);
    free(running->cases);
}

zr_status_t capacity_run(const capacity_options_t *options, const zr_log_t *log,
                         messages_t *messages, const atomic_bool *stop,
                         capacity_results_t *results_p) {
    running_t running = {.options = options, .log = log, .messages = messages, .stop = stop};
    capacity_results_t results = {.points = NULL};
    list_places(&running);
    running.plans = zr_plan_cache_create(ZR_RUN_KEPT_BYTES); /* NULL: each plan is made */
    zr_status_t status = run_all(&running);
    zr_plan_cache_destroy(&running.plans);
    if (messages != NULL)
        messages_end_progress(messages);
    if (status == ZR_ERR_STATE && atomic_load(stop))
        status = ZR_OK;
    if (running.cases != NULL)
        snprintf(results.hardware, sizeof(results.hardware), "%s", running.cases[0].hardware.name);
    results.points = running.points;
    results.n_wanted = running.n_wanted;
    results.is_whole = json_array_size(running.points) == results.n_wanted;
    json_decref(running.question);
    json_decref(running.kept);
    free_wanted(&running);
    *results_p = results;
    return status;
}

void capacity_results_free(capacity_results_t *results) {
    json_decref(results->points);
    *results = (capacity_results_t){0};
}
