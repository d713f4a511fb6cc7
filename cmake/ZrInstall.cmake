# `cmake --install`: the libraries, their public headers with their folders kept (they include each
# other as "kernels/..."), the programs, a program of a user's as an example, pkg-config files and a
# package for CMake.
include(CMakePackageConfigHelpers)
foreach(header ${ZR_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  string(REGEX REPLACE "^examples/" "" folder ${folder})
  install(FILES ${CMAKE_SOURCE_DIR}/${header}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/libzero/${folder})
endforeach()
# Programs look for them in this folder, beside the one that they are in.
foreach(kind ${ZR_MPI_KINDS})
  install(TARGETS zero-${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/libzero)
  if(ZR_NN)
    install(TARGETS zero-bench-${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/libzero)
  endif()
endforeach()
if(ZR_NN)
  install(TARGETS zero-train zero-plan zero-capacity zero-checkpoint zero-bench
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # zero-plan looks for them beside the folder it is in.
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/hardware DESTINATION ${CMAKE_INSTALL_BINDIR}/../share/libzero
          FILES_MATCHING PATTERN "*.json")
  # Pages for man and completion for bash are printed by the programs, from their options.
  foreach(program zero-train zero-plan zero-capacity zero-checkpoint zero-bench)
    install(CODE "
      foreach(form --man \"--completion=bash\")
        string(REGEX REPLACE \"[^a-z]\" \"\" ending \"\${form}\")
        execute_process(COMMAND $<TARGET_FILE:${program}> \${form} RESULT_VARIABLE code
          OUTPUT_FILE \"${CMAKE_BINARY_DIR}/${program}.\${ending}\")
        if(NOT code EQUAL 0)
          message(FATAL_ERROR \"${program} \${form}: \${code}\")
        endif()
      endforeach()")
    install(FILES ${CMAKE_BINARY_DIR}/${program}.man RENAME ${program}.1
            DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${CMAKE_BINARY_DIR}/${program}.completionbash RENAME ${program}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  endforeach()
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples/library
        DESTINATION ${CMAKE_INSTALL_DATADIR}/libzero/examples)

write_basic_package_version_file(${CMAKE_BINARY_DIR}/libzero-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_SOURCE_DIR}/cmake/libzero-config.cmake
              ${CMAKE_BINARY_DIR}/libzero-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/libzero)

# What a wheel has of it (pyproject.toml): the shared libraries, each once, since a wheel has no links; and
# programs that need no PyTorch.
if(ZR_HAS_SHARED)
  set(ZR_PYTHON_LIBRARIES zero_shared)
  if(ZR_NN)
    list(APPEND ZR_PYTHON_LIBRARIES zero_nn_shared zero_models_shared)
  endif()
  set(ZR_PYTHON_PROGRAMS "")
  if(ZR_NN)
    set(ZR_PYTHON_PROGRAMS zero-plan zero-capacity zero-checkpoint)
  endif()
  add_custom_target(python_parts DEPENDS ${ZR_PYTHON_LIBRARIES} ${ZR_PYTHON_PROGRAMS})
  if(SKBUILD)
    set_target_properties(${ZR_PYTHON_LIBRARIES} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
    foreach(library ${ZR_PYTHON_LIBRARIES})
      install(FILES $<TARGET_FILE:${library}> RENAME $<TARGET_SONAME_FILE_NAME:${library}>
              DESTINATION libzero/lib COMPONENT python)
    endforeach()
    foreach(kind ${ZR_MPI_KINDS})
      install(TARGETS zero-${kind} LIBRARY DESTINATION libzero/lib/libzero COMPONENT python)
    endforeach()
    if(ZR_NN)
      install(TARGETS ${ZR_PYTHON_PROGRAMS} RUNTIME DESTINATION libzero/bin COMPONENT python)
      install(DIRECTORY ${CMAKE_SOURCE_DIR}/hardware DESTINATION libzero/share/libzero COMPONENT python
              FILES_MATCHING PATTERN "*.json")
    endif()
  endif()
endif()
