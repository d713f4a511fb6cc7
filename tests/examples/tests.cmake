zr_add_test(examples/test_args.c LINK examples_common)
zr_add_test(examples/test_data.c LINK zero_train_core)
