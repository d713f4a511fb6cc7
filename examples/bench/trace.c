#include "examples/bench/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"

#define MAX_FILE_BYTES ((size_t)1 << 28) /* some four million buffers */
#define MAX_COLUMNS 64

enum { COLUMN_ID, COLUMN_LOWER, COLUMN_UPPER, COLUMN_SIZE, COLUMN_ALIGNMENT, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"id", "lower", "upper", "size", "alignment"};

/* A field of a record, as text that ends in '\0'; where its first character stands in the file. */
typedef struct field {
    char *text;
    size_t line, column; /* from 1 */
} field_t;

typedef struct reader {
    const char *path;
    const zr_log_t *log;
    char *at, *end;   /* the text that is left; *end is '\0' */
    char *line_begin; /* of the line that `at` is in, */
    size_t line;      /* and its number, from 1 */
    field_t fields[MAX_COLUMNS];
    size_t n_fields, n_header_fields;
    size_t places[N_COLUMNS]; /* in a line; SIZE_MAX: not there */
    size_t total_bytes;       /* of all buffers so far */
    size_t *lines;            /* [trace's capacity] where each buffer's id stands */
} reader_t;

void trace_free(trace_t *trace) {
    free(trace->text);
    free(trace->ids);
    free(trace->buffers);
    *trace = (trace_t){0};
}

/* ---- records and fields ---------------------------------------------------------------------- */

/* Log what is wrong in the file, there, at a field, or at the character that is next. Always
   ZR_ERR_FORMAT. */
#define REFUSE_AT(reader, line, column, format, ...)                                               \
    zr_fail((reader)->log, ZR_ERR_FORMAT, "--trace %s:%zu:%zu: " format, (reader)->path, line,     \
            column, ##__VA_ARGS__)
#define REFUSE_FIELD(reader, field, ...)                                                           \
    REFUSE_AT(reader, (field)->line, (field)->column, __VA_ARGS__)

static zr_status_t refuse_here(const reader_t *reader, const char *problem) {
    return REFUSE_AT(reader, reader->line, (size_t)(reader->at - reader->line_begin) + 1, "%s",
                     problem);
}

static const field_t *field_of(const reader_t *reader, int column) {
    return &reader->fields[reader->places[column]];
}

static void pass_blanks(reader_t *reader) {
    while (*reader->at == ' ' || *reader->at == '\t' || *reader->at == '\r')
        reader->at++;
}

/* After a line's last character. */
static void pass_line_end(reader_t *reader) {
    if (reader->at < reader->end)
        reader->at++;
    reader->line++;
    reader->line_begin = reader->at;
}

static bool ends_field(const reader_t *reader) {
    return reader->at == reader->end || *reader->at == ',' || *reader->at == '\n';
}

/* Up to the comma or the end of the line, which stay; *end_p is after its last character. */
static zr_status_t read_plain(reader_t *reader, char **end_p) {
    for (*end_p = reader->at; !ends_field(reader); reader->at++) {
        if (*reader->at == '\0')
            return refuse_here(reader, "a byte 0; this is not text");
        if (*reader->at == '"')
            return refuse_here(reader, "a quote within a field that does not begin with one");
        if (*reader->at != ' ' && *reader->at != '\t' && *reader->at != '\r')
            *end_p = reader->at + 1;
    }
    return ZR_OK;
}

/* RFC 4180: commas, line ends and doubled quotes stand for themselves up to the next single quote.
 * What is between is moved to where the field's text begins. */
static zr_status_t read_quoted(reader_t *reader, const field_t *field, char **end_p) {
    char *to = field->text;
    for (reader->at++;; *to++ = *reader->at++) {
        if (reader->at == reader->end)
            return REFUSE_FIELD(reader, field, "the quote that begins here is never closed");
        if (*reader->at == '\0')
            return refuse_here(reader, "a byte 0; this is not text");
        if (*reader->at == '"' && *++reader->at != '"')
            break;
        if (*reader->at == '\n') {
            reader->line++;
            reader->line_begin = reader->at + 1;
        }
    }
    *end_p = to;
    pass_blanks(reader);
    if (!ends_field(reader))
        return refuse_here(reader, "after a closing quote only a comma or the line's end may be");
    return ZR_OK;
}

/* A record: one line, or more where quotes hold line ends. */
static zr_status_t read_record(reader_t *reader) {
    char *end = NULL;
    for (reader->n_fields = 0;;) {
        pass_blanks(reader);
        field_t field = {.text = reader->at,
                         .line = reader->line,
                         .column = (size_t)(reader->at - reader->line_begin) + 1};
        if (reader->n_fields == MAX_COLUMNS)
            return REFUSE_FIELD(reader, &field, "more than %d columns", MAX_COLUMNS);
        ZR_TRY(*reader->at == '"' ? read_quoted(reader, &field, &end) : read_plain(reader, &end));
        reader->fields[reader->n_fields++] = field;
        bool is_last = *reader->at != ',';
        if (is_last)
            pass_line_end(reader);
        else
            reader->at++;
        *end = '\0'; /* may be where the comma or the line's end was */
        if (is_last)
            return ZR_OK;
    }
}

static zr_status_t read_header(reader_t *reader) {
    for (int c = 0; c < N_COLUMNS; c++)
        reader->places[c] = SIZE_MAX;
    for (size_t i = 0; i < reader->n_fields; i++) {
        const field_t *field = &reader->fields[i];
        for (int c = 0; c < N_COLUMNS; c++) {
            if (strcmp(field->text, column_names[c]) != 0)
                continue;
            if (reader->places[c] != SIZE_MAX)
                return REFUSE_FIELD(reader, field, "a second column \"%s\"", field->text);
            reader->places[c] = i;
        }
    }
    for (int c = 0; c < COLUMN_ALIGNMENT; c++)
        if (reader->places[c] == SIZE_MAX)
            return REFUSE_AT(reader, reader->fields[0].line, (size_t)1,
                             "the header has no column \"%s\" (id, lower, upper and size are "
                             "needed)",
                             column_names[c]);
    reader->n_header_fields = reader->n_fields;
    return ZR_OK;
}

/* A whole number, with a sign where that is allowed. */
static zr_status_t read_number(const reader_t *reader, int column, bool may_be_negative,
                               int64_t *number_p) {
    const field_t *field = field_of(reader, column);
    const char *text = field->text;
    size_t sign = may_be_negative && text[0] == '-', n_digits = strspn(text + sign, "0123456789");
    errno = 0;
    long long number = strtoll(text, NULL, 10);
    if (n_digits > 0 && text[sign + n_digits] == '\0' && errno == 0) {
        *number_p = number;
        return ZR_OK;
    }
    return REFUSE_FIELD(reader, field, "%s \"%.40s\" is not a whole number%s", column_names[column],
                        text,
                        errno == ERANGE ? " of 64 bits" : (may_be_negative ? "" : " of 0 or more"));
}

static zr_status_t read_alignment(const reader_t *reader, size_t *alignment_p) {
    int64_t alignment = 0;
    *alignment_p = 0;
    if (reader->places[COLUMN_ALIGNMENT] == SIZE_MAX)
        return ZR_OK;
    ZR_TRY(read_number(reader, COLUMN_ALIGNMENT, false, &alignment));
    *alignment_p = (size_t)alignment;
    if ((*alignment_p & (*alignment_p - 1)) == 0 && *alignment_p <= ZR_PLAN_MAX_ALIGNMENT)
        return ZR_OK;
    return REFUSE_FIELD(reader, field_of(reader, COLUMN_ALIGNMENT),
                        "alignment %zu is not a power of two up to %zu", *alignment_p,
                        ZR_PLAN_MAX_ALIGNMENT);
}

static zr_status_t read_buffer(reader_t *reader, zr_plan_buffer_t *buffer) {
    int64_t size = 0;
    if (reader->n_fields != reader->n_header_fields)
        return REFUSE_FIELD(reader, &reader->fields[reader->n_fields - 1],
                            "%s, but the header has %s",
                            zr_count_text(reader->n_fields, "field").text,
                            zr_count_text(reader->n_header_fields, "column").text);
    ZR_TRY(read_number(reader, COLUMN_LOWER, true, &buffer->lower));
    ZR_TRY(read_number(reader, COLUMN_UPPER, true, &buffer->upper));
    ZR_TRY(read_number(reader, COLUMN_SIZE, false, &size));
    ZR_TRY(read_alignment(reader, &buffer->alignment));
    buffer->size_bytes = (size_t)size;
    if (__builtin_add_overflow(reader->total_bytes, buffer->size_bytes, &reader->total_bytes) ||
        reader->total_bytes > ZR_PLAN_MAX_BYTES)
        return REFUSE_FIELD(reader, field_of(reader, COLUMN_SIZE),
                            "sizes up to this one add up to more than 4 EiB");
    if (buffer->lower < buffer->upper)
        return ZR_OK;
    return REFUSE_FIELD(reader, field_of(reader, COLUMN_UPPER),
                        "upper %" PRId64 " is not above lower %" PRId64, buffer->upper,
                        buffer->lower);
}

/* Room for one more buffer. */
static zr_status_t grow(reader_t *reader, trace_t *trace) {
    if (trace->n_buffers < trace->capacity)
        return ZR_OK;
    size_t capacity = trace->capacity == 0 ? 256 : 2 * trace->capacity;
    zr_plan_buffer_t *buffers = realloc(trace->buffers, capacity * sizeof(*buffers));
    if (buffers != NULL)
        trace->buffers = buffers;
    const char **ids = realloc(trace->ids, capacity * sizeof(*ids));
    if (ids != NULL)
        trace->ids = ids;
    size_t *lines = realloc(reader->lines, capacity * sizeof(*lines));
    if (lines != NULL)
        reader->lines = lines;
    if (buffers == NULL || ids == NULL || lines == NULL)
        return zr_fail(reader->log, ZR_ERR_MEMORY, "--trace %s: no memory for %s", reader->path,
                       zr_count_text(capacity, "buffer").text);
    trace->capacity = capacity;
    return ZR_OK;
}

static zr_status_t add_buffer(reader_t *reader, trace_t *trace) {
    const field_t *id = field_of(reader, COLUMN_ID);
    ZR_TRY(grow(reader, trace));
    ZR_TRY(read_buffer(reader, &trace->buffers[trace->n_buffers]));
    reader->lines[trace->n_buffers] = id->line;
    trace->ids[trace->n_buffers++] = id->text;
    return ZR_OK;
}

/* Where an id stands. */
typedef struct named {
    const char *id;
    size_t line;
} named_t;

static int compare_ids(const void *a, const void *b) {
    const named_t *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

/* A plan names buffers by their ids. */
static zr_status_t check_ids(const reader_t *reader, const trace_t *trace) {
    size_t n = trace->n_buffers;
    if (n == 0)
        return zr_fail(reader->log, ZR_ERR_FORMAT,
                       "--trace %s: there are no buffers; after the header one line each is needed",
                       reader->path);
    named_t *named = malloc(n * sizeof(*named));
    if (named == NULL)
        return zr_fail(reader->log, ZR_ERR_MEMORY, "--trace %s: no memory for %s", reader->path,
                       zr_count_text(n, "id").text);
    for (size_t i = 0; i < n; i++)
        named[i] = (named_t){.id = trace->ids[i], .line = reader->lines[i]};
    qsort(named, n, sizeof(*named), compare_ids);
    zr_status_t status = ZR_OK;
    for (size_t i = 1; i < n && status == ZR_OK; i++)
        if (strcmp(named[i - 1].id, named[i].id) == 0)
            status = zr_fail(reader->log, ZR_ERR_FORMAT,
                             "--trace %s:%zu: id \"%.40s\" stands in line %zu already",
                             reader->path, named[i].line, named[i].id, named[i - 1].line);
    free(named);
    return status;
}

static zr_status_t read_records(reader_t *reader, trace_t *trace) {
    bool has_header = false;
    while (reader->at < reader->end) {
        char *begin = reader->at;
        pass_blanks(reader);
        if (reader->at == reader->end || *reader->at == '\n') {
            pass_line_end(reader);
            continue;
        }
        reader->at = begin;
        ZR_TRY(read_record(reader));
        ZR_TRY(has_header ? add_buffer(reader, trace) : read_header(reader));
        has_header = true;
    }
    if (!has_header)
        return REFUSE_AT(reader, (size_t)1, (size_t)1, "it is empty; a header is needed");
    return ZR_OK;
}

zr_status_t trace_read(const char *path, const zr_log_t *log, trace_t *trace_p) {
    trace_t trace = {0};
    reader_t reader = {.path = path, .log = log, .line = 1};
    size_t length = 0;
    zr_log_t own = files_log(&(files_log_t){*log, "--trace"});
    ZR_TRY(zr_text_file_read(path, MAX_FILE_BYTES, &own, &trace.text, &length));
    /* Some programs put a mark of the encoding first. */
    size_t begin = strncmp(trace.text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    reader.at = reader.line_begin = trace.text + begin;
    reader.end = trace.text + length;
    zr_status_t status = read_records(&reader, &trace);
    ZR_THEN(status, check_ids(&reader, &trace));
    free(reader.lines);
    if (status != ZR_OK) {
        trace_free(&trace);
        return status;
    }
    *trace_p = trace;
    return ZR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

void trace_align(trace_t *trace, size_t alignment) {
    for (size_t i = 0; i < trace->n_buffers; i++) {
        zr_plan_buffer_t *buffer = &trace->buffers[i];
        buffer->size_bytes = (buffer->size_bytes + alignment - 1) & ~(alignment - 1);
        if (buffer->alignment < alignment)
            buffer->alignment = alignment;
    }
}

static void write_field(const char *text, FILE *file) {
    if (text[strcspn(text, ",\"\r\n")] == '\0') {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

zr_status_t trace_write_plan(const trace_t *trace, const size_t *offsets, const char *path,
                             const zr_log_t *log) {
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return zr_fail(log, ZR_ERR_IO, "--plan %s: cannot write it: %s", path, strerror(errno));
    fputs("id,lower,upper,size,offset\n", file);
    for (size_t i = 0; i < trace->n_buffers; i++) {
        const zr_plan_buffer_t *buffer = &trace->buffers[i];
        write_field(trace->ids[i], file);
        fprintf(file, ",%" PRId64 ",%" PRId64 ",%zu,%zu\n", buffer->lower, buffer->upper,
                buffer->size_bytes, offsets[i]);
    }
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return zr_fail(log, ZR_ERR_IO, "--plan %s: cannot write it: %s", path, strerror(errno));
    return ZR_OK;
}

typedef struct by_time {
    int64_t lower;
    size_t buffer;
} by_time_t;

static int compare_begins(const void *a, const void *b) {
    const by_time_t *x = a, *y = b;
    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* Go through time with the live buffers sorted by offset: a new one has to fit between those
 * below and above it. False when it does not. */
static bool sweep(const trace_t *trace, const size_t *offsets, const by_time_t *order, size_t n,
                  size_t *live, const zr_log_t *log) {
    const zr_plan_buffer_t *buffers = trace->buffers;
    size_t n_live = 0;
    for (size_t i = 0; i < n; i++) {
        size_t buffer = order[i].buffer, n_left = 0;
        for (size_t j = 0; j < n_live; j++)
            if (buffers[live[j]].upper > order[i].lower)
                live[n_left++] = live[j];
        n_live = n_left;
        size_t at = n_live;
        for (; at > 0 && offsets[live[at - 1]] > offsets[buffer]; at--)
            live[at] = live[at - 1];
        live[at] = buffer;
        n_live++;
        for (size_t j = at == 0 ? 0 : at - 1; j < at + 1 && j + 1 < n_live; j++) {
            size_t low = live[j], high = live[j + 1];
            if (buffers[low].size_bytes <= offsets[high] - offsets[low])
                continue;
            zr_log_write(log, ZR_LOG_ERROR, "\"%s\" and \"%s\" overlap", trace->ids[low],
                         trace->ids[high]);
            return false;
        }
    }
    return true;
}

zr_status_t trace_check_plan(const trace_t *trace, const size_t *offsets, const zr_log_t *log,
                             bool *is_valid_p, size_t *height_p) {
    size_t n = 0, height = 0, *live = malloc((trace->n_buffers + 1) * sizeof(*live));
    by_time_t *order = malloc((trace->n_buffers + 1) * sizeof(*order));
    bool is_valid = true;
    if (live == NULL || order == NULL) {
        free(live);
        free(order);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to check a plan of %s",
                       zr_count_text(trace->n_buffers, "buffer").text);
    }
    for (size_t i = 0; i < trace->n_buffers; i++) {
        const zr_plan_buffer_t *buffer = &trace->buffers[i];
        if (buffer->size_bytes == 0)
            continue;
        order[n++] = (by_time_t){buffer->lower, i};
        size_t end = offsets[i] + buffer->size_bytes;
        height = end > height ? end : height;
        is_valid = is_valid && end > offsets[i] &&
                   (buffer->alignment < 2 || offsets[i] % buffer->alignment == 0);
    }
    qsort(order, n, sizeof(*order), compare_begins);
    *is_valid_p = sweep(trace, offsets, order, n, live, log) && is_valid;
    *height_p = height;
    free(live);
    free(order);
    return ZR_OK;
}
