/* See trace_json_internal.h. */
#include "kernels/base/trace_json_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Enough to tell nanoseconds apart for days; more would show how numbers are kept. */
#define DIGITS 15

static zr_status_t put_text(FILE *file, const char *before, json_t *value, const char *after) {
    char *text =
        value == NULL ? NULL : json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    json_decref(value);
    if (text == NULL)
        return ZR_ERR_MEMORY;
    bool is_written = fputs(before, file) >= 0 && fputs(text, file) >= 0 && fputs(after, file) >= 0;
    free(text);
    return is_written ? ZR_OK : ZR_ERR_IO;
}

zr_status_t zr_trace_json_begin(FILE *file, json_t *about, zr_trace_json_t *json_p) {
    *json_p = (zr_trace_json_t){.file = file};
    return put_text(file, "{\"displayTimeUnit\":\"ns\",\"otherData\":", about,
                    ",\"traceEvents\":[");
}

zr_status_t zr_trace_json_put(zr_trace_json_t *json, json_t *event) {
    const char *before = json->is_begun ? ",\n" : "\n";
    json->is_begun = true;
    return put_text(json->file, before, event, "");
}

zr_status_t zr_trace_json_end(zr_trace_json_t *json) {
    return fputs("\n]}\n", json->file) >= 0 ? ZR_OK : ZR_ERR_IO;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Bytes of the character at `text`; 0: it is none, or not one to be shown. */
static size_t character_bytes(const unsigned char *text) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (text[0] < 0x80)
        return text[0] >= 0x20 && text[0] != 0x7f;
    size_t n = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4)
        return 0;
    uint32_t value = text[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (text[i] & 0x3fu);
    }
    bool is_surrogate = value >= 0xd800 && value <= 0xdfff, is_control = value < 0xa0;
    return value < least[n] || value > 0x10ffff || is_surrogate || is_control ? 0 : n;
}

const char *zr_trace_json_name(const char *name, char *buffer, size_t buffer_bytes) {
    const unsigned char *from = (const unsigned char *)name;
    size_t used = 0;
    while (*from != '\0') {
        size_t n = character_bytes(from), n_written = n == 0 ? 1 : n;
        if (used + n_written >= buffer_bytes)
            break;
        if (n == 0)
            buffer[used] = '?';
        else
            memcpy(buffer + used, from, n);
        used += n_written;
        from += n_written;
    }
    buffer[used] = '\0';
    return buffer;
}
