/*
 * A run whose ranks are processes, each started by torchrun or its like, by mpirun, by srun, or by
 * hand.
 */
#pragma once

#include "examples/train/options.h"

/**
 * Where the environment says so (zero/comm/launch.h) this process is one rank of a run: the number
 * of ranks and, unless it is named, the device are from there, and all but rank 0 are silent.
 * Without
 * --comm, ranks with a GPU exchange data through NCCL, others by the communicator `processes`.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT when a variable, --ranks, --comm or --device does not fit: logged
 */
ZR_NODISCARD zr_status_t train_launch_apply(train_options_t *options, const zr_log_t *log);

/** Ranks that are threads of this process, and the number of the first of them. */
int train_launch_n_here(const train_options_t *options);
int train_launch_first(const train_options_t *options);

/** Ranks that share this machine's processors and memory, as far as is known: what the launcher
 * says, or else train_launch_count has found; all of them until then. */
int train_launch_n_sharing(const train_options_t *options);

/**
 * Where ranks are processes, and their launcher does not say how many of them are on this machine,
 * the communicator does: all ranks over the machines that they are on.
 *
 * @param comm  of this process's rank; all ranks call it
 * @return as zr_comm_count_machines
 */
ZR_NODISCARD zr_status_t train_launch_count(train_options_t *options, zr_comm_t *comm);

/** The communicators of the ranks that are here. comms: [train_launch_n_here] */
ZR_NODISCARD zr_status_t train_launch_comms(const train_options_t *options, const zr_log_t *log,
                                            zr_comm_t **comms);
