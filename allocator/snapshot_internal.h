/*
 * What the writers of snapshots share.
 */
#pragma once

#include "allocator/record_internal.h"
#include "allocator/snapshot.h"

/* Longer names are cut. */
#define ZR_SNAPSHOT_NAME_BYTES 512

/**
 * A name as every reader takes it: valid UTF-8 without control characters, ended by a zero.
 *
 * @param buffer  [ZR_SNAPSHOT_NAME_BYTES]
 * @return buffer
 */
const char *zr_snapshot_name(const char *name, char *buffer);
