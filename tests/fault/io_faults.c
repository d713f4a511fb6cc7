/*
 * I/O that fails at random, for programs that are built already (LD_PRELOAD): what brings
 * checkpoints to the drive. IO_FAULTS="SEED RARITY": one call of RARITY fails with EIO, and a write
 * with ENOSPC as often; without it none does. tests/soak.sh uses it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

static _Atomic uint64_t state;
static uint64_t rarity;

__attribute__((constructor)) static void begin(void) {
    unsigned long seed = 0, every = 0;
    const char *text = getenv("IO_FAULTS");
    if (text != NULL && sscanf(text, "%lu %lu", &seed, &every) == 2)
        rarity = every;
    atomic_store(&state, seed);
}

static bool fails_now(int error) {
    if (rarity == 0)
        return false;
    uint64_t bits = atomic_fetch_add(&state, 0x9E3779B97F4A7C15u);
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    if ((bits ^ bits >> 31) % rarity != 0)
        return false;
    errno = error;
    return true;
}

/* The function of the C library that a name is of. */
#define NEXT(type, name, ...)                                                                      \
    static type (*next)(__VA_ARGS__);                                                              \
    if (next == NULL)                                                                              \
    next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t pwrite64(int fd, const void *bytes, size_t n_bytes, off_t offset);
ssize_t pwrite64(int fd, const void *bytes, size_t n_bytes, off_t offset) {
    NEXT(ssize_t, pwrite64, int, const void *, size_t, off_t);
    return fails_now(ENOSPC) ? -1 : next(fd, bytes, n_bytes, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset);
ssize_t pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset) {
    NEXT(ssize_t, pwrite, int, const void *, size_t, off_t);
    return fails_now(ENOSPC) ? -1 : next(fd, bytes, n_bytes, offset);
}

int fsync(int fd);
int fsync(int fd) {
    NEXT(int, fsync, int);
    return fails_now(EIO) ? -1 : next(fd);
}

int fdatasync(int fd);
int fdatasync(int fd) {
    NEXT(int, fdatasync, int);
    return fails_now(EIO) ? -1 : next(fd);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to);
int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    NEXT(int, renameat, int, const char *, int, const char *);
    return fails_now(EIO) ? -1 : next(from_fd, from, to_fd, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    NEXT(int, renameat2, int, const char *, int, const char *, unsigned);
    return fails_now(EIO) ? -1 : next(from_fd, from, to_fd, to, flags);
}

int mkdirat(int fd, const char *path, mode_t mode);
int mkdirat(int fd, const char *path, mode_t mode) {
    NEXT(int, mkdirat, int, const char *, mode_t);
    return fails_now(EIO) ? -1 : next(fd, path, mode);
}

int unlinkat(int fd, const char *path, int flags);
int unlinkat(int fd, const char *path, int flags) {
    NEXT(int, unlinkat, int, const char *, int);
    return fails_now(EIO) ? -1 : next(fd, path, flags);
}

ssize_t pread64(int fd, void *bytes, size_t n_bytes, off_t offset);
ssize_t pread64(int fd, void *bytes, size_t n_bytes, off_t offset) {
    NEXT(ssize_t, pread64, int, void *, size_t, off_t);
    return fails_now(EIO) ? -1 : next(fd, bytes, n_bytes, offset);
}

ssize_t pread(int fd, void *bytes, size_t n_bytes, off_t offset);
ssize_t pread(int fd, void *bytes, size_t n_bytes, off_t offset) {
    NEXT(ssize_t, pread, int, void *, size_t, off_t);
    return fails_now(EIO) ? -1 : next(fd, bytes, n_bytes, offset);
}
