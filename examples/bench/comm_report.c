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

/* The end of a row's line. */
static void print_mpi(const comm_row_t *row) {
    if (row->mpi != NULL)
        fprintf(stderr, "  %s %10.1f us%s  ratio %6.2f", row->mpi, 1e6 * row->mpi_seconds,
                row->mpi_keeps_memory ? "" : " (malloc as it comes)", row->mpi_ratio);
    fputc('\n', stderr);
}

void comm_report_print(const comm_report_t *report) {
    const comm_options_t *o = report->options;
    bool are_large;
    double least = least_ratio(report, copy_ratio, &are_large);
    fprintf(stderr, "%s\n%s, %s of %s, %s; a tensor of each rank, checked\n", report->about.device,
            o->comm->name, zr_count_text((uint64_t)o->n_ranks, "rank").text,
            zr_count_text((uint64_t)o->n_threads, "thread").text, zr_dtype_name(o->dtype));
    for (size_t i = 0; i < report->n_rows; i++) {
        const comm_row_t *row = &report->rows[i];
        fprintf(stderr, "  %-14s %-8s %11s  %10.1f us  %7.2f GB/s  copy %7.2f GB/s  ratio %6.3f",
                zr_collective_name(row->collective), row->in_place ? "in place" : "apart",
                zr_size_text(tensor_bytes(report, row)).text, 1e6 * row->seconds,
                1e-9 * row->bytes / row->seconds, 1e-9 * row->bytes / row->copy_seconds,
                row->ratio);
        if (row->read_ratio > 0.0)
            fprintf(stderr, "  of reading alone %6.3f", row->read_ratio);
        print_mpi(row);
    }
    fprintf(stderr, "  ratio %.3f, the least%s\n", least, are_large ? " from 16 MiB on" : "");
    if (report->about.mpi[0] != '\0' && !report->about.has_mpi)
        fprintf(stderr, "  MPI's own collectives are left out: %s\n", report->about.mpi);
    least = least_ratio(report, mpi_ratio, &are_large);
    if (least > 0.0)
        fprintf(stderr, "  %s: its reduce-scatter takes %.2f times as long, the least%s\n",
                report->about.mpi, least, are_large ? " from 16 MiB on" : "");
}

static json_t *describe_mpi(const comm_row_t *row) {
    json_t *object = json_object();
    json_put(&object, "call", json_string(row->mpi));
    json_put(&object, "malloc", json_string(row->mpi_keeps_memory ? "kept" : "as it comes"));
    json_put(&object, "seconds", json_number(row->mpi_seconds));
    json_put(&object, "ratio", json_number(row->mpi_ratio));
    return object;
}

static json_t *describe_row(const comm_report_t *report, const comm_row_t *row) {
    json_t *object = json_object();
    json_put(&object, "collective", json_string(zr_collective_name(row->collective)));
    json_put(&object, "in_place", json_boolean(row->in_place));
    json_put(&object, "tensor_bytes", json_count(tensor_bytes(report, row)));
    json_put(&object, "bytes", json_number(row->bytes));
    json_put(&object, "seconds", json_number(row->seconds));
    json_put(&object, "bytes_per_s", json_number(row->bytes / row->seconds));
    json_put(&object, "copy", json_string(row->copy));
    json_put(&object, "copy_bytes_per_s", json_number(row->bytes / row->copy_seconds));
    json_put(&object, "ratio", json_number(row->ratio));
    if (row->read_ratio > 0.0)
        json_put(&object, "read_ratio", json_number(row->read_ratio));
    json_put(&object, "rounds", json_count(row->n_rounds));
    json_put(&object, "calls_a_round", json_count(row->calls_a_round));
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
    json_put(&object, "measurements", list);
    json_put(&object, "command", json_string("comm"));
    json_put(&object, "comm", json_string(o->comm->name));
    json_put(&object, "device", json_string(report->about.device));
    json_put(&object, "ranks", json_count((uint64_t)o->n_ranks));
    json_put(&object, "threads_per_rank", json_count((uint64_t)o->n_threads));
    json_put(&object, "dtype", json_string(zr_dtype_name(o->dtype)));
    json_put(&object, "ratio", json_number(least_ratio(report, copy_ratio, &are_large)));
    put_mpi(&object, report);
    return object;
}
