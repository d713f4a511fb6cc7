# What an earlier configuration of this build folder found, and is gone, is looked for again; what it did
# not find CMake looks for again by itself, CUDA apart. What is still there stays as it was chosen.
get_cmake_property(ZR_ENTRIES CACHE_VARIABLES)
foreach(entry ${ZR_ENTRIES})
  get_property(type CACHE ${entry} PROPERTY TYPE)
  set(value "$CACHE{${entry}}")
  if(entry STREQUAL "CMAKE_CUDA_COMPILER")
    # Not found stays so otherwise; and another compiler needs what CMake noted of it anew.
    if(value MATCHES "NOTFOUND$" OR (IS_ABSOLUTE "${value}" AND NOT EXISTS "${value}"))
      unset(${entry} CACHE)
      file(REMOVE ${CMAKE_BINARY_DIR}/CMakeFiles/${CMAKE_VERSION}/CMakeCUDACompiler.cmake)
    endif()
  elseif(type MATCHES "PATH$" AND NOT entry MATCHES "^CMAKE_" AND IS_ABSOLUTE "${value}"
         AND NOT EXISTS "${value}")
    unset(${entry} CACHE)
    if(entry MATCHES "^pkgcfg_lib_")
      set(ZR_LIBRARY_IS_GONE ON)
    endif()
  endif()
endforeach()
if(ZR_LIBRARY_IS_GONE) # so what pkg-config said of it may be wrong
  foreach(entry ${ZR_ENTRIES})
    if(entry MATCHES "^__pkg_config_checked_")
      unset(${entry} CACHE)
    endif()
  endforeach()
endif()
