/*
 * Calls that order work, taken away at one place of the sources: see waits.py. The linker sends
 * those calls here (--wrap), of every program of a build with ZR_TAKE_AWAY_WAITS, and of no other.
 *
 * A place is where a call returns to, and where its caller does. WAITS_MET names a file that each
 * place is written to as it is met; WAITS_AWAY one with places whose calls do nothing: an event is
 * not recorded, a wait returns at once, a question hears that all has passed, memory is freed
 * behind no stream. A line of either is "PROGRAM CALL PLACE CALLER". WAITS_PART leaves out tests of
 * a program, but for those whose names match it.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocator/allocator.h"
#include "kernels/device.h"

#define MOST_PLACES 4096 /* of a program, a power of two */

/* Of each place that was met: where, in the upper and lower half of a word, and what it is to do.
 */
typedef struct place {
    _Atomic uint64_t where;
    atomic_bool is_taken;
} place_t;

static place_t places[MOST_PLACES];
static int met = -1; /* where places are written to */

extern const char __executable_start;
__attribute__((weak)) void cmocka_set_test_filter(const char *pattern);

/* The slot of a place, which has it from now on. */
static place_t *find(uint64_t where, bool *is_new_p) {
    *is_new_p = false;
    for (uint64_t i = where * 0x9E3779B97F4A7C15u >> 40, n = 0; n < MOST_PLACES; i++, n++) {
        place_t *place = &places[i % MOST_PLACES];
        uint64_t expected = 0;
        *is_new_p = atomic_compare_exchange_strong(&place->where, &expected, where);
        if (*is_new_p || expected == where)
            return place;
    }
    abort();
}

/* Before all else: tests count what they have open. */
__attribute__((constructor)) static void begin(void) {
    const char *met_path = getenv("WAITS_MET"), *away_path = getenv("WAITS_AWAY");
    if (met_path != NULL)
        met = open(met_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    FILE *away = away_path != NULL ? fopen(away_path, "r") : NULL;
    if ((met_path != NULL && met < 0) || (away_path != NULL && away == NULL))
        abort();
    if (getenv("WAITS_PART") != NULL && cmocka_set_test_filter != NULL)
        cmocka_set_test_filter(getenv("WAITS_PART"));
    char program[256];
    unsigned long place, caller;
    bool is_new;
    while (away != NULL && fscanf(away, "%255s %*s %lx %lx", program, &place, &caller) == 3)
        if (strcmp(program, program_invocation_short_name) == 0)
            find((uint64_t)place << 32 | caller, &is_new)->is_taken = true;
    if (away != NULL)
        fclose(away);
}

static bool is_taken(const char *call, const void *at, const void *caller) {
    uint64_t base = (uint64_t)(uintptr_t)&__executable_start;
    uint32_t place = (uint32_t)((uint64_t)(uintptr_t)at - base - 1);
    uint32_t above = (uint32_t)((uint64_t)(uintptr_t)caller - base - 1);
    bool is_new;
    place_t *found = find((uint64_t)place << 32 | above, &is_new);
    if (is_new && met >= 0) {
        char line[400];
        int n = snprintf(line, sizeof(line), "%s %s %x %x\n", program_invocation_short_name, call,
                         place, above);
        if (write(met, line, (size_t)n) != n)
            abort();
    }
    return found->is_taken;
}

/* With frame pointers, that of the caller is there. */
#pragma GCC diagnostic ignored "-Wframe-address"
#define IS_TAKEN(call) is_taken(call, __builtin_return_address(0), __builtin_return_address(1))

/* A function that the linker calls for `name`, and what it is instead of. */
#define WRAP(type, name, arguments)                                                                \
    __attribute__((weak)) type __real_##name arguments;                                            \
    type __wrap_##name arguments;                                                                  \
    type __wrap_##name arguments

WRAP(zr_status_t, zr_event_record, (zr_event_t * event, zr_stream_t *stream)) {
    return IS_TAKEN("record") ? ZR_OK : __real_zr_event_record(event, stream);
}

WRAP(zr_status_t, zr_stream_wait, (zr_stream_t * stream, zr_event_t *event)) {
    return IS_TAKEN("stream_wait") ? ZR_OK : __real_zr_stream_wait(stream, event);
}

WRAP(zr_status_t, zr_event_synchronize, (zr_event_t * event)) {
    return IS_TAKEN("wait_for_event") ? ZR_OK : __real_zr_event_synchronize(event);
}

WRAP(zr_status_t, zr_stream_synchronize, (zr_stream_t * stream)) {
    bool is_late = !zr_stream_is_synchronous(stream); /* otherwise there is nothing to wait for */
    return is_late && IS_TAKEN("wait_for_stream") ? ZR_OK : __real_zr_stream_synchronize(stream);
}

WRAP(zr_status_t, zr_event_query, (zr_event_t * event, bool *passed_p)) {
    if (!IS_TAKEN("query"))
        return __real_zr_event_query(event, passed_p);
    *passed_p = true;
    return ZR_OK;
}

__attribute__((weak)) void late_device_check_free(zr_allocator_t *allocator, const void *pointer,
                                                  const zr_stream_t *stream);

WRAP(void, zr_free, (zr_allocator_t * allocator, void **pointer, zr_stream_t *stream)) {
    if (stream != NULL && pointer != NULL && *pointer != NULL && IS_TAKEN("free_behind"))
        stream = NULL;
    if (late_device_check_free != NULL && pointer != NULL)
        late_device_check_free(allocator, *pointer, stream);
    __real_zr_free(allocator, pointer, stream);
}

/* What is called directly beside NCCL, and by the device. */

WRAP(cudaError_t, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream)) {
    return IS_TAKEN("record") ? cudaSuccess : __real_cudaEventRecord(event, stream);
}

WRAP(cudaError_t, cudaStreamWaitEvent,
     (cudaStream_t stream, cudaEvent_t event, unsigned int flags)) {
    return IS_TAKEN("stream_wait") ? cudaSuccess : __real_cudaStreamWaitEvent(stream, event, flags);
}

WRAP(cudaError_t, cudaEventSynchronize, (cudaEvent_t event)) {
    return IS_TAKEN("wait_for_event") ? cudaSuccess : __real_cudaEventSynchronize(event);
}

WRAP(cudaError_t, cudaStreamSynchronize, (cudaStream_t stream)) {
    return IS_TAKEN("wait_for_stream") ? cudaSuccess : __real_cudaStreamSynchronize(stream);
}

WRAP(cudaError_t, cudaEventQuery, (cudaEvent_t event)) {
    return IS_TAKEN("query") ? cudaSuccess : __real_cudaEventQuery(event);
}
