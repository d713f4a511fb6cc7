/*
 * Updates: what an optimizer does to its state, its gradients and its parameters, on any device.
 *
 * A rule says which arrays the state is made of, which numbers it is given, what it costs, and has
 * a loop for the host and a launcher for CUDA. The host's loop works on a part of the arrays, as
 * large as the device finds right, so that threads share a call; where a build has loops for
 * several instruction sets they give the same bits, as does the launcher. A simulated device takes
 * the time of the cost. zero/optim/ has the rules of the library as parts of optimizers; one of a
 * user's own is another such struct, with a loop, a launcher, or both.
 */
#pragma once

#include "kernels/encoding.h"

ZR_BEGIN_C

#define ZR_MAX_STATE_ARRAYS 8
#define ZR_MAX_HYPERS 8
/** Room for what a rule computes once per call. */
#define ZR_UPDATE_FACTORS_BYTES ((size_t)128)

/**
 * In how many bits the state is kept, but for the master. What is computed in fp32 is rounded up or
 * down at random, so that its mean is what was computed, and small changes are not lost: by bits
 * that follow from zr_update_t.rounding and an element's number alone.
 */
typedef enum zr_state_form {
    ZR_STATE_FP32 = 0, /* as the rule has its arrays */
    ZR_STATE_BF16 = 1,
    ZR_STATE_8BIT = 2, /* blocks of 256: zr_encoding_float8, or ufloat8 of what is never negative */
    ZR_N_STATE_FORMS
} zr_state_form_t;

/** "fp32", "bf16", "8bit". */
const char *zr_state_form_name(zr_state_form_t form);

/** Elements of one parameter group, and what is done to them. */
typedef struct zr_update {
    size_t n_elems;
    void *arrays[ZR_MAX_STATE_ARRAYS]; /* the rule's, each [n_elems] of its encoding; in and out */
    const void *grad;                  /* [n_elems] of grad_dtype, as it was summed */
    void *param;                       /* [n_elems] of param_dtype, out: the new master, rounded */
    zr_dtype_t grad_dtype;             /* F32 or BF16 */
    zr_dtype_t param_dtype;            /* F32 or BF16 */
    float grad_scale;                  /* the product of unscale and clip factors */
    float lr;
    float weight_decay;
    float hyper[ZR_MAX_HYPERS]; /* the rule's, in its order */
    int step;                   /* from 1 */
    /* Of states in other forms than fp32, whose random bits they are: those of the same keys have
       numbers of their own, from `first` on. */
    uint32_t rounding[2];
    size_t first;
    zr_state_form_t form; /* the rule's: for its launcher; zr_kernel_update sets it */
} zr_update_t;

/** An array of the state. Those of larger elements come first, so that all are aligned. */
typedef struct zr_state_array {
    const char *name; /* in checkpoints: torch's, such as "exp_avg" */
    const zr_encoding_t *encoding;
} zr_state_array_t;

/** A number that the rule is given, beside the rate and the weight decay, which all have. */
typedef struct zr_hyper {
    const char *name; /* "beta1": of an option, --beta1, and in messages */
    const char *key;  /* of optimizer.params in DeepSpeed's JSON */
    int index;        /* in the list that the key has, from 0; -1: the key has a number */
    bool is_switch;   /* 0 or 1: true and false in JSON */
    bool is_positive; /* `least` is not allowed */
    double usual;     /* where nothing is said */
    double least, below;
    const char *help;
} zr_hyper_t;

/**
 * The host's loop, over a part of a call's elements. It may be called by several threads at once,
 * for other parts.
 *
 * @param part     n_elems and the addresses are those of the part
 * @param factors  what zr_update_rule_t.prepare has computed for the call
 */
typedef void (*zr_update_loop_fn)(const zr_update_t *part, const void *factors);

/** Instruction sets that loops of the library are compiled for, each with those before it. */
enum { ZR_ISA_BASELINE = 0, ZR_ISA_AVX2 = 1, ZR_ISA_AVX512 = 2 };
#define ZR_N_ISAS 3

typedef struct zr_update_rule {
    const char *name; /* of the kernel, in traces, reports and messages; static, as all here */
    zr_state_array_t arrays[ZR_MAX_STATE_ARRAYS];
    size_t n_arrays;         /* at least 1: the first is the master, in fp32 */
    uint32_t never_negative; /* bit i: array i's values never are */
    zr_state_form_t form;    /* of a description fp32; zr_update_rule_in gives others */
    uint32_t formed;         /* bit i: array i is kept in that form, and computed in fp32 */
    zr_hyper_t hypers[ZR_MAX_HYPERS];
    size_t n_hypers;
    double operations_per_elem; /* with fma as two. Bytes follow from the arrays: all are read and
                                   written, the gradient is read, the parameter written */

    /* Optional. What is the same for all elements of a call, into factors
       [ZR_UPDATE_FACTORS_BYTES], aligned for any type. On the host, for loops alone. */
    void (*prepare)(const zr_update_t *update, void *factors);
    /* By instruction set. NULL: the one before is right. All NULL: the host cannot do it. */
    zr_update_loop_fn loops[ZR_N_ISAS];
    /* Queue it on a stream of a "cuda" device, which is the current one: zr_stream_native gives the
       cudaStream_t. What it costs and whether it was accepted is seen to by the caller. NULL: such
       a device cannot do it; its state then has to be offloaded, and updated on the host. */
    zr_status_t (*cuda)(zr_stream_t *stream, const zr_update_t *update);
    bool cuda_knows_forms; /* or `cuda` takes states as they are described, only */
} zr_update_rule_t;

/** A rule whose arrays in fp32, but for the master, are kept in a form. Loops are given them in
 * fp32 all the same. */
zr_update_rule_t zr_update_rule_in(const zr_update_rule_t *rule, zr_state_form_t form);

/** ZR_OK, or ZR_ERR_ARGUMENT with what is wrong with a rule. */
ZR_NODISCARD zr_status_t zr_update_rule_check(const zr_update_rule_t *rule, const zr_log_t *log);

/** Whether a device has a kernel for a rule. */
bool zr_update_runs_on(const zr_device_t *device, const zr_update_rule_t *rule);

/**
 * Queue an update.
 *
 * @param update  borrowed for the call, what it points to until it is done
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED where the device has no kernel for it;
 *         ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_kernel_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                                          const zr_update_t *update);
zr_cost_t zr_update_cost(const zr_update_rule_t *rule, const zr_update_t *update);

/** Bytes of the state of n elements: its arrays, one behind the other. */
size_t zr_state_bytes(const zr_update_rule_t *rule, size_t n_elems);
/** Where an array begins in the state of n elements. */
size_t zr_state_array_offset(const zr_update_rule_t *rule, size_t array, size_t n_elems);

ZR_END_C
