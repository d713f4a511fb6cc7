/*
 * Descriptions lie where the program does, so that a build and an installation find their own,
 * wherever they were put.
 */
#include "examples/plan/hardware.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/args.h"
#include "examples/common/files.h"
#include "examples/common/messages.h"
#include "examples/plan/this_machine.h"

#define ENDING ".json"
#define MOST_NAMES 256
#define NOT_MEASURED "not measured" /* how zero-bench begins the source of what it left */

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

static bool is_file(const char *which) {
    return strchr(which, '/') != NULL || ends_in_json(which);
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
                       "--hardware %s: no descriptions were installed with this program; allowed: "
                       "a file (NAME.json) or this",
                       which);
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--hardware %s: no machine of that name is described; allowed: %sa file "
                   "(NAME.json or ./NAME) or this%s",
                   which, list, args_hint(zr_name_nearest(which, names, n_names)).text);
}

zr_status_t plan_hardware_read(const char *path, const zr_log_t *log, zr_hardware_t *hardware_p) {
    files_log_t named = {*log, "--hardware"};
    zr_log_t file_log = files_log(&named);
    return zr_hardware_read_json(path, &file_log, hardware_p);
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
                                         : plan_hardware_read(path, log, hardware_p);
    for (size_t i = 0; i < n_entries; i++)
        free(entries[i]);
    free(entries);
    return status;
}

zr_status_t plan_hardware_find(const char *which, const train_options_t *options,
                               const zr_log_t *log, zr_hardware_t *hardware_p) {
    if (strcmp(which, "this") == 0)
        return this_machine_describe(options, log, hardware_p);
    if (is_file(which))
        return plan_hardware_read(which, log, hardware_p);
    return find_named(which, log, hardware_p);
}

int plan_hardware_ranks(const zr_hardware_t *hardware) {
    return hardware->ranks_per_node < TRAIN_MOST_RANKS ? hardware->ranks_per_node
                                                       : TRAIN_MOST_RANKS;
}

/* ---- what a description does not know -------------------------------------------------------- */

void plan_hardware_source(const char *which, const char *figure, char *text, size_t size) {
    char folder[PATH_MAX], path[PATH_MAX + 300];
    find_folder(folder);
    if (is_file(which))
        snprintf(path, sizeof(path), "%s", which);
    else
        snprintf(path, sizeof(path), "%s/%s" ENDING, folder, which);
    json_t *root = json_load_file(path, 0, NULL);
    const char *source =
        json_string_value(json_object_get(json_object_get(root, "sources"), figure));
    snprintf(text, size, "%s", source != NULL ? source : "");
    json_decref(root);
}

static bool was_left(const char *path, const char *figure) {
    char source[sizeof(NOT_MEASURED)];
    plan_hardware_source(path, figure, source, sizeof(source));
    return strcmp(source, NOT_MEASURED) == 0;
}

void plan_hardware_warn(const char *which, const zr_hardware_t *hardware, int n_ranks,
                        const zr_log_t *log) {
    int n_on_node = hardware->ranks_per_node;
    char source[8];
    plan_hardware_source(which, "device_in_use_bytes", source, sizeof(source));
    if (is_file(which) && hardware->kind == ZR_HARDWARE_CUDA &&
        hardware->device_in_use_bytes == 0 && source[0] == '\0')
        zr_log_write(log, ZR_LOG_WARNING,
                     "--hardware %s: device_in_use_bytes is 0: the context and libraries (CUDA, "
                     "cuBLAS, NCCL) are not counted, so a plan may not fit; set it to the memory "
                     "that is in use before the first tensor, or write in sources that "
                     "device_memory_bytes is without it",
                     which);
    if (n_ranks <= n_on_node || !is_file(which) || !was_left(which, "between_nodes.bytes_per_s"))
        return;
    zr_log_write(log, ZR_LOG_WARNING,
                 "--hardware %s: it is of %s on one machine; %s are planned on %d such "
                 "machines, and what is sent between them at %.3g GB/s, which was not measured: "
                 "times are guesses; write between_nodes as it is there, or, for ranks of one "
                 "machine, measure with zero-bench --save-hardware FILE --ranks %d",
                 which, zr_count_text((uint64_t)n_on_node, "rank").text,
                 zr_count_text((uint64_t)n_ranks, "rank").text, (n_ranks - 1) / n_on_node + 1,
                 1e-9 * hardware->between_nodes.bytes_per_s, n_ranks);
}

zr_status_t plan_hardware_check_given(const char *which, const options_given_t *given,
                                      const zr_log_t *log) {
    bool has_device =
        options_value(given, "device") != NULL || options_value(given, "threads") != NULL;
    if (!has_device || strcmp(which, "this") == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--device and --threads apply to this machine, but the plan is for --hardware "
                   "%s; leave them out, or use --hardware this",
                   which);
}
