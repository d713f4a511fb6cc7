if(TARGET zero_weights)
  set(MADE_WEIGHTS examples/weights/made_weights.c)
  zr_add_test(examples/weights/test_elements.c LINK zero_weights)
  zr_add_test(examples/weights/test_safetensors.c LINK zero_weights LABELS asan)
  zr_add_test(examples/weights/test_llmc_header.c LINK zero_weights LABELS asan)
  zr_add_test(examples/weights/test_interchange.c ${MADE_WEIGHTS} LINK zero_weights
              LABELS asan)
  zr_add_test(examples/weights/test_interchange_refused.c ${MADE_WEIGHTS} LINK zero_weights
              LABELS asan)
  zr_add_test(examples/weights/test_folders.c ${MADE_WEIGHTS} LINK zero_weights LABELS asan)
  zr_add_test(examples/weights/test_zero_checkpoint_exchange.c ${MADE_WEIGHTS}
              LINK zero_weights LABELS asan)
  target_compile_definitions(test_zero_checkpoint_exchange PRIVATE
    ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>" ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    FIELDS_DOC="${CMAKE_SOURCE_DIR}/docs/reference/json.md")
  add_dependencies(test_zero_checkpoint_exchange zero-checkpoint zero-train)

  zr_add_test(examples/weights/test_adapters.c ${MADE_WEIGHTS} LINK zero_weights LABELS asan)
  target_compile_definitions(test_adapters PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>")
  add_dependencies(test_adapters zero-checkpoint zero-train)

  # With Hugging Face's models, where Python has them.
  add_executable(model_says examples/weights/model_says.c)
  target_link_libraries(model_says PRIVATE zero_weights)
  set_target_properties(model_says PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                 ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(model_says zero-checkpoint zero-train)
  if(ZR_SANITIZE)
    set_target_properties(model_says PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  zr_add_python_test(test_hugging_face examples/weights/check_hugging_face.py
                     $<TARGET_FILE_DIR:zero-checkpoint> $<TARGET_FILE:model_says>)
endif()
