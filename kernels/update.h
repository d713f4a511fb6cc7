/*
 * Updates: how an optimizer changes its state and parameters, on any device.
 *
 * A rule describes the state arrays, the hyperparameters and the cost, and has a loop for the host
 * and a launcher for CUDA. The host calls the loop for parts of the arrays, from several threads.
 * Loops for different instruction sets and the launcher must give bitwise identical results. A
 * simulated device uses the cost. The library's rules are in zero/optim/; a user-defined rule is
 * another such struct, with a loop, a launcher, or both.
 */
#pragma once

#include "kernels/encoding.h"

ZR_BEGIN_C

#define ZR_MAX_STATE_ARRAYS 8
#define ZR_MAX_HYPERS 8
/** Size of the values that a rule computes once per call. */
#define ZR_UPDATE_FACTORS_BYTES ((size_t)128)

/**
 * Precision of the state, except the master. Values computed in fp32 are rounded stochastically, so
 * that small changes are not lost on average. The random bits are a function of
 * zr_update_t.rounding and the element's index.
 */
typedef enum zr_state_form {
    ZR_STATE_FP32 = 0, /* as described by the rule */
    ZR_STATE_BF16 = 1,
    ZR_STATE_8BIT =
        2, /* blocks of 256: zr_encoding_float8, or ufloat8 for values that are never negative */
    ZR_N_STATE_FORMS
} zr_state_form_t;

/** "fp32", "bf16", "8bit". */
const char *zr_state_form_name(zr_state_form_t form);

/** An update of elements of one parameter group. */
typedef struct zr_update {
    size_t n_elems;
    void *arrays[ZR_MAX_STATE_ARRAYS]; /* the rule's arrays, each [n_elems] in its encoding; in and
                                          out */
    const void *grad;                  /* [n_elems] of grad_dtype, as it was summed */
    void *param;                       /* [n_elems] of param_dtype, out: the new master, rounded;
                                          with a split master in, too: a part of it, or all */
    zr_dtype_t grad_dtype;             /* F32 or BF16 */
    zr_dtype_t param_dtype;            /* F32 or BF16 */
    float grad_scale;                  /* the product of unscale and clip factors */
    float lr;
    float weight_decay;
    float hyper[ZR_MAX_HYPERS]; /* hyperparameters in the rule's order */
    int step;                   /* from 1 */
    bool is_left_out; /* the state stays as it is, and `param` is made of its master: the rule's
                         factors are those of a step of nothing */
    /* Random keys for states not in fp32. Element i of the call uses random number first + i of
     * these keys. */
    uint32_t rounding[2];
    size_t first;
    zr_state_form_t form; /* set by zr_kernel_update, like the next, for the rule's launcher */
    bool splits_master;
} zr_update_t;

/** An array of the state. Arrays with larger elements must come first, so that all are aligned. */
typedef struct zr_state_array {
    const char *name; /* name in checkpoints, as in PyTorch: "exp_avg" */
    const zr_encoding_t *encoding;
} zr_state_array_t;

/** A hyperparameter, in addition to the learning rate and weight decay, which all rules have. */
typedef struct zr_hyper {
    const char *name; /* "beta1": name of the option --beta1, and in messages */
    const char *key;  /* key in optimizer.params of DeepSpeed's JSON */
    int index;        /* index in the key's list, from 0; -1: the key is a number */
    bool is_switch;   /* 0 or 1: true and false in JSON */
    bool is_positive; /* must be greater than `least` */
    double usual;     /* default value */
    double least, below;
    const char *help;
} zr_hyper_t;

/**
 * The host loop over a part of a call's elements. It may be called from several threads
 * concurrently, for different parts.
 *
 * @param part     its n_elems and addresses describe the part
 * @param factors  computed by zr_update_rule_t.prepare for the call
 */
typedef void (*zr_update_loop_fn)(const zr_update_t *part, const void *factors);

/** Instruction sets that the library's loops are compiled for; each includes the previous ones. */
enum { ZR_ISA_BASELINE = 0, ZR_ISA_AVX2 = 1, ZR_ISA_AVX512 = 2 };
#define ZR_N_ISAS 3

typedef struct zr_update_rule {
    const char *name; /* name of the kernel in traces, reports and messages; static, like all
                         strings here */
    zr_state_array_t arrays[ZR_MAX_STATE_ARRAYS];
    size_t n_arrays;         /* at least 1: the first is the master, in fp32 */
    uint32_t never_negative; /* bit i: values of array i are never negative */
    zr_state_form_t form;    /* fp32 in a description; zr_update_rule_in sets others */
    uint32_t formed;         /* bit i: array i is stored in `form` and computed in fp32 */
    bool splits_master;      /* false in a description; zr_update_rule_split sets it */
    zr_hyper_t hypers[ZR_MAX_HYPERS];
    size_t n_hypers;
    double operations_per_elem; /* an fma counts as two. Bytes follow from the arrays: all are read
                                   and written, the gradient is read, the parameter written */

    /* Optional. Compute values that are the same for all elements of a call into factors
     * [ZR_UPDATE_FACTORS_BYTES], aligned for any type. Only for the host loops. */
    void (*prepare)(const zr_update_t *update, void *factors);
    /* By instruction set. NULL: use the previous one. All NULL: not supported on the host. */
    zr_update_loop_fn loops[ZR_N_ISAS];
    /* Queue the update on a stream of a "cuda" device, which is current: zr_stream_native gives the
     * cudaStream_t. The caller accounts for the cost and checks for launch errors. NULL: not
     * supported on CUDA; the state must then be offloaded and updated on the host. */
    zr_status_t (*cuda)(zr_stream_t *stream, const zr_update_t *update);
    bool cuda_knows_forms; /* `cuda` supports other forms and split masters */
} zr_update_rule_t;

/** A copy of a rule that stores its fp32 arrays, except the master, in a form. Loops still get them
 * in fp32. */
zr_update_rule_t zr_update_rule_in(const zr_update_rule_t *rule, zr_state_form_t form);

/**
 * A rule whose master is held once: parameters in fp32 are it, and the state has nothing of it;
 * those in bf16 are its upper half (master_math.h), and the state has the lower one. Its loops and
 * its launcher have to know zr_update_t.splits_master. Its arrays need not come in the order of
 * their elements' sizes: n_elems are multiples of 2.
 */
zr_update_rule_t zr_update_rule_split(const zr_update_rule_t *rule, zr_dtype_t param_dtype);

/** ZR_OK, or ZR_ERR_ARGUMENT if a rule is invalid, logged with the reason. */
ZR_NODISCARD zr_status_t zr_update_rule_check(const zr_update_rule_t *rule, const zr_log_t *log);

/** Index of a rule's hyperparameter; n_hypers: it has none of this name. */
size_t zr_update_rule_hyper(const zr_update_rule_t *rule, const char *name);
/** Whether a value, rounded to fp32, is in a hyperparameter's range. */
bool zr_hyper_allows(const zr_hyper_t *hyper, double value);

/** Whether a device has a kernel for a rule. */
bool zr_update_runs_on(const zr_device_t *device, const zr_update_rule_t *rule);

/**
 * Queue an update.
 *
 * @param update  borrowed for the call; memory that it points to must stay valid until the work is
 *                done
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED if the device has no kernel for it;
 *         ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_kernel_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                                          const zr_update_t *update);
zr_cost_t zr_update_cost(const zr_update_rule_t *rule, const zr_update_t *update);

/** Bytes of the state of n elements: its arrays, stored contiguously. */
size_t zr_state_bytes(const zr_update_rule_t *rule, size_t n_elems);
/** Offset of an array in the state of n elements. */
size_t zr_state_array_offset(const zr_update_rule_t *rule, size_t array, size_t n_elems);

ZR_END_C
