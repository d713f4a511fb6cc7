/*
 * The model's own answer, for comparison with other tools: a checkpoint is restored into its model,
 * and for some tokens the logarithm of every next token's probability is printed, at each position;
 * or the mean loss of all tokens but the first.
 *
 *   model_says log-probs|loss CHECKPOINT TOKEN...
 *
 * The model gives losses alone. With the targets before a position unchanged, the loss goes up and
 * down with the last target just as minus its logarithm does; what is before is the loss of one
 * token less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/parts.h"
#include "examples/weights/weights_checkpoint.h"

#define MOST_TOKENS 4096

typedef struct model {
    zr_log_t log;
    zr_checkpoint_t *checkpoint;
    zr_model_shape_t shape;
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_model_t *model;
} model_t;

static zr_status_t find_shape(model_t *model) {
    weights_t *weights;
    ZR_TRY(weights_of_checkpoint(model->checkpoint, NULL, &model->log, &weights));
    model->shape = weights->shape;
    weights_close(&weights);
    return ZR_OK;
}

static zr_status_t open_model(model_t *model, const char *path) {
    zr_config_t config = zr_config_default();
    config.dtype = ZR_DTYPE_F32;
    zr_transformer_options_t options = {.seed = 1};
    zr_device_options_t device = {.log = model->log, .n_threads = 1}; /* models are tiny */
    ZR_TRY(zr_checkpoint_open(path, &model->log, &model->checkpoint));
    ZR_TRY(find_shape(model));
    ZR_TRY(zr_config_resolve(&config, 1, &model->log));
    ZR_TRY(zr_comm_create_threads(1, NULL, &model->comm));
    ZR_TRY(zr_device_open("host", &device, &model->device));
    ZR_TRY(zr_runtime_create(&config, model->comm, model->device, &model->log, &model->runtime));
    ZR_TRY(zr_model_shape_create(model->runtime, &model->shape, &options, NULL, &model->model));
    ZR_TRY(zr_runtime_restore(model->runtime, model->checkpoint));
    return zr_model_commit(model->model);
}

static void close_model(model_t *model) {
    zr_model_destroy(&model->model);
    zr_runtime_destroy(&model->runtime);
    zr_device_close(&model->device);
    zr_comm_destroy(&model->comm);
    zr_checkpoint_close(&model->checkpoint);
}

/* The sum of losses of the first t tokens. */
static zr_status_t sum_losses(model_t *model, const int32_t *tokens, const int32_t *targets,
                              size_t t, double *sum_p) {
    double mean;
    zr_host_batch_t batch = {.n_sequences = 1,
                             .seq = t,
                             .inputs = {[ZR_PART_TOKENS] = tokens, [ZR_PART_TARGETS] = targets}};
    ZR_TRY(zr_model_evaluate(model->model, &batch, &mean));
    *sum_p = mean * (double)t;
    return ZR_OK;
}

static zr_status_t print_position(model_t *model, const int32_t *tokens, size_t position) {
    int32_t targets[MOST_TOKENS] = {0};
    double before = 0.0;
    if (position > 0)
        ZR_TRY(sum_losses(model, tokens, targets, position, &before));
    for (size_t word = 0; word < zr_model_shape_sizes(&model->shape).vocab; word++) {
        double sum;
        targets[position] = (int32_t)word;
        ZR_TRY(sum_losses(model, tokens, targets, position + 1, &sum));
        printf("%s%.9g", word == 0 ? "[" : ", ", before - sum);
    }
    printf("]");
    return ZR_OK;
}

static zr_status_t print_all(model_t *model, const int32_t *tokens, size_t n_tokens) {
    for (size_t i = 0; i < n_tokens; i++) {
        printf("%s", i == 0 ? "[" : ",\n");
        ZR_TRY(print_position(model, tokens, i));
    }
    printf("]\n");
    return ZR_OK;
}

static zr_status_t print_loss(model_t *model, const int32_t *tokens, size_t n_tokens) {
    double sum;
    ZR_TRY(sum_losses(model, tokens, tokens + 1, n_tokens - 1, &sum));
    printf("%.9g\n", sum / (double)(n_tokens - 1));
    return ZR_OK;
}

int main(int argc, char **argv) {
    model_t model = {.log = zr_log_default()};
    static int32_t tokens[MOST_TOKENS];
    size_t n_tokens = 0;
    if (argc < 5 || argc > MOST_TOKENS + 3)
        return 2;
    for (int i = 3; i < argc; i++)
        tokens[n_tokens++] = atoi(argv[i]);
    zr_status_t status = open_model(&model, argv[2]);
    if (status == ZR_OK)
        status = (strcmp(argv[1], "loss") == 0 ? print_loss : print_all)(&model, tokens, n_tokens);
    close_model(&model);
    return status == ZR_OK ? 0 : 1;
}
