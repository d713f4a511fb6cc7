zr_add_test(examples/test_args.c LINK examples_common)
zr_add_test(examples/test_data.c LINK zero_data)
if(TARGET zero-train)
  zr_add_test(examples/test_zero_train.c)
  target_compile_definitions(test_zero_train PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    CHECK_MEMORY_VIZ="${CMAKE_CURRENT_SOURCE_DIR}/allocator/check_memory_viz.py")
  add_dependencies(test_zero_train zero-train)
endif()
zr_add_test(examples/test_gpt_parity.c ${RANKS} LINK zero_gpt NO_SANITIZERS)
