/*
 * What options of other trainers (torchrun scripts, transformers, DeepSpeed, Megatron-LM, llm.c)
 * are called here. A row says what a message says.
 */
#include "examples/train/options.h"

const args_known_t train_known[] = {
    {"batch-size per-device-train-batch-size train-batch-size train-micro-batch-size-per-gpu "
     "micro-batch-size per-device-batch-size",
     "--micro-batch N: sequences per rank; a step has ranks x --grad-accum times as many"},
    {"global-batch-size total-batch-size",
     "--grad-accum N: a step has N x --micro-batch x --ranks sequences"},
    {"gradient-accumulation-steps accumulate-grad-batches", "--grad-accum N"},
    {"learning-rate", "--lr RATE"},
    {"lr-scheduler-type lr-scheduler lr-decay-style scheduler",
     "--schedule cosine, linear or constant"},
    {"warmup-steps num-warmup-steps warmup-iters lr-warmup-iters warmup-ratio", "--warmup STEPS"},
    {"min-lr", "--min-lr-ratio RATIO: of --lr"},
    {"epochs num-train-epochs num-epochs",
     "--steps N: optimizer steps; those of an epoch are its sequences / (--micro-batch x "
     "--grad-accum x --ranks)"},
    {"max-steps train-iters num-iterations max-iters iterations", "--steps N: optimizer steps"},
    {"bf16 amp mixed-precision precision torch-dtype", "--dtype bf16"},
    {"fp16 dtype=fp16 dtype=float16 dtype=half", "--dtype bf16: bf16 needs no loss scale"},
    {"dtype=bfloat16", "--dtype bf16"},
    {"dtype=float32 dtype=float", "--dtype fp32"},
    {"zero-stage zero ds-stage", "--stage 0, 1, 2 or 3"},
    {"deepspeed deepspeed-config ds-config", "--config FILE"},
    {"fsdp", "--stage 3"},
    {"lora-r lora-rank lora-alpha lora-target-modules peft use-peft",
     "--lora rank=N,alpha=X,targets=NAMES"},
    {"gradient-checkpointing activation-checkpointing checkpoint-activations "
     "recompute-activations use-checkpoint",
     "--recompute unit"},
    {"max-grad-norm gradient-clipping grad-clip clip-grad", "--clip NORM"},
    {"optim", "--optimizer adamw, lion or sgd"},
    {"adam-beta1", "--beta1 B"},
    {"adam-beta2", "--beta2 B"},
    {"adam-epsilon eps", "--epsilon E"},
    {"cpu-offload offload zero-offload", "--offload-optimizer cpu"},
    {"model-name-or-path model-name", "--model NAME or PATH"},
    {"dataset train-file train-data data-path dataset-name train-data-path", "--data PATH..."},
    {"validation-file eval-data eval-dataset", "--val-data PATH"},
    {"eval-steps eval-interval val-loss-every", "--eval-every STEPS"},
    {"seq-length max-seq-length max-length block-size sequence-length seq-len", "--seq TOKENS"},
    {"num-gpus nproc-per-node num-processes world-size gpus", "--ranks N"},
    {"output-dir save-dir save", "--checkpoint-dir DIR"},
    {"save-steps save-interval", "--checkpoint-every STEPS"},
    {"save-total-limit", "--checkpoint-keep N"},
    {"resume-from-checkpoint load", "--resume: with --checkpoint-dir DIR"},
    {"logging-dir report-to tensorboard-dir log-dir",
     "--log FILE.csv or FILE.jsonl, or --tensorboard DIR"},
    {NULL, NULL}};
