#include "core/device/cuda_event.h"

#include "core/device/cuda_check.h"
#include "core/device/cuda_device.h"

namespace megalith {

CudaEvent::CudaEvent() {
  MEGALITH_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
}

CudaEvent::~CudaEvent() { log_cuda(cudaEventDestroy(event_), "cudaEventDestroy"); }

void CudaEvent::record(CudaStream& stream) { MEGALITH_CUDA_CHECK(cudaEventRecord(event_, stream.handle())); }

void CudaEvent::wait(CudaStream& stream) {
  MEGALITH_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), event_, cudaEventWaitDefault));
}

void CudaEvent::record_external(CudaStream& stream) {
  MEGALITH_CUDA_CHECK(cudaEventRecordWithFlags(event_, stream.handle(), cudaEventRecordExternal));
}

void CudaEvent::wait_external(CudaStream& stream) {
  MEGALITH_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), event_, cudaEventWaitExternal));
}

void CudaEvent::wait_on_host() {
  MEGALITH_CUDA_CHECK(cudaEventSynchronize(event_));
  raise_cuda_fault();
}

std::shared_ptr<CudaEvent> make_cuda_event() { return std::make_shared<CudaEvent>(); }

}  // namespace megalith
