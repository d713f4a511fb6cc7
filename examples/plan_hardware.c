/*
 * Descriptions lie where the program does, so that a build and an installation find their own,
 * wherever they were put.
 */
#include "examples/plan_hardware.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/args.h"
#include "examples/this_machine.h"

#define ENDING ".json"
#define MOST_NAMES 256

static bool ends_in_json(const char *name) {
    size_t n = strlen(name), ending = strlen(ENDING);
    return n > ending && strcmp(name + n - ending, ENDING) == 0;
}

/* share/libzero/hardware; "" where the program does not know where it is. */
static void find_folder(char folder[PATH_MAX]) {
    char program[PATH_MAX - 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    folder[0] = '\0';
    if (n <= 0)
        return;
    program[n] = '\0';
    char *end = strrchr(program, '/');
    if (end != NULL)
        snprintf(folder, PATH_MAX, "%.*s/../share/libzero/hardware", (int)(end - program), program);
}

/* Names are checked before they become paths. */
static int is_description(const struct dirent *entry) {
    return ends_in_json(entry->d_name);
}

static zr_status_t refuse(const char *which, struct dirent *const *entries, size_t n_entries,
                          const zr_log_t *log) {
    char list[1024] = "";
    const char *names[MOST_NAMES];
    size_t used = 0, n_names = n_entries < MOST_NAMES ? n_entries : MOST_NAMES;
    for (size_t i = 0; i < n_names; i++) {
        names[i] = entries[i]->d_name;
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s, ", names[i]);
    }
    if (n_names == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--hardware %s: no descriptions were installed beside this program; allowed "
                       "are a file (NAME.json) and this",
                       which);
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--hardware %s: no machine of that name is described; allowed are %sa file "
                   "(NAME.json or ./NAME) and this%s",
                   which, list, args_hint(args_nearest(which, names, n_names)).text);
}

/* By name, among the descriptions that are there. */
static zr_status_t find_named(const char *which, const zr_log_t *log, zr_hardware_t *hardware_p) {
    char folder[PATH_MAX], path[PATH_MAX + 300] = "";
    struct dirent **entries = NULL;
    find_folder(folder);
    int n = scandir(folder, &entries, is_description, alphasort);
    size_t n_entries = n > 0 ? (size_t)n : 0;
    for (size_t i = 0; i < n_entries; i++) {
        char *name = entries[i]->d_name;
        name[strlen(name) - strlen(ENDING)] = '\0';
        if (strcmp(name, which) == 0)
            snprintf(path, sizeof(path), "%s/%s" ENDING, folder, name);
    }
    zr_status_t status = path[0] == '\0' ? refuse(which, entries, n_entries, log)
                                         : zr_hardware_read_json(path, log, hardware_p);
    for (size_t i = 0; i < n_entries; i++)
        free(entries[i]);
    free(entries);
    return status;
}

zr_status_t plan_hardware_find(const char *which, const train_options_t *options,
                               const zr_log_t *log, zr_hardware_t *hardware_p) {
    if (strcmp(which, "this") == 0)
        return this_machine_describe(options, log, hardware_p);
    if (strchr(which, '/') != NULL || ends_in_json(which))
        return zr_hardware_read_json(which, log, hardware_p);
    return find_named(which, log, hardware_p);
}
