# Every header of the library compiles alone, as C11 and as C++17, without warnings and
# without the macros that the library's own build defines.
#   cmake -DROOT=... -DC_COMPILER=... -DCXX_COMPILER=... -P check_headers.cmake
file(GLOB_RECURSE HEADERS RELATIVE ${ROOT} ${ROOT}/kernels/*.h ${ROOT}/allocator/*.h
     ${ROOT}/offload/*.h ${ROOT}/zero/*.h)
list(LENGTH HEADERS n_headers)
if(n_headers LESS 10)
  message(FATAL_ERROR "only ${n_headers} headers found below ${ROOT}")
endif()

function(check header language compiler)
  execute_process(
    COMMAND ${compiler} ${ARGN} -x ${language} -fsyntax-only -Wall -Wextra -Wpedantic -Werror
            -I${ROOT} -include ${ROOT}/${header} /dev/null
    RESULT_VARIABLE result ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${header} does not compile alone (${ARGN}):\n${text}")
  endif()
endfunction()

foreach(header ${HEADERS})
  check(${header} c ${C_COMPILER} -std=c11)
  if(NOT header MATCHES "_backend\\.h$|_math\\.h$|/host/|_internal\\.h$") # public ones
    check(${header} c++ ${CXX_COMPILER} -std=c++17)
  endif()
endforeach()
message(STATUS "${n_headers} headers compile alone")
