/*
 * Every checksum of this build gives what the system's library gives, for any length and place.
 */
#include <xxhash.h>

#include "offload/checksum_internal.h"
#include "offload/store.h"
#include "tests/common/test.h"

#define MOST_BYTES ((size_t)70000)

static void compare(const unsigned char *bytes, zr_checksum_t checksum) {
    for (size_t size = 0; size < 1100; size++)
        assert_true(checksum(bytes + size % 64, size) == XXH3_64bits(bytes + size % 64, size));
    for (size_t size = 1100; size < MOST_BYTES - 64; size += 997)
        assert_true(checksum(bytes + size % 64, size) == XXH3_64bits(bytes + size % 64, size));
}

TEST(test_all_are_the_same) {
    static const char *const names[] = {"baseline", "avx2", NULL};
    unsigned char *bytes = malloc(MOST_BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < MOST_BYTES; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < 3; i++) {
        zr_checksum_t checksum = zr_checksum_find(names[i]);
        if (checksum != NULL)
            compare(bytes, checksum);
        else
            print_message("%s is not here\n", names[i]);
    }
    compare(bytes, zr_store_checksum);
    free(bytes);
}

TEST(test_what_there_is) {
    assert_non_null(zr_checksum_find("baseline"));
    assert_non_null(zr_checksum_find(NULL));
    assert_null(zr_checksum_find("sse9"));
}
