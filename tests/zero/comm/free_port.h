/*
 * A port of this machine that nobody listens at: the system chooses, and does not choose it again
 * soon.
 */
#ifndef ZR_TESTS_ZERO_COMM_FREE_PORT_H
#define ZR_TESTS_ZERO_COMM_FREE_PORT_H

#include <stdlib.h>
#include <unistd.h>

#include "zero/comm/wire.h"

static inline int free_port(void) {
    int listener = -1, port = 0;
    if (zr_wire_listen(0, &listener, &port) != 0)
        abort();
    close(listener);
    return port;
}

#endif
