/* The kernel of test_native.c for a GPU, compiled for the emulation. */
#include "tests/kernels/cuda/native_kernel.cu"
