zr_add_test(ref/test_gpt.c ref/gpt_fixture.c LINK zero_models)
zr_add_test(ref/test_model_shape.c LINK zero_models LABELS asan)
zr_add_test(ref/test_decoder_config.c LINK zero_models LABELS asan)
zr_add_test(ref/test_decoder_transformers.c LINK zero_models LABELS asan)
target_compile_definitions(
  test_decoder_transformers PRIVATE
  DECODER_REFERENCE="${CMAKE_CURRENT_SOURCE_DIR}/ref/decoder_transformers_reference.json")
zr_add_python_test(test_decoder_transformers_live ref/make_decoder_transformers_reference.py
                   --check ${CMAKE_CURRENT_SOURCE_DIR}/ref/decoder_transformers_reference.json)
zr_add_test(ref/test_optimizers_torch.c LABELS asan)
target_compile_definitions(
  test_optimizers_torch PRIVATE
  OPTIMIZERS_TORCH_REFERENCE="${CMAKE_CURRENT_SOURCE_DIR}/ref/optimizers_torch_reference.json")
zr_add_python_test(test_optimizers_torch_live ref/make_optimizers_torch_reference.py --check
                   ${CMAKE_CURRENT_SOURCE_DIR}/ref/optimizers_torch_reference.json)
zr_add_test(ref/test_gpt_gathers.c ${RANKS} LINK zero_models)
zr_add_test(ref/test_gpt_late.c ${RANKS} LINK zero_models)
zr_add_test(ref/test_gpt_sim.c ${RANKS} LINK zero_models LABELS asan)
add_test(NAME test_gpt_sim_beside COMMAND test_gpt_sim beside)
zr_test_properties(test_gpt_sim_beside LABELS asan)
zr_add_test(ref/test_gpt_scale.c LINK zero_plan_core LABELS asan)

# The GPT on drives that fail: the store's calls go through the test's.
foreach(name test_gpt_faults test_gpt_full_drive)
  zr_add_test(ref/${name}.c ref/gpt_on_drive.c offload/fault_ring.c offload/store_fixture.c ${RANKS}
              LINK zero_models LABELS asan)
  foreach(function zr_ring_open zr_ring_queue zr_ring_submit zr_ring_next zr_ring_register_buffers
                   zr_ring_register_files fallocate pwrite open fcntl zr_store_destroy
                   zr_allocator_destroy)
    target_link_options(${name} PRIVATE LINKER:--wrap=${function})
  endforeach()
endforeach()
