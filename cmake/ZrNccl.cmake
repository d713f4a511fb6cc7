# Whether the communicator nccl is built: where CUDA is, and NCCL's header and library are found. The
# library is loaded when a communicator is made, so programs start without it. Sets ZR_WITH_NCCL.
set(ZR_WITH_NCCL OFF)
if(NOT ZR_WITH_CUDA)
  set(ZR_NCCL_REASON "left out, like CUDA")
else()
  find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR}
                                                          ${CUDAToolkit_TARGET_DIR}/lib)
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(ZR_WITH_NCCL ON)
    set(ZR_NCCL_REASON "built with ${NCCL_INCLUDE_DIR}/nccl.h")
  else()
    set(ZR_NCCL_REASON "left out: nccl.h or libnccl.so not found")
  endif()
endif()
message(STATUS "NCCL: ${ZR_NCCL_REASON}")
