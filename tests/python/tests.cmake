# The Python package (python/libzero) with the shared libraries of this build.
if(ZR_HAS_SHARED)
  add_executable(python_layouts python/layouts.c)
  set_target_properties(python_layouts PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(ZR_PYTHON_ENVIRONMENT "PYTHONPATH=${CMAKE_SOURCE_DIR}/python" "LIBZERO_LIBRARY_DIR=${CMAKE_BINARY_DIR}"
                            "PYTHONDONTWRITEBYTECODE=1")
  # It needs no PyTorch.
  zr_add_python_test(test_python_package python/test_package.py $<TARGET_FILE:python_layouts>)
  set_property(TEST test_python_package PROPERTY ENVIRONMENT ${ZR_PYTHON_ENVIRONMENT})
  # They do.
  foreach(name engine ranks groups habits trainer trl optim optimizer plan pretrained)
    zr_add_python_test(test_python_${name}_live python/test_${name}.py)
    set_property(TEST test_python_${name}_live PROPERTY ENVIRONMENT ${ZR_PYTHON_ENVIRONMENT})
  endforeach()
  zr_add_python_test(fuzz_modules_live python/fuzz_modules.py)
  set_property(TEST fuzz_modules_live PROPERTY ENVIRONMENT ${ZR_PYTHON_ENVIRONMENT})
  add_test(NAME test_python_package_live
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/python/test_package.sh ${CMAKE_SOURCE_DIR}
                   $<TARGET_FILE:python_layouts>)
  zr_test_properties(test_python_package_live NO_SANITIZERS)
endif()
