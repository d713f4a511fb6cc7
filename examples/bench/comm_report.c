/* See comm_report.h. */
#include "examples/bench/comm_report.h"

/* From here on tensors are no matter of caches or of meeting: what the object's ratio is about. */
#define LARGE_BYTES ((size_t)16 << 20)

static size_t tensor_bytes(const comm_report_t *report, const comm_row_t *row) {
    return row->block_elems * (size_t)report->options->n_ranks *
           zr_dtype_size(report->options->dtype);
}

/* What is left out so that all ranks have as much is no matter. */
static bool is_large_tensor(size_t size_bytes) {
    return size_bytes >= LARGE_BYTES - LARGE_BYTES / 64;
}

static double copy_ratio(const comm_row_t *row) {
    return row->ratio;
}

/* MPI's own reduce-scatters; 0: it is none, or was not measured. */
static double mpi_ratio(const comm_row_t *row) {
    return row->collective == ZR_REDUCE_SCATTER ? row->mpi_ratio : 0.0;
}

/* The least above 0 among large tensors, or among all where none is large. 0: there is none. */
static double least_ratio(const comm_report_t *report, double (*ratio_of)(const comm_row_t *row),
                          bool *are_large_p) {
    double least = 0.0;
    *are_large_p = false;
    for (size_t i = 0; i < report->n_rows; i++) {
        double ratio = ratio_of(&report->rows[i]);
        bool is_large = is_large_tensor(tensor_bytes(report, &report->rows[i]));
        if (ratio <= 0.0)
            continue;
        if (least <= 0.0 || (is_large && !*are_large_p) ||
            (is_large == *are_large_p && ratio < least))
            least = ratio;
        *are_large_p = *are_large_p || is_large;
    }
    return least;
}

static json_t *describe_mpi(const comm_row_t *row) {
    return JSON_OBJECT({"call", json_string(row->mpi)},
                       {"malloc", json_string(row->mpi_keeps_memory ? "kept" : "as it comes")},
                       {"seconds", json_number(row->mpi_seconds)},
                       {"ratio", json_number(row->mpi_ratio)});
}

static json_t *describe_row(const comm_report_t *report, const comm_row_t *row) {
    json_t *object = JSON_OBJECT(
        {"collective", json_string(zr_collective_name(row->collective))},
        {"in_place", json_boolean(row->in_place)},
        {"tensor_bytes", json_count(tensor_bytes(report, row))}, {"bytes", json_number(row->bytes)},
        {"seconds", json_number(row->seconds)},
        {"bytes_per_s", json_number(row->bytes / row->seconds)}, {"copy", json_string(row->copy)},
        {"copy_bytes_per_s", json_number(row->bytes / row->copy_seconds)},
        {"ratio", json_number(row->ratio)});
    if (row->read_ratio > 0.0)
        json_put(&object, "read_ratio", json_number(row->read_ratio));
    JSON_PUT(&object, {"rounds", json_count(row->n_rounds)},
             {"calls_a_round", json_count(row->calls_a_round)});
    if (row->mpi != NULL)
        json_put(&object, "mpi", describe_mpi(row));
    return object;
}

/* Whose collectives were measured beside, or why none; where they were asked for. */
static void put_mpi(json_t **object_p, const comm_report_t *report) {
    bool are_large;
    double least = least_ratio(report, mpi_ratio, &are_large);
    if (report->about.mpi[0] == '\0')
        return;
    if (!report->about.has_mpi)
        json_put(object_p, "mpi_left_out", json_text(report->about.mpi));
    else
        json_put(object_p, "mpi", json_text(report->about.mpi));
    if (report->about.has_mpi && least > 0.0)
        json_put(object_p, "mpi_reduce_scatter_ratio", json_number(least));
}

json_t *comm_report_describe(const comm_report_t *report) {
    const comm_options_t *o = report->options;
    json_t *object = json_object(), *list = json_array();
    bool are_large;
    for (size_t i = 0; i < report->n_rows; i++)
        json_append(&list, describe_row(report, &report->rows[i]));
    JSON_PUT(&object, {"measurements", list}, {"command", json_string("comm")},
             {"comm", json_string(o->comm->name)}, {"device", json_string(report->about.device)},
             {"ranks", json_count((uint64_t)o->n_ranks)},
             {"threads_per_rank", json_count((uint64_t)o->n_threads)},
             {"dtype", json_string(zr_dtype_name(o->dtype))},
             {"ratio", json_number(least_ratio(report, copy_ratio, &are_large))});
    put_mpi(&object, report);
    return object;
}
