/*
 * Who may be a rank: whoever knows the run's shared secret (zr_secret_t of launch.h).
 *
 * Who listens sends a number that it has just drawn, who connects answers with one of its own, and
 * both make the connection's two keys of the secret and the two numbers. From then on each frame
 * ends with a seal, made of a key, its place in the order and all its bytes: the first of each side
 * proves that it knows the secret, and none can be changed, left out, repeated, put elsewhere or
 * sent back to where it came from. What is said can be read on the way; it is not secret.
 *
 * Without a secret there are no seals. They are those of ChaCha20-Poly1305 over bytes that are not
 * encrypted, the keys hashes of BLAKE2b, both of libsodium.
 *
 * Threads: a seal is its connection's; sending and receiving may be in two threads.
 */
#pragma once

#include <stddef.h>

#include "zero/comm/launch.h"

enum {
    ZR_SIGNATURE_BYTES = 32,
    ZR_NONCE_BYTES = 32, /* of a number that is drawn for a connection */
    ZR_SEAL_BYTES = 16   /* behind a frame, where there is a secret */
};

typedef struct zr_seal {
    size_t tag_bytes; /* behind each frame: ZR_SEAL_BYTES; 0: there is no secret */
    bool has_keys;
    unsigned char send_key[ZR_SECRET_BYTES], receive_key[ZR_SECRET_BYTES];
    uint64_t n_sent, n_received; /* frames */
} zr_seal_t;

/**
 * Sign bytes: who does not know the secret cannot make the signature, a BLAKE2b keyed with it.
 *
 * @param secret   it is given
 * @param purpose  what is signed, a text: a signature serves for nothing else
 */
void zr_secret_sign(const zr_secret_t *secret, const char *purpose, const void *bytes,
                    size_t n_bytes, unsigned char signature[ZR_SIGNATURE_BYTES]);
/** Compare two in a time that does not depend on where they differ. */
bool zr_signatures_equal(const void *a, const void *b, size_t n_bytes);

/** Draw a number. */
void zr_nonce_draw(unsigned char nonce[ZR_NONCE_BYTES]);

/** A connection's seal, without keys: no frame is right yet, unless there is no secret. */
zr_seal_t zr_seal_begin(const zr_secret_t *secret);
/** Make the keys, of what the two sides have drawn. */
void zr_seal_make_keys(zr_seal_t *seal, const zr_secret_t *secret, bool has_listened,
                       const unsigned char *nonce_of_listener,
                       const unsigned char *nonce_of_connector);

/** Seal the next frame that is sent, which has room for it. @return bytes of the seal */
size_t zr_seal_put(zr_seal_t *seal, void *frame, size_t frame_bytes);
/** Whether what is behind a frame is the seal of the next one that is received, which is counted by
 * who takes it. */
bool zr_seal_is_right(const zr_seal_t *seal, const void *frame, size_t frame_bytes);
