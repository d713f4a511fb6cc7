/* Buffers of a store's user: see staging_internal.h. */
#include "offload/staging_internal.h"

/* What every allocation is aligned to. */
#define ALLOCATOR_ALIGN_BYTES ((size_t)256)
#define LEAST_ALIGN_BYTES ((size_t)64)

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* Memory of their own. */
static zr_status_t allocate(const zr_staging_options_t *o, size_t size_bytes, size_t align,
                            zr_staging_t *staging) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_HOST,
                                       .tag = ZR_TAG_STAGING,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = o->name};
    staging->allocator = o->allocator;
    ZR_TRY(zr_allocate(o->allocator, &request, &staging->allocation));
    char *base = staging->allocation;
    size_t skew = (uintptr_t)base % align;
    staging->base = base + (skew != 0 ? align - skew : 0);
    staging->size_bytes = size_bytes;
    return ZR_OK;
}

zr_status_t zr_staging_make(const zr_staging_options_t *o, zr_store_t *store,
                            zr_staging_t *staging) {
    size_t align = zr_store_info(store)->buffer_align_bytes, total;
    align = align < LEAST_ALIGN_BYTES ? LEAST_ALIGN_BYTES : align;
    size_t stride = round_up(o->buffer_bytes, align);
    if (stride < o->buffer_bytes || __builtin_mul_overflow(stride, o->n_buffers, &total) ||
        __builtin_add_overflow(total, align, &total))
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "%s: %zu buffers of %zu bytes overflow", o->user,
                       o->n_buffers, o->buffer_bytes);
    total -= align <= ALLOCATOR_ALIGN_BYTES ? align : 0;
    staging->base = zr_store_buffer_fit(&o->lent, stride * o->n_buffers, align);
    if (staging->base == NULL)
        ZR_TRY(allocate(o, total, align, staging));
    staging->stride = stride;
    zr_store_buffer_t buffer = {.base = staging->base, .size_bytes = stride * o->n_buffers};
    ZR_TRY(zr_store_register(store, &buffer, buffer.size_bytes != 0));
    staging->store = store;
    staging->registered = buffer;
    return ZR_OK;
}

void zr_staging_clear(zr_staging_t *staging) {
    if (staging->store != NULL) /* it lets go of them before they are given back */
        zr_store_unregister(staging->store, &staging->registered,
                            staging->registered.size_bytes != 0);
    if (staging->allocation != NULL)
        zr_free(staging->allocator, &staging->allocation, NULL);
    *staging = (zr_staging_t){0};
}
