#include "parallel/comm/nccl_peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/device/cuda_check.h"
#include "parallel/comm/communicator.h"

namespace megalith {

namespace {

// Of libcuda, which this program does not link to.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MEGALITH_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess, "the driver lacks a function of CUDA 12");
  return reinterpret_cast<Function>(function);
}

using AddressRange = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  fail({.subject = call, .expected = "success", .got = fmt::format("CUDA's error {}", static_cast<int>(result))});
}

// *theirs = 1, which whoever sees it may take for all that ran on this stream before; then *mine is waited for, and 0.
void meet(CudaStream& stream, std::uint64_t* theirs, std::uint64_t* mine) {
  static const auto batch = driver_function<BatchMemOp>("cuStreamBatchMemOp");
  const auto write = [](std::uint64_t* word, std::uint64_t value) {
    CUstreamBatchMemOpParams op{};
    op.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                     .address = reinterpret_cast<CUdeviceptr>(word),
                     .value64 = value,
                     .flags = CU_STREAM_WRITE_VALUE_DEFAULT};
    return op;
  };
  CUstreamBatchMemOpParams wait{};
  wait.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                    .address = reinterpret_cast<CUdeviceptr>(mine),
                    .value64 = 1,
                    .flags = CU_STREAM_WAIT_VALUE_GEQ};
  CUstreamBatchMemOpParams ops[] = {write(theirs, 1), wait, write(mine, 0)};
  check_driver(batch(stream.handle(), 3, ops, 0), "cuStreamBatchMemOp");
}

// What a rank tells the others about its memory.
struct Offer {
  char host[256] = "";
  pid_t process = 0;
  int flags = -1;  // a file of that process
  std::uint64_t bytes = 0;
  std::uint64_t layout = 0;
  cudaIpcMemHandle_t allocation{};  // that holds the memory
  std::uint64_t offset = 0;         // of the memory in it
  bool valid = false;
};

Offer offer_of(void* base, std::size_t bytes, std::uint64_t layout, int flags) {
  Offer offer{.process = getpid(), .flags = flags, .bytes = bytes, .layout = layout};
  gethostname(offer.host, sizeof(offer.host) - 1);
  CUdeviceptr begin = 0;
  std::size_t size = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(base);
  check_driver(driver_function<AddressRange>("cuMemGetAddressRange")(&begin, &size, address), "cuMemGetAddressRange");
  offer.offset = address - begin;
  offer.valid = flags >= 0 && cudaIpcGetMemHandle(&offer.allocation, reinterpret_cast<void*>(begin)) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return offer;
}

}  // namespace

PeerMemory::PeerMemory(int rank, int ranks, std::byte* base, std::size_t bytes)
    : rank_(rank), base_(base), bytes_(bytes), peers_(static_cast<std::size_t>(ranks)) {}

std::unique_ptr<PeerMemory> PeerMemory::share(Communicator& host, void* base, std::size_t bytes, std::uint64_t layout) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(host.rank(), host.size(), static_cast<std::byte*>(base), bytes));
  int file = memfd_create("megalith flags", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(memory->peers_.size() * sizeof(Flags))) != 0) {
    close(file);
    file = -1;
  }
  const Offer mine = offer_of(base, bytes, layout, file);
  const std::vector<std::string> offers =
      host.host_all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)));
  bool all_mapped = true;
  for (int r = 0; r < host.size() && all_mapped; ++r) {
    all_mapped = memory->map(r, layout, offers[static_cast<std::size_t>(r)]);
  }
  const bool failed = host.host_any(!all_mapped);  // also: nobody needs the file by its name any more
  if (file >= 0) close(file);
  if (failed) return nullptr;
  return memory;
}

bool PeerMemory::map(int rank, std::uint64_t layout, const std::string& text) {
  Offer offer;
  require(text.size() == sizeof(offer), "a peer's offer of memory has another size");
  std::memcpy(&offer, text.data(), sizeof(offer));
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  if (!offer.valid || std::strcmp(offer.host, host) != 0) return false;
  if (offer.bytes != bytes_ || offer.layout != layout) return false;
  Peer& peer = peers_[static_cast<std::size_t>(rank)];

  const int file = open(fmt::format("/proc/{}/fd/{}", offer.process, offer.flags).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  const std::size_t size = peers_.size() * sizeof(Flags);
  void* const flags = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (flags == MAP_FAILED) return false;
  if (cudaHostRegister(flags, size, cudaHostRegisterMapped | cudaHostRegisterPortable) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    munmap(flags, size);
    return false;
  }
  peer.flags = static_cast<Flags*>(flags);

  if (rank == rank_) return true;
  if (cudaIpcOpenMemHandle(&peer.mapped, offer.allocation, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    peer.mapped = nullptr;
    return false;
  }
  peer.base = static_cast<std::byte*>(peer.mapped) + offer.offset;
  return true;
}

PeerMemory::~PeerMemory() {
  for (const Peer& peer : peers_) {
    if (peer.mapped != nullptr) log_cuda(cudaIpcCloseMemHandle(peer.mapped), "cudaIpcCloseMemHandle");
    if (peer.flags == nullptr) continue;
    log_cuda(cudaHostUnregister(peer.flags), "cudaHostUnregister");
    munmap(peer.flags, peers_.size() * sizeof(Flags));
  }
}

bool PeerMemory::holds(const Tensor& tensor) const {
  const auto* const begin = tensor.as<std::byte>();
  return begin >= base_ && begin + tensor.bytes() <= base_ + bytes_;
}

void PeerMemory::shift(CudaStream& stream, const Tensor& in, const Tensor& out, int step) {
  const int ranks = static_cast<int>(peers_.size());
  const auto above = static_cast<std::size_t>((rank_ + step) % ranks);
  const auto below = static_cast<std::size_t>((rank_ - step + ranks) % ranks);
  const auto self = static_cast<std::size_t>(rank_);
  Flags* const mine = peers_[self].flags;
  meet(stream, &peers_[above].flags[self].ready, &mine[below].ready);
  stream.copy(out.data, peers_[below].base + (in.as<std::byte>() - base_), out.bytes());
  meet(stream, &peers_[below].flags[self].taken, &mine[above].taken);
}

void PeerMemory::release() {
  Flags* const mine = peers_[static_cast<std::size_t>(rank_)].flags;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    std::atomic_ref(mine[r].ready).store(1);
    std::atomic_ref(mine[r].taken).store(1);
  }
}

}  // namespace megalith
