# The CUDA device and the communicator nccl without a GPU: their own files, compiled for an
# emulation of CUDA and NCCL (emu.h). The suites of other folders run on it as they are.
file(GLOB EMU_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu
     ${CMAKE_SOURCE_DIR}/kernels/nn/cuda/*.cu)
file(GLOB EMU_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.c
     ${CMAKE_SOURCE_DIR}/kernels/nn/cuda/*.c)
list(FILTER EMU_CUDA_SOURCES EXCLUDE REGEX "/(cublaslt|cudnn)_find\\.c$") # emu_*.cc do it
set(EMU_NCCL_SOURCES ${CMAKE_SOURCE_DIR}/zero/comm/nccl/comm_nccl.c
                     ${CMAKE_SOURCE_DIR}/zero/comm/nccl/nccl_link.c emu/emu_nccl_library.c)
add_library(zero_emu OBJECT EXCLUDE_FROM_ALL
            emu/emu_cublaslt.cc emu/emu_cudnn.cc emu/emu_kernels.cc emu/emu_memory.cc emu/emu_nccl.cc
            emu/emu_nccl_meeting.cc emu/emu_streams.cc emu/backends.c ${EMU_CUDA_SOURCES} ${EMU_KERNELS} ${EMU_NCCL_SOURCES})
set_source_files_properties(${EMU_KERNELS} PROPERTIES LANGUAGE CXX)
target_include_directories(zero_emu BEFORE PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/emu/include)
# Few blocks, so that loops over the grid and over blocks of elements are seen to go on.
target_compile_definitions(zero_emu PRIVATE ZR_CUDA_MAX_BLOCKS=3)
# Fibres jump between stacks, which the C library's own checks take for a mistake.
target_compile_options(zero_emu PRIVATE -Wno-unknown-pragmas -U_FORTIFY_SOURCE)
if(ZR_SANITIZE MATCHES "address") # keep apart what lies in the section of shared memory
  target_compile_options(zero_emu PRIVATE -fsanitize-sections=emu_shared)
endif()

# zr_add_emu_test(NAME SOURCE...): a program with the emulation; its argument is the device. The
# first source is the test's own.
function(zr_add_emu_test name source)
  zr_add_test_as(${name} ${source} ${ARGN} ARGUMENTS cuda)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:zero_emu>)
  target_include_directories(${name} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/emu/include)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE ZR_TESTS_EMULATED)
endfunction()

# ThreadSanitizer does not know the emulation's fibres.
zr_add_emu_test(test_emu_device kernels/test_device.c kernels/device_fixture.c LABELS asan)
add_test(NAME test_emu_device_plain COMMAND test_emu_device cuda)
zr_test_properties(test_emu_device_plain LABELS asan)
set_tests_properties(test_emu_device_plain PROPERTIES ENVIRONMENT EMU_NO_VIRTUAL_MEMORY=1)
zr_add_emu_test(test_emu_kernels kernels/test_kernels.c kernels/device_fixture.c
                ref/ref_kernels.c NO_SANITIZERS)
zr_add_emu_test(test_emu_encoding kernels/test_encoding.c kernels/device_fixture.c ref/ref_kernels.c
                LABELS asan)
zr_add_emu_test(test_emu_update_forms kernels/test_update_forms.c kernels/device_fixture.c
                ref/ref_kernels.c NO_SANITIZERS)
zr_add_emu_test(test_emu_master kernels/test_master.c kernels/device_fixture.c ref/ref_kernels.c NO_SANITIZERS)
zr_add_emu_test(test_emu_own_optimizer zero/test_own_optimizer.c common/eight_bits.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_state_forms zero/test_state_forms.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_parity zero/test_parity.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_faults emu/test_emu_faults.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_offload zero/test_offload.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu emu/test_emu.c emu/emu_probe.cc emu/native_kernel.cc
                kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_matrix emu/test_emu_matrix.c emu/emu_matrix_probe.cc
                kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_attention_fails emu/test_emu_attention_fails.c kernels/device_fixture.c
                LABELS asan)
zr_add_emu_test(test_emu_cudnn emu/test_emu_cudnn.c kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_bits emu/test_emu_bits.c kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_trace emu/test_emu_trace.c common/trace_file.c common/ticking_clock.c
                LABELS asan)
zr_add_emu_test(test_emu_allocator allocator/test_allocator_cuda.c kernels/device_fixture.c
                LABELS asan)
zr_add_emu_test(test_emu_checkpoint zero/test_checkpoint.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_late zero/test_late.c zero/toy.c ${RANKS} NO_SANITIZERS)
zr_add_emu_test(test_emu_matmul emu/test_emu_matmul.c kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_lm_head emu/test_emu_lm_head.c kernels/device_fixture.c LABELS asan)
zr_add_emu_test(test_emu_native kernels/test_native.c kernels/device_fixture.c emu/native_kernel.cc
                LABELS asan)
# The transformer's kernels against their oracles.
foreach(kernels rotary rows)
  zr_add_emu_test(test_emu_nn_${kernels} kernels/nn/test_nn_${kernels}.c ${NN_TEST} NO_SANITIZERS)
endforeach()
foreach(kernels attention lm_head matmul)
  zr_add_emu_test(test_emu_nn_${kernels} kernels/nn/test_nn_${kernels}.c ref/attention_bounds.c
                  ${NN_TEST} LABELS asan)
endforeach()
add_test(NAME test_emu_nn_attention_cudnn COMMAND test_emu_nn_attention cuda)
zr_test_properties(test_emu_nn_attention_cudnn NO_SANITIZERS)
set_tests_properties(test_emu_nn_attention_cudnn PROPERTIES ENVIRONMENT "ATTENTION_ENGINE=cudnn;EMU_MAJOR=9")
# Where cuBLASLt has no epilogues.
foreach(test test_emu_nn_matmul test_emu_matmul)
  add_test(NAME ${test}_plain COMMAND ${test} cuda)
  zr_test_properties(${test}_plain NO_SANITIZERS)
  set_tests_properties(${test}_plain PROPERTIES ENVIRONMENT EMU_NO_EPILOGUES=1)
endforeach()

zr_add_emu_test(test_emu_gpt_sim ref/test_gpt_sim.c ${RANKS} LINK zero_models NO_SANITIZERS)

# zero-train on the emulated device, started by tests as a process of its own.
if(TARGET zero-train)
  add_executable(zero-train-emu EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/train/main.c
                                 $<TARGET_OBJECTS:zero_emu>)
  target_link_libraries(zero-train-emu PRIVATE zero_train_core)
  set_target_properties(zero-train-emu PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  zr_add_test(emu/test_emu_train.c NO_SANITIZERS)
  target_compile_definitions(test_emu_train PRIVATE ZERO_TRAIN_EMU="$<TARGET_FILE:zero-train-emu>"
                                                    ZR_MPIRUN="${ZR_TEST_MPIRUN}")
  set_tests_properties(test_emu_train PROPERTIES ENVIRONMENT "${ZR_TEST_MPI_ENVIRONMENT}")
  add_dependencies(test_emu_train zero-train-emu)
endif()
# zero-bench likewise: that its commands run there, and their fields add up; times say nothing.
if(TARGET zero-bench)
  add_executable(zero-bench-emu EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/bench/main.c
                                 common/ticking_clock.c $<TARGET_OBJECTS:zero_emu>)
  target_link_libraries(zero-bench-emu PRIVATE zero_bench_core)
  zr_wrap_for_common(zero-bench-emu common/ticking_clock.c)
  set_target_properties(zero-bench-emu PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  zr_add_test(examples/bench/test_zero_bench_device.c NO_SANITIZERS)
  target_compile_definitions(test_zero_bench_device PRIVATE ZERO_BENCH="$<TARGET_FILE:zero-bench-emu>")
  add_dependencies(test_zero_bench_device zero-bench-emu)
endif()
# tests/gpu.sh on these programs, and the capacities of what they train.
if(TARGET zero-train AND TARGET zero-bench)
  add_executable(zero-capacity-emu EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/capacity/main.c
                                   $<TARGET_OBJECTS:zero_emu>)
  add_dependencies(test_emu_train zero-capacity-emu)
  target_link_libraries(zero-capacity-emu PRIVATE zero_capacity_core)
  set_target_properties(zero-capacity-emu PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                     ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME test_gpu_emu COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/test_gpu_emu.sh
                                     ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  zr_test_properties(test_gpu_emu NO_SANITIZERS)
endif()
zr_add_emu_test(test_emu_comm_nccl emu/test_emu_comm_nccl.c ${COMM_SUITE} NO_SANITIZERS)
add_test(NAME test_emu_comm_nccl_tcp COMMAND test_emu_comm_nccl tcp)
zr_test_properties(test_emu_comm_nccl_tcp NO_SANITIZERS)
add_test(NAME test_emu_comm_nccl_processes COMMAND test_emu_comm_nccl processes)
zr_test_properties(test_emu_comm_nccl_processes NO_SANITIZERS)
zr_add_emu_test(test_emu_nccl emu/test_emu_nccl.c zero/comm/comm_cases.c zero/comm/ranks.c
                LABELS asan)
target_link_options(test_emu_nccl PRIVATE LINKER:--wrap=clock_gettime
                                            LINKER:--wrap=pthread_cond_timedwait
                                            LINKER:--wrap=zr_control_arrive)
zr_add_emu_test(test_emu_comm_threads zero/comm/test_comm_threads_cuda.c ${COMM_SUITE} NO_SANITIZERS)
add_test(NAME test_emu_parity_nccl COMMAND test_emu_parity nccl)
zr_test_properties(test_emu_parity_nccl NO_SANITIZERS)
set_tests_properties(test_emu_parity_nccl PROPERTIES ENVIRONMENT EMU_DEVICES=8)
