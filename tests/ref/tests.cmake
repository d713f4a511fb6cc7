zr_add_test(ref/test_ref_gpt.c ref/ref_gpt.c ref/ref_nn.c NO_SANITIZERS)
zr_add_test(ref/test_gpt_shape.c LINK zero_gpt LABELS asan)
zr_add_test(ref/test_gpt.c ref/gpt_fixture.c ref/ref_gpt.c ref/ref_nn.c LINK zero_gpt)
zr_add_test(ref/test_gpt_torch.c ref/gpt_fixture.c LINK zero_gpt LABELS asan)
target_compile_definitions(
  test_gpt_torch PRIVATE
  GPT_TORCH_REFERENCE="${CMAKE_CURRENT_SOURCE_DIR}/ref/gpt_torch_reference.json")
zr_add_test(ref/test_gpt_gathers.c ${RANKS} LINK zero_gpt)
zr_add_test(ref/test_gpt_late.c ${RANKS} LINK zero_gpt)
zr_add_test(ref/test_gpt_sim.c ${RANKS} LINK zero_gpt LABELS asan)
zr_add_test(ref/test_gpt_scale.c LINK zero_gpt LABELS asan)
