/* zero-checkpoint verify: all data of a checkpoint is read and compared with its checksums. */
#include "examples/checkpoint/commands.h"

typedef struct options {
    command_common_t common;
    const char *secret_path;
} options_t;

static const zr_option_t rows[] = {
    CHECKPOINT_SECRET_ROW(options_t, secret_path, CHECKPOINT_SECRET_CHECKED)};

/* What is said is collected on the way: it is a part of the answer. */
typedef struct verification {
    const zr_log_t *log;
    messages_t *messages;
    json_t *problems; /* texts */
    zr_checkpoint_info_t info;
    bool has_secret;
} verification_t;

static const char *name_signature(const verification_t *v) {
    return !v->info.is_signed ? "none" : v->has_secret ? "right" : "not checked";
}

static void note(void *context, zr_log_level_t level, int rank, const char *message) {
    verification_t *verification = context;
    (void)rank;
    if (level == ZR_LOG_ERROR)
        json_array_append_new(verification->problems, json_text(message));
    zr_log_write(verification->log, level, "%s", message);
}

static void show_progress(void *context, uint64_t n_bytes) {
    const verification_t *verification = context;
    if (verification->messages != NULL)
        messages_progress(verification->messages, false, "verified %s of %s",
                          zr_size_text(n_bytes).text,
                          zr_size_text(verification->info.data_bytes).text);
}

/* Without memory nobody knows whether it is whole, and of what is not signed nothing is read. */
static bool is_known(zr_status_t status) {
    return status != ZR_ERR_MEMORY && status != ZR_ERR_ARGUMENT;
}

static json_t *describe(const verification_t *v, const char *path, zr_status_t status) {
    json_t *object =
        JSON_OBJECT({"path", json_text(v->info.path != NULL ? v->info.path : path)},
                    {"whole", is_known(status) ? json_boolean(status == ZR_OK) : json_null()});
    if (v->info.path != NULL)
        JSON_PUT(&object, {"step", json_count(v->info.step)},
                 {"tensors", json_count(v->info.n_tensors)},
                 {"data_bytes", json_count(v->info.data_bytes)},
                 {"signature", json_string(name_signature(v))});
    json_put(&object, "problems", json_incref(v->problems));
    return object;
}

static int report(const verification_t *v, const char *path, zr_status_t status, bool json) {
    int code = status == ZR_OK ? COMMAND_DONE : COMMAND_FAILED;
    if (json)
        return command_print(describe(v, path, status), code, v->log);
    if (status == ZR_OK)
        printf("%s is whole: step %zu, %s, %s%s\n", v->info.path, v->info.step,
               zr_count_text(v->info.n_tensors, "tensor").text,
               zr_size_text(v->info.data_bytes).text,
               v->info.is_signed && v->has_secret ? ", signed with this secret" : "");
    else
        zr_log_write(v->log, ZR_LOG_ERROR, "%s %s", v->info.path != NULL ? v->info.path : path,
                     is_known(status) ? "is not whole" : "was not verified");
    return code;
}

static int verify(const char *path, const zr_secret_t *secret, bool json, const zr_log_t *log) {
    verification_t v = {.log = log,
                        .messages = messages_of(log),
                        .problems = json_array(),
                        .has_secret = secret->is_given};
    zr_log_t noting = {.sink = note, .context = &v, .level = log->level, .rank = -1};
    zr_checkpoint_t *checkpoint = NULL;
    zr_status_t status = zr_checkpoint_open_signed(path, secret, &noting, &checkpoint);
    if (status == ZR_OK) {
        zr_checkpoint_info(checkpoint, &v.info);
        status = zr_checkpoint_verify(checkpoint, &noting, show_progress, &v);
        if (v.messages != NULL)
            messages_end_progress(v.messages);
    }
    int code = report(&v, path, status, json);
    zr_checkpoint_close(&checkpoint);
    json_decref(v.problems);
    return code;
}

static int run(void *options) {
    const options_t *o = options;
    const command_common_t *common = &o->common;
    char followed[PATH_MAX];
    zr_secret_t secret;
    if (checkpoint_secret(o->secret_path, common->log, &secret) != ZR_OK)
        return COMMAND_BAD_INPUT;
    const char *path = checkpoint_follow(common->words[0], followed);
    int code = checkpoint_expect(path, common->log);
    return code == COMMAND_DONE ? verify(path, &secret, common->json, common->log) : code;
}

const command_t checkpoint_verify = {
    .name = "verify",
    .summary = "verify a checkpoint's data",
    .doc =
        "Read all data of a checkpoint, or of the newest one that is complete in a folder of them, "
        "and compare it with its checksums. Each damaged extent is named with its unit, file and "
        "offset."
        "\vExit status: 0 intact, 1 damaged, or not signed with the secret, 2 bad usage, or "
        "a path without checkpoints.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .words = "PATH",
    .least_words = 1,
    .most_words = 1,
    .options_bytes = sizeof(options_t),
    .run = run};
