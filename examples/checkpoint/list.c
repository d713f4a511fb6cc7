/* zero-checkpoint list: the checkpoints of a folder, newest first, with what is wrong with those
 * that are not complete. */
#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "examples/checkpoint/commands.h"

/* How long ago, in the largest unit of which there are two. */
static void print_age(int64_t saved_unix_s, int64_t now, char text[32]) {
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}};
    int64_t age = now > saved_unix_s ? now - saved_unix_s : 0;
    size_t i = 0;
    while (i < 3 && age < 2 * units[i].seconds)
        i++;
    snprintf(text, 32, "%lld %s", (long long)(age / units[i].seconds), units[i].name);
}

static void print_table(const zr_checkpoint_entry_t *entries, size_t n_entries) {
    int64_t now = (int64_t)time(NULL);
    printf("%-24s %10s %6s %6s %6s %11s %12s  %s\n", "checkpoint", "step", "ranks", "stage",
           "dtype", "data", "age", "state");
    for (size_t i = 0; i < n_entries; i++) {
        const zr_checkpoint_entry_t *e = &entries[i];
        char age[32];
        if (!e->is_complete) {
            printf("%-24s %10zu %6s %6s %6s %11s %12s  not complete: %s\n", e->name, e->step, "-",
                   "-", "-", "-", "-", e->problem);
            continue;
        }
        print_age(e->saved_unix_s, now, age);
        printf("%-24s %10zu %6d %6d %6s %11s %12s  complete%s\n", e->name, e->step, e->n_ranks,
               e->stage, zr_dtype_name(e->dtype), zr_size_text(e->data_bytes).text, age,
               e->is_signed ? ", signed" : "");
    }
}

static void print_none(const char *folder) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/manifest.json", folder);
    printf("there are no checkpoints in %s%s\n", folder,
           access(path, F_OK) == 0 ? ", but it is a checkpoint itself: use zero-checkpoint verify"
                                   : "");
}

static json_t *describe(const zr_checkpoint_entry_t *entry) {
    json_t *object =
        JSON_OBJECT({"name", json_text(entry->name)}, {"step", json_count(entry->step)},
                    {"complete", json_boolean(entry->is_complete)});
    if (entry->is_complete) {
        JSON_PUT(&object, {"ranks", json_count((uint64_t)entry->n_ranks)},
                 {"stage", json_count((uint64_t)entry->stage)},
                 {"dtype", json_text(zr_dtype_name(entry->dtype))},
                 {"data_bytes", json_count(entry->data_bytes)},
                 {"signed", json_boolean(entry->is_signed)},
                 {"saved_unix_s", json_count((uint64_t)entry->saved_unix_s)});
    } else {
        json_put(&object, "problem", json_text(entry->problem));
    }
    return object;
}

static json_t *describe_all(const char *folder, const zr_checkpoint_entry_t *entries,
                            size_t n_entries) {
    json_t *object = json_object(), *list = json_array();
    json_put(&object, "folder", json_text(folder));
    for (size_t i = 0; i < n_entries; i++)
        json_append(&list, describe(&entries[i]));
    json_put(&object, "checkpoints", list);
    return object;
}

static int run(void *options) {
    const command_common_t *common = options;
    const zr_log_t *log = common->log;
    char path[PATH_MAX];
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0;
    int code = COMMAND_DONE;
    const char *folder = checkpoint_follow(common->words[0], path);
    zr_status_t status = zr_checkpoint_list(folder, log, &entries, &n_entries);
    if (status != ZR_OK)
        return status == ZR_ERR_IO ? COMMAND_BAD_INPUT : COMMAND_FAILED;
    if (common->json)
        code = command_print(describe_all(folder, entries, n_entries), COMMAND_DONE, log);
    else if (n_entries > 0)
        print_table(entries, n_entries);
    else
        print_none(folder);
    free(entries);
    return code;
}

const command_t checkpoint_list = {
    .name = "list",
    .summary = "the checkpoints of a folder",
    .doc =
        "List the checkpoints of a folder, newest first: steps, ranks, stage and dtype of the run "
        "that saved it, bytes of its data, age, and whether it is complete. Data is not read: that "
        "is zero-checkpoint verify."
        "\vExit status: 0 listed, 1 failed, 2 bad usage, or a folder that cannot be read.",
    .words = "DIR",
    .least_words = 1,
    .most_words = 1,
    .options_bytes = sizeof(command_common_t),
    .run = run};
