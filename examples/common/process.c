/*
 * What the system says of this process: Linux's /proc. It is read without allocating: what is
 * reported must not depend on whether there is memory for the report.
 */
#include "examples/common/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

size_t process_peak_resident_bytes(void) {
    char text[4096];
    size_t length = 0, kib = 0;
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    for (ssize_t n = 1; n > 0 && length<sizeof(text) - 1; length += n> 0 ? (size_t)n : 0)
        n = read(fd, text + length, sizeof(text) - 1 - length);
    close(fd);
    text[length] = '\0';
    const char *line = strstr(text, "\nVmHWM:");
    return line != NULL && sscanf(line, " VmHWM: %zu kB", &kib) == 1 ? kib << 10 : 0;
}
