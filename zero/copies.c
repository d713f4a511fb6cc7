/* Streams between device and host: see copies_internal.h. */
#include "zero/copies_internal.h"

zr_status_t zr_copies_create(zr_copies_t *copies, zr_device_t *device) {
    const zr_device_info_t *info = zr_device_info(device);
    copies->are_needed = !info->host_addressable || !info->computes_on_host;
    if (!copies->are_needed)
        return ZR_OK;
    ZR_TRY(zr_stream_create(device, "gradients down", &copies->down));
    ZR_TRY(zr_stream_create(device, "parameters up", &copies->up));
    ZR_TRY(zr_event_create(device, &copies->grads_reduced));
    return zr_event_create(device, &copies->all_down);
}

void zr_copies_destroy(zr_copies_t *copies) {
    zr_event_destroy(&copies->grads_reduced);
    zr_event_destroy(&copies->all_down);
    zr_stream_destroy(&copies->down);
    zr_stream_destroy(&copies->up);
}

zr_status_t zr_copies_order_down(const zr_copies_t *copies, zr_stream_t *later) {
    if (!copies->are_needed)
        return ZR_OK;
    ZR_TRY(zr_event_record(copies->all_down, copies->down));
    return zr_stream_wait(later, copies->all_down);
}
