#include "parallel/comm/nccl_communicator.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "core/device/cuda/check.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "parallel/comm/mpi_process.h"
#include "parallel/comm/nccl_max.h"
#include "parallel/comm/nccl_peer_memory.h"
#include "parallel/comm/nccl_watcher.h"

namespace megalith {

namespace {

// Integers that maxima of bf16 are taken over, at a time.
constexpr std::int64_t kStagedKeys = 1 << 18;

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

// Of libcuda, which this program does not link to: it also starts where there is no driver.
using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
WriteValue find_write_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MEGALITH_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &function, 12000, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess, "the driver lacks cuStreamWriteValue64");
  return reinterpret_cast<WriteValue>(function);
}

class NcclCommunicator final : public Communicator {
 public:
  // `host`: the same ranks, for host calls. Collective.
  NcclCommunicator(const std::string& name, std::unique_ptr<Communicator> host, std::shared_ptr<MpiProcess> process,
                   std::shared_ptr<NcclWatcher> watcher);
  ~NcclCommunicator() override;

  void host_barrier() override { host_->host_barrier(); }
  std::vector<std::string> host_all_gather(const std::string& mine) override { return host_->host_all_gather(mine); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return std::make_unique<NcclCommunicator>(name, host_->split(color, key, name), process_, watcher_);
  }
  void abort(const std::string& message) override { process_->abort(message); }
  bool share_memory(void* base, std::size_t bytes, std::uint64_t layout) override;
  void unshare_memory() override;

 protected:
  void run_on(CudaStream& stream, std::string_view call, const std::function<void()>& task) override;
  void do_all_reduce(const Tensor& buffer, ReduceOp op) override;
  void do_reduce_scatter(const Tensor& in, const Tensor& out) override;
  void do_all_gather(const Tensor& in, const Tensor& out) override;
  void do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                       const std::vector<std::int64_t>& out_rows) override;
  void do_shift(const Tensor& in, const Tensor& out, int step, ShiftSeries series) override;
  void do_broadcast(const Tensor& buffer, int root) override;
  void do_send(const Tensor& buffer, int peer) override;
  void do_receive(const Tensor& buffer, int peer) override;

 private:
  // The host is inside NCCL, as the watcher sees it, and has been told if the group was aborted meanwhile.
  class HostCall {
   public:
    HostCall(MpiProcess& process, WatchedGroup& group, int kind) : group_(group), lock_(group.calls) {
      process.throw_if_aborted();
      group.since = WatchedGroup::Clock::now().time_since_epoch().count();
      group.host_call = kind;
    }
    ~HostCall() { group_.host_call = -1; }
    HostCall(const HostCall&) = delete;
    HostCall& operator=(const HostCall&) = delete;

   private:
    WatchedGroup& group_;
    std::lock_guard<std::timed_mutex> lock_;
  };

  void start();
  void check(ncclResult_t result, const char* call) const;
  CUstream_st* stream() const;
  void mark(CudaStream& stream, std::uint64_t value);
  void copy(const Tensor& from, const Tensor& to);
  void max_of_floats(const Tensor& part);
  ncclComm* comm() const { return watched_->comm; }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<MpiProcess> process_;
  std::shared_ptr<NcclWatcher> watcher_;
  std::shared_ptr<WatchedGroup> watched_;  // null in a group of one rank, like the rest
  std::unique_ptr<PeerMemory> peer_memory_;
  WriteValue write_value_ = nullptr;
  void* staging_ = nullptr;       // kStagedKeys of int32
  CudaStream* stream_ = nullptr;  // inside run_on
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
  write_value_ = find_write_value();
  watched_ = std::make_shared<WatchedGroup>();
  watched_->name = name();
  watched_->recorder = shared_recorder();
  const std::vector<std::string> members = host_->host_all_gather(std::to_string(process_->rank));
  std::vector<int> world_ranks;
  for (int r = 0; r < size(); ++r) {
    world_ranks.push_back(std::stoi(members[static_cast<std::size_t>(r)]));
    if (r == rank()) continue;
    watched_->peers += (watched_->peers.empty() ? "" : ", ") + members[static_cast<std::size_t>(r)];
  }
  watched_->mark = static_cast<std::uint64_t*>(cuda_allocate_host(sizeof(std::uint64_t)));
  staging_ = cuda_allocate(static_cast<std::size_t>(kStagedKeys) * sizeof(std::int32_t));
  if (watched_->mark == nullptr || staging_ == nullptr) {
    fail({.code = ExitCode::kOutOfMemory, .subject = "buffers of group " + name()});
  }
  *watched_->mark = 0;
  recorder().set_world_ranks(std::move(world_ranks));
  process_->add(shared_recorder());
  watcher_->add(watched_);

  ncclUniqueId id;
  std::string text;
  if (rank() == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    text.assign(id.internal, sizeof(id.internal));
  }
  text = host_->host_broadcast(text, 0);  // also waits for late ranks, which NCCL would do without a limit
  require(text.size() == sizeof(id.internal), "NCCL's unique id has another size on another rank");
  std::memcpy(id.internal, text.data(), text.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  const HostCall call(*process_, *watched_, NcclWatcher::kind_of("the start"));
  recorder().begin({.kind = "the start of NCCL"});
  ncclComm_t made = nullptr;
  check(ncclCommInitRankConfig(&made, size(), id, rank(), &config), "ncclCommInitRankConfig");
  recorder().end();
  watched_->comm = made;
}

// The peers' kernels have ended, or the group is aborted: NCCL may wait for its peers on this machine here.
NcclCommunicator::~NcclCommunicator() {
  if (watched_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) process_->abort(fmt::format("rank {} of group {} failed", rank(), name()));
  if (process_->aborted) {  // the process ends soon: the GPU may still write to the buffers
    watcher_->wait_until_released(*watched_);
    watcher_->remove(watched_);
    static_cast<void>(peer_memory_.release());
    return;
  }
  watcher_->remove(watched_);
  peer_memory_.reset();
  if (watched_->comm != nullptr) static_cast<void>(ncclCommDestroy(watched_->comm));
  cuda_free(staging_);
  cuda_free_host(watched_->mark);
}

void NcclCommunicator::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) [[likely]]
    return;
  fail({.code = ExitCode::kCommunication,
        .subject = fmt::format("{} on group {}", call, name()),
        .expected = fmt::format("success with the ranks {} of the world", watched_->peers),
        .got = fmt::format("NCCL's error {} ({}): {}", static_cast<int>(result), ncclGetErrorString(result),
                           ncclGetLastError(watched_->comm)),
        .remedy = "see whether another rank ended or made another call; NCCL_DEBUG=WARN says more"});
}

CUstream_st* NcclCommunicator::stream() const {
  if (stream_ == nullptr) {
    fail({.subject = "group " + name(), .expected = "a CUDA stream", .got = "a CPU stream"});
  }
  return stream_->handle();
}

void NcclCommunicator::mark(CudaStream& stream, std::uint64_t value) {
  const CUresult result = write_value_(stream.handle(), reinterpret_cast<CUdeviceptr>(watched_->mark), value,
                                       CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) {
    fail({.subject = "cuStreamWriteValue64",
          .expected = "success",
          .got = fmt::format("CUDA's error {}", static_cast<int>(result))});
  }
}

void NcclCommunicator::run_on(CudaStream& stream, std::string_view call, const std::function<void()>& task) {
  process_->throw_if_aborted();
  struct Scope {
    CudaStream*& slot;
    ~Scope() { slot = nullptr; }
  };
  const Scope scope{stream_ = &stream};
  if (watched_ == nullptr) return task();
  const int kind = NcclWatcher::kind_of(call);
  const HostCall host_call(*process_, *watched_, kind);
  const std::uint64_t number = recorder().calls();  // enqueue() has begun it there
  mark(stream, NcclWatcher::number_of(number, kind));
  task();
  mark(stream, NcclWatcher::left_of(number));
}

void NcclCommunicator::copy(const Tensor& from, const Tensor& to) {
  if (from.data != to.data) stream_->copy(to.data, from.data, from.bytes());
}

// keys are taken in place, those of bf16 in the staging buffer.
void NcclCommunicator::max_of_floats(const Tensor& part) {
  const Tensor keys(part.dtype == DType::kBf16 ? staging_ : part.data, key_dtype(part.dtype), part.shape);
  keys_from_floats(*stream_, part, keys);
  check(ncclAllReduce(keys.data, keys.data, static_cast<std::size_t>(keys.numel()), nccl_type(keys.dtype), ncclMax,
                      comm(), stream()),
        "all_reduce");
  floats_from_keys(*stream_, keys, part);
}

void NcclCommunicator::do_all_reduce(const Tensor& buffer, ReduceOp op) {
  CUstream_st* const cuda_stream = stream();
  const bool floats = buffer.dtype != DType::kInt32 && buffer.dtype != DType::kInt64;
  if (op == ReduceOp::kMax && floats) {
    const std::int64_t chunk = buffer.dtype == DType::kBf16 ? kStagedKeys : buffer.numel();
    for (std::int64_t begin = 0; begin < buffer.numel(); begin += chunk) {
      max_of_floats(buffer.slice(0, begin, std::min(chunk, buffer.numel() - begin)));
    }
  } else if (buffer.numel() > 0) {
    check(ncclAllReduce(buffer.data, buffer.data, static_cast<std::size_t>(buffer.numel()), nccl_type(buffer.dtype),
                        op == ReduceOp::kSum ? ncclSum : ncclMax, comm(), cuda_stream),
          "all_reduce");
  }
}

void NcclCommunicator::do_reduce_scatter(const Tensor& in, const Tensor& out) {
  CUstream_st* const cuda_stream = stream();
  if (size() == 1) return copy(in, out);
  if (out.numel() == 0) return;
  check(ncclReduceScatter(in.data, out.data, static_cast<std::size_t>(out.numel()), nccl_type(out.dtype), ncclSum,
                          comm(), cuda_stream),
        "reduce_scatter");
}

void NcclCommunicator::do_all_gather(const Tensor& in, const Tensor& out) {
  CUstream_st* const cuda_stream = stream();
  if (size() == 1) return copy(in, out);
  if (in.numel() == 0) return;
  check(ncclAllGather(in.data, out.data, in.bytes(), ncclUint8, comm(), cuda_stream), "all_gather");
}

void NcclCommunicator::do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                                       const std::vector<std::int64_t>& out_rows) {
  CUstream_st* const cuda_stream = stream();
  const auto part = [](const Tensor& whole, const std::vector<std::int64_t>& rows, int r) {
    return whole.slice(0, std::accumulate(rows.begin(), rows.begin() + r, std::int64_t{0}),
                       rows[static_cast<std::size_t>(r)]);
  };
  const Tensor own_in = part(in, in_rows, rank());
  const Tensor own_out = part(out, out_rows, rank());
  require(own_in.bytes() == own_out.bytes(),
          "all_to_all_v: what a rank sends to itself and receives from itself differ");
  copy(own_in, own_out);
  if (size() == 1) return;
  check(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t result = ncclSuccess;
  for (int r = 0; r < size() && result == ncclSuccess; ++r) {
    if (r == rank()) continue;
    const Tensor to = part(in, in_rows, r);
    const Tensor from = part(out, out_rows, r);
    if (to.bytes() > 0) result = ncclSend(to.data, to.bytes(), ncclUint8, r, comm(), cuda_stream);
    if (from.bytes() > 0 && result == ncclSuccess) {
      result = ncclRecv(from.data, from.bytes(), ncclUint8, r, comm(), cuda_stream);
    }
  }
  const ncclResult_t ended = ncclGroupEnd();  // also after an error
  check(result, "all_to_all");
  check(ended, "all_to_all");
}

bool NcclCommunicator::share_memory(void* base, std::size_t bytes, std::uint64_t layout) {
  if (size() == 1) return false;
  require(peer_memory_ == nullptr, "a group shares one range of memory");
  peer_memory_ = PeerMemory::share(*host_, base, bytes, layout);
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
  host_->host_barrier();  // no peer has it mapped any more
}

void NcclCommunicator::do_shift(const Tensor& in, const Tensor& out, int step, ShiftSeries series) {
  if (peer_memory_ == nullptr || !peer_memory_->holds(in) || in.bytes() == 0) {
    return Communicator::do_shift(in, out, step, series);
  }
  peer_memory_->shift(*stream_, in, out, step, series);
}

void NcclCommunicator::do_broadcast(const Tensor& buffer, int root) {
  CUstream_st* const cuda_stream = stream();
  if (buffer.numel() == 0) return;
  check(ncclBroadcast(buffer.data, buffer.data, buffer.bytes(), ncclUint8, root, comm(), cuda_stream), "broadcast");
}

void NcclCommunicator::do_send(const Tensor& buffer, int peer) {
  CUstream_st* const cuda_stream = stream();
  if (buffer.numel() == 0) return;
  check(ncclSend(buffer.data, buffer.bytes(), ncclUint8, peer, comm(), cuda_stream), "send");
}

void NcclCommunicator::do_receive(const Tensor& buffer, int peer) {
  CUstream_st* const cuda_stream = stream();
  if (buffer.numel() == 0) return;
  check(ncclRecv(buffer.data, buffer.bytes(), ncclUint8, peer, comm(), cuda_stream), "receive");
}

// One of the ranks with a fault throws it; the others wait until it ends them, so that it is told once.
void throw_first(Communicator& world, const std::string& fault) {
  const std::vector<std::string> all = world.host_all_gather(fault);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& f) { return !f.empty(); });
  if (first == all.end()) return;
  if (first - all.begin() == world.rank()) throw Error(ExitCode::kUsage, fault);
  world.host_barrier();
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Why this rank cannot share its GPU, if an earlier one has it too.
std::string gpu_fault(Communicator& world) {
  const int device = use_cuda_device();
  char bus[64] = "";
  char host[256] = "";
  MEGALITH_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof(bus), device));
  gethostname(host, sizeof(host) - 1);
  const std::vector<std::string> all = world.host_all_gather(fmt::format("{} on {}", bus, host));
  const auto mine = all.begin() + world.rank();
  const auto first = std::find(all.begin(), mine, *mine);
  if (first == mine) return "";
  return fmt::format(
      "--device cuda: a GPU for each rank: expected a GPU that rank {} does not use, got GPU {}; start at most one "
      "process a GPU on each node, or check CUDA_VISIBLE_DEVICES",
      first - all.begin(), *mine);
}

}  // namespace

std::string nccl_version_fault(int library, int built_for) {
  if (library / 10000 == built_for / 10000 && library / 100 >= built_for / 100) return "";
  return fmt::format(
      "NCCL: expected version {}.{} or a newer {}.x, for which this program was built, got the library of version {}; "
      "put the right libnccl.so.2 first on LD_LIBRARY_PATH",
      built_for / 10000, built_for / 100 % 100, built_for / 10000, version_text(library));
}

std::unique_ptr<Communicator> make_nccl_world(const std::shared_ptr<MpiProcess>& process) {
  std::unique_ptr<Communicator> host = make_mpi_world(process);
  std::shared_ptr<NcclWatcher> watcher;
  if (host->size() > 1) {
    int version = 0;
    static_cast<void>(ncclGetVersion(&version));
    throw_first(*host, nccl_version_fault(version, NCCL_VERSION_CODE));
    throw_first(*host, gpu_fault(*host));
    watcher = process->nccl_watcher.lock();
    if (watcher == nullptr) {
      watcher = std::make_shared<NcclWatcher>(process);
      process->nccl_watcher = watcher;
    }
  }
  return std::make_unique<NcclCommunicator>("world", std::move(host), process, std::move(watcher));
}

}  // namespace megalith
