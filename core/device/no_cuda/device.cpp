// Stubs for core/device/cuda_*.h in a build without CUDA. Asking for a GPU fails with exit code 2, so that no CUDA
// stream exists and the other stubs are never reached. Functions that only CUDA's sources call are missing.
#include "core/device/device.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_graph.h"
#include "core/device/cuda_memory.h"
#include "core/device/cuda_stream.h"

namespace megalith {

bool cuda_built() { return false; }

std::string cuda_unavailable() { return "a build without the CUDA backend"; }
CudaFacts cuda_facts(int) { refuse_cuda(); }
void select_cuda_device(int) { refuse_cuda(); }
int use_cuda_device() { refuse_cuda(); }
std::string cuda_bus_id() { refuse_cuda(); }
void record_cuda_profile(bool) { refuse_cuda(); }

void* cuda_allocate(std::size_t) { refuse_cuda(); }
void cuda_free(void*) noexcept {}
void* cuda_allocate_host(std::size_t) { refuse_cuda(); }
void cuda_free_host(void*) noexcept {}
CudaMemory cuda_memory() { refuse_cuda(); }

CudaStream::CudaStream() { refuse_cuda(); }
CudaStream::~CudaStream() {}
void CudaStream::copy(void*, const void*, std::size_t) { refuse_cuda(); }
void CudaStream::fill(void*, std::uint8_t, std::size_t) { refuse_cuda(); }
void CudaStream::synchronize() { refuse_cuda(); }
CudaStream::Range::Range(const char*) { refuse_cuda(); }
CudaStream::Range::~Range() {}

CudaEvent::CudaEvent(bool) { refuse_cuda(); }
CudaEvent::~CudaEvent() {}
void CudaEvent::record(CudaStream&, bool) { refuse_cuda(); }
void CudaEvent::wait(CudaStream&, bool) { refuse_cuda(); }
void CudaEvent::wait_on_host() { refuse_cuda(); }
double CudaEvent::seconds_since(const CudaEvent&) const { refuse_cuda(); }

CudaGraph::~CudaGraph() {}
void CudaGraph::begin(CudaStream&) { refuse_cuda(); }
void CudaGraph::record(CudaStream&, std::uint64_t) { refuse_cuda(); }
void CudaGraph::wait(CudaStream&, std::uint64_t) { refuse_cuda(); }
std::uint64_t CudaGraph::tail(CudaStream&) { refuse_cuda(); }
std::size_t CudaGraph::end_op(CudaStream&) { refuse_cuda(); }
void CudaGraph::end(CudaStream&, const Dependencies&) { refuse_cuda(); }
void CudaGraph::abort(CudaStream&) noexcept {}
void CudaGraph::launch(CudaStream&) { refuse_cuda(); }

}  // namespace megalith
