/* See train_log.h. */
#include "examples/train/log.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    return sscanf(line, " { \"step\" : %zu", &step) == 1 ? step : 0;
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
zr_status_t train_log_open(const train_options_t *options, const train_start_t *start,
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
    if (status != ZR_OK) {
        fclose(file);
        return status;
    }
    *file_p = file;
    return ZR_OK;
}
