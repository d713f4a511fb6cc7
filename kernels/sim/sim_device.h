/*
 * The simulated device: what its files share.
 */
#pragma once

#include "kernels/device_backend.h"
#include "kernels/sim/sim_tape.h"

/* A reserved range, and how much of it has memory. */
typedef struct zr_sim_range {
    struct zr_sim_range *next;
    char *base;
    size_t size_bytes;
    size_t mapped_bytes;
    zr_tier_t tier;
} zr_sim_range_t;

typedef struct zr_sim_device {
    zr_device_t base;
    zr_hardware_t hardware;
    zr_processor_t processor; /* that its kernels run on */
    zr_sim_part_t part;       /* of the clock, that they keep busy */
    bool has_links;           /* copies between device and host go over the host link */
    const struct zr_sim_device
        *concurrent; /* zr_device_open_host: whose memory it works on; or NULL */
    zr_sim_clock_t *clock;
    zr_sim_clock_t *own_clock; /* NULL when it is a caller's */
    bool has_concurrent;       /* a host: its streams beside the thread do not hold it */
    double wait_seconds;       /* of the thread, for such streams */
    zr_sim_range_t *ranges;
    uint64_t n_addresses;   /* that were handed out */
    size_t mapped_bytes[2]; /* by tier */
} zr_sim_device_t;

typedef struct zr_sim_stream {
    zr_stream_t base;
    zr_sim_queue_t queue;
} zr_sim_stream_t;

typedef struct zr_sim_event {
    zr_event_t base;
    zr_sim_record_t record; /* its last */
} zr_sim_event_t;

/* Entries of the table (sim_memory.c). */
zr_status_t zr_sim_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p);
void zr_sim_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes);
zr_status_t zr_sim_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes);
zr_status_t zr_sim_range_unmap(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                               size_t size_bytes);
zr_status_t zr_sim_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                              size_t size_bytes);
/* Whether an address is one of this device, or of the one that it stands beside (sim_memory.c). */
bool zr_sim_has_address(const zr_sim_device_t *sim, const void *address);
