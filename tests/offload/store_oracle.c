#include "tests/offload/store_oracle.h"

#include <stdlib.h>
#include <string.h>

const size_t oracle_sizes[ORACLE_N_EXTENTS] = {40 * CHUNK, 7, 9 * CHUNK + 1031, REQUEST};
#define MAX_CHUNKS 64
#define MAX_IN_FLIGHT 64

typedef struct flight {
    zr_store_ticket_t ticket;
    bool is_put;
    size_t extent, offset, size;
    unsigned char *buffer;
    unsigned char *expected; /* of a get: the bytes when it was started */
} flight_t;

typedef struct oracle {
    zr_store_t *store;
    uint32_t lines[2];
    uint64_t random;
    unsigned char *bytes[ORACLE_N_EXTENTS];
    bool is_certain[ORACLE_N_EXTENTS][MAX_CHUNKS]; /* the latest put of the chunk went well */
    flight_t flights[MAX_IN_FLIGHT];
    size_t n_flights;
    oracle_result_t result;
} oracle_t;

/* Half of them wait for another one as well, and half of those in a line. */
static zr_store_call_t call_of(oracle_t *o, const flight_t *flight) {
    zr_store_call_t call = {.extent = flight->extent,
                            .offset_bytes = flight->offset,
                            .size_bytes = flight->size,
                            .buffer = flight->buffer};
    if (o->n_flights > 0 && random_bits(&o->random) % 2 == 0)
        call.after.ticket = o->flights[random_bits(&o->random) % o->n_flights].ticket;
    if (random_bits(&o->random) % 2 == 0)
        call.after.line = o->lines[random_bits(&o->random) % 2];
    return call;
}

static void mark(oracle_t *o, const flight_t *flight, bool is_certain) {
    for (size_t at = flight->offset; at < flight->offset + flight->size; at += CHUNK)
        o->is_certain[flight->extent][at / CHUNK] = is_certain;
}

static bool all_certain(const oracle_t *o, const flight_t *flight) {
    for (size_t at = flight->offset; at < flight->offset + flight->size; at += CHUNK) {
        if (!o->is_certain[flight->extent][at / CHUNK])
            return false;
    }
    return true;
}

static bool overlap(const flight_t *a, const flight_t *b) {
    return a->extent == b->extent && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

static void wait_for(oracle_t *o, size_t number);

/* Puts before it on its bytes have ended. */
static void wait_for_puts(oracle_t *o, const flight_t *flight) {
    for (size_t i = 0; i < o->n_flights;) {
        if (o->flights[i].is_put && overlap(&o->flights[i], flight)) {
            wait_for(o, i);
            i = 0;
        } else {
            i++;
        }
    }
}

/* Look at how a transfer ended. A get of what a put has failed to put is refused, with its error.
 */
static void land(oracle_t *o, size_t number, zr_status_t status) {
    flight_t flight = o->flights[number];
    o->flights[number] = o->flights[--o->n_flights];
    assert_true(status <= 0 && -status < ORACLE_N_STATUSES);
    if (status != ZR_OK && !flight.is_put)
        wait_for_puts(o, &flight);
    if (status != ZR_OK && !flight.is_put && !all_certain(o, &flight))
        o->result.n_refused++;
    else
        o->result.n_ended[-status]++;
    if (flight.is_put && status != ZR_OK)
        mark(o, &flight, false);
    if (!flight.is_put && status == ZR_OK && strcmp(zr_store_info(o->store)->backend, "sim") != 0)
        assert_memory_equal(flight.buffer, flight.expected, flight.size);
    free_buffer(flight.buffer);
    free(flight.expected);
}

static void wait_for(oracle_t *o, size_t number) {
    land(o, number, zr_store_wait(o->store, o->flights[number].ticket));
}

static void wait_for_all(oracle_t *o) {
    while (o->n_flights > 0)
        wait_for(o, random_bits(&o->random) % o->n_flights);
}

static void put(oracle_t *o, flight_t *flight) {
    /* Puts of these bytes that are in flight are waited for by the store, and do not fail after
     * this one was started. */
    unsigned char *bytes = o->bytes[flight->extent] + flight->offset;
    fill_pattern(flight->buffer, flight->size, random_bits(&o->random));
    const zr_store_call_t call = call_of(o, flight);
    zr_status_t status = zr_store_queue_put(o->store, &call, &flight->ticket);
    if (status != ZR_OK) { /* the store is dead */
        assert_int_equal(status, ZR_ERR_IO);
        free_buffer(flight->buffer);
        o->result.n_ended[-status]++;
        return;
    }
    /* Those before it on the same bytes have ended, and how no longer matters. */
    for (size_t i = 0; i < o->n_flights;) {
        if (overlap(&o->flights[i], flight))
            wait_for(o, i);
        else
            i++;
    }
    memcpy(bytes, flight->buffer, flight->size);
    mark(o, flight, true);
    o->flights[o->n_flights++] = *flight;
}

static void get(oracle_t *o, flight_t *flight) {
    memset(flight->buffer, 0xee, flight->size);
    const zr_store_call_t call = call_of(o, flight);
    zr_status_t status = zr_store_queue_get(o->store, &call, &flight->ticket);
    if (status != ZR_OK) {
        assert_true(status == ZR_ERR_STATE || status == ZR_ERR_IO);
        wait_for_all(o);
        if (status == ZR_ERR_STATE)
            assert_false(all_certain(o, flight));
        o->result.n_refused++;
        free_buffer(flight->buffer);
        return;
    }
    flight->expected = malloc(flight->size + 1);
    assert_non_null(flight->expected);
    memcpy(flight->expected, o->bytes[flight->extent] + flight->offset, flight->size);
    o->flights[o->n_flights++] = *flight;
}

/* Whole chunks, from one up to all; every other buffer is not aligned. */
static void start_random(oracle_t *o, bool is_put) {
    flight_t flight = {.is_put = is_put, .extent = random_bits(&o->random) % ORACLE_N_EXTENTS};
    size_t size = oracle_sizes[flight.extent], n_chunks = (size + CHUNK - 1) / CHUNK;
    size_t first = random_bits(&o->random) % n_chunks;
    size_t n = 1 + random_bits(&o->random) % (n_chunks - first);
    flight.offset = first * CHUNK;
    flight.size = first + n == n_chunks ? size - flight.offset : n * CHUNK;
    size_t skew = random_bits(&o->random) % 2 * (random_bits(&o->random) % 4096);
    flight.buffer = new_buffer(flight.size, skew);
    if (is_put)
        put(o, &flight);
    else
        get(o, &flight);
}

/* By chunks, so that one that cannot be got hides no other. */
static void get_everything(oracle_t *o, size_t most) {
    for (size_t e = 0; e < ORACLE_N_EXTENTS; e++) {
        for (size_t offset = 0; offset < oracle_sizes[e]; offset += CHUNK) {
            size_t left = oracle_sizes[e] - offset;
            flight_t flight = {.extent = e, .offset = offset, .size = left < CHUNK ? left : CHUNK};
            flight.buffer = new_buffer(flight.size, 0);
            get(o, &flight);
            if (o->n_flights >= most)
                wait_for_all(o);
        }
    }
    wait_for_all(o);
}

void oracle_run(zr_store_t *store, size_t n_transfers, size_t most, uint64_t seed,
                oracle_result_t *result_p) {
    oracle_t o = {.store = store, .random = seed};
    assert_true(most < MAX_IN_FLIGHT);
    for (size_t i = 0; i < 2; i++)
        o.lines[i] = zr_store_make_line(store);
    for (size_t e = 0; e < ORACLE_N_EXTENTS; e++) {
        o.bytes[e] = calloc(1, oracle_sizes[e]);
        assert_non_null(o.bytes[e]);
    }
    for (size_t i = 0; i < n_transfers; i++) {
        while (o.n_flights >= most)
            wait_for(&o, random_bits(&o.random) % o.n_flights);
        start_random(&o, random_bits(&o.random) % 2 == 0);
        if (random_bits(&o.random) % 8 == 0)
            zr_store_progress(store);
        if (random_bits(&o.random) % 64 == 0)
            wait_for_all(&o);
    }
    wait_for_all(&o);
    get_everything(&o, most);
    for (size_t e = 0; e < ORACLE_N_EXTENTS; e++)
        free(o.bytes[e]);
    *result_p = o.result;
}
