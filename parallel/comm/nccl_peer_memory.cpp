#include "parallel/comm/nccl_peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/device/cuda_check.h"
#include "core/device/cuda_memory.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl_peer_kernels.h"

namespace megalith {

namespace {

// Of libcuda, which this program does not link to.
using AddressRange = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
AddressRange find_address_range() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MEGALITH_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess, "the driver lacks cuMemGetAddressRange");
  return reinterpret_cast<AddressRange>(function);
}

// How another process finds memory of this one.
struct Place {
  cudaIpcMemHandle_t handle{};  // of the allocation that holds it
  std::uint64_t offset = 0;     // in that allocation
};

Place place_of(void* address) {
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  const auto device_address = reinterpret_cast<CUdeviceptr>(address);
  require(find_address_range()(&begin, &bytes, device_address) == CUDA_SUCCESS, "shared memory is GPU memory");
  Place place{.offset = device_address - begin};
  if (cudaIpcGetMemHandle(&place.handle, reinterpret_cast<void*>(begin)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    place.offset = UINT64_MAX;  // this memory cannot be shared
  }
  return place;
}

struct Offer {
  char host[256] = "";
  std::uint64_t bytes = 0;
  Place memory;
  Place flags;
};

std::byte* map(const Place& place, std::vector<void*>& mapped) {
  void* address = nullptr;
  if (place.offset == UINT64_MAX ||
      cudaIpcOpenMemHandle(&address, place.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  mapped.push_back(address);
  return static_cast<std::byte*>(address) + place.offset;
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::share(Communicator& host, void* base, std::size_t bytes,
                                              const std::uint32_t* stop) {
  const auto ranks = static_cast<std::size_t>(host.size());
  std::unique_ptr<PeerMemory> memory(new PeerMemory(host.rank(), static_cast<std::byte*>(base), bytes, stop));
  memory->peers_.resize(ranks);
  memory->flags_ = static_cast<Flags*>(cuda_allocate(ranks * sizeof(Flags)));
  if (memory->flags_ == nullptr) fail({.code = ExitCode::kOutOfMemory, .subject = "flags of group " + host.name()});
  MEGALITH_CUDA_CHECK(cudaMemset(memory->flags_, 0, ranks * sizeof(Flags)));
  MEGALITH_CUDA_CHECK(cudaDeviceSynchronize());  // before a peer writes there

  Offer mine{.bytes = bytes, .memory = place_of(base), .flags = place_of(memory->flags_)};
  gethostname(mine.host, sizeof(mine.host) - 1);
  const std::vector<std::string> offers =
      host.host_all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)));
  bool all_mapped = true;
  for (std::size_t r = 0; r < ranks && all_mapped; ++r) {
    if (r == static_cast<std::size_t>(host.rank())) continue;
    Offer theirs;
    require(offers[r].size() == sizeof(theirs), "a peer's offer of memory has another size");
    std::memcpy(&theirs, offers[r].data(), sizeof(theirs));
    Peer& peer = memory->peers_[r];
    all_mapped = std::strcmp(theirs.host, mine.host) == 0 && theirs.bytes == bytes &&
                 (peer.base = map(theirs.memory, peer.mapped)) != nullptr &&
                 (peer.flags = reinterpret_cast<Flags*>(map(theirs.flags, peer.mapped))) != nullptr;
  }
  if (host.host_any(!all_mapped)) return nullptr;
  return memory;
}

PeerMemory::~PeerMemory() {
  for (const Peer& peer : peers_) {
    for (void* address : peer.mapped) log_cuda(cudaIpcCloseMemHandle(address), "cudaIpcCloseMemHandle");
  }
  cuda_free(flags_);
}

bool PeerMemory::holds(const Tensor& tensor) const {
  const auto* const begin = tensor.as<std::byte>();
  return begin >= base_ && begin + tensor.bytes() <= base_ + bytes_;
}

void PeerMemory::shift(CudaStream& stream, const Tensor& in, const Tensor& out, int step) {
  const int ranks = static_cast<int>(peers_.size());
  const auto above_rank = static_cast<std::size_t>((rank_ + step) % ranks);
  const auto below_rank = static_cast<std::size_t>((rank_ - step + ranks) % ranks);
  const Peer &above = peers_[above_rank], &below = peers_[below_rank];
  const std::ptrdiff_t offset = in.as<std::byte>() - base_;
  const std::uint64_t place = static_cast<std::uint64_t>(offset) + 1;
  meet_peers(stream, &above.flags[rank_].ready, place, &flags_[below_rank].ready, place, stop_);
  stream.copy(out.data, below.base + offset, out.bytes());
  meet_peers(stream, &below.flags[rank_].taken, 1, &flags_[above_rank].taken, 1, stop_);
}

}  // namespace megalith
