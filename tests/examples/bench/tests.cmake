# zero-bench, run as a program; what it measures is not a matter of tests.
foreach(test test_zero_bench test_zero_bench_alloc test_zero_bench_io test_zero_bench_step)
  zr_add_test(examples/bench/${test}.c LABELS asan)
  target_compile_definitions(${test} PRIVATE ZERO_BENCH="$<TARGET_FILE:zero-bench>")
  add_dependencies(${test} zero-bench)
endforeach()
foreach(test test_alloc_sim test_alloc_calls)
  zr_add_test(examples/bench/${test}.c LINK zero_bench_core LABELS asan)
endforeach()
