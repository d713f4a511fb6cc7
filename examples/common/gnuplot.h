/*
 * Pictures by gnuplot: a script is written, and handed to it. The form is chosen by the ending of
 * the picture's name.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "zero/zero.h"

typedef struct gnuplot {
    FILE *script;     /* to be written to, behind its terminal and output */
    const char *path; /* of the picture */
    const zr_log_t *log;
} gnuplot_t;

/** Check that a picture of that name can be drawn, by its ending: NAME.svg or NAME.png. */
ZR_NODISCARD zr_status_t gnuplot_check_form(const char *option, const char *path,
                                            const zr_log_t *log);

/** Check that gnuplot is there, before hours of work end in a picture. ZR_ERR_UNSUPPORTED, logged.
 */
ZR_NODISCARD zr_status_t gnuplot_check_there(const char *option, const char *path,
                                             const zr_log_t *log);

/**
 * Begin a picture.
 *
 * @param path, log      borrowed until gnuplot_end
 * @param width, height  in pixels
 * @return ZR_OK; ZR_ERR_IO: logged
 */
ZR_NODISCARD zr_status_t gnuplot_begin(const char *path, int width, int height, const zr_log_t *log,
                                       gnuplot_t *plot_p);

/** Draw it. ZR_ERR_UNSUPPORTED: there is no gnuplot here; ZR_ERR_IO: it could not; logged. */
ZR_NODISCARD zr_status_t gnuplot_end(gnuplot_t *plot);

/** Write a text as a string of the script, whatever is in it. */
void gnuplot_text(FILE *script, const char *text);
