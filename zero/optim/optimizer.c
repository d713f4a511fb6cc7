/* The optimizers of the library, by name. */
#include "zero/optim/optimizer.h"

#include <strings.h>

static const zr_optimizer_type_t *const types[] = {&zr_adamw, &zr_lion, &zr_sgd};

const zr_optimizer_type_t *const *zr_optimizers(size_t *n_p) {
    *n_p = sizeof(types) / sizeof(types[0]);
    return types;
}

const zr_optimizer_type_t *zr_optimizer_find(const char *name) {
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcasecmp(name, types[i]->name) == 0 ||
            (types[i]->alias != NULL && strcasecmp(name, types[i]->alias) == 0))
            return types[i];
    return NULL;
}
