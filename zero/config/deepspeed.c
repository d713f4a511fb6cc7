/*
 * DeepSpeed's keys that set no field here (those that do are options: rows.c). Names are those of
 * DeepSpeed's docs/_pages/config-json.md and of the configuration classes in its source. To support
 * a further key, take it out of here and add a row there.
 */
#include "zero/config/keys.h"

#define ANY ZR_KEY_ANY

static const char bucket_note[] = "a bucket is a unit here";
static const char torch_note[] = "specific to DeepSpeed's use of PyTorch";
static const char torch_adam_note[] = "a switch of torch.optim; the update is libzero's own";
static const char one_bit_note[] = "belongs to the compressed optimizers; remove the key";
static const char muon_note[] = "belongs to Muon; remove the key";
static const char range_test_note[] = "belongs to LRRangeTest";
static const char one_cycle_note[] = "belongs to OneCycle";
static const char quantize_note[] = "this kind of quantization is not supported";
static const char offload_param_note[] = "write the section offload_param";
static const char offload_old_note[] = "write the section offload_optimizer";
static const char super_offload_note[] = "belongs to super_offload";
static const char aio_note[] = "belongs to DeepSpeed's I/O threads; libzero uses io_uring";
static const char unit_note[] = "the trainer defines units";
static const char recompute_note[] = "recomputation is the trainer's (zero-train --recompute)";
static const char checkpoint_note[] = "checkpoints are zero-train's (--checkpoint-dir)";
static const char any_ranks_note[] = "every checkpoint works with any number of ranks";
static const char gather_note[] =
    "zero-checkpoint export writes whole weights, from any checkpoint (in Python "
    "engine.state_dict() has them)";
static const char monitor_note[] = "zero-train has --log FILE.jsonl and --tensorboard DIR, a Trainer report_to";
static const char timer_note[] = "every step is timed";
static const char model_note[] = "compression changes the model";

static const zr_key_rule_t rules[] = {
    {"", "managed_gradient_accumulation", "true",
     "micro-batches are counted, and a step needs all of them"},
    {"", "memory_breakdown", "false | true", "peaks per tag are always reported"},
    {"", "dump_state", "false", "there is no dump"},
    {"", "log_level", "null", "the program sets the log level; remove the key"},
    {"", "disable_python_gc", "false", "there is no Python here"},
    {"", "vocabulary_size", "null",
     "the trainer sets it (zero-train --model vocab=); remove the key"},
    {"", "dataloader_drop_last", "true | false", "the trainer feeds whole batches"},
    {"", "communication_data_type", "null",
     "gradients travel in the parameters' type and are summed in fp32"},
    {"", "fp32_allreduce", "false",
     "gradients travel in the parameters' type and are summed in fp32"},
    {"", "seq_parallel_communication_data_type seq_parallel_comm_data_type", "\"fp32\"",
     "sequences are not split over ranks"},
    {"", "sequence_parallel_size", "1", "sequences are not split over ranks"},
    {"", "gradient_allreduce_op", "\"mean\"", "gradients are averaged"},
    {"", "prescale_gradients", "false", "gradients are summed in fp32, then averaged"},
    {"", "gradient_predivide_factor", "1.0", "gradients are summed in fp32, then averaged"},
    {"", "sparse_gradients", "false", "gradients are dense"},
    {"", "disable_allgather", "false", "parameters are all-gathered"},
    {"", "graph_harvesting", "false", "no graphs are captured"},
    {"", "use_data_before_expert_parallelism", "false", "there are no experts"},
    {"", "zero_allow_untested_optimizer", ANY, "no optimizer of libzero needs it"},
    {"", "zero_force_ds_cpu_optimizer", ANY, "the update is libzero's own on every device"},
    {"optimizer", "legacy_fusion", "false", "there is one update"},
    {"optimizer.params", "torch_adam", "false | true", "the update is libzero's own"},
    {"optimizer.params", "adam_w_mode adamw_mode", "true", "weight decay is decoupled"},
    {"optimizer.params", "bias_correction", "true", "the running averages are corrected"},
    {"optimizer.params", "amsgrad", "false", "there is no AMSGrad"},
    {"optimizer.params", "maximize", "false", "the loss is minimized"},
    {"optimizer.params", "fp32_optimizer_states", "true", "optimizer state is fp32"},
    {"optimizer.params", "eps_inside_sqrt", "false", "eps is added to the root"},
    {"optimizer.params", "set_grad_none", "true | false", "gradients are the library's own"},
    {"optimizer.params", "fused foreach", "null | true false", torch_adam_note},
    {"optimizer.params", "capturable differentiable", "false", torch_adam_note},
    {"optimizer.params", "max_grad_norm", "0.0", "write gradient_clipping at the top of the file"},
    {"optimizer.params", "dampening", "0", "momentum is not dampened"},
    {"optimizer.params", "muon_lr adam_lr", "null", muon_note},
    {"optimizer.params", "ns_method per_head_muon", NULL, muon_note},
    {"optimizer.params",
     "freeze_step cuda_aware comm_backend_name max_coeff min_coeff coeff_beta factor_max "
     "factor_min factor_threshold var_freeze_step var_update_scaler local_step_scaler "
     "local_step_clipper",
     NULL, one_bit_note},
    {"scheduler.params", "last_batch_iteration", "-1",
     "a checkpoint says at which step a run goes on"},
    {"scheduler.params",
     "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase",
     NULL, range_test_note},
    {"scheduler.params",
     "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_first_stair_count "
     "decay_step_size cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate",
     NULL, one_cycle_note},
    {"scheduler.params", "cycle_second_step_size cycle_second_stair_count", "null", one_cycle_note},
    {"bf16", "immediate_grad_update", "false", "updates run only in the step"},
    {"bf16", "check_overflow", "true", "write check_grad_overflow"},
    {"bf16", "bf16_master_weights_and_grads", "false", "master parameters are fp32"},
    {"bf16", "bf16_optimizer_states", "false", "optimizer state is fp32"},
    {"", "bfloat16", NULL, "write bf16"},
    {"fp16", "fp16_master_weights_and_grads", "false", "master parameters are fp32"},
    {"data_types", "grad_accum_dtype", "null", "gradients have the parameters' type"},
    {"data_types", "param_dtype", "null", "bf16.enabled says it"},
    {"data_types", "buffer_dtype", "null", "models have no buffers"},
    {"zero_optimization", "contiguous_gradients", "true | false",
     "a unit's gradients lie in one buffer"},
    {"zero_optimization", "reduce_scatter", "true | false", "gradients are reduce-scattered"},
    {"zero_optimization", "use_multi_rank_bucket_allreduce", "true | false",
     "one collective reduces for all ranks"},
    {"zero_optimization", "allgather_partitions", "true | false", "parameters are all-gathered"},
    {"zero_optimization", "reduce_bucket_size allgather_bucket_size", "\"auto\" | #", bucket_note},
    {"zero_optimization", "compute_grad_norm", "true | false", "every step has its norm"},
    {"zero_optimization", "load_from_fp32_weights", "true", "master parameters are fp32"},
    {"zero_optimization", "elastic_checkpoint", "false | true", any_ranks_note},
    {"zero_optimization", "stage3_param_persistence_threshold", "0 | #",
     "every parameter is sharded"},
    {"zero_optimization", "stage3_model_persistence_threshold", ANY,
     "has no effect, as stage3_param_persistence_threshold keeps nothing"},
    {"zero_optimization",
     "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save",
     "false | true", gather_note},
    {"zero_optimization", "stage3_module_granularity_threshold", "0 | #", unit_note},
    {"zero_optimization", "stage3_use_all_reduce_for_fetch_params", "false | true",
     "parameters are all-gathered"},
    {"zero_optimization", "stage3_allgather_sequential", "false | true",
     "a unit is gathered at once"},
    {"zero_optimization", "stage3_partition_stream_chunk_size", "0 | #",
     "shards are filled one by one, never the whole parameter"},
    {"zero_optimization", "ignore_unused_parameters", "true",
     "a gradient that nobody wrote counts as zero"},
    {"zero_optimization", "legacy_stage1", "false", "there is one stage 1"},
    {"zero_optimization", "round_robin_gradients", "false | true",
     "a shard is a contiguous slice of its unit"},
    {"zero_optimization", "parameter_alignment", NULL,
     "the layout is libzero's own and its padding is reported; remove the key"},
    {"zero_optimization", "zero_hpz_partition_size", "1",
     "gathered parameters have no second shards; mics_shard_size keeps gathers in a group"},
    {"zero_optimization", "mics_hierarchical_params_gather", "false",
     "gathers stay in their group, in one step"},
    {"zero_optimization",
     "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients", "false",
     quantize_note},
    {"zero_optimization", "zeropp_loco_param", "null", quantize_note},
    {"zero_optimization", "memory_efficient_linear override_module_apply", "true | false",
     torch_note},
    {"zero_optimization", "pipeline_loading_checkpoint", "false | true",
     "every rank reads only what it needs"},
    {"zero_optimization", "log_trace_cache_warnings", "false | true",
     "a rank that leaves the recorded order is an error"},
    {"zero_optimization", "enable_sanity_checks", "true | false",
     "every collective is always checked"},
    {"zero_optimization", "save_muon_momentum_buffer_in_memory", "false", "there is no Muon"},
    {"zero_optimization", "leaf_module", NULL, unit_note},
    {"zero_optimization", "zenflow", "null",
     "every gradient takes part in every update; remove the key"},
    {"zero_optimization", "cpu_offload", "false null", offload_old_note},
    {"zero_optimization", "cpu_offload_param", "false null", offload_param_note},
    {"zero_optimization", "cpu_offload_use_pin_memory", ANY,
     "read only with cpu_offload, which is refused"},
    {"zero_optimization.offload_param", "pin_memory", "true | false",
     "host memory is pinned where the device can use that"},
    {"zero_optimization.offload_optimizer", "pin_memory", "true | false",
     "host memory is pinned where the device can use that"},
    {"zero_optimization.offload_optimizer", "fast_init", "false | true",
     "initial states are always written in one pass"},
    {"zero_optimization.offload_optimizer", "super_offload", "false",
     "updates are never made early and undone"},
    {"zero_optimization.offload_optimizer", "convert_grad_on_cpu", "true",
     "gradients are widened by the update that reads them"},
    {"zero_optimization.offload_optimizer", "cpuadam_cores_perc", ANY, super_offload_note},
    {"aio", "io_backend", NULL, "it is io_uring; remove the key"},
    {"aio", "thread_count intra_op_parallelism single_submit overlap_events", ANY, aio_note},
    {"aio", "use_gds", "false", "transfers go through host memory"},
    {"activation_checkpointing",
     "partition_activations contiguous_memory_optimization synchronize_checkpoint_boundary profile",
     "false", recompute_note},
    {"activation_checkpointing", "cpu_checkpointing", "false",
     "zero-train --recompute unit --offload-activations cpu does that"},
    {"activation_checkpointing", "number_checkpoints", "null", recompute_note},
    {"checkpoint", "tag_validation", "\"Warn\" | \"Ignore\" \"Fail\"",
     "a checkpoint is named by its step, on all ranks"},
    {"checkpoint", "load_universal", "false | true", any_ranks_note},
    {"checkpoint", "use_node_local_storage", "false",
     "all ranks save into one folder (zero-train --checkpoint-dir)"},
    {"checkpoint", "checkpoint_serialization", NULL,
     "a checkpoint has a format of its own; remove the key"},
    {"checkpoint", "writer", "null",
     "every rank writes its own part (zero-train --io-settings says how); remove the key"},
    {"checkpoint.parallel_write", "pipeline_stage", "false", "ranks hold whole layers"},
    {"", "datastates_ckpt", NULL,
     "zero-train --checkpoint-async writes during training; remove the section"},
    {"timers.throughput", "enabled synchronized", "true | false", timer_note},
    {"", "pipeline", NULL, "ranks hold whole layers; remove the section"},
    {"", "sparse_attention", NULL, "attention is the trainer's; remove the section"},
    {"", "weight_quantization quantize_training", NULL, quantize_note},
    {"", "compression_training", NULL, model_note},
};

/* Sections in the order of the documents. One that is not supported is one row: nothing in it has
 * an effect while it is off. */
static const zr_key_section_t sections[] = {
    {"", .note = "The top of the file"},
    {"optimizer",
     .note = "AdamW, unless it says another; docs/internals/architecture.md says how to add one",
     .may_be_null = true},
    {"optimizer.params", .note = "the optimizer's parameters", .may_be_null = true},
    {"scheduler", .note = "how the learning rate moves", .may_be_null = true},
    {"scheduler.params", .note = "the scheduler's parameters", .may_be_null = true},
    {"bf16", .note = "parameters and gradients in bf16, optimizer in fp32", .may_be_auto = true},
    {"fp16", .off = "enabled", .only = "false",
     .why = "fp16 is not supported; use bf16 (bf16.enabled, --dtype bf16)",
     .names = "auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
              "consecutive_hysteresis min_loss_scale fused_mode",
     .may_be_auto = true},
    {"amp", .off = "enabled", .only = "false", .why = "use bf16",
     .names = "opt_level cast_model_type patch_torch_functions keep_batchnorm_fp32 master_weights "
              "loss_scale cast_model_outputs num_losses verbosity min_loss_scale max_loss_scale",
     .may_be_auto = true},
    {"torch_autocast", .off = "enabled", .only = "false", .why = "use bf16",
     .names = "dtype lower_precision_safe_modules"},
    {"data_types", .note = "use bf16"},
    {"zero_optimization", .note = "what is sharded and how it moves", .may_be_auto = true},
    {"zero_optimization.offload_param",
     .note = "where the shards of parameters live (docs/guide/offload.md)", .may_be_null = true,
     .may_be_auto = true},
    {"zero_optimization.offload_optimizer",
     .note = "where the optimizer state lives (docs/guide/offload.md)", .may_be_null = true,
     .may_be_auto = true},
    {"aio", .note = "how files of a drive are read and written"},
    {"activation_checkpointing", .note = "the trainer recomputes"},
    {"checkpoint", .note = "not set here: checkpoints are zero-train's (--checkpoint-dir)"},
    {"checkpoint.parallel_write", .note = "not set here: every rank writes its own part"},
    {"nebula", .off = "enabled", .only = "false", .why = checkpoint_note,
     .names = "persistent_storage_path persistent_time_interval num_of_version_in_retention "
              "enable_nebula_load nebula_load_path",
     .may_be_auto = true},
    {"flops_profiler", .off = "enabled", .only = "false",
     .why = "there is no FLOPs profiler; \"wall_clock_breakdown\": true logs the time of each part "
            "of a step",
     .names = "recompute_fwd_factor profile_step module_depth top_modules detailed output_file",
     .may_be_auto = true},
    {"timers", .note = "every step is timed"},
    {"timers.throughput", .note = "every step is timed"},
    {"comms_logger", .off = "enabled", .only = "false",
     .why = "bytes per collective are in every report", .names = "verbose prof_all prof_ops debug",
     .may_be_auto = true},
    {"tensorboard", .off = "enabled", .only = "false", .why = monitor_note,
     .names = "output_path job_name", .may_be_auto = true},
    {"wandb", .off = "enabled", .only = "false", .why = monitor_note, .names = "group team project",
     .may_be_auto = true},
    {"csv_monitor", .off = "enabled", .only = "false", .why = monitor_note,
     .names = "output_path job_name", .may_be_auto = true},
    {"comet", .off = "enabled", .only = "false", .why = monitor_note,
     .names = "samples_log_interval project workspace api_key experiment_name experiment_key "
              "online mode",
     .may_be_auto = true},
    {"trackio", .off = "enabled", .only = "false", .why = monitor_note, .names = "project",
     .may_be_auto = true},
    {"elasticity", .off = "enabled", .only = "false", .why = "the batch size is fixed",
     .names =
         "max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time prefer_larger_batch "
         "ignore_non_elastic_batch_info version model_parallel_size num_gpus_per_node"},
    {"autotuning", .off = "enabled", .only = "false", .why = "runs are not tuned",
     .names = "fast results_dir exps_dir overwrite metric metric_path model_info model_info_path "
              "start_profile_step end_profile_step max_train_batch_size min_train_batch_size "
              "max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu "
              "num_tuning_micro_batch_sizes mp_size tuner_type tuner_early_stopping "
              "tuner_num_trials arg_mappings"},
    {"compile", .off = "deepcompile", .only = "false", .why = torch_note,
     .names =
         "autoep_non_moe free_activation free_activation_threshold offload_activation "
         "offload_activation_pin_memory offload_opt_states offload_parameters double_buffer "
         "symmetric_memory debug_log sync_before_reduce sync_after_reduce sync_before_allgather "
         "sync_after_allgather keep_int_input_tensors keep_all_input_tensors passes",
     .may_be_auto = true},
    {"hybrid_engine", .off = "enabled", .only = "false", .why = "there is no inference",
     .names = "max_out_tokens inference_tp_size release_inference_cache pin_parameters "
              "tp_gather_partition_size enable_cuda_graph",
     .may_be_auto = true},
    {"tensor_parallel", .off = "autotp_size", .only = "0", .why = "ranks hold whole layers",
     .names = "dtype preset_model tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend "
              "partition_config tp tensor_parallel injection_policy_tuple keep_module_on_host "
              "kernel_inject replace_with_kernel_inject",
     .may_be_auto = true},
    {"expert_parallel", .off = "enabled", .only = "false", .why = "there are no experts",
     .names =
         "autoep_size expert_tensor_parallel_size async_split_plan validate_folding_routing "
         "row_weighting_impl gate_up_impl comm_backend comm_num_sm comm_qp_margin "
         "comm_max_tokens_per_rank shared_experts_gate_pattern expert_activation preset_model "
         "use_grouped_mm disable_triton_grouped_mm moe_layer_pattern router_pattern expert_pattern "
         "score_func score_apply combine_impl route_norm route_scale top_k routed_scaling_factor "
         "num_expert_groups num_limited_groups load_balance_coeff expert_w1 expert_w2 expert_w3 "
         "num_experts_attr top_k_attr has_shared_experts shared_experts_pattern"},
    {"progressive_layer_drop", .off = "enabled", .only = "false", .why = "no layer is dropped",
     .names = "theta gamma"},
    {"curriculum_learning", .off = "enabled", .only = "false", .why = "the trainer orders data",
     .names = "curriculum_type min_difficulty max_difficulty schedule_type schedule_config"},
    {"data_efficiency", .off = "enabled", .only = "false", .why = "the trainer orders data",
     .names = "seed data_sampling data_routing"},
    {"eigenvalue", .off = "enabled", .only = "false", .why = quantize_note,
     .names = "verbose max_iter tol stability gas_boundary_resolution layer_name layer_num"},
};

const zr_key_rule_t *zr_key_rules(size_t *n_p) {
    *n_p = sizeof(rules) / sizeof(rules[0]);
    return rules;
}

const zr_key_section_t *zr_key_sections(size_t *n_p) {
    *n_p = sizeof(sections) / sizeof(sections[0]);
    return sections;
}
