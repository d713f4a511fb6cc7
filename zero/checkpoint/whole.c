/*
 * The newest checkpoint whose data is whole. Each rank verifies a part of it, and tells the others:
 * all pass over the same ones. Only when a whole one is found, those are set aside: where a drive
 * answers nobody at all, nothing has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/reader_internal.h"
#include "zero/comm/comm_backend.h"

enum { REASON_BYTES = 240 };

/* What a rank tells of its part of a checkpoint. */
typedef struct finding {
    int32_t failed, damaged; /* zr_status_t: it could not be found out; it is not whole */
    uint64_t step;
    char reason[REASON_BYTES]; /* of what is damaged */
} finding_t;

_Static_assert(sizeof(finding_t) <= ZR_COMM_TELL_BYTES, "findings are told whole");

typedef struct search {
    const char *folder;
    zr_comm_t *comm; /* NULL: there is one rank */
    int rank, n_ranks;
    const zr_secret_t *secret;
    const zr_log_t *log;
    finding_t *all;                 /* [n_ranks] */
    zr_checkpoint_passed_t *passed; /* [n_passed] */
    size_t n_passed;
} search_t;

/* The first is the reason, and the others follow from it or are like it. */
static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    char *reason = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && reason[0] == '\0')
        snprintf(reason, REASON_BYTES, "%s", message);
}

/* ---- agreeing -------------------------------------------------------------------------------- */

static zr_status_t tell(search_t *search, const char *name, const finding_t *own) {
    search->all[0] = *own;
    if (search->comm == NULL)
        return ZR_OK;
    return zr_comm_tell(search->comm, name, own, sizeof(*own), search->all);
}

/* What all have found of one that all have opened. NULL: it is whole. */
static zr_status_t judge(const search_t *search, const finding_t **damaged_p) {
    const finding_t *all = search->all;
    *damaged_p = NULL;
    for (int rank = 0; rank < search->n_ranks; rank++) {
        if (all[rank].failed != ZR_OK && rank != search->rank)
            return zr_fail(search->log, (zr_status_t)all[rank].failed,
                           "%s: rank %d cannot open a checkpoint there: see that rank's message",
                           search->folder, rank);
        if (all[rank].failed != ZR_OK)
            return (zr_status_t)all[rank].failed;
        if (all[rank].step != all[0].step)
            return zr_fail(search->log, ZR_ERR_ARGUMENT,
                           "%s: rank %d finds a checkpoint of step %zu there, rank 0 one of step "
                           "%zu; all ranks need the same folder",
                           search->folder, rank, (size_t)all[rank].step, (size_t)all[0].step);
        if (all[rank].damaged != ZR_OK && *damaged_p == NULL)
            *damaged_p = &all[rank];
    }
    return ZR_OK;
}

/* ---- one checkpoint -------------------------------------------------------------------------- */

static zr_status_t pass_over(search_t *search, const finding_t *damaged) {
    zr_checkpoint_passed_t *passed =
        realloc(search->passed, (search->n_passed + 1) * sizeof(*passed));
    if (passed == NULL)
        return zr_fail(search->log, ZR_ERR_MEMORY, "%s: no memory for its checkpoints",
                       search->folder);
    search->passed = passed;
    passed += search->n_passed++;
    *passed = (zr_checkpoint_passed_t){.step = (size_t)damaged->step};
    zr_folder_name(passed->step, passed->name);
    memcpy(passed->reason, damaged->reason, sizeof(damaged->reason));
    passed->reason[sizeof(damaged->reason) - 1] = '\0';
    if (search->rank == 0)
        zr_log_write(search->log, ZR_LOG_WARNING, "skipped %s/%s, which is damaged: %s",
                     search->folder, passed->name, passed->reason);
    return ZR_OK;
}

/* That of its name, whatever its manifest says. */
static size_t step_of(const zr_checkpoint_t *checkpoint) {
    size_t step = checkpoint->found.manifest.step;
    const char *slash = strrchr(checkpoint->found.path, '/');
    if (slash != NULL)
        (void)sscanf(slash, "/step-%zu", &step);
    return step;
}

/* Open the newest below those that were passed over, and look at this rank's part. */
static finding_t look(const search_t *search, zr_checkpoint_t **checkpoint_p) {
    finding_t own = {0};
    zr_log_t quiet = {.sink = keep_first, .context = own.reason, .level = ZR_LOG_ERROR};
    size_t n = search->n_passed, below = n > 0 ? search->passed[n - 1].step : SIZE_MAX;
    own.failed =
        zr_checkpoint_open_below(search->folder, below, search->secret, search->log, checkpoint_p);
    if (own.failed != ZR_OK)
        return own;
    own.step = step_of(*checkpoint_p);
    zr_status_t status = ZR_ERR_IO;
    for (int i = 0; i < ZR_FOLDER_TRIES && status == ZR_ERR_IO; i++)
        status = zr_checkpoint_verify_part(*checkpoint_p, (size_t)search->rank,
                                           (size_t)search->n_ranks, &quiet);
    if (status == ZR_ERR_FORMAT || status == ZR_ERR_IO)
        own.damaged = status;
    else if (status != ZR_OK)
        own.failed = zr_fail(search->log, status, "%s", own.reason);
    return own;
}

static zr_status_t find_whole(search_t *search, zr_checkpoint_t **checkpoint_p) {
    for (;;) {
        const finding_t *damaged = NULL;
        finding_t own = look(search, checkpoint_p);
        zr_status_t status = tell(search, "a checkpoint's data", &own);
        ZR_THEN(status, judge(search, &damaged));
        if (status == ZR_OK && damaged == NULL)
            return ZR_OK;
        zr_checkpoint_close(checkpoint_p);
        ZR_THEN(status, pass_over(search, damaged));
        ZR_TRY(status);
    }
}

/* ---- afterwards ------------------------------------------------------------------------------ */

/* Rank 0 for all. */
static zr_status_t set_aside(search_t *search, const zr_checkpoint_t *taken) {
    for (size_t i = 0; i < search->n_passed; i++) {
        zr_checkpoint_passed_t *passed = &search->passed[i];
        ZR_TRY(zr_folder_set_aside(search->folder, passed->step, search->log, passed->kept_as));
        zr_log_write(search->log, ZR_LOG_WARNING,
                     "%s/%s was renamed to %s; it is kept, and runs do not resume from it",
                     search->folder, passed->name, passed->kept_as);
    }
    return zr_folder_mend_latest(search->folder, step_of(taken), search->log);
}

/* All go on when it is done. */
static zr_status_t end_search(search_t *search, zr_checkpoint_t **checkpoint_p) {
    finding_t own = {0};
    const finding_t *damaged = NULL;
    if (search->n_passed == 0)
        return ZR_OK;
    if (search->rank == 0)
        own.failed = set_aside(search, *checkpoint_p);
    ZR_TRY(tell(search, "checkpoints set aside", &own));
    return judge(search, &damaged);
}

zr_status_t zr_checkpoint_open_whole(const char *folder, zr_comm_t *comm, const zr_secret_t *secret,
                                     const zr_log_t *log, zr_checkpoint_t **checkpoint_p,
                                     zr_checkpoint_passed_t **passed_p, size_t *n_passed_p) {
    if (folder == NULL || checkpoint_p == NULL || passed_p == NULL || n_passed_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "opening a whole checkpoint needs a folder, and output pointers for it and "
                       "for skipped ones");
    search_t search = {.folder = folder, .comm = comm, .n_ranks = 1, .secret = secret, .log = log};
    zr_checkpoint_t *checkpoint = NULL;
    if (comm != NULL) {
        search.rank = zr_comm_rank(comm);
        search.n_ranks = zr_comm_n_ranks(comm);
    }
    search.all = calloc((size_t)search.n_ranks, sizeof(*search.all));
    if (search.all == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to open it", folder);
    zr_status_t status = find_whole(&search, &checkpoint);
    ZR_THEN(status, end_search(&search, &checkpoint));
    free(search.all);
    if (status != ZR_OK) {
        zr_checkpoint_close(&checkpoint);
        free(search.passed);
        return status;
    }
    *checkpoint_p = checkpoint;
    *passed_p = search.passed;
    *n_passed_p = search.n_passed;
    return ZR_OK;
}
