set(NN_TEST kernels/nn/nn_test.c ref/ref_nn.c)
zr_add_test(kernels/nn/test_nn_math.c ref/ref_nn.c NO_SANITIZERS)
zr_add_test(kernels/nn/test_nn_arguments.c)
zr_add_test(kernels/nn/test_nn_matmul.c ${NN_TEST})
zr_add_test(kernels/nn/test_nn_rows.c ${NN_TEST})
zr_add_test(kernels/nn/test_nn_attention.c ${NN_TEST})
zr_add_test(kernels/nn/test_nn_lm_head.c ${NN_TEST})

# These take a device's name. On a GPU; without one they are skipped and say why.
if(ZR_WITH_CUDA)
  foreach(test test_nn_matmul test_nn_rows test_nn_attention test_nn_lm_head)
    zr_add_gpu_test(${test}_cuda ${test} cuda)
  endforeach()
endif()
