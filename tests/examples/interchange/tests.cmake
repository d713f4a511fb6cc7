if(TARGET zero_interchange)
  set(MADE_WEIGHTS examples/interchange/made_weights.c)
  zr_add_test(examples/interchange/test_elements.c LINK zero_interchange)
  zr_add_test(examples/interchange/test_safetensors.c LINK zero_interchange LABELS asan)
  zr_add_test(examples/interchange/test_llmc_header.c LINK zero_interchange LABELS asan)
  zr_add_test(examples/interchange/test_interchange.c ${MADE_WEIGHTS} LINK zero_interchange
              LABELS asan)
  zr_add_test(examples/interchange/test_interchange_refused.c ${MADE_WEIGHTS} LINK zero_interchange
              LABELS asan)
  zr_add_test(examples/interchange/test_zero_checkpoint_exchange.c ${MADE_WEIGHTS}
              LINK zero_interchange LABELS asan)
  target_compile_definitions(test_zero_checkpoint_exchange PRIVATE
    ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>"
    CHECKPOINTS_DOC="${CMAKE_SOURCE_DIR}/docs/checkpoints.md")
  add_dependencies(test_zero_checkpoint_exchange zero-checkpoint)
endif()
