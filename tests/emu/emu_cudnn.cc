/*
 * cuDNN of the emulation: graphs of operations, each done in double precision in the order in
 * which the graph has them, late on their stream. It knows nothing of attention, so that what a
 * graph says is what it does: products, pointwise operations, reductions, as cuDNN's documentation
 * has them. Tensors that are kept in bf16 or fp32 are rounded to that.
 *
 * It is strict: attributes have their types and numbers, what is finalized does not change,
 * descriptions that others are made of are finalized, each operation's inputs are there before it,
 * and all tensors of a graph have addresses that are aligned as was said. Of its proposals the
 * first is not deterministic, the second cannot be made, the third needs too much memory.
 */
#include "tests/emu/emu_internal.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#include <math.h>
#include <string.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/nn/cuda/cudnn.h"

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

namespace {

typedef std::vector<unsigned char> bytes_t;

struct value_t {
    cudnnBackendAttributeType_t type;
    int64_t n;
    bytes_t bytes;
};

/* Any of cuDNN's descriptions. Those of engines and configurations are filled by the heuristic. */
struct descriptor_t {
    cudnnBackendDescriptorType_t type;
    bool is_finalized = false;
    std::map<cudnnBackendAttributeName_t, value_t> values;
    int proposal = -1;
    descriptor_t *graph = NULL; /* of a proposal */
};

std::set<cudnnHandle_t> &handles = *new std::set<cudnnHandle_t>; /* looked at after destructors */
std::set<descriptor_t *> &descriptors = *new std::set<descriptor_t *>;

/* Which attributes a description has, of which type, how many values, and whether it needs them. */
const struct {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n; /* 0: any number */
    bool is_needed;
} attributes[] = {
#define ROW(of, name, type, n, is_needed)                                                          \
    {CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, n, is_needed}
    ROW(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, 1, true),
    ROW(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, 1, true),
    ROW(POINTWISE, POINTWISE_AXIS, INT64, 1, false),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, BACKEND_DESCRIPTOR, 1, false),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, BACKEND_DESCRIPTOR, 1, false),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, 1, true),
    ROW(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_MATMUL, OPERATION_MATMUL_DESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, true),
    ROW(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE, 1, true),
    ROW(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, BACKEND_DESCRIPTOR, 1, true),
    ROW(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, 1, true),
    ROW(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, 1, true),
    ROW(TENSOR, TENSOR_DIMENSIONS, INT64, 4, true),
    ROW(TENSOR, TENSOR_STRIDES, INT64, 4, true),
    ROW(TENSOR, TENSOR_UNIQUE_ID, INT64, 1, true),
    ROW(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, 1, false),
    ROW(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, 1, false),
    ROW(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1, true),
    ROW(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, 0, true),
    ROW(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, 1, true),
    ROW(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, 1, true),
    ROW(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, 1, true),
    ROW(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, 1, true),
    ROW(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, 0, true),
    ROW(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, 0, true),
    ROW(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, 1, true),
#undef ROW
};

size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
        return sizeof(int);
    default:
        return 8;
    }
}

template <typename T>
std::vector<T> all_of(const descriptor_t &descriptor, cudnnBackendAttributeName_t name) {
    auto found = descriptor.values.find(name);
    std::vector<T> values(found == descriptor.values.end() ? 0 : (size_t)found->second.n);
    if (!values.empty())
        memcpy(&values[0], &found->second.bytes[0], values.size() * sizeof(T));
    return values;
}

template <typename T>
T one_of(const descriptor_t &descriptor, cudnnBackendAttributeName_t name, T otherwise) {
    std::vector<T> values = all_of<T>(descriptor, name);
    return values.empty() ? otherwise : values[0];
}

descriptor_t *descriptor_at(const descriptor_t &of, cudnnBackendAttributeName_t name) {
    return one_of<descriptor_t *>(of, name, NULL);
}

/* ---- graphs, as they are run ---------------------------------------------------------------- */

typedef std::vector<double> numbers_t;

struct tensor_t {
    int64_t uid, alignment;
    size_t dims[4], strides[4], n;
    cudnnDataType_t dtype;
    bool is_virtual, is_value;
};

struct operation_t {
    cudnnBackendDescriptorType_t type;
    int mode = 0; /* of a pointwise operation, a reduction */
    int64_t axis = 0;
    std::vector<tensor_t> inputs;
    tensor_t output;
};

typedef std::vector<operation_t> graph_t;

tensor_t tensor_of(const descriptor_t &descriptor) {
    tensor_t tensor = {};
    tensor.n = 1;
    for (size_t i = 0; i < 4; i++) {
        tensor.dims[i] = (size_t)all_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS)[i];
        tensor.strides[i] = (size_t)all_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_STRIDES)[i];
        tensor.n *= tensor.dims[i];
    }
    tensor.uid = one_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    tensor.alignment = one_of<int64_t>(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
    tensor.dtype = one_of(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
    tensor.is_virtual = one_of<char>(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
    tensor.is_value = one_of<char>(descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0;
    return tensor;
}

operation_t operation_of(const descriptor_t &d) {
    operation_t operation;
    std::vector<cudnnBackendAttributeName_t> inputs;
    cudnnBackendAttributeName_t output;
    operation.type = d.type;
    if (d.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        const descriptor_t &how = *descriptor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        operation.mode = one_of(how, CUDNN_ATTR_POINTWISE_MODE, 0);
        operation.axis = one_of<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
        inputs = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                  CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
        output = CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
    } else if (d.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        inputs = {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC};
        output = CUDNN_ATTR_OPERATION_MATMUL_CDESC;
    } else if (d.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        operation.mode = one_of(*descriptor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                                CUDNN_ATTR_REDUCTION_OPERATOR, 0);
        inputs = {CUDNN_ATTR_OPERATION_REDUCTION_XDESC};
        output = CUDNN_ATTR_OPERATION_REDUCTION_YDESC;
    } else {
        inputs = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC};
        output = CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
    }
    for (cudnnBackendAttributeName_t name : inputs)
        if (const descriptor_t *input = descriptor_at(d, name))
            operation.inputs.push_back(tensor_of(*input));
    operation.output = tensor_of(*descriptor_at(d, output));
    return operation;
}

graph_t graph_of(const descriptor_t &descriptor) {
    graph_t graph;
    for (descriptor_t *operation :
         all_of<descriptor_t *>(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS))
        graph.push_back(operation_of(*operation));
    return graph;
}

/* Every dimension of y divides x's. */
bool divides(const tensor_t &y, const tensor_t &x) {
    for (int i = 0; i < 4; i++)
        if (y.dims[i] == 0 || x.dims[i] % y.dims[i] != 0)
            return false;
    return true;
}

bool is_possible(const operation_t &operation) {
    const tensor_t &x = operation.inputs[0], &y = operation.output;
    switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
        const tensor_t &b = operation.inputs[1];
        return x.dims[3] == b.dims[2] && y.dims[2] == x.dims[2] && y.dims[3] == b.dims[3] &&
               x.dims[0] == y.dims[0] && b.dims[0] == y.dims[0] && x.dims[1] == y.dims[1] &&
               y.dims[1] % b.dims[1] == 0;
    }
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return x.n == y.n && y.is_virtual;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return divides(y, x);
    default:
        for (const tensor_t &input : operation.inputs)
            if (!divides(input, y))
                return false;
        return (operation.mode != CUDNN_POINTWISE_GEN_INDEX ||
                (operation.axis >= 0 && operation.axis < 4)) &&
               (operation.mode != CUDNN_POINTWISE_BINARY_SELECT ||
                (operation.inputs.size() == 3 &&
                 operation.inputs[2].dtype == CUDNN_DATA_BOOLEAN));
    }
}

/* Inputs are there, nothing is written twice. */
bool is_in_order(const graph_t &graph) {
    std::set<int64_t> made;
    for (const operation_t &operation : graph) {
        for (const tensor_t &input : operation.inputs)
            if (input.is_virtual && made.count(input.uid) == 0)
                return false;
        if (!made.insert(operation.output.uid).second || operation.output.is_value)
            return false;
    }
    return true;
}

/* Fused kernels are for bf16 alone, with at most 128 channels and multiples of 8. */
bool is_supported(const graph_t &graph) {
    for (const operation_t &operation : graph)
        for (const tensor_t &input : operation.inputs)
            if (!input.is_virtual && !input.is_value && input.dtype == CUDNN_DATA_BFLOAT16 &&
                input.strides[3] == 1 && (input.dims[3] > 128 || input.dims[3] % 8 != 0))
                return false;
    return is_in_order(graph);
}

/* What cuDNN 9.19's plans need on an H200: gradients of scores in bf16, tiles of 64 queries and 128
 * keys filled, and what is reduced over heads. */
size_t workspace_of(const graph_t &graph) {
    const size_t *dims = NULL; /* of the scores: the first product */
    size_t bytes = 0;
    bool is_backward = false;
    for (const operation_t &operation : graph) {
        const tensor_t &x = operation.inputs[0];
        is_backward |= operation.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
        if (dims == NULL && operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            dims = operation.output.dims;
        if (operation.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
            x.dtype == CUDNN_DATA_BFLOAT16)
            bytes += 2 * x.n;
    }
    if (is_backward && dims != NULL)
        bytes += 2 * dims[0] * dims[1] * ((dims[2] + 63) / 64 * 64) * ((dims[3] + 127) / 128 * 128);
    return bytes + 256;
}

/* ---- running -------------------------------------------------------------------------------- */

struct job_t {
    graph_t graph;
    std::map<int64_t, void *> data;
    std::map<int64_t, double> values;
    void *workspace;
    size_t workspace_bytes;
};

double rounded(double value, const tensor_t &tensor) {
    if (tensor.dtype == CUDNN_DATA_BFLOAT16)
        return (double)zr_bf16_to_f32(zr_bf16_from_f32((float)value));
    return tensor.is_virtual ? value : (double)(float)value;
}

/* Call `at(number, offset)` for each element: its place in row-major order, and in memory. */
template <typename F> void for_each(const tensor_t &tensor, F at) {
    size_t number = 0;
    for (size_t i = 0; i < tensor.dims[0]; i++)
        for (size_t j = 0; j < tensor.dims[1]; j++)
            for (size_t k = 0; k < tensor.dims[2]; k++)
                for (size_t l = 0; l < tensor.dims[3]; l++, number++)
                    at(number, i * tensor.strides[0] + j * tensor.strides[1] +
                                   k * tensor.strides[2] + l * tensor.strides[3]);
}

size_t extent_of(const tensor_t &tensor) {
    size_t extent = 1;
    for (int i = 0; i < 4; i++)
        extent += (tensor.dims[i] - 1) * tensor.strides[i];
    return extent;
}

size_t elem_bytes(const tensor_t &tensor) {
    return tensor.dtype == CUDNN_DATA_BFLOAT16 ? 2 : 4;
}

/* Where an element of `of`, by its number, is in a tensor whose dimensions divide those. */
size_t number_in(const tensor_t &tensor, const tensor_t &of, size_t number) {
    size_t index[4], found = 0;
    for (int i = 3; i >= 0; i--) {
        index[i] = number % of.dims[i];
        number /= of.dims[i];
    }
    for (int i = 0; i < 4; i++)
        found = found * tensor.dims[i] + index[i] / (of.dims[i] / tensor.dims[i]);
    return found;
}

class runner_t {
  public:
    explicit runner_t(const job_t &wanted) : job(wanted) {}

    void run() {
        memset(job.workspace, 0xff, job.workspace_bytes); /* it is nobody else's */
        for (const operation_t &operation : job.graph)
            run(operation);
    }

  private:
    const job_t &job;
    std::map<int64_t, numbers_t> made;

    numbers_t read(const tensor_t &tensor) {
        if (tensor.is_virtual)
            return made[tensor.uid];
        numbers_t numbers(tensor.n);
        if (tensor.is_value) {
            numbers[0] = job.values.at(tensor.uid);
            return numbers;
        }
        const void *data = job.data.at(tensor.uid);
        for_each(tensor, [&](size_t number, size_t offset) {
            numbers[number] = tensor.dtype == CUDNN_DATA_BFLOAT16
                                  ? (double)zr_bf16_to_f32(((const zr_bf16_t *)data)[offset])
                                  : (double)((const float *)data)[offset];
        });
        return numbers;
    }

    void write(const tensor_t &tensor, numbers_t &numbers) {
        for (double &number : numbers)
            number = rounded(number, tensor);
        if (!tensor.is_virtual) {
            void *data = job.data.at(tensor.uid);
            for_each(tensor, [&](size_t number, size_t offset) {
                if (tensor.dtype == CUDNN_DATA_BFLOAT16)
                    ((zr_bf16_t *)data)[offset] = zr_bf16_from_f32((float)numbers[number]);
                else
                    ((float *)data)[offset] = (float)numbers[number];
            });
        }
        made[tensor.uid] = numbers;
    }

    static double point(const operation_t &operation, const double *x) {
        switch (operation.mode) {
        case CUDNN_POINTWISE_ADD:
            return x[0] + x[1];
        case CUDNN_POINTWISE_MUL:
            return x[0] * x[1];
        case CUDNN_POINTWISE_DIV:
            return x[0] / x[1];
        case CUDNN_POINTWISE_SUB:
            return x[0] - x[1];
        case CUDNN_POINTWISE_EXP:
            return exp(x[0]);
        case CUDNN_POINTWISE_LOG:
            return log(x[0]);
        case CUDNN_POINTWISE_CMP_GT:
            return x[0] > x[1];
        case CUDNN_POINTWISE_CMP_GE:
            return x[0] >= x[1];
        default:
            return x[2] != 0 ? x[0] : x[1];
        }
    }

    void run_pointwise(const operation_t &operation, numbers_t &y) {
        const tensor_t &to = operation.output;
        std::vector<numbers_t> inputs;
        for (const tensor_t &input : operation.inputs)
            inputs.push_back(read(input));
        size_t below = 1; /* elements from one index of the axis to the next */
        for (int64_t i = operation.axis + 1; i < 4; i++)
            below *= to.dims[i];
        for (size_t n = 0; n < to.n; n++) {
            double x[3] = {0, 0, 0};
            for (size_t i = 0; i < inputs.size(); i++)
                x[i] = inputs[i][number_in(operation.inputs[i], to, n)];
            y[n] = operation.mode == CUDNN_POINTWISE_GEN_INDEX
                       ? (double)(n / below % to.dims[operation.axis])
                       : point(operation, x);
        }
    }

    void run_product(const operation_t &operation, numbers_t &y) {
        const tensor_t &to = operation.output, &of_a = operation.inputs[0],
                       &of_b = operation.inputs[1];
        numbers_t a = read(of_a), b = read(of_b);
        size_t m = to.dims[2], n = to.dims[3], k = of_a.dims[3], heads = to.dims[1];
        for (size_t h = 0; h < to.dims[0] * heads; h++) {
            size_t of_h = h / heads * of_b.dims[1] + h % heads / (heads / of_b.dims[1]);
            for (size_t row = 0; row < m; row++)
                for (size_t i = 0; i < k; i++)
                    for (size_t column = 0; column < n; column++)
                        y[(h * m + row) * n + column] +=
                            a[(h * m + row) * k + i] * b[(of_h * k + i) * n + column];
        }
    }

    void run_reduction(const operation_t &operation, numbers_t &y) {
        const tensor_t &from = operation.inputs[0];
        bool is_max = operation.mode == CUDNN_REDUCE_TENSOR_MAX;
        numbers_t x = read(from);
        if (is_max)
            std::fill(y.begin(), y.end(), -INFINITY);
        for (size_t n = 0; n < from.n; n++) {
            double &to = y[number_in(operation.output, from, n)];
            to = is_max ? fmax(to, x[n]) : to + x[n];
        }
    }

    /* The same memory with other dimensions. */
    void run_reshape(const operation_t &operation, numbers_t &y) {
        const tensor_t &from = operation.inputs[0];
        numbers_t x = read(from), memory(extent_of(from));
        for_each(from, [&](size_t number, size_t offset) { memory[offset] = x[number]; });
        for_each(operation.output,
                 [&](size_t number, size_t offset) { y[number] = memory.at(offset); });
    }

    void run(const operation_t &operation) {
        numbers_t y(operation.output.n);
        if (operation.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            run_pointwise(operation, y);
        else if (operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            run_product(operation, y);
        else if (operation.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            run_reduction(operation, y);
        else
            run_reshape(operation, y);
        write(operation.output, y);
    }
};

std::map<int64_t, tensor_t> real_tensors(const graph_t &graph) {
    std::map<int64_t, tensor_t> tensors;
    for (const operation_t &operation : graph) {
        for (const tensor_t &input : operation.inputs)
            if (!input.is_virtual)
                tensors[input.uid] = input;
        if (!operation.output.is_virtual)
            tensors[operation.output.uid] = operation.output;
    }
    return tensors;
}

bool may_run(int device, const job_t &job) {
    for (const auto &tensor : real_tensors(job.graph))
        if (!tensor.second.is_value &&
            !emu::may_access(device, job.data.at(tensor.first),
                             extent_of(tensor.second) * elem_bytes(tensor.second), false))
            return false;
    return job.workspace_bytes == 0 ||
           emu::may_access(device, job.workspace, job.workspace_bytes, false);
}

/* Addresses for all tensors, and for nothing else. */
bool fill_job(const descriptor_t &pack, job_t &job) {
    std::vector<int64_t> uids = all_of<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    std::vector<void *> data = all_of<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    std::map<int64_t, tensor_t> tensors = real_tensors(job.graph);
    if (uids.size() != data.size() || uids.size() != tensors.size())
        return false;
    for (size_t i = 0; i < uids.size(); i++) {
        auto tensor = tensors.find(uids[i]);
        if (tensor == tensors.end() || data[i] == NULL)
            return false;
        if (tensor->second.is_value)
            job.values[uids[i]] = (double)*static_cast<float *>(data[i]);
        else if ((uintptr_t)data[i] % (uintptr_t)tensor->second.alignment != 0)
            return false;
        else
            job.data[uids[i]] = data[i];
    }
    job.workspace = one_of<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, NULL);
    return job.workspace_bytes == 0 || (uintptr_t)job.workspace % 256 == 0;
}

/* ---- proposals ------------------------------------------------------------------------------ */

const int n_proposals = 4;
enum proposal_t { NONDETERMINISTIC, NOT_MADE, TOO_LARGE, USABLE };

size_t plan_bytes(const descriptor_t &proposal) {
    size_t bytes = workspace_of(graph_of(*proposal.graph));
    return proposal.proposal == TOO_LARGE ? bytes + 256 : bytes + emu::options.cudnn_extra_bytes;
}

cudnnStatus_t finalize(descriptor_t &descriptor) {
    for (const auto &attribute : attributes)
        if (attribute.of == descriptor.type && attribute.is_needed &&
            descriptor.values.count(attribute.name) == 0)
            return CUDNN_STATUS_BAD_PARAM;
    for (const auto &value : descriptor.values) {
        if (value.second.type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
            continue;
        for (descriptor_t *other : all_of<descriptor_t *>(descriptor, value.first))
            if (descriptors.count(other) == 0 || !other->is_finalized)
                return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    }
    switch (descriptor.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return is_possible(operation_of(descriptor)) ? CUDNN_STATUS_SUCCESS
                                                     : CUDNN_STATUS_BAD_PARAM;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        descriptor.graph = descriptor_at(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        return !emu::options.cudnn_refuses && is_supported(graph_of(*descriptor.graph))
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        descriptor_t *proposal = descriptor_at(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        return proposal->proposal == NOT_MADE ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    }
    default:
        return CUDNN_STATUS_SUCCESS;
    }
}

descriptor_t *known(cudnnBackendDescriptor_t descriptor, const char *call) {
    descriptor_t *own = static_cast<descriptor_t *>(descriptor);
    if (descriptors.count(own) > 0)
        return own;
    emu::misuse("%s: %p is no description, or was destroyed", call, descriptor);
    return NULL;
}

} // namespace

namespace emu {

size_t n_live_dnn() {
    return handles.size() + descriptors.size();
}

} // namespace emu

#define ENTER                                                                                      \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    if (cudaError_t wanted = emu::called_always(__func__))                                         \
    return (cudnnStatus_t)wanted

/* ---- calls ---------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void) {
    return emu::options.cudnn_version;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
#define NAME(of)                                                                                   \
    if (status == of)                                                                              \
    return #of
    NAME(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    NAME(CUDNN_STATUS_EXECUTION_FAILED);
#undef NAME
    return "another status";
}

void cudnnGetLastErrorString(char *message, size_t size_bytes) {
    snprintf(message, size_bytes, "the emulation's last error");
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    ENTER;
    *handle = new cudnnContext{emu::current_device(), NULL};
    handles.insert(*handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (handles.erase(handle) == 0)
        emu::misuse("cudnnDestroy: %p is no handle", (void *)handle);
    else
        delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    ENTER;
    if (handles.count(handle) == 0)
        return CUDNN_STATUS_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
    ENTER;
    descriptor_t *own = new descriptor_t;
    own->type = type;
    descriptors.insert(own);
    *descriptor = own;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    if (descriptor_t *own = known(descriptor, __func__)) {
        descriptors.erase(own);
        delete own;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values) {
    ENTER;
    descriptor_t *own = known(descriptor, __func__);
    if (own == NULL || own->is_finalized || values == NULL || n < 1)
        return CUDNN_STATUS_BAD_PARAM;
    for (const auto &attribute : attributes) {
        if (attribute.of != own->type || attribute.name != name || attribute.type != type ||
            (attribute.n != 0 && attribute.n != n))
            continue;
        const unsigned char *bytes = static_cast<const unsigned char *>(values);
        own->values[name] = {type, n, bytes_t(bytes, bytes + (size_t)n * bytes_of(type))};
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    ENTER;
    descriptor_t *own = known(descriptor, __func__);
    if (own == NULL || own->is_finalized)
        return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t status = finalize(*own);
    own->is_finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n_wanted,
                                       int64_t *n, void *values) {
    ENTER;
    descriptor_t *own = known(descriptor, __func__);
    if (own == NULL || !own->is_finalized)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        *n = n_wanted < n_proposals ? n_wanted : n_proposals;
        for (int i = 0; i < *n; i++) {
            descriptor_t *proposal = known(static_cast<void **>(values)[i], __func__);
            proposal->is_finalized = true;
            proposal->proposal = i;
            proposal->graph = own->graph;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        descriptor_t *engine = known(*static_cast<void **>(values), __func__);
        engine->is_finalized = true;
        engine->proposal = own->proposal;
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE &&
        n_wanted >= 2) {
        *n = own->proposal == NONDETERMINISTIC ? 2 : 1;
        static_cast<int *>(values)[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        static_cast<int *>(values)[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *static_cast<int64_t *>(values) = (int64_t)plan_bytes(
            *descriptor_at(*own, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    ENTER;
    if (emu::called(__func__) != cudaSuccess)
        return CUDNN_STATUS_EXECUTION_FAILED;
    descriptor_t *own_plan = known(plan, __func__), *own_pack = known(pack, __func__);
    if (handles.count(handle) == 0 || own_plan == NULL || own_pack == NULL ||
        !own_plan->is_finalized || !own_pack->is_finalized)
        return CUDNN_STATUS_BAD_PARAM;
    const descriptor_t &proposal =
        *descriptor_at(*own_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    auto job = std::make_shared<job_t>();
    job->graph = graph_of(*proposal.graph);
    job->workspace_bytes = plan_bytes(proposal);
    if (!fill_job(*own_pack, *job))
        return CUDNN_STATUS_BAD_PARAM;
    bool is_queued = emu::queue_work(handle->stream, "cudnnBackendExecute", [=](int device) {
        return may_run(device, *job) && emu::run_guarded(device, [&] { runner_t(*job).run(); });
    });
    return is_queued ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

/* ---- in place of kernels/nn/cuda/cudnn_find.c ------------------------------------------------ */

zr_status_t zr_cudnn_find(const zr_log_t *log, zr_cudnn_t *dnn_p) {
    if (!emu::options.has_cudnn)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "--attention cudnn: cuDNN was not found; use --attention own");
    *dnn_p = {};
#define FIND(name) dnn_p->name##_p = name;
    ZR_CUDNN_CALLS(FIND)
#undef FIND
    return ZR_OK;
}

void zr_cudnn_forget(zr_cudnn_t *dnn) {
    *dnn = {};
}

#else
namespace emu {
size_t n_live_dnn() {
    return 0;
}
} // namespace emu
#endif
