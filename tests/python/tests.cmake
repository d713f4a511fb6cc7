# The Python package (python/libzero) with the shared libraries of this build.
if(ZR_HAS_SHARED)
  add_executable(python_layouts python/layouts.c)
  set_target_properties(python_layouts PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(ZR_PYTHON_ENVIRONMENT "PYTHONPATH=${CMAKE_SOURCE_DIR}/python" "LIBZERO_LIBRARY_DIR=${CMAKE_BINARY_DIR}"
                            "PYTHONDONTWRITEBYTECODE=1")
  # They need no PyTorch.
  zr_add_python_test(test_python_package python/test_package.py $<TARGET_FILE:python_layouts>)
  # They do.
  zr_add_python_test(test_python_engine_live python/test_engine.py)
  zr_add_python_test(test_python_ranks_live python/test_ranks.py)
  zr_add_python_test(test_python_trainer_live python/test_trainer.py)
  zr_add_python_test(test_python_trl_live python/test_trl.py)
  zr_add_python_test(test_python_optim_live python/test_optim.py)
  zr_add_python_test(test_python_plan_live python/test_plan.py)
  foreach(name test_python_package test_python_engine_live test_python_ranks_live test_python_trainer_live
               test_python_trl_live test_python_optim_live test_python_plan_live)
    set_property(TEST ${name} PROPERTY ENVIRONMENT ${ZR_PYTHON_ENVIRONMENT})
  endforeach()
  add_test(NAME test_python_package_live
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/python/test_package.sh ${CMAKE_SOURCE_DIR}
                   $<TARGET_FILE:python_layouts>)
  zr_test_properties(test_python_package_live NO_SANITIZERS)
endif()
