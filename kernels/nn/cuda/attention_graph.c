/* Attention as a graph of cuDNN: see attention_graph.h. */
#if __has_include(<cudnn_graph.h>)
#include "kernels/nn/cuda/attention_graph.h"

#include <string.h>

/* A proposal's notes, and how many proposals are looked at. */
#define MOST_NOTES 16
#define MOST_PROPOSALS 8

typedef struct tensor {
    cudnnBackendDescriptor_t descriptor; /* the first, so that its address is the tensor's */
    cudnnDataType_t dtype;
    int64_t dims[4], strides[4];
} tensor_t;

/* ---- descriptors ----------------------------------------------------------------------------- */

/* One that is not set has no values, or none are wanted. */
typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    const void *values;
} attribute_t;

#define OTHER(name, descriptor) {CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, descriptor}
#define DTYPE(name, dtype) {CUDNN_ATTR_##name, CUDNN_TYPE_DATA_TYPE, 1, dtype}
#define NUMBERS(name, n, numbers) {CUDNN_ATTR_##name, CUDNN_TYPE_INT64, n, numbers}
#define FLAG(name, flag) {CUDNN_ATTR_##name, CUDNN_TYPE_BOOLEAN, 1, flag}

static void note(zr_attention_graph_t *graph, cudnnStatus_t status, const char *call) {
    if (graph->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS)
        return;
    graph->status = status;
    graph->call = call;
}

static cudnnBackendDescriptor_t make(zr_attention_graph_t *graph,
                                     cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t descriptor = NULL;
    if (graph->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (graph->n_descriptors == ZR_ATTENTION_MAX_DESCRIPTORS)
        note(graph, CUDNN_STATUS_INTERNAL_ERROR, "a graph with too many descriptors");
    else
        note(graph, graph->dnn->cudnnBackendCreateDescriptor_p(type, &descriptor),
             "cudnnBackendCreateDescriptor");
    if (descriptor != NULL)
        graph->descriptors[graph->n_descriptors++] = descriptor;
    return descriptor;
}

static cudnnBackendDescriptor_t describe(zr_attention_graph_t *graph,
                                         cudnnBackendDescriptorType_t type, const char *finalizing,
                                         const attribute_t *attributes, size_t n) {
    cudnnBackendDescriptor_t descriptor = make(graph, type);
    for (const attribute_t *a = attributes; a < attributes + n; a++)
        if (a->values != NULL && a->n > 0 && graph->status == CUDNN_STATUS_SUCCESS)
            note(graph,
                 graph->dnn->cudnnBackendSetAttribute_p(descriptor, a->name, a->type, a->n,
                                                        a->values),
                 "cudnnBackendSetAttribute");
    if (graph->status == CUDNN_STATUS_SUCCESS)
        note(graph, graph->dnn->cudnnBackendFinalize_p(descriptor), finalizing);
    return descriptor;
}
#define DESCRIBE(graph, kind, ...)                                                                 \
    describe(graph, CUDNN_BACKEND_##kind##_DESCRIPTOR, "cudnnBackendFinalize of " #kind,           \
             (const attribute_t[]){__VA_ARGS__},                                                   \
             sizeof((const attribute_t[]){__VA_ARGS__}) / sizeof(attribute_t))
#define OPERATE(graph, kind, ...)                                                                  \
    ((graph)->operations[(graph)->n_operations++] = DESCRIBE(graph, OPERATION_##kind, __VA_ARGS__))

/* ---- tensors --------------------------------------------------------------------------------- */

/* uid 0: a virtual one, which exists between operations alone. */
static tensor_t add_tensor(zr_attention_graph_t *graph, int64_t uid, cudnnDataType_t dtype,
                           const int64_t dims[4], const int64_t strides[4]) {
    int64_t alignment = uid == ZR_ATTENTION_LOG_SUM ? 4 : 16;
    bool is_virtual = uid == 0, is_value = uid >= ZR_ATTENTION_SCALE;
    tensor_t tensor = {.dtype = dtype};
    memcpy(tensor.dims, dims, sizeof(tensor.dims));
    memcpy(tensor.strides, strides, sizeof(tensor.strides));
    uid = is_virtual ? ZR_ATTENTION_N_TENSORS + graph->n_virtual++ : uid;
    tensor.descriptor = DESCRIBE(
        graph, TENSOR, NUMBERS(TENSOR_UNIQUE_ID, 1, &uid), DTYPE(TENSOR_DATA_TYPE, &dtype),
        NUMBERS(TENSOR_DIMENSIONS, 4, dims), NUMBERS(TENSOR_STRIDES, 4, strides),
        NUMBERS(TENSOR_BYTE_ALIGNMENT, 1, &alignment), FLAG(TENSOR_IS_VIRTUAL, &is_virtual),
        FLAG(TENSOR_IS_BY_VALUE, &is_value));
    return tensor;
}

static tensor_t add_value(zr_attention_graph_t *graph, zr_attention_tensor_t uid) {
    static const int64_t one[4] = {1, 1, 1, 1};
    return add_tensor(graph, uid, CUDNN_DATA_FLOAT, one, one);
}

/* [batch, heads, rows, columns], contiguous. */
static tensor_t add_packed(zr_attention_graph_t *graph, int64_t uid, cudnnDataType_t dtype,
                           size_t rows, size_t columns) {
    const int64_t h = (int64_t)graph->key.heads, m = (int64_t)rows, n = (int64_t)columns;
    const int64_t dims[4] = {(int64_t)graph->key.batch, h, m, n};
    return add_tensor(graph, uid, dtype, dims, (const int64_t[4]){h * m * n, m * n, n, 1});
}

static tensor_t add_scores(zr_attention_graph_t *graph, cudnnDataType_t dtype) {
    return add_packed(graph, 0, dtype, graph->key.seq, graph->key.seq);
}
static tensor_t add_rows(zr_attention_graph_t *graph, int64_t uid) {
    return add_packed(graph, uid, CUDNN_DATA_FLOAT, graph->key.seq, 1);
}

/* Channels of some heads of a projection with `n_all` heads in a row; turned: as [d, seq]. */
static tensor_t add_heads(zr_attention_graph_t *graph, int64_t uid, size_t n_heads, size_t n_all,
                          bool is_turned) {
    const int64_t d = (int64_t)graph->key.head_size, seq = (int64_t)graph->key.seq;
    const int64_t row = (int64_t)n_all * d;
    int64_t dims[4] = {(int64_t)graph->key.batch, (int64_t)n_heads, seq, d};
    int64_t strides[4] = {seq * row, d, row, 1};
    if (is_turned) {
        dims[2] = d, dims[3] = seq;
        strides[2] = 1, strides[3] = row;
    }
    return add_tensor(graph, uid, CUDNN_DATA_BFLOAT16, dims, strides);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* y = mode(x, b), or where `t` says which; b and t: NULL where there are none. */
static void add_pointwise_to(zr_attention_graph_t *graph, cudnnPointwiseMode_t mode, int64_t axis,
                             const tensor_t *x, const tensor_t *b, const tensor_t *t,
                             const tensor_t *y) {
    cudnnDataType_t math = y->dtype == CUDNN_DATA_BOOLEAN ? y->dtype : CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = DESCRIBE(
        graph, POINTWISE, {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        DTYPE(POINTWISE_MATH_PREC, &math),
        NUMBERS(POINTWISE_AXIS, mode == CUDNN_POINTWISE_GEN_INDEX, &axis));
    OPERATE(graph, POINTWISE, OTHER(OPERATION_POINTWISE_PW_DESCRIPTOR, &how),
            OTHER(OPERATION_POINTWISE_XDESC, x), OTHER(OPERATION_POINTWISE_BDESC, b),
            OTHER(OPERATION_POINTWISE_TDESC, t), OTHER(OPERATION_POINTWISE_YDESC, y));
}

/* The same in fp32 to a new tensor as large as x. */
static tensor_t add_pointwise(zr_attention_graph_t *graph, cudnnPointwiseMode_t mode,
                              const tensor_t *x, const tensor_t *b) {
    tensor_t y = add_tensor(graph, 0, CUDNN_DATA_FLOAT, x->dims, x->strides);
    add_pointwise_to(graph, mode, 0, x, b, NULL, &y);
    return y;
}

static void add_product(zr_attention_graph_t *graph, const tensor_t *a, const tensor_t *b,
                        const tensor_t *c) {
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = DESCRIBE(graph, MATMUL, DTYPE(MATMUL_COMP_TYPE, &math));
    OPERATE(graph, MATMUL, OTHER(OPERATION_MATMUL_ADESC, a), OTHER(OPERATION_MATMUL_BDESC, b),
            OTHER(OPERATION_MATMUL_CDESC, c), OTHER(OPERATION_MATMUL_DESC, &how));
}

static void add_reduction(zr_attention_graph_t *graph, cudnnReduceTensorOp_t operator,
                          const tensor_t *x, const tensor_t *y) {
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = DESCRIBE(
        graph, REDUCTION,
        {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator},
        DTYPE(REDUCTION_COMP_TYPE, &math));
    OPERATE(graph, REDUCTION, OTHER(OPERATION_REDUCTION_XDESC, x),
            OTHER(OPERATION_REDUCTION_YDESC, y), OTHER(OPERATION_REDUCTION_DESC, &how));
}

/* x with its last two dimensions exchanged. */
static tensor_t add_turned(zr_attention_graph_t *graph, const tensor_t *x, cudnnDataType_t dtype) {
    const int64_t dims[4] = {x->dims[0], x->dims[1], x->dims[3], x->dims[2]};
    const int64_t strides[4] = {x->strides[0], x->strides[1], x->strides[3], x->strides[2]};
    tensor_t y = add_tensor(graph, 0, dtype, dims, strides);
    OPERATE(graph, RESHAPE, OTHER(OPERATION_RESHAPE_XDESC, x), OTHER(OPERATION_RESHAPE_YDESC, &y));
    return y;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A score's query (axis 2) or key (3). */
static tensor_t add_index(zr_attention_graph_t *graph, const tensor_t *x, int64_t axis,
                          cudnnDataType_t dtype) {
    tensor_t y = add_scores(graph, dtype);
    add_pointwise_to(graph, CUDNN_POINTWISE_GEN_INDEX, axis, x, NULL, NULL, &y);
    return y;
}

/* Scores where a `mode` b, `hidden` elsewhere. */
static tensor_t hide_unless(zr_attention_graph_t *graph, cudnnPointwiseMode_t mode,
                            const tensor_t *a, const tensor_t *b, const tensor_t *scores,
                            const tensor_t *hidden) {
    tensor_t sees = add_scores(graph, CUDNN_DATA_BOOLEAN), y = add_scores(graph, CUDNN_DATA_FLOAT);
    add_pointwise_to(graph, mode, 0, a, b, NULL, &sees);
    add_pointwise_to(graph, CUDNN_POINTWISE_BINARY_SELECT, 0, scores, hidden, &sees, &y);
    return y;
}

/* Keys that are not seen: those behind their query, and those before its window. */
static tensor_t hide(zr_attention_graph_t *graph, const tensor_t *scores) {
    tensor_t hidden = add_value(graph, ZR_ATTENTION_HIDDEN);
    tensor_t query = add_index(graph, scores, 2, CUDNN_DATA_INT32);
    tensor_t key = add_index(graph, scores, 3, CUDNN_DATA_INT32);
    tensor_t seen = hide_unless(graph, CUDNN_POINTWISE_CMP_GE, &query, &key, scores, &hidden);
    if (graph->key.window == 0 || graph->key.window >= graph->key.seq)
        return seen;
    tensor_t window = add_value(graph, ZR_ATTENTION_WINDOW);
    query = add_index(graph, &seen, 2, CUDNN_DATA_FLOAT);
    key = add_index(graph, &seen, 3, CUDNN_DATA_FLOAT);
    tensor_t end = add_pointwise(graph, CUDNN_POINTWISE_ADD, &key, &window);
    return hide_unless(graph, CUDNN_POINTWISE_CMP_GT, &end, &query, &seen, &hidden);
}

static tensor_t add_qkv(zr_attention_graph_t *graph, zr_attention_tensor_t uid, bool is_turned) {
    const zr_attention_key_t *key = &graph->key;
    bool is_query = uid == ZR_ATTENTION_Q || uid == ZR_ATTENTION_DQ;
    return add_heads(graph, uid, is_query ? key->heads : key->kv_heads,
                     key->heads + 2 * key->kv_heads, is_turned);
}

static tensor_t add_out(zr_attention_graph_t *graph, zr_attention_tensor_t uid) {
    return add_heads(graph, uid, graph->key.heads, graph->key.heads, false);
}

static void describe_forward(zr_attention_graph_t *graph) {
    tensor_t q = add_qkv(graph, ZR_ATTENTION_Q, false), k = add_qkv(graph, ZR_ATTENTION_K, true);
    tensor_t v = add_qkv(graph, ZR_ATTENTION_V, false), out = add_out(graph, ZR_ATTENTION_OUT);
    tensor_t scale = add_value(graph, ZR_ATTENTION_SCALE);
    tensor_t log_sum = add_rows(graph, ZR_ATTENTION_LOG_SUM);
    tensor_t scores = add_scores(graph, CUDNN_DATA_FLOAT), top = add_rows(graph, 0);
    tensor_t sum = add_rows(graph, 0), p = add_scores(graph, CUDNN_DATA_BFLOAT16);
    add_product(graph, &q, &k, &scores);
    scores = add_pointwise(graph, CUDNN_POINTWISE_MUL, &scores, &scale);
    scores = hide(graph, &scores);
    add_reduction(graph, CUDNN_REDUCE_TENSOR_MAX, &scores, &top);
    scores = add_pointwise(graph, CUDNN_POINTWISE_SUB, &scores, &top);
    scores = add_pointwise(graph, CUDNN_POINTWISE_EXP, &scores, NULL);
    add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, &scores, &sum);
    tensor_t log = add_pointwise(graph, CUDNN_POINTWISE_LOG, &sum, NULL);
    add_pointwise_to(graph, CUDNN_POINTWISE_ADD, 0, &top, &log, NULL, &log_sum);
    add_pointwise_to(graph, CUDNN_POINTWISE_DIV, 0, &scores, &sum, NULL, &p);
    add_product(graph, &p, &v, &out);
}

/* The gradient of k or v: a^T b, added up over the heads of queries that go with one of keys. */
static void add_gradient(zr_attention_graph_t *graph, const tensor_t *a, const tensor_t *b,
                         zr_attention_tensor_t uid) {
    const zr_attention_key_t *key = &graph->key;
    tensor_t turned = add_turned(graph, a, CUDNN_DATA_BFLOAT16);
    tensor_t gradient = add_qkv(graph, uid, false);
    if (key->heads == key->kv_heads) {
        add_product(graph, &turned, b, &gradient);
        return;
    }
    tensor_t by_query = add_packed(graph, 0, CUDNN_DATA_BFLOAT16, key->seq, key->head_size);
    add_product(graph, &turned, b, &by_query);
    add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, &by_query, &gradient);
}

static void describe_backward(zr_attention_graph_t *graph) {
    tensor_t q = add_qkv(graph, ZR_ATTENTION_Q, false), k = add_qkv(graph, ZR_ATTENTION_K, true);
    tensor_t v = add_qkv(graph, ZR_ATTENTION_V, true), out = add_out(graph, ZR_ATTENTION_OUT);
    tensor_t dout = add_out(graph, ZR_ATTENTION_DOUT), dq = add_qkv(graph, ZR_ATTENTION_DQ, false);
    tensor_t scale = add_value(graph, ZR_ATTENTION_SCALE), one = add_value(graph, ZR_ATTENTION_ONE);
    tensor_t log_sum = add_rows(graph, ZR_ATTENTION_LOG_SUM);
    tensor_t delta = add_rows(graph, ZR_ATTENTION_DELTA), sum = add_rows(graph, 0);
    tensor_t both = add_packed(graph, 0, CUDNN_DATA_FLOAT, graph->key.seq, graph->key.head_size);
    tensor_t p = add_scores(graph, CUDNN_DATA_FLOAT), ds = add_scores(graph, CUDNN_DATA_FLOAT);
    add_pointwise_to(graph, CUDNN_POINTWISE_MUL, 0, &dout, &out, NULL, &both);
    add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, &both, &sum);
    add_pointwise_to(graph, CUDNN_POINTWISE_MUL, 0, &sum, &one, NULL, &delta);
    add_product(graph, &q, &k, &p);
    p = add_pointwise(graph, CUDNN_POINTWISE_MUL, &p, &scale);
    p = add_pointwise(graph, CUDNN_POINTWISE_SUB, &p, &log_sum);
    p = hide(graph, &p);
    p = add_pointwise(graph, CUDNN_POINTWISE_EXP, &p, NULL);
    add_gradient(graph, &p, &dout, ZR_ATTENTION_DV);
    add_product(graph, &dout, &v, &ds);
    ds = add_pointwise(graph, CUDNN_POINTWISE_SUB, &ds, &delta);
    ds = add_pointwise(graph, CUDNN_POINTWISE_MUL, &ds, &p);
    ds = add_pointwise(graph, CUDNN_POINTWISE_MUL, &ds, &scale);
    add_gradient(graph, &ds, &q, ZR_ATTENTION_DK);
    tensor_t rows = add_turned(graph, &k, CUDNN_DATA_FLOAT);
    add_product(graph, &ds, &rows, &dq);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* A handle that there is, which says what device it is for. */
static int64_t has_handle(const zr_attention_graph_t *graph) {
    return graph->handle != NULL;
}

/* The heuristic's proposals; how many there are. */
static int64_t propose(zr_attention_graph_t *graph,
                       cudnnBackendDescriptor_t proposals[MOST_PROPOSALS]) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    cudnnBackendDescriptor_t all = DESCRIBE(
        graph, OPERATIONGRAPH,
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, has_handle(graph), &graph->handle},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
         (int64_t)graph->n_operations, graph->operations});
    cudnnBackendDescriptor_t heuristic = DESCRIBE(
        graph, ENGINEHEUR, OTHER(ENGINEHEUR_OPERATION_GRAPH, &all),
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        OTHER(ENGINEHEUR_DEVICEPROP, has_handle(graph) ? NULL : &graph->device));
    for (int i = 0; i < MOST_PROPOSALS; i++)
        proposals[i] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->status == CUDNN_STATUS_SUCCESS)
        note(graph,
             graph->dnn->cudnnBackendGetAttribute_p(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_PROPOSALS,
                                                    &n, proposals),
             "the heuristic's proposals");
    return graph->status != CUDNN_STATUS_SUCCESS ? 0 : n < MOST_PROPOSALS ? n : MOST_PROPOSALS;
}

static bool is_deterministic(zr_attention_graph_t *graph, cudnnBackendDescriptor_t proposal) {
    cudnnBackendDescriptor_t engine = make(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[MOST_NOTES];
    int64_t n = 0;
    if (graph->status != CUDNN_STATUS_SUCCESS ||
        graph->dnn->cudnnBackendGetAttribute_p(proposal, CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) !=
            CUDNN_STATUS_SUCCESS ||
        graph->dnn->cudnnBackendGetAttribute_p(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                               CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES, &n, notes) !=
            CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n && i < MOST_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* A plan of a proposal; false: cuDNN cannot make it, which is no failure, or there was one. */
static bool make_plan(zr_attention_graph_t *graph, cudnnBackendDescriptor_t proposal,
                      cudnnBackendDescriptor_t *plan_p, size_t *bytes_p) {
    int64_t n = 0, bytes = 0;
    cudnnBackendDescriptor_t plan = DESCRIBE(
        graph, EXECUTION_PLAN,
        {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, has_handle(graph), &graph->handle},
        OTHER(EXECUTION_PLAN_DEVICEPROP, has_handle(graph) ? NULL : &graph->device),
        OTHER(EXECUTION_PLAN_ENGINE_CONFIG, &proposal));
    if (zr_attention_is_refusal(graph->status)) {
        graph->status = CUDNN_STATUS_SUCCESS;
        return false;
    }
    if (graph->status == CUDNN_STATUS_SUCCESS)
        note(graph,
             graph->dnn->cudnnBackendGetAttribute_p(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &n, &bytes),
             "a plan's workspace");
    *plan_p = plan;
    *bytes_p = (size_t)bytes;
    return graph->status == CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t zr_attention_graph_plan(zr_attention_graph_t *graph, size_t most_bytes) {
    cudnnBackendDescriptor_t proposals[MOST_PROPOSALS] = {NULL};
    if (graph->key.is_backward)
        describe_backward(graph);
    else
        describe_forward(graph);
    int64_t n = propose(graph, proposals);
    for (int64_t i = 0; i < n; i++) {
        cudnnBackendDescriptor_t plan = NULL;
        size_t bytes = 0;
        if (!is_deterministic(graph, proposals[i]) ||
            !make_plan(graph, proposals[i], &plan, &bytes))
            continue;
        if (graph->workspace_bytes == 0 || bytes < graph->workspace_bytes)
            graph->workspace_bytes = bytes;
        if (bytes > most_bytes)
            continue;
        graph->plan = plan;
        graph->workspace_bytes = bytes;
        return CUDNN_STATUS_SUCCESS;
    }
    note(graph, CUDNN_STATUS_NOT_SUPPORTED, "no proposal of the heuristic can be used");
    return graph->status;
}

void zr_attention_graph_free(zr_attention_graph_t *graph) {
    while (graph->n_descriptors > 0)
        (void)graph->dnn->cudnnBackendDestroyDescriptor_p(
            graph->descriptors[--graph->n_descriptors]);
}

cudnnStatus_t zr_attention_graph_run(zr_attention_graph_t *graph,
                                     void *const data[ZR_ATTENTION_N_TENSORS], void *workspace) {
    int64_t uids[ZR_ATTENTION_N_TENSORS], n = 0;
    void *pointers[ZR_ATTENTION_N_TENSORS];
    for (int64_t uid = 0; uid < ZR_ATTENTION_N_TENSORS; uid++) {
        if (data[uid] == NULL)
            continue;
        uids[n] = uid;
        pointers[n++] = data[uid];
    }
    cudnnBackendDescriptor_t pack = DESCRIBE(
        graph, VARIANT_PACK, NUMBERS(VARIANT_PACK_UNIQUE_IDS, n, uids),
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace});
    if (graph->status == CUDNN_STATUS_SUCCESS)
        note(graph, graph->dnn->cudnnBackendExecute_p(graph->handle, graph->plan, pack),
             "cudnnBackendExecute");
    if (pack != NULL) {
        (void)graph->dnn->cudnnBackendDestroyDescriptor_p(pack);
        graph->n_descriptors--;
    }
    return graph->status;
}
#endif
