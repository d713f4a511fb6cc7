/*
 * The oracle itself, against finite differences of its own loss: every element of a tiny model.
 */
#include "tests/common/test.h"
#include "tests/ref/ref_gpt.h"

TEST(test_gradients) {
    const ref_gpt_shape_t shape = {2, 6, 2, 5, 7};
    const int32_t tokens[] = {3, 1, 6, 0, 3, 3, 2, 5}, targets[] = {1, 6, 0, 4, 3, 2, 5, 1};
    size_t n_tensors = ref_gpt_n_tensors(&shape);
    double **params = calloc(n_tensors, sizeof(double *));
    double **gradients = calloc(n_tensors, sizeof(double *));
    uint64_t seed = 1;
    char name[64];
    for (size_t i = 0; i < n_tensors; i++) {
        size_t n = ref_gpt_tensor(&shape, i, name);
        params[i] = malloc(n * sizeof(double));
        gradients[i] = malloc(n * sizeof(double));
        for (size_t j = 0; j < n; j++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            params[i][j] = (double)(seed >> 40) / (double)(1 << 24) - 0.4;
        }
    }
    ref_gpt(&shape, params, gradients, tokens, targets, 2, 4);
    const double h = 1e-5;
    for (size_t i = 0; i < n_tensors; i++) {
        size_t n = ref_gpt_tensor(&shape, i, name);
        for (size_t j = 0; j < n; j++) {
            double value = params[i][j];
            params[i][j] = value + h;
            double above = ref_gpt(&shape, params, NULL, tokens, targets, 2, 4);
            params[i][j] = value - h;
            double below = ref_gpt(&shape, params, NULL, tokens, targets, 2, 4);
            params[i][j] = value;
            double difference = (above - below) / (2.0 * h);
            if (fabs(difference - gradients[i][j]) > 1e-7)
                fail_msg("%s[%zu]: gradient %.10g, finite difference %.10g", name, j,
                         gradients[i][j], difference);
        }
    }
    for (size_t i = 0; i < n_tensors; i++) {
        free(params[i]);
        free(gradients[i]);
    }
    free(params);
    free(gradients);
}
