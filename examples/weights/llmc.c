/* The header, and where each parameter lies behind it. */
#include "examples/weights/llmc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "examples/common/files.h"

/* Where the numbers stand. */
enum { AT_MAGIC, AT_VERSION, AT_SEQ, AT_VOCAB, AT_LAYERS, AT_HEADS, AT_CHANNELS, AT_PADDED_VOCAB };

enum { VERSION_FP32 = 3, VERSION_BF16 = 5 };

static zr_model_text_t text_of(const zr_gpt_shape_t *shape) {
    zr_model_shape_t model = {.kind = ZR_MODEL_GPT, .of.gpt = *shape};
    return zr_model_shape_text(&model);
}

/* ---- sizes ------------------------------------------------------------------------------- */

/* Elements of one parameter of a kind, with the embedding's padding. */
static uint64_t elements_of_kind(const llmc_header_t *header, zr_gpt_kind_t kind) {
    zr_gpt_tensor_t tensor = zr_gpt_tensor(&header->shape, kind, 0);
    return kind == ZR_GPT_WTE ? (uint64_t)header->padded_vocab * header->shape.channels
                              : tensor.n_elems;
}

static uint64_t elements_of_all(const llmc_header_t *header, zr_gpt_kind_t kind) {
    uint64_t n = zr_gpt_kind_is_of_layer(kind) ? header->shape.n_layers : 1;
    return n * elements_of_kind(header, kind);
}

uint64_t llmc_offset_bytes(const llmc_header_t *header, const zr_gpt_tensor_t *tensor) {
    uint64_t n_elems = tensor->layer * elements_of_kind(header, tensor->kind);
    for (int kind = 0; kind < (int)tensor->kind; kind++)
        n_elems += elements_of_all(header, (zr_gpt_kind_t)kind);
    return LLMC_HEADER_BYTES + n_elems * element_type_of(header->kind)->size_bytes;
}

uint64_t llmc_file_bytes(const llmc_header_t *header) {
    zr_gpt_tensor_t last = zr_gpt_tensor(&header->shape, ZR_GPT_LN_F_BIAS, 0);
    return llmc_offset_bytes(header, &last) +
           last.n_elems * element_type_of(header->kind)->size_bytes;
}

llmc_header_t llmc_header_of(const zr_gpt_shape_t *shape, element_kind_t kind) {
    size_t n = LLMC_VOCAB_MULTIPLE;
    return (llmc_header_t){
        .shape = *shape, .padded_vocab = (shape->vocab + n - 1) / n * n, .kind = kind};
}

/* ---- the header -------------------------------------------------------------------------- */

static zr_status_t check_version(int32_t version, const char *where, const zr_log_t *log,
                                 element_kind_t *kind_p) {
    if (version != VERSION_FP32 && version != VERSION_BF16)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: version %" PRId32
                       " of llm.c's model files; %d (fp32) and %d (bf16) are read, and older ones "
                       "can be made again with a newer llm.c",
                       where, version, VERSION_FP32, VERSION_BF16);
    *kind_p = version == VERSION_FP32 ? ELEMENT_FP32 : ELEMENT_BF16;
    return ZR_OK;
}

/* The vocabulary's padding is less than a model could have words. */
static zr_status_t check_padding(const int32_t *ints, const char *where, const zr_log_t *log) {
    if (ints[AT_PADDED_VOCAB] < ints[AT_VOCAB] ||
        ints[AT_PADDED_VOCAB] - ints[AT_VOCAB] > (1 << 20))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: a vocabulary of %" PRId32 " padded to %" PRId32 "; it may grow by 0 to "
                       "%d",
                       where, ints[AT_VOCAB], ints[AT_PADDED_VOCAB], 1 << 20);
    return ZR_OK;
}

static zr_status_t read_shape(const int32_t *ints, const char *where, const zr_log_t *log,
                              zr_gpt_shape_t *shape_p) {
    char text[160];
    zr_model_shape_t shape;
    snprintf(text, sizeof(text),
             "layers=%" PRId32 ",channels=%" PRId32 ",heads=%" PRId32 ",seq=%" PRId32
             ",vocab=%" PRId32,
             ints[AT_LAYERS], ints[AT_CHANNELS], ints[AT_HEADS], ints[AT_SEQ], ints[AT_VOCAB]);
    files_log_t own = {.log = *log, .option = where};
    zr_log_t named = files_log(&own);
    if (zr_model_shape_read(text, &named, &shape) != ZR_OK)
        return ZR_ERR_FORMAT;
    *shape_p = shape.of.gpt;
    return ZR_OK;
}

zr_status_t llmc_parse(const void *bytes, uint64_t file_bytes, const char *where,
                       const zr_log_t *log, llmc_header_t *header_p) {
    int32_t ints[LLMC_HEADER_INTS];
    llmc_header_t header;
    memcpy(ints, bytes, sizeof(ints));
    if (ints[AT_MAGIC] != LLMC_MAGIC)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: no model file of llm.c: it begins with %" PRId32 " instead of %d",
                       where, ints[AT_MAGIC], LLMC_MAGIC);
    ZR_TRY(check_version(ints[AT_VERSION], where, log, &header.kind));
    ZR_TRY(read_shape(ints, where, log, &header.shape));
    ZR_TRY(check_padding(ints, where, log));
    header.padded_vocab = (size_t)ints[AT_PADDED_VOCAB];
    if (llmc_file_bytes(&header) != file_bytes)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: it has %s, and a model with %s, padded to %s, in "
                       "%s %" PRIu64 ": it is damaged or truncated",
                       where, zr_count_text(file_bytes, "byte").text, text_of(&header.shape).text,
                       zr_count_text(header.padded_vocab, "word").text,
                       element_type_of(header.kind)->name, llmc_file_bytes(&header));
    *header_p = header;
    return ZR_OK;
}

zr_status_t llmc_build(const llmc_header_t *header, const zr_log_t *log,
                       int32_t ints[LLMC_HEADER_INTS]) {
    const zr_gpt_shape_t *shape = &header->shape;
    if (header->kind != ELEMENT_FP32 && header->kind != ELEMENT_BF16)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--dtype fp16: files of llm.c have fp32 or bf16; the nearest is bf16");
    size_t numbers[] = {[AT_MAGIC] = LLMC_MAGIC,
                        [AT_VERSION] = header->kind == ELEMENT_FP32 ? VERSION_FP32 : VERSION_BF16,
                        [AT_SEQ] = shape->seq,
                        [AT_VOCAB] = shape->vocab,
                        [AT_LAYERS] = shape->n_layers,
                        [AT_HEADS] = shape->heads,
                        [AT_CHANNELS] = shape->channels,
                        [AT_PADDED_VOCAB] = header->padded_vocab};
    memset(ints, 0, LLMC_HEADER_BYTES);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i] > INT32_MAX)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "a model with %s: %zu does not fit into the header of llm.c",
                           text_of(shape).text, numbers[i]);
        ints[i] = (int32_t)numbers[i];
    }
    return ZR_OK;
}
