// The CUDA form of an Event's point, made at its first record. Needs no CUDA header.
#pragma once

#include "core/device/cuda_stream.h"

namespace megalith {

class CudaEvent {
 public:
  explicit CudaEvent(bool timed = false);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // External, under capture: nodes that fire it, or wait for it, at each replay.
  void record(CudaStream& stream, bool external = false);
  void wait(CudaStream& stream, bool external = false);  // does nothing if never recorded
  void wait_on_host();                                   // sleeps instead of spinning; throws a kernel's fault
  double seconds_since(const CudaEvent& earlier) const;  // both timed and reached

 private:
  [[maybe_unused]] CUevent_st* event_ = nullptr;  // without CUDA
};

}  // namespace megalith
