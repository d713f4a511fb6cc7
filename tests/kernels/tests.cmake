# The bottom layer. The conformance suites take a device's name; one line per device.
zr_add_test(kernels/test_status.c NO_SANITIZERS)
zr_add_test(kernels/test_log.c)
zr_add_test(kernels/test_device.c kernels/device_fixture.c)
zr_add_test(kernels/test_host_move.c)
target_link_options(test_host_move PRIVATE -Wl,--wrap=mremap,--wrap=mmap,--wrap=mprotect)
zr_add_test(kernels/test_kernels.c kernels/device_fixture.c ref/ref_kernels.c LABELS asan)
zr_add_test(kernels/test_bf16.c kernels/device_fixture.c ref/ref_kernels.c LABELS asan)
zr_add_test(kernels/test_isa.c kernels/device_fixture.c)
zr_add_test(kernels/test_host_pool.c kernels/device_fixture.c)
foreach(test test_device test_kernels test_bf16 test_isa test_host_pool)
  target_include_directories(${test} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endforeach()

if(ZR_WITH_CUDA)
  add_test(NAME test_ptx COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/test_ptx.sh
                                 ${CMAKE_CUDA_COMPILER} ${CMAKE_SOURCE_DIR})
  zr_test_properties(test_ptx NO_SANITIZERS)
endif()
