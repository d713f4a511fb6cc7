/*
 * One pass over the tokens. A comma is written when the next item begins, not where the text has
 * it: so the last of a list loses its comma, and an item of a new line gets one.
 */
#include "zero/config/relaxed.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/** What the token before was. */
typedef enum before {
    BEFORE_NOTHING, /* or a bracket that opens, or a colon */
    BEFORE_ITEM,    /* a whole value, or its end */
    BEFORE_COMMA
} before_t;

typedef struct scan {
    const char *at, *end;
    char *out;
    before_t before;
    size_t comma;  /* place of that of BEFORE_COMMA in the copy, blank so far */
    bool has_line; /* a line ends behind the item before */
    char *start;   /* of the copy */
} scan_t;

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Characters of a key without quotes, and of numbers and the words of JSON. */
static bool is_bare(char c) {
    return c != '\0' && !is_blank(c) && strchr("{}[],:\"'#", c) == NULL;
}

static void put(scan_t *scan, char c) {
    *scan->out++ = c;
}

static bool begins_with(const scan_t *scan, const char *word) {
    size_t n = strlen(word);
    return (size_t)(scan->end - scan->at) >= n && memcmp(scan->at, word, n) == 0;
}

/* A blank for each byte up to `end`, lines kept. */
static void blank_to(scan_t *scan, const char *end) {
    for (; scan->at < end; scan->at++)
        put(scan, is_blank(*scan->at) ? *scan->at : ' ');
}

/* @return false: none begins here */
static bool skip_comment(scan_t *scan) {
    const char *end = scan->at;
    if (*scan->at == '#' || begins_with(scan, "//")) {
        while (end < scan->end && *end != '\n')
            end++;
    } else if (begins_with(scan, "/*")) {
        for (end += 2; end < scan->end && (end[-1] != '*' || *end != '/' || end < scan->at + 3);)
            end++;
        if (end == scan->end)
            return false; /* it has no end, which the parser refuses */
        end++;
    } else {
        return false;
    }
    scan->has_line |= memchr(scan->at, '\n', (size_t)(end - scan->at)) != NULL;
    blank_to(scan, end);
    return true;
}

static void begin_item(scan_t *scan) {
    if (scan->before == BEFORE_COMMA)
        scan->start[scan->comma] = ',';
    else if (scan->before == BEFORE_ITEM && scan->has_line)
        put(scan, ',');
}

static void end_item(scan_t *scan) {
    scan->before = BEFORE_ITEM;
    scan->has_line = false;
}

/* A string between quotes of either kind, written with double ones. */
static void copy_string(scan_t *scan) {
    char quote = *scan->at++;
    put(scan, '"');
    while (scan->at < scan->end && *scan->at != quote && *scan->at != '\n') {
        bool is_escape = *scan->at == '\\' && scan->at + 1 < scan->end;
        if (is_escape && quote == '\'' && scan->at[1] == quote)
            scan->at++; /* JSON has no such escape */
        else if (is_escape)
            put(scan, *scan->at++);
        else if (*scan->at == '"')
            put(scan, '\\');
        put(scan, *scan->at++);
    }
    if (scan->at < scan->end && *scan->at == quote) {
        put(scan, '"');
        scan->at++;
    }
}

/* A number or a word; one in front of a colon is a key. */
static void copy_bare(scan_t *scan) {
    const char *end = scan->at, *behind;
    while (end < scan->end && is_bare(*end) && !(end > scan->at && end[0] == '/'))
        end++;
    for (behind = end; behind < scan->end && (*behind == ' ' || *behind == '\t');)
        behind++;
    bool is_key = behind < scan->end && *behind == ':';
    if (is_key)
        put(scan, '"');
    for (; scan->at < end; scan->at++)
        put(scan, *scan->at);
    if (is_key)
        put(scan, '"');
}

static void copy_token(scan_t *scan) {
    char c = *scan->at;
    if (is_blank(c)) {
        scan->has_line |= c == '\n';
        put(scan, c);
        scan->at++;
    } else if (c == ',' && scan->before == BEFORE_ITEM) {
        scan->before = BEFORE_COMMA;
        scan->comma = (size_t)(scan->out - scan->start);
        put(scan, ' ');
        scan->at++;
    } else if (c == '}' || c == ']') {
        put(scan, c);
        scan->at++;
        end_item(scan);
    } else if (c == ':' || c == ',') {
        if (scan->before == BEFORE_COMMA)
            scan->start[scan->comma] = ','; /* a second one, which the parser refuses */
        put(scan, c);
        scan->at++;
        scan->before = BEFORE_NOTHING;
    } else if (c == '{' || c == '[') {
        begin_item(scan);
        put(scan, c);
        scan->at++;
        scan->before = BEFORE_NOTHING;
    } else if (c == '"' || c == '\'') {
        begin_item(scan);
        copy_string(scan);
        end_item(scan);
    } else if (is_bare(c)) {
        begin_item(scan);
        copy_bare(scan);
        end_item(scan);
    } else {
        put(scan, c);
        scan->at++;
    }
}

char *zr_json_make_strict(const char *text, size_t n_bytes, size_t *n_bytes_p) {
    static const char mark[] = "\xef\xbb\xbf"; /* of the order of bytes */
    scan_t scan = {.at = text, .end = text + n_bytes};
    scan.start = scan.out = malloc(4 * n_bytes + 8); /* a token of one byte: quotes and a blank */
    if (scan.out == NULL)
        return NULL;
    if (begins_with(&scan, mark))
        scan.at += sizeof(mark) - 1;
    while (scan.at < scan.end)
        if (!skip_comment(&scan))
            copy_token(&scan);
    *scan.out = '\0';
    *n_bytes_p = (size_t)(scan.out - scan.start);
    return scan.start;
}
