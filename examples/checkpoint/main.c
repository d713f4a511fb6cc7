/* zero-checkpoint: what was trained, kept and moved: see checkpoint_commands.h. */
#include "examples/checkpoint/commands.h"

static const command_t *const commands[] = {&checkpoint_list, &checkpoint_verify,
                                            &checkpoint_export, &checkpoint_import};

int main(int argc, char **argv) {
    static const program_t program = {
        .name = CHECKPOINT_PROGRAM,
        .summary = "List and verify checkpoints, and exchange them with other tools.",
        .statuses = CHECKPOINT_STATUSES,
        .commands = commands,
        .n_commands = sizeof(commands) / sizeof(commands[0])};
    return command_main(&program, argc, argv);
}
