/* Paths on the command line of zero-checkpoint: which checkpoint one names, and a secret's file. */
#include "examples/checkpoint/commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/common/files.h"

#define LATEST "latest"
#define NAME_BEGIN "step-"

const char *checkpoint_follow(const char *word, char path[PATH_MAX]) {
    const char *slash = strrchr(word, '/'), *last = slash == NULL ? word : slash + 1;
    char name[64] = "";
    struct stat about;
    if (strcmp(last, LATEST) != 0 || stat(word, &about) != 0 || !S_ISREG(about.st_mode))
        return word;
    FILE *file = fopen(word, "r");
    bool is_read = file != NULL && fgets(name, sizeof(name), file) != NULL;
    if (file != NULL)
        fclose(file);
    name[strcspn(name, "\n")] = '\0';
    if (!is_read || strncmp(name, NAME_BEGIN, strlen(NAME_BEGIN)) != 0 || strchr(name, '/') != NULL)
        return word;
    int n = snprintf(path, PATH_MAX, "%.*s%s", (int)(last - word), word, name);
    return n > 0 && n < PATH_MAX ? path : word;
}

static bool is_checkpoint(const char *path) {
    char manifest[PATH_MAX];
    int n = snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    return n > 0 && n < (int)sizeof(manifest) && access(manifest, F_OK) == 0;
}

int checkpoint_expect(const char *path, const zr_log_t *log) {
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0, n_named = 0;
    zr_status_t status = zr_checkpoint_list(path, log, &entries, &n_entries);
    for (size_t i = 0; i < n_entries && status == ZR_OK; i++)
        n_named += strncmp(entries[i].name, NAME_BEGIN, strlen(NAME_BEGIN)) == 0;
    free(entries);
    if (status != ZR_OK)
        return status == ZR_ERR_IO ? COMMAND_BAD_INPUT : COMMAND_FAILED;
    if (n_named > 0 || is_checkpoint(path))
        return COMMAND_DONE;
    if (n_entries > 0)
        zr_log_write(log, ZR_LOG_WARNING, "passed over %s in %s: never finished",
                     zr_count_text(n_entries, "checkpoint").text, path);
    zr_log_write(log, ZR_LOG_ERROR,
                 "%s has no checkpoint and is not a checkpoint itself: it has no manifest.json",
                 path);
    return COMMAND_BAD_INPUT;
}

zr_status_t checkpoint_secret(const char *path, const zr_log_t *log, zr_secret_t *secret_p) {
    files_log_t named = {*log, "--comm-secret"};
    zr_log_t file_log = files_log(&named);
    *secret_p = (zr_secret_t){.is_given = false};
    return path == NULL ? ZR_OK : zr_secret_read(&file_log, path, secret_p);
}
