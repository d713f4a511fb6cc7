/* Adapters for tests: of rank 3, beside every linear layer, twice as strong as usual. */
#pragma once

#include "models/lora.h"

static inline const zr_part_adapter_t *low_rank_adapter(void) {
    static zr_lora_t lora;
    lora = zr_lora_usual();
    lora.rank = 3;
    lora.alpha = 6.0;
    return &lora.adapter;
}
