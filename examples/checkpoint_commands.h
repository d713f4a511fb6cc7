/*
 * The commands of zero-checkpoint, each a file checkpoint_NAME.c. Adding one is a file that defines
 * a command_t, and a line in the table of zero_checkpoint.c.
 */
#ifndef EXAMPLES_CHECKPOINT_COMMANDS_H
#define EXAMPLES_CHECKPOINT_COMMANDS_H

#include "examples/common/command.h"
#include "examples/common/json.h"

#define CHECKPOINT_PROGRAM "zero-checkpoint"

extern const command_t checkpoint_list;
extern const command_t checkpoint_verify;
extern const command_t checkpoint_export;
extern const command_t checkpoint_import;

/** Print the object and free it; what the program exits with: `code`, or that it failed. NULL is a
 * failure, too. */
int checkpoint_print(json_t *object, int code, const zr_log_t *log);

#endif
