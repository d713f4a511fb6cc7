/*
 * cuDNN as it is installed has plans for attention as it is described to it, for an H200: a
 * description of that GPU is enough, and a driver that does nothing (fake_driver.c). They need the
 * workspace that is planned, to the byte. To run them needs a GPU.
 */
#include <dlfcn.h>

#include "kernels/device_backend.h"
#include "kernels/nn/cuda/attention_graph.h"
#include "tests/common/test.h"

/* Names as in a description that cuDNN itself writes; values that plans do not depend on are
 * plausible. */
static const char h200[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"multiProcessorCount\":132,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":62914560,\"regsPerBlock\":65536,"
    "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"warpSize\":32,\"totalGlobalMem\":150000000000,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"cudaDeviceId\":0,"
    "\"pciDeviceId\":9013,\"driverVer\":13000,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"finalizeMode\":1}";

static zr_cudnn_t dnn;
static cudnnBackendDescriptor_t device;

static bool describe_device(void) {
    return dnn.cudnnBackendCreateDescriptor_p(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device) ==
               CUDNN_STATUS_SUCCESS &&
           dnn.cudnnBackendSetAttribute_p(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                          CUDNN_TYPE_CHAR, sizeof(h200), h200) ==
               CUDNN_STATUS_SUCCESS &&
           dnn.cudnnBackendFinalize_p(device) == CUDNN_STATUS_SUCCESS;
}

static size_t planned_bytes(const zr_attention_key_t *key) {
    zr_device_t h200_device = {.info = {.cuda_major = 9}};
    zr_nn_qkv_shape_t shape = {.batch = key->batch,
                               .seq = key->seq,
                               .heads = key->heads,
                               .kv_heads = key->kv_heads,
                               .head_size = key->head_size};
    zr_nn_attention_t forward = {
        .shape = shape, .activation_dtype = ZR_DTYPE_BF16, .engine = ZR_NN_ENGINE_CUDNN};
    zr_nn_attention_backward_t backward = {
        .shape = shape, .activation_dtype = ZR_DTYPE_BF16, .engine = ZR_NN_ENGINE_CUDNN};
    return key->is_backward
               ? zr_cuda_nn_workspace_bytes(&h200_device, ZR_NN_ATTENTION_BACKWARD, &backward) -
                     zr_cuda_attention_delta_bytes(&shape)
               : zr_cuda_nn_workspace_bytes(&h200_device, ZR_NN_ATTENTION, &forward);
}

static cudnnStatus_t plan(zr_attention_key_t key, size_t most_bytes, size_t *bytes_p) {
    zr_attention_graph_t *graph = calloc(1, sizeof(*graph));
    assert_non_null(graph);
    graph->dnn = &dnn;
    graph->device = device;
    graph->key = key;
    cudnnStatus_t status = zr_attention_graph_plan(graph, most_bytes);
    if (status != CUDNN_STATUS_SUCCESS)
        printf("%s: %s\n", graph->call, dnn.cudnnGetErrorString_p(status));
    *bytes_p = graph->workspace_bytes;
    zr_attention_graph_free(graph);
    free(graph);
    return status;
}

/* Both passes; groups, a window, and a length that fits nothing. */
TEST(test_plans) {
    static const zr_attention_key_t keys[] = {{12, 1024, 25, 25, 64, 0, 0},
                                              {2, 100, 4, 2, 64, 30, 1}};
    for (size_t i = 0; i < N_OF(keys); i++) {
        size_t planned = planned_bytes(&keys[i]), bytes = 0;
        assert_int_equal(plan(keys[i], planned, &bytes), CUDNN_STATUS_SUCCESS);
        assert_int_equal(bytes, planned);
    }
}

/* What cuDNN has no kernels for is a refusal. */
TEST(test_refusal) {
    size_t bytes = 0;
    assert_in_range(plan((zr_attention_key_t){1, 64, 2, 2, 12, 0, 0}, SIZE_MAX, &bytes), 2000,
                    3999);
}

int main(void) {
    zr_log_t log = zr_device_options_default().log;
    if (dlopen(ZR_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL) == NULL ||
        zr_cudnn_find(&log, &dnn) != ZR_OK) {
        printf("skipped: no cuDNN here\n");
        return 77;
    }
    if (!describe_device()) {
        printf("skipped: cuDNN %zu takes other descriptions of GPUs\n", dnn.cudnnGetVersion_p());
        return 77;
    }
    int status = run_all_tests(NULL, NULL);
    (void)dnn.cudnnBackendDestroyDescriptor_p(device);
    zr_cudnn_forget(&dnn);
    return status;
}
