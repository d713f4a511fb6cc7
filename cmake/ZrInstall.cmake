# `cmake --install`: the library, its public headers with their folders kept (they include
# each other as "kernels/..."), the programs, a program of a user's as an example, a pkg-config file and
# a package for CMake.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS zero ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder kernels allocator offload zero)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/libzero
          FILES_MATCHING PATTERN "*.h" PATTERN "cuda" EXCLUDE PATTERN "nccl" EXCLUDE
                                     PATTERN "mpi" EXCLUDE)
endforeach()
# Programs look for them in this folder, beside the one that they are in.
foreach(kind ${ZR_MPI_KINDS})
  install(TARGETS zero-${kind} zero-bench-${kind}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/libzero)
endforeach()
install(TARGETS zero-checkpoint zero-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET zero-train)
  install(TARGETS zero-train zero-plan zero-capacity RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # zero-plan looks for them beside the folder it is in.
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/hardware DESTINATION ${CMAKE_INSTALL_BINDIR}/../share/libzero
          FILES_MATCHING PATTERN "*.json")
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples/library
        DESTINATION ${CMAKE_INSTALL_DATADIR}/libzero/examples)

# The file finds its folder by itself, because --install may be told another prefix.
set(ZR_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH ZR_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(PREPEND ZR_PC_PREFIX "\${pcfiledir}/")
endif()
set(ZR_PC_CUDA "")
if(ZR_WITH_CUDA)
  set(ZR_PC_CUDA "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lstdc++")
endif()
set(ZR_PC_MPI "")
if(ZR_MPI_KINDS) # a program loads them when MPI's launcher has started it
  set(ZR_PC_MPI "-Wl,-rpath,\${libdir}/libzero")
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/libzero.pc.in ${CMAKE_BINARY_DIR}/libzero.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/libzero.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

write_basic_package_version_file(${CMAKE_BINARY_DIR}/libzero-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_SOURCE_DIR}/cmake/libzero-config.cmake
              ${CMAKE_BINARY_DIR}/libzero-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/libzero)
