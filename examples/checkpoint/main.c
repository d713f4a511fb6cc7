/* zero-checkpoint: what was trained, kept and moved: see checkpoint_commands.h. */
#include "examples/checkpoint/commands.h"

static const command_t *const commands[] = {&checkpoint_list, &checkpoint_verify,
                                            &checkpoint_export, &checkpoint_import};

/* Text is made by those who have a model's tokenizer and sampling. */
static const args_known_t elsewhere[] = {
    {"generate sample chat infer complete",
     "export the weights, and let transformers generate:\n" CHECKPOINT_PROGRAM
     " export CHECKPOINT -o FOLDER; "
     "python3 -c 'from transformers import pipeline; "
     "print(pipeline(\"text-generation\", \"FOLDER\")(\"Once\"))'"},
    {NULL, NULL}};

int main(int argc, char **argv) {
    static const program_t program = {
        .name = CHECKPOINT_PROGRAM,
        .summary = "List and verify checkpoints, and exchange them with other tools.",
        .statuses = CHECKPOINT_STATUSES,
        .commands = commands,
        .n_commands = sizeof(commands) / sizeof(commands[0]),
        .elsewhere = elsewhere};
    return command_main(&program, argc, argv);
}
