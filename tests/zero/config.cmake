# Configuration: its checks, the learning rate, reading DeepSpeed's JSON, the document.
zr_add_test(zero/test_config.c LABELS asan)
zr_add_test(zero/test_config_lr.c NO_SANITIZERS)
zr_add_test(zero/test_config_keys.c LABELS asan)
zr_add_test(zero/test_config_files.c LABELS asan)
zr_add_test(zero/test_config_whole.c LABELS asan)
zr_add_test(zero/test_config_write.c LABELS asan)
zr_add_test(zero/test_config_list.c LABELS asan)
zr_add_test(zero/test_config_doc.c LINK zero_capacity_core zero_checkpoint_core
            zero_bench_core NO_SANITIZERS)
target_compile_definitions(test_config_doc PRIVATE ZR_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
