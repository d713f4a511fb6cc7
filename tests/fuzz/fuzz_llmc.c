/*
 * Headers of llm.c's model files. An input is the header and the size that the file is to have, as
 * 8 bytes behind it; of what is read, the parameters lie one behind the other and end with the
 * file.
 */
#include <string.h>

#include "examples/weights/llmc.h"
#include "tests/fuzz/fuzz.h"

#define INPUT_BYTES (LLMC_HEADER_BYTES + sizeof(uint64_t))

static void ask(const llmc_header_t *header, uint64_t file_bytes) {
    const zr_gpt_shape_t *shape = &header->shape;
    uint64_t end = LLMC_HEADER_BYTES;
    FUZZ_REQUIRE(header->padded_vocab >= shape->vocab && shape->channels % shape->heads == 0);
    for (int kind = 0; kind < ZR_GPT_N_KINDS; kind++) {
        size_t n = zr_gpt_kind_is_of_layer((zr_gpt_kind_t)kind) ? shape->n_layers : 1;
        zr_gpt_tensor_t first = zr_gpt_tensor(shape, (zr_gpt_kind_t)kind, 0);
        zr_gpt_tensor_t last = zr_gpt_tensor(shape, (zr_gpt_kind_t)kind, n - 1);
        size_t n_elems =
            kind == ZR_GPT_WTE ? header->padded_vocab * shape->channels : first.n_elems;
        FUZZ_REQUIRE(llmc_offset_bytes(header, &first) == end);
        end =
            llmc_offset_bytes(header, &last) + n_elems * element_type_of(header->kind)->size_bytes;
    }
    FUZZ_REQUIRE(end == file_bytes && end == llmc_file_bytes(header));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    llmc_header_t header;
    uint64_t file_bytes;
    int32_t ints[LLMC_HEADER_INTS];
    if (n_bytes < INPUT_BYTES)
        return 0;
    memcpy(&file_bytes, bytes + LLMC_HEADER_BYTES, sizeof(file_bytes));
    zr_status_t status = llmc_parse(bytes, file_bytes, "fuzz", &log, &header);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK) {
        ask(&header, file_bytes);
        FUZZ_REQUIRE(llmc_build(&header, &log, ints) == ZR_OK);
        FUZZ_REQUIRE(memcmp(ints, bytes, 8 * sizeof(int32_t)) == 0);
    }
    return 0;
}

/* The size that a header asks for, where it is one. */
static void seal(uint8_t *bytes) {
    int32_t ints[8];
    memcpy(ints, bytes, sizeof(ints));
    for (int i = 2; i < 8; i++)
        if (ints[i] <= 0 || ints[i] > 1000000)
            return;
    llmc_header_t header = {.shape = {.n_layers = (size_t)ints[4] % 100000,
                                      .channels = (size_t)ints[6],
                                      .heads = (size_t)ints[5],
                                      .seq = (size_t)ints[2],
                                      .vocab = (size_t)ints[3]},
                            .padded_vocab = (size_t)ints[7],
                            .kind = ints[1] == 3 ? ELEMENT_FP32 : ELEMENT_BF16};
    uint64_t file_bytes = llmc_file_bytes(&header);
    memcpy(bytes + LLMC_HEADER_BYTES, &file_bytes, sizeof(file_bytes));
}

/* One of the numbers becomes another. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    static const int32_t numbers[] = {
        0,       -1,     1,     2,       3,    5,         128,       1024,       50257, 50304,
        1 << 20, 100000, 99999, 1000000, 1001, INT32_MAX, INT32_MIN, 1000000000, 12};
    uint64_t state = seed, any = fuzz_random(&state);
    int32_t number;
    if (n_bytes < INPUT_BYTES || any % 16 == 0)
        return LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
    size_t at = (any >> 8) % 16 != 0 ? (any >> 16) % 8 : (any >> 16) % LLMC_HEADER_INTS;
    memcpy(&number, bytes + 4 * at, sizeof(number));
    switch (any >> 32 & 3) {
    case 0:
        number = (int32_t)((uint32_t)number + 1);
        break;
    case 1:
        number = (int32_t)((uint32_t)number * 2);
        break;
    default:
        number = numbers[(any >> 40) % (sizeof(numbers) / sizeof(numbers[0]))];
    }
    memcpy(bytes + 4 * at, &number, sizeof(number));
    if ((any >> 36) % 16 != 0)
        seal(bytes);
    return n_bytes;
}
