/*
 * Files are found by walking folders in the order of names, so that the row of tokens does not
 * depend on the file system. A folder or file is known by device and inode, which ends loops of
 * links and keeps a file that several names lead to from counting twice.
 */
#include "examples/data/files.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 1024

/* Headers of token files: 256 int32, of which these are the first two; then the number of tokens,
 * of `documents` in two halves. */
static const struct {
    uint32_t magic, version;
    data_kind_t kind;
    size_t width;
    const char *what;
} formats[] = {{20240520, 1, DATA_TOKENS, 2, "uint16 tokens"},
               {20240801, 7, DATA_TOKENS, 4, "uint32 tokens"},
               {20261123, 1, DATA_DOCUMENTS, 4, "documents"}};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

/* Files whose bytes are not meant to be learned, known by their first bytes or by their name. */
#define CHATS "make documents of it with examples/data/make_documents.py"
#define PACKED "decompress it"
static const struct {
    const char *ending, *magic, *what, *way_out;
    bool is_text; /* it may be meant all the same, so it is said instead of refused */
} not_texts[] = {
    {".jsonl", NULL, "has lines of JSON", CHATS, false},
    {".ndjson", NULL, "has lines of JSON", CHATS, false},
    {".json", NULL, "has JSON", CHATS, false},
    {".csv", NULL, "has a table", CHATS, true},
    {".tsv", NULL, "has a table", CHATS, true},
    {".parquet", "PAR1", "has Parquet", CHATS, false},
    {".arrow", "ARROW1", "has Arrow", "write it as Parquet or JSON, and " CHATS, false},
    {".gz", "\x1f\x8b", "is compressed", PACKED, false},
    {".bz2", "BZh", "is compressed", PACKED, false},
    {".xz",
     "\xfd"
     "7zXZ",
     "is compressed", PACKED, false},
    {".zst", "\x28\xb5\x2f\xfd", "is compressed", PACKED, false},
    {".zip", "PK\x03\x04", "is an archive", "unpack it", false},
    {".tar", NULL, "is an archive", "unpack it", false},
    {".npy", "\x93NUMPY", "has an array", "write its tokens as a token file", false},
    {".safetensors", NULL, "has weights", "leave it out", false},
    {".lz4", "\x04\x22\x4d\x18", "is compressed", PACKED, false},
    {".7z", "7z\xbc\xaf\x27\x1c", "is an archive", "unpack it", false},
    {".snappy", NULL, "is compressed", PACKED, false},
    {".tfrecord", NULL, "has records of TensorFlow", "write its text to a file", false},
    {".pkl", NULL, "is a pickle", "write its text to a file", false},
    {".pt", NULL, "is a pickle", "write its text to a file", false},
    {".sqlite", "SQLite format 3", "is a database", "write its text to a file", false},
    {".png", "\x89PNG", "is a picture", "leave it out", false},
    {".jpg", "\xff\xd8\xff", "is a picture", "leave it out", false},
    {NULL,
     "\x7f"
     "ELF",
     "is a program", "leave it out", false},
    {NULL, "\xff\xfe", "is UTF-16", "convert it to UTF-8 (iconv)", false},
    {NULL, "\xfe\xff", "is UTF-16", "convert it to UTF-8 (iconv)", false},
    {".pdf", "%PDF-", "is a PDF", "write its text to a file", false},
    {NULL, "version https://", "is a pointer of git-lfs", "git lfs pull fetches it", false}};
#define N_NOT_TEXTS (sizeof(not_texts) / sizeof(not_texts[0]))

static const char *const kind_names[] = {"text", "tokens", "documents"};
/* Folders in folders; more are taken for a loop that device and inode did not show. */
#define DEEPEST 64
/* Of a file, to see what it is. */
#define LOOKED_AT_BYTES ((size_t)4096)

/* ---- finding ---------------------------------------------------------------------------- */

static zr_status_t no_memory(data_files_t *files, const char *path) {
    return zr_fail(&files->log, ZR_ERR_MEMORY, "no memory to list the data in %s", path);
}

static zr_status_t append_file(data_files_t *files, const char *path, const struct stat *info) {
    if (files->n_files == files->capacity) {
        size_t capacity = files->capacity == 0 ? 16 : 2 * files->capacity;
        data_file_t *grown = realloc(files->files, capacity * sizeof(*grown));
        if (grown == NULL)
            return no_memory(files, path);
        files->files = grown;
        files->capacity = capacity;
    }
    char *copy = strdup(path);
    if (copy == NULL)
        return no_memory(files, path);
    files->files[files->n_files++] = (data_file_t){.path = copy,
                                                   .device = info->st_dev,
                                                   .inode = info->st_ino,
                                                   .size_bytes = (size_t)info->st_size};
    return ZR_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n_names) {
    for (size_t i = 0; i < n_names; i++)
        free(names[i]);
    free(names);
}

/* The paths of all entries of a folder that do not begin with a dot, sorted. */
static zr_status_t list_folder(data_files_t *files, const char *path, char ***names_p,
                               size_t *n_names_p) {
    zr_status_t status = ZR_OK;
    char **names = NULL;
    size_t n_names = 0, capacity = 0;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return zr_fail(&files->log, ZR_ERR_IO, "--data %s: cannot open the folder: %s", path,
                       strerror(errno));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL)
            break;
        if (entry->d_name[0] == '.')
            continue;
        if (n_names == capacity) {
            capacity = capacity == 0 ? 16 : 2 * capacity;
            char **grown = realloc(names, capacity * sizeof(*grown));
            if (grown == NULL) {
                status = no_memory(files, path);
                goto done;
            }
            names = grown;
        }
        size_t length = strlen(path) + strlen(entry->d_name) + 2;
        char *name = malloc(length);
        if (name == NULL) {
            status = no_memory(files, path);
            goto done;
        }
        bool slash = path[strlen(path) - 1] == '/';
        snprintf(name, length, "%s%s%s", path, slash ? "" : "/", entry->d_name);
        names[n_names++] = name;
    }
    if (errno != 0)
        status = zr_fail(&files->log, ZR_ERR_IO, "--data %s: cannot list the folder: %s", path,
                         strerror(errno));
done:
    closedir(folder);
    if (status != ZR_OK) {
        free_names(names, n_names);
        return status;
    }
    if (n_names > 0)
        qsort(names, n_names, sizeof(*names), by_name);
    *names_p = names;
    *n_names_p = n_names;
    return ZR_OK;
}

/* A folder that is being walked, with those it is in: a link back to one of them is a loop. */
typedef struct walk {
    const struct walk *outer;
    int depth;
    dev_t device;
    ino_t inode;
} walk_t;

static bool is_inside(const walk_t *walk, const struct stat *info) {
    for (; walk != NULL; walk = walk->outer)
        if (walk->device == info->st_dev && walk->inode == info->st_ino)
            return true;
    return false;
}

static zr_status_t add_path(data_files_t *files, const char *path, const walk_t *outer) {
    struct stat info;
    if (stat(path, &info) != 0)
        return zr_fail(&files->log, ZR_ERR_IO, "--data %s: cannot read it: %s", path,
                       strerror(errno));
    if (S_ISREG(info.st_mode)) {
        if (info.st_size == 0 && outer == NULL)
            return zr_fail(&files->log, ZR_ERR_FORMAT, "--data %s: is empty", path);
        return append_file(files, path, &info);
    }
    if (!S_ISDIR(info.st_mode))
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: neither a regular file nor a folder; give data as files", path);
    if (is_inside(outer, &info))
        return ZR_OK;
    walk_t walk = {.outer = outer,
                   .depth = outer == NULL ? 1 : outer->depth + 1,
                   .device = info.st_dev,
                   .inode = info.st_ino};
    if (walk.depth > DEEPEST)
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: more than %d folders inside each other", path, DEEPEST);
    char **names = NULL;
    size_t n_names = 0;
    ZR_TRY(list_folder(files, path, &names, &n_names));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < n_names && status == ZR_OK; i++)
        status = add_path(files, names[i], &walk);
    free_names(names, n_names);
    return status;
}

zr_status_t data_files_add(data_files_t *files, const char *path) {
    size_t n_before = files->n_files;
    if (path[0] == '\0')
        return zr_fail(&files->log, ZR_ERR_ARGUMENT, "--data \"\": allowed: files and folders");
    ZR_TRY(add_path(files, path, NULL));
    if (files->n_files == n_before)
        return zr_fail(&files->log, ZR_ERR_FORMAT, "--data %s: the folder holds no files", path);
    return ZR_OK;
}

bool data_files_include(const data_files_t *files, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return false;
    for (size_t i = 0; i < files->n_files; i++)
        if (files->files[i].device == info.st_dev && files->files[i].inode == info.st_ino)
            return true;
    return false;
}

void data_files_free(data_files_t *files) {
    for (size_t i = 0; i < files->n_files; i++)
        free(files->files[i].path);
    free(files->files);
    files->files = NULL;
    files->n_files = files->capacity = 0;
}

/* ---- reading ---------------------------------------------------------------------------- */

/* Read exactly n bytes at an offset. */
static zr_status_t read_bytes(const data_files_t *files, const data_file_t *file, int descriptor,
                              size_t offset, void *bytes, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(descriptor, (char *)bytes + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return zr_fail(&files->log, ZR_ERR_IO, "--data %s: cannot read %s at offset %zu: %s",
                           file->path, zr_count_text(n, "byte").text, offset, strerror(errno));
        if (got == 0)
            return zr_fail(&files->log, ZR_ERR_IO,
                           "--data %s: ends at byte %zu, but had %s when it was opened: it was "
                           "truncated during the run",
                           file->path, offset + done, zr_count_text(file->size_bytes, "byte").text);
        done += (size_t)got;
    }
    return ZR_OK;
}

static zr_status_t open_file(const data_files_t *files, const data_file_t *file,
                             int *descriptor_p) {
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return zr_fail(&files->log, ZR_ERR_IO, "--data %s: cannot open it: %s", file->path,
                       strerror(errno));
    *descriptor_p = descriptor;
    return ZR_OK;
}

/* ---- checking --------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

static size_t skip_spaces(const char *first, size_t n, size_t at) {
    while (at < n && strchr(" \t\r\n", first[at]) != NULL && first[at] != '\0')
        at++;
    return at;
}

/* {" or [{ or [" with spaces between: no prose begins so. */
static bool begins_as_json(const char *first, size_t n) {
    size_t outer = skip_spaces(first, n, n >= 3 && memcmp(first, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
    size_t inner = skip_spaces(first, n, outer + 1);
    if (inner >= n)
        return false;
    return (first[outer] == '{' && first[inner] == '"') ||
           (first[outer] == '[' && (first[inner] == '{' || first[inner] == '"'));
}

static zr_status_t refuse_text(const data_files_t *files, const data_file_t *file, const char *what,
                               const char *known_by, const char *way_out) {
    return zr_fail(
        &files->log, ZR_ERR_FORMAT,
        "--data %s: it %s, by its %s, and each of its bytes would be a token; %s, or use "
        "--data-as text to train on its bytes",
        file->path, what, known_by, way_out);
}

/* Of files whose names say nothing. */
static zr_status_t check_content(const data_files_t *files, const data_file_t *file,
                                 const char *first, size_t n) {
    if (begins_as_json(first, n))
        return refuse_text(files, file, "has JSON", "first bytes", CHATS);
    return ZR_OK;
}

static zr_status_t check_text(const data_files_t *files, const data_file_t *file, const char *first,
                              size_t n) {
    for (size_t i = 0; i < N_NOT_TEXTS; i++) {
        const char *ending = not_texts[i].ending, *magic = not_texts[i].magic;
        bool is_named = ending != NULL && n > 0 && ends_with(file->path, ending);
        bool is_begun =
            magic != NULL && n >= strlen(magic) && memcmp(first, magic, strlen(magic)) == 0;
        if (!is_named && !is_begun)
            continue;
        if (!not_texts[i].is_text)
            return refuse_text(files, file, not_texts[i].what, is_begun ? "first bytes" : "name",
                               not_texts[i].way_out);
        zr_log_write(&files->log, ZR_LOG_WARNING,
                     "--data %s: it %s, by its name, and each of its bytes is a token; to train on "
                     "rows, %s",
                     file->path, not_texts[i].what, not_texts[i].way_out);
        return ZR_OK;
    }
    return check_content(files, file, first, n);
}

static zr_status_t check_header(const data_files_t *files, data_file_t *file,
                                const uint32_t *header, size_t format) {
    uint32_t version = le32toh(header[1]);
    uint64_t n_tokens = le32toh(header[2]), expected;
    if (version != formats[format].version)
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: token file of version %u; version %u (%s) can be read",
                       file->path, version, formats[format].version, formats[format].what);
    if (formats[format].kind == DATA_DOCUMENTS)
        n_tokens |= (uint64_t)le32toh(header[3]) << 32;
    else if (n_tokens > INT32_MAX)
        n_tokens = 0;
    if (n_tokens == 0)
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: the header says %d tokens: it is empty", file->path,
                       (int)(int32_t)le32toh(header[2]));
    if (__builtin_mul_overflow(n_tokens, formats[format].width, &expected) ||
        __builtin_add_overflow(expected, (uint64_t)HEADER_BYTES, &expected))
        expected = UINT64_MAX;
    if (file->size_bytes != expected)
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: %s: the header says %s, which makes %s, but the file "
                       "has %zu",
                       file->path, file->size_bytes < expected ? "truncated" : "too long",
                       zr_count_text(n_tokens, "token").text, zr_count_text(expected, "byte").text,
                       file->size_bytes);
    file->kind = formats[format].kind;
    file->width = formats[format].width;
    file->n_tokens = (size_t)n_tokens;
    return ZR_OK;
}

/* Find out what a file is and how many tokens it has. */
static zr_status_t check_file(const data_files_t *files, data_file_t *file) {
    char first[LOOKED_AT_BYTES];
    uint32_t header[4] = {0};
    int descriptor = -1;
    size_t format = 0;
    ZR_TRY(open_file(files, file, &descriptor));
    size_t n = file->size_bytes < sizeof(first) ? file->size_bytes : sizeof(first);
    zr_status_t status = read_bytes(files, file, descriptor, 0, first, n);
    close(descriptor);
    ZR_TRY(status);
    memcpy(header, first, n < sizeof(header) ? n : sizeof(header));
    file->kind = DATA_TEXT;
    file->width = 1;
    file->n_tokens = file->size_bytes;
    if (files->is_text)
        return ZR_OK;
    while (format < N_FORMATS && le32toh(header[0]) != formats[format].magic)
        format++;
    if (n >= sizeof(header[0]) && format < N_FORMATS) {
        if (file->size_bytes < HEADER_BYTES)
            return zr_fail(&files->log, ZR_ERR_FORMAT,
                           "--data %s: truncated: a token file has a header of %s, but the file "
                           "has %zu",
                           file->path, zr_count_text((uint64_t)HEADER_BYTES, "byte").text,
                           file->size_bytes);
        return check_header(files, file, header, format);
    }
    if (file->size_bytes > 0 && ends_with(file->path, ".bin"))
        return zr_fail(&files->log, ZR_ERR_FORMAT,
                       "--data %s: is named like a token file, but its first four bytes are %u "
                       "instead of a magic number (%u, %u, %u); rename it, or use --data-as text, "
                       "to train on its bytes",
                       file->path, le32toh(header[0]), formats[0].magic, formats[1].magic,
                       formats[2].magic);
    return check_text(files, file, first, n);
}

static int by_inode(const void *a, const void *b) {
    const data_file_t *x = *(data_file_t *const *)a, *y = *(data_file_t *const *)b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x < y ? -1 : x > y; /* the place in the list */
}

/* Leave out, of each file, all names but the first. */
static zr_status_t drop_duplicates(data_files_t *files) {
    size_t n_kept = 0;
    data_file_t **order = malloc(files->n_files * sizeof(*order));
    if (order == NULL)
        return no_memory(files, files->files[0].path);
    for (size_t i = 0; i < files->n_files; i++)
        order[i] = &files->files[i];
    qsort(order, files->n_files, sizeof(*order), by_inode);
    for (size_t i = 1; i < files->n_files; i++) {
        bool same =
            order[i]->inode == order[i - 1]->inode && order[i]->device == order[i - 1]->device;
        if (same) {
            free(order[i]->path);
            order[i]->path = NULL;
        }
    }
    free(order);
    for (size_t i = 0; i < files->n_files; i++)
        if (files->files[i].path != NULL)
            files->files[n_kept++] = files->files[i];
    files->n_duplicates += files->n_files - n_kept;
    files->n_files = n_kept;
    return ZR_OK;
}

const char *data_kind_name(data_kind_t kind) {
    return kind_names[kind];
}

zr_status_t data_files_refuse_mix(const data_files_t *files, const data_file_t *a,
                                  const data_file_t *b) {
    const data_file_t *less = a->kind < b->kind ? a : b, *more = less == a ? b : a;
    return zr_fail(&files->log, ZR_ERR_FORMAT,
                   "--data: text, token and document files cannot be mixed: %s is %s, %s has %s",
                   less->path, kind_names[less->kind], more->path, kind_names[more->kind]);
}

zr_status_t data_files_check(data_files_t *files) {
    const data_file_t *first = NULL;
    files->n_tokens = 0;
    ZR_TRY(drop_duplicates(files));
    for (size_t i = 0; i < files->n_files; i++) {
        data_file_t *file = &files->files[i];
        ZR_TRY(check_file(files, file));
        file->first_token = files->n_tokens;
        files->n_tokens += file->n_tokens;
        if (file->n_tokens == 0) /* an empty text file in a folder adds nothing */
            continue;
        if (first == NULL)
            first = file;
        if (file->kind != first->kind)
            return data_files_refuse_mix(files, first, file);
    }
    if (files->n_tokens == 0)
        return zr_fail(&files->log, ZR_ERR_FORMAT, "--data: it is empty: %s, 0 bytes (%s)",
                       zr_count_text(files->n_files, "file").text, files->files[0].path);
    files->kind = first->kind;
    return ZR_OK;
}

size_t data_files_largest_vocab(const data_files_t *files) {
    size_t largest = files->kind == DATA_TEXT ? 256 : 65536;
    for (size_t i = 0; i < files->n_files; i++)
        if (files->files[i].width == 4)
            largest = files->kind == DATA_DOCUMENTS ? (size_t)DATA_TOKEN_MASK + 1
                                                    : (size_t)UINT32_MAX + 1;
    return largest;
}

/* ---- the row ---------------------------------------------------------------------------- */

data_cursor_t data_cursor_make(const data_files_t *files) {
    return (data_cursor_t){.files = files, .descriptor = -1};
}

void data_cursor_close(data_cursor_t *cursor) {
    if (cursor->descriptor >= 0)
        close(cursor->descriptor);
    cursor->descriptor = -1;
}

/* The last file that begins at or before a token. */
static size_t file_of_token(const data_files_t *files, size_t token) {
    size_t low = 0, high = files->n_files;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (files->files[middle].first_token <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static zr_status_t turn_to(data_cursor_t *cursor, size_t file) {
    if (cursor->descriptor >= 0 && cursor->file == file)
        return ZR_OK;
    data_cursor_close(cursor);
    ZR_TRY(open_file(cursor->files, &cursor->files->files[file], &cursor->descriptor));
    cursor->file = file;
    return ZR_OK;
}

/* Little-endian elements of `width` bytes, which lie at the end of `tokens`, to its beginning. */
static void widen(uint32_t *tokens, size_t n, size_t width) {
    const unsigned char *bytes = (const unsigned char *)tokens + n * (sizeof(*tokens) - width);
    for (size_t i = 0; i < n; i++) {
        uint32_t token = 0;
        for (size_t k = 0; k < width; k++)
            token |= (uint32_t)bytes[i * width + k] << (8 * k);
        tokens[i] = token;
    }
}

/* Read tokens [first, first + n) of one file. */
static zr_status_t read_tokens(const data_cursor_t *cursor, size_t first, size_t n, size_t vocab,
                               uint32_t *tokens) {
    const data_file_t *file = &cursor->files->files[cursor->file];
    size_t start = file->kind == DATA_TEXT ? 0 : HEADER_BYTES;
    uint32_t mask = file->kind == DATA_DOCUMENTS ? DATA_TOKEN_MASK : UINT32_MAX;
    ZR_TRY(read_bytes(cursor->files, file, cursor->descriptor, start + first * file->width,
                      (char *)tokens + n * (sizeof(*tokens) - file->width), n * file->width));
    widen(tokens, n, file->width);
    for (size_t i = 0; i < n; i++) {
        size_t token = tokens[i] & mask;
        if (token >= vocab)
            return zr_fail(
                &cursor->files->log, ZR_ERR_ARGUMENT,
                "--data %s: token %zu is %zu, outside the vocabulary of %zu (0 to %zu); give "
                "the model vocab=%zu or more",
                file->path, first + i, token, vocab, vocab - 1, token + 1);
    }
    if (first == 0 && file->kind == DATA_DOCUMENTS)
        tokens[0] |= DATA_BEGINS;
    return ZR_OK;
}

zr_status_t data_cursor_read(data_cursor_t *cursor, size_t first, size_t n, size_t vocab,
                             uint32_t *tokens) {
    const data_files_t *files = cursor->files;
    size_t done = 0;
    for (size_t i = file_of_token(files, first); done < n && i < files->n_files; i++) {
        const data_file_t *file = &files->files[i];
        size_t inside = first + done - file->first_token;
        size_t left = file->n_tokens - inside;
        size_t take = left < n - done ? left : n - done;
        if (take == 0)
            continue;
        ZR_TRY(turn_to(cursor, i));
        ZR_TRY(read_tokens(cursor, inside, take, vocab, tokens + done));
        done += take;
    }
    return ZR_OK;
}
