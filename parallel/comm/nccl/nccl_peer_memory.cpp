#include "parallel/comm/nccl/nccl_peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/error.h"
#include "core/device/cuda/allow_under_capture.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda/driver.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/nccl/nccl_pull.h"
#include "parallel/comm/nccl/nccl_sum.h"

namespace megalith {

// Description of a rank's memory for its peers.
struct PeerOffer {
  char host[256] = "";
  char flags[64] = "";  // ticket of a SharedMemory
  std::uint64_t bytes = 0;
  std::uint64_t layout = 0;
  cudaIpcMemHandle_t allocation{};  // contains the memory
  std::uint64_t offset = 0;         // of the memory in the allocation
  bool valid = false;
};

namespace {

using AddressRange = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

// Batch of words that a stream writes and waits for, in order.
class FrontEnd {
 public:
  // A peer that sees the word may assume that this stream's earlier work is complete.
  void set(std::uint64_t& word) { write(word, 1); }
  void wait_and_clear(std::uint64_t& word) {
    ops_.emplace_back().waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                     .address = reinterpret_cast<CUdeviceptr>(&word),
                                     .value64 = 1,
                                     .flags = CU_STREAM_WAIT_VALUE_GEQ};
    write(word, 0);
  }
  void enqueue(CudaStream& stream) {
    static const auto batch = driver_function<BatchMemOp>("cuStreamBatchMemOp");
    check_driver(batch(stream.handle(), static_cast<unsigned>(ops_.size()), ops_.data(), 0), "cuStreamBatchMemOp");
    ops_.clear();
  }

 private:
  void write(std::uint64_t& word, std::uint64_t value) {
    ops_.emplace_back().writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                      .address = reinterpret_cast<CUdeviceptr>(&word),
                                      .value64 = value,
                                      .flags = CU_STREAM_WRITE_VALUE_DEFAULT};
  }

  std::vector<CUstreamBatchMemOpParams> ops_;
};

PeerOffer offer_of(void* base, std::size_t bytes, std::uint64_t layout, const SharedMemory& flags) {
  PeerOffer offer{.bytes = bytes, .layout = layout};
  flags.ticket().copy(offer.flags, sizeof(offer.flags) - 1);
  gethostname(offer.host, sizeof(offer.host) - 1);
  CUdeviceptr begin = 0;
  std::size_t size = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(base);
  check_driver(driver_function<AddressRange>("cuMemGetAddressRange")(&begin, &size, address), "cuMemGetAddressRange");
  offer.offset = address - begin;
  offer.valid =
      flags.data() != nullptr && cudaIpcGetMemHandle(&offer.allocation, reinterpret_cast<void*>(begin)) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return offer;
}

}  // namespace

class PeerMemory::SecondStream {
 public:
  static constexpr std::size_t kMarks = 2;

  SecondStream() {
    for (CUevent_st** event : {&begun_, &marks_[0], &marks_[1]})
      MEGALITH_CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  ~SecondStream() {
    for (CUevent_st* event : {begun_, marks_[0], marks_[1]}) log_cuda(cudaEventDestroy(event), "cudaEventDestroy");
  }
  SecondStream(const SecondStream&) = delete;
  SecondStream& operator=(const SecondStream&) = delete;

  // Returns the second stream, ordered after all work that `stream` has enqueued.
  CudaStream& after(CudaStream& stream) {
    MEGALITH_CUDA_CHECK(cudaEventRecord(begun_, stream.handle()));
    MEGALITH_CUDA_CHECK(cudaStreamWaitEvent(stream_.handle(), begun_, 0));
    return stream_;
  }
  void mark(std::size_t which) { MEGALITH_CUDA_CHECK(cudaEventRecord(marks_[which], stream_.handle())); }
  void wait(CudaStream& stream, std::size_t which) {
    MEGALITH_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), marks_[which], 0));
  }

 private:
  CudaStream stream_;
  CUevent_st* begun_ = nullptr;
  CUevent_st* marks_[kMarks] = {};
};

PeerMemory::PeerMemory(int rank, int ranks, std::byte* base, std::size_t bytes, bool is_alike)
    : rank_(rank), base_(base), bytes_(bytes), is_alike_(is_alike), peers_(static_cast<std::size_t>(ranks)) {}

// Created at first use, so groups that never copy here use no GPU queue.
PeerMemory::SecondStream& PeerMemory::second_stream() {
  if (second_stream_ == nullptr) {
    const AllowUnderCapture allow;
    second_stream_ = std::make_unique<SecondStream>();
  }
  return *second_stream_;
}

std::unique_ptr<PeerMemory> PeerMemory::share(Communicator& host, void* base, std::size_t bytes,
                                              std::optional<std::uint64_t> layout, PullMeeting::State* state) {
  std::unique_ptr<PeerMemory> memory(
      new PeerMemory(host.rank(), host.size(), static_cast<std::byte*>(base), bytes, layout.has_value()));
  SharedMemory& flags = memory->peers_[static_cast<std::size_t>(host.rank())].shared;
  flags = SharedMemory::create(memory->peers_.size() * sizeof(Flags));
  const PeerOffer mine = offer_of(base, bytes, layout.value_or(0), flags);
  const std::vector<PeerOffer> offers = host.host_gather(mine);
  bool all_mapped = true;
  for (int r = 0; r < host.size() && all_mapped; ++r) {
    all_mapped = memory->map(r, mine.layout, offers[static_cast<std::size_t>(r)]);
  }
  if (host.host_any(!all_mapped)) return nullptr;
  if (memory->is_alike_) memory->prepare_pulls(state);
  return memory;
}

void PeerMemory::prepare_pulls(PullMeeting::State* state) {
  const auto self = static_cast<std::size_t>(rank_), ranks = peers_.size();
  if (std::ssize(peers_) > kMaxPullRanks) return;  // maximum of a pull
  pulls_in_bulk_ = load_pull_kernels();
  MEGALITH_CUDA_CHECK(cudaMemset(state, 0, sizeof(*state)));
  MEGALITH_CUDA_CHECK(cudaDeviceSynchronize());
  meeting_.state = state;
  for (std::size_t r = 0; r < ranks; ++r) {
    meeting_.here[r] = &peers_[self].flags[r].rows;
    meeting_.there[r] = &peers_[r].flags[self].rows;
  }
}

bool PeerMemory::can_share(Communicator& host, std::span<const int> ranks) {
  void* some = nullptr;
  MEGALITH_CUDA_CHECK(cudaMalloc(&some, 256));
  bool all_mapped = true;
  {
    PeerMemory memory(host.rank(), host.size(), static_cast<std::byte*>(some), 256, true);
    SharedMemory& flags = memory.peers_[static_cast<std::size_t>(host.rank())].shared;
    flags = SharedMemory::create(memory.peers_.size() * sizeof(Flags));
    const std::vector<PeerOffer> offers = host.host_gather(offer_of(some, 256, 0, flags));
    for (const int r : ranks) all_mapped = all_mapped && memory.map(r, 0, offers[static_cast<std::size_t>(r)]);
    host.host_barrier();  // all ranks have opened their mappings
  }
  host.host_barrier();  // no peer maps it from here on
  MEGALITH_CUDA_CHECK(cudaFree(some));
  return all_mapped;
}

bool can_share_memory(Communicator& host, std::span<const int> ranks) { return PeerMemory::can_share(host, ranks); }

bool PeerMemory::map(int rank, std::uint64_t layout, const PeerOffer& offer) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  if (!offer.valid || std::strcmp(offer.host, host) != 0) return false;
  if (is_alike_ && (offer.bytes != bytes_ || offer.layout != layout)) return false;
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.bytes = offer.bytes;

  const std::size_t size = peers_.size() * sizeof(Flags);
  if (rank != rank_) peer.shared = SharedMemory::open(offer.flags, size);
  if (peer.shared.data() == nullptr) return false;
  if (cudaHostRegister(peer.shared.data(), size, cudaHostRegisterMapped | cudaHostRegisterPortable) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  peer.flags = static_cast<Flags*>(peer.shared.data());

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
    if (peer.flags != nullptr) log_cuda(cudaHostUnregister(peer.flags), "cudaHostUnregister");
  }
}

bool PeerMemory::contains(const Tensor& tensor) const {
  const auto* const begin = tensor.as<std::byte>();
  return begin >= base_ && begin + tensor.bytes() <= base_ + bytes_;
}

void PeerMemory::shift(CudaStream& stream, const Shift& shift) {
  const int step = shift.step;
  const int ranks = static_cast<int>(peers_.size());
  const auto self = static_cast<std::size_t>(rank_);
  const auto above = [&](int steps) { return static_cast<std::size_t>((rank_ + steps) % ranks); };
  const auto below = static_cast<std::size_t>((rank_ - step + ranks) % ranks);
  Flags* const mine = peers_[self].flags;
  const bool alone = shift.series == ShiftSeries::kAlone, first = step == 1, last = step == ranks - 1;
  FrontEnd words;
  const auto offer_to = [&](std::size_t rank) { words.set(peers_[rank].flags[self].ready); };
  if (shift.series != ShiftSeries::kOneInput) {
    offer_to(above(step));
  } else if (first) {
    for (int steps = 1; steps < ranks; ++steps) offer_to(above(steps));
  }
  words.wait_and_clear(mine[below].ready);
  words.enqueue(stream);
  stream.copy(shift.out.data, peers_[below].base + (shift.in.as<std::byte>() - base_), shift.out.bytes());
  words.set(peers_[below].flags[self].taken);
  if (alone) {
    words.wait_and_clear(mine[above(step)].taken);
  } else if (last) {
    for (int steps = 1; steps < ranks; ++steps) words.wait_and_clear(mine[above(steps)].taken);
  }
  words.enqueue(stream);
}

void PeerMemory::check_holds(const ExchangeRows& op) const {
  const auto check = [&](const Tensor& tensor, const char* argument) {
    if (!tensor || tensor.bytes() == 0 || holds(tensor)) return;
    fail({.subject = fmt::format("{} on group {}: {}", op.kName, op.group.name(), argument),
          .expected = "a place in the memory that its ranks share",
          .got = "another"});
  };
  for (const ExchangeRows::Rows& rows : op.rows) check(rows.in, "in");
  check(op.index, "index");
}

bool PeerMemory::holds(const Send& op) const {
  const std::size_t bytes = peers_[static_cast<std::size_t>(op.peer)].bytes;
  return *op.place <= bytes && op.buffer.bytes() <= bytes - *op.place;
}

void PeerMemory::send(CudaStream& stream, const Send& op) {
  const auto self = static_cast<std::size_t>(rank_), peer = static_cast<std::size_t>(op.peer);
  FrontEnd words;
  words.wait_and_clear(peers_[self].flags[peer].ready);
  words.enqueue(stream);
  stream.copy(peers_[peer].base + *op.place, op.buffer.data, op.buffer.bytes());
  words.set(peers_[peer].flags[self].taken);
  words.enqueue(stream);
}

void PeerMemory::receive(CudaStream& stream, const Receive& op) {
  const auto self = static_cast<std::size_t>(rank_), peer = static_cast<std::size_t>(op.peer);
  FrontEnd words;
  words.set(peers_[peer].flags[self].ready);
  words.wait_and_clear(peers_[self].flags[peer].taken);
  words.enqueue(stream);
}

void PeerMemory::exchange_rows(CudaStream& stream, const ExchangeRows& op) {
  std::vector<const std::byte*> bases;
  for (const Peer& peer : peers_) bases.push_back(peer.base);
  bases[static_cast<std::size_t>(rank_)] = base_;
  pull_rows(stream, op, bases, meeting_, pulls_in_bulk_);
}

void PeerMemory::all_gather(CudaStream& stream, const SharedAllGather& op) {
  const int ranks = static_cast<int>(peers_.size());
  const auto part = [&](int rank) { return op.out.slice(0, rank * op.in.numel(), op.in.numel()); };
  SecondStream& second_stream = this->second_stream();
  second_stream.after(stream).copy(part(rank_).data, op.in.data, op.in.bytes());
  second_stream.mark(0);
  for (int step = 1; step < ranks; ++step) {
    shift(stream, {.group = op.group,
                   .in = op.in,
                   .out = part((rank_ - step + ranks) % ranks),
                   .step = step,
                   .series = ShiftSeries::kOneInput});
  }
  second_stream.wait(stream, 0);
}

// Runs in rounds of up to half of `copies`, at least two rounds: one half is summed while the next is copied.
void PeerMemory::reduce_scatter(CudaStream& stream, const SharedReduceScatter& op) {
  const int ranks = static_cast<int>(peers_.size());
  const auto self = static_cast<std::size_t>(rank_);
  const std::int64_t n = op.out.numel(), of_peer = op.copies.numel() / (ranks - 1);
  const std::int64_t halves = of_peer >= 16 ? 2 : 1, half_of_n = (n + 15) / 16 * 8;
  const std::int64_t most = std::min(of_peer / halves / 8 * 8, half_of_n);
  const Tensor own = op.in.slice(0, rank_ * n, n);
  const std::ptrdiff_t offset = own.as<std::byte>() - base_;
  Flags* const mine = peers_[self].flags;
  SecondStream& second_stream = this->second_stream();
  FrontEnd words;
  const auto of_peers = [&](const auto& f) {  // a different order on each rank spreads the reads
    for (int step = 1; step < ranks; ++step) f(static_cast<std::size_t>((rank_ + step) % ranks));
  };
  const auto meet = [&](std::uint64_t Flags::*word) {
    of_peers([&](std::size_t peer) { words.set(peers_[peer].flags[self].*word); });
    of_peers([&](std::size_t peer) { words.wait_and_clear(mine[peer].*word); });
    words.enqueue(stream);
  };
  meet(&Flags::ready);
  for (std::int64_t first = 0, round = 0; first < n; first += most, ++round) {
    const std::int64_t count = std::min(most, n - first), half = round % halves;
    const Tensor copies = op.copies.slice(0, half * (ranks - 1) * most, (ranks - 1) * most);
    if (round >= halves) second_stream.wait(stream, static_cast<std::size_t>(half));
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(op.in.dtype);
    of_peers([&](std::size_t peer) {
      const std::int64_t place = static_cast<std::int64_t>(peer) - (peer > self ? 1 : 0);
      stream.copy(copies.slice(0, place * most, count).data,
                  peers_[peer].base + offset + static_cast<std::size_t>(first) * size_of(op.in.dtype), bytes);
    });
    sum_parts(second_stream.after(stream), {.own = own.slice(0, first, count),
                                            .others = copies,
                                            .pitch = most,
                                            .rank = rank_,
                                            .ranks = ranks,
                                            .out = op.out.slice(0, first, count),
                                            .accumulate = op.accumulate});
    second_stream.mark(static_cast<std::size_t>(half));
    if (first + count < n) continue;
    meet(&Flags::taken);
    second_stream.wait(stream, static_cast<std::size_t>(half));
  }
}

void PeerMemory::release() {
  Flags* const mine = peers_[static_cast<std::size_t>(rank_)].flags;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    std::atomic_ref(mine[r].ready).store(1);
    std::atomic_ref(mine[r].taken).store(1);
    for (std::uint64_t* const word : {&mine[r].rows.offered, &mine[r].rows.taken})
      std::atomic_ref(*word).store(PullMeeting::kReleased);
  }
}

}  // namespace megalith
