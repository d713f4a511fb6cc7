/* Limits of a process: see limits.h. */
#include "examples/plan/limits.h"

#include <limits.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Version 1 says a number near 2^63 where nothing is limited, version 2 "max". */
#define MOST_BYTES (1ULL << 60)

static size_t read_limit(const char *path) {
    char text[64] = "";
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return LIMITS_NONE;
    bool is_read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    char *end = text;
    unsigned long long bytes = strtoull(text, &end, 10);
    return is_read && end != text && bytes < MOST_BYTES ? (size_t)bytes : LIMITS_NONE;
}

/* The least limit of a group and of those that it is in, below `root`. */
static size_t least_limit(const char *root, const char *group, const char *name) {
    char path[PATH_MAX], at[PATH_MAX];
    size_t least = LIMITS_NONE;
    snprintf(at, sizeof(at), "%s", group);
    for (;;) {
        int n = snprintf(path, sizeof(path), "%s%s/%s", root, strcmp(at, "/") == 0 ? "" : at, name);
        size_t limit = n > 0 && (size_t)n < sizeof(path) ? read_limit(path) : LIMITS_NONE;
        least = limit < least ? limit : least;
        char *slash = strrchr(at, '/');
        if (slash == NULL || at[0] == '\0')
            return least;
        *slash = '\0';
    }
}

size_t limits_memory(const char *groups, const char *root) {
    char line[PATH_MAX], of_memory[PATH_MAX];
    size_t least = LIMITS_NONE;
    FILE *file = fopen(groups, "r");
    if (file == NULL)
        return LIMITS_NONE;
    snprintf(of_memory, sizeof(of_memory), "%s/memory", root);
    while (fgets(line, sizeof(line), file) != NULL) { /* number:controllers:group */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        size_t limit = LIMITS_NONE;
        if (controllers[1] == '\0')
            limit = least_limit(root, group, "memory.max");
        else if (strcmp(controllers + 1, "memory") == 0)
            limit = least_limit(of_memory, group, "memory.limit_in_bytes");
        least = limit < least ? limit : least;
    }
    fclose(file);
    return least;
}

static bool may_pin_all(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    return syscall(SYS_capget, &header, data) == 0 &&
           (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

size_t limits_pinned(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_pin_all())
        return LIMITS_NONE;
    return (size_t)limit.rlim_cur;
}

size_t limits_file(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return LIMITS_NONE;
    return (size_t)limit.rlim_cur;
}
