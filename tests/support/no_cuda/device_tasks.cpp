// Stubs of the CUDA tasks in tests of every backend, for a build without CUDA.
#include "tests/support/device_tasks.h"
#include "core/device/device.h"

namespace megalith::test {

void enqueue_on_host(CudaStream&, std::function<void()>) { refuse_cuda(); }

}  // namespace megalith::test
