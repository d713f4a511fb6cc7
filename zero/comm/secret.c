/* See secret_internal.h; and how a secret is read, for launch.h. */
#include "zero/comm/secret_internal.h"

#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/text_file.h"
#include "kernels/kernels.h"

enum { LEAST_BYTES = 16, MOST_BYTES = 4096 };

/* ---- reading --------------------------------------------------------------------------------- */

/* What a file or a variable holds, but for the end of its line. */
static zr_status_t take_secret(const zr_log_t *log, const char *from, const char *text,
                               size_t n_bytes, zr_secret_t *secret_p) {
    while (n_bytes > 0 && (text[n_bytes - 1] == '\n' || text[n_bytes - 1] == '\r'))
        n_bytes--;
    if (n_bytes < LEAST_BYTES || n_bytes > MOST_BYTES)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: the secret has %s; %d to %d are required, so that it cannot be "
                       "guessed: head -c 32 /dev/urandom | base64 creates one",
                       from, zr_count_text(n_bytes, "byte").text, LEAST_BYTES, MOST_BYTES);
    if (sodium_init() < 0)
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "%s: libsodium cannot be used here", from);
    crypto_generichash(secret_p->key, sizeof(secret_p->key), (const unsigned char *)text, n_bytes,
                       NULL, 0);
    secret_p->is_given = true;
    return ZR_OK;
}

zr_status_t zr_secret_read(const zr_log_t *log, const char *path, zr_secret_t *secret_p) {
    char *text = NULL;
    size_t n_bytes = 0;
    struct stat file;
    if (stat(path, &file) != 0)
        return zr_fail(log, ZR_ERR_IO, "%s: cannot read it: %s", path, strerror(errno));
    if (S_ISDIR(file.st_mode))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: is a folder; a file with the secret is wanted",
                       path);
    if ((file.st_mode & (S_IWGRP | S_IRWXO)) != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: other users may read or change this secret (mode %04o); chmod 600 %s, "
                       "and create another secret if somebody has read it",
                       path, (unsigned)file.st_mode & 07777, path);
    ZR_TRY(zr_text_file_read(path, 2 * MOST_BYTES, log, &text, &n_bytes));
    zr_status_t status = take_secret(log, path, text, n_bytes, secret_p);
    sodium_memzero(text, n_bytes);
    free(text);
    return status;
}

/* Of the environment, from when it was taken there: a process may be several ranks, one after the
 * other, as a program that opens and closes communicators is. */
static zr_secret_t of_environment;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

zr_status_t zr_secret_take_from_environment(const zr_log_t *log, zr_secret_t *secret_p) {
    zr_status_t status = ZR_OK;
    pthread_mutex_lock(&lock);
    char *text = getenv(ZR_SECRET_VARIABLE);
    if (text != NULL) {
        status = take_secret(log, ZR_SECRET_VARIABLE, text, strlen(text), &of_environment);
        sodium_memzero(text, strlen(text)); /* /proc shows what the process began with */
        unsetenv(ZR_SECRET_VARIABLE);
    }
    if (status == ZR_OK)
        *secret_p = of_environment;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- signatures ------------------------------------------------------------------------------ */

/* Keys of connections are made of 65 bytes that begin with 0 or 1: no text does. */
void zr_secret_sign(const zr_secret_t *secret, const char *purpose, const void *bytes,
                    size_t n_bytes, unsigned char signature[ZR_SIGNATURE_BYTES]) {
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, secret->key, ZR_SECRET_BYTES, ZR_SIGNATURE_BYTES);
    (void)crypto_generichash_update(&state, (const unsigned char *)purpose, strlen(purpose) + 1);
    (void)crypto_generichash_update(&state, bytes, n_bytes);
    (void)crypto_generichash_final(&state, signature, ZR_SIGNATURE_BYTES);
}

bool zr_signatures_equal(const void *a, const void *b, size_t n_bytes) {
    return sodium_memcmp(a, b, n_bytes) == 0;
}

/* ---- seals ----------------------------------------------------------------------------------- */

void zr_nonce_draw(unsigned char nonce[ZR_NONCE_BYTES]) {
    randombytes_buf(nonce, ZR_NONCE_BYTES);
}

zr_seal_t zr_seal_begin(const zr_secret_t *secret) {
    return (zr_seal_t){.tag_bytes = secret->is_given ? ZR_SEAL_BYTES : 0};
}

void zr_seal_make_keys(zr_seal_t *seal, const zr_secret_t *secret, bool has_listened,
                       const unsigned char *nonce_of_listener,
                       const unsigned char *nonce_of_connector) {
    unsigned char *keys[2] = {has_listened ? seal->receive_key : seal->send_key,
                              has_listened ? seal->send_key : seal->receive_key};
    unsigned char drawn[1 + 2 * ZR_NONCE_BYTES];
    if (!secret->is_given)
        return;
    memcpy(drawn + 1, nonce_of_listener, ZR_NONCE_BYTES);
    memcpy(drawn + 1 + ZR_NONCE_BYTES, nonce_of_connector, ZR_NONCE_BYTES);
    for (int i = 0; i < 2; i++) {
        drawn[0] = (unsigned char)i; /* to who listens, and back */
        crypto_generichash(keys[i], ZR_SECRET_BYTES, drawn, sizeof(drawn), secret->key,
                           ZR_SECRET_BYTES);
    }
    seal->has_keys = true;
}

/* A place in the order is there once for a key. */
typedef struct place {
    unsigned char bytes[crypto_aead_chacha20poly1305_IETF_NPUBBYTES];
} place_t;

static place_t place_of(uint64_t n_frames) {
    place_t place = {{0}};
    memcpy(place.bytes, &n_frames, sizeof(n_frames));
    return place;
}

size_t zr_seal_put(zr_seal_t *seal, void *frame, size_t frame_bytes) {
    place_t place = place_of(seal->n_sent);
    unsigned char nothing[1] = {0}; /* is encrypted */
    if (!seal->has_keys)
        return 0;
    (void)crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        nothing, (unsigned char *)frame + frame_bytes, NULL, nothing, 0, frame, frame_bytes, NULL,
        place.bytes, seal->send_key);
    seal->n_sent++;
    return ZR_SEAL_BYTES;
}

bool zr_seal_is_right(const zr_seal_t *seal, const void *frame, size_t frame_bytes) {
    place_t place = place_of(seal->n_received);
    unsigned char nothing[1] = {0};
    if (seal->tag_bytes == 0 || !seal->has_keys)
        return seal->tag_bytes == 0;
    return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
               nothing, NULL, nothing, 0, (const unsigned char *)frame + frame_bytes, frame,
               frame_bytes, place.bytes, seal->receive_key) == 0;
}
