/*
 * The search for races: every rule with the smallest program that keeps it or breaks it, and
 * random programs against an oracle that remembers every access.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <memory>
#include <random>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "tests/ptx/races.h"

using races::GLOBAL;
using races::SHARED;
using races::space_t;

namespace {

/* ---- small programs ---- */

const size_t n_threads = 70;                      /* two warps and six lanes */
const uint64_t global_base = 0x7f1234567000u - 8; /* programs' first bytes end a page */

/*
 * Words of a program, done one after another:
 *   w3  r3      thread 3 writes, or reads, bytes 0 to 3; w3:8,2 two bytes from 8
 *   r*  w*      threads 0 to 31 in turn
 *   c3  e3      thread 3 begins a copy to bytes 0 to 3, and has waited for it
 *   B           the block's barrier
 *   S1          the barrier of all lanes of warp 1
 *   M3.5        the barrier of lanes 3 and 5 of warp 0
 *   a3/3.5      thread 3 comes to that barrier; d3/3.5 it goes on
 *   N  K        the next block, or kernel, begins
 */
struct words_t {
    space_t space;
    bool is_written; /* shared memory, before a block begins */
};

void begin_block(const words_t &words) {
    races::begin_block(n_threads);
    if (words.space != SHARED || !words.is_written)
        return;
    for (uint64_t i = 0; i < 64; i += 16)
        races::on_write(SHARED, i, 16, 0, "the beginning");
    races::on_block_barrier();
}

void synchronize(size_t first, uint32_t mask) {
    for (size_t lane = 0; lane < 32 && first + lane < n_threads; lane++)
        if (mask >> lane & 1)
            races::on_warp_arrival(first + lane, mask);
    for (size_t lane = 32; lane-- > 0;)
        if ((mask >> lane & 1) && first + lane < n_threads)
            races::on_warp_departure(first + lane, mask);
}

uint32_t read_mask(const char *text) {
    uint32_t mask = 0;
    for (const char *at = text; *at != ' ' && *at != 0;) {
        char *end;
        mask |= 1u << strtoul(at, &end, 10);
        at = *end == '.' ? end + 1 : end;
    }
    return mask;
}

void access(const words_t &words, const char *word) {
    char *end;
    bool is_all = word[1] == '*';
    size_t thread = is_all ? 0 : strtoul(word + 1, &end, 10);
    end = is_all ? (char *)word + 2 : end;
    unsigned long offset = 0, size = 4;
    if (*end == ':')
        sscanf(end, ":%lu,%lu", &offset, &size);
    uint64_t address = words.space == SHARED ? offset : global_base + offset;
    for (size_t i = thread; i <= (is_all ? 31 : thread); i++) {
        if (*word == 'w')
            races::on_write(words.space, address, size, i, word);
        else if (*word == 'r')
            races::on_read(words.space, address, size, i, word);
        else if (*word == 'c')
            races::on_copy_begin(address, size, i, word);
        else
            races::on_copy_end(address, size, i, word);
    }
}

void take(const words_t &words, const char *word) {
    if (*word == 'B') {
        races::on_block_barrier();
    } else if (*word == 'S') {
        synchronize((size_t)(word[1] - '0') * 32, UINT32_MAX);
    } else if (*word == 'M') {
        synchronize(0, read_mask(word + 1));
    } else if (*word == 'a') {
        races::on_warp_arrival(strtoul(word + 1, NULL, 10), read_mask(strchr(word, '/') + 1));
    } else if (*word == 'd') {
        races::on_warp_departure(strtoul(word + 1, NULL, 10), read_mask(strchr(word, '/') + 1));
    } else if (*word == 'N' || *word == 'K') {
        if (*word == 'K')
            races::begin_kernel();
        begin_block(words);
    } else {
        access(words, word);
    }
}

/* How much is found in a program. */
size_t run(const words_t &words, const char *program) {
    races::begin_anew(NULL);
    races::begin_kernel();
    begin_block(words);
    for (const char *word = program; word != NULL; word = strchr(word, ' ')) {
        word += *word == ' ';
        take(words, word);
    }
    return races::n_found();
}

struct case_t {
    const char *program;
    size_t n_shared, n_global; /* found */
};

const case_t cases[] = {
    /* The block's barrier. */
    {"w3 B r5", 0, 0},
    {"w3 r5", 1, 1},
    {"r3 w5", 1, 1},
    {"w3 w5", 1, 1},
    {"w3 r3 w3", 0, 0},
    {"r3 r5 r40", 0, 0},
    {"w3 B r5 w5", 0, 0},
    {"w3 B w5 r3", 1, 1},
    {"w3 B r40 B w5", 0, 0},
    {"r* w5", 1, 1},
    {"r* B w5", 0, 0},
    {"r* r40 w5", 1, 1},
    {"r40 r* w40", 1, 1},
    {"w*", 1, 1},
    /* A warp's. */
    {"w3 M3.5 r5", 0, 0},
    {"w3 M3.4 r5", 1, 1},
    {"w3 M3.5 r4", 1, 1},
    {"M3.5 w3 r5", 1, 1},
    {"w3 S0 r5", 0, 0},
    {"w3 S0 r35", 1, 1},
    {"w3 S0 S1 r35", 1, 1},
    {"w33 S1 r40", 0, 0},
    {"w64 S2 r69", 0, 0},
    {"w64 S1 r69", 1, 1},
    {"w64 S2 w64 r69", 1, 1},
    {"r* S0 w5", 0, 0},
    {"r* S0 w5 S0 r*", 0, 0},
    {"r* S0 w40", 1, 1},
    {"r40 r* S0 w5", 1, 1},
    {"w3 S0 r* S0 w7 S0 r*", 0, 0},
    {"r* M3.5 w5", 1, 1},
    /* By way of a third lane, in the right order. */
    {"w3 M3.4 M4.5 r5", 0, 0},
    {"w3 M4.5 M3.4 r5", 1, 1},
    {"w3 M3.4 w4 M4.5 w5", 0, 0},
    {"r3 M3.5 r4 M4.5 w5", 0, 0},
    {"r3 M3.5 r4 w5", 1, 1},
    {"r3 M3.5 r4 M4.5 w4", 0, 0},
    {"r3 r4 M4.5 w5", 1, 1},
    {"r3 r4 M3.5 M4.5 w5", 0, 0},
    {"r3 r4 r5 S0 r6 w6", 0, 0},
    {"r3 r4 r5 S0 r6 w5", 1, 1},
    {"r3 r4 r5 M3.4.5 w3", 0, 0},
    {"r3 r4 r5 M4.5.6 w6", 1, 1},
    /* After a race, what came before it still counts. */
    {"w3 w5 M5.6 w6", 2, 2},
    {"w3 w5 M3.6 M5.6 w6", 1, 1},
    /* One lane comes to the next barrier before another has gone on from this one. */
    {"a3/3.5 a5/3.5 d3/3.5 w3 a3/3.5 d5/3.5 r5", 1, 1},
    {"a3/3.5 a5/3.5 d3/3.5 w3 a3/3.5 d5/3.5 a5/3.5 d5/3.5 r5", 0, 0},
    {"w5 a3/3.5 a5/3.5 d3/3.5 a3/3.5 d5/3.5 a5/3.5 d5/3.5 d3/3.5 r3", 0, 0},
    {"a3/3.5 a5/3.5 d5/3.5 d3/3.5 w3 r5", 1, 1},
    /* An ended lane does not come; one that the mask leaves out orders nothing. */
    {"w3 a3/3.4.5 a5/3.4.5 d5/3.4.5 r5", 0, 0},
    {"w4 a3/3.4.5 a5/3.4.5 d5/3.4.5 r5", 1, 1},
    {"w3 a3/3.4 a4/3.4 a5/3.4 d5/3.4 r5", 1, 1},
    {"w5 a5/3.4 a3/3.4 a4/3.4 d3/3.4 r3", 1, 1},
    /* Bytes beside each other, and parts of others. */
    {"w3:0,1 w4:1,1 w5:2,2", 0, 0},
    {"w3:0,1 w4:1,1 r5:0,2", 2, 2},
    {"w3:0,1 w4:1,1 S0 r5:0,4 r4:0,2", 0, 0},
    {"w3:0,4 r5:3,1", 1, 1},
    {"w3:0,4 r5:4,4", 0, 0},
    {"w3:0,16 r5:12,4", 1, 1},
    {"w3:0,16 w5:16,16", 0, 0},
    {"w3:2,4 r5:4,1", 1, 1},
    {"w3:2,4 r5:6,2 r5:0,2", 0, 0},
    {"r3 r4 r5:0,1 M3.5 M4.5 w5:0,1 w5:2,2", 0, 0},
    {"r3 r4 r6:0,1 M3.5 M4.5 w5:2,2 w5:0,1", 1, 1},
    {"w3:0,1 B w5 B r7:0,1 B w3", 0, 0},
    {"w3:0,1 B w5 r7:0,1", 1, 1},
    /* Blocks are never ordered, kernels are. */
    {"w3 N w3", 0, 1},
    {"w3 N r3", 0, 1},
    {"r3 N w3", 0, 1},
    {"r3 N r3", 0, 0},
    {"w3 B N r3", 0, 1},
    {"r3 N r5 N w1", 0, 1},
    {"r3 N r5 B w5", 0, 1},
    {"r3 r4 N w5", 0, 1},
    {"w3:0,1 N w3:1,1", 0, 0},
    {"w3:0,1 N w3", 0, 1},
    {"w3 K w5", 0, 0},
    {"w3 N K w5 B r7", 0, 0},
    {"w3:0,1 K r5 N r7:0,1", 0, 0},
};

void test_rules(void **state) {
    (void)state;
    for (const case_t &c : cases) {
        size_t n_shared = run({SHARED, true}, c.program), n_global = run({GLOBAL, true}, c.program);
        if (n_shared != c.n_shared || n_global != c.n_global)
            fail_msg("%s: found %zu and %zu, not %zu and %zu", c.program, n_shared, n_global,
                     c.n_shared, c.n_global);
    }
}

/* ---- copies, and what nobody has written ---- */

const case_t copy_cases[] = {
    {"c3 e3 r3", 0, 0},        {"c3 r3", 1, 0},
    {"c3 w3", 1, 0},           {"c3:0,16 r3:15,1", 1, 0},
    {"c3:0,16 r3:16,4", 0, 0}, {"c3 B r5", 1, 0},
    {"c3 B e3 r5", 1, 0},      {"c3 e3 r5", 1, 0},
    {"c3 e3 B r5", 0, 0},      {"c3 B e3 B r5", 0, 0},
    {"c3 e3 S0 r5 w5", 0, 0},  {"c3 e3 S0 r35", 1, 0},
    {"r5 c3 e3", 1, 0},        {"r5 B c3 e3", 0, 0},
    {"w5 c3 e3", 1, 0},        {"w5 S0 c3 e3", 0, 0},
    {"r3 w3 c3 e3 w3", 0, 0},  {"c3 c3 e3 e3 r3", 1, 0},
    {"c3 c3 e3 r3", 2, 0},     {"c3:0,8 c5:8,8 e3:0,8 r3:0,8 r3:8,4", 1, 0},
    {"c3 N r5", 0, 0},         {"c3 e3 w3:0,1 B r5", 0, 0},
};

const case_t unwritten_cases[] = {
    {"r3", 1, 0},
    {"w3 r3", 0, 0},
    {"w3:0,2 r3:0,2 r3", 1, 0},
    {"w3:60,4 w3:64,4 r3:60,8 r3:66,2", 0, 0},
    {"w3:60,4 w3:65,4 r3:60,8", 1, 0},
    {"w3:62,4 r3:65,1 r3:66,1", 1, 0},
    {"w3:60,4 r3:59,1 r3:60,4 r3:64,1", 2, 0},
    {"w3 B r5 N r5", 1, 0},
    {"c3 e3 r3 r3:4,1", 1, 0},
    {"w3 r5:2,4", 2, 0},
};

void test_copies(void **state) {
    (void)state;
    for (const case_t &c : copy_cases)
        if (run({SHARED, true}, c.program) != c.n_shared)
            fail_msg("%s: found %zu, not %zu", c.program, races::n_found(), c.n_shared);
}

void test_unwritten(void **state) {
    (void)state;
    for (const case_t &c : unwritten_cases)
        if (run({SHARED, false}, c.program) != c.n_shared)
            fail_msg("%s: found %zu, not %zu", c.program, races::n_found(), c.n_shared);
    assert_int_equal(run({GLOBAL, false}, "r3"), 0);
}

/* ---- reports ---- */

void test_reports(void **state) {
    (void)state;
    char *text;
    size_t length;
    FILE *reports = open_memstream(&text, &length);
    races::begin_anew(reports);
    races::begin_kernel();
    races::begin_block(64);
    const char *a = "a.cu:1", *b = "b.cu:2", *c = "c.cu:3";
    for (uint64_t i = 0; i < 100; i++) {
        races::on_write(SHARED, 16 * i, 16, 3, a);
        races::on_read(SHARED, 16 * i + 4, 2, 37, b);
        races::on_write(SHARED, 16 * i + 4, 2, 3, a);
    }
    assert_int_equal(races::n_found(), 1);
    races::on_copy_begin(0x2000, 16, 5, a);
    races::on_read(SHARED, 0x2008, 4, 5, b);
    races::on_read(SHARED, 0x2008, 4, 5, b);
    races::on_read(SHARED, 0x3000, 4, 5, b);
    races::on_read(SHARED, 0x4000, 4, 5, b);
    races::on_read(GLOBAL, 0x10000, 8, 7, a);
    races::begin_block(64);
    races::on_write(GLOBAL, 0x10004, 1, 9, c);
    assert_int_equal(races::n_found(), 4);
    fclose(reports);
    assert_string_equal(
        text,
        "races: 2 bytes of shared memory at 0x4: thread 3 of a block writes them at a.cu:1, "
        "thread 37 of the same block reads them at b.cu:2, and no barrier orders that\n"
        "races: thread 5 reads byte 0x2008 of shared memory at b.cu:2 while a copy that thread 5 "
        "of its block has begun at a.cu:1 has not been waited for\n"
        "races: thread 5 reads byte 0x3000 of shared memory at b.cu:2 before anything in its "
        "block wrote it\n"
        "races: 1 bytes of global memory at 0x10004: thread 7 of an earlier block reads them at "
        "a.cu:1, thread 9 of a later one writes them at c.cu:3, and no barrier orders that\n");
    free(text);
    races::begin_anew(NULL);
    assert_int_equal(races::n_found(), 0);
}

/* Who is named when there are several: one that the access really races with, and its place. */
void test_names(void **state) {
    (void)state;
    static const struct {
        const char *program, *told;
    } several[] = {
        {"r3 r4 r5 M3.6 w6", "thread 4 of a block reads them at r4 "},
        {"r3 r4 r5 M3.6 M4.6 w6", "thread 5 of a block reads them at r5 "},
        {"r4 r3 M3.5 w5", "thread 4 of a block reads them at r4 "},
        {"r* S0 r5 w6", "thread 5 of a block reads them at r5 "},
        {"r3 r4 M3.4.5 r5 w6", "thread 5 of a block reads them at r5 "},
        {"r3 r40 w41", "thread 3 of a block reads them at r3 "},
        {"r3 r40 w3", "thread 40 of a block reads them at r40 "},
        {"r3 r4 r5 r40 w41", "thread 3 of a block reads them at r3 "},
        {"r3 r4 r5 r40 w6", "thread 40 of a block reads them at r40 "},
        {"r3 r4 r5 r40 w69", "thread 3 of a block reads them at r3 "},
        {"r3 r4 r5 N w3", "thread 3 of an earlier block reads them at r3 "},
        {"r3 r4 r5 r40 N w3", "thread 3 of an earlier block reads them at r3 "},
        {"r7 N r3 N w7", "thread 7 of an earlier block reads them at r7 "},
    };
    for (const auto &c : several) {
        char *text;
        size_t length;
        FILE *reports = open_memstream(&text, &length);
        races::begin_anew(reports);
        races::begin_kernel();
        begin_block({GLOBAL, false});
        for (const char *word = c.program; word != NULL; word = strchr(word, ' ')) {
            word += *word == ' ';
            take({GLOBAL, false}, word);
        }
        fclose(reports);
        if (strstr(text, c.told) == NULL)
            fail_msg("%s: %s", c.program, text);
        free(text);
    }
}

/* More memory than is kept from kernel to kernel: accesses of one page are not another's. */
void test_many_pages(void **state) {
    (void)state;
    races::begin_anew(NULL);
    const uint64_t page_bytes = 4096, n_pages = 5000;
    for (uint64_t kernel = 0; kernel < 2; kernel++) {
        races::begin_kernel();
        races::begin_block(64);
        for (uint64_t i = 0; i < n_pages; i++)
            races::on_write(GLOBAL, (i * 7919 + i % 2 * kernel) * page_bytes, 2, i % 64, "one");
        assert_int_equal(races::n_found(), 0);
    }
    for (uint64_t i = 0; i < n_pages; i++) {
        races::begin_anew(NULL);
        races::on_read(GLOBAL, (i * 7919 + i % 2) * page_bytes, 1, (i + 1) % 64, "another");
        assert_int_equal(races::n_found(), 1);
    }
}

/* ---- random programs against an oracle ---- */

const size_t n_lanes = 4, n_warps = 2, n_oracle_threads = n_lanes * n_warps; /* that do something */
const uint64_t n_bytes = 24;

size_t thread_of(size_t i) {
    return i / n_lanes * 32 + i % n_lanes;
}

/* Clocks of all threads of a block. */
using clocks_t = std::array<unsigned, n_oracle_threads>;

struct event_t {
    uint64_t block;
    size_t thread;
    unsigned clock;
    bool is_write;
};

struct oracle_t {
    uint64_t block = 0;
    clocks_t clocks[n_oracle_threads];
    std::vector<event_t> events[2][n_bytes]; /* of a kernel */
    unsigned n_copies[n_bytes];              /* in flight */
    bool is_written[n_bytes];

    void begin_kernel() {
        for (auto &of_space : events)
            for (std::vector<event_t> &of_byte : of_space)
                of_byte.clear();
    }
    void begin_block() {
        block++;
        for (size_t i = 0; i < n_oracle_threads; i++) {
            clocks[i].fill(0);
            clocks[i][i] = 1;
        }
        for (std::vector<event_t> &of_byte : events[SHARED])
            of_byte.clear();
        for (uint64_t i = 0; i < n_bytes; i++) {
            n_copies[i] = 0;
            is_written[i] = false;
        }
    }
    void add(space_t space, uint64_t at, uint64_t size, size_t thread, bool is_write) {
        for (uint64_t i = at; i < at + size; i++) {
            events[space][i].push_back({block, thread, clocks[thread][thread], is_write});
            is_written[i] |= space == SHARED && is_write;
        }
    }
    bool is_race(space_t space, uint64_t at, uint64_t size, size_t thread, bool is_write) {
        for (uint64_t i = at; i < at + size; i++) {
            if (space == SHARED && (n_copies[i] > 0 || (!is_write && !is_written[i])))
                return true;
            for (const event_t &event : events[space][i])
                if ((event.is_write || is_write) &&
                    (event.block != block || clocks[thread][event.thread] < event.clock))
                    return true;
        }
        return false;
    }
};

void learn(clocks_t *clocks, const clocks_t &other) {
    for (size_t i = 0; i < n_oracle_threads; i++)
        (*clocks)[i] = std::max((*clocks)[i], other[i]);
}

/* A barrier that some lanes of a warp are about to come to, or have not all left. */
struct meeting_t {
    uint32_t mask;
    clocks_t clocks; /* of all that have come */
    unsigned n_missing;
};

struct copy_t {
    uint64_t at, size;
};

struct lane_t {
    bool has_ended;
    std::shared_ptr<meeting_t> expected, waits; /* where it has to come; where it has come */
    std::vector<copy_t> copies;
};

struct program_t {
    std::mt19937 random;
    oracle_t oracle;
    lane_t lanes[n_oracle_threads];
    size_t n_places = 0;
    size_t n_races = 0, n_accesses = 0;
    bool is_careful; /* mostly synchronizes */

    size_t draw(size_t n) {
        return random() % n;
    }
    const char *new_place() {
        static char names[4096][16];
        assert_true(n_places < 4096);
        char *name = names[n_places++];
        snprintf(name, sizeof(names[0]), "place %zu", n_places);
        return name;
    }

    void draw_bytes(uint64_t *at, uint64_t *size) {
        *size = (uint64_t)1 << draw(5);
        *at = draw(n_bytes / *size) * *size;
        if (draw(8) == 0)
            *at = draw(n_bytes - *size + 1);
    }
    uint64_t address_of(space_t space, uint64_t at) {
        return space == SHARED ? 100 * 4 + at : global_base + at;
    }
    /* What was just done has to have been found if and only if the oracle says so. */
    void check(bool is_race, size_t n_before) {
        n_accesses++;
        n_races += is_race;
        assert_int_equal(races::n_found() > n_before, is_race);
    }

    void access(size_t i) {
        space_t space = draw(2) == 0 ? SHARED : GLOBAL;
        bool is_write = draw(3) == 0;
        uint64_t at, size;
        draw_bytes(&at, &size);
        bool is_race = oracle.is_race(space, at, size, i, is_write);
        if (is_careful && is_race && draw(16) != 0)
            return;
        size_t n_before = races::n_found();
        auto *done = is_write ? races::on_write : races::on_read;
        done(space, address_of(space, at), size, thread_of(i), new_place());
        check(is_race, n_before);
        oracle.add(space, at, size, i, is_write);
    }

    void copy(size_t i) {
        lane_t *lane = &lanes[i];
        size_t n_before = races::n_found();
        if (!lane->copies.empty() && draw(2) == 0) {
            copy_t first = lane->copies.front();
            lane->copies.erase(lane->copies.begin());
            for (uint64_t at = first.at; at < first.at + first.size; at++)
                oracle.n_copies[at]--;
            races::on_copy_end(address_of(SHARED, first.at), first.size, thread_of(i), new_place());
            assert_int_equal(races::n_found(), n_before);
            oracle.add(SHARED, first.at, first.size, i, true);
            return;
        }
        copy_t next;
        draw_bytes(&next.at, &next.size);
        bool is_race = oracle.is_race(SHARED, next.at, next.size, i, true);
        if (is_careful && is_race && draw(16) != 0)
            return;
        races::on_copy_begin(address_of(SHARED, next.at), next.size, thread_of(i), new_place());
        check(is_race, n_before);
        oracle.add(SHARED, next.at, next.size, i, true);
        for (uint64_t at = next.at; at < next.at + next.size; at++)
            oracle.n_copies[at]++;
        lane->copies.push_back(next);
    }

    /* Some lanes of the warp, of which none is expected elsewhere, shall meet. */
    void call_meeting(size_t i) {
        size_t first = i / n_lanes * n_lanes;
        uint32_t mask = draw(3) == 0 ? UINT32_MAX : (uint32_t)draw(16) | 1u << (i - first);
        for (size_t k = 0; k < n_lanes; k++)
            if ((mask >> k & 1) != 0 && lanes[first + k].expected != NULL)
                return;
        auto meeting = std::make_shared<meeting_t>();
        meeting->mask = mask;
        meeting->clocks.fill(0);
        meeting->n_missing = 0;
        for (size_t k = 0; k < n_lanes; k++) {
            if ((mask >> k & 1) == 0 || lanes[first + k].has_ended)
                continue;
            lanes[first + k].expected = meeting;
            meeting->n_missing++;
        }
    }
    void come(size_t i) {
        lane_t *lane = &lanes[i];
        races::on_warp_arrival(thread_of(i), lane->expected->mask);
        learn(&lane->expected->clocks, oracle.clocks[i]);
        lane->expected->n_missing--;
        oracle.clocks[i][i]++;
        lane->waits = lane->expected;
        lane->expected = NULL;
    }
    void go_on(size_t i) {
        lane_t *lane = &lanes[i];
        races::on_warp_departure(thread_of(i), lane->waits->mask);
        learn(&oracle.clocks[i], lane->waits->clocks);
        lane->waits = NULL;
    }
    void end(size_t i) {
        lanes[i].has_ended = true;
        if (lanes[i].expected != NULL)
            lanes[i].expected->n_missing--;
        lanes[i].expected = NULL;
    }

    void step(size_t i) {
        lane_t *lane = &lanes[i];
        if (lane->waits != NULL) {
            if (lane->waits->n_missing == 0)
                go_on(i);
        } else if (!lane->has_ended) {
            size_t what = draw(200);
            if (what < 1)
                end(i);
            else if (what < 80 && lane->expected != NULL)
                come(i);
            else if (what < 60)
                call_meeting(i);
            else if (what < 90)
                copy(i);
            else
                access(i);
        }
    }

    bool is_idle() {
        for (const lane_t &lane : lanes)
            if (lane.expected != NULL || lane.waits != NULL)
                return false;
        return true;
    }
    void pass_block_barrier() {
        while (!is_idle()) {
            size_t i = draw(n_oracle_threads);
            if (lanes[i].waits != NULL || lanes[i].expected == NULL)
                step(i);
            else
                come(i);
        }
        races::on_block_barrier();
        clocks_t all = oracle.clocks[0];
        for (const clocks_t &clocks : oracle.clocks)
            learn(&all, clocks);
        for (size_t i = 0; i < n_oracle_threads; i++) {
            learn(&oracle.clocks[i], all);
            oracle.clocks[i][i]++;
        }
    }

    void write_shared() {
        races::on_write(SHARED, address_of(SHARED, 0), 16, 0, "the beginning");
        races::on_write(SHARED, address_of(SHARED, 16), n_bytes - 16, 0, "the beginning");
        oracle.add(SHARED, 0, n_bytes, 0, true);
    }
    void run_block() {
        oracle.begin_block();
        races::begin_block(thread_of(n_oracle_threads - 1) + 1);
        for (lane_t &lane : lanes)
            lane = {};
        if (draw(4) != 0) {
            write_shared();
            pass_block_barrier();
        }
        for (size_t n_phases = draw(4) + 1; n_phases > 0; n_phases--) {
            for (size_t n_steps = draw(60); n_steps > 0; n_steps--)
                step(draw(n_oracle_threads));
            pass_block_barrier();
        }
    }
    void run_kernel(unsigned seed) {
        random.seed(seed);
        is_careful = draw(8) != 0;
        n_places = 0;
        races::begin_anew(NULL);
        oracle.begin_kernel();
        races::begin_kernel();
        for (size_t n_blocks = draw(3) + 1; n_blocks > 0; n_blocks--)
            run_block();
    }
};

void test_random(void **state) {
    (void)state;
    static program_t program;
    const char *first = getenv("RACES_SEED"), *n = getenv("RACES_N_PROGRAMS");
    unsigned seed = first != NULL ? (unsigned)atoi(first) : 0;
    for (unsigned end = seed + (n != NULL ? (unsigned)atoi(n) : 3000); seed < end; seed++)
        program.run_kernel(seed);
    print_message("%zu accesses, %zu of them race\n", program.n_accesses, program.n_races);
    assert_true(program.n_races > program.n_accesses / 20);
    assert_true(program.n_races < program.n_accesses / 2);
}

/* Phases' numbers begin again, and what had the same number is as old as all else. */
void test_many_phases(void **state) {
    (void)state;
    races::begin_anew(NULL);
    for (size_t round = 0; round < 2; round++) {
        for (int i = 0; i < 1 << 20; i++)
            races::on_block_barrier();
        races::begin_kernel();
        races::begin_block(64);
        races::on_write(GLOBAL, global_base, 16, round, "one");
        races::on_write(GLOBAL, global_base + 32, 1, round, "one");
        races::on_write(SHARED, 0, 1, round, "one");
    }
    assert_int_equal(races::n_found(), 0);
    test_rules(state);
    static program_t program;
    for (unsigned seed = 0; seed < 100; seed++)
        program.run_kernel(seed);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),     cmocka_unit_test(test_copies),
        cmocka_unit_test(test_unwritten), cmocka_unit_test(test_reports),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_many_pages),
        cmocka_unit_test(test_random),    cmocka_unit_test(test_many_phases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
