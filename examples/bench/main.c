/*
 * zero-bench: how far each part of the library is from this machine's own limit.
 * Each command is a file in bench/.
 */
#include "examples/bench/bench.h"

static const command_t *const commands[] = {
    &bench_adam, &bench_kernels,    &bench_matmul, &bench_step,     &bench_alloc,
    &bench_io,   &bench_checkpoint, &bench_comm,   &bench_hardware, &bench_plan};

int main(int argc, char **argv) {
    static const program_t program = {
        .name = "zero-bench",
        .summary =
            "Measure a part of the library against this machine's own limit, in the same run.",
        .statuses = "0 measured, 1 failed, 2 bad usage",
        .commands = commands,
        .n_commands = sizeof(commands) / sizeof(commands[0])};
    return command_main(&program, argc, argv);
}
