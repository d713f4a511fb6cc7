/*
 * What a run says about itself: a progress line, a line of JSON per step, and at the end an
 * object of JSON or a summary for people.
 */
#pragma once

#include <jansson.h>

#include "examples/train/evaluate.h"
#include "examples/train/log.h"

typedef struct train_step_line {
    zr_step_report_t report;
    double loss;
    size_t n_tokens; /* trained on, over all ranks */
    double seconds;
    double tokens_per_s;
    train_time_t time;       /* of this rank in this step */
    train_slowest_t slowest; /* of more ranks than one */
    double left_seconds;     /* until the last step, evaluations included */
    size_t device_bytes;     /* of this rank, reserved: the most so far */
} train_step_line_t;

/**
 * Append a step to what is written of steps; with its parts where wall_clock_breakdown asks for
 * them. ZR_ERR_IO, ZR_ERR_MEMORY are logged.
 */
ZR_NODISCARD zr_status_t train_report_log_step(const train_log_t *to,
                                               const train_options_t *options,
                                               const train_step_line_t *line, const zr_log_t *log);

/** An evaluation of the run. */
typedef struct train_evaluation_line {
    size_t step; /* that it came after; 0: before the first */
    train_evaluated_t evaluated;
    bool is_best;
} train_evaluation_line_t;

/**
 * Append an evaluation, and show it in a line that stays.
 *
 * @param messages  NULL: none
 * @return as train_report_log_step
 */
ZR_NODISCARD zr_status_t train_report_evaluation(const train_log_t *to, messages_t *messages,
                                                 const train_options_t *options,
                                                 const train_evaluation_line_t *line,
                                                 const zr_log_t *log);

/**
 * Show a step: on a terminal in place; a line that stays every steps_per_print steps, as
 * DeepSpeed's key asks, and at the end.
 */
void train_report_progress(messages_t *messages, const train_options_t *options,
                           const train_step_line_t *line);

/** Whether a run was interrupted and nothing of it is left. */
bool train_report_is_lost(const train_options_t *options, const train_result_t *result);

/** Warn of a run that came to its end and trained nothing of use. */
void train_report_warnings(const train_options_t *options, const train_result_t *result,
                           const zr_log_t *log);

/**
 * Print the object of --json; false when that failed.
 *
 * @param run  whose ranks' own results are told, too; NULL: none are known
 */
bool train_report_json(const train_options_t *options, const zero_train_t *run,
                       const train_result_t *result, const char *message, FILE *file);
/** "optimizer": where its state lived, and what moving it took. NULL: no memory. */
json_t *train_offload_object(const train_options_t *options, const train_result_t *result);
/** Whether anything was offloaded to NVMe, as far as the run came. */
bool train_result_has_store(const train_result_t *result);
/** "none", "cpu" or "nvme". */
const char *train_offload_name(zr_offload_device_t device);
/** Memory that is in no tier: now, and at its peak. */
json_t *train_metadata_object(const zr_byte_count_t *metadata);
/** Peaks per tier: live, reserved, and live by tag. */
json_t *train_peaks_object(const train_peak_t peaks[ZR_N_TIERS], bool has_drives);
/** The model's name, its sizes and how many parameters it has. */
json_t *train_shape_object(const train_options_t *options);
/** The same for people; nothing when nothing was offloaded. */
void train_offload_summary(const train_options_t *options, const train_result_t *result,
                           FILE *file);

typedef struct train_bytes {
    char text[32];
} train_bytes_t;

/** 1536 as "1.5 KiB". */
train_bytes_t train_bytes(double bytes);

/** Print what was planned of a run that was only tried (--dry-run). */
void train_report_planned(const train_options_t *options, const train_result_t *result, FILE *file);

/** Print a summary: five lines, and with --verbose all that is known. */
void train_report_summary(const train_options_t *options, const train_result_t *result, FILE *file);
