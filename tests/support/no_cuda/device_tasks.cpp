// What tests of every backend enqueue on CUDA, in a build without it.
#include "tests/support/device_tasks.h"
#include "core/device/device.h"

namespace megalith::test {

void enqueue_on_host(CudaStream&, std::function<void()>) { refuse_cuda(); }

}  // namespace megalith::test
