/*
 * The commands of zero-checkpoint, each a file checkpoint_NAME.c. Adding one is a file that defines
 * a command_t, and a line in the table of zero_checkpoint.c.
 */
#pragma once

#include <limits.h>

#include "examples/common/command.h"
#include "examples/common/json.h"

#define CHECKPOINT_PROGRAM "zero-checkpoint"

extern const command_t checkpoint_list;
extern const command_t checkpoint_verify;
extern const command_t checkpoint_export;
extern const command_t checkpoint_import;

/** The row of --comm-secret, of a command whose options have it as `member`, a const char *. */
#define CHECKPOINT_SECRET_ROW(object, member, what)                                                \
    {                                                                                              \
        "comm-secret", .offset = offsetof(object, member), .type = ZR_OPTION_STRING,               \
                       .arg = "FILE", .initial = "", .help = what                                  \
    }
#define CHECKPOINT_SECRET_CHECKED                                                                  \
    "refuse a checkpoint that is not signed with this secret, as zero-train --checkpoint-sign "    \
    "does"

/** Read the secret of a file; NULL: none is given. ZR_ERR_ARGUMENT, ZR_ERR_IO, logged. */
ZR_NODISCARD zr_status_t checkpoint_secret(const char *path, const zr_log_t *log,
                                           zr_secret_t *secret_p);

/** Damage is no bad input: the path is right, and what is there is not what was saved. */
#define CHECKPOINT_STATUSES                                                                        \
    "0 done, 1 failed, or a damaged checkpoint, 2 bad usage or input, such as a path "             \
    "without checkpoints"

/**
 * Where a word leads: a file "latest" of a folder of checkpoints, to the one that it names.
 *
 * @param path  holds the answer, where it is not the word itself
 */
const char *checkpoint_follow(const char *word, char path[PATH_MAX]);

/** Check that there is a checkpoint, or something of one; COMMAND_DONE, or what the program exits
 * with: logged. */
int checkpoint_expect(const char *path, const zr_log_t *log);
