/*
 * Folders for the store "uring", which stands for drives, below $TMPDIR or /tmp; where there is no
 * such store, that is said, and store_paths stays empty.
 */
#pragma once

#include "offload/store.h"
#include "tests/common/test.h"

static char store_folders[2][64], store_paths[160];

static inline int find_store_folders(void **state) {
    const char *base = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    const char *both[] = {store_folders[0], store_folders[1]};
    zr_store_options_t options = zr_store_options_default();
    zr_store_t *store = NULL;
    for (int i = 0; i < 2; i++) {
        snprintf(store_folders[i], sizeof(store_folders[i]), "%.30s/zr-test-store-XXXXXX", base);
        if (mkdtemp(store_folders[i]) == NULL)
            return -1;
    }
    options.paths = both;
    options.n_paths = 2;
    if (zr_store_create("uring", &options, NULL, 0, &store) == ZR_OK)
        snprintf(store_paths, sizeof(store_paths), "%s,%s", both[0], both[1]);
    else
        printf("skipped: nothing over files: there is no store \"uring\" here, see above\n");
    zr_store_destroy(&store);
    return 0;
}

/* Nothing is left in them. */
static inline int leave_store_folders(void **state) {
    return rmdir(store_folders[0]) | rmdir(store_folders[1]);
}
