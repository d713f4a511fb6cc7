/* NCCL's calls where a program is linked with the emulation: in place of nccl_library.c. */
#include "zero/comm/nccl/nccl_library.h"

zr_status_t zr_nccl_library_open(const zr_log_t *log, zr_nccl_library_t *library_p) {
#define CALL(name) .name##_p = name,
    *library_p = (zr_nccl_library_t){ZR_NCCL_CALLS(CALL)};
#undef CALL
    return ZR_OK;
}
