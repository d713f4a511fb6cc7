/*
 * Matrix products on CUDA, by cuBLASLt: bf16 is added up in fp32, fp32 is multiplied as fp32 (not
 * as TF32). Bias and GELU are part of the product where cuBLASLt has that for the shape
 * (matmul_plan.c asks it), otherwise kernels behind it.
 *
 * cuBLASLt's GELU is the form with tanh, as ours; how exact it is, it does not say: for bf16 alone.
 */
#include "kernels/nn/cuda/matmul_cuda.h"

#include "kernels/nn/cuda/matmul_plan.h"
static zr_status_t check_dtypes(const zr_stream_t *stream, const zr_nn_matmul_t *args) {
    bool same = args->a_dtype == args->b_dtype;
    if (same && (args->a_dtype == ZR_DTYPE_BF16 || args->c_dtype == ZR_DTYPE_F32))
        return ZR_OK;
    return zr_fail(
        &stream->device->log, ZR_ERR_UNSUPPORTED,
        "matmul: device \"cuda\" has no product %s x %s -> %s; both operands must be fp32, or bf16",
        zr_dtype_name(args->a_dtype), zr_dtype_name(args->b_dtype), zr_dtype_name(args->c_dtype));
}

/* Where y goes before what the product does not do itself. */
static void *product_target(const zr_nn_matmul_t *args, const zr_matmul_plan_t *plan) {
    bool is_kept = args->epilogue == ZR_NN_EPILOGUE_GELU && args->pre_gelu != NULL;
    return is_kept && !plan->applies_epilogue ? args->pre_gelu : args->c;
}

static zr_status_t multiply(zr_stream_t *stream, zr_cuda_blas_t *blas, const zr_nn_matmul_t *args,
                            const zr_matmul_plan_t *plan, void *workspace) {
    const float one = 1.0f, zero = 0.0f;
    void *target = product_target(args, plan);
    const void *addend = args->accumulate ? target : args->addend;
    cublasStatus_t status = zr_matmul_set_pointers(&blas->lt, plan, args->bias, args->pre_gelu);
    if (status != CUBLAS_STATUS_SUCCESS)
        return zr_matmul_fail(stream->device, blas, args, "cublasLtMatmulDescSetAttribute", status);
    status = blas->lt.cublasLtMatmul_p(
        blas->handle, plan->product, &one, args->b, plan->b, args->a, plan->a,
        addend != NULL ? &one : &zero, addend != NULL ? addend : target, plan->c, target, plan->c,
        &plan->algorithm, workspace, zr_cuda_matmul_workspace_bytes(stream->device),
        zr_cuda_queue(stream));
    if (status != CUBLAS_STATUS_SUCCESS)
        return zr_matmul_fail(stream->device, blas, args, "cublasLtMatmul", status);
    return zr_cuda_launched(stream, "matmul");
}

/* What the product has not done to y, which is in `target`. */
static zr_status_t finish(zr_stream_t *stream, const zr_nn_matmul_t *args, void *target,
                          bool bias_is_added, bool epilogue_is_applied) {
    if (args->bias != NULL && !bias_is_added)
        ZR_TRY(zr_cuda_add_bias(stream, args, target));
    if (epilogue_is_applied || args->epilogue == ZR_NN_EPILOGUE_NONE)
        return ZR_OK;
    const bool is_forward = args->epilogue == ZR_NN_EPILOGUE_GELU;
    const zr_nn_gelu_t gelu = {.out = args->c,
                               .dy = is_forward ? NULL : target,
                               .x = is_forward ? target : args->pre_gelu,
                               .activation_dtype = args->c_dtype,
                               .n_elems = args->m * args->n};
    return zr_cuda_nn_gelu(stream, &gelu, NULL);
}

/* The product is zero: y is bias and addend. Rows of c are dense. */
static zr_status_t multiply_nothing(zr_stream_t *stream, const zr_nn_matmul_t *args) {
    size_t n_elems = args->m * args->n;
    bool is_kept = args->epilogue == ZR_NN_EPILOGUE_GELU && args->pre_gelu != NULL;
    void *target = is_kept ? args->pre_gelu : args->c;
    if (args->accumulate)
        return ZR_OK;
    if (args->addend == NULL)
        ZR_TRY(zr_cuda_fill(stream, target, args->c_dtype, n_elems, 0.0f));
    else if (args->addend != target)
        ZR_TRY(zr_cuda_cast(stream, target, args->c_dtype, args->addend, args->c_dtype, n_elems));
    return finish(stream, args, target, false, false);
}

zr_status_t zr_cuda_nn_matmul(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_matmul_t *args = arguments;
    zr_cuda_blas_t *blas = NULL;
    const zr_matmul_plan_t *plan = NULL;
    ZR_TRY(check_dtypes(stream, args));
    ZR_TRY(zr_cuda_enter(stream->device));
    if (args->k == 0)
        return multiply_nothing(stream, args);
    ZR_TRY(zr_cuda_blas(stream->device, &blas));
    ZR_TRY(zr_matmul_plan(stream->device, blas, args, &plan));
    zr_matmul_choices_count(stream->device, blas, plan);
    ZR_TRY(multiply(stream, blas, args, plan, workspace));
    return finish(stream, args, product_target(args, plan), plan->adds_bias,
                  plan->applies_epilogue);
}
