#include "core/device/cuda_event.h"

#include "core/device/cuda/check.h"
#include "core/device/cuda_device.h"

namespace megalith {

CudaEvent::CudaEvent(bool timed) {
  const unsigned timing = timed ? cudaEventDefault : cudaEventDisableTiming;
  MEGALITH_CUDA_CHECK(cudaEventCreateWithFlags(&event_, timing | cudaEventBlockingSync));
}

CudaEvent::~CudaEvent() { log_cuda(cudaEventDestroy(event_), "cudaEventDestroy"); }

void CudaEvent::record(CudaStream& stream, bool external) {
  const unsigned flags = external ? cudaEventRecordExternal : cudaEventRecordDefault;
  MEGALITH_CUDA_CHECK(cudaEventRecordWithFlags(event_, stream.handle(), flags));
}

void CudaEvent::wait(CudaStream& stream, bool external) {
  const unsigned flags = external ? cudaEventWaitExternal : cudaEventWaitDefault;
  MEGALITH_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), event_, flags));
}

void CudaEvent::wait_on_host() {
  MEGALITH_CUDA_CHECK(cudaEventSynchronize(event_));
  raise_cuda_fault();
}

double CudaEvent::seconds_since(const CudaEvent& earlier) const {
  float milliseconds = 0;
  MEGALITH_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace megalith
