/* zero-checkpoint: what was trained, kept and moved: see checkpoint_commands.h. */
#include "examples/checkpoint_commands.h"

static const command_t *const commands[] = {&checkpoint_list, &checkpoint_verify,
                                            &checkpoint_export, &checkpoint_import};

int checkpoint_print(json_t *object, int code, const zr_log_t *log) {
    bool printed = json_print(object, true, stdout);
    json_decref(object);
    if (printed)
        return code;
    zr_log_write(log, ZR_LOG_ERROR, "cannot print the result on standard output");
    return COMMAND_FAILED;
}

int main(int argc, char **argv) {
    static const program_t program = {
        .name = CHECKPOINT_PROGRAM,
        .summary = "Look at checkpoints, verify them, and exchange them with other tools.",
        .statuses = "0 done, 1 failed or not whole, 2 bad usage or input",
        .commands = commands,
        .n_commands = sizeof(commands) / sizeof(commands[0])};
    return command_main(&program, argc, argv);
}
