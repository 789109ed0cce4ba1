/* reprise doctor [--json]: reports the hardware, driver and libraries of this machine, and what
 * would be used. It changes nothing; a missing component is reported, not an error. */
#include "backend/cpu/cpu_memory.h"
#include "backend/module.h"
#include "base/buffer.h"
#include "base/json_writer.h"
#include "device/cpu_isa.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <dirent.h>
#include <dlfcn.h>
#include <jansson.h>
#include <llhttp.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>
#include <xxhash.h>

struct doctor_options {
    bool json;
};

/* One line of the report: section, name, value found. */
struct finding {
    const char *section;
    char name[40], text[400];
    bool missing;
};

struct report {
    struct finding findings[64];
    uint32_t count;
};

static struct finding *add(struct report *report, const char *section, const char *name) {
    RP_ASSERT(report->count < RP_ARRAY_COUNT(report->findings));
    struct finding *finding = &report->findings[report->count++];
    memset(finding, 0, sizeof *finding);
    finding->section = section;
    snprintf(finding->name, sizeof finding->name, "%s", name);
    return finding;
}

static void add_text(struct report *report, const char *section, const char *name,
                     const char *text) {
    struct finding *finding = add(report, section, name);
    snprintf(finding->text, sizeof finding->text, "%s", text);
}

/* --- CUDA ------------------------------------------------------------------------------------ */

/* How a library's version function is called and its result decoded. */
enum version_call {
    VERSION_SIZE_T,      /* size_t f(void) */
    VERSION_TWO_INTS,    /* int f(int *major, int *minor) */
    VERSION_UINT32,      /* int f(uint32_t *) */
    VERSION_INT,         /* int f(int *) */
    VERSION_TEXT_OF_NVML /* int f(char *, unsigned), between nvmlInit_v2 and nvmlShutdown */
};

struct library {
    const char *name, *sonames[3], *call;
    enum version_call kind;
    const char *folder; /* folder under nvidia/ in Python's site-packages; NULL: none */
};

static const struct library libraries[] = {
    {"driver", {"libcuda.so.1"}, "cuDriverGetVersion", VERSION_INT, NULL},
    {"cublasLt",
     {"libcublasLt.so.13", "libcublasLt.so.12"},
     "cublasLtGetVersion",
     VERSION_SIZE_T,
     "cublas"},
    {"nvrtc", {"libnvrtc.so.13", "libnvrtc.so.12"}, "nvrtcVersion", VERSION_TWO_INTS, "cuda_nvrtc"},
    {"cupti",
     {"libcupti.so.13", "libcupti.so.12"},
     "cuptiGetVersion",
     VERSION_UINT32,
     "cuda_cupti"},
    {"nvml", {"libnvidia-ml.so.1"}, "nvmlSystemGetDriverVersion", VERSION_TEXT_OF_NVML, NULL},
    {"nccl", {"libnccl.so.2"}, "ncclGetVersion", VERSION_INT, "nccl"},
};

/* Looks up a function of a library; out points to a function pointer of its type. */
static bool find(void *handle, const char *name, void *out) {
    void *symbol = dlsym(handle, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void read_nvml(void *handle, char *out, size_t size) {
    int (*init)(void), (*shutdown)(void), (*version)(char *, unsigned);
    char text[96] = "";
    if (!find(handle, "nvmlInit_v2", &init) || !find(handle, "nvmlShutdown", &shutdown) ||
        !find(handle, "nvmlSystemGetDriverVersion", &version))
        return;
    int rc = init();
    if (rc != 0) {
        snprintf(out, size, "does not start (%d)", rc);
        return;
    }
    if (version(text, sizeof text) == 0)
        snprintf(out, size, "driver %.60s", text);
    (void)shutdown();
}

static void read_version(void *handle, const struct library *library, char *out, size_t size) {
    size_t (*sized)(void);
    int (*two)(int *, int *), (*one)(int *), (*wide)(uint32_t *);
    int major = 0, minor = 0;
    uint32_t number = 0;
    snprintf(out, size, "version unknown");
    switch (library->kind) {
    case VERSION_SIZE_T:
        if (find(handle, library->call, &sized))
            snprintf(out, size, "version %zu", sized());
        break;
    case VERSION_TWO_INTS:
        if (find(handle, library->call, &two) && two(&major, &minor) == 0)
            snprintf(out, size, "version %d.%d", major, minor);
        break;
    case VERSION_UINT32:
        if (find(handle, library->call, &wide) && wide(&number) == 0)
            snprintf(out, size, "version %u", number);
        break;
    case VERSION_INT:
        if (find(handle, library->call, &one) && one(&major) == 0)
            snprintf(out, size, "version %d", major);
        break;
    case VERSION_TEXT_OF_NVML:
        read_nvml(handle, out, size);
        break;
    }
}

/* Searches the loader's path, $CUDA_HOME and Python's CUDA packages. */
static void *open_library(const struct library *library, const char *soname, char *path,
                          size_t size) {
    static const char *const roots[] = {"/usr/local/lib", "/usr/lib"};
    const char *home = getenv("CUDA_HOME");
    snprintf(path, size, "%s", soname);
    void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!handle) {
        snprintf(path, size, "%s/lib64/%s", home && *home ? home : "/usr/local/cuda", soname);
        handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    for (size_t r = 0; r < RP_ARRAY_COUNT(roots) && !handle && library->folder; r++) {
        DIR *dir = opendir(roots[r]);
        struct dirent *entry;
        while (dir && !handle && (entry = readdir(dir)) != NULL) {
            if (strncmp(entry->d_name, "python3", 7) != 0)
                continue;
            static const char *const packages[] = {"dist-packages", "site-packages"};
            for (size_t p = 0; p < 2 * RP_ARRAY_COUNT(packages) && !handle; p++) {
                /* Since CUDA 13, nvidia/cu13 contains all of them. */
                snprintf(path, size, "%s/%s/%s/nvidia/%s/lib/%s", roots[r], entry->d_name,
                         packages[p / 2], p % 2 ? "cu13" : library->folder, soname);
                handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
            }
        }
        if (dir)
            closedir(dir);
    }
    return handle;
}

static void check_library(struct report *report, const struct library *library) {
    struct finding *finding = add(report, "cuda", library->name);
    char path[1024], version[128] = "";
    for (size_t i = 0; i < RP_ARRAY_COUNT(library->sonames) && library->sonames[i]; i++) {
        void *handle = open_library(library, library->sonames[i], path, sizeof path);
        if (!handle)
            continue;
        read_version(handle, library, version, sizeof version);
        snprintf(finding->text, sizeof finding->text, "%.250s, %s", path, version);
        return; /* never closed: the driver's libraries do not support unloading */
    }
    finding->missing = true;
    snprintf(finding->text, sizeof finding->text, "%s not found", library->sonames[0]);
}

/* Adds the module's members for the driver and the GPUs. */
static void add_gpus(struct report *report, const char *text) {
    json_t *root = json_loads(text, 0, NULL), *gpu;
    const char *driver = json_string_value(json_object_get(root, "driver"));
    const char *runtime = json_string_value(json_object_get(root, "runtime"));
    size_t i;
    if (driver)
        add_text(report, "cuda", "driver's CUDA", driver);
    if (runtime)
        add_text(report, "cuda", "runtime", runtime);
    json_array_foreach(json_object_get(root, "devices"), i, gpu) {
        const char *name = json_string_value(json_object_get(gpu, "name"));
        const char *capability = json_string_value(json_object_get(gpu, "compute_capability"));
        json_int_t bytes = json_integer_value(json_object_get(gpu, "memory_bytes"));
        if (report->count + 16 > RP_ARRAY_COUNT(report->findings))
            break;
        struct finding *finding = add(report, "cuda", "gpu");
        snprintf(finding->text, sizeof finding->text,
                 "%zu: %.200s, %.2f GiB, compute capability %.20s", i, name ? name : "?",
                 (double)bytes / (1024.0 * 1024.0 * 1024.0), capability ? capability : "?");
    }
    json_decref(root);
}

static void check_cuda(struct report *report) {
    struct rp_error err = {0};
    char path[1152], gpus[8192];
    for (size_t i = 0; i < RP_ARRAY_COUNT(libraries); i++)
        check_library(report, &libraries[i]);
    rp_backend_module_path(path, sizeof path);
    struct finding *module = add(report, "cuda", "module");
    const struct rp_backend *backend = rp_backend_open_module(&err);
    module->missing = !backend;
    snprintf(module->text, sizeof module->text, "%.390s", backend ? path : err.text);
    if (backend && backend->describe && backend->describe(gpus, sizeof gpus) > 0)
        add_gpus(report, gpus);
}

/* --- The machine ----------------------------------------------------------------------------- */

static void add_bytes(struct report *report, const char *section, const char *name,
                      uint64_t bytes) {
    struct finding *finding = add(report, section, name);
    if (bytes >= (uint64_t)1 << 60) /* "no limit" in version 1 of control groups */
        snprintf(finding->text, sizeof finding->text, "no limit");
    else
        snprintf(finding->text, sizeof finding->text, "%.2f GiB",
                 (double)bytes / (1024.0 * 1024.0 * 1024.0));
}

static void check_machine(struct report *report) {
    struct finding *finding = add(report, "machine", "cores");
    snprintf(finding->text, sizeof finding->text, "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add_text(report, "machine", "kernels", rp_cpu_isa_name(rp_cpu_isa_detect()));
#if defined(__x86_64__)
    finding = add(report, "machine", "instructions");
    __builtin_cpu_init();
    snprintf(finding->text, sizeof finding->text, "%s%s%s%s%s",
             __builtin_cpu_supports("avx2") ? "avx2 " : "",
             __builtin_cpu_supports("fma") ? "fma " : "",
             __builtin_cpu_supports("avx512f") ? "avx512f " : "",
             __builtin_cpu_supports("avx512vnni") ? "avx512vnni " : "",
             __builtin_cpu_supports("avx512bf16") ? "avx512bf16" : "");
#endif
    add_bytes(report, "machine", "free memory", rp_cpu_memory_room());
    add_bytes(report, "limits", "memory of the control group", rp_cpu_group_room("/sys/fs/cgroup"));
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        finding = add(report, "limits", "open files");
        snprintf(finding->text, sizeof finding->text, "%llu, at most %llu",
                 (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        add_bytes(report, "limits", "locked memory",
                  limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : (uint64_t)limit.rlim_cur);
}

static void check_build(struct report *report) {
    struct finding *finding;
    add_text(report, "build", "reprise", RP_VERSION);
    add_text(report, "build", "compiler", __VERSION__);
    add_text(report, "build", "libuv", uv_version_string());
    finding = add(report, "build", "llhttp");
    snprintf(finding->text, sizeof finding->text, "%d.%d.%d", LLHTTP_VERSION_MAJOR,
             LLHTTP_VERSION_MINOR, LLHTTP_VERSION_PATCH);
    add_text(report, "build", "jansson", jansson_version_str());
    finding = add(report, "build", "PCRE2");
    (void)pcre2_config(PCRE2_CONFIG_VERSION, finding->text);
    finding = add(report, "build", "xxHash");
    snprintf(finding->text, sizeof finding->text, "%u", XXH_versionNumber());
}

/* What --device auto would select. */
static void check_selection(struct report *report) {
    const struct rp_device_config config = {0};
    struct rp_backend_selection selection;
    struct rp_error err = {0};
    struct finding *finding = add(report, "use", "device");
    finding->missing = rp_backend_select(RP_DEVICE_CHOICE_AUTO, &config, &selection, &err) != RP_OK;
    if (finding->missing) {
        snprintf(finding->text, sizeof finding->text, "%.390s", err.text);
        return;
    }
    snprintf(finding->text, sizeof finding->text, "%s: %s (%.250s)", selection.backend->name,
             selection.info.name, selection.reason);
    selection.backend->close(selection.device);
}

/* --- Printing -------------------------------------------------------------------------------- */

static void print_text(const struct report *report, struct rp_buffer *out) {
    const char *section = "";
    for (uint32_t i = 0; i < report->count; i++) {
        const struct finding *finding = &report->findings[i];
        if (strcmp(section, finding->section) != 0)
            rp_buffer_printf(out, "%s%s\n", i ? "\n" : "", section = finding->section);
        rp_buffer_printf(out, "  %-28s %s%s\n", finding->name, finding->missing ? "- " : "",
                         finding->text);
    }
}

static void print_json(const struct report *report, struct rp_buffer *out) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_array_begin(&json, "findings");
    for (uint32_t i = 0; i < report->count; i++) {
        const struct finding *finding = &report->findings[i];
        rp_json_object_begin(&json, NULL);
        rp_json_string(&json, "section", finding->section);
        rp_json_string(&json, "name", finding->name);
        rp_json_bool(&json, "found", !finding->missing);
        rp_json_string(&json, "text", finding->text);
        rp_json_object_end(&json);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}

static const struct rp_flag doctor_flags[] = {
    {"json", RP_FLAG_SWITCH, offsetof(struct doctor_options, json), NULL, 0, 0, NULL,
     "one JSON object"},
};

static const struct rp_command_spec doctor_spec = {
    .name = "doctor",
    .positionals = "",
    .summary = "Reports what this machine has: driver, GPUs, libraries, limits, and what would be "
               "used.",
    .flags = doctor_flags,
    .flag_count = RP_ARRAY_COUNT(doctor_flags),
};

int rp_cmd_doctor(int argc, char **argv) {
    static struct report report;
    const char *positionals[RP_POSITIONALS_MAX];
    struct doctor_options options = {0};
    struct rp_error err = {0};
    struct rp_buffer out;
    int status = rp_flags_parse(&doctor_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    check_build(&report);
    check_machine(&report);
    check_cuda(&report);
    check_selection(&report);
    rp_buffer_init(&out, 0);
    if (options.json)
        print_json(&report, &out);
    else
        print_text(&report, &out);
    bool written =
        !out.failed && fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
    rp_buffer_deinit(&out);
    if (written)
        return RP_EXIT_OK;
    status = rp_error_set(&err, RP_STATUS_IO, "standard output cannot be written");
    return rp_fail(RP_EXIT_FAILURE, &err);
}
