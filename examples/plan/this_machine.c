/* What the machine has: see this_machine.h. */
#include "examples/plan/this_machine.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "examples/common/device.h"
#include "examples/common/messages.h"
#include "examples/plan/hardware.h"
#include "examples/plan/limits.h"
#include "examples/train/files.h"
#include "examples/train/launch.h"

#define MOST_DRIVES 16

static zr_status_t describe_device(const train_options_t *options, const zr_log_t *log,
                                   zr_hardware_t *hardware) {
    zr_device_options_t device_options = zr_device_options_default();
    device_choice_t chosen;
    zr_device_t *device = NULL;
    zr_log_t quiet = *log;
    size_t n_sharing = (size_t)train_launch_n_sharing(options);
    quiet.level = ZR_LOG_WARNING; /* the run says which device it takes */
    ZR_TRY(device_choose(options->device, &quiet, &chosen));
    device_options.log = *log;
    device_options.index = chosen.index;
    device_options.n_threads = device_threads(options->n_threads, (int)n_sharing);
    ZR_TRY(zr_device_open(chosen.name, &device_options, &device));
    const zr_device_info_t *info = zr_device_info(device);
    hardware->kind = info->host_addressable ? ZR_HARDWARE_HOST : ZR_HARDWARE_CUDA;
    hardware->granule_bytes = info->granule_bytes;
    size_t n_on_device = options->use_nccl ? 1 : n_sharing;
    hardware->device_memory_bytes = info->memory_bytes / n_on_device;
    hardware->device_in_use_bytes = info->in_use_bytes / n_on_device;
    hardware->n_threads = device_options.n_threads;
    if (info->cuda_major > 0)
        hardware->cuda_major = info->cuda_major;
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t limit = limits_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    hardware->host_memory_bytes = (limit < memory ? limit : memory) / n_sharing;
    zr_device_close(&device);
    return ZR_OK;
}

/* ---- drives ---------------------------------------------------------------------------------- */

/* The file systems that were counted: folders may share one. */
typedef struct drives {
    dev_t seen[MOST_DRIVES];
    size_t n_seen;
    size_t free_bytes;
} drives_t;

static zr_status_t count_drive(drives_t *drives, const char *path, const zr_log_t *log) {
    struct stat status;
    struct statvfs room;
    if (stat(path, &status) != 0 || statvfs(path, &room) != 0)
        return zr_fail(log, ZR_ERR_IO, "--nvme-path %s: %s", path, strerror(errno));
    for (size_t i = 0; i < drives->n_seen; i++)
        if (drives->seen[i] == status.st_dev)
            return ZR_OK;
    if (drives->n_seen < MOST_DRIVES)
        drives->seen[drives->n_seen++] = status.st_dev;
    drives->free_bytes += (size_t)room.f_bavail * room.f_frsize;
    return ZR_OK;
}

/* How they want to be read and written: a store with nothing in it knows. */
static zr_status_t describe_transfers(const zr_nvme_options_t *nvme, const char *first,
                                      const zr_log_t *log, zr_hardware_t *hardware) {
    zr_store_options_t store_options = zr_store_options_default();
    zr_store_t *store = NULL;
    store_options.log = *log;
    store_options.paths = &first;
    store_options.n_paths = 1;
    const char *backend =
        strcmp(nvme->store, "uring") == 0 ? zr_store_drive_backend(log) : nvme->store;
    ZR_TRY(zr_store_create(backend, &store_options, NULL, 0, &store));
    if (limits_pinned() != LIMITS_NONE) /* of all ranks together */
        hardware->pinned_bytes = limits_pinned() / (size_t)hardware->ranks_per_node + 1;
    if (strcmp(backend, "posix") == 0)
        hardware->pinned_bytes = 0;
    hardware->disk_block_bytes = zr_store_info(store)->block_bytes;
    hardware->disk_align_bytes = zr_store_info(store)->buffer_align_bytes;
    zr_store_destroy(&store);
    return ZR_OK;
}

static zr_status_t describe_drives(const train_options_t *options, const zr_log_t *log,
                                   zr_hardware_t *hardware) {
    const zr_nvme_options_t *nvme = &options->config.nvme;
    char text[ZR_CONFIG_PATHS_BYTES], *rest = NULL;
    drives_t drives = {0};
    if (nvme->paths[0] == '\0')
        return ZR_OK;
    snprintf(text, sizeof(text), "%s", nvme->paths);
    char *first = strtok_r(text, ",", &rest);
    if (first == NULL)
        return ZR_OK;
    ZR_TRY(describe_transfers(nvme, first, log, hardware));
    size_t n_files = 0;
    for (char *path = first; path != NULL; path = strtok_r(NULL, ",", &rest)) {
        ZR_TRY(count_drive(&drives, path, log));
        n_files += nvme->files_per_path;
    }
    hardware->disk_bytes = drives.free_bytes / (size_t)train_launch_n_sharing(options);
    if (limits_file() < hardware->disk_bytes / n_files) /* a rank has files of its own */
        hardware->disk_bytes = n_files * limits_file();
    return ZR_OK;
}

/* Rates: measured ones where a file of them was named. */
static zr_status_t take_rates(const train_options_t *options, const zr_log_t *log,
                              zr_hardware_t *hardware) {
    *hardware = zr_hardware_default();
    return options->hardware_path == NULL
               ? ZR_OK
               : plan_hardware_read(options->hardware_path, log, hardware);
}

/* They have to be those of such a device, and are a share of so many ranks of a machine and
 * threads. */
static zr_status_t check_rates(const train_options_t *options, const zr_log_t *log,
                               const zr_hardware_t *rates, const zr_hardware_t *looked_up) {
    if (options->hardware_path == NULL)
        return ZR_OK;
    if (rates->kind != looked_up->kind)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--hardware %s: it describes the device %s, and this run is on %s; measure "
                       "that with zero-bench --save-hardware FILE --device %s",
                       options->hardware_path, zr_hardware_kind_name(rates->kind),
                       zr_hardware_kind_name(looked_up->kind),
                       zr_hardware_kind_name(looked_up->kind));
    int n_here = looked_up->ranks_per_node;
    if (rates->ranks_per_node != n_here || rates->n_threads != looked_up->n_threads)
        zr_log_write(
            log, ZR_LOG_WARNING,
            "--hardware %s: its rates are for %s with %s each, but this run has %d with %d: times "
            "are approximate; measure them with zero-bench --save-hardware FILE --ranks %d",
            options->hardware_path, zr_count_text((uint64_t)rates->ranks_per_node, "rank").text,
            zr_count_text((uint64_t)rates->n_threads, "thread").text, n_here, looked_up->n_threads,
            n_here);
    return ZR_OK;
}

zr_status_t this_machine_describe(const train_options_t *options, const zr_log_t *log,
                                  zr_hardware_t *hardware_p) {
    zr_hardware_t rates, hardware;
    ZR_TRY(train_files_check_nvme_paths(options, log));
    ZR_TRY(take_rates(options, log, &rates));
    hardware = rates;
    snprintf(hardware.name, sizeof(hardware.name), "this");
    hardware.ranks_per_node = train_launch_n_sharing(options);
    ZR_TRY(describe_device(options, log, &hardware));
    ZR_TRY(check_rates(options, log, &rates, &hardware));
    ZR_TRY(describe_drives(options, log, &hardware));
    *hardware_p = hardware;
    return ZR_OK;
}
