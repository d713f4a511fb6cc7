/* Kernels of a caller's own, by what the stream's device can run. */
#include "kernels/own_kernel.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/background_internal.h"

/* A call that waits for a stream's thread. */
typedef struct queued_call {
    void (*function)(const void *args);
    _Alignas(16) unsigned char args[];
} queued_call_t;

static void run_queued(void *context, zr_stream_t *stream) {
    (void)stream;
    queued_call_t *call = context;
    call->function(call->args);
    free(call);
}

static zr_status_t queue_call(zr_stream_t *stream, const zr_own_kernel_t *kernel, const void *args,
                              size_t args_bytes) {
    queued_call_t *call = malloc(sizeof(*call) + args_bytes);
    if (call == NULL)
        return zr_fail(zr_device_log(zr_stream_device(stream)), ZR_ERR_MEMORY,
                       "no memory to queue kernel \"%s\"", kernel->name);
    call->function = kernel->host;
    if (args_bytes != 0)
        memcpy(call->args, args, args_bytes);
    zr_status_t status = zr_stream_call(stream, run_queued, call);
    if (status != ZR_OK)
        free(call);
    return status;
}

static zr_status_t refuse(const zr_stream_t *stream, const zr_own_kernel_t *kernel) {
    zr_device_t *device = zr_stream_device(stream);
    return zr_fail(zr_device_log(device), ZR_ERR_UNSUPPORTED,
                   "kernel \"%s\" has no function for device \"%s\"", kernel->name,
                   zr_device_info(device)->backend);
}

static zr_status_t launch(zr_stream_t *stream, const zr_own_kernel_t *kernel, const void *args,
                          size_t args_bytes) {
    void *native = zr_stream_native(stream);
    if (zr_device_info(zr_stream_device(stream))->stores_nothing)
        return ZR_OK;
    if (native != NULL) {
        if (kernel->cuda == NULL)
            return refuse(stream, kernel);
        /* A launch that failed is found and named by zr_stream_launched. */
        return kernel->cuda(native, args) == 0 ? ZR_OK : ZR_ERR_DEVICE;
    }
    if (kernel->host == NULL)
        return refuse(stream, kernel);
    if (zr_stream_takes_calls(stream))
        return queue_call(stream, kernel, args, args_bytes);
    kernel->host(args);
    zr_background();
    return ZR_OK;
}

zr_status_t zr_kernel_own(zr_stream_t *stream, const zr_own_kernel_t *kernel, const void *args,
                          size_t args_bytes, zr_cost_t cost) {
    zr_charge_t charge = {.kernel = kernel->name, .cost = cost, .rate = ZR_RATE_VECTOR};
    zr_status_t status = launch(stream, kernel, args, args_bytes);
    if (status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_MEMORY)
        return status;
    ZR_TRY(zr_stream_launched(stream, &charge));
    return status;
}
