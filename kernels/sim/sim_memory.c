/*
 * Addresses without memory: ranges are reserved from the system, so that each is unique and no
 * other memory's, and stay inaccessible. Mapping counts bytes, against those of the hardware.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/sim/sim_device.h"

/* Of a range that starts at a multiple of the granule; NULL: no addresses. */
static char *reserve_addresses(size_t size_bytes, size_t granule_bytes) {
    size_t with_slack;
    if (__builtin_add_overflow(size_bytes, granule_bytes, &with_slack))
        return NULL;
    char *pages =
        mmap(NULL, with_slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    size_t before = (granule_bytes - (uintptr_t)pages % granule_bytes) % granule_bytes;
    if (before > 0)
        munmap(pages, before);
    munmap(pages + before + size_bytes, with_slack - before - size_bytes);
    return pages + before;
}

zr_status_t zr_sim_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    zr_sim_range_t *range = malloc(sizeof(*range));
    if (range == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory to note a range (%zu bytes)",
                       sizeof(*range));
    char *base = reserve_addresses(size_bytes, device->info.granule_bytes);
    if (base == NULL) {
        zr_log_write(&device->log, ZR_LOG_INFO, "%s memory: no range of %zu bytes of addresses: %s",
                     zr_tier_name(tier), size_bytes, strerror(errno));
        free(range);
        return ZR_ERR_BUDGET;
    }
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
    if (sim->beside != NULL && zr_sim_has_address(sim->beside, address))
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
    count_mapped(sim, range, -(ptrdiff_t)range->mapped_bytes);
    if (munmap(base, size_bytes) != 0)
        zr_log_write(&device->log, ZR_LOG_ERROR, "%s memory: releasing %zu bytes at %p: %s",
                     zr_tier_name(tier), size_bytes, base, strerror(errno));
    *link = range->next;
    free(range);
}

/* Where there is one memory, both tiers share it. */
static size_t room(const zr_sim_device_t *sim, zr_tier_t tier) {
    const size_t *mapped = sim->mapped_bytes;
    if (sim->hardware.kind == ZR_HARDWARE_HOST)
        return sim->hardware.host_memory_bytes - mapped[ZR_TIER_DEVICE] - mapped[ZR_TIER_HOST];
    return (tier == ZR_TIER_DEVICE ? sim->hardware.device_memory_bytes
                                   : sim->hardware.host_memory_bytes) -
           mapped[tier];
}

zr_status_t zr_sim_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    (void)offset_bytes;
    if (size_bytes > room(sim, tier)) {
        zr_log_write(&device->log, ZR_LOG_INFO,
                     "%s memory: the simulated machine has no %zu bytes more: %zu are left",
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
