/*
 * Addresses without memory: ranges are handed out one behind the other, from where no process has
 * memory, so that touching them is a fault. Mapping counts bytes, against those of the hardware.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels/sim/sim_device.h"

/* Processors have 47 or 48 bits of addresses, or 56 and more, of which the system gives those above
 * 47 only to who asks for them. */
#define FIRST_ADDRESS ((uint64_t)1 << 55)
#define N_ADDRESSES ((uint64_t)1 << 55)

/* Of a range that starts at a multiple of the granule; 0: no addresses. */
static uint64_t take_addresses(zr_sim_device_t *sim, size_t size_bytes) {
    size_t granule = sim->base.info.granule_bytes;
    uint64_t begin = (sim->n_addresses + granule - 1) / granule * granule;
    if (size_bytes > N_ADDRESSES - begin)
        return 0;
    sim->n_addresses = begin + size_bytes;
    return FIRST_ADDRESS + begin;
}

zr_status_t zr_sim_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    zr_sim_range_t *range = malloc(sizeof(*range));
    if (range == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory to note a range (%zu bytes)",
                       sizeof(*range));
    uint64_t first = take_addresses(sim, size_bytes);
    if (first == 0) {
        zr_log_write(&device->log, ZR_LOG_INFO, "%s memory: no range of %zu bytes of addresses",
                     zr_tier_name(tier), size_bytes);
        free(range);
        return ZR_ERR_BUDGET;
    }
    char *base = (char *)(uintptr_t)first;
    *range =
        (zr_sim_range_t){.next = sim->ranges, .base = base, .size_bytes = size_bytes, .tier = tier};
    sim->ranges = range;
    *base_p = base;
    return ZR_OK;
}

static zr_sim_range_t **find_range(zr_sim_device_t *sim, const void *address) {
    zr_sim_range_t **link = &sim->ranges;
    uintptr_t wanted = (uintptr_t)address;
    while (*link != NULL && (wanted < (uintptr_t)(*link)->base ||
                             wanted - (uintptr_t)(*link)->base >= (*link)->size_bytes))
        link = &(*link)->next;
    return link;
}

bool zr_sim_has_address(const zr_sim_device_t *sim, const void *address) {
    if (sim->concurrent != NULL && zr_sim_has_address(sim->concurrent, address))
        return true;
    return *find_range((zr_sim_device_t *)sim, address) != NULL;
}

/* A range that is there: device.c has checked. */
static void count_mapped(zr_sim_device_t *sim, zr_sim_range_t *range, ptrdiff_t bytes) {
    range->mapped_bytes = (size_t)((ptrdiff_t)range->mapped_bytes + bytes);
    sim->mapped_bytes[range->tier] = (size_t)((ptrdiff_t)sim->mapped_bytes[range->tier] + bytes);
}

void zr_sim_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    zr_sim_range_t **link = find_range(sim, base);
    zr_sim_range_t *range = *link;
    (void)tier, (void)size_bytes;
    count_mapped(sim, range, -(ptrdiff_t)range->mapped_bytes);
    *link = range->next;
    free(range);
}

/* Where there is one memory, both tiers share it. */
static size_t room(const zr_sim_device_t *sim, zr_tier_t tier) {
    const size_t *mapped = sim->mapped_bytes;
    if (sim->hardware.kind == ZR_HARDWARE_HOST)
        return sim->hardware.host_memory_bytes - mapped[ZR_TIER_DEVICE] - mapped[ZR_TIER_HOST];
    return (tier == ZR_TIER_DEVICE ? zr_hardware_device_room(&sim->hardware)
                                   : sim->hardware.host_memory_bytes) -
           mapped[tier];
}

zr_status_t zr_sim_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    (void)offset_bytes;
    if (size_bytes > room(sim, tier)) {
        zr_log_write(&device->log, ZR_LOG_INFO,
                     "%s memory: the simulated machine cannot provide %zu more bytes: %zu are left",
                     zr_tier_name(tier), size_bytes, room(sim, tier));
        return ZR_ERR_BUDGET;
    }
    count_mapped(sim, *find_range(sim, base), (ptrdiff_t)size_bytes);
    return ZR_OK;
}

zr_status_t zr_sim_range_unmap(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                               size_t size_bytes) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    (void)tier, (void)offset_bytes;
    count_mapped(sim, *find_range(sim, base), -(ptrdiff_t)size_bytes);
    return ZR_OK;
}

zr_status_t zr_sim_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                              size_t size_bytes) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    (void)tier;
    count_mapped(sim, *find_range(sim, from), -(ptrdiff_t)size_bytes);
    count_mapped(sim, *find_range(sim, to), (ptrdiff_t)size_bytes);
    return ZR_OK;
}
