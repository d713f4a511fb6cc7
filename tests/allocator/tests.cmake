zr_add_test(allocator/test_allocator_api.c allocator/fake_device.c)
zr_add_test(allocator/test_allocator_budget.c allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_allocator_pressure.c allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_allocator_conformance.c allocator/replay_steps.c allocator/fake_device.c
            LABELS asan)
zr_add_test(allocator/test_allocator_streams.c allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_allocator_threads.c allocator/fake_device.c)
zr_add_test(allocator/test_allocator_faults.c allocator/fail_malloc.c allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_allocator_record.c allocator/fake_device.c LABELS asan)
target_compile_definitions(test_allocator_record
  PRIVATE CHECK_MEMORY_VIZ="${CMAKE_CURRENT_SOURCE_DIR}/allocator/check_memory_viz.py")

zr_add_test(allocator/test_replay.c allocator/replay_steps.c allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_replay_faults.c allocator/replay_steps.c allocator/fail_malloc.c
            allocator/fake_device.c LABELS asan)
zr_add_test(allocator/test_replay_search.c allocator/fake_device.c allocator/plan_cases.c)
zr_add_test(allocator/test_replay_share.c allocator/replay_steps.c allocator/fake_device.c)
zr_add_test(allocator/test_replay_threads.c allocator/fake_device.c)
zr_add_test(allocator/test_replay_properties.c allocator/replay_steps.c allocator/fake_device.c
            LABELS asan)

zr_add_test(allocator/test_planner.c allocator/plan_cases.c LABELS asan)
zr_add_test(allocator/test_planner_threads.c allocator/plan_cases.c)
zr_add_test(allocator/test_plan_cache.c allocator/plan_cases.c LABELS asan tsan)
zr_add_test(allocator/test_planner_faults.c allocator/fail_malloc.c allocator/plan_cases.c LABELS asan)
# Published cases that are no part of the repository; they may lie beside it.
zr_add_test(allocator/test_planner_minimalloc.c allocator/plan_cases.c NO_SANITIZERS)
target_compile_definitions(
  test_planner_minimalloc
  PRIVATE ZR_MINIMALLOC_CASES="${CMAKE_SOURCE_DIR}/../shared/data/minimalloc")

if(ZR_WITH_CUDA)
  zr_add_gpu_program(test_allocator_cuda allocator/test_allocator_cuda.c kernels/device_fixture.c)
  zr_add_gpu_test(test_allocator_cuda test_allocator_cuda)
endif()
