/*
 * Which instruction sets this build has, and which of them this processor runs.
 * Chosen by a table in the device rather than by ifuncs, so that a test can hold
 * one against another and no process-wide state is involved.
 */
#include <stdbool.h>
#include <string.h>

#include "kernels/host/host_isa.h"

static bool runs_everywhere(void) {
    return true;
}

#ifdef ZR_HOST_HAVE_AVX2
static bool runs_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef ZR_HOST_HAVE_AVX512
static bool runs_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && runs_avx2();
}
#endif

/* Best first. A table that is NULL is not part of this build. */
static const struct {
    const char *name;
    const zr_host_isa_t *isa;
    bool (*runs_here)(void);
} choices[] = {
#ifdef ZR_HOST_HAVE_AVX512
    {"avx512", &zr_host_isa_avx512, runs_avx512},
#else
    {"avx512", NULL, NULL},
#endif
#ifdef ZR_HOST_HAVE_AVX2
    {"avx2", &zr_host_isa_avx2, runs_avx2},
#else
    {"avx2", NULL, NULL},
#endif
    {"baseline", &zr_host_isa_baseline, runs_everywhere},
};

zr_status_t zr_host_isa_find(const zr_log_t *log, const char *name, const zr_host_isa_t **isa_p) {
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (name != NULL && strcmp(name, choices[i].name) != 0)
            continue;
        bool possible = choices[i].isa != NULL && choices[i].runs_here();
        if (!possible && name == NULL)
            continue;
        if (!possible)
            return zr_fail(
                log, ZR_ERR_UNSUPPORTED, "host device: instruction set \"%s\" is not %s", name,
                choices[i].isa == NULL ? "part of this build" : "what this processor has");
        *isa_p = choices[i].isa;
        return ZR_OK;
    }
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "host device: instruction set \"%s\" is unknown; known: \"baseline\", "
                   "\"avx2\", \"avx512\"",
                   name);
}
