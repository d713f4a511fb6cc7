/* The tables: see manifest_fields_internal.h. */
#include "zero/checkpoint/manifest_fields_internal.h"

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "counts are of one size");

static const zr_manifest_field_t unit_fields[] = {{"name", ZR_MANIFEST_TEXT, 0}};

#define OF_TENSOR(member) offsetof(zr_manifest_tensor_t, member)
static const zr_manifest_field_t tensor_fields[] = {
    {"name", ZR_MANIFEST_TEXT, OF_TENSOR(tensor.name)},
    {"unit", ZR_MANIFEST_COUNT, OF_TENSOR(unit)},
    {"shape", ZR_MANIFEST_SHAPE, OF_TENSOR(tensor)},
    {"frozen", ZR_MANIFEST_BOOL, OF_TENSOR(tensor.frozen)},
    {"offset", ZR_MANIFEST_COUNT, OF_TENSOR(offset_elems)},
};

#define OF_FILE(member) offsetof(zr_manifest_file_t, member)
static const zr_manifest_field_t file_fields[] = {
    {"data", ZR_MANIFEST_FILE, OF_FILE(data)},
    {"data_bytes", ZR_MANIFEST_COUNT, OF_FILE(data_bytes)},
    {"chunk_bytes", ZR_MANIFEST_COUNT, OF_FILE(chunk_bytes)},
    {"sums", ZR_MANIFEST_FILE, OF_FILE(sums)},
    {"n_chunks", ZR_MANIFEST_COUNT, OF_FILE(n_chunks)},
};

#define OF_EXTENT(member) offsetof(zr_manifest_extent_t, member)
static const zr_manifest_field_t extent_fields[] = {
    {"unit", ZR_MANIFEST_COUNT, OF_EXTENT(unit)},
    {"frozen", ZR_MANIFEST_BOOL, OF_EXTENT(frozen)},
    {"first", ZR_MANIFEST_COUNT, OF_EXTENT(first)},
    {"n_elems", ZR_MANIFEST_COUNT, OF_EXTENT(n_elems)},
    {"group_elems", ZR_MANIFEST_COUNT, OF_EXTENT(group_elems)},
    {"n_arrays", ZR_MANIFEST_INT, OF_EXTENT(n_arrays)},
    {"dtype", ZR_MANIFEST_DTYPE, OF_EXTENT(dtype)},
    {"file", ZR_MANIFEST_COUNT, OF_EXTENT(file)},
    {"offset_bytes", ZR_MANIFEST_COUNT, OF_EXTENT(offset_bytes)},
    {"first_chunk", ZR_MANIFEST_COUNT, OF_EXTENT(first_chunk)},
    {"xxh3", ZR_MANIFEST_SUM, OF_EXTENT(xxh3)},
};

#define OF_ARRAY(member) offsetof(zr_manifest_array_t, member)
static const zr_manifest_field_t array_fields[] = {
    {"name", ZR_MANIFEST_TEXT, OF_ARRAY(name)},
    {"encoding", ZR_MANIFEST_ENCODING, OF_ARRAY(encoding)},
};

#define OF_CARRIED(member) offsetof(zr_manifest_carried_t, member)
static const zr_manifest_field_t carried_fields[] = {
    {"name", ZR_MANIFEST_FILE, OF_CARRIED(name)},
    {"bytes", ZR_MANIFEST_COUNT, OF_CARRIED(n_bytes)},
    {"xxh3", ZR_MANIFEST_SUM, OF_CARRIED(xxh3)},
};

#define OF_MANIFEST(member) offsetof(zr_manifest_t, member)
#define LIST(list, type)                                                                           \
#list "s", list##_fields, sizeof(list##_fields) / sizeof(list##_fields[0]), sizeof(type),      \
        OF_MANIFEST(list##s), OF_MANIFEST(n_##list##s)

const zr_manifest_list_t zr_manifest_lists[ZR_N_MANIFEST_LISTS] = {
    {LIST(unit, char *)},
    {LIST(tensor, zr_manifest_tensor_t)},
    {LIST(file, zr_manifest_file_t)},
    {LIST(extent, zr_manifest_extent_t)},
};

const zr_manifest_list_t zr_manifest_arrays = {LIST(array, zr_manifest_array_t)};

const zr_manifest_list_t zr_manifest_carried = {"carried",
                                                carried_fields,
                                                sizeof(carried_fields) / sizeof(carried_fields[0]),
                                                sizeof(zr_manifest_carried_t),
                                                OF_MANIFEST(carried),
                                                OF_MANIFEST(n_carried)};

const zr_manifest_field_t zr_manifest_numbers[ZR_N_MANIFEST_NUMBERS] = {
    {"step", ZR_MANIFEST_COUNT, OF_MANIFEST(step)},
    {"updates", ZR_MANIFEST_COUNT, OF_MANIFEST(n_updates)},
    {"ranks", ZR_MANIFEST_INT, OF_MANIFEST(n_ranks)},
    {"stage", ZR_MANIFEST_INT, OF_MANIFEST(stage)},
    {"dtype", ZR_MANIFEST_DTYPE, OF_MANIFEST(dtype)},
};
