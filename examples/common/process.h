/* What the system says of this process. */
#pragma once

#include <stddef.h>

/** The most memory that was resident at a time, bytes; 0 where the system does not say. */
size_t process_peak_resident_bytes(void);
