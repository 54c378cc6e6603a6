// Which part of the host is near the process's GPU.
#pragma once

#include <sched.h>

namespace megalith {

// While it lives, this thread runs on CPUs of the GPU's NUMA node, so that pages that it gets are from there. Where the
// system does not say which these are, or does not let it, nothing changes.
class NearGpu {
 public:
  NearGpu();
  ~NearGpu();
  NearGpu(const NearGpu&) = delete;
  NearGpu& operator=(const NearGpu&) = delete;

 private:
  cpu_set_t before_{};
  bool moved_ = false;
};

}  // namespace megalith
