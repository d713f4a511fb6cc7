# zr_library(TARGET DESCRIPTION TEXT [ON TARGET...] [PACKAGES NAME...] [LIBS FLAG...]): a static
# library of ours, TARGET, is built as a shared one as well, TARGET_shared, of the same objects, and
# both are installed, each with a pkg-config file: libTARGET and libTARGET-shared. CMake's package
# makes libzero::... of them (libzero-config.cmake).
#
# The shared one has a SONAME, and exports what begins with zr_. Sanitized builds have none.
#   ON        other libraries of ours that it stands on
#   PACKAGES  pkg-config's names of what else it needs
#   LIBS      flags of a linker for what has no such name
set(ZR_HAS_SHARED ON)
if(ZR_SANITIZE OR ZR_FUZZ)
  set(ZR_HAS_SHARED OFF)
endif()

# What TARGET_shared is linked with: what TARGET says, with shared ones in place of ours.
function(zr_shared_libraries target libraries_p)
  set(libraries "")
  get_target_property(own ${target} INTERFACE_LINK_LIBRARIES)
  foreach(library ${own})
    if(TARGET ${library}_shared)
      list(APPEND libraries ${library}_shared)
    else()
      list(APPEND libraries ${library})
    endif()
  endforeach()
  set(${libraries_p} ${libraries} PARENT_SCOPE)
endfunction()

function(zr_add_shared target)
  zr_shared_libraries(${target} libraries)
  set(shared ${target}_shared)
  set(empty ${CMAKE_BINARY_DIR}/zr_empty.c) # CMake wants a source
  if(NOT EXISTS ${empty})
    file(WRITE ${empty} "typedef int zr_empty;\n")
  endif()
  add_library(${shared} SHARED ${empty})
  add_dependencies(${shared} ${target})
  target_link_libraries(${shared} PRIVATE ${libraries})
  target_link_options(
    ${shared} PRIVATE LINKER:--whole-archive,$<TARGET_FILE:${target}>,--no-whole-archive
    LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/exported.map LINKER:-z,defs
    LINKER:-Bsymbolic-functions)
  set(modules ${CMAKE_INSTALL_LIBDIR}/libzero)
  set_target_properties(
    ${shared} PROPERTIES OUTPUT_NAME ${target}
                         VERSION ${PROJECT_VERSION}
                         SOVERSION ${PROJECT_VERSION_MAJOR}
                         LINK_DEPENDS "$<TARGET_FILE:${target}>;${CMAKE_SOURCE_DIR}/cmake/exported.map"
                         LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                         BUILD_RPATH "\$ORIGIN/${modules}"
                         INSTALL_RPATH "\$ORIGIN;\$ORIGIN/libzero")
  if(ZR_WITH_CUDA)
    set_target_properties(${shared} PROPERTIES LINKER_LANGUAGE CXX)
    # The C++ library comes before mimalloc: where this one is loaded first, as Python may do, its
    # operator delete would else free with mimalloc what others have from the C library.
    target_link_options(${shared} PRIVATE LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state)
  endif()
endfunction()

# The pkg-config file NAME.pc.
function(zr_install_pc name description requires libs)
  list(JOIN requires " " ZR_PC_REQUIRES)
  list(JOIN libs " " ZR_PC_LIBS)
  set(ZR_PC_NAME ${name})
  set(ZR_PC_DESCRIPTION ${description})
  # The file finds its folder by itself, because --install may be told another prefix.
  set(ZR_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH ZR_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(PREPEND ZR_PC_PREFIX "\${pcfiledir}/")
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/cmake/libzero.pc.in ${CMAKE_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

function(zr_library target)
  cmake_parse_arguments(LIBRARY "" "DESCRIPTION" "ON;PACKAGES;LIBS" ${ARGN})
  set_target_properties(${target} PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  install(TARGETS ${target} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  list(TRANSFORM LIBRARY_ON PREPEND lib OUTPUT_VARIABLE ours)
  zr_install_pc(lib${target} "${LIBRARY_DESCRIPTION}" "${ours};${LIBRARY_PACKAGES}"
                "-l:lib${target}.a;${LIBRARY_LIBS}")
  if(ZR_HAS_SHARED)
    zr_add_shared(${target})
    install(TARGETS ${target}_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    list(TRANSFORM ours APPEND -shared)
    # The program that is linked finds the library where it is installed.
    zr_install_pc(lib${target}-shared "${LIBRARY_DESCRIPTION}" "${ours}"
                  "-l${target};-Wl,-rpath,\${libdir}")
  endif()
endfunction()
