/*
 * Sizes of the structures that python/libzero/_c.py declares, and offsets of their fields, a line each:
 * "Rank 112", "Rank.comm 8". test_package.py compares.
 */
#include <stdio.h>

#include "zero/zero.h"

#define SIZE(type, name) printf("%s %zu\n", #name, sizeof(type))
#define FIELD(type, name, field) printf("%s.%s %zu\n", #name, #field, offsetof(type, field))

static void options(void) {
    SIZE(zr_log_t, Log);
    FIELD(zr_log_t, Log, sink);
    FIELD(zr_log_t, Log, context);
    FIELD(zr_log_t, Log, level);
    FIELD(zr_log_t, Log, rank);
    SIZE(zr_option_t, Option);
    FIELD(zr_option_t, Option, name);
    FIELD(zr_option_t, Option, type);
    FIELD(zr_option_t, Option, least);
    FIELD(zr_option_t, Option, choices);
    FIELD(zr_option_t, Option, help);
    FIELD(zr_option_t, Option, group);
    FIELD(zr_option_t, Option, when);
    FIELD(zr_option_t, Option, idle);
    FIELD(zr_option_t, Option, take);
    SIZE(zr_option_when_t, OptionWhen);
    FIELD(zr_option_when_t, OptionWhen, otherwise);
    FIELD(zr_option_when_t, OptionWhen, warns);
    SIZE(zr_option_text_t, OptionText);
}

static void ranks(void) {
    SIZE(zr_device_options_t, DeviceOptions);
    FIELD(zr_device_options_t, DeviceOptions, n_threads);
    FIELD(zr_device_options_t, DeviceOptions, shares_memory);
    SIZE(zr_comm_options_t, CommOptions);
    FIELD(zr_comm_options_t, CommOptions, timeout_ms);
    SIZE(zr_run_options_t, RunOptions);
    FIELD(zr_run_options_t, RunOptions, device);
    FIELD(zr_run_options_t, RunOptions, comm);
    FIELD(zr_run_options_t, RunOptions, comm_options);
    FIELD(zr_run_options_t, RunOptions, launch);
    SIZE(zr_rank_t, Rank);
    FIELD(zr_rank_t, Rank, rank);
    FIELD(zr_rank_t, Rank, n_ranks);
    FIELD(zr_rank_t, Rank, comm);
    FIELD(zr_rank_t, Rank, device);
    FIELD(zr_rank_t, Rank, runtime);
    FIELD(zr_rank_t, Rank, log);
}

static void simulation(void) {
    FIELD(zr_store_info_t, StoreInfo, reserved_bytes);
    SIZE(zr_hardware_t, Hardware);
}

static void model(void) {
    SIZE(zr_group_t, Group);
    FIELD(zr_group_t, Group, weight_decay);
    FIELD(zr_group_t, Group, lr_scale);
    SIZE(zr_param_desc_t, ParamDesc);
    FIELD(zr_param_desc_t, ParamDesc, n_dims);
    FIELD(zr_param_desc_t, ParamDesc, dims);
    FIELD(zr_param_desc_t, ParamDesc, group);
    FIELD(zr_param_desc_t, ParamDesc, frozen);
    FIELD(zr_param_desc_t, ParamDesc, fill);
    FIELD(zr_param_desc_t, ParamDesc, encoding);
    FIELD(zr_param_desc_t, ParamDesc, may_be_new);
    SIZE(zr_store_extent_t, StoreExtent);
    FIELD(zr_store_extent_t, StoreExtent, size_bytes);
    SIZE(zr_extents_desc_t, ExtentsDesc);
    FIELD(zr_extents_desc_t, ExtentsDesc, unit_bytes);
    FIELD(zr_extents_desc_t, ExtentsDesc, advice);
    SIZE(zr_extents_t, Extents);
    FIELD(zr_extents_t, Extents, account);
    SIZE(zr_message_t, Message);
    FIELD(zr_message_t, Message, dtype);
    FIELD(zr_message_t, Message, traffic);
    FIELD(zr_message_t, Message, encoding);
    SIZE(zr_step_report_t, StepReport);
    FIELD(zr_step_report_t, StepReport, lr);
    FIELD(zr_step_report_t, StepReport, gradient_norm);
    FIELD(zr_step_report_t, StepReport, clip_factor);
    FIELD(zr_step_report_t, StepReport, skipped);
    FIELD(zr_step_report_t, StepReport, n_skipped);
}

static void updates(void) {
    SIZE(zr_update_t, Update);
    FIELD(zr_update_t, Update, grad);
    FIELD(zr_update_t, Update, grad_dtype);
    FIELD(zr_update_t, Update, lr);
    FIELD(zr_update_t, Update, hyper);
    FIELD(zr_update_t, Update, step);
    SIZE(zr_tensor_update_t, TensorUpdate);
    FIELD(zr_tensor_update_t, TensorUpdate, update);
}

static void memory(void) {
    SIZE(zr_tier_statistics_t, TierStatistics);
    FIELD(zr_tier_statistics_t, TierStatistics, live);
    FIELD(zr_tier_statistics_t, TierStatistics, reserved);
    FIELD(zr_tier_statistics_t, TierStatistics, by_tag);
    FIELD(zr_tier_statistics_t, TierStatistics, by_lifetime);
}

static void checkpoints(void) {
    SIZE(zr_secret_t, Secret);
    SIZE(zr_launch_t, Launch);
    FIELD(zr_launch_t, Launch, secret);
    FIELD(zr_launch_t, Launch, socket);
    SIZE(zr_place_t, Place);
    FIELD(zr_place_t, Place, addresses);
    SIZE(zr_save_options_t, SaveOptions);
    FIELD(zr_save_options_t, SaveOptions, trainer_json);
    FIELD(zr_save_options_t, SaveOptions, goes_on);
    FIELD(zr_save_options_t, SaveOptions, keep);
    FIELD(zr_save_options_t, SaveOptions, keep_also);
    FIELD(zr_save_options_t, SaveOptions, secret);
    SIZE(zr_save_report_t, SaveReport);
    FIELD(zr_save_report_t, SaveReport, n_bytes);
    SIZE(zr_checkpoint_tensor_t, CheckpointTensor);
    FIELD(zr_checkpoint_tensor_t, CheckpointTensor, n_elems);
    SIZE(zr_checkpoint_info_t, CheckpointInfo);
    FIELD(zr_checkpoint_info_t, CheckpointInfo, step);
    FIELD(zr_checkpoint_info_t, CheckpointInfo, dtype);
    FIELD(zr_checkpoint_info_t, CheckpointInfo, data_bytes);
    FIELD(zr_checkpoint_info_t, CheckpointInfo, n_arrays);
    FIELD(zr_checkpoint_info_t, CheckpointInfo, is_signed);
}

int main(void) {
    SIZE(zr_config_t, Config);
    options();
    ranks();
    simulation();
    model();
    updates();
    memory();
    checkpoints();
    return 0;
}
