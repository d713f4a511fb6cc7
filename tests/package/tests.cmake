add_test(NAME test_headers COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_headers.sh
                                   ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${ZR_PUBLIC_HEADERS})
zr_test_properties(test_headers NO_SANITIZERS)
if(TARGET zero-train)
  set(ZR_INSTALL_MPIRUN "")
  if("openmpi" IN_LIST ZR_MPI_KINDS AND ZR_MPIRUN_openmpi)
    set(ZR_INSTALL_MPIRUN ${ZR_MPIRUN_openmpi})
  endif()
  add_test(NAME test_install COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_install.sh
                                     ${CMAKE_BINARY_DIR} "${ZR_INSTALL_MPIRUN}" ${ZR_PUBLIC_HEADERS})
  zr_test_properties(test_install NO_SANITIZERS)
endif()
add_test(NAME test_install_library
         COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_install_library.sh)
zr_test_properties(test_install_library NO_SANITIZERS)
add_test(NAME test_configure COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_configure.sh)
zr_test_properties(test_configure NO_SANITIZERS)
add_test(NAME test_run_python COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_run_python.sh)
zr_test_properties(test_run_python NO_SANITIZERS)
add_test(NAME test_docs COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/package/test_docs.sh
                                ${CMAKE_SOURCE_DIR})
zr_test_properties(test_docs NO_SANITIZERS)
zr_add_python_test(test_words package/test_words.py ${CMAKE_SOURCE_DIR})
