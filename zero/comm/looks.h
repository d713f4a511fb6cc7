/*
 * How long a rank looks for others to come before it asks the system to wake it: some tens of
 * microseconds, which a wakeup takes as well, where ranks have cores of their own; next to nothing
 * where they wait for each other's core.
 */
#pragma once

/** Looks of a rank of so many that share this process's cores. */
int zr_looks_count(int n_ranks);
