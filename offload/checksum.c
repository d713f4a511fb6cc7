/* Which checksum of those in this build is taken: see checksum_internal.h. */
#include "offload/checksum_internal.h"

#include <stdbool.h>
#include <string.h>

#include "offload/store.h"

/* checksum_isa.c, once per instruction set. */
uint64_t zr_checksum_baseline(const void *bytes, size_t size_bytes);
uint64_t zr_checksum_avx2(const void *bytes, size_t size_bytes);

static bool runs_everywhere(void) {
    return true;
}

#ifdef ZR_CHECKSUM_HAVE_AVX2
static bool runs_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

/* Best first. With AVX-512 it was no faster than with AVX2. */
static const struct {
    const char *name;
    zr_checksum_t checksum;
    bool (*runs_here)(void);
} choices[] = {
#ifdef ZR_CHECKSUM_HAVE_AVX2
    {"avx2", zr_checksum_avx2, runs_avx2},
#endif
    {"baseline", zr_checksum_baseline, runs_everywhere},
};

zr_checksum_t zr_checksum_find(const char *name) {
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        if ((name == NULL || strcmp(name, choices[i].name) == 0) && choices[i].runs_here())
            return choices[i].checksum;
    return NULL;
}

uint64_t zr_store_checksum(const void *bytes, size_t size_bytes) {
    return zr_checksum_find(NULL)(bytes, size_bytes);
}
