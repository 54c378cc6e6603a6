#include "parallel/comm/nccl/nccl_communicator.h"

#include <cuda.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "core/device/cuda/check.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "parallel/comm/exchanged_rows.h"
#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/mpi/mpi_process.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_peer_memory.h"
#include "parallel/comm/nccl/nccl_pull.h"
#include "parallel/comm/nccl/nccl_watcher.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

namespace {

// If less GPU memory is free, an NCCL failure is reported as lack of memory.
constexpr std::size_t kScarce = std::size_t{256} << 20;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kFp32: return ncclFloat32;
    case DType::kBf16: return ncclBfloat16;
    case DType::kFp64: return ncclFloat64;
    case DType::kInt32: return ncclInt32;
    case DType::kInt64: return ncclInt64;
    case DType::kUint8: return ncclUint8;
  }
  fail({.subject = "NCCL", .expected = "a dtype it knows", .got = std::string(name_of(dtype))});
}

using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

class NcclCommunicator final : public Communicator, public MemorySharing {
 public:
  // `host`: the same ranks, for host calls. Collective.
  NcclCommunicator(const std::string& name, std::unique_ptr<Communicator> host, std::shared_ptr<MpiProcess> process,
                   std::shared_ptr<NcclWatcher> watcher);
  ~NcclCommunicator() override;

  void host_barrier() override { host_->host_barrier(); }
  std::vector<std::string> host_all_gather(const std::string& mine) override { return host_->host_all_gather(mine); }
  bool host_any(bool mine) override { return host_->host_any(mine); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return std::make_unique<NcclCommunicator>(name, host_->split(color, key, name), process_, watcher_);
  }
  void abort(const std::string& message) override { process_->abort(message); }
  bool sums_in_rank_order() const override { return size() <= 2; }
  MemorySharing* memory_sharing() override { return this; }
  bool share_memory(void* base, std::size_t bytes, std::optional<std::uint64_t> layout) override;
  void unshare_memory() override;
  bool rehearse_captures(bool on) override { return rehearses_ = on && watched_ != nullptr && mixing_is_off_; }

 protected:
  void run(const Collective&) override;  // an error: CPU streams are not supported
  void run(Stream& stream, CudaStream& cuda, const Collective& collective) override;

 private:
  void start();
  ncclComm* make_comm(bool for_graphs);
  ncclComm* comm_for(const Stream& stream);
  void check_memory(const ExchangeRows& op) const;
  void check_memory(const PaddedExchangeRows&) const {}
  void check_memory(const Send& op) const {
    require(!op.place || (peer_memory_ && peer_memory_->holds(op)), "a send to memory that its peer does not share");
  }
  void check_memory(const Receive& op) const {
    require(!op.placed || (peer_memory_ && peer_memory_->holds(op)), "a placed receive into memory that is not shared");
  }
  template <SharedCollective Op>
  void check_memory(const Op& op) const;
  void check_memory(const auto&) const {}
  void check(ncclResult_t result, const char* call) const;
  void write(CudaStream& stream, std::uint64_t& word, std::uint64_t value) const {
    check_driver(
        write_value_(stream.handle(), reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64");
  }

  // A captured mark is equal at each replay; `base`, its difference to the call's number, is written ahead.
  void count_from(Stream& stream, std::uint64_t id) {
    const std::uint64_t base = recorder().calls() - id;  // enqueue() has begun this run there
    if (base == std::exchange(base_, base)) return;
    if (CudaStream* const cuda = stream.cuda()) {
      write(*cuda, watched_->progress->mark, 0);
      write(*cuda, watched_->progress->base, base);
    }
  }

  void exchange(CudaStream& stream, const AllReduce& op) const {
    const Tensor& buffer = op.buffer;
    if (buffer.numel() == 0) return;
    check(ncclAllReduce(buffer.data, buffer.data, static_cast<std::size_t>(buffer.numel()), nccl_type(buffer.dtype),
                        op.op == ReduceOp::kSum ? ncclSum : ncclMax, comm(), stream.handle()),
          op.kName);
  }

  void exchange(CudaStream& stream, const ReduceScatter& op) const {
    if (op.out.numel() == 0) return;
    check(ncclReduceScatter(op.in.data, op.out.data, static_cast<std::size_t>(op.out.numel()), nccl_type(op.out.dtype),
                            ncclSum, comm(), stream.handle()),
          op.kName);
  }

  void exchange(CudaStream& stream, const AllGather& op) const {
    if (op.in.numel() == 0) return;
    check(ncclAllGather(op.in.data, op.out.data, op.in.bytes(), ncclUint8, comm(), stream.handle()), op.kName);
  }

  void exchange(CudaStream& stream, const SharedReduceScatter& op) const {
    if (op.out.numel() > 0) peer_memory_->reduce_scatter(stream, op);
  }

  void exchange(CudaStream& stream, const SharedAllGather& op) const {
    if (op.in.numel() > 0) peer_memory_->all_gather(stream, op);
  }

  struct Bytes {
    void* data;
    std::size_t count;
  };
  // Exchanges with each other rank: sends to(r) and receives from(r).
  template <class To, class From>
  void swap_with_peers(CudaStream& stream, const char* call, To to, From from) const {
    check(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < size() && result == ncclSuccess; ++r) {
      if (r == rank()) continue;
      const Bytes sent = to(r), received = from(r);
      if (sent.count > 0) result = ncclSend(sent.data, sent.count, ncclUint8, r, comm(), stream.handle());
      if (received.count > 0 && result == ncclSuccess) {
        result = ncclRecv(received.data, received.count, ncclUint8, r, comm(), stream.handle());
      }
    }
    const ncclResult_t ended = ncclGroupEnd();  // required after an error too
    check(result, call);
    check(ended, call);
  }

  void exchange(CudaStream& stream, const AllToAll& op) const {
    const Tensor own = rows_of_rank(op.in, op.in_rows, rank());
    const Tensor own_out = rows_of_rank(op.out, op.out_rows, rank());
    if (own.data != own_out.data) stream.copy(own_out.data, own.data, own.bytes());
    const auto bytes_of = [](const Tensor& rows) { return Bytes{rows.data, rows.bytes()}; };
    swap_with_peers(
        stream, op.kName, [&](int r) { return bytes_of(rows_of_rank(op.in, op.in_rows, r)); },
        [&](int r) { return bytes_of(rows_of_rank(op.out, op.out_rows, r)); });
  }

  void exchange(CudaStream& stream, const ExchangeRows& op) const { peer_memory_->exchange_rows(stream, op); }

  void exchange(CudaStream& stream, const PaddedExchangeRows& op) const {
    const ExchangeParts parts(op);
    const auto bytes = static_cast<std::size_t>(parts.bytes);
    pack_rows(stream, op);
    swap_with_peers(
        stream, op.kName,
        [&](int r) {
          return Bytes{parts.sent(op, r), bytes};
        },
        [&](int r) {
          return Bytes{parts.received(op, r), bytes};
        });
    unpack_rows(stream, op);
  }

  void exchange(CudaStream& stream, const Shift& op) const {
    if (peer_memory_ == nullptr || !peer_memory_->holds(op.in) || op.in.bytes() == 0) {
      return exchange(stream, all_to_all_of(op));
    }
    peer_memory_->shift(stream, op);
  }

  void exchange(CudaStream& stream, const Broadcast& op) const {
    if (op.buffer.numel() == 0) return;
    check(ncclBroadcast(op.buffer.data, op.buffer.data, op.buffer.bytes(), ncclUint8, op.root, comm(), stream.handle()),
          op.kName);
  }

  void exchange(CudaStream& stream, const Send& op) const {
    if (op.buffer.numel() == 0) return;
    if (op.place) return peer_memory_->send(stream, op);
    check(ncclSend(op.buffer.data, op.buffer.bytes(), ncclUint8, op.peer, comm(), stream.handle()), op.kName);
  }

  void exchange(CudaStream& stream, const Receive& op) const {
    if (op.buffer.numel() == 0) return;
    if (op.placed) return peer_memory_->receive(stream, op);
    check(ncclRecv(op.buffer.data, op.buffer.bytes(), ncclUint8, op.peer, comm(), stream.handle()), op.kName);
  }

  ncclComm* comm() const { return comm_; }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<MpiProcess> process_;
  std::shared_ptr<NcclWatcher> watcher_;
  std::shared_ptr<WatchedGroup> watched_;  // null for a group of one rank, as are the next members
  std::unique_ptr<PeerMemory> peer_memory_;
  ncclComm* comm_ = nullptr;  // of the current call
  bool rehearses_ = false;
  const bool mixing_is_off_ = nccl_mixing_is_off();  // NCCL's graph mixing; NCCL reads the variable once too
  WriteValue write_value_ = nullptr;
  PullMeeting::State* pulls_ = nullptr;
  std::uint64_t ids_ = 0;   // of enqueued or captured calls
  std::uint64_t base_ = 0;  // last value that the streams wrote or will write
};

NcclCommunicator::NcclCommunicator(const std::string& name, std::unique_ptr<Communicator> host,
                                   std::shared_ptr<MpiProcess> process, std::shared_ptr<NcclWatcher> watcher)
    : Communicator(name, host->rank(), host->size()),
      host_(std::move(host)),
      process_(std::move(process)),
      watcher_(std::move(watcher)) {
  if (size() > 1) start();
}

void NcclCommunicator::start() {
  use_cuda_device();
  write_value_ = driver_function<WriteValue>("cuStreamWriteValue64");
  watched_ = std::make_shared<WatchedGroup>();
  watched_->name = name();
  watched_->recorder = shared_recorder();
  std::vector<int> world_ranks = host_->host_gather(process_->rank);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    watched_->peers += (watched_->peers.empty() ? "" : ", ") + std::to_string(world_ranks[static_cast<std::size_t>(r)]);
  }
  watched_->progress = static_cast<WatchedGroup::Progress*>(cuda_allocate_host(sizeof(WatchedGroup::Progress)));
  pulls_ = static_cast<PullMeeting::State*>(cuda_allocate(sizeof(*pulls_)));
  if (watched_->progress == nullptr || pulls_ == nullptr) {
    fail({.code = ExitCode::kOutOfMemory, .subject = "buffers of group " + name()});
  }
  *watched_->progress = {};
  recorder().set_world_ranks(std::move(world_ranks));
  process_->add(shared_recorder());
  watcher_->add(watched_);

  watched_->comm = comm_ = make_comm(false);
  recorder().restart();
  recorder().set_device_progress(0, false, {});
}

ncclComm* NcclCommunicator::make_comm(bool for_graphs) {
  ncclUniqueId id{};
  if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  id = host_->host_gather(id).front();  // also waits for late ranks, for which NCCL would wait without a limit
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  const NcclHostCall call(*process_, *watched_, NcclWatcher::kStart);
  if (!for_graphs) recorder().begin({.kind = "the start of NCCL"});
  ncclComm_t made = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&made, size(), id, rank(), &config);
  const std::size_t free = result == ncclSuccess ? kScarce : cuda_memory().free;
  if (free < kScarce) {
    const char* const remedy = for_graphs ? "set NCCL_GRAPH_MIXING_SUPPORT=1 on all ranks (mpirun -x), or " : "";
    fail({.code = ExitCode::kOutOfMemory,
          .subject = fmt::format("NCCL's communicator of group {}{}", name(), for_graphs ? " for captured calls" : ""),
          .expected = "room for its buffers on the GPU",
          .got = fmt::format("{} MiB free", free >> 20),
          .remedy = fmt::format("{}make the step smaller", remedy)});
  }
  check(result, "ncclCommInitRankConfig");
  return made;
}

// If one communicator serves graph calls and eager calls, NCCL adds event nodes to captured calls ("graph mixing"),
// which delay the GPU. If mixing is off, as in train, graphs have a separate communicator, and only streams order
// replays and eager calls. This is sufficient for two communicators. Calls of a group run one at a time, on one stream
// or on streams ordered by events. So kernels of the two never run concurrently, and all ranks have the same order. It
// is insufficient for one communicator: NCCL's host threads start an eager call's work when it is enqueued, ahead of an
// earlier replay.
ncclComm* NcclCommunicator::comm_for(const Stream& stream) {
  if (!mixing_is_off_ || (!stream.capturing() && !rehearses_)) return watched_->comm;
  if (watched_->graph_comm == nullptr && rehearses_) watched_->graph_comm = make_comm(true);
  if (watched_->graph_comm != nullptr) return watched_->graph_comm;
  fail({.subject = fmt::format("a captured call on group {}", name()),
        .expected = "a rehearsal before the capture, as NCCL_GRAPH_MIXING_SUPPORT is 0",
        .got = "none",
        .remedy = "set NCCL_GRAPH_MIXING_SUPPORT=1"});
}

// The peers' kernels have ended, or the group is aborted. NCCL may wait for its peers on this host here.
NcclCommunicator::~NcclCommunicator() {
  if (watched_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) process_->abort(fmt::format("rank {} of group {} failed", rank(), name()));
  if (process_->aborted) {  // the process ends soon, and the GPU may still write to the buffers
    watcher_->wait_until_released(*watched_);
    watcher_->remove(watched_);
    static_cast<void>(peer_memory_.release());
    return;
  }
  watcher_->remove(watched_);
  peer_memory_.reset();
  for (ncclComm* comm : {watched_->graph_comm.load(), watched_->comm.load()})
    if (comm != nullptr) static_cast<void>(ncclCommDestroy(comm));
  cuda_free(pulls_);
  cuda_free_host(watched_->progress);
}

void NcclCommunicator::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) [[likely]]
    return;
  fail({.code = ExitCode::kCommunication,
        .subject = fmt::format("{} on group {}", call, name()),
        .expected = fmt::format("success with the ranks {} of the world", watched_->peers),
        .got = fmt::format("NCCL's error {} ({}): {}", static_cast<int>(result), ncclGetErrorString(result),
                           ncclGetLastError(comm())),
        .remedy = "see whether another rank ended or made another call; NCCL_DEBUG=WARN says more"});
}

void NcclCommunicator::check_memory(const ExchangeRows& op) const {
  if (peer_memory_ != nullptr) return peer_memory_->check_holds(op);
  fail({.subject = fmt::format("{} on group {}", op.kName, name()),
        .expected = "GPUs that share memory, or room",
        .got = "neither"});
}

template <SharedCollective Op>
void NcclCommunicator::check_memory(const Op& op) const {
  if (op.in.numel() == 0 || (peer_memory_ != nullptr && peer_memory_->holds(op.in))) return;
  fail({.subject = fmt::format("{} on group {}: in", op.kName, name()),
        .expected = "memory that the ranks share",
        .got = "other memory"});
}

void NcclCommunicator::run(const Collective&) {
  fail({.subject = "group " + name(), .expected = "a CUDA stream", .got = "a CPU stream"});
}

void NcclCommunicator::run(Stream& stream, CudaStream& cuda, const Collective& collective) {
  process_->throw_if_aborted();
  const ExchangeRows* const rows = exchange_rows_in(collective);
  if (size() == 1) {
    if (rows != nullptr) return pull_rows(cuda, *rows, std::array<const std::byte*, 1>{}, {}, false);
    return copy_alone(collective,
                      [&](const Tensor& in, const Tensor& out) { cuda.copy(out.data, in.data, in.bytes()); });
  }
  std::visit([&](const auto& op) { check_memory(op); }, collective);
  comm_ = comm_for(stream);
  const int kind = static_cast<int>(collective.index());
  const NcclHostCall host_call(*process_, *watched_, kind);
  const std::uint64_t id = ++ids_;
  stream.on_each_run([this, id](Stream& runs_on) { count_from(runs_on, id); });
  write(cuda, watched_->progress->mark, NcclWatcher::inside(id, kind));
  std::visit([&](const auto& op) { exchange(cuda, op); }, collective);
  if (rows != nullptr) {
    const bool is_padded = std::holds_alternative<PaddedExchangeRows>(collective);
    count_path(stream, is_padded ? &CommunicatorStats::padded : &CommunicatorStats::pulled);
  }
  if (comm_ != watched_->comm) count_path(stream, &CommunicatorStats::graph_calls);
  write(cuda, watched_->progress->mark, NcclWatcher::after(id));
}

bool NcclCommunicator::share_memory(void* base, std::size_t bytes, std::optional<std::uint64_t> layout) {
  if (size() == 1) return false;
  require(peer_memory_ == nullptr, "a group shares one range of memory");
  peer_memory_ = PeerMemory::share(*host_, base, bytes, layout, pulls_);
  if (peer_memory_ == nullptr) return false;
  const std::lock_guard lock(watched_->calls);
  watched_->peer_memory = peer_memory_.get();
  return true;
}

void NcclCommunicator::unshare_memory() {
  if (peer_memory_ == nullptr) return;
  {
    const std::lock_guard lock(watched_->calls);
    if (process_->aborted) return;  // the watcher releases it
    watched_->peer_memory = nullptr;
  }
  peer_memory_.reset();
  host_->host_barrier();  // no peer maps it from here on
}

}  // namespace

std::unique_ptr<Communicator> gpu_world(const MpiRuntime& mpi) {
  const std::shared_ptr<MpiProcess>& process = mpi.process_;
  // NCCL rejects two ranks of one host on one GPU; separate host ids avoid the check.
  if (process->ranks_per_gpu > 1) setenv("NCCL_HOSTID", fmt::format("rank{}", process->rank).c_str(), 1);
  std::unique_ptr<Communicator> host = make_mpi_world(process);
  std::shared_ptr<NcclWatcher> watcher;
  if (host->size() > 1) {
    int version = 0;
    static_cast<void>(ncclGetVersion(&version));
    const auto refuse = [&](const std::string& fault) {
      on_all_ranks(*host, [&] {
        if (!fault.empty()) throw Error(ExitCode::kUsage, fault);
      });
    };
    refuse(nccl_version_fault(version, NCCL_VERSION_CODE));
    refuse(gpu_fault(*host, process->ranks_per_gpu));
    refuse(nccl_mixing_fault(*host));
    watcher = process->nccl_watcher.lock();
    if (watcher == nullptr) {
      watcher = std::make_shared<NcclWatcher>(process);
      process->nccl_watcher = watcher;
    }
  }
  return std::make_unique<NcclCommunicator>("world", std::move(host), process, std::move(watcher));
}

}  // namespace megalith
