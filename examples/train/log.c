/* See train_log.h. */
#include "examples/train/log.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/common/json.h"
#include "examples/train/events.h"

/* Of a CSV file: what lines of steps and of evaluations have. */
static const char *const columns[] = {"step",           "loss",      "lr",
                                      "norm",           "clip",      "skipped",
                                      "tokens",         "step_ms",   "tokens_per_s",
                                      "slowest_rank",   "excess_ms", "val_loss",
                                      "val_perplexity", "val_ms",    "best",
                                      "time.compute",   "time.comm", "time.optimizer",
                                      "time.stall",     "time.data", "time.concurrent",
                                      "time.io"};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* What a file has. */
typedef struct lines {
    off_t n_kept_bytes; /* of lines that stay, at the beginning */
    size_t n_cut;       /* whole lines behind them */
    bool has_part;      /* of a line, at its end */
} lines_t;

static zr_status_t refuse(const char *path, const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_IO, "cannot write --log %s: %s", path, strerror(errno));
}

/* Steps are counted from 1; 0: the line says none. */
static size_t step_of(const char *line) {
    size_t step = 0;
    return sscanf(line, " { \"step\" : %zu", &step) == 1 || sscanf(line, "%zu,", &step) == 1 ? step
                                                                                             : 0;
}

static bool is_csv(const train_options_t *options) {
    return files_name_ends(options->log_path, ".csv");
}

static zr_status_t write_header(FILE *file, const train_options_t *options, const zr_log_t *log) {
    if (!is_csv(options) || ftello(file) > 0)
        return ZR_OK;
    for (size_t i = 0; i < N_COLUMNS; i++)
        fprintf(file, "%s%s", i > 0 ? "," : "", columns[i]);
    return fputc('\n', file) != EOF && fflush(file) == 0 ? ZR_OK : refuse(options->log_path, log);
}

/* null is a number that is not finite. */
static void write_cell(FILE *file, const json_t *value) {
    if (json_is_null(value))
        fputs("nan", file);
    else if (value != NULL)
        json_dumpf(value, file, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

static bool write_row(FILE *file, const json_t *object) {
    for (size_t i = 0; i < N_COLUMNS; i++) {
        const char *dot = strchr(columns[i], '.');
        const json_t *of = dot == NULL ? object : json_object_get(object, "time");
        if (i > 0)
            fputc(',', file);
        write_cell(file, json_object_get(of, dot == NULL ? columns[i] : dot + 1));
    }
    fputc('\n', file);
    return fflush(file) == 0 && ferror(file) == 0;
}

static bool write_line(FILE *file, const train_options_t *options, const json_t *object) {
    return is_csv(options) ? write_row(file, object) : json_print(object, false, file);
}

zr_status_t train_log_write(const train_log_t *to, const train_options_t *options, json_t *object,
                            const char *what, size_t step, const zr_log_t *log) {
    if (object == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a line of --log");
    errno = 0;
    bool has_line = to->lines == NULL || write_line(to->lines, options, object);
    bool has_event = !has_line || to->events == NULL || train_events_write(to->events, object);
    int error = errno;
    json_decref(object);
    if (has_line && has_event)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_IO, "cannot write %s %zu to --%s %s: %s", what, step,
                   has_line ? "tensorboard" : "log",
                   has_line ? options->tensorboard_dir : options->log_path, strerror(error));
}

/* Lines up to the first of a step behind `last`, but for one that a kill has left unfinished. Lines
 * may be long: how one begins says its step. */
static bool find_lines(FILE *file, size_t last, lines_t *lines) {
    char begin[64] = "";
    size_t length = 0;
    *lines = (lines_t){0};
    for (int c = getc(file); c != EOF; c = getc(file)) {
        if (length < sizeof(begin) - 1) {
            begin[length] = (char)c;
            begin[length + 1] = '\0';
        }
        length++;
        if (c != '\n')
            continue;
        if (lines->n_cut > 0 || step_of(begin) > last)
            lines->n_cut++;
        else
            lines->n_kept_bytes += (off_t)length;
        length = 0;
    }
    lines->has_part = length > 0;
    return ferror(file) == 0;
}

static void say_cut(const char *path, size_t last, const lines_t *lines, const zr_log_t *log) {
    if (lines->n_cut > 0 || lines->has_part)
        zr_log_write(log, ZR_LOG_INFO, "--log %s: goes on behind step %zu; cut from it: %s%s", path,
                     last, zr_count_text(lines->n_cut, "line").text,
                     lines->has_part ? " and an unfinished one" : "");
}

/* Cut what does not stay, and stand behind what does. */
static zr_status_t cut(FILE *file, const char *path, size_t last, const zr_log_t *log) {
    lines_t lines;
    errno = 0;
    if (!find_lines(file, last, &lines) || fseeko(file, lines.n_kept_bytes, SEEK_SET) != 0 ||
        ftruncate(fileno(file), lines.n_kept_bytes) != 0)
        return refuse(path, log);
    say_cut(path, last, &lines, log);
    return ZR_OK;
}

/* Nothing is done again where no step is left: then all lines stay. */
static zr_status_t open_lines(const train_options_t *options, const train_start_t *start,
                              const zr_log_t *log, FILE **file_p) {
    const char *path = options->log_path;
    struct stat about;
    bool has_lines = start->checkpoint != NULL && stat(path, &about) == 0 && S_ISREG(about.st_mode);
    bool is_done = has_lines && (start->step >= options->steps || options->evaluation.only);
    bool goes_on = has_lines && start->step > 0; /* before it, there may be an evaluation's line */
    FILE *file = fopen(path, is_done ? "ae" : goes_on ? "r+e" : "we");
    if (file == NULL)
        return refuse(path, log);
    zr_status_t status = goes_on && !is_done ? cut(file, path, start->step, log) : ZR_OK;
    if (!is_done)
        ZR_THEN(status, write_header(file, options, log));
    if (status != ZR_OK) {
        fclose(file);
        return status;
    }
    *file_p = file;
    return ZR_OK;
}

zr_status_t train_log_open(const train_options_t *options, const train_start_t *start,
                           const zr_log_t *log, train_log_t *to_p) {
    bool is_done = start->step >= options->steps && !options->evaluation.only;
    if (options->log_path != NULL)
        ZR_TRY(open_lines(options, start, log, &to_p->lines));
    return options->tensorboard_dir != NULL && !is_done
               ? train_events_open(options, start, log, &to_p->events)
               : ZR_OK;
}

zr_status_t train_log_close(const train_options_t *options, const zr_log_t *log, train_log_t *to) {
    train_log_t open = *to;
    *to = (train_log_t){0};
    bool are_lines_whole = open.lines == NULL || fclose(open.lines) == 0;
    int error = errno;
    bool are_events_whole = open.events == NULL || fclose(open.events) == 0;
    if (!are_lines_whole)
        return zr_fail(log, ZR_ERR_IO, "cannot write --log %s: %s", options->log_path,
                       strerror(error));
    return are_events_whole ? ZR_OK
                            : zr_fail(log, ZR_ERR_IO, "cannot write to --tensorboard %s: %s",
                                      options->tensorboard_dir, strerror(errno));
}
