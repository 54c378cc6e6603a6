#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "parallel/comm/exchanged_rows.h"
#include "parallel/comm/mpi/mpi_exchange.h"
#include "parallel/comm/mpi/mpi_process.h"
#include "parallel/comm/reduce_parts.h"

namespace megalith {

namespace {

// Sizes up to which latency dominates: every rank sends everything to every other rank.
constexpr std::size_t kSmallBytes = 4096;

enum Tag : int { kTagReduce = 1, kTagGather, kTagAllToAll, kTagBroadcast, kTagPoint, kTagRows };

// One MPI communicator and its pending requests. Used by one thread at a time.
struct Plane {
  Plane(MPI_Comm owned, MpiProcess& process) : comm(owned), exchange(owned, process) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  ~Plane() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&comm);
  }
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;

  MPI_Comm comm;
  MpiExchange exchange;
};

MPI_Comm duplicated(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return copy;
}

std::size_t rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return static_cast<std::size_t>(rank);
}

int size_of_comm(MPI_Comm comm) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  return size;
}

std::vector<int> world_ranks_of(MPI_Comm comm) {
  const int size = size_of_comm(comm);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> world_ranks(ranks.size());
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(group, size, ranks.data(), world, world_ranks.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return world_ranks;
}

class MpiCommunicator final : public Communicator {
 public:
  // Takes ownership of the two MPI communicators.
  MpiCommunicator(std::string name, MPI_Comm streams, MPI_Comm host, std::shared_ptr<MpiProcess> process)
      : Communicator(std::move(name), static_cast<int>(rank_of(streams)), size_of_comm(streams)),
        process_(std::move(process)),
        streams_(streams, *process_),
        host_(host, *process_),
        host_recorder_(std::make_shared<FlightRecorder>(this->name() + " (host)")) {
    for (const auto& each : {shared_recorder(), host_recorder_}) {
      each->set_world_ranks(world_ranks_of(streams));
      process_->add(each);
    }
  }

  void host_barrier() override {
    begin_host("host_barrier", 0);
    check_mpi(MPI_Ibarrier(host_.comm, host_.exchange.add(-1, -1)), "MPI_Ibarrier");
    host_.exchange.wait();
    host_recorder_->end();
  }

  std::vector<std::string> host_all_gather(const std::string& mine) override;
  bool host_any(bool mine) override;
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  void abort(const std::string& message) override { process_->abort(message); }

 protected:
  void run(const Collective& collective) override {
    begin(kCollectiveNames[collective.index()]);
    std::visit(
        [this]<class Op>(const Op& op) {
          if constexpr (!SharedCollective<Op>) exchange(op);  // checked() rejects shared collectives
        },
        collective);
  }

 private:
  void begin(const char* call) {
    process_->throw_if_aborted();
    const std::optional<CollectiveCall> current = recorder().current();
    streams_.exchange.begin(fmt::format("{} on group {}", call, name()), current ? to_string(*current) : call);
  }
  void exchange(const Shift& op) { exchange(all_to_all_of(op)); }
  void begin_host(const char* call, std::size_t bytes) {
    process_->throw_if_aborted();
    host_recorder_->begin({.kind = call, .count = static_cast<std::int64_t>(bytes)});
    host_.exchange.begin(fmt::format("{} on group {}", call, name()), to_string(*host_recorder_->current()));
  }
  void send(const Tensor& t, int peer, Tag tag) { streams_.exchange.send(t.data, t.bytes(), peer, tag); }
  void receive(const Tensor& t, int peer, Tag tag) { streams_.exchange.receive(t.data, t.bytes(), peer, tag); }
  std::int64_t chunk_elements(DType dtype) const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(process_->options.chunk_bytes / size_of(dtype)));
  }

  // Waits for requests of the host. If that fails, MPI may still write to `buffers` until this process ends, so they
  // are never freed.
  void wait_host(const std::shared_ptr<void>& buffers) {
    try {
      host_.exchange.wait();
    } catch (...) {
      const std::lock_guard lock(process_->mutex);
      process_->kept.push_back(buffers);
      throw;
    }
  }

  // Staging memory for a copy of `like`, which is at most one of `size` equal parts.
  Tensor staging(int part, const Tensor& like) {
    Tensor result = like;
    result.data = staging_.data() + static_cast<std::size_t>(part) * like.bytes();
    return result;
  }

  // Exchanges with each other rank: sends to(r) and receives from(r).
  template <class To, class From>
  void swap_with_peers(Tag tag, To to, From from) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) receive(from(r), r, tag);
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) send(to(r), r, tag);
    }
    streams_.exchange.wait();
  }

  // out = sum over ranks of their parts for this rank; part_for(r) is this rank's part for rank r.
  template <class PartFor>
  void reduce_exchanged(ReduceOp op, PartFor part_for, const Tensor& out) {
    const std::size_t needed = static_cast<std::size_t>(size()) * out.bytes();
    if (staging_.size() < needed) staging_.resize(needed);
    parts_.resize(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      parts_[static_cast<std::size_t>(r)] = r == rank() ? part_for(r).data : staging(r, out).data;
    }
    swap_with_peers(kTagReduce, part_for, [&](int r) { return staging(r, out); });
    reduce_parts(op, out.dtype, parts_, out.data, out.numel());
  }

  void all_reduce_chunk(const Tensor& chunk, ReduceOp op) {
    const auto slice = [&](int r) {
      const std::int64_t begin = chunk.numel() * r / size();
      return chunk.slice(0, begin, chunk.numel() * (r + 1) / size() - begin);
    };
    if (chunk.bytes() <= kSmallBytes) {
      reduce_exchanged(
          op, [&](int) { return chunk; }, chunk);
      return;
    }
    reduce_exchanged(op, slice, slice(rank()));
    swap_with_peers(
        kTagGather, [&](int) { return slice(rank()); }, slice);
  }

  void exchange(const AllReduce& op) {
    const Tensor& buffer = op.buffer;
    const std::int64_t chunk = chunk_elements(buffer.dtype);
    std::int64_t begin = 0;
    do {  // once for an empty buffer
      const std::int64_t count = std::min(chunk, buffer.numel() - begin);
      all_reduce_chunk(buffer.slice(0, begin, count), op.op);
      begin += count;
    } while (begin < buffer.numel());
  }

  void exchange(const ReduceScatter& op) {
    const Tensor &in = op.in, &out = op.out;
    const std::int64_t chunk = std::max<std::int64_t>(1, chunk_elements(in.dtype) / size());
    std::int64_t begin = 0;
    do {
      const std::int64_t count = std::min(chunk, out.numel() - begin);
      const auto part_for = [&](int r) { return in.slice(0, r * out.numel() + begin, count); };
      reduce_exchanged(ReduceOp::kSum, part_for, out.slice(0, begin, count));
      begin += count;
    } while (begin < out.numel());
  }

  void exchange(const AllGather& op) {
    const Tensor &in = op.in, &out = op.out;
    const auto part = [&](int r) { return out.slice(0, r * in.numel(), in.numel()); };
    if (in.data != part(rank()).data && in.bytes() > 0) std::memcpy(part(rank()).data, in.data, in.bytes());
    swap_with_peers(
        kTagGather, [&](int) { return in; }, part);
  }

  void exchange(const AllToAll& op) {
    const Tensor own = rows_of_rank(op.in, op.in_rows, rank());
    if (own.bytes() > 0) std::memcpy(rows_of_rank(op.out, op.out_rows, rank()).data, own.data, own.bytes());
    swap_with_peers(
        kTagAllToAll, [&](int r) { return rows_of_rank(op.in, op.in_rows, r); },
        [&](int r) { return rows_of_rank(op.out, op.out_rows, r); });
  }

  // Sends rows in rounds of the staging's capacity per pair; the first round has a message for each pair and tensor.
  void exchange(const ExchangeRows& op) {
    copy_rows(op, rank(), op);
    const std::int64_t most = std::max<std::int64_t>(
        1, chunk_elements(DType::kUint8) / std::max<std::int64_t>(1, (size() - 1) * row_bytes(op)));
    const RowCounts counts = counts_of(op);
    std::int64_t rows = 0;  // of this rank's largest pair
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) rows = std::max({rows, counts.piece(rank(), r).rows, counts.piece(r, rank()).rows});
    }
    const std::size_t needed = static_cast<std::size_t>(std::min(most, op.pair_room) * (size() - 1) * row_bytes(op));
    if (op.index && staging_.size() < needed) staging_.resize(needed);
    for (std::int64_t first = 0; first == 0 || first < rows; first += most) exchange_round(op, counts, first, most);
    count_sent(sent_bytes(op));
  }

  // Exchanges rows first .. first + most - 1 of each pair.
  void exchange_round(const ExchangeRows& op, const RowCounts& counts, std::int64_t first, std::int64_t most) {
    const auto rows_of = [&](const RowPiece& piece) { return std::clamp<std::int64_t>(piece.rows - first, 0, most); };
    const auto for_pieces = [&](auto piece_of, auto post) {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const RowPiece piece = piece_of(r);
        if (first > 0 && piece.rows <= first) continue;
        for (const ExchangeRows::Rows& tensor : op.rows) post(tensor, piece, r);
      }
    };
    for_pieces([&](int r) { return counts.piece(r, rank()); },
               [&](const ExchangeRows::Rows& tensor, const RowPiece& piece, int r) {
                 receive(tensor.out.slice(0, std::min(piece.to + first, tensor.out.size(0)), rows_of(piece)), r,
                         kTagRows);
               });
    std::byte* free = staging_.data();
    for_pieces([&](int r) { return counts.piece(rank(), r); },
               [&](const ExchangeRows::Rows& tensor, const RowPiece& piece, int r) {
                 const std::size_t bytes = static_cast<std::size_t>(tensor.in.size(1)) * size_of(tensor.in.dtype);
                 const std::size_t count = static_cast<std::size_t>(rows_of(piece));
                 const std::byte* from = free;
                 if (!op.index) from = sent_row(op, tensor, piece.from + first);
                 for (std::size_t row = 0; op.index && row < count; ++row, free += bytes) {
                   const std::int64_t listed = piece.from + first + static_cast<std::int64_t>(row);
                   if (bytes > 0) std::memcpy(free, sent_row(op, tensor, listed), bytes);
                 }
                 streams_.exchange.send(from, count * bytes, r, kTagRows);
               });
    streams_.exchange.wait();
  }

  // Binomial tree: in round k, the 2^k ranks with the buffer send it on. Ranks are counted from the root.
  void exchange(const Broadcast& op) {
    const int mine = (rank() - op.root + size()) % size();
    const auto rank_at = [&](int place) { return (place + op.root) % size(); };
    int reach = 1;  // ranks below it have the buffer
    while (reach <= mine) reach *= 2;
    if (mine > 0) {
      receive(op.buffer, rank_at(mine - reach / 2), kTagBroadcast);
      streams_.exchange.wait();
    }
    for (; mine + reach < size(); reach *= 2) send(op.buffer, rank_at(mine + reach), kTagBroadcast);
    streams_.exchange.wait();
  }

  void exchange(const Send& op) {
    send(op.buffer, op.peer, kTagPoint);
    streams_.exchange.wait();
  }

  void exchange(const Receive& op) {
    receive(op.buffer, op.peer, kTagPoint);
    streams_.exchange.wait();
  }

  std::shared_ptr<MpiProcess> process_;
  Plane streams_;
  Plane host_;
  std::shared_ptr<FlightRecorder> host_recorder_;
  std::vector<std::byte> staging_;  // size of the largest call, at most a chunk
  std::vector<const void*> parts_;
};

bool MpiCommunicator::host_any(bool mine) {
  begin_host("host_any", sizeof(int));
  const auto any = std::make_shared<int>(mine ? 1 : 0);
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, any.get(), 1, MPI_INT, MPI_MAX, host_.comm, host_.exchange.add(-1, -1)),
            "MPI_Iallreduce");
  wait_host(any);
  host_recorder_->end();
  return *any != 0;
}

std::vector<std::string> MpiCommunicator::host_all_gather(const std::string& mine) {
  begin_host("host_all_gather", mine.size());
  if (mine.size() > (std::size_t{1} << 26)) {
    fail({.subject = "host_all_gather", .expected = "at most 64 MiB", .got = fmt::format("{} bytes", mine.size())});
  }
  struct Buffers {
    std::vector<int> lengths;
    std::string text;
  };
  const auto buffers = std::make_shared<Buffers>();
  const int length = static_cast<int>(mine.size());
  std::vector<int>& lengths = buffers->lengths;
  lengths.resize(static_cast<std::size_t>(size()));
  check_mpi(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, host_.comm, host_.exchange.add(-1, -1)),
            "MPI_Iallgather");
  wait_host(buffers);
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (total > std::int64_t{1} << 30) {
    fail({.subject = "host_all_gather", .expected = "at most 1 GiB in all", .got = fmt::format("{} bytes", total)});
  }
  std::vector<int> offsets(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, offsets.begin() + 1);
  std::string& text = buffers->text;
  text.resize(static_cast<std::size_t>(total));
  check_mpi(MPI_Iallgatherv(mine.data(), length, MPI_BYTE, text.data(), lengths.data(), offsets.data(), MPI_BYTE,
                            host_.comm, host_.exchange.add(-1, -1)),
            "MPI_Iallgatherv");
  wait_host(buffers);
  std::vector<std::string> all;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    all.push_back(text.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
  }
  host_recorder_->end();
  return all;
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key, const std::string& name) {
  if (color < 0) {
    fail({.subject = "split of group " + this->name(), .expected = "a color >= 0", .got = fmt::format("{}", color)});
  }
  host_barrier();          // waits for late ranks, since the rest blocks inside MPI
  begin_host("split", 0);  // only the watcher detects ranks that are late from here on
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(host_.comm, color, key, &part), "MPI_Comm_split");
  MPI_Comm host = duplicated(part);
  host_recorder_->end();
  return std::make_unique<MpiCommunicator>(name, part, host, process_);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(const std::shared_ptr<MpiProcess>& process, const std::string& name) {
  MPI_Comm streams = duplicated(MPI_COMM_WORLD);
  return std::make_unique<MpiCommunicator>(name, streams, duplicated(MPI_COMM_WORLD), process);
}

}  // namespace megalith
