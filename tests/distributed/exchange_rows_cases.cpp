#include "tests/distributed/exchange_rows_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/memory_sharing.h"
#include "tests/distributed/collective_reference.h"

namespace megalith::test {

namespace {

constexpr std::int64_t kTokens = 50;  // per rank: bound of index, and of rows for one rank

enum class Load { kMixed, kEmptyRanks, kOneRank, kNone };

std::int64_t rows_between(Load load, int from, int to, int size) {
  switch (load) {
    case Load::kMixed: return from * 29 % 7 == to % 3 ? 0 : (from * 17 + to * 11 + 5) % kTokens + 1;
    case Load::kEmptyRanks: return from == 0 || to == size - 1 ? 0 : 3 + from;
    case Load::kOneRank: return to == size / 2 ? kTokens : 0;
    case Load::kNone: return 0;
  }
  return 0;
}

std::vector<std::int32_t> sends_of(Load load, int size) {
  std::vector<std::int32_t> sends;
  for (int from = 0; from < size; ++from) {
    std::int64_t begin = 0;
    for (int to = 0; to < size; ++to) {
      sends.push_back(static_cast<std::int32_t>(begin));
      begin += rows_between(load, from, to, size);
    }
    sends.push_back(static_cast<std::int32_t>(begin));
  }
  return sends;
}

struct Columns {
  DType dtype;
  std::int64_t width;
  std::int64_t bytes() const { return width * static_cast<std::int64_t>(size_of(dtype)); }
};
using Kinds = std::vector<Columns>;

// Token of a rank's row, by its position in the list; tokens repeat.
std::int32_t token_of(int rank, int round, std::int64_t listed) {
  return static_cast<std::int32_t>((listed * 31 + rank * 7 + round * 13) % kTokens);
}
std::uint8_t byte_of(int rank, int round, std::size_t tensor, std::int64_t token, std::int64_t at) {
  const std::int64_t number = ((token * 8191 + at) * 5 + static_cast<std::int64_t>(tensor)) * 64 + rank * 3 + round;
  return value<std::uint8_t>({}, 1, number);
}

// Memory of one rank; tensors that others may read are in `shared`.
class Exchange {
 public:
  Exchange(Communicator& group, Rig& rig, const Kinds& kinds, std::int64_t room)
      : group_(group),
        rig_(rig),
        kinds_(kinds),
        listed_(kTokens * group.size()),
        arrived_(room),
        shared_(rig.empty<std::uint8_t>(bytes_of(kTokens) + bytes_of(arrived_) + aligned(4 * listed_))),
        home_(rig.empty<std::uint8_t>(bytes_of(listed_))),
        sends_(rig.empty<std::int32_t>(group.size() * (group.size() + 1))) {
    ExchangeRows& back = back_.emplace(ExchangeRows{.group = group, .back = true, .label = "back"});
    ExchangeRows& there = there_.emplace(ExchangeRows{.group = group, .label = "there"});
    there.sends = back.sends = sends_.tensor().view({group.size(), group.size() + 1});
    there.pair_room = back.pair_room = kTokens;
    there.expected_rows = back.expected_rows = 11;
    auto* at = shared_.tensor().as<std::byte>();
    auto* home = home_.tensor().as<std::byte>();
    there.index = cut(at, {DType::kInt32, 1}, listed_).view({listed_});
    for (const Columns& kind : kinds_) there.rows.push_back({.in = cut(at, kind, kTokens)});
    for (std::size_t t = 0; t < kinds_.size(); ++t) {
      there.rows[t].out = cut(at, kinds_[t], arrived_);
      back.rows.push_back({.in = there.rows[t].out, .out = cut(home, kinds_[t], listed_)});
    }
    room_ = rig.empty<std::uint8_t>(exchange_room_bytes(there));
  }

  ExchangeRows& there() { return *there_; }
  Tensor shared() { return shared_.tensor(); }
  void pad() { is_padded_ = true; }

  void run(const std::vector<Load>& loads) {
    const auto calls = [&] {
      for (const ExchangeRows& op : {*there_, *back_}) {
        if (is_padded_) {
          launch(rig_.stream(), PaddedExchangeRows{op, room_.tensor()});
        } else {
          launch(rig_.stream(), op);
        }
      }
    };
    Graph graph("exchanges");
    if (rig_.form().captured) {
      graph.begin_capture(rig_.stream());
      calls();
      graph.end_capture();
    }
    for (std::size_t round = 0; round < loads.size(); ++round) {
      prepare(loads[round], static_cast<int>(round));
      if (rig_.form().captured) {
        graph.replay(rig_.stream());
      } else {
        calls();
      }
      shared_.download(rig_.stream());
      home_.download(rig_.stream());
      rig_.stream().synchronize();
      compare(loads[round], static_cast<int>(round));
    }
  }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }
  static Tensor cut(std::byte*& at, const Columns& kind, std::int64_t rows) {
    const Tensor result(at, kind.dtype, {rows, kind.width});
    at += aligned(rows * kind.bytes());
    return result;
  }
  std::int64_t bytes_of(std::int64_t rows) const {
    std::int64_t bytes = 0;
    for (const Columns& kind : kinds_) bytes += aligned(rows * kind.bytes());
    return bytes;
  }
  // Offset of a tensor of shared_ or home_ among their values.
  template <class T>
  T* place(Buffer<std::uint8_t>& buffer, const Tensor& x) {
    return reinterpret_cast<T*>(buffer.values.data() + (x.as<std::byte>() - buffer.tensor().as<std::byte>()));
  }

  void prepare(Load load, int round) {
    std::fill(shared_.values.begin(), shared_.values.end(), kUnset);
    std::fill(home_.values.begin(), home_.values.end(), kUnset);
    std::ranges::copy(sends_of(load, group_.size()), sends_.values.begin());
    for (std::int64_t j = 0; j < listed_; ++j) {
      place<std::int32_t>(shared_, there_->index)[j] = token_of(group_.rank(), round, j);
    }
    for (std::size_t t = 0; t < kinds_.size(); ++t) {
      auto* in = place<std::uint8_t>(shared_, there_->rows[t].in);
      for (std::int64_t token = 0; token < kTokens; ++token) {
        for (std::int64_t i = 0; i < kinds_[t].bytes(); ++i) *in++ = byte_of(group_.rank(), round, t, token, i);
      }
    }
    want_shared_ = shared_.values;
    want_home_ = home_.values;
    shared_.upload(rig_.stream());
    home_.upload(rig_.stream());
    sends_.upload(rig_.stream());
  }

  // Rows of `from` for `to` follow those of lower ranks; only the first arrived_ are within the capacity.
  void compare(Load load, int round) {
    for (int from = 0; from < group_.size(); ++from) {
      for (int to = 0; to < group_.size(); ++to) {
        if (from == group_.rank() || to == group_.rank()) expect_pair(load, round, from, to);
      }
    }
    const std::string what = " in round " + std::to_string(round) + " on rank " + std::to_string(group_.rank());
    expect_same_bits(shared_.values, want_shared_, "arrived" + what);
    expect_same_bits(home_.values, want_home_, "home" + what);
  }
  void expect_pair(Load load, int round, int from, int to) {
    std::int64_t arrival = 0, first = 0;
    for (int r = 0; r < from; ++r) arrival += rows_between(load, r, to, group_.size());
    for (int r = 0; r < to; ++r) first += rows_between(load, from, r, group_.size());
    for (std::int64_t row = 0; row < rows_between(load, from, to, group_.size()); ++row) {
      if (arrival + row >= arrived_) return;
      const std::int32_t token = token_of(from, round, first + row);
      for (std::size_t t = 0; t < kinds_.size(); ++t) {
        const std::int64_t bytes = kinds_[t].bytes();
        const std::int64_t out = place<std::uint8_t>(shared_, there_->rows[t].out) - shared_.values.data();
        const std::int64_t home = place<std::uint8_t>(home_, back_->rows[t].out) - home_.values.data();
        for (std::int64_t i = 0; i < bytes; ++i) {
          const std::uint8_t want = byte_of(from, round, t, token, i);
          if (to == group_.rank()) want_shared_[static_cast<std::size_t>(out + (arrival + row) * bytes + i)] = want;
          if (from == group_.rank()) want_home_[static_cast<std::size_t>(home + (first + row) * bytes + i)] = want;
        }
      }
    }
  }

  static constexpr std::uint8_t kUnset = 0xA5;

  Communicator& group_;
  Rig& rig_;
  Kinds kinds_;
  std::int64_t listed_, arrived_;
  Buffer<std::uint8_t> shared_, home_;
  Buffer<std::int32_t> sends_;
  Buffer<std::uint8_t> room_{{}, 0};
  bool is_padded_ = false;
  std::optional<ExchangeRows> there_, back_;
  std::vector<std::uint8_t> want_shared_, want_home_;
};

// One chunk of a warp and several; full packs and partial ones; sorted and unsorted.
const Kinds kLayer = {{DType::kBf16, 2056}, {DType::kInt32, 2}, {DType::kFp32, 8}};
const Kinds kPacks = {{DType::kBf16, 2056}, {DType::kInt32, 4}, {DType::kFp32, 8}};
const Kinds kOdd = {{DType::kUint8, 7}, {DType::kBf16, 4099}, {DType::kFp32, 37}};
const Kinds kOne = {{DType::kFp32, 300}};

const std::vector<Load> kLoads = {Load::kMixed, Load::kOneRank, Load::kNone, Load::kEmptyRanks, Load::kMixed};

std::int64_t sent_rows(const std::vector<Load>& loads, const Communicator& group, std::int64_t room, bool back) {
  std::int64_t rows = 0;
  for (const Load load : loads) {
    for (int to = 0; to < group.size(); ++to) {
      std::int64_t left = room;
      for (int from = 0; from < group.size(); ++from) {
        const std::int64_t count = std::min(left, rows_between(load, from, to, group.size()));
        left -= count;
        if (from != to && (back ? to : from) == group.rank()) rows += count;
      }
    }
  }
  return rows;
}

void check_all(Communicator& group, const CollectiveForm& form, bool shares) {
  const std::int64_t all = kTokens * group.size();
  for (const Kinds& kinds : {kLayer, kPacks, kOdd, kOne}) {
    for (const std::int64_t room : {all, kTokens / 2 + 1}) {
      Rig rig(form);
      Exchange exchange(group, rig, kinds, room);
      const AbortOnUnwind guard(group);
      MemorySharing* const sharing = shares ? group.memory_sharing() : nullptr;
      const Tensor memory = exchange.shared();
      const bool shared = sharing != nullptr && sharing->share_memory(memory.data, memory.bytes(), 1);
      if (!shared) exchange.pad();
      const CommunicatorStats before = group.stats();
      exchange.run(kLoads);
      if (sharing != nullptr) sharing->unshare_memory();
      if (group.size() == 1) continue;
      const CommunicatorStats after = group.stats();
      const auto calls = static_cast<std::int64_t>(2 * kLoads.size());
      const bool gpu = form.device == DeviceType::kCuda;
      EXPECT_EQ(after.collectives - before.collectives, calls);
      EXPECT_EQ(after.messages - before.messages, gpu ? 0 : calls);
      EXPECT_EQ(after.pulled - before.pulled, shared ? calls : 0);
      EXPECT_EQ(after.padded - before.padded, gpu && !shared ? calls : 0);
      const std::int64_t sent = sent_rows(kLoads, group, room, false) + sent_rows(kLoads, group, room, true);
      EXPECT_EQ(after.bytes - before.bytes, (gpu ? 11 * calls : sent) * row_bytes(exchange.there()));
      EXPECT_TRUE(shared || !shares) << "these GPUs cannot read each other's memory";
    }
  }
}

}  // namespace

void check_exchange_rows(Communicator& world, const CollectiveForm& form) {
  const std::unique_ptr<Communicator> group = world.duplicate("rows");
  check_all(*group, form, false);
}

void check_exchange_of_shared_memory(Communicator& world, const CollectiveForm& form) {
  if (form.device != DeviceType::kCuda || world.size() == 1) return;
  const std::unique_ptr<Communicator> group = world.duplicate("shared rows");
  check_all(*group, form, true);
}

void check_refused_exchanges(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  Exchange exchange(world, rig, kLayer, kTokens);
  const AbortOnUnwind guard(world);
  const auto refused = [&](const auto& change) {
    ExchangeRows op = exchange.there();
    change(op);
    EXPECT_THROW(launch(rig.stream(), op), Error);
  };
  refused([](ExchangeRows& op) { op.rows.clear(); });
  refused([](ExchangeRows& op) { op.rows.push_back(op.rows[0]); });
  refused([](ExchangeRows& op) { op.rows[1] = op.rows[0]; });
  refused([](ExchangeRows& op) { op.rows[0].out.dtype = DType::kFp32; });
  refused([](ExchangeRows& op) { op.rows[1].in = op.rows[1].in.slice(0, 0, kTokens - 1); });
  refused([](ExchangeRows& op) { op.rows[2].out = op.rows[2].out.slice(1, 0, 4); });
  refused([](ExchangeRows& op) { std::swap(op.rows[0].in, op.rows[0].out), op.rows[0].out = op.rows[0].in; });
  refused([](ExchangeRows& op) { op.back = true; });
  refused([](ExchangeRows& op) { op.index.dtype = DType::kFp32; });
  refused([](ExchangeRows& op) { op.sends = op.sends.slice(1, 0, 1); });
  refused([](ExchangeRows& op) { op.pair_room = -1; });
  refused([](ExchangeRows& op) { op.expected_rows = -1; });
  EXPECT_THROW(launch(rig.stream(), PaddedExchangeRows{exchange.there(), exchange.shared()}), Error);
  if (form.device == DeviceType::kCuda && world.size() > 1) refused([](ExchangeRows&) {});
  exchange.pad();
  exchange.run({Load::kMixed});
}

}  // namespace megalith::test
