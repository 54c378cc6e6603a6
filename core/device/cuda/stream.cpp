#include <nvtx3/nvToolsExt.h>

#include "core/device/cuda/allow_under_capture.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda/library_check.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_stream.h"
#include "core/device/cuda_stream_state.h"

namespace megalith {

CudaStream::CudaStream() : device_(use_cuda_device()), fault_(cuda_fault()) {
  const auto read = [this](int& value, cudaDeviceAttr attribute) {
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device_));
  };
  read(multiprocessors_, cudaDevAttrMultiProcessorCount);
  read(shared_memory_of_multiprocessor_, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  read(dynamic_shared_memory_of_block_, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  dynamic_shared_memory_of_block_ -= kSharedMemoryOfBlock - 1024;  // this value excludes the runtime's part
  MEGALITH_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  state_ = new CudaStreamState;
}

CudaStream::~CudaStream() {
  log_cuda(cudaStreamSynchronize(stream_), "a stream ended with an unreported error");
  delete state_;  // destroyed ahead of the library handles that created it
  if (dnn_ != nullptr) cudnnDestroy(dnn_);
  if (blas_lt_ != nullptr) cublasLtDestroy(blas_lt_);
  log_cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

cublasLtContext* CudaStream::blas_lt() {
  if (blas_lt_ == nullptr) {
    const AllowUnderCapture allow;
    MEGALITH_CUBLAS_CHECK(cublasLtCreate(&blas_lt_));
  }
  return blas_lt_;
}

cudnnContext* CudaStream::dnn() {
  if (dnn_ == nullptr) {
    const AllowUnderCapture allow;
    blas_lt();  // loads cuBLASLt first: cuDNN might not find it in the toolkit's folder
    MEGALITH_CUDNN_CHECK(cudnnCreate(&dnn_));
    MEGALITH_CUDNN_CHECK(cudnnSetStream(dnn_, stream_));
  }
  return dnn_;
}

void CudaStream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) MEGALITH_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
}

void CudaStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
  if (bytes > 0) MEGALITH_CUDA_CHECK(cudaMemsetAsync(to, value, bytes, stream_));
}

void CudaStream::synchronize() {
  MEGALITH_CUDA_CHECK(cudaStreamSynchronize(stream_));
  raise_cuda_fault();
}

CudaStream::Range::Range(const char* name) { nvtxRangePushA(name); }
CudaStream::Range::~Range() { nvtxRangePop(); }

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
