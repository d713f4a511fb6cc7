/*
 * Which accesses nothing orders, exactly: of two conflicting accesses of a kernel, the later one is
 * told if and only if no chain of barriers leads from the earlier one to it.
 *
 * Time is cut into phases, which begin with a kernel, a block and a block's barrier. Of two
 * accesses of a block in different phases the earlier is ordered; those of different blocks of a
 * kernel never are; so only within a phase there is something to follow, and there only among the
 * lanes of a warp. Each lane has a clock, which goes on when it comes to a warp's barrier, and has
 * seen the others' clocks up to where barriers have told it of them.
 *
 * What was done to memory is kept by word of four bytes, and by half or byte where somebody
 * accessed a part of a word. Nothing is ever cleared: what is of an old phase counts no more.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tests/ptx/races.h"

namespace races {
namespace {

const size_t warp_lanes = 32, warps_most = 32;
const size_t shared_bytes_most = (size_t)228 << 10;
const size_t access_bytes_most = 16;

/* ---- time ---- */

/* By number. After so many, the next kernel begins with the first again. */
const uint32_t phases_most = 1u << 20;
uint32_t phase = 1, block_began = 1, kernel_began = 1;
/* The oldest phase that counts, of accesses to shared and to global memory. */
uint32_t oldest[2] = {1, 1};

/* What a lane has seen of the clocks of its warp, from when the block began: what lane i did at its
 * clock c is ordered before what this one does if clocks[i] >= c. Of its own clock it has seen all.
 */
struct view_t {
    int32_t clocks[warp_lanes];
};

void see(view_t *view, const view_t &other) {
    for (size_t i = 0; i < warp_lanes; i++)
        view->clocks[i] = std::max(view->clocks[i], other.clocks[i]);
}

/* A barrier of some lanes. One that lanes come to again and again serves two rounds at a time: who
 * comes to the round after next knows that all have gone on from this one. */
struct barrier_t {
    uint32_t mask = 0;
    uint32_t n_arrivals[warp_lanes] = {}, n_departures[warp_lanes] = {};
    struct {
        uint32_t number = UINT32_MAX;
        view_t view; /* of all that have come */
    } rounds[2];
};

struct warp_t {
    view_t views[warp_lanes];
    int32_t seen_of_all[warp_lanes]; /* the smallest clock of each view, or less */
    std::vector<barrier_t> barriers; /* by mask */
};
warp_t warps[warps_most];
size_t n_threads_of_block;

void begin_clocks(size_t warp) {
    for (size_t lane = 0; lane < warp_lanes; lane++) {
        warps[warp].views[lane] = {};
        warps[warp].views[lane].clocks[lane] = 1;
        warps[warp].seen_of_all[lane] = 0;
    }
    warps[warp].barriers.clear();
}

barrier_t *barrier_of(warp_t &warp, uint32_t mask) {
    for (barrier_t &barrier : warp.barriers)
        if (barrier.mask == mask)
            return &barrier;
    warp.barriers.emplace_back();
    warp.barriers.back().mask = mask;
    return &warp.barriers.back();
}

/* ---- places ---- */

/* By number, which is shorter than an address. */
std::vector<const char *> places;
const size_t place_bits = 22;

uint32_t number_new_place(const char *here) {
    static std::unordered_map<const char *, uint32_t> numbers;
    auto found = numbers.emplace(here, (uint32_t)places.size());
    if (found.second)
        places.push_back(here);
    if (places.size() > (size_t)1 << place_bits) {
        fprintf(stderr, "races: more than %zu places\n", (size_t)1 << place_bits);
        abort();
    }
    return found.first->second;
}

uint32_t number_of(const char *here) {
    static struct {
        const char *here;
        uint32_t number;
    } last[4096];
    auto &entry = last[(uintptr_t)here * 0x9e3779b97f4a7c15u >> 52];
    if (__builtin_expect(entry.here != here, 0))
        entry = {here, number_new_place(here)};
    return entry.number;
}

/* ---- who accessed ---- */

/*
 * The accesses of one kind to some bytes, as many of them as decide whether a later one races:
 *
 *   LANES     lanes of one warp, all at the same clock and place; `members` is their mask
 *   DIFFERENT lanes of one warp at different clocks or places; those are in lanes_pool[members]
 *   WARPS     two threads of different warps: whoever comes in this phase races with one of them.
 *             `members` is the second's number and place
 *   SPLIT     not a set: the bytes have two halves, with sets of their own, in halves_pool[members]
 *
 * Those of earlier phases of the block are ordered, and forgotten as soon as there is a new one.
 * One of an earlier block is kept, and no others: whoever comes races with it.
 *
 * `what` is the kind, the warp (for WARPS the first thread's) and either the clock (LANES), or the
 * lane of one access that `place` belongs to.
 */
enum kind_t { LANES, DIFFERENT, WARPS, SPLIT };

struct set_t {
    uint32_t phase, what, members, place;
};

const unsigned kind_shift = 30, warp_shift = 25;
const uint32_t clocks_most = (1u << warp_shift) - 1;

uint32_t what_of(kind_t kind, uint32_t warp, uint32_t clock_or_lane) {
    return (uint32_t)kind << kind_shift | warp << warp_shift | clock_or_lane;
}

kind_t kind_of(const set_t &set) {
    return (kind_t)(set.what >> kind_shift);
}

uint32_t warp_of(const set_t &set) {
    return set.what >> warp_shift & (warps_most - 1);
}

uint32_t clock_of(const set_t &set) {
    return set.what & clocks_most;
}

struct lanes_t {
    int32_t clocks[warp_lanes]; /* 0: the lane is not in the set */
    uint32_t places[warp_lanes];
};
std::deque<lanes_t> lanes_pool; /* for this phase */
size_t n_lanes_in_use;

void begin_phase() {
    oldest[SHARED] = ++phase;
    n_lanes_in_use = 0;
}

uint32_t take_lanes() {
    if (n_lanes_in_use == lanes_pool.size())
        lanes_pool.emplace_back();
    return (uint32_t)n_lanes_in_use++;
}

struct cell_t {
    set_t writes, reads;
};

struct halves_t {
    cell_t cells[2];
};
std::deque<halves_t> halves_pool;
std::vector<uint32_t> halves_not_in_use;

/* The access that is made now. */
struct access_t {
    space_t space;
    size_t thread, lane;
    set_t alone; /* the set with no others */
    const warp_t *warp;
    uint64_t address; /* of all its bytes */
    size_t size_bytes;
    bool is_write;
};

access_t describe(space_t space, uint64_t address, size_t size_bytes, size_t thread,
                  const char *here, bool is_write) {
    assert(thread < n_threads_of_block && size_bytes <= access_bytes_most);
    assert(space == GLOBAL || address + size_bytes <= shared_bytes_most);
    size_t warp = thread / warp_lanes, lane = thread % warp_lanes;
    uint32_t clock = (uint32_t)warps[warp].views[lane].clocks[lane];
    set_t alone = {phase, what_of(LANES, (uint32_t)warp, clock), 1u << lane, number_of(here)};
    return {space, thread, lane, alone, &warps[warp], address, size_bytes, is_write};
}

/* Those lanes of the set, which are of the access's warp and phase, that are not ordered before. */
uint32_t unordered_lanes(const set_t &set, const access_t &access) {
    const view_t &view = access.warp->views[access.lane];
    uint32_t lanes = 0;
    if (kind_of(set) == LANES) {
        int32_t clock = (int32_t)clock_of(set);
        if (clock <= access.warp->seen_of_all[access.lane])
            return 0;
        for (uint32_t rest = set.members; rest != 0; rest &= rest - 1) {
            int lane = __builtin_ctz(rest);
            lanes |= (uint32_t)(view.clocks[lane] < clock) << lane;
        }
        return lanes;
    }
    const lanes_t &members = lanes_pool[set.members];
    for (size_t i = 0; i < warp_lanes; i++)
        lanes |= (uint32_t)(view.clocks[i] < members.clocks[i]) << i;
    return lanes;
}

/* A lane of the set, with its place the one that the set names. */
uint32_t first_lane(const set_t &set) {
    return kind_of(set) == LANES ? (uint32_t)__builtin_ctz(set.members) : clock_of(set);
}

/* Add an access to a set of the same phase. */
__attribute__((noinline)) void add_to_others(set_t *set, const access_t &access) {
    if (kind_of(*set) == WARPS)
        return;
    uint32_t warp = warp_of(*set);
    if (warp != warp_of(access.alone)) {
        *set = {phase, what_of(WARPS, warp, first_lane(*set)),
                (uint32_t)access.thread << place_bits | access.alone.place, set->place};
        return;
    }
    uint32_t lanes = unordered_lanes(*set, access);
    if (lanes == 0) { /* who comes after this access comes after those too */
        *set = access.alone;
        return;
    }
    if (kind_of(*set) == LANES) {
        uint32_t index = take_lanes();
        lanes_t *members = &lanes_pool[index];
        memset(members->clocks, 0, sizeof(members->clocks));
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            int lane = __builtin_ctz(rest);
            members->clocks[lane] = (int32_t)clock_of(*set);
            members->places[lane] = set->place;
        }
        *set = {phase, what_of(DIFFERENT, warp, first_lane(*set)), index, set->place};
    }
    lanes_t *members = &lanes_pool[set->members];
    members->clocks[access.lane] = (int32_t)clock_of(access.alone);
    members->places[access.lane] = access.alone.place;
}

inline void add(set_t *set, const access_t &access) {
    if (set->phase != phase) {
        if (set->phase >= block_began || set->phase < oldest[access.space])
            *set = access.alone;
        return;
    }
    if (set->what == access.alone.what) {
        if ((set->members & access.alone.members) != 0)
            return;
        if (set->place == access.alone.place) {
            set->members |= access.alone.members;
            return;
        }
    }
    add_to_others(set, access);
}

/* ---- reports ---- */

FILE *reports = stderr;
bool is_first_the_last = false;
enum { RACE, IN_FLIGHT, NOT_WRITTEN };
std::set<std::tuple<int, const char *, const char *>> found; /* kinds and pairs of places */

bool is_new(int kind, const char *a, const char *b) {
    if (std::less<const char *>()(b, a))
        std::swap(a, b);
    if (is_first_the_last)
        _exit(1);
    return found.emplace(kind, a, b).second;
}

__attribute__((format(printf, 1, 2))) void tell(const char *format, ...) {
    if (reports == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(reports, format, arguments);
    va_end(arguments);
}

const char *name(space_t space) {
    return space == SHARED ? "shared" : "global";
}

void tell_race(uint64_t address, size_t size_bytes, const access_t &access, bool was_write,
               bool was_other_block, size_t thread, uint32_t place) {
    const char *here = places[access.alone.place], *there = places[place];
    if (!is_new(RACE, there, here))
        return;
    tell("races: %zu bytes of %s memory at %#llx: thread %zu of %s %s them at %s, thread %zu of "
         "%s %s them at %s, and no barrier orders that\n",
         size_bytes, name(access.space), (unsigned long long)address, thread,
         was_other_block ? "an earlier block" : "a block", was_write ? "writes" : "reads", there,
         access.thread, was_other_block ? "a later one" : "the same block",
         access.is_write ? "writes" : "reads", here);
}

/* ---- the search ---- */

/* Tell of the access if one of a set's is not ordered before it. */
__attribute__((noinline)) void look_at_others(const set_t &set, bool was_write, uint64_t address,
                                              size_t size_bytes, const access_t &access) {
    uint32_t warp = warp_of(set), lane = first_lane(set), place = set.place;
    bool is_other_block = set.phase < block_began;
    size_t thread = warp * warp_lanes + lane;
    if (!is_other_block && warp == warp_of(access.alone)) {
        if (kind_of(set) == WARPS) {
            thread = set.members >> place_bits;
            place = set.members & ((1u << place_bits) - 1);
        } else {
            uint32_t lanes = unordered_lanes(set, access);
            if (lanes == 0)
                return;
            lane = (uint32_t)__builtin_ctz(lanes);
            thread = warp * warp_lanes + lane;
            place = kind_of(set) == LANES ? set.place : lanes_pool[set.members].places[lane];
        }
    }
    tell_race(address, size_bytes, access, was_write, is_other_block, thread, place);
}

inline void look_at(const set_t &set, bool was_write, uint64_t address, size_t size_bytes,
                    const access_t &access) {
    if (set.phase < oldest[access.space])
        return;
    if (set.phase >= block_began) {
        if (set.phase != phase)
            return;
        if (set.members == access.alone.members &&
            set.what >> warp_shift == access.alone.what >> warp_shift)
            return; /* nobody but the thread itself */
    }
    look_at_others(set, was_write, address, size_bytes, access);
}

/* What is done with a cell: whether it conflicts with earlier accesses, and whether it is one. */
enum action_t { READ, WRITE, ONLY_LOOK, ONLY_ADD };

template <action_t action>
inline void visit_whole(cell_t *cell, uint64_t address, size_t size_bytes, const access_t &access) {
    if (action != ONLY_ADD)
        look_at(cell->writes, true, address, size_bytes, access);
    if (action == WRITE || action == ONLY_LOOK)
        look_at(cell->reads, false, address, size_bytes, access);
    if (action == READ)
        add(&cell->reads, access);
    if (action == WRITE || action == ONLY_ADD)
        add(&cell->writes, access);
}

/* A set of its own for a part of the bytes. */
set_t copy_of(const set_t &set) {
    set_t copy = set;
    if (set.phase == phase && kind_of(set) == DIFFERENT) {
        copy.members = take_lanes();
        lanes_pool[copy.members] = lanes_pool[set.members];
    }
    return copy;
}

void split(cell_t *cell) {
    if (halves_not_in_use.empty()) {
        halves_not_in_use.push_back((uint32_t)halves_pool.size());
        halves_pool.emplace_back();
    }
    uint32_t index = halves_not_in_use.back();
    halves_not_in_use.pop_back();
    halves_pool[index].cells[0] = *cell;
    halves_pool[index].cells[1] = {copy_of(cell->writes), copy_of(cell->reads)};
    cell->writes = {phase, what_of(SPLIT, 0, 0), index, 0};
}

bool is_split(const cell_t &cell) {
    return kind_of(cell.writes) == SPLIT;
}

/* Join a cell that is split, all of whose accesses are old. */
void join(cell_t *cell) {
    uint32_t index = cell->writes.members;
    for (cell_t &half : halves_pool[index].cells)
        if (is_split(half))
            join(&half);
    halves_not_in_use.push_back(index);
    *cell = {};
}

/* A cell that is split, or is about to be: some of its bytes are the access's. */
template <action_t action>
__attribute__((noinline)) void visit(cell_t *cell, uint64_t address, size_t size_bytes,
                                     const access_t &access) {
    uint64_t begin = access.address, end = access.address + access.size_bytes;
    if (begin >= address + size_bytes || end <= address)
        return;
    bool is_whole = begin <= address && end >= address + size_bytes;
    if (is_whole && is_split(*cell) && cell->writes.phase < oldest[access.space])
        join(cell);
    if (is_whole && !is_split(*cell)) {
        visit_whole<action>(cell, address, size_bytes, access);
        return;
    }
    if (!is_split(*cell))
        split(cell);
    cell->writes.phase = phase;
    halves_t *halves = &halves_pool[cell->writes.members];
    visit<action>(&halves->cells[0], address, size_bytes / 2, access);
    visit<action>(&halves->cells[1], address + size_bytes / 2, size_bytes / 2, access);
}

/* ---- memory ---- */

const size_t word_bytes = 4, page_bytes = 4096;

struct page_t {
    cell_t words[page_bytes / word_bytes];
    cell_t apart[2]; /* pages do not contend for the same lines of a cache */
};

cell_t shared_words[shared_bytes_most / word_bytes];

/* Pages of global memory by number: open addressing. All is old when a kernel begins; where there
 * is much it is used for other addresses then. */
struct slot_t {
    uint64_t number_and_one; /* 0: free */
    page_t *page;
};
std::vector<slot_t> &slots = *new std::vector<slot_t>(1024); /* these outlive the program */
size_t n_pages;
std::vector<page_t *> &pages_not_in_use = *new std::vector<page_t *>;
const size_t pages_kept = 4096;

slot_t *slot_of(uint64_t number) {
    size_t i = (size_t)(number * 0x9e3779b97f4a7c15u >> 20);
    for (;; i++) {
        slot_t *slot = &slots[i & (slots.size() - 1)];
        if (slot->number_and_one == number + 1 || slot->number_and_one == 0)
            return slot;
    }
}

/* Many together: neighbours in memory may be far from each other here, and a translation for each
 * would cost more than the search. */
void add_pages() {
    const size_t many_bytes = (size_t)2 << 20;
    page_t *pages = (page_t *)aligned_alloc(many_bytes, many_bytes);
    if (pages == NULL)
        abort();
    madvise(pages, many_bytes, MADV_HUGEPAGE);
    memset((void *)pages, 0, many_bytes);
    for (size_t i = many_bytes / sizeof(page_t); i > 0; i--)
        pages_not_in_use.push_back(&pages[i - 1]);
}

__attribute__((noinline)) page_t *add_page(uint64_t number) {
    if ((n_pages + 1) * 2 > slots.size()) {
        std::vector<slot_t> smaller(slots.size() * 2);
        smaller.swap(slots);
        for (const slot_t &slot : smaller)
            if (slot.number_and_one != 0)
                *slot_of(slot.number_and_one - 1) = slot;
    }
    if (pages_not_in_use.empty())
        add_pages();
    page_t *page = pages_not_in_use.back();
    pages_not_in_use.pop_back();
    *slot_of(number) = {number + 1, page};
    n_pages++;
    return page;
}

void forget_pages() {
    for (slot_t &slot : slots) {
        if (slot.number_and_one != 0)
            pages_not_in_use.push_back(slot.page);
        slot = {};
    }
    n_pages = 0;
}

/* Nothing was ever accessed, and phases begin with the first. */
void forget_all() {
    forget_pages();
    for (page_t *page : pages_not_in_use)
        memset((void *)page, 0, sizeof(*page));
    memset(shared_words, 0, sizeof(shared_words));
    halves_pool.clear();
    halves_not_in_use.clear();
    phase = 0;
}

/* The cell of the word at an address; the others of its page lie behind. */
inline cell_t *word_at(space_t space, uint64_t address) {
    if (space == SHARED)
        return &shared_words[address / word_bytes];
    slot_t *slot = slot_of(address / page_bytes);
    page_t *page = slot->number_and_one != 0 ? slot->page : add_page(address / page_bytes);
    return &page->words[address % page_bytes / word_bytes];
}

template <action_t action> inline void visit_words(const access_t &access) {
    uint64_t end = access.address + access.size_bytes;
    uint64_t address = access.address / word_bytes * word_bytes;
    cell_t *word = word_at(access.space, address);
    for (;;) {
        if (address >= access.address && address + word_bytes <= end && !is_split(*word))
            visit_whole<action>(word, address, word_bytes, access);
        else
            visit<action>(word, address, word_bytes, access);
        address += word_bytes;
        if (address >= end)
            return;
        word = address % page_bytes == 0 ? word_at(access.space, address) : word + 1;
    }
}

/* ---- shared memory only ---- */

/* A bit for each byte. */
struct bits_t {
    uint64_t words[shared_bytes_most / 64 + 1];

    /* Those of some bytes, from the lowest bit on. */
    uint64_t get(uint64_t from, size_t n) const {
        uint64_t i = from / 64, shift = from % 64;
        uint64_t both = words[i] >> shift | (shift != 0 ? words[i + 1] << (64 - shift) : 0);
        return both & (((uint64_t)1 << n) - 1);
    }
    void set(uint64_t from, size_t n) {
        uint64_t i = from / 64, shift = from % 64, bits = ((uint64_t)1 << n) - 1;
        words[i] |= bits << shift;
        if (shift != 0)
            words[i + 1] |= bits >> (64 - shift);
    }
    void clear(uint64_t at) {
        words[at / 64] &= ~((uint64_t)1 << at % 64);
    }
};

bits_t written;   /* since the block began */
bits_t in_flight; /* has copies that were begun and not waited for */

struct flight_t {
    uint32_t place;
    uint16_t thread, n_copies; /* the last one's; all of them */
};
flight_t flights[shared_bytes_most];
size_t n_in_flight; /* bytes */

void forget_shared() {
    memset(&written, 0, sizeof(written));
    if (n_in_flight == 0)
        return;
    memset(&in_flight, 0, sizeof(in_flight));
    memset(flights, 0, sizeof(flights));
    n_in_flight = 0;
}

__attribute__((noinline)) void tell_in_flight(const access_t &access, uint64_t bits) {
    for (; bits != 0; bits &= bits - 1) {
        uint64_t at = access.address + (uint64_t)__builtin_ctzll(bits);
        const char *here = places[access.alone.place], *there = places[flights[at].place];
        if (is_new(IN_FLIGHT, there, here))
            tell("races: thread %zu %s byte %#llx of shared memory at %s while a copy that "
                 "thread %u of its block has begun at %s has not been waited for\n",
                 access.thread, access.is_write ? "writes" : "reads", (unsigned long long)at, here,
                 flights[at].thread, there);
    }
}

void look_for_copies(const access_t &access) {
    uint64_t bits = n_in_flight == 0 ? 0 : in_flight.get(access.address, access.size_bytes);
    if (bits != 0)
        tell_in_flight(access, bits);
}

__attribute__((noinline)) void tell_not_written(const access_t &access) {
    const char *here = places[access.alone.place];
    uint64_t bits = ~written.get(access.address, access.size_bytes);
    uint64_t at = access.address + (uint64_t)__builtin_ctzll(bits);
    if (is_new(NOT_WRITTEN, here, here))
        tell("races: thread %zu reads byte %#llx of shared memory at %s before anything in its "
             "block wrote it\n",
             access.thread, (unsigned long long)at, here);
}

} // namespace

/* ---- the interface ---- */

void begin_kernel() {
    if (phase > phases_most)
        forget_all();
    else if (n_pages > pages_kept)
        forget_pages();
    begin_phase();
    kernel_began = block_began = oldest[GLOBAL] = phase;
}

void begin_block(size_t n_threads) {
    assert(n_threads > 0 && n_threads <= warps_most * warp_lanes);
    begin_phase();
    block_began = phase;
    n_threads_of_block = n_threads;
    for (size_t i = 0; i * warp_lanes < n_threads; i++)
        begin_clocks(i);
    forget_shared();
}

void on_read(space_t space, uint64_t address, size_t size_bytes, size_t thread, const char *here) {
    access_t access = describe(space, address, size_bytes, thread, here, false);
    if (space == SHARED) {
        look_for_copies(access);
        if (written.get(address, size_bytes) != ((uint64_t)1 << size_bytes) - 1)
            tell_not_written(access);
    }
    visit_words<READ>(access);
}

void on_write(space_t space, uint64_t address, size_t size_bytes, size_t thread, const char *here) {
    access_t access = describe(space, address, size_bytes, thread, here, true);
    if (space == SHARED) {
        look_for_copies(access);
        written.set(address, size_bytes);
    }
    visit_words<WRITE>(access);
}

/* What comes while the copy is in flight is told because of that; what came before, here. Only what
 * comes after its end can race with the end. */
void on_copy_begin(uint64_t to_shared, size_t size_bytes, size_t thread, const char *here) {
    access_t access = describe(SHARED, to_shared, size_bytes, thread, here, true);
    look_for_copies(access);
    visit_words<ONLY_LOOK>(access);
    written.set(to_shared, size_bytes);
    in_flight.set(to_shared, size_bytes);
    for (uint64_t i = to_shared; i < to_shared + size_bytes; i++) {
        n_in_flight += flights[i].n_copies == 0;
        flights[i] = {access.alone.place, (uint16_t)thread, (uint16_t)(flights[i].n_copies + 1)};
    }
}

void on_copy_end(uint64_t to_shared, size_t size_bytes, size_t thread, const char *here) {
    access_t access = describe(SHARED, to_shared, size_bytes, thread, here, true);
    for (uint64_t i = to_shared; i < to_shared + size_bytes; i++) {
        assert(flights[i].n_copies > 0);
        if (--flights[i].n_copies > 0)
            continue;
        in_flight.clear(i);
        n_in_flight--;
    }
    visit_words<ONLY_ADD>(access);
}

void on_block_barrier() {
    begin_phase();
}

void on_warp_arrival(size_t thread, uint32_t mask) {
    warp_t &warp = warps[thread / warp_lanes];
    size_t lane = thread % warp_lanes;
    if ((mask >> lane & 1) == 0)
        return;
    view_t *view = &warp.views[lane];
    barrier_t *barrier = barrier_of(warp, mask);
    uint32_t number = barrier->n_arrivals[lane]++;
    auto &round = barrier->rounds[number % 2];
    if (round.number != number) {
        round.number = number;
        round.view = *view;
    } else {
        see(&round.view, *view);
    }
    assert((uint32_t)view->clocks[lane] < clocks_most);
    view->clocks[lane]++;
}

void on_warp_departure(size_t thread, uint32_t mask) {
    warp_t &warp = warps[thread / warp_lanes];
    size_t lane = thread % warp_lanes;
    if ((mask >> lane & 1) == 0)
        return;
    view_t *view = &warp.views[lane];
    barrier_t *barrier = barrier_of(warp, mask);
    uint32_t number = barrier->n_departures[lane]++;
    assert(barrier->rounds[number % 2].number == number);
    see(view, barrier->rounds[number % 2].view);
    warp.seen_of_all[lane] = *std::min_element(view->clocks, view->clocks + warp_lanes);
}

size_t n_found() {
    return found.size();
}

void end_at_first() {
    is_first_the_last = true;
}

void begin_anew(FILE *to) {
    reports = to;
    found.clear();
}

} // namespace races
