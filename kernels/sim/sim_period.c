/*
 * Asking what a longer run would.
 *
 * Three tapes of runs that are longer by one period each differ in three ways. There are stretches
 * in which the same is asked again: A B C, A B B C, A B B B C. There is work that is cut into
 * pieces of one size and a rest, in a row. And there is work that grows. The first two tapes tell
 * where, and the third has to be as they say; then a longer run's is known.
 *
 * Events are told by the numbers of their records, which grow by the same amount from one stretch
 * to the next, and from one run to the next. So three numbers say the record of each place: as the
 * first run has it, how much more in a longer run, and how much more in the next stretch. There are
 * six places to learn them from, which all have to agree.
 */
#include <math.h>

#include "kernels/sim/sim_machine.h"

#define N_TAPES 3
#define EVEN 1e-12   /* of seconds, that are sums and differences of others */
#define NO_REST 1e-6 /* of a piece: as little is lost in sums */

typedef enum part_kind {
    PART_SAME,    /* n places, in each tape */
    PART_STRETCH, /* n places, m times in tape m */
    PART_PIECES   /* all that is in a row */
} part_kind_t;

typedef struct part {
    part_kind_t kind;
    size_t at[N_TAPES]; /* where it begins */
    size_t n;
    size_t n_pieces[N_TAPES];
} part_t;

typedef struct course {
    zr_heap_t *heap; /* of all that is needed to ask */
    const zr_sim_tape_t *tapes[N_TAPES];
    part_t *parts;
    size_t n_parts, capacity;
    size_t at[N_TAPES]; /* so far */
} course_t;

static const zr_sim_op_t *op_of(const course_t *course, size_t tape, size_t at) {
    return &course->tapes[tape]->ops[at];
}

static bool is_end(const course_t *course, size_t tape) {
    return course->at[tape] == course->tapes[tape]->n;
}

static size_t lesser(size_t a, size_t b) {
    return a < b ? a : b;
}

/* ---- what is the same ------------------------------------------------------------------------ */

/* But for how much, and for records. */
static bool is_alike(const zr_sim_op_t *a, const zr_sim_op_t *b) {
    return a->kind == b->kind && a->part == b->part && a->holds == b->holds &&
           a->is_update == b->is_update && a->number == b->number && a->found == b->found &&
           a->turn == b->turn && a->line == b->line && a->name == b->name &&
           a->launch == b->launch && a->latency == b->latency && a->checksum == b->checksum &&
           a->core == b->core && a->after == b->after;
}

static bool is_same(const zr_sim_op_t *a, const zr_sim_op_t *b) {
    return is_alike(a, b) && a->seconds == b->seconds && a->of_both == b->of_both;
}

static bool are_same(const zr_sim_op_t *a, const zr_sim_op_t *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_same(&a[i], &b[i]))
            return false;
    return true;
}

/* Of a run that is longer by m periods than the first of three. False: it grows otherwise. */
static bool find_seconds(const double seconds[N_TAPES], double m, double *seconds_p) {
    double more = seconds[1] - seconds[0];
    *seconds_p = seconds[0] + m * more;
    return fabs(seconds[2] - seconds[1] - more) <= EVEN * seconds[2];
}

static bool find_work(const course_t *course, const size_t at[N_TAPES], double m,
                      zr_sim_op_t *op_p) {
    const zr_sim_op_t *a = op_of(course, 0, at[0]), *b = op_of(course, 1, at[1]),
                      *c = op_of(course, 2, at[2]);
    *op_p = *a;
    return find_seconds((const double[]){a->seconds, b->seconds, c->seconds}, m, &op_p->seconds) &&
           find_seconds((const double[]){a->of_both, b->of_both, c->of_both}, m, &op_p->of_both);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static part_t *last_part(course_t *course) {
    return course->n_parts > 0 ? &course->parts[course->n_parts - 1] : NULL;
}

/* From where the tapes are. NULL: no memory. */
static part_t *add_part(course_t *course, part_kind_t kind, size_t n) {
    if (!zr_heap_make_room(course->heap, &course->parts, course->n_parts, &course->capacity,
                           sizeof(*course->parts)))
        return NULL;
    part_t *part = &course->parts[course->n_parts++];
    *part = (part_t){.kind = kind, .n = n};
    for (size_t m = 0; m < N_TAPES; m++)
        part->at[m] = course->at[m];
    return part;
}

/* One place that all have, alike. */
static bool add_place(course_t *course) {
    part_t *part = last_part(course);
    if ((part == NULL || part->kind != PART_SAME) &&
        (part = add_part(course, PART_SAME, 0)) == NULL)
        return false;
    part->n++;
    for (size_t m = 0; m < N_TAPES; m++)
        course->at[m]++;
    return true;
}

static bool is_same_place(const course_t *course) {
    for (size_t m = 0; m < N_TAPES; m++)
        if (is_end(course, m) ||
            !is_same(op_of(course, 0, course->at[0]), op_of(course, m, course->at[m])))
            return false;
    return true;
}

/* How tapes are seen to go on: by so many places. */
typedef struct likeness {
    bool (*compare)(const zr_sim_op_t *a, const zr_sim_op_t *b);
    size_t n;
} likeness_t;

static const likeness_t same_work = {is_same, 4}, like_work = {is_alike, 4},
                        like_op = {is_alike, 1};

/* Whether tape m goes on after n places as the first does after n_first. */
static bool follows(const course_t *course, size_t m, size_t n_first, size_t n,
                    const likeness_t *likeness) {
    size_t first = course->at[0] + n_first, at = course->at[m] + n;
    size_t n_following = lesser(likeness->n, course->tapes[0]->n - first);
    if (at + n_following > course->tapes[m]->n)
        return false;
    for (size_t i = 0; i < n_following; i++)
        if (!likeness->compare(op_of(course, 0, first + i), op_of(course, m, at + i)))
            return false;
    return true;
}

/* The last of pieces in a row does not count as one: a longer run may have more pieces. */
static bool is_grown_place(const course_t *course) {
    zr_sim_op_t op;
    for (size_t m = 0; m < N_TAPES; m++)
        if (is_end(course, m) ||
            !is_alike(op_of(course, 0, course->at[0]), op_of(course, m, course->at[m])) ||
            !follows(course, m, 1, 1, &like_work))
            return false;
    const zr_sim_op_t *first = op_of(course, 0, course->at[0]);
    return (course->at[0] == 0 || !is_alike(first - 1, first)) &&
           find_work(course, course->at, 0, &op);
}

/* How often the places before where tape m is are there again. */
static bool is_again(const course_t *course, size_t m, size_t n, size_t times) {
    for (size_t i = 0; i < times; i++)
        if (course->at[m] + (i + 1) * n > course->tapes[m]->n ||
            !are_same(op_of(course, m, course->at[m] - n), op_of(course, m, course->at[m] + i * n),
                      n))
            return false;
    return true;
}

static bool add_stretch(course_t *course, const likeness_t *likeness) {
    const part_t *before = last_part(course);
    size_t most = before != NULL && before->kind == PART_SAME ? before->n : 0;
    for (size_t n = 1; n <= most; n++) {
        if (!follows(course, 1, 0, n, likeness) || !follows(course, 2, 0, 2 * n, likeness) ||
            !is_again(course, 1, n, 1) || !is_again(course, 2, n, 2))
            continue;
        if (add_part(course, PART_STRETCH, n) == NULL)
            return false;
        for (size_t m = 0; m < N_TAPES; m++)
            course->at[m] += m * n;
        return true;
    }
    return false;
}

/* Pieces in a row: all but the last are the same. */
static size_t count_pieces(const course_t *course, size_t m, size_t at) {
    const zr_sim_op_t *first = op_of(course, m, at);
    size_t n = 1, most = course->tapes[m]->n - at;
    while (n < most && is_same(first, &first[n]))
        n++;
    return n < most && is_alike(first, &first[n]) && first[n].seconds < first->seconds ? n + 1 : n;
}

/* Work of all pieces, in whole ones: without what each takes besides. */
static double work_of(const course_t *course, const part_t *part, size_t m) {
    const zr_sim_op_t *first = op_of(course, m, part->at[m]);
    size_t n = part->n_pieces[m];
    return (double)(n - 1) +
           (first[n - 1].seconds - first->latency) / (first->seconds - first->latency);
}

/* Of a run that is longer by m periods than the first. False: it grows otherwise. */
static bool find_pieces(const course_t *course, const part_t *part, double m, double *work_p) {
    double first = work_of(course, part, 0), more = work_of(course, part, 1) - first;
    *work_p = first + m * more;
    return fabs(work_of(course, part, 2) - first - 2 * more) <= NO_REST;
}

/* Places before where the tapes are that are the same, up to the last. */
static size_t count_same(const course_t *course, size_t most) {
    const zr_sim_op_t *last = op_of(course, 0, course->at[0]) - 1;
    size_t n = most > 0 && last->kind == ZR_SIM_OP_WORK;
    while (n > 0 && n < most && is_same(last - n, last))
        n++;
    return n;
}

/* What is cut, and ends in different places: it began before. False: there is no such row here. */
static bool add_pieces(course_t *course) {
    part_t *before = last_part(course);
    size_t n = before != NULL && before->kind == PART_SAME ? count_same(course, before->n) : 0;
    part_t row = {.kind = PART_PIECES};
    double work;
    if (n == 0)
        return false;
    for (size_t m = 0; m < N_TAPES; m++) {
        row.at[m] = course->at[m] - n;
        row.n_pieces[m] = count_pieces(course, m, row.at[m]);
        const zr_sim_op_t *first = op_of(course, m, row.at[m]);
        if (row.n_pieces[m] < n || first->seconds <= first->latency ||
            first->seconds != op_of(course, 0, row.at[0])->seconds)
            return false;
    }
    bool goes_on = row.n_pieces[0] > n || row.n_pieces[1] > n || row.n_pieces[2] > n;
    if (!goes_on || !find_pieces(course, &row, 0, &work))
        return false;
    before->n -= n;
    for (size_t m = 0; m < N_TAPES; m++)
        course->at[m] = row.at[m] + row.n_pieces[m];
    part_t *part = add_part(course, PART_PIECES, 0);
    if (part == NULL)
        return false;
    *part = row;
    return true;
}

static bool find_parts(course_t *course) {
    while (!is_end(course, 0) || !is_end(course, 1) || !is_end(course, 2)) {
        bool goes_on = is_same_place(course) || is_grown_place(course)
                           ? add_place(course)
                           : add_pieces(course) || add_stretch(course, &same_work) ||
                                 add_stretch(course, &like_op);
        if (!goes_on)
            return false;
    }
    return true;
}

static bool is_whole(const course_t *course) {
    for (size_t m = 0; m < N_TAPES; m++)
        if (course->tapes[m]->has_failed || course->tapes[m]->was_busy)
            return false;
    return true;
}

/* ---- which records they tell of -------------------------------------------------------------- */

/* Of a run that is longer by m periods, and its c-th stretch there: first + m longer + c further.
 */
typedef struct number {
    size_t first, longer, further; /* modulo 2^64 */
} number_t;

/* What a place tells of. */
typedef struct numbers {
    number_t of[ZR_N_SIM_NAMES];
} numbers_t;

static size_t value_of(const number_t *number, size_t m, size_t c) {
    return number->first + m * number->longer + c * number->further;
}

static void name(zr_sim_op_t *op, const numbers_t *numbers, size_t m, size_t c) {
    for (size_t i = 0; i < zr_sim_n_names(op); i++)
        op->records[i] = value_of(&numbers->of[i], m, c);
}

typedef struct place {
    const part_t *part;
    size_t number; /* in it */
} place_t;

static size_t record_at(const course_t *course, const place_t *place, size_t m, size_t c,
                        size_t i) {
    size_t at = place->part->at[m] + place->number + c * place->part->n;
    return op_of(course, m, at)->records[i];
}

/* A place that each tape has once. */
static bool find_number(const course_t *course, const place_t *place, size_t i,
                        number_t *number_p) {
    number_p->first = record_at(course, place, 0, 0, i);
    number_p->longer = record_at(course, place, 1, 0, i) - number_p->first;
    number_p->further = 0;
    return record_at(course, place, 2, 0, i) == value_of(number_p, 2, 0);
}

/* A place of a stretch: from the one before it on, in each tape. */
static bool find_stretch_number(const course_t *course, const place_t *place, size_t i,
                                number_t *number_p) {
    size_t second = record_at(course, place, 1, 0, i), third = record_at(course, place, 2, 0, i);
    number_p->longer = third - second;
    number_p->first = second - number_p->longer;
    number_p->further = record_at(course, place, 2, 1, i) - third;
    for (size_t m = 0; m < N_TAPES; m++)
        for (size_t c = 0; c <= m; c++) /* from -1 */
            if (record_at(course, place, m, c - 1, i) != value_of(number_p, m, c - 1))
                return false;
    return true;
}

static bool find_numbers(const course_t *course, const place_t *place, numbers_t *numbers_p) {
    size_t n = zr_sim_n_names(op_of(course, 1, place->part->at[1] + place->number));
    for (size_t i = 0; i < n; i++) {
        bool is_found = place->part->kind == PART_STRETCH
                            ? find_stretch_number(course, place, i, &numbers_p->of[i])
                            : find_number(course, place, i, &numbers_p->of[i]);
        if (!is_found)
            return false;
    }
    return true;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* How many periods more than the first run the one that is asked has. */
typedef struct longer_run {
    const course_t *course;
    zr_sim_machine_t machine;
    size_t n_more;
} longer_run_t;

static bool ask_same(longer_run_t *run, const part_t *part) {
    for (place_t place = {.part = part}; place.number < part->n; place.number++) {
        const size_t at[N_TAPES] = {part->at[0] + place.number, part->at[1] + place.number,
                                    part->at[2] + place.number};
        numbers_t numbers;
        zr_sim_op_t op;
        if (!find_numbers(run->course, &place, &numbers) ||
            !find_work(run->course, at, (double)run->n_more, &op))
            return false;
        name(&op, &numbers, run->n_more, 0);
        if (!zr_sim_machine_ask(&run->machine, &op))
            return false;
    }
    return true;
}

/* A stretch's places, each named for its first time there, and how they are for the next. */
static bool name_stretch(const longer_run_t *run, const part_t *part, zr_sim_round_t *round) {
    for (place_t place = {.part = part}; place.number < part->n; place.number++) {
        zr_sim_op_t *op = &round->ops[place.number];
        numbers_t numbers = {0};
        *op = *op_of(run->course, 1, part->at[1] + place.number);
        if (!find_numbers(run->course, &place, &numbers))
            return false;
        name(op, &numbers, run->n_more, 0);
        for (size_t i = 0; i < ZR_N_SIM_NAMES; i++)
            round->further[place.number][i] = numbers.of[i].further;
    }
    return true;
}

static bool ask_stretch(longer_run_t *run, const part_t *part) {
    zr_heap_t *heap = run->course->heap;
    zr_sim_round_t round = {.ops = zr_heap_alloc(heap, part->n, sizeof(*round.ops)),
                            .further = zr_heap_alloc(heap, part->n, sizeof(*round.further)),
                            .n = part->n};
    bool goes_on = round.ops != NULL && round.further != NULL && name_stretch(run, part, &round) &&
                   zr_sim_machine_go_rounds(&run->machine, &round, run->n_more);
    zr_heap_free(heap, round.ops);
    zr_heap_free(heap, round.further);
    return goes_on;
}

static bool ask_pieces(longer_run_t *run, const part_t *part) {
    zr_sim_op_t op = *op_of(run->course, 0, part->at[0]);
    double of_one = op.seconds - op.latency, work = 0;
    if (!find_pieces(run->course, part, (double)run->n_more, &work))
        return false;
    double n = ceil(work - NO_REST);
    for (double i = 1; i < n; i++)
        (void)zr_sim_machine_ask(&run->machine, &op);
    if (n - work > NO_REST)
        op.seconds = op.latency + (work - (n - 1)) * of_one;
    return zr_sim_machine_ask(&run->machine, &op);
}

static bool ask_all(longer_run_t *run) {
    bool goes_on = true;
    for (size_t i = 0; i < run->course->n_parts && goes_on; i++) {
        const part_t *part = &run->course->parts[i];
        goes_on = part->kind == PART_SAME      ? ask_same(run, part)
                  : part->kind == PART_STRETCH ? ask_stretch(run, part)
                                               : ask_pieces(run, part);
    }
    return goes_on;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool open_machine(longer_run_t *run, zr_sim_clock_t *clock) {
    const zr_sim_tape_t *a = run->course->tapes[0], *b = run->course->tapes[1];
    zr_sim_machine_t *machine = &run->machine;
    if (b->n_records < a->n_records ||
        !zr_sim_machine_open(machine, run->course->heap, clock, a->n_queues, a->n_drives))
        return false;
    machine->n_passes = a->n_records + run->n_more * (b->n_records - a->n_records) + 1;
    machine->passes = zr_heap_alloc(run->course->heap, machine->n_passes, sizeof(*machine->passes));
    return machine->passes != NULL;
}

bool zr_sim_tape_extend(const zr_sim_tape_t *const tapes[3], size_t n_more, zr_sim_clock_t *clock,
                        zr_sim_mark_fn mark, void *context) {
    course_t course = {.heap = zr_heap_create(NULL), .tapes = {tapes[0], tapes[1], tapes[2]}};
    longer_run_t run = {.course = &course, .n_more = n_more + N_TAPES - 1};
    bool is_told = course.heap != NULL && is_whole(&course) && find_parts(&course) &&
                   open_machine(&run, clock);
    run.machine.mark = mark;
    run.machine.context = context;
    is_told = is_told && ask_all(&run);
    zr_sim_machine_close(&run.machine);
    zr_heap_destroy(&course.heap);
    return is_told;
}
