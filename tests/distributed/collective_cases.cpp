#include "tests/distributed/collective_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/bf16.h"

namespace megalith::test {

namespace {

constexpr std::int64_t kSizes[] = {0, 1, 2, 7, 64, 1025};
// Several blocks and, where the program makes them small, several chunks and messages.
constexpr std::int64_t kLarge = 100'003;

template <class T>
constexpr DType kDTypeOf = DType::kUint8;
template <>
constexpr DType kDTypeOf<float> = DType::kFp32;
template <>
constexpr DType kDTypeOf<bf16> = DType::kBf16;
template <>
constexpr DType kDTypeOf<double> = DType::kFp64;
template <>
constexpr DType kDTypeOf<std::int32_t> = DType::kInt32;
template <>
constexpr DType kDTypeOf<std::int64_t> = DType::kInt64;

// Of magnitudes from 2^-8 to 2^7, so that the order of a floating-point sum matters.
template <class T>
T value(int rank, std::int64_t i) {
  std::uint64_t h =
      static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03u;
  h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(h);
  } else {
    const double x = std::ldexp(static_cast<double>(static_cast<std::int64_t>(h >> 12)) / 0x1p52 - 0.5,
                                static_cast<int>(h % 16) - 7);
    if constexpr (std::is_same_v<T, bf16>) {
      return to_bf16(static_cast<float>(x));
    } else {
      return static_cast<T>(x);
    }
  }
}

template <class T>
struct Buffer {
  std::vector<T> values;

  explicit Buffer(std::int64_t n) : values(static_cast<std::size_t>(n)) {
    if (n > 0) std::memset(static_cast<void*>(values.data()), 0xA5, values.size() * sizeof(T));
  }
  static Buffer of_rank(int rank, std::int64_t n) {
    Buffer result(n);
    for (std::int64_t i = 0; i < n; ++i) result.values[static_cast<std::size_t>(i)] = value<T>(rank, i);
    return result;
  }
  Tensor tensor() { return Tensor(values.data(), kDTypeOf<T>, {static_cast<std::int64_t>(values.size())}); }
};

template <class T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0) << what << ", element " << i << " of " << got.size();
  }
}

// The sum or maximum in rank order of element i over `size` ranks.
template <class T>
T reduced(ReduceOp op, int size, std::int64_t i) {
  if constexpr (std::is_same_v<T, bf16>) {
    float acc = to_float(value<bf16>(0, i));
    for (int r = 1; r < size; ++r) {
      const float x = to_float(value<bf16>(r, i));
      acc = op == ReduceOp::kSum ? acc + x : std::max(acc, x);
    }
    return to_bf16(acc);
  } else if constexpr (std::is_integral_v<T>) {
    T acc = value<T>(0, i);
    for (int r = 1; r < size; ++r) {
      const T x = value<T>(r, i);
      acc = op == ReduceOp::kSum ? static_cast<T>(static_cast<std::uint64_t>(acc) + static_cast<std::uint64_t>(x))
                                 : std::max(acc, x);
    }
    return acc;
  } else {
    T acc = value<T>(0, i);
    for (int r = 1; r < size; ++r) acc = op == ReduceOp::kSum ? acc + value<T>(r, i) : std::max(acc, value<T>(r, i));
    return acc;
  }
}

std::string label(const char* call, DType dtype, std::int64_t n, const Communicator& group) {
  return std::string(call) + " " + std::string(name_of(dtype)) + " [" + std::to_string(n) + "] on rank " +
         std::to_string(group.rank()) + " of " + std::to_string(group.size());
}

template <class T>
void all_reduce_case(Communicator& world, Stream& stream, std::int64_t n) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    auto buffer = Buffer<T>::of_rank(world.rank(), n);
    world.all_reduce(stream, buffer.tensor(), op);
    stream.synchronize();
    Buffer<T> want(n);
    for (std::int64_t i = 0; i < n; ++i) want.values[static_cast<std::size_t>(i)] = reduced<T>(op, world.size(), i);
    expect_same_bits(buffer.values, want.values,
                     label(op == ReduceOp::kSum ? "all_reduce" : "all_reduce max", kDTypeOf<T>, n, world));
  }
}

template <class T>
void reduce_scatter_case(Communicator& world, Stream& stream, std::int64_t n) {
  auto in = Buffer<T>::of_rank(world.rank(), n * world.size());
  Buffer<T> out(n);
  Buffer<T> want(n);
  for (std::int64_t i = 0; i < n; ++i) {
    want.values[static_cast<std::size_t>(i)] = reduced<T>(ReduceOp::kSum, world.size(), world.rank() * n + i);
  }
  const std::vector<T> before = in.values;
  world.reduce_scatter(stream, in.tensor(), out.tensor());
  stream.synchronize();
  expect_same_bits(out.values, want.values, label("reduce_scatter", kDTypeOf<T>, n, world));
  expect_same_bits(in.values, before, label("input of reduce_scatter", kDTypeOf<T>, n, world));
  const Tensor own = in.tensor().slice(0, world.rank() * n, n);
  world.reduce_scatter(stream, in.tensor(), own);
  stream.synchronize();
  expect_same_bits(std::vector<T>(own.as<T>(), own.as<T>() + n), want.values,
                   label("reduce_scatter in place", kDTypeOf<T>, n, world));
}

template <class T>
void all_gather_case(Communicator& world, Stream& stream, std::int64_t n) {
  auto in = Buffer<T>::of_rank(world.rank(), n);
  Buffer<T> out(n * world.size());
  Buffer<T> want(n * world.size());
  for (int r = 0; r < world.size(); ++r) {
    for (std::int64_t i = 0; i < n; ++i) want.values[static_cast<std::size_t>(r * n + i)] = value<T>(r, i);
  }
  world.all_gather(stream, in.tensor(), out.tensor());
  stream.synchronize();
  expect_same_bits(out.values, want.values, label("all_gather", kDTypeOf<T>, n, world));
  Buffer<T> in_place(n * world.size());
  const Tensor own = in_place.tensor().slice(0, world.rank() * n, n);
  if (n > 0) std::memcpy(own.data, in.values.data(), own.bytes());
  world.all_gather(stream, own, in_place.tensor());
  stream.synchronize();
  expect_same_bits(in_place.values, want.values, label("all_gather in place", kDTypeOf<T>, n, world));
}

template <class T>
void all_to_all_case(Communicator& world, Stream& stream, std::int64_t n) {
  auto in = Buffer<T>::of_rank(world.rank(), n * world.size());
  Buffer<T> out(n * world.size());
  Buffer<T> want(n * world.size());
  for (int r = 0; r < world.size(); ++r) {
    for (std::int64_t i = 0; i < n; ++i)
      want.values[static_cast<std::size_t>(r * n + i)] = value<T>(r, world.rank() * n + i);
  }
  world.all_to_all(stream, in.tensor(), out.tensor());
  stream.synchronize();
  expect_same_bits(out.values, want.values, label("all_to_all", kDTypeOf<T>, n, world));
}

// Rows that `from` sends to `to`: some zero, some many.
std::int64_t rows_between(int from, int to, int round) {
  const int h = (from * 7 + to * 3 + round) % 5;
  return h == 0 ? 0 : h * (round == 2 ? 6001 : 3);
}

template <class T>
void all_to_all_v_case(Communicator& world, Stream& stream, int round) {
  constexpr std::int64_t kColumns = 3;
  const int size = world.size();
  std::vector<std::int64_t> in_rows;
  std::vector<std::int64_t> out_rows;
  for (int r = 0; r < size; ++r) {
    in_rows.push_back(rows_between(world.rank(), r, round));
    out_rows.push_back(rows_between(r, world.rank(), round));
  }
  const std::int64_t in_total = std::accumulate(in_rows.begin(), in_rows.end(), std::int64_t{0});
  const std::int64_t out_total = std::accumulate(out_rows.begin(), out_rows.end(), std::int64_t{0});
  const std::int64_t spare = 2;  // rows beyond the counts stay as they are
  auto in = Buffer<T>::of_rank(world.rank(), (in_total + spare) * kColumns);
  Buffer<T> out((out_total + spare) * kColumns);
  Buffer<T> want((out_total + spare) * kColumns);
  std::size_t at = 0;
  for (int from = 0; from < size; ++from) {
    std::int64_t first = 0;
    for (int to = 0; to < world.rank(); ++to) first += rows_between(from, to, round);
    for (std::int64_t i = 0; i < rows_between(from, world.rank(), round) * kColumns; ++i) {
      want.values[at++] = value<T>(from, first * kColumns + i);
    }
  }
  world.all_to_all_v(stream, in.tensor().view({in_total + spare, kColumns}), in_rows,
                     out.tensor().view({out_total + spare, kColumns}), out_rows);
  stream.synchronize();
  expect_same_bits(out.values, want.values, label("all_to_all_v", kDTypeOf<T>, out_total, world));
}

template <class T>
void broadcast_case(Communicator& world, Stream& stream, std::int64_t n) {
  for (int root = 0; root < world.size(); ++root) {
    auto buffer = Buffer<T>::of_rank(world.rank() + 100, n);
    const auto want = Buffer<T>::of_rank(root + 100, n);
    world.broadcast(stream, buffer.tensor(), root);
    stream.synchronize();
    expect_same_bits(buffer.values, want.values, label("broadcast", kDTypeOf<T>, n, world));
  }
}

// check.operator()<T>(n) for each dtype that can be reduced and each size.
template <class Check>
void for_all_dtypes_and_sizes(Check check) {
  for (std::int64_t n : kSizes) {
    check.template operator()<float>(n);
    check.template operator()<bf16>(n);
    check.template operator()<double>(n);
    check.template operator()<std::int32_t>(n);
    check.template operator()<std::int64_t>(n);
  }
  check.template operator()<float>(kLarge);
  check.template operator()<bf16>(kLarge);
}

Stream cpu_stream(const std::string& name) { return Stream(DeviceType::kCpu, name); }

}  // namespace

void check_all_reduce(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_reduce_case<T>(world, stream, n); });
  // Each rank is NaN in one place.
  std::vector<float> x(static_cast<std::size_t>(world.size()) + 1, static_cast<float>(world.rank()));
  x[static_cast<std::size_t>(world.rank())] = std::numeric_limits<float>::quiet_NaN();
  world.all_reduce(stream, Tensor(x.data(), DType::kFp32, {world.size() + 1}), ReduceOp::kMax);
  stream.synchronize();
  for (std::size_t i = 0; i + 1 < x.size(); ++i) EXPECT_TRUE(std::isnan(x[i])) << i;
  EXPECT_EQ(x.back(), static_cast<float>(world.size() - 1));
}

void check_reduce_scatter(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { reduce_scatter_case<T>(world, stream, n); });
}

void check_all_gather(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_gather_case<T>(world, stream, n); });
  all_gather_case<std::uint8_t>(world, stream, 1025);
}

void check_all_to_all(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_to_all_case<T>(world, stream, n); });
  all_to_all_case<std::uint8_t>(world, stream, 1025);
}

void check_all_to_all_v(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for (int round = 0; round < 3; ++round) {
    all_to_all_v_case<float>(world, stream, round);
    all_to_all_v_case<bf16>(world, stream, round);
    all_to_all_v_case<std::int64_t>(world, stream, round);
    all_to_all_v_case<std::uint8_t>(world, stream, round);
  }
}

void check_broadcast(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { broadcast_case<T>(world, stream, n); });
  broadcast_case<std::uint8_t>(world, stream, 1025);
}

void check_send_receive(Communicator& world) {
  if (world.size() == 1) return;
  Stream sends = cpu_stream("send");
  Stream receives = cpu_stream("receive");
  const std::unique_ptr<Communicator> back = world.duplicate("receiving side");
  const AbortOnUnwind guard(world);
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1025}, kLarge}) {
    // Even ranks send first, odd ones receive first; with an odd number of ranks, 0 waits for the last one at the end.
    auto out = Buffer<float>::of_rank(world.rank(), n);
    Buffer<float> in(n);
    if (world.rank() % 2 == 0) {
      world.send(sends, out.tensor(), next);
      world.receive(sends, in.tensor(), previous);
    } else {
      world.receive(sends, in.tensor(), previous);
      world.send(sends, out.tensor(), next);
    }
    sends.synchronize();
    expect_same_bits(in.values, Buffer<float>::of_rank(previous, n).values, label("ring", DType::kFp32, n, world));
  }
  // Both directions at once, on two streams with a group each; two messages in a row arrive in order.
  if (world.rank() < 2) {
    const int peer = 1 - world.rank();
    auto mine_first = Buffer<double>::of_rank(world.rank(), 5);
    auto mine_second = Buffer<double>::of_rank(world.rank() + 10, 5);
    Buffer<double> first(5);
    Buffer<double> second(5);
    Communicator& sending = world.rank() == 0 ? world : *back;
    Communicator& receiving = world.rank() == 0 ? *back : world;
    sending.send(sends, mine_first.tensor(), peer);
    sending.send(sends, mine_second.tensor(), peer);
    receiving.receive(receives, first.tensor(), peer);
    receiving.receive(receives, second.tensor(), peer);
    sends.synchronize();
    receives.synchronize();
    expect_same_bits(first.values, Buffer<double>::of_rank(peer, 5).values, "first message");
    expect_same_bits(second.values, Buffer<double>::of_rank(peer + 10, 5).values, "second message");
  }
}

void check_host_calls(Communicator& world) {
  for (int round = 0; round < 20; ++round) {
    world.host_barrier();
    const std::string mine(static_cast<std::size_t>(world.rank() * 1000 + round),
                           static_cast<char>('a' + world.rank()));
    const std::vector<std::string> all = world.host_all_gather(mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
    for (int r = 0; r < world.size(); ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)],
                std::string(static_cast<std::size_t>(r * 1000 + round), static_cast<char>('a' + r)));
    }
    const int root = round % world.size();
    EXPECT_EQ(world.host_broadcast("from " + std::to_string(world.rank()), root), "from " + std::to_string(root));
    EXPECT_FALSE(world.host_any(false));
    EXPECT_TRUE(world.host_any(world.rank() == root));
  }
}

void check_split(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  // Odd and even ranks, in descending order.
  const std::unique_ptr<Communicator> half = world.split(world.rank() % 2, -world.rank(), "half");
  EXPECT_EQ(half->name(), "half");
  EXPECT_EQ(half->size(), (world.size() + 1 - world.rank() % 2) / 2);
  const std::vector<std::string> members = half->host_all_gather(std::to_string(world.rank()));
  for (int r = 0; r < half->size(); ++r) {
    EXPECT_EQ(members[static_cast<std::size_t>(r)], std::to_string(world.rank() % 2 + 2 * (half->size() - 1 - r)));
  }
  EXPECT_EQ(members[static_cast<std::size_t>(half->rank())], std::to_string(world.rank()));
  all_reduce_case<float>(*half, stream, 1025);
  all_gather_case<std::int32_t>(*half, stream, 7);
  // All but rank 0, which is alone; then one rank each, inside that group.
  std::vector<int> ranks{0};
  if (world.rank() > 0) {
    ranks.resize(static_cast<std::size_t>(world.size()) - 1);
    std::iota(ranks.begin(), ranks.end(), 1);
  }
  const std::unique_ptr<Communicator> others = world.subgroup(ranks, "others");
  EXPECT_EQ(others->size(), static_cast<int>(ranks.size()));
  EXPECT_EQ(others->rank(), world.rank() == 0 ? 0 : world.rank() - 1);
  all_reduce_case<bf16>(*others, stream, 1025);
  const std::unique_ptr<Communicator> alone = others->split(others->rank(), 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  reduce_scatter_case<float>(*alone, stream, 7);
  all_to_all_case<float>(*alone, stream, 7);
  EXPECT_THROW(world.split(-1, 0, "none"), Error);
}

void check_concurrent_groups(Communicator& world) {
  const std::unique_ptr<Communicator> first = world.duplicate("first");
  const std::unique_ptr<Communicator> second = world.split(0, -world.rank(), "second");
  Stream a = cpu_stream("a");
  Stream b = cpu_stream("b");
  const AbortOnUnwind guard(world);
  constexpr std::int64_t kCount = 5000;
  constexpr int kRounds = 20;
  std::vector<Buffer<float>> on_a(kRounds, Buffer<float>::of_rank(first->rank(), kCount));
  std::vector<Buffer<float>> on_b(kRounds, Buffer<float>::of_rank(second->rank(), kCount));
  for (int round = 0; round < kRounds; ++round) {
    // The host enqueues in an order of its own on each rank.
    const auto index = static_cast<std::size_t>(round);
    if ((round + world.rank()) % 2 == 0) first->all_reduce(a, on_a[index].tensor());
    second->all_reduce(b, on_b[index].tensor(), ReduceOp::kMax);
    if ((round + world.rank()) % 2 != 0) first->all_reduce(a, on_a[index].tensor());
    if (round % 5 == 0) world.host_barrier();
  }
  a.synchronize();
  b.synchronize();
  for (int round = 0; round < kRounds; ++round) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto r = static_cast<std::size_t>(round);
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(on_a[r].values[at], reduced<float>(ReduceOp::kSum, world.size(), i));
      ASSERT_EQ(on_b[r].values[at], reduced<float>(ReduceOp::kMax, world.size(), i));
    }
  }
}

void check_refused_calls(Communicator& world) {
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  const int size = world.size();
  Buffer<float> small(3);
  Buffer<float> odd(3 * size + 1);
  Buffer<std::int32_t> integers(3 * size);
  Buffer<std::uint8_t> bytes(3);
  EXPECT_THROW(world.all_reduce(stream, bytes.tensor()), Error);
  EXPECT_THROW(world.all_reduce(stream, Tensor(nullptr, DType::kFp32, {3})), Error);
  Buffer<float> grid(6);
  EXPECT_THROW(world.all_reduce(stream, grid.tensor().view({2, 3}).slice(1, 0, 1)), Error) << "strided";
  EXPECT_THROW(world.reduce_scatter(stream, odd.tensor(), small.tensor()), Error);
  EXPECT_THROW(world.all_gather(stream, small.tensor(), odd.tensor()), Error);
  EXPECT_THROW(world.all_gather(stream, small.tensor(), integers.tensor()), Error);
  EXPECT_THROW(
      world.all_gather(stream, odd.tensor().slice(0, world.rank() * 3 + 1, 3), odd.tensor().slice(0, 0, 3 * size)),
      Error)
      << "overlaps another rank's part, or begins inside its own";
  EXPECT_THROW(world.all_to_all(stream, small.tensor(), small.tensor()), Error) << "in and out overlap";
  EXPECT_THROW(world.all_to_all_v(stream, small.tensor(), {}, odd.tensor(), {}), Error);
  const std::vector<std::int64_t> negative(static_cast<std::size_t>(size), -1);
  EXPECT_THROW(world.all_to_all_v(stream, small.tensor(), negative, odd.tensor(), negative), Error);
  const std::vector<std::int64_t> many(static_cast<std::size_t>(size), 4);
  EXPECT_THROW(world.all_to_all_v(stream, small.tensor(), many, odd.tensor(), many), Error);
  EXPECT_THROW(world.broadcast(stream, small.tensor(), size), Error);
  EXPECT_THROW(world.broadcast(stream, small.tensor(), -1), Error);
  EXPECT_THROW(world.send(stream, small.tensor(), world.rank()), Error);
  EXPECT_THROW(world.receive(stream, small.tensor(), world.rank()), Error);
  EXPECT_THROW(world.send(stream, small.tensor(), size), Error);
  all_reduce_case<float>(world, stream, 7);
}

void check_stats(Communicator& world) {
  const std::unique_ptr<Communicator> group = world.duplicate("counted");
  Stream stream = cpu_stream("comm");
  const AbortOnUnwind guard(world);
  Buffer<float> buffer(10);
  Buffer<float> gathered(10 * world.size());
  group->all_reduce(stream, buffer.tensor());
  group->all_gather(stream, buffer.tensor(), gathered.tensor());
  group->broadcast(stream, buffer.tensor(), 0);
  stream.synchronize();
  const bool alone = world.size() == 1;
  EXPECT_EQ(group->stats().collectives, alone ? 0 : 3);
  EXPECT_EQ(group->stats().bytes, alone ? 0 : world.rank() == 0 ? 120 : 80);
}

}  // namespace megalith::test
