/*
 * Status codes of the whole library.
 *
 * Every function that can fail returns one. The place that detects an error
 * logs it once, with its numbers; callers return the status.
 */
#pragma once

/* Declarations between these have C linkage, also in C++. */
#ifdef __cplusplus
#define ZR_BEGIN_C extern "C" {
#define ZR_END_C }
#else
#define ZR_BEGIN_C
#define ZR_END_C
#endif

ZR_BEGIN_C

#if defined(__GNUC__)
#define ZR_NODISCARD __attribute__((warn_unused_result))
#define ZR_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define ZR_NODISCARD
#define ZR_PRINTF(string, first)
#endif

typedef enum zr_status {
    ZR_OK = 0,
    ZR_ERR_ARGUMENT = -1,    /* an argument, option or input value is not allowed */
    ZR_ERR_STATE = -2,       /* the call does not fit the object's state */
    ZR_ERR_MEMORY = -3,      /* the system refused memory for the library's own metadata */
    ZR_ERR_BUDGET = -4,      /* a request does not fit in a tier's budget or address range */
    ZR_ERR_DEVICE = -5,      /* the device, or work queued on it, failed */
    ZR_ERR_COMM = -6,        /* a rank is gone, late, or in another collective */
    ZR_ERR_IO = -7,          /* a file or store operation failed */
    ZR_ERR_UNSUPPORTED = -8, /* valid, but not supported by this build or device */
    ZR_ERR_FORMAT = -9       /* a file's content is invalid */
} zr_status_t;

/**
 * Name of a status, for messages.
 *
 * @return a static string such as "ZR_ERR_BUDGET"; "ZR_ERR_?" for other values
 *
 * Threads: thread-safe.
 */
const char *zr_status_name(zr_status_t status);

/** Return from the calling function when `expression` is not ZR_OK. */
#define ZR_TRY(expression)                                                                         \
    do {                                                                                           \
        zr_status_t zr_try_status = (expression);                                                  \
        if (zr_try_status != ZR_OK)                                                                \
            return zr_try_status;                                                                  \
    } while (0)

/**
 * Make a call only if `status` is ZR_OK so far, for functions that must clean up at the end and so
 * cannot return at the first error.
 */
#define ZR_THEN(status, call)                                                                      \
    do {                                                                                           \
        if ((status) == ZR_OK)                                                                     \
            (status) = (call);                                                                     \
    } while (0)

ZR_END_C
