# Find mimalloc by its header and library; the package's own CMake files differ between versions.
# Gives the target Mimalloc::Mimalloc.
find_path(MIMALLOC_INCLUDE_DIR NAMES mimalloc.h)
find_library(MIMALLOC_LIBRARY NAMES mimalloc)
mark_as_advanced(MIMALLOC_INCLUDE_DIR MIMALLOC_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Mimalloc REQUIRED_VARS MIMALLOC_LIBRARY MIMALLOC_INCLUDE_DIR)

if(Mimalloc_FOUND AND NOT TARGET Mimalloc::Mimalloc)
  add_library(Mimalloc::Mimalloc UNKNOWN IMPORTED)
  set_target_properties(Mimalloc::Mimalloc PROPERTIES IMPORTED_LOCATION "${MIMALLOC_LIBRARY}"
                                                      INTERFACE_INCLUDE_DIRECTORIES
                                                      "${MIMALLOC_INCLUDE_DIR}")
endif()
