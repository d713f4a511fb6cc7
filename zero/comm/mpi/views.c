/* See views.h. */
#include "zero/comm/mpi/views.h"

#include <sys/mman.h>

uint64_t zr_views_place(zr_device_t *device, const void *tensor, size_t size_bytes) {
    uint64_t offset = ZR_NOWHERE;
    return zr_host_find_shared(device, tensor, size_bytes, &offset) ? offset : ZR_NOWHERE;
}

int zr_views_open(zr_view_t *view, const zr_card_t *card, uint64_t size_bytes) {
    zr_host_file_t file = card->file;
    void *base = NULL;
    file.size_bytes = size_bytes;
    zr_views_close(view, 1);
    int error = zr_host_map_shared(&file, card->pid, &base);
    if (error == 0)
        *view = (zr_view_t){.base = base, .size_bytes = size_bytes};
    return error;
}

void *zr_views_tensor(const zr_view_t *view, uint64_t place) {
    return view->base != NULL && place != ZR_NOWHERE ? view->base + place : NULL;
}

void zr_views_close(zr_view_t *views, int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++) {
        if (views[rank].base != NULL)
            munmap(views[rank].base, views[rank].size_bytes);
        views[rank] = (zr_view_t){.base = NULL};
    }
}
