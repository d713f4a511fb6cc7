/* XXH3 as this instruction set has it: compiled once for each, see checksum_internal.h. */
#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PASTE(a, b) a##b
#define NAMED(isa) PASTE(zr_checksum_, isa)

uint64_t NAMED(ZR_CHECKSUM_ISA)(const void *bytes, size_t size_bytes);

uint64_t NAMED(ZR_CHECKSUM_ISA)(const void *bytes, size_t size_bytes) {
    return XXH3_64bits(bytes, size_bytes);
}
