/*
 * Headers of llm.c's model files: each number that is wrong is refused, and the sizes of files are
 * those that llm.c has.
 */
#include "examples/weights/llmc.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

static kept_log_t captured;

/* GPT-2 with 124 million parameters, as llm.c has it in fp32: 124475904 numbers behind the header.
 */
#define FILE_BYTES ((uint64_t)1024 + 4 * (uint64_t)124475904)
static const int32_t gpt2[8] = {20240326, 3, 1024, 50257, 12, 12, 768, 50304};

static zr_status_t parse(size_t at, int32_t number, uint64_t file_bytes, llmc_header_t *header_p) {
    int32_t ints[LLMC_HEADER_INTS] = {0};
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    memcpy(ints, gpt2, sizeof(gpt2));
    ints[at] = number;
    return llmc_parse(ints, file_bytes, "x.bin", &log, header_p);
}

TEST(test_gpt2) {
    llmc_header_t header;
    assert_ok(parse(1, 3, FILE_BYTES, &header));
    assert_int_equal(header.shape.n_layers, 12);
    assert_int_equal(header.shape.vocab, 50257);
    assert_int_equal(header.padded_vocab, 50304);
    assert_int_equal(header.kind, ELEMENT_FP32);
    assert_ok(parse(1, 5, 1024 + (FILE_BYTES - 1024) / 2, &header));
    assert_int_equal(header.kind, ELEMENT_BF16);

    llmc_header_t made = llmc_header_of(&header.shape, ELEMENT_FP32);
    assert_int_equal(made.padded_vocab, 50304);
    assert_int_equal(llmc_file_bytes(&made), FILE_BYTES);
}

static void refuse(size_t at, int32_t number, const char *said) {
    llmc_header_t header;
    if (parse(at, number, FILE_BYTES, &header) != ZR_ERR_FORMAT ||
        strstr(captured.text, said) == NULL)
        fail_msg("number %zu is %d: %s", at, (int)number, captured.text);
}

TEST(test_refused_numbers) {
    refuse(0, 20240520, "it begins with 20240520 instead of 20240326");
    refuse(1, 1, "version 1 of llm.c's model files");
    refuse(1, 4, "version 4");
    for (size_t at = 2; at <= 6; at++) {
        refuse(at, 0, "x.bin layers=");
        refuse(at, -1, "x.bin layers=");
    }
    refuse(2, 1023, "it has 497904640 bytes");
    refuse(5, 11, "heads=11 does not divide channels=768");
    refuse(4, INT32_MAX, "x.bin layers=");
    refuse(6, INT32_MAX, "x.bin layers=");
    refuse(7, 50256, "padded to 50256");
    refuse(7, 0, "padded to 0");
    refuse(7, INT32_MIN, "padded to -2147483648");
    refuse(7, INT32_MAX, "it may grow by 0 to 1048576");
    refuse(7, 50305, "damaged or truncated");
}

TEST(test_refused_sizes) {
    static const uint64_t sizes[] = {1024, FILE_BYTES - 1, FILE_BYTES + 1, UINT64_MAX};
    llmc_header_t header;
    for (size_t i = 0; i < N_OF(sizes); i++)
        assert_int_equal(parse(1, 3, sizes[i], &header), ZR_ERR_FORMAT);
    assert_int_equal(parse(1, 5, FILE_BYTES, &header), ZR_ERR_FORMAT);
}

TEST(test_what_has_no_header) {
    int32_t ints[LLMC_HEADER_INTS];
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    zr_gpt_shape_t shape = {.n_layers = 1, .channels = 8, .heads = 2, .seq = 5, .vocab = 13};
    llmc_header_t header = llmc_header_of(&shape, ELEMENT_FP16);
    assert_int_equal(llmc_build(&header, &log, ints), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "--dtype fp16");
    shape.vocab = INT32_MAX;
    header = llmc_header_of(&shape, ELEMENT_FP32);
    assert_int_equal(llmc_build(&header, &log, ints), ZR_ERR_ARGUMENT);
    assert_has(captured.text, "2147483648 does not fit");
}
