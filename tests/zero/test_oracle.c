/*
 * The runtime against an oracle: the same training as a few loops in double precision, without
 * shards, flat buffers or collectives.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

#define N_STEPS 4

/* Every element of the toy model that has a gradient, for the global norm. */
static const struct {
    int unit, index;
    size_t n_elems;
} all_params[] = {{0, 0, 101}, {0, 1, 1}, {0, 2, 7},   {1, 1, 1009},  {1, 2, 64}, {2, 0, 1},
                  {3, 0, 17},  {3, 2, 3}, {3, 3, 251}, {4, 0, 20011}, {4, 1, 2}};
#define N_PARAMS 11

typedef struct element {
    double master, m, v, grad;
} element_t;

static double sum_gradients(const toy_options_t *options, size_t step, element_t *const *params) {
    double squares = 0;
    double n = (double)options->n_ranks * (double)options->config.grad_accum;
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < all_params[p].n_elems; i++) {
            element_t *e = &params[p][i];
            e->grad = 0;
            for (size_t k = 0; k < options->config.grad_accum; k++)
                for (int r = 0; r < options->n_ranks; r++)
                    e->grad += toy_gradient(all_params[p].unit, all_params[p].index, step, k, r, i,
                                            (float)e->master) /
                               n;
            squares += e->grad * e->grad;
        }
    return sqrt(squares);
}

static void update(const zr_config_t *config, int group, double scale, size_t step, element_t *e) {
    double lr = config->adamw.lr * (group == 1 ? 0.5 : 1.0);
    double decay = group == 1 ? 0.0 : config->adamw.weight_decay;
    double beta1 = config->adamw.beta1, beta2 = config->adamw.beta2;
    double g = e->grad * scale;
    if (zr_config_optimizer(config) == &zr_sgd) {
        double momentum = config->momentum;
        g += decay * e->master;
        e->m = momentum * e->m + g;
        e->master -= lr * (config->nesterov ? g + momentum * e->m : e->m);
        return;
    }
    if (zr_config_optimizer(config) == &zr_lion) {
        double c = beta1 * e->m + (1 - beta1) * g;
        e->m = beta2 * e->m + (1 - beta2) * g;
        e->master -= lr * (decay * e->master + (c > 0 ? 1 : c < 0 ? -1 : 0));
        return;
    }
    e->m = beta1 * e->m + (1 - beta1) * g;
    e->v = beta2 * e->v + (1 - beta2) * g * g;
    double m_hat = e->m / (1 - pow(beta1, (double)step));
    double v_hat = e->v / (1 - pow(beta2, (double)step));
    e->master -= lr * (decay * e->master + m_hat / (sqrt(v_hat) + config->adamw.epsilon));
}

static void train_oracle(const toy_options_t *options, element_t **params, double *norm_p) {
    for (size_t step = 0; step < options->n_steps; step++) {
        double norm = sum_gradients(options, step, params);
        double clip = options->config.clip;
        double scale = clip > 0 && norm > clip ? clip / norm : 1;
        for (int p = 0; p < N_PARAMS; p++)
            for (size_t i = 0; i < all_params[p].n_elems; i++)
                update(&options->config, (all_params[p].unit + all_params[p].index) % 2, scale,
                       step + 1, &params[p][i]);
        *norm_p = norm;
    }
}

static void compare(const toy_result_t *result, element_t *const *params) {
    for (int s = 0; s < TOY_N_SAMPLES; s++)
        for (int p = 0; p < N_PARAMS; p++)
            if (all_params[p].unit == toy_samples[s].unit &&
                all_params[p].index == toy_samples[s].index)
                for (size_t i = 0; i < TOY_SAMPLE_ELEMS; i++)
                    if (fabs(result->sample[s][i] - params[p][i].master) > 2e-5)
                        fail_msg("u%d.p%d[%zu] is %.8f, the oracle has %.8f", toy_samples[s].unit,
                                 toy_samples[s].index, i, result->sample[s][i],
                                 params[p][i].master);
}

static void check(const toy_options_t *options) {
    element_t *params[N_PARAMS];
    toy_result_t result;
    double norm = 0;
    for (int p = 0; p < N_PARAMS; p++) {
        params[p] = calloc(all_params[p].n_elems, sizeof(element_t));
        for (size_t i = 0; i < all_params[p].n_elems; i++)
            params[p][i].master = toy_initial_value(all_params[p].unit, all_params[p].index, i);
    }
    train_oracle(options, params, &norm);
    toy_train_well(options, &result);
    assert_true(fabs(result.step.gradient_norm - norm) <= 1e-4 * norm);
    assert_true(options->config.clip == 0 || result.step.clip_factor < 1);
    compare(&result, params);
    for (int p = 0; p < N_PARAMS; p++)
        free(params[p]);
}

TEST(training_agrees_with_the_oracle) {
    for (int stage = 0; stage <= 3; stage++)
        for (int mix = 0; mix < 6; mix++) {
            int clip = mix % 2;
            toy_options_t options = toy_options_default(stage, 3);
            toy_set_optimizer(&options, (unsigned)mix / 2);
            options.n_steps = N_STEPS;
            options.config.grad_accum = 2;
            options.config.clip = clip ? 1.0 : 0;
            check(&options);
        }
}
