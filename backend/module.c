#include "backend/module.h"

#include "backend/group.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "libreprise_cuda.so"

void rp_backend_module_path(char *out, size_t size) {
    const char *told = getenv("REPRISE_CUDA_MODULE");
    char exe[1024];
    out[0] = '\0';
    if (told && *told) {
        snprintf(out, size, "%s", told);
        return;
    }
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (len <= 0)
        return;
    exe[len] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        snprintf(out, size, "%.*s/" MODULE_NAME, (int)(slash - exe), exe);
}

const struct rp_backend *rp_backend_open_module(struct rp_error *err) {
    static const struct rp_backend *opened;
    char path[1152];
    if (opened)
        return opened;
    rp_backend_module_path(path, sizeof path);
    if (access(path, R_OK) != 0) {
        (void)rp_error_set(err, RP_STATUS_NOT_FOUND, "there is no %s", path);
        rp_error_hint(err, "build where nvcc is installed, or set REPRISE_CUDA_MODULE to the file");
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        (void)rp_error_set(err, RP_STATUS_UNSUPPORTED, "the module cannot be opened: %.400s",
                           why ? why : path); /* it begins with the path */
        return NULL;
    }
    const struct rp_backend *(*table)(void) = NULL;
    void *symbol = dlsym(handle, "rp_backend_cuda_table");
    _Static_assert(sizeof table == sizeof symbol, "a function's address fits a pointer");
    memcpy(&table, &symbol, sizeof table);
    const struct rp_backend *backend = table ? table() : NULL;
    if (!backend || backend->abi != RP_BACKEND_ABI) {
        if (!backend)
            (void)rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s is no module of reprise", path);
        else
            (void)rp_error_set(err, RP_STATUS_UNSUPPORTED,
                               "%s has interface %u, this program needs %u", path, backend->abi,
                               (uint32_t)RP_BACKEND_ABI);
        rp_error_hint(err, "take program and module from one build");
        dlclose(handle);
        return NULL;
    }
    opened = backend;
    return opened;
}

static int open_cuda(const struct rp_device_config *config, struct rp_backend_selection *out,
                     struct rp_error *err) {
    const struct rp_backend *module = rp_backend_open_module(err);
    if (!module)
        return err->status;
    return rp_group_open(module, config, &out->backend, &out->device, err);
}

/* There is a GPU, but a group was asked for, which the module does not have: no reason to take the
 * CPU. */
static bool is_gpu_without_groups(const struct rp_device_config *config) {
    struct rp_error unused;
    struct rp_device_config one = *config;
    struct rp_device *device = NULL;
    const struct rp_backend *module = rp_backend_open_module(&unused);
    one.ranks = 1;
    if (config->ranks <= 1 || !module || module->join ||
        module->open(&one, &device, &unused) != RP_OK)
        return false;
    module->close(device);
    return true;
}

int rp_backend_select(enum rp_device_choice choice, const struct rp_device_config *config,
                      struct rp_backend_selection *out, struct rp_error *err) {
    struct rp_error why = {0};
    memset(out, 0, sizeof *out);
    snprintf(out->reason, sizeof out->reason, "as told");
    if (choice != RP_DEVICE_CHOICE_CPU) {
        int status = open_cuda(config, out, &why);
        if (status == RP_OK) {
            out->backend->info(out->device, &out->info);
            if (choice == RP_DEVICE_CHOICE_AUTO)
                snprintf(out->reason, sizeof out->reason, "CUDA was found");
            return RP_OK;
        }
        if (choice == RP_DEVICE_CHOICE_CUDA || is_gpu_without_groups(config)) {
            status = rp_error_set(err, RP_STATUS_DEVICE, "--device cuda: %.400s", why.text);
            rp_error_hint(err, "%s",
                          why.hint[0] ? why.hint
                                      : "`reprise doctor` says what was found; --device cpu "
                                        "runs without a GPU");
            return status;
        }
        snprintf(out->reason, sizeof out->reason, "no CUDA: %.360s", why.text);
    }
    out->device = NULL;
    int status = rp_group_open(rp_backend_cpu(), config, &out->backend, &out->device, err);
    if (status == RP_OK)
        out->backend->info(out->device, &out->info);
    return status;
}

int rp_backend_check_program(const struct rp_backend *backend, const struct rp_program *program,
                             struct rp_error *err) {
    for (uint32_t i = 0; backend->runs && i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        if (backend->runs(op->kind))
            continue;
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                  "model: %s needs the operator \"%s\", which has no %s kernel yet",
                                  op->name, rp_op_kind_name(op->kind), backend->name);
        rp_error_hint(err, "--device cpu runs this model");
        return status;
    }
    return RP_OK;
}
