# The bottom layer. The conformance suites take a device's name; one line per device.
zr_add_test(kernels/test_status.c NO_SANITIZERS)
zr_add_test(kernels/test_log.c)
zr_add_test(kernels/test_device.c kernels/device_fixture.c)
zr_add_test(kernels/test_kernels.c kernels/device_fixture.c ref/ref_kernels.c LABELS asan)
zr_add_test(kernels/test_bf16.c kernels/device_fixture.c ref/ref_kernels.c LABELS asan)
zr_add_test(kernels/test_isa.c kernels/device_fixture.c)
zr_add_test(kernels/test_host_pool.c kernels/device_fixture.c)
foreach(test test_device test_kernels test_bf16 test_isa test_host_pool)
  target_include_directories(${test} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endforeach()

add_test(NAME check_headers
         COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DC_COMPILER=${CMAKE_C_COMPILER}
                 -DCXX_COMPILER=${CMAKE_CXX_COMPILER}
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/kernels/check_headers.cmake)
add_test(NAME check_symbols
         COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:zero>
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/kernels/check_symbols.cmake)
