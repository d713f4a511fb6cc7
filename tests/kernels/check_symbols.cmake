# Every symbol that the library exports starts with zr_.
#   cmake -DNM=... -DLIBRARY=... -P check_symbols.cmake
execute_process(COMMAND ${NM} --extern-only --defined-only --format=posix ${LIBRARY}
                RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE error)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "nm failed: ${error}")
endif()
string(REPLACE ";" "," text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(n_symbols 0)
foreach(line ${lines})
  if(line MATCHES "^([^ ]+) [A-Zu] ")
    set(symbol ${CMAKE_MATCH_1})
    math(EXPR n_symbols "${n_symbols} + 1")
    # AddressSanitizer adds one of its own for each variable.
    if(NOT symbol MATCHES "^zr_" AND NOT symbol MATCHES "^__odr_asan[._]")
      message(SEND_ERROR "exported symbol without zr_: ${symbol}")
    endif()
  endif()
endforeach()
if(n_symbols LESS 50)
  message(FATAL_ERROR "only ${n_symbols} symbols found in ${LIBRARY}")
endif()
message(STATUS "${n_symbols} symbols, all zr_")
