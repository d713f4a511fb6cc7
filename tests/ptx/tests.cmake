# The library as nvcc and the compiler have made it, on the emulation instead of CUDA's runtime: its
# kernels are nvcc's PTX, translated to C++ (ptx.h). The emulation is compiled against CUDA's own
# headers here, so that what the library's objects take their structures for is seen, too.
zr_add_test(ptx/test_races.cc ptx/races.cc LABELS asan)
if(NOT ZR_WITH_CUDA OR ZR_SANITIZE)
  return()
endif()

# The options that decide what the code is are those of the library (kernels/cuda/CMakeLists.txt). The
# capability is the oldest supported, so that code which only newer ones have does not compile.
file(GLOB PTX_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu
     ${CMAKE_SOURCE_DIR}/kernels/nn/cuda/*.cu)
set(ZR_PTX_ARCHITECTURE 80 CACHE STRING "compute capability whose PTX tests run")
set(PTX_FILES "")
foreach(kernel ${PTX_KERNELS})
  get_filename_component(name ${kernel} NAME_WE)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/ptx/${name}.ptx)
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/ptx
    COMMAND ${CMAKE_CUDA_COMPILER} -std=c++17 -O3 -fmad=false -lineinfo -ptx -arch=compute_${ZR_PTX_ARCHITECTURE}
            -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR} -MD -MF ${ptx}.d -o ${ptx} ${kernel}
    DEPENDS ${kernel}
    DEPFILE ${ptx}.d
    VERBATIM)
  list(APPEND PTX_FILES ${ptx})
endforeach()
add_custom_target(ptx_files ALL DEPENDS ${PTX_FILES})
add_dependencies(gpu_suite ptx_files)
add_test(NAME test_ptx COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/test_ptx.sh ${PTX_FILES})
zr_test_properties(test_ptx NO_SANITIZERS)

if(NOT ZR_WITH_NCCL)
  return()
endif()
add_executable(ptx_translate EXCLUDE_FROM_ALL ptx/ptx_translate.cc)
target_compile_options(ptx_translate PRIVATE -O1)
set(PTX_CODE "")
foreach(ptx ${PTX_FILES})
  get_filename_component(name ${ptx} NAME_WE)
  add_custom_command(
    OUTPUT ${ptx}.cc
    COMMAND ptx_translate --strict -o ${ptx}.cc ${ptx} ${name}
    DEPENDS ${ptx} ptx_translate
    VERBATIM)
  list(APPEND PTX_CODE ${ptx}.cc)
endforeach()

add_library(ptx_code OBJECT EXCLUDE_FROM_ALL ${PTX_CODE})
target_compile_options(ptx_code PRIVATE -O1 -ffp-contract=off -fno-strict-aliasing)
add_library(zero_ptx OBJECT EXCLUDE_FROM_ALL ptx/ptx_launch.cc ptx/ptx_memory.cc ptx/races.cc
            emu/emu_cublaslt.cc emu/emu_cudnn.cc emu/emu_kernels.cc emu/emu_memory.cc emu/emu_nccl.cc
            emu/emu_nccl_library.c emu/emu_nccl_meeting.cc emu/emu_streams.cc)
foreach(library ptx_code zero_ptx)
  target_include_directories(${library} PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(${library} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS}
                                                       ${ZR_CUBLASLT_INCLUDE_DIR})
  target_compile_options(${library} PRIVATE -U_FORTIFY_SOURCE)
endforeach()

# zr_add_ptx_test(NAME SOURCE... [CODE OBJECTS]): a program with all this, or with other kernels; its
# argument is the device.
function(zr_add_ptx_test name source)
  cmake_parse_arguments(TEST "" "CODE" "" CODE ptx_code ${ARGN})
  zr_add_test_as(${name} ${source} ${TEST_UNPARSED_ARGUMENTS} NO_SANITIZERS ARGUMENTS cuda)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:zero_ptx> $<TARGET_OBJECTS:${TEST_CODE}>)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE ZR_TESTS_EMULATED)
endfunction()

zr_add_ptx_test(test_ptx_barriers ptx/test_ptx_barriers.cc ptx/tour.c kernels/device_fixture.c)
zr_add_ptx_test(test_ptx_device kernels/test_device.c kernels/device_fixture.c)
zr_add_ptx_test(test_ptx_kernels kernels/test_kernels.c kernels/device_fixture.c ref/ref_kernels.c)
zr_add_ptx_test(test_ptx_bits emu/test_emu_bits.c kernels/device_fixture.c)
foreach(kernels attention lm_head matmul rotary rows)
  zr_add_ptx_test(test_ptx_nn_${kernels} kernels/nn/test_nn_${kernels}.c ref/attention_bounds.c
                  ${NN_TEST})
endforeach()
zr_add_ptx_test(test_ptx_nccl emu/test_emu_nccl.c zero/comm/comm_cases.c zero/comm/ranks.c)
target_link_options(test_ptx_nccl PRIVATE LINKER:--wrap=clock_gettime
                                            LINKER:--wrap=pthread_cond_timedwait
                                            LINKER:--wrap=zr_control_arrive)

# What translated instructions do: kernels written by hand, without the library's.
set(PTX_PROBES "")
foreach(probe probe_threads probe_unknown probe_values)
  set(code ${CMAKE_CURRENT_BINARY_DIR}/ptx/${probe}.ptx.cc)
  add_custom_command(
    OUTPUT ${code}
    COMMAND ptx_translate -o ${code} ${CMAKE_CURRENT_SOURCE_DIR}/ptx/${probe}.ptx ${probe}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ptx/${probe}.ptx ptx_translate
    VERBATIM)
  list(APPEND PTX_PROBES ${code})
endforeach()
add_library(ptx_probes OBJECT EXCLUDE_FROM_ALL ${PTX_PROBES})
target_compile_options(ptx_probes PRIVATE -O1 -ffp-contract=off -fno-strict-aliasing)
target_include_directories(ptx_probes PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(ptx_probes SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
zr_add_ptx_test(test_ptx_translate ptx/test_ptx_translate.cc kernels/device_fixture.c CODE ptx_probes)
target_include_directories(test_ptx_translate SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(test_ptx_translate PRIVATE PTX_TRANSLATE="$<TARGET_FILE:ptx_translate>"
                           PTX_PROBES="${CMAKE_CURRENT_SOURCE_DIR}/ptx")

# zero-train so, started by a test as a process of its own.
if(TARGET zero-train)
  add_executable(zero-train-ptx EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/train/main.c
                                 $<TARGET_OBJECTS:zero_ptx> $<TARGET_OBJECTS:ptx_code>)
  target_link_libraries(zero-train-ptx PRIVATE zero_train_core)
  set_target_properties(zero-train-ptx PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                                                   LINKER_LANGUAGE CXX)
  zr_add_test_as(test_ptx_train emu/test_emu_train.c NO_SANITIZERS ARGUMENTS test_stages)
  target_compile_definitions(test_ptx_train PRIVATE ZERO_TRAIN_EMU="$<TARGET_FILE:zero-train-ptx>"
                                                    ZR_MPIRUN="${ZR_TEST_MPIRUN}")
  add_dependencies(test_ptx_train zero-train-ptx)
endif()
