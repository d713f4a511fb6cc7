/*
 * Memory of a host device that other processes can map: for ranks that are processes of one
 * machine (zero/comm/mpi/), which then move data as threads do.
 *
 * All ranges of the device lie in one memory file. Only a file of huge pages will do: with small
 * ones, first touches take six times as long, and most of a step's time in the kernel is those.
 * Systems give them to memory files where an administrator says so, and otherwise to a file system
 * of one's own (host_share_file.c). Where neither can be had, the device's memory is private, as it
 * is by default.
 *
 * A granule's place in the file follows from its address until it is moved: then the two places are
 * exchanged, so that a move is two views changed, and nothing is copied.
 */
#pragma once

#include <stdint.h>

#include "kernels/device.h"

/* ---- for communicators ----------------------------------------------------------------------- */

/** A device's memory file, as others find it. */
typedef struct zr_host_file {
    int descriptor; /* in the device's process; -1: the memory is private */
    uint64_t device, inode;
    uint64_t size_bytes; /* grows with each range that is reserved */
} zr_host_file_t;

/** The file of a host device. Threads: any. */
zr_host_file_t zr_host_shared_file(zr_device_t *device);

/**
 * Where in the file memory of the process lies.
 *
 * @return false: it is no memory of a range of this device, or not in one piece in the file
 *
 * Threads: any.
 */
bool zr_host_find_shared(zr_device_t *device, const void *address, size_t size_bytes,
                         uint64_t *offset_p);

/**
 * Map another process's file. Its pages are that process's: what is not in use by a call under way
 * must not be touched.
 *
 * @param pid   whose descriptor it is; it may be read by this process (as process_vm_readv has it)
 * @return 0, or an errno; unmap with munmap
 */
int zr_host_map_shared(const zr_host_file_t *file, int pid, void **view_p);

/* ---- for the host device itself -------------------------------------------------------------- */

typedef struct zr_host_share zr_host_share_t;

/**
 * Make a file.
 *
 * @param most_bytes  that may be mapped at a time: the machine's memory
 * @return the share; NULL: cannot be had, and why, in why[why_bytes]
 */
zr_host_share_t *zr_host_share_create(size_t most_bytes, char *why, size_t why_bytes);
/** After all its ranges. */
void zr_host_share_destroy(zr_host_share_t **share);

/* Entries of the device's backend, for addresses and bytes: 0, or an errno. */
int zr_host_share_reserve(zr_host_share_t *share, size_t size_bytes, void **base_p);
int zr_host_share_release(zr_host_share_t *share, void *base, size_t size_bytes);
int zr_host_share_map(zr_host_share_t *share, void *address, size_t size_bytes);
int zr_host_share_unmap(zr_host_share_t *share, void *address, size_t size_bytes);
int zr_host_share_move(zr_host_share_t *share, void *from, void *to, size_t size_bytes);

/** A file of huge pages (host_share_file.c): a descriptor, or -1, and why. */
int zr_host_open_huge_file(char *why, size_t why_bytes);

/**
 * Addresses for `size_bytes`, inaccessible, at a place that differs between ranges which are alike.
 *
 * @return the first; MAP_FAILED, with errno
 */
void *zr_host_reserve_apart(size_t size_bytes);

