#include "parallel/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/tensor/check.h"

namespace megalith {

namespace {

void check_reducible(const Tensor& tensor, const std::string& name) {
  check_dtype(tensor, {DType::kFp32, DType::kBf16, DType::kFp64, DType::kInt32, DType::kInt64}, name);
}

void check_buffer(const Tensor& tensor, const std::string& name) {
  if (tensor.data == nullptr && tensor.numel() != 0) fail({.subject = name, .expected = "a tensor", .got = "none"});
  check_contiguous(tensor, name);
}

void check_same_dtype(const Tensor& in, const Tensor& out, const std::string& name) {
  check_dtype(out, {in.dtype}, name);
}

// `part` is the rank-th of the equal parts of `whole`, or shares no byte with it.
void check_own_part(const Tensor& part, const Tensor& whole, int rank, const std::string& name) {
  if (part.numel() == 0) return;
  const auto* own = whole.as<std::byte>() + static_cast<std::size_t>(rank) * part.bytes();
  if (part.data != own) check_no_overlap(part, name, whole, "the whole");
}

Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

CollectiveCall call_on(const Tensor& tensor, int root = -1) {
  return {.dtype = static_cast<int>(tensor.dtype), .count = tensor.numel(), .argument = root};
}

CollectiveCall point_to_point(const Tensor& tensor, int peer) {
  CollectiveCall call = call_on(tensor, peer);
  call.point_to_point = true;
  return call;
}

// Clears the flag of a group that a worker uses, also when the call throws.
class Use {
 public:
  Use(std::atomic<bool>& flag, const std::string& group) : flag_(flag) {
    if (flag_.exchange(true)) {
      fail({.subject = "group " + group,
            .expected = "one stream at a time",
            .got = "two",
            .remedy = "order the streams by an event, or give one of them a duplicate() of the group"});
    }
  }
  ~Use() { flag_.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

std::string Communicator::subject(std::string_view call, std::string_view argument) const {
  return fmt::format("{} on group {}{}{}", call, name_, argument.empty() ? "" : ": ", argument);
}

void Communicator::check_rank(int rank, std::string_view call, std::string_view argument) const {
  if (rank >= 0 && rank < size_) return;
  fail({.subject = subject(call, argument),
        .expected = fmt::format("0 to {}", size_ - 1),
        .got = fmt::format("{}", rank)});
}

void Communicator::enqueue(Stream& stream, const Access& access, std::size_t bytes, CollectiveCall call,
                           std::function<void()> task) {
  const bool shared = size_ > 1;
  if (shared) {
    ++stats_.collectives;
    stats_.bytes += static_cast<std::int64_t>(bytes);
  }
  call.kind = access.name();
  call.label = std::exchange(label_, {});
  if (shared) call = recorder_->announce(std::move(call));
  if (stream.wants_access()) stream.announce(access);
  stream.visit([&](auto& backend) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(backend)>, CpuStream>) {
      backend.enqueue([this, shared, recorded = std::move(call), run = std::move(task)] {
        const Use use(in_use_, name_);
        if (shared) recorder_->begin(recorded);
        run();
        if (shared) recorder_->end();
      });
    } else if constexpr (std::is_same_v<std::remove_reference_t<decltype(backend)>, CudaStream>) {
      const Use use(in_use_, name_);
      if (shared) recorder_->begin(std::move(call));
      run_on(backend, access.name(), task);
      if (shared) recorder_->end();  // enqueued: when it runs is the GPU's matter
    } else {
      on_plan(stream, access.name(), bytes);
    }
  });
  stream.end_op();
}

void Communicator::on_plan(Stream&, std::string_view, std::size_t) {}

void Communicator::run_on(CudaStream&, std::string_view call, const std::function<void()>&) {
  fail({.subject = subject(call), .expected = "a stream on the group's device", .got = "a CUDA stream"});
}

void Communicator::all_reduce(Stream& stream, const Tensor& buffer, ReduceOp op) {
  const std::string name = subject("all_reduce", "buffer");
  check_buffer(buffer, name);
  check_reducible(buffer, name);
  if (size_ == 1) return;
  Access access("all_reduce");
  access.reads(buffer);
  access.writes(buffer);
  enqueue(stream, access, buffer.bytes(), call_on(buffer), [this, b = flat(buffer), op] { do_all_reduce(b, op); });
}

void Communicator::reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out) {
  const std::string name = subject("reduce_scatter", "out");
  check_buffer(in, subject("reduce_scatter", "in"));
  check_buffer(out, name);
  check_reducible(in, subject("reduce_scatter", "in"));
  check_same_dtype(in, out, name);
  if (in.numel() != size_ * out.numel()) {
    fail({.subject = name,
          .expected = fmt::format("1/{} of the {} elements of in", size_, in.numel()),
          .got = fmt::format("{}", out.numel())});
  }
  check_own_part(out, in, rank_, name);
  if (size_ == 1 && in.data == out.data) return;
  Access access("reduce_scatter");
  access.reads(in);
  access.writes(out);
  enqueue(stream, access, in.bytes(), call_on(in), [this, i = flat(in), o = flat(out)] { do_reduce_scatter(i, o); });
}

void Communicator::all_gather(Stream& stream, const Tensor& in, const Tensor& out) {
  const std::string name = subject("all_gather", "in");
  check_buffer(in, name);
  check_buffer(out, subject("all_gather", "out"));
  check_same_dtype(in, out, subject("all_gather", "out"));
  if (out.numel() != size_ * in.numel()) {
    fail({.subject = name,
          .expected = fmt::format("1/{} of the {} elements of out", size_, out.numel()),
          .got = fmt::format("{}", in.numel())});
  }
  check_own_part(in, out, rank_, name);
  if (size_ == 1 && in.data == out.data) return;
  Access access("all_gather");
  access.reads(in);
  access.writes(out);
  enqueue(stream, access, in.bytes(), call_on(in), [this, i = flat(in), o = flat(out)] { do_all_gather(i, o); });
}

void Communicator::all_to_all(Stream& stream, const Tensor& in, const Tensor& out) {
  check_buffer(in, subject("all_to_all", "in"));
  check_buffer(out, subject("all_to_all", "out"));
  if (in.numel() % size_ != 0 || in.numel() != out.numel()) {
    fail({.subject = subject("all_to_all", "in and out"),
          .expected = fmt::format("equal sizes that are a multiple of {}", size_),
          .got = fmt::format("{} and {} elements", in.numel(), out.numel())});
  }
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size_), 1);
  const Shape parts{size_, in.numel() / size_};
  all_to_all_v(stream, in.view(parts), rows, out.view(parts), rows);
}

void Communicator::all_to_all_v(Stream& stream, const Tensor& in, std::span<const std::int64_t> in_rows,
                                const Tensor& out, std::span<const std::int64_t> out_rows) {
  const auto used_rows = [&](const Tensor& tensor, std::span<const std::int64_t> rows, std::string_view argument) {
    const std::string name = subject("all_to_all", argument);
    check_buffer(tensor, name);
    const bool fits = tensor.rank() > 0 && rows.size() == static_cast<std::size_t>(size_) &&
                      std::all_of(rows.begin(), rows.end(), [](std::int64_t r) { return r >= 0; }) &&
                      std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) <= tensor.size(0);
    if (!fits) {
      fail({.subject = name,
            .expected = fmt::format("{} counts of rows that fit into {}", size_, to_string(tensor.shape)),
            .got = fmt::format("[{}]", fmt::join(rows, ", "))});
    }
    return tensor.slice(0, 0, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  };
  const Tensor in_used = used_rows(in, in_rows, "in");
  const Tensor out_used = used_rows(out, out_rows, "out");
  check_same_dtype(in, out, subject("all_to_all", "out"));
  Shape row = in.shape;
  row[0] = out.size(0);
  check_shape(out, row, subject("all_to_all", "out"));
  check_no_overlap(in_used, "in", out_used, subject("all_to_all", "out"));
  Access access("all_to_all");
  access.reads(in_used);
  access.writes(out_used);
  enqueue(stream, access, in_used.bytes(), call_on(in_used),
          [this, in_used, out_used, sent = std::vector(in_rows.begin(), in_rows.end()),
           received = std::vector(out_rows.begin(), out_rows.end())] {
            do_all_to_all_v(in_used, sent, out_used, received);
          });
}

void Communicator::shift(Stream& stream, const Tensor& in, const Tensor& out, int step, ShiftSeries series) {
  check_buffer(in, subject("shift", "in"));
  check_buffer(out, subject("shift", "out"));
  check_same_dtype(in, out, subject("shift", "out"));
  if (step <= 0 || step >= size_) {
    fail({.subject = subject("shift", "step"),
          .expected = fmt::format("1 to {}", size_ - 1),
          .got = fmt::format("{}", step)});
  }
  if (in.numel() != out.numel()) {
    fail({.subject = subject("shift", "out"),
          .expected = fmt::format("the {} elements of in", in.numel()),
          .got = fmt::format("{}", out.numel())});
  }
  check_no_overlap(in, "in", out, subject("shift", "out"));
  Access access("shift");
  access.reads(in);
  access.writes(out);
  enqueue(stream, access, in.bytes(), call_on(in, step),
          [this, i = flat(in), o = flat(out), step, series] { do_shift(i, o, step, series); });
}

void Communicator::do_shift(const Tensor& in, const Tensor& out, int step, ShiftSeries) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(size_)), received = sent;
  sent[static_cast<std::size_t>((rank_ + step) % size_)] = in.numel();
  received[static_cast<std::size_t>((rank_ - step + size_) % size_)] = out.numel();
  do_all_to_all_v(in, sent, out, received);
}

bool Communicator::share_memory(void*, std::size_t, std::uint64_t) { return false; }

void Communicator::broadcast(Stream& stream, const Tensor& buffer, int root) {
  check_buffer(buffer, subject("broadcast", "buffer"));
  check_rank(root, "broadcast", "root");
  if (size_ == 1) return;
  Access access("broadcast");
  if (rank_ == root) {
    access.reads(buffer);
  } else {
    access.writes(buffer);
  }
  enqueue(stream, access, rank_ == root ? buffer.bytes() : 0, call_on(buffer, root),
          [this, b = flat(buffer), root] { do_broadcast(b, root); });
}

void Communicator::send(Stream& stream, const Tensor& buffer, int peer) {
  check_buffer(buffer, subject("send", "buffer"));
  check_rank(peer, "send", "peer");
  if (peer == rank_)
    fail({.subject = subject("send", "peer"), .expected = "another rank", .got = fmt::format("{}", peer)});
  Access access("send");
  access.reads(buffer);
  enqueue(stream, access, buffer.bytes(), point_to_point(buffer, peer),
          [this, b = flat(buffer), peer] { do_send(b, peer); });
}

void Communicator::receive(Stream& stream, const Tensor& buffer, int peer) {
  check_buffer(buffer, subject("receive", "buffer"));
  check_rank(peer, "receive", "peer");
  if (peer == rank_) {
    fail({.subject = subject("receive", "peer"), .expected = "another rank", .got = fmt::format("{}", peer)});
  }
  Access access("receive");
  access.writes(buffer);
  enqueue(stream, access, 0, point_to_point(buffer, peer), [this, b = flat(buffer), peer] { do_receive(b, peer); });
}

bool Communicator::host_any(bool mine) {
  const std::vector<std::string> all = host_all_gather(mine ? "1" : "0");
  return std::find(all.begin(), all.end(), "1") != all.end();
}

std::string Communicator::host_broadcast(const std::string& value, int root) {
  check_rank(root, "host_broadcast", "root");
  return host_all_gather(rank_ == root ? value : std::string())[static_cast<std::size_t>(root)];
}

std::unique_ptr<Communicator> Communicator::subgroup(std::span<const int> ranks, const std::string& name) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    fail({.subject = subject("subgroup", name),
          .expected = fmt::format("a list with rank {}", rank_),
          .got = fmt::format("[{}]", fmt::join(ranks, ", "))});
  }
  return split(ranks.front(), static_cast<int>(mine - ranks.begin()), name);
}

std::unique_ptr<Communicator> Communicator::duplicate(const std::string& name) {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks, name);
}

AbortOnUnwind::AbortOnUnwind(Communicator& group) : group_(group), exceptions_(std::uncaught_exceptions()) {}

AbortOnUnwind::~AbortOnUnwind() {
  if (std::uncaught_exceptions() > exceptions_) {
    group_.abort(fmt::format("rank {} of group {} failed", group_.rank(), group_.name()));
  }
}

}  // namespace megalith
