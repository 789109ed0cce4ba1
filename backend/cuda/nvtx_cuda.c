/* NVTX ranges for outside tools (--nvtx): header-only NVTX3, which looks for a tool at its first
 * call and does nothing without one. Never inside a captured graph: there a range would be a
 * separate node. */
#include "backend/cuda/device_cuda.h"

#include <nvtx3/nvToolsExt.h>

static nvtxDomainHandle_t domain(void) {
    static nvtxDomainHandle_t reprise;
    if (!reprise)
        reprise = nvtxDomainCreateA("reprise");
    return reprise;
}

void rp_cuda_nvtx_push(const char *text) {
    nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = text};
    (void)nvtxDomainRangePushEx(domain(), &event);
}

void rp_cuda_nvtx_pop(void) { (void)nvtxDomainRangePop(domain()); }
