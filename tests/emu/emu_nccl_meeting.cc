/* See emu_nccl_meeting.h. */
#include "tests/emu/emu_nccl_meeting.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace emu {

namespace {

const int most_ranks = 16, most_posts = 64;
const char folder[] = "/dev/shm/", prefix[] = "zero-emu-nccl-";

struct post_t {
    enum { FREE, POSTED, GIVEN } state;
    int n_takers;
    part_t part;
};

struct place_t {
    pid_t process; /* 0: has not joined */
    int device;
    post_t posts[most_posts];
};

/* Names of this process that may still be there when it ends. */
std::vector<std::string> &names = *new std::vector<std::string>;

} // namespace

struct memory_t {
    pthread_mutex_t lock;
    char name[64];
    int n_ranks; /* 0: nobody has joined */
    int n_joined;
    place_t places[most_ranks];
};

namespace {

/* The data of posts lies behind the head, each at a place of its own; pages come when written. */
const size_t head_bytes = (sizeof(memory_t) + 4095) / 4096 * 4096;
const size_t all_bytes = head_bytes + (size_t)most_ranks * most_posts * meeting_t::most_bytes;

struct locked_t {
    explicit locked_t(memory_t *memory) : memory(memory) {
        if (pthread_mutex_lock(&memory->lock) == EOWNERDEAD)
            pthread_mutex_consistent(&memory->lock); /* what it half wrote is its own post */
    }
    ~locked_t() {
        pthread_mutex_unlock(&memory->lock);
    }
    memory_t *memory;
};

void remove_file(const char *name) {
    unlink((folder + std::string(name)).c_str());
}

/* What processes left behind that were killed before all ranks had joined. */
void sweep() {
    DIR *files = opendir(folder);
    for (struct dirent *file; files != NULL && (file = readdir(files)) != NULL;)
        if (strncmp(file->d_name, prefix, strlen(prefix)) == 0 &&
            kill(atoi(file->d_name + strlen(prefix)), 0) != 0 && errno == ESRCH)
            remove_file(file->d_name);
    if (files != NULL)
        closedir(files);
}

memory_t *map(int file) {
    void *memory =
        mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return memory == MAP_FAILED ? NULL : static_cast<memory_t *>(memory);
}

void prepare(memory_t *memory, const std::string &name) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&memory->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    snprintf(memory->name, sizeof(memory->name), "%s", name.c_str());
}

__attribute__((destructor)) void remove_files() {
    for (const std::string &name : names)
        remove_file(name.c_str());
}

} // namespace

/* ---- life ---- */

bool meeting_t::make(std::string &name) {
    static int n_made = 0;
    if (n_made == 0)
        sweep();
    name = prefix + std::to_string(getpid()) + "-" + std::to_string(++n_made);
    int file = ::open((folder + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    memory_t *memory = NULL;
    if (file >= 0 && ftruncate(file, (off_t)all_bytes) == 0)
        memory = map(file);
    if (file >= 0)
        close(file);
    if (memory == NULL)
        return false;
    names.push_back(name);
    prepare(memory, name);
    munmap(memory, all_bytes);
    return true;
}

bool meeting_t::open(const char *name) {
    int file = ::open((folder + std::string(name)).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    memory = map(file);
    close(file);
    return memory != NULL;
}

meeting_t::~meeting_t() {
    if (memory != NULL)
        munmap(memory, all_bytes);
}

/* ---- ranks ---- */

bool meeting_t::join(int rank, int n_ranks, int device) {
    locked_t locked(memory);
    if ((memory->n_ranks != 0 && memory->n_ranks != n_ranks) || rank < 0 || rank >= n_ranks ||
        n_ranks > most_ranks || memory->places[rank].process != 0)
        return false;
    memory->n_ranks = n_ranks;
    memory->places[rank].process = getpid();
    memory->places[rank].device = device;
    own_rank = rank;
    if (++memory->n_joined == n_ranks)
        remove_file(memory->name);
    return true;
}

bool meeting_t::are_all_here() const {
    locked_t locked(memory);
    return memory->n_joined == memory->n_ranks;
}

bool meeting_t::has_refused() const {
    locked_t locked(memory);
    for (int rank = 0; rank < memory->n_ranks; rank++)
        for (int other = 0; other < rank; other++)
            if (memory->places[rank].process != 0 && memory->places[other].process != 0 &&
                memory->places[rank].device == memory->places[other].device)
                return true;
    return false;
}

bool meeting_t::has_strangers() const {
    locked_t locked(memory);
    for (int rank = 0; rank < memory->n_ranks; rank++)
        if (memory->n_joined == memory->n_ranks && memory->places[rank].process != getpid())
            return true;
    return false;
}

/* ---- posts ---- */

int meeting_t::post(const part_t &part) {
    locked_t locked(memory);
    for (int i = 0; i < most_posts; i++) {
        post_t &post = memory->places[own_rank].posts[i];
        if (post.state != post_t::FREE)
            continue;
        post.part = part;
        post.state = post_t::POSTED;
        return i;
    }
    fprintf(stderr, "emulation: rank %d has more than %d parts of collectives under way\n",
            own_rank, most_posts);
    abort();
}

int meeting_t::find(int rank, kind_t kind, int peer, uint64_t number) const {
    locked_t locked(memory);
    for (int i = 0; i < most_posts; i++) {
        const post_t &post = memory->places[rank].posts[i];
        bool is_pair = post.part.kind >= SEND;
        if (post.state != post_t::FREE && post.part.number == number && is_pair == (kind >= SEND) &&
            (!is_pair || (post.part.kind == kind && post.part.peer == peer)))
            return i;
    }
    return -1;
}

const part_t &meeting_t::part_of(int rank, int post) const {
    return memory->places[rank].posts[post].part;
}

unsigned char *meeting_t::data_of(int rank, int post) const {
    return reinterpret_cast<unsigned char *>(memory) + head_bytes +
           (size_t)(rank * most_posts + post) * most_bytes;
}

void meeting_t::give(int post, int n_takers) {
    locked_t locked(memory);
    memory->places[own_rank].posts[post].state = post_t::GIVEN;
    memory->places[own_rank].posts[post].n_takers = n_takers;
}

bool meeting_t::is_given(int rank, int post) const {
    locked_t locked(memory);
    return memory->places[rank].posts[post].state == post_t::GIVEN;
}

void meeting_t::take(int rank, int post) {
    locked_t locked(memory);
    post_t &taken = memory->places[rank].posts[post];
    if (--taken.n_takers == 0)
        taken.state = post_t::FREE;
}

void meeting_t::withdraw(int post) {
    locked_t locked(memory);
    memory->places[own_rank].posts[post].state = post_t::FREE;
}

} // namespace emu
