# Find oneDNN by its header and library; the package's own CMake files differ between
# distributions. Gives the target OneDNN::OneDNN, whose shared library brings its own OpenMP.
find_path(ONEDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
find_library(ONEDNN_LIBRARY NAMES dnnl)
mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR)

if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES IMPORTED_LOCATION "${ONEDNN_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES
                                                  "${ONEDNN_INCLUDE_DIR}")
endif()
