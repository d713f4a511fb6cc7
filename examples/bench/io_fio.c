/*
 * Passes over files by fio, in its fastest form: io_uring, direct, registered buffers and files,
 * and memory in huge pages, which the C library is told to ask for. Its files have no name either;
 * it opens them through this process.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "examples/bench/io_run.h"

#define COMMAND_BYTES 2048
#define VERIFY_BYTES ((size_t)256 << 10) /* a checksum each, as the store's */

bool io_fio_find(char *version, size_t version_bytes) {
    FILE *pipe = popen("fio --version 2>/dev/null", "r");
    version[0] = '\0';
    if (pipe == NULL)
        return false;
    bool said = fgets(version, (int)version_bytes, pipe) != NULL;
    version[strcspn(version, "\n")] = '\0';
    return pclose(pipe) == 0 && said;
}

static zr_status_t make_file(io_fio_t *fio, const char *folder, size_t size_bytes,
                             const zr_log_t *log) {
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/.zero-bench-XXXXXX", folder);
    if (length < 0 || (size_t)length >= sizeof(path))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: the name of this folder is too long", folder);
    int fd = mkostemp(path, 0);
    if (fd < 0)
        return zr_fail(log, ZR_ERR_IO, "%s: no file for fio: %s", folder, strerror(errno));
    fio->files[fio->n_files++] = fd;
    if (unlink(path) != 0 || fallocate(fd, 0, 0, (off_t)size_bytes) != 0)
        return zr_fail(log, ZR_ERR_IO, "%s: no file of %zu bytes for fio: %s", folder, size_bytes,
                       strerror(errno));
    return ZR_OK;
}

zr_status_t io_fio_open(const io_place_t *place, size_t n_files_per_path, io_fio_t *fio) {
    const io_fio_job_t first = {.setting = {.request_bytes = (size_t)1 << 20, .depth = 16},
                                .pattern = IO_WRITE,
                                .n_bytes = place->size_bytes};
    size_t n_files = place->n_paths * n_files_per_path;
    io_speed_t speed;
    *fio = (io_fio_t){.size_bytes = place->size_bytes};
    for (size_t i = 0; i < n_files; i++)
        ZR_TRY(make_file(fio, place->paths[i % place->n_paths], place->size_bytes / n_files,
                         &place->log));
    return io_fio_pass(fio, &first, &place->log, &speed);
}

void io_fio_close(io_fio_t *fio) {
    for (size_t i = 0; i < fio->n_files; i++)
        close(fio->files[i]);
    fio->n_files = 0;
}

/* Its own checksums: the bytes are a fixed pattern, because random ones would cost it more than
 * the checksum. It leaves no file of its own about them. */
static int add_verify(const io_fio_job_t *job, char *command, int n) {
    size_t interval = job->setting.request_bytes;
    interval = interval < VERIFY_BYTES ? interval : VERIFY_BYTES;
    return n + snprintf(command + n, (size_t)(COMMAND_BYTES - n),
                        "--verify=%s --verify_interval=%zu --verify_pattern=0x5a --do_verify=0 "
                        "--verify_fatal=1 --verify_state_save=0 --randrepeat=1 ",
                        job->verify, interval);
}

static void make_command(const io_fio_t *fio, const io_fio_job_t *job, char *command) {
    static const char *const names[] = {"write", "read", "rw"};
    int n = snprintf(command, COMMAND_BYTES,
                     "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=io --ioengine=io_uring "
                     "--direct=1 --fixedbufs=1 --registerfiles=1 "
                     "--overwrite=1 --randrepeat=0 --rw=%s --bs=%zu --iodepth=%zu --size=%zu "
                     "--io_size=%llu --output-format=json ",
                     names[job->pattern], job->setting.request_bytes, job->setting.depth,
                     fio->size_bytes, (unsigned long long)job->n_bytes);
    if (job->verify != NULL)
        n = add_verify(job, command, n);
    n += snprintf(command + n, (size_t)(COMMAND_BYTES - n), "--filename=");
    for (size_t i = 0; i < fio->n_files && n < COMMAND_BYTES - 64; i++)
        n += snprintf(command + n, (size_t)(COMMAND_BYTES - n), "%s/proc/%ld/fd/%d",
                      i == 0 ? "" : ":", (long)getpid(), fio->files[i]);
}

/* fio gives processor time in percent of its longest run time, in milliseconds. */
static bool read_speed(const json_t *output, io_speed_t *speed_p) {
    const json_t *job = json_array_get(json_object_get(output, "jobs"), 0);
    const json_t *sides[] = {json_object_get(job, "read"), json_object_get(job, "write")};
    double n_bytes = 0.0, milliseconds = 0.0;
    for (int i = 0; i < 2; i++) {
        double runtime = json_number_value(json_object_get(sides[i], "runtime"));
        n_bytes += json_number_value(json_object_get(sides[i], "io_bytes"));
        milliseconds = runtime > milliseconds ? runtime : milliseconds;
    }
    double percent = json_number_value(json_object_get(job, "usr_cpu")) +
                     json_number_value(json_object_get(job, "sys_cpu"));
    if (!(n_bytes > 0.0) || !(milliseconds > 0.0))
        return false;
    *speed_p = (io_speed_t){.bytes_per_s = n_bytes / (1e-3 * milliseconds),
                            .cpu_seconds_per_byte = 1e-5 * percent * milliseconds / n_bytes};
    return true;
}

zr_status_t io_fio_pass(const io_fio_t *fio, const io_fio_job_t *job, const zr_log_t *log,
                        io_speed_t *speed_p) {
    char command[COMMAND_BYTES];
    make_command(fio, job, command);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        return zr_fail(log, ZR_ERR_IO, "fio cannot be started: %s", strerror(errno));
    json_error_t error;
    json_t *output = json_loadf(pipe, JSON_DISABLE_EOF_CHECK, &error);
    char rest[256];
    while (fread(rest, 1, sizeof(rest), pipe) > 0)
        ;
    int code = pclose(pipe);
    bool is_read = code == 0 && output != NULL && read_speed(output, speed_p);
    json_decref(output);
    if (is_read)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_IO, "fio ended with %d and without a bandwidth; it was: %s",
                   WIFEXITED(code) ? WEXITSTATUS(code) : code, command);
}
