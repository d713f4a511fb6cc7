/*
 * Each barrier of each kernel, as nvcc has compiled it, taken away: the search for races, or
 * whoever waits for a thread that does not come, has to notice. So no barrier is there in vain, and
 * none that is forgotten goes unseen. Every run is a process of its own. A barrier is a line of the
 * source, with all that the compiler makes of it; with the argument "each", an instruction: some
 * are not missed, because the kernel that the line is part of has a stronger one beside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "tests/emu/emu.h"
#include "tests/ptx/ptx.h"
#include "tests/ptx/races.h"
#include "tests/ptx/tour.h"

namespace {

std::vector<const char *> all_barriers() {
    std::vector<const char *> barriers;
    for (const ptx_module_t *module : ptx_modules())
        barriers.insert(barriers.end(), module->barriers, module->barriers + module->n_barriers);
    return barriers;
}

std::vector<const char *> all_kernels() {
    std::vector<const char *> kernels;
    for (const ptx_module_t *module : ptx_modules())
        for (size_t i = 0; i < module->n_kernels; i++)
            kernels.push_back(module->kernels[i].name);
    return kernels;
}

/* What runs of the tour have come to; shared with them. */
struct seen_t {
    bool kernels[1000], barriers[1000][TOUR_N_PARTS];
    int part;
};
seen_t *seen;
bool wants_each;

void note(const char *place) {
    static const std::vector<const char *> barriers = all_barriers();
    for (size_t i = 0; i < barriers.size(); i++)
        seen->barriers[i][seen->part] |= barriers[i] == place;
}

void note_kernels() {
    std::vector<const char *> kernels = all_kernels();
    for (size_t i = 0; i < kernels.size(); i++)
        seen->kernels[i] |= ptx_n_launches(kernels[i]) > 0;
}

void run_part(void **) {
    static fixture_t fixture;
    emu_options_t options = emu_options_default();
    options.has_epilogues = false; /* their kernels are part of the tour */
    emu_configure(&options);
    ptx_limit_blocks(2);
    fixture_open(&fixture, "cuda", 1, NULL);
    tour(&fixture, seen->part);
    note_kernels();
}

/* Run a part of the tour in a process of its own, which says nothing unless it is to be heard.
 * Whether it came to its end and found no race. */
bool is_quiet(int part, const char *without, bool is_heard) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const struct CMUnitTest only[] = {cmocka_unit_test(run_part)};
        if (freopen("/dev/null", "w", stdout) == NULL ||
            (!is_heard && freopen("/dev/null", "w", stderr) == NULL))
            _exit(1);
        alarm(100); /* a thread that reads what is not there yet may never come to an end */
        ptx_take_away(without);
        if (!is_heard)
            races::end_at_first();
        ptx_note_barriers(without == NULL ? note : NULL);
        seen->part = part;
        int n_failed = cmocka_run_group_tests(only, NULL, NULL);
        _exit(n_failed != 0 || races::n_found() > 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void test_tour_meets_all(void **) {
    for (int part = 0; part < TOUR_N_PARTS; part++)
        assert_true(is_quiet(part, NULL, true));
    std::vector<const char *> kernels = all_kernels();
    for (size_t i = 0; i < kernels.size(); i++)
        if (!seen->kernels[i])
            fail_msg("%s is not part of the tour", kernels[i]);
}

/* "FILE:LINE " of a place. */
std::string line_of(const char *place) {
    return std::string(place, strchr(place, ' ') + 1);
}

/* Whether a part of the tour that comes to one of these is not the same without them. */
bool is_missed(const std::string &places, const std::vector<const char *> &barriers) {
    for (int part = 0; part < TOUR_N_PARTS; part++) {
        bool is_met = false;
        for (size_t i = 0; i < barriers.size(); i++)
            is_met |= seen->barriers[i][part] && std::string(barriers[i]).find(places) == 0;
        if (is_met && !is_quiet(part, places.c_str(), false))
            return true;
    }
    return false;
}

void test_each_barrier_is_missed(void **) {
    std::vector<const char *> barriers = all_barriers();
    std::set<std::string> lines;
    for (const char *barrier : barriers)
        lines.insert(wants_each ? std::string(barrier) : line_of(barrier));
    size_t n_unseen = 0;
    for (const std::string &line : lines) {
        bool missed = is_missed(line, barriers);
        n_unseen += !missed;
        if (!missed)
            print_message("nobody notices that it is gone: %s\n", line.c_str());
    }
    print_message("%zu barriers, %zu instructions\n", lines.size(), barriers.size());
    assert_true(lines.size() > 0);
    if (!wants_each)
        assert_int_equal(n_unseen, 0);
}

} // namespace

int main(int argc, char **argv) {
    wants_each = argc > 1 && strcmp(argv[1], "each") == 0;
    void *shared =
        mmap(NULL, sizeof(seen_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || all_barriers().size() > 1000 || all_kernels().size() > 1000)
        return 1;
    seen = static_cast<seen_t *>(shared);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tour_meets_all),
                                       cmocka_unit_test(test_each_barrier_is_missed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
