# zero-bench, run as a program; what it measures is not a matter of tests.
zr_add_test(examples/bench/test_zero_bench.c LABELS asan)
target_compile_definitions(test_zero_bench PRIVATE ZERO_BENCH="$<TARGET_FILE:zero-bench>")
add_dependencies(test_zero_bench zero-bench)
