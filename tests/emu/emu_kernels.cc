/*
 * Kernels of the emulation: blocks run one after another, in a drawn order. A block's threads are
 * fibres that take turns only where they wait for each other. For each block it is drawn whether
 * its warps keep step, whether one goes as far ahead as barriers let it before another starts, or
 * whether they are mixed; and after every barrier, whether threads go forwards, backwards or in
 * any order. So a barrier that was forgotten lets a thread read what another has not written yet,
 * or has written over. Shared memory is spoilt before each block. A thread that never waits costs
 * no fibre: one carries all of them.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>

#include "tests/emu/emu_internal.h"

const emu_thread_t *emu_thread;

namespace emu {

namespace {

#if defined(__SANITIZE_ADDRESS__)
const size_t stack_bytes = (size_t)256 << 10;
#else
const size_t stack_bytes = (size_t)64 << 10;
#endif

/*
 * Where a fibre, or whoever runs fibres, stands. swapcontext makes a call into the system each
 * time, which is most of the time of a kernel with barriers, but it is what AddressSanitizer
 * knows; elsewhere the C library's jumps do, once a fibre is on its own stack.
 */
struct place_t {
    ucontext_t context;
    jmp_buf jump;
};

struct fibre_t {
    place_t place;
    void *stack = NULL;
    bool is_made = false; /* stands somewhere */
};

/* A copy to shared memory that its thread has begun. */
struct copy_t {
    void *to;
    const void *from;
    size_t to_bytes, from_bytes;
    size_t group;
};

struct thread_t {
    emu_thread_t index;
    enum { READY, WAITS_FOR_BLOCK, WAITS_FOR_WARP, DONE } state = READY;
    const char *here = "";     /* the barrier it waits at */
    unsigned mask = 0;         /* the lanes it waits for */
    const void *shown = NULL;  /* what other lanes may read */
    size_t n_shows = 0;        /* of emu_show */
    std::deque<copy_t> copies; /* that have not been made yet, in order */
    size_t n_groups = 0;       /* of copies, committed */
    fibre_t *fibre = NULL;     /* NULL: it has not started */
};

struct executor_t {
    place_t place; /* of whoever runs the fibres */
    std::vector<fibre_t *> fibres, idle;
    fibre_t *fibre = NULL; /* the one that runs; NULL: none */
    bool has_faulted = false;
    int device = 0;
    /* A block of a kernel, */
    const std::function<void()> *body = NULL;
    std::vector<thread_t> threads;
    std::vector<emu_shown_t> shown[2]; /* by thread; each show in turn */
    std::vector<size_t> order;         /* of those that start now, backwards */
    thread_t *thread = NULL;           /* the one that runs */
    char *shared = NULL;               /* its dynamic shared memory; ends where nothing is mapped */
    /* or a piece of work that is none. */
    const std::function<void()> *work = NULL;
};
executor_t &executor = *new executor_t;
pthread_t executing_thread;

void be_thread(thread_t *thread) {
    executor.thread = thread;
    emu_thread = &thread->index;
}

#if defined(__SANITIZE_ADDRESS__)
void go(place_t *from, place_t *to, bool is_new) {
    (void)is_new;
    swapcontext(&from->context, &to->context);
}
#else
void go(place_t *from, place_t *to, bool is_new) {
    if (_setjmp(from->jump) != 0)
        return;
    if (is_new)
        setcontext(&to->context);
    _longjmp(to->jump, 1);
}
#endif

/* Out of a signal's handler, which does not block the signal. */
[[noreturn]] void flee() {
#if defined(__SANITIZE_ADDRESS__)
    setcontext(&executor.place.context);
    abort();
#else
    _longjmp(executor.place.jump, 1);
#endif
}

void leave(fibre_t *fibre) {
    executor.fibre = NULL;
    go(&fibre->place, &executor.place, false);
}

/* What every fibre does: all new threads that it gets to, until there are none; and again. */
void run_fibre() {
    fibre_t *fibre = executor.fibre;
    for (;;) {
        if (executor.work != NULL)
            (*executor.work)();
        while (executor.work == NULL && !executor.order.empty()) {
            thread_t *thread = &executor.threads[executor.order.back()];
            executor.order.pop_back();
            thread->fibre = fibre;
            be_thread(thread);
            (*executor.body)();
            thread->state = thread_t::DONE;
        }
        executor.idle.push_back(fibre);
        leave(fibre);
    }
}

void make(fibre_t *fibre) {
    getcontext(&fibre->place.context);
    fibre->place.context.uc_stack.ss_sp = fibre->stack;
    fibre->place.context.uc_stack.ss_size = stack_bytes;
    makecontext(&fibre->place.context, run_fibre, 0);
    fibre->is_made = true;
}

fibre_t *take_fibre() {
    if (executor.idle.empty()) {
        fibre_t *fibre = new fibre_t;
        fibre->stack = mmap(NULL, stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fibre->stack == MAP_FAILED)
            abort();
        executor.fibres.push_back(fibre);
        return fibre;
    }
    fibre_t *fibre = executor.idle.back();
    executor.idle.pop_back();
    return fibre;
}

void enter(fibre_t *fibre) {
    bool is_new = !fibre->is_made;
    if (is_new)
        make(fibre);
    executor.fibre = fibre;
    go(&executor.place, &fibre->place, is_new);
}

/* After a fault, fibres stand where they will never go on. */
void forget_fibres() {
    executor.idle = executor.fibres;
    for (fibre_t *fibre : executor.fibres)
        fibre->is_made = false;
    executor.order.clear();
    executor.fibre = NULL;
}

void shuffle(std::vector<size_t> &order) {
    for (size_t i = order.size(); i > 1; i--)
        std::swap(order[i - 1], order[draw((unsigned)i)]);
}

/* ---- shared memory ---- */

/* Bytes of ones are NaN in every floating point type. AddressSanitizer keeps apart what lies in
   the section. */
__attribute__((no_sanitize("address"))) void spoil(char *first, const char *last) {
    for (volatile char *byte = first; byte < last; byte++)
        *byte = (char)0xff;
}

} // namespace
} // namespace emu

/* The section of static shared memory; NULL where no kernel has any. */
extern char __start_emu_shared[] __attribute__((weak));
extern char __stop_emu_shared[] __attribute__((weak));

namespace emu {
namespace {

void spoil_static_shared() {
    spoil(__start_emu_shared, __stop_emu_shared);
}

/* ---- barriers ---- */

void wait(int state, unsigned mask, const char *here) {
    thread_t *thread = executor.thread;
    thread->state = (decltype(thread->state))state;
    thread->mask = mask;
    thread->here = here;
    leave(thread->fibre);
    thread->state = thread_t::READY; /* and running */
    be_thread(thread);
}

[[noreturn]] void die(const thread_t &a, const thread_t &b) {
    fprintf(stderr,
            "emulation: threads of a block wait for each other at different places: thread "
            "%u at %s, thread %u at %s\n",
            a.index.thread.x, a.here, b.index.thread.x, b.here);
    abort();
}

/* ---- turns ---- */

/* Whether all lanes that a thread waits for wait at the same place. */
bool is_warp_complete(size_t index) {
    const thread_t &thread = executor.threads[index];
    size_t first = index / 32 * 32;
    for (size_t i = first; i < std::min(first + 32, executor.threads.size()); i++) {
        const thread_t &other = executor.threads[i];
        bool is_meant = (thread.mask >> (i - first) & 1) != 0 && other.state != thread_t::DONE;
        if (is_meant && (other.state != thread_t::WAITS_FOR_WARP || other.here != thread.here))
            return false;
    }
    return true;
}

size_t n_warps() {
    return (executor.threads.size() + 31) / 32;
}

/* Add those of a warp that may go on. */
void add_ready(size_t warp, std::vector<size_t> &ready) {
    size_t last = std::min(warp * 32 + 32, executor.threads.size());
    const thread_t *like = NULL; /* a lane that waits, and whether it may go on: most are alike */
    bool is_complete = false;
    for (size_t i = warp * 32; i < last; i++) {
        const thread_t &thread = executor.threads[i];
        if (thread.state == thread_t::WAITS_FOR_WARP &&
            (like == NULL || like->here != thread.here || like->mask != thread.mask)) {
            like = &thread;
            is_complete = is_warp_complete(i);
        }
        if (thread.state == thread_t::READY ||
            (thread.state == thread_t::WAITS_FOR_WARP && is_complete))
            ready.push_back(i);
    }
}

/* Everybody waits: let them pass the block's barrier if all are there. False: all are done. */
bool pass_barrier() {
    thread_t *first = NULL;
    for (thread_t &thread : executor.threads) {
        if (thread.state == thread_t::DONE)
            continue;
        first = first == NULL ? &thread : first;
        if (thread.state != thread_t::WAITS_FOR_BLOCK || thread.here != first->here ||
            first->state != thread_t::WAITS_FOR_BLOCK)
            die(*first, thread);
    }
    for (thread_t &thread : executor.threads)
        if (thread.state != thread_t::DONE)
            thread.state = thread_t::READY;
    return first != NULL;
}

enum schedule_t { IN_STEP, AHEAD, MIXED, N_SCHEDULES };

/* Whose turn it is: a warp, or with IN_STEP all of them. `warp` had the last one. */
std::vector<size_t> next_turn(schedule_t schedule, size_t *warp) {
    std::vector<size_t> ready;
    size_t n = n_warps();
    if (schedule == IN_STEP) {
        for (size_t i = 0; i < n; i++)
            add_ready(i, ready);
        return ready;
    }
    if (schedule == AHEAD)
        add_ready(*warp, ready);
    size_t from = draw((unsigned)n);
    for (size_t i = 0; i < n && ready.empty(); i++) {
        *warp = (from + i) % n;
        add_ready(*warp, ready);
    }
    return ready;
}

void take_turn(std::vector<size_t> &turn) {
    enum { FORWARDS, BACKWARDS, ANY, N_ORDERS };
    unsigned order = draw(N_ORDERS);
    if (order == BACKWARDS)
        std::reverse(turn.begin(), turn.end());
    if (order == ANY)
        shuffle(turn);
    for (size_t i : turn)
        if (executor.threads[i].fibre != NULL && !executor.has_faulted)
            enter(executor.threads[i].fibre);
    for (size_t i = turn.size(); i > 0; i--)
        if (executor.threads[turn[i - 1]].fibre == NULL)
            executor.order.push_back(turn[i - 1]);
    while (!executor.order.empty() && !executor.has_faulted)
        enter(take_fibre());
}

/* Shared memory of a block as it finds it: nothing that it could use. It ends as close to its
 * guard as 128 bytes, a row of banks, allow. */
void begin_shared(size_t size_bytes) {
    const size_t page = 4096, guard_at = (shared_bytes_most + page - 1) / page * page;
    static char *area = NULL;
    if (area == NULL) {
        area = (char *)mmap(NULL, guard_at + page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED || mprotect(area + guard_at, page, PROT_NONE) != 0)
            abort();
    }
    executor.shared = area + guard_at - (size_bytes + 127) / 128 * 128;
    memset(executor.shared, 0xff, size_bytes);
}

void run_block(const emu_launch_t &launch, dim3 block) {
    dim3 n = launch.n_threads;
    spoil_static_shared();
    begin_shared(emu_shared_bytes(launch));
    executor.threads.clear();
    executor.threads.resize((size_t)n.x * n.y * n.z);
    for (std::vector<emu_shown_t> &shown : executor.shown)
        shown.resize((executor.threads.size() + 31) / 32 * 32);
    executor.order.clear();
    for (size_t i = 0; i < executor.threads.size(); i++) {
        dim3 thread((unsigned)i % n.x, (unsigned)i / n.x % n.y, (unsigned)i / n.x / n.y);
        executor.threads[i].index = {thread, block, n, launch.n_blocks};
    }
    if (launch.watch != NULL)
        launch.watch->begin_block(launch);
    schedule_t schedule = (schedule_t)draw(N_SCHEDULES);
    size_t warp = draw((unsigned)n_warps());
    while (!executor.has_faulted) {
        std::vector<size_t> turn = next_turn(schedule, &warp);
        if (!turn.empty())
            take_turn(turn);
        else if (!pass_barrier())
            return;
    }
}

/* ---- faults ---- */

void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (executor.fibre != NULL && pthread_equal(pthread_self(), executing_thread)) {
        if (open_at(executor.device, info->si_addr))
            return; /* and again */
        executor.has_faulted = true;
        flee();
    }
    if (is_device_address(info->si_addr))
        fprintf(stderr, "emulation: the host touched device memory at %p\n", info->si_addr);
    signal(number, SIG_DFL); /* and again, for good */
}

/* Whether what ran has not faulted; after a fault all is as new. */
bool end_run() {
    bool was_good = !executor.has_faulted;
    if (!was_good)
        forget_fibres();
    executor.has_faulted = false;
    executor.work = executor.body = NULL;
    return was_good;
}

struct sigaction others[2]; /* handlers that were there: test programs have theirs */

} // namespace

void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &others[0]);
    sigaction(SIGBUS, &action, &others[1]);
}

void leave_faults() {
    sigaction(SIGSEGV, &others[0], NULL);
    sigaction(SIGBUS, &others[1], NULL);
}

bool run_guarded(int device, const std::function<void()> &work) {
    executor.device = device;
    executing_thread = pthread_self();
    executor.work = &work;
    enter(take_fibre());
    return end_run();
}

bool run_kernel(int device, const emu_launch_t &launch, const std::function<void()> &thread) {
    executor.device = device;
    dim3 n = launch.n_blocks;
    std::vector<size_t> blocks((size_t)n.x * n.y * n.z);
    for (size_t i = 0; i < blocks.size(); i++)
        blocks[i] = i;
    shuffle(blocks);
    executing_thread = pthread_self();
    executor.body = &thread;
    if (launch.watch != NULL)
        launch.watch->begin_kernel(launch, device);
    for (size_t i : blocks)
        if (!executor.has_faulted)
            run_block(launch,
                      dim3((unsigned)i % n.x, (unsigned)i / n.x % n.y, (unsigned)i / n.x / n.y));
    return end_run();
}

} // namespace emu

void emu_wait_for_block(const char *here) {
    emu::wait(emu::thread_t::WAITS_FOR_BLOCK, 0, here);
}

void emu_wait_for_warp(unsigned mask, const char *here) {
    emu::wait(emu::thread_t::WAITS_FOR_WARP, mask, here);
}

void emu_fault(void) {
    emu::executor.has_faulted = true;
    emu::flee();
}

void emu_check_access(const void *address, size_t alignment) {
    if ((uintptr_t)address % alignment != 0)
        emu_fault();
}

void *emu_shared_memory(void) {
    return emu::executor.shared;
}

unsigned emu_lane(void) {
    return (unsigned)(emu::executor.thread - emu::executor.threads.data()) % 32;
}

/*
 * Every lane of `mask` shows `size_bytes` bytes; `all` gets those of all 32 lanes, in their order;
 * of lanes outside the mask, or that have returned, bytes of ones.
 */
static void share(unsigned mask, const void *mine, size_t size_bytes, void *all, const char *here) {
    emu::thread_t *thread = emu::executor.thread, *first = thread - emu_lane();
    size_t n = emu::executor.threads.data() + emu::executor.threads.size() - first;
    thread->shown = mine;
    emu_wait_for_warp(mask, here);
    memset(all, 0xff, 32 * size_bytes);
    for (size_t lane = 0; lane < std::min(n, (size_t)32); lane++)
        if ((mask >> lane & 1) != 0 && first[lane].state != emu::thread_t::DONE)
            memcpy((char *)all + lane * size_bytes, first[lane].shown, size_bytes);
    emu_wait_for_warp(mask, here); /* before anybody shows something else */
}

[[noreturn]] static void die_of_lane(int lane, const char *here) {
    fprintf(stderr, "emulation: %s: lane %d is asked for, which is not there\n", here, lane);
    abort();
}

uint64_t emu_exchange(unsigned mask, uint64_t bits, int lane, const char *here) {
    emu::thread_t *thread = emu::executor.thread, *first = thread - emu_lane();
    size_t n = emu::executor.threads.data() + emu::executor.threads.size() - first;
    uint64_t mine = bits;
    thread->shown = &mine;
    emu_wait_for_warp(mask, here);
    if ((mask >> lane & 1) == 0 || (size_t)lane >= n || first[lane].state == emu::thread_t::DONE)
        die_of_lane(lane, here);
    memcpy(&bits, first[lane].shown, sizeof(bits));
    emu_wait_for_warp(mask, here);
    return bits;
}

static unsigned lanes_that_show(unsigned mask, uint64_t bits, uint64_t wanted, const char *here) {
    uint64_t all[32];
    unsigned lanes = 0;
    share(mask, &bits, sizeof(bits), all, here);
    for (unsigned lane = 0; lane < 32; lane++)
        lanes |= (unsigned)(all[lane] == wanted) << lane;
    return lanes & mask;
}

unsigned emu_ballot(unsigned mask, bool predicate, const char *here) {
    return lanes_that_show(mask, predicate, true, here);
}

unsigned emu_match(unsigned mask, uint64_t bits, const char *here) {
    return lanes_that_show(mask, bits, bits, here);
}

const emu_shown_t *emu_show(const void *bytes, size_t size_bytes, const char *here) {
    emu::thread_t *thread = emu::executor.thread;
    size_t index = (size_t)(thread - emu::executor.threads.data());
    /* Two in turn: who shows the next but one has seen that all have read this one. */
    std::vector<emu_shown_t> &shown = emu::executor.shown[thread->n_shows++ % 2];
    memcpy(shown[index].words, bytes, size_bytes);
    emu_wait_for_warp(0xffffffffu, here);
    return &shown[index / 32 * 32];
}

/* ---- copies that a thread does not wait for ---- */

static void make_copy(const emu::copy_t &copy) {
    memcpy(copy.to, copy.from, copy.from_bytes);
    memset((char *)copy.to + copy.from_bytes, 0, copy.to_bytes - copy.from_bytes);
}

void emu_copy_begin(void *to, const void *from, size_t to_bytes, size_t from_bytes) {
    emu_check_access(to, to_bytes);
    emu_check_access(from, to_bytes);
    emu::thread_t *thread = emu::executor.thread;
    emu::copy_t copy = {to, from, to_bytes, from_bytes, thread->n_groups};
    if (emu::draw(2) == 0)
        make_copy(copy);
    else
        thread->copies.push_back(copy);
}

void emu_copy_commit(void) {
    emu::executor.thread->n_groups++;
}

void emu_copy_wait(size_t n_groups) {
    emu::thread_t *thread = emu::executor.thread;
    while (!thread->copies.empty() && thread->copies.front().group + n_groups < thread->n_groups) {
        make_copy(thread->copies.front());
        thread->copies.pop_front();
    }
}
