/*
 * --run FILE: options of a run in a file, JSON or the flat part of TOML.
 */
#pragma once

#include "examples/train/options.h"

/**
 * Note what a file has for options that were not given. Names are those of the command line, with
 * '-' or '_'; a list is an option several times, or its values with commas between; true and false
 * give a flag or leave it out.
 *
 * @param given    the command line's; values that are added are of *root_p
 * @param n_p      values that were added
 * @param root_p   the caller drops it when `given` is no longer used; also on error
 * @return ZR_OK; ZR_ERR_ARGUMENT for an unknown name or a value that is none; ZR_ERR_FORMAT;
 *         ZR_ERR_IO; ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t train_run_file_read(const char *path, const zr_log_t *log,
                                             options_given_t *given, size_t *n_p,
                                             struct json_t **root_p);
