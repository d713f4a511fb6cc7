/*
 * cuBLASLt of the emulation: products computed plainly, late on their stream, in the semantics
 * that NVIDIA's documentation gives: column-major, D = epilogue(alpha op(A) op(B) + beta C + bias),
 * with the auxiliary matrix before the GELU, in fp32.
 *
 * It is as strict as the documentation: an algorithm fits the product it was proposed for and no
 * other, the addresses have to be aligned as was said when it was proposed, and the workspace is
 * written.
 */
#include <cublasLt.h>
#include <math.h>
#include <string.h>

#include <set>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/nn/cuda/cublaslt.h"
#include "tests/emu/emu_internal.h"

struct cublasLtContext {
    int device;
};

/* Descriptions are more than callers may see of them. */
struct emu_product : cublasLtMatmulDescOpaque_t {
    int32_t turn_a = CUBLAS_OP_N, turn_b = CUBLAS_OP_N, bias_type = -1;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = NULL;
    void *aux = NULL;
    int64_t aux_ld = 0;
};

struct emu_layout : cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};

struct emu_preference : cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace_bytes = 0;
    uint32_t schemes = 7;
    uint32_t alignment[4] = {256, 256, 256, 256}; /* of A, B, C, D */
};

namespace {

cublasLtHandle_t own(cublasLtHandle_t handle) {
    return handle;
}
emu_product *own(cublasLtMatmulDesc_t product) {
    return static_cast<emu_product *>(product);
}
emu_layout *own(cublasLtMatrixLayout_t layout) {
    return static_cast<emu_layout *>(layout);
}
emu_preference *own(cublasLtMatmulPreference_t preference) {
    return static_cast<emu_preference *>(preference);
}

/* What an algorithm is for: lies in its opaque words. */
struct choice_t {
    uint64_t shape;
    uint16_t alignment[6]; /* of A, B, C, D, bias, aux */
    uint32_t workspace_bytes;
    uint32_t is_choice;
    int32_t id, n_splits;
};
static_assert(sizeof(choice_t) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has room for it");

/* A product with everything that it needs when it runs. */
struct job_t {
    emu_product product;
    emu_layout a_layout, b_layout, d_layout;
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    size_t n_splits; /* parts along k, whose sums are added at the end */
};

struct objects_t {
    std::set<cublasLtHandle_t> handles;
    std::set<cublasLtMatmulDesc_t> products;
    std::set<cublasLtMatrixLayout_t> layouts;
    std::set<cublasLtMatmulPreference_t> preferences;
};
objects_t &objects = *new objects_t; /* is looked at after the last destructor */

template <typename T> bool is_known(const std::set<T> &known, T object, const char *call) {
    if (known.count(object) > 0)
        return true;
    emu::misuse("%s: %p is none of its kind, or was destroyed", call, (void *)object);
    return false;
}

template <typename T>
cublasStatus_t make(std::set<T> &known, T *object_p, std::common_type_t<T> object) {
    known.insert(object);
    *object_p = object;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t destroy(std::set<T> &known, T object, const char *call) {
    cudaError_t wanted = emu::called_always(call);
    if (!is_known(known, object, call))
        return CUBLAS_STATUS_INVALID_VALUE;
    known.erase(object);
    delete own(object);
    return (cublasStatus_t)wanted;
}

/* ---- what may be multiplied --------------------------------------------------------------- */

size_t element_bytes(cudaDataType_t type) {
    return type == CUDA_R_32F ? 4 : 2;
}

bool has(const emu_product &product, unsigned part) {
    return (product.epilogue & part) == part;
}

bool fits(const emu_layout &layout, int32_t turn, uint64_t rows, uint64_t columns) {
    if (layout.ld < (int64_t)layout.rows)
        return false;
    return turn == CUBLAS_OP_T ? layout.rows == columns && layout.columns == rows
                               : layout.rows == rows && layout.columns == columns;
}

bool is_product(const emu_product &product, const emu_layout &a, const emu_layout &b,
                const emu_layout &c, const emu_layout &d) {
    uint64_t k = product.turn_a == CUBLAS_OP_T ? a.rows : a.columns;
    return d.rows > 0 && d.columns > 0 && k > 0 && fits(a, product.turn_a, d.rows, k) &&
           fits(b, product.turn_b, k, d.columns) && fits(c, CUBLAS_OP_N, d.rows, d.columns) &&
           fits(d, CUBLAS_OP_N, d.rows, d.columns);
}

bool has_dtypes(const emu_product &product, const emu_layout &a, const emu_layout &b,
                const emu_layout &c, const emu_layout &d) {
    if (a.type != b.type || c.type != d.type || (a.type == CUDA_R_32F && d.type != CUDA_R_32F))
        return false;
    return !has(product, CUBLASLT_EPILOGUE_BIAS) || product.bias_type == (int32_t)d.type;
}

bool has_aux(const emu_product &product, const emu_layout &d) {
    return !has(product, 128) || (product.aux_ld % 8 == 0 && product.aux_ld >= (int64_t)d.rows);
}

uint16_t alignment_of(const void *address) {
    uint16_t alignment = 256;
    while (alignment > 1 && (uintptr_t)address % alignment != 0)
        alignment /= 2;
    return alignment;
}

uint64_t mix(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

uint64_t shape_of(const emu_product &product, const emu_layout &a, const emu_layout &b,
                  const emu_layout &c, const emu_layout &d) {
    uint64_t hash = 1;
    for (uint64_t value :
         {(uint64_t)product.turn_a, (uint64_t)product.turn_b, (uint64_t)product.epilogue,
          (uint64_t)product.bias_type, (uint64_t)product.aux_ld})
        hash = mix(hash, value);
    for (const emu_layout *layout : {&a, &b, &c, &d})
        for (uint64_t value :
             {(uint64_t)layout->type, layout->rows, layout->columns, (uint64_t)layout->ld})
            hash = mix(hash, value);
    return hash;
}

/* Some products are split along k, and need memory for the parts. */
uint32_t workspace_of(const emu_layout &d, uint64_t k) {
    size_t needed = 2 * d.rows * d.columns * sizeof(float);
    return k >= 16 && needed <= (1u << 20) ? (uint32_t)needed : 0;
}

/* ---- multiplying ---------------------------------------------------------------------------- */

float element(const void *data, cudaDataType_t type, size_t i) {
    if (type == CUDA_R_32F)
        return static_cast<const float *>(data)[i];
    return zr_bf16_to_f32(static_cast<const zr_bf16_t *>(data)[i]);
}

void put(void *data, cudaDataType_t type, size_t i, float value) {
    if (type == CUDA_R_32F)
        static_cast<float *>(data)[i] = value;
    else
        static_cast<zr_bf16_t *>(data)[i] = zr_bf16_from_f32(value);
}

/* op(X), dense and column-major, in fp32. */
std::vector<float> widen(const void *data, const emu_layout &layout, int32_t turn) {
    std::vector<float> wide(layout.rows * layout.columns);
    for (size_t column = 0; column < layout.columns; column++)
        for (size_t row = 0; row < layout.rows; row++)
            wide[turn == CUBLAS_OP_T ? row * layout.columns + column : column * layout.rows + row] =
                element(data, layout.type, column * (size_t)layout.ld + row);
    return wide;
}

/* As far off as PTX allows tanh.approx.f32 to be: nothing says that cuBLASLt's GELU is more exact.
 */
double hardware_tanh(double x) {
    int exponent;
    double fraction = frexp(tanh(x), &exponent);
    return ldexp(rint(fraction * 0x1p11) * 0x1p-11, exponent);
}

double gelu(double x) {
    return 0.5 * x * (1.0 + hardware_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

float finish(const job_t &job, size_t row, size_t column, float y) {
    const emu_product &product = job.product;
    cudaDataType_t type = job.d_layout.type;
    size_t at = column * (size_t)product.aux_ld + row;
    y *= job.alpha;
    if (job.beta != 0)
        y += job.beta * element(job.c, type, column * (size_t)job.d_layout.ld + row);
    if (has(product, CUBLASLT_EPILOGUE_BIAS))
        y += element(product.bias, type, row);
    if (!has(product, CUBLASLT_EPILOGUE_GELU))
        return y;
    if (has(product, CUBLASLT_EPILOGUE_GELU_AUX))
        put(product.aux, type, at, y);
    return (float)gelu((double)y);
}

void multiply(const job_t &job) {
    memset(job.workspace, 0xff, job.workspace_bytes); /* it is nobody else's */
    std::vector<float> a = widen(job.a, job.a_layout, job.product.turn_a);
    std::vector<float> b = widen(job.b, job.b_layout, job.product.turn_b);
    size_t m = job.d_layout.rows, n = job.d_layout.columns, k = a.size() / m;
    std::vector<float> y(m), part(m);
    for (size_t column = 0; column < n; column++) {
        std::fill(y.begin(), y.end(), 0.0f);
        for (size_t split = 0; split < job.n_splits; split++) {
            std::fill(part.begin(), part.end(), 0.0f);
            for (size_t i = k * split / job.n_splits; i < k * (split + 1) / job.n_splits; i++)
                for (size_t row = 0; row < m; row++)
                    part[row] += a[i * m + row] * b[column * k + i];
            for (size_t row = 0; row < m; row++)
                y[row] += part[row];
        }
        for (size_t row = 0; row < m; row++) {
            float value = finish(job, row, column, y[row]);
            put(job.d, job.d_layout.type, column * (size_t)job.d_layout.ld + row, value);
        }
    }
}

bool may_use(int device, const void *data, const emu_layout &layout) {
    size_t elems = (layout.columns - 1) * (size_t)layout.ld + layout.rows;
    return emu::may_access(device, data, elems * element_bytes(layout.type), false);
}

bool may_run(int device, const job_t &job) {
    const emu_product &product = job.product;
    uint64_t n_bias = job.d_layout.rows;
    emu_layout bias = {{}, job.d_layout.type, n_bias, 1, (int64_t)n_bias};
    emu_layout aux = job.d_layout;
    aux.ld = product.aux_ld;
    return may_use(device, job.a, job.a_layout) && may_use(device, job.b, job.b_layout) &&
           may_use(device, job.d, job.d_layout) &&
           (job.beta == 0 || may_use(device, job.c, job.d_layout)) &&
           (!has(product, CUBLASLT_EPILOGUE_BIAS) || may_use(device, product.bias, bias)) &&
           (!has(product, 128) || may_use(device, product.aux, aux)) &&
           (job.workspace_bytes == 0 ||
            emu::may_access(device, job.workspace, job.workspace_bytes, false));
}

} // namespace

namespace emu {

size_t n_live_blas() {
    return objects.handles.size() + objects.products.size() + objects.layouts.size() +
           objects.preferences.size();
}

} // namespace emu

#define ENTER                                                                                      \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    if (cudaError_t wanted = emu::called_always(__func__))                                         \
    return (cublasStatus_t)wanted
#define ENTER_TO_GIVE_BACK std::lock_guard<std::mutex> lock(emu::mutex)

/* ---- names ---------------------------------------------------------------------------------- */

#define STATUSES(STATUS)                                                                           \
    STATUS(CUBLAS_STATUS_SUCCESS, "success")                                                       \
    STATUS(CUBLAS_STATUS_NOT_INITIALIZED, "the library was not initialized")                       \
    STATUS(CUBLAS_STATUS_ALLOC_FAILED, "an internal allocation failed")                            \
    STATUS(CUBLAS_STATUS_INVALID_VALUE, "an unsupported value or parameter was passed")            \
    STATUS(CUBLAS_STATUS_EXECUTION_FAILED, "the program failed to execute")                        \
    STATUS(CUBLAS_STATUS_INTERNAL_ERROR, "an internal operation failed")                           \
    STATUS(CUBLAS_STATUS_NOT_SUPPORTED, "the operation is not supported")

const char *cublasLtGetStatusName(cublasStatus_t status) {
#define NAME(name, text)                                                                           \
    if (status == name)                                                                            \
        return #name;
    STATUSES(NAME)
    return "unknown";
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
#define TEXT(name, text)                                                                           \
    if (status == name)                                                                            \
        return text;
    STATUSES(TEXT)
    return "unknown";
}

/* ---- objects -------------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    ENTER;
    return make(objects.handles, handle, new cublasLtContext{emu::current_device()});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    ENTER_TO_GIVE_BACK;
    return destroy(objects.handles, handle, __func__);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    ENTER;
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    return make(objects.products, product, new emu_product);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
    ENTER_TO_GIVE_BACK;
    return destroy(objects.products, product, __func__);
}

/* The sizes are those of the members, as they are those of cuBLASLt's. */
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size_bytes) {
    ENTER;
    if (!is_known(objects.products, product, __func__))
        return CUBLAS_STATUS_INVALID_VALUE;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        void *member;
        size_t size_bytes;
    } members[] = {
#define MEMBER(name, member) {name, &own(product)->member, sizeof(own(product)->member)}
        MEMBER(CUBLASLT_MATMUL_DESC_TRANSA, turn_a),
        MEMBER(CUBLASLT_MATMUL_DESC_TRANSB, turn_b),
        MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue),
        MEMBER(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias),
        MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux),
        MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld),
        MEMBER(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type),
#undef MEMBER
    };
    for (auto &member : members) {
        if (member.name != name || member.size_bytes != size_bytes)
            continue;
        memcpy(member.member, value, size_bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    ENTER;
    return make(objects.layouts, layout, new emu_layout{{}, type, rows, columns, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    ENTER_TO_GIVE_BACK;
    return destroy(objects.layouts, layout, __func__);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    ENTER;
    return make(objects.preferences, preference, new emu_preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    ENTER_TO_GIVE_BACK;
    return destroy(objects.preferences, preference, __func__);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t size_bytes) {
    ENTER;
    if (!is_known(objects.preferences, preference, __func__))
        return CUBLAS_STATUS_INVALID_VALUE;
    emu_preference *wanted = own(preference);
    void *member = NULL;
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size_bytes == sizeof(uint64_t))
        member = &wanted->workspace_bytes;
    else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && size_bytes == sizeof(uint32_t))
        member = &wanted->schemes;
    else if (name >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             name <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES && size_bytes == sizeof(uint32_t))
        member = &wanted->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(member, value, size_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- choosing and multiplying --------------------------------------------------------------- */

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                               cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                               cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                               cublasLtMatmulPreference_t wanted, int n_wanted,
                               cublasLtMatmulHeuristicResult_t results[], int *n_results) {
    ENTER;
    const emu_product *product = own(description);
    const emu_layout *a = own(a_layout), *b = own(b_layout), *c = own(c_layout);
    const emu_layout *d = own(d_layout);
    const emu_preference *preference = own(wanted);
    if (!is_known(objects.handles, handle, __func__) ||
        !is_known(objects.products, description, __func__) || n_wanted < 1 ||
        !is_product(*product, *a, *b, *c, *d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((preference->schemes &
         (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
        emu::misuse("a product may be split along k in a way whose sums depend on the run, or are "
                    "rounded");
    bool is_fused = product->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    if (is_fused && !emu::options.has_epilogues) /* either has been seen */
        return emu::draw(2) == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_INVALID_VALUE;
    if (!has_dtypes(*product, *a, *b, *c, *d) || !has_aux(*product, *d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    uint64_t k = product->turn_a == CUBLAS_OP_T ? a->rows : a->columns;
    choice_t choice = {};
    choice.shape = shape_of(*product, *a, *b, *c, *d);
    for (int i = 0; i < 4; i++)
        choice.alignment[i] = (uint16_t)preference->alignment[i];
    choice.alignment[4] = alignment_of(product->bias);
    choice.alignment[5] = alignment_of(product->aux);
    choice.is_choice = 1;
    /* The first two show whether the caller looks: one has failed, one needs too much. */
    uint32_t usual = workspace_of(*d, k), too_much = (uint32_t)preference->workspace_bytes + 1;
    const struct {
        int32_t id, n_splits;
        uint32_t workspace_bytes;
    } algorithms[] = {{17, 1, 0},
                      {18, 1, too_much},
                      {20, 1, usual},
                      {21, 2, usual},
                      {EMU_REFUSED_ALGORITHM, 1, usual},
                      {24, 5, EMU_LARGE_WORKSPACE_BYTES},
                      {23, 3, usual}};
    *n_results = 0;
    for (auto &algorithm : algorithms) {
        bool is_large = algorithm.workspace_bytes > preference->workspace_bytes;
        if (*n_results == n_wanted || (is_large && algorithm.id != 18))
            continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*n_results)++];
        memset(result, 0xff, sizeof(*result));
        result->state = algorithm.id == 17 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        result->workspaceSize = choice.workspace_bytes = algorithm.workspace_bytes;
        choice.id = algorithm.id;
        choice.n_splits = algorithm.n_splits;
        if (algorithm.id != 17)
            memcpy(&result->algo, &choice, sizeof(choice));
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Of those that are not used here: 0. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void *value, size_t size_bytes,
                                                    size_t *written_bytes) {
    ENTER;
    choice_t choice;
    memcpy(&choice, algorithm, sizeof(choice));
    size_t needed = name >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ? 2 : 4;
    if (choice.is_choice != 1 || value == NULL || size_bytes != needed)
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(value, 0, size_bytes);
    if (name == CUBLASLT_ALGO_CONFIG_ID)
        memcpy(value, &choice.id, size_bytes);
    if (name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        memcpy(value, &choice.n_splits, size_bytes);
    *written_bytes = size_bytes;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return 130000;
}

static bool is_aligned(const void *address, uint16_t alignment) {
    return alignment_of(address) >= alignment;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    ENTER;
    const emu_product *product = own(description);
    if (emu::called(__func__) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    choice_t choice;
    memcpy(&choice, algorithm, sizeof(choice));
    if (!is_known(objects.handles, handle, __func__) ||
        !is_known(objects.products, description, __func__) || choice.is_choice != 1 ||
        choice.shape !=
            shape_of(*product, *own(a_layout), *own(b_layout), *own(c_layout), *own(d_layout)) ||
        workspace_bytes < choice.workspace_bytes || !is_aligned(a, choice.alignment[0]) ||
        !is_aligned(b, choice.alignment[1]) || !is_aligned(c, choice.alignment[2]) ||
        !is_aligned(d, choice.alignment[3]) ||
        (has(*product, CUBLASLT_EPILOGUE_BIAS) &&
         !is_aligned(product->bias, choice.alignment[4])) ||
        (has(*product, 128) && !is_aligned(product->aux, choice.alignment[5])) ||
        (choice.workspace_bytes > 0 && !is_aligned(workspace, 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (choice.id == EMU_REFUSED_ALGORITHM)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    job_t job = {*product,
                 *own(a_layout),
                 *own(b_layout),
                 *own(d_layout),
                 *static_cast<const float *>(alpha),
                 *static_cast<const float *>(beta),
                 a,
                 b,
                 c,
                 d,
                 workspace,
                 choice.workspace_bytes,
                 (size_t)choice.n_splits};
    bool is_queued = emu::queue_work(stream, "cublasLtMatmul", [=](int device) {
        return may_run(device, job) && emu::run_guarded(device, [&] { multiply(job); });
    });
    return is_queued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- in place of kernels/nn/cuda/cublaslt_find.c -------------------------------------------- */

zr_status_t zr_cublaslt_find(const zr_log_t *log, zr_cublaslt_t *lt_p) {
    if (!emu::options.has_cublaslt)
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "matmul: there is no cuBLASLt");
    *lt_p = {};
#define FIND(name) lt_p->name##_p = name;
    ZR_CUBLASLT_CALLS(FIND)
#undef FIND
    return ZR_OK;
}

void zr_cublaslt_forget(zr_cublaslt_t *lt) {
    *lt = {};
}
