/*
 * Proof of a capacity: a few steps of real training at that size, and that the next larger size is
 * refused.
 */
#pragma once

#include "examples/capacity/search.h"
#include "examples/train/train.h"

typedef struct capacity_proof {
    bool is_made;    /* both runs were: what follows says something */
    bool trained;    /* all steps, with a loss that is a number, within its budgets */
    bool as_planned; /* its peaks are those of a plan of as many steps, to the byte */
    bool refused;    /* the next larger size was; also true without a next size, or if it is too slow */
    train_result_t result;
    char message[1024];      /* of a training that failed */
    char next_message[1024]; /* of the refusal: cut off where a plan's is */
} capacity_proof_t;

/**
 * Train what a search has found, and what is just too large, with the budgets of the search: the
 * latter for as many steps as a plan has at least, since it may be refused in the last of them.
 *
 * @return ZR_OK, whatever came of it; ZR_ERR_STATE: `stop` of the search was set; ZR_ERR_IO or
 *         ZR_ERR_MEMORY when there is nothing to train on: logged
 *
 * Data are tokens of its own, drawn from the seed, in a file without a name.
 */
ZR_NODISCARD zr_status_t capacity_verify(const capacity_search_t *search,
                                         capacity_proof_t *proof_p);
