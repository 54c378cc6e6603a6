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
#include "parallel/comm/sequence_check.h"
#include "tests/distributed/collective_reference.h"

namespace megalith::test {

namespace {

constexpr std::int64_t kSizes[] = {0, 1, 2, 7, 64, 1025};

template <class T>
void all_reduce_case(Communicator& world, Rig& rig, std::int64_t n) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    auto buffer = rig.of_rank<T>(world.rank(), n);
    rig.run([&] { launch(rig.stream(), AllReduce{.group = world, .buffer = buffer.tensor(), .op = op}); }, buffer);
    std::vector<T> want(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      want[static_cast<std::size_t>(i)] = reduced<T>(rig.form(), op, world.size(), i);
    }
    expect_same_bits(buffer.values, want,
                     label(op == ReduceOp::kSum ? "all_reduce" : "all_reduce max", kDTypeOf<T>, n, world));
  }
}

template <class T>
void reduce_scatter_case(Communicator& world, Rig& rig, std::int64_t n) {
  auto in = rig.of_rank<T>(world.rank(), n * world.size());
  auto out = rig.empty<T>(n);
  std::vector<T> want(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    want[static_cast<std::size_t>(i)] = reduced<T>(rig.form(), ReduceOp::kSum, world.size(), world.rank() * n + i);
  }
  const std::vector<T> before = in.values;
  rig.run([&] { launch(rig.stream(), ReduceScatter{.group = world, .in = in.tensor(), .out = out.tensor()}); }, in,
          out);
  expect_same_bits(out.values, want, label("reduce_scatter", kDTypeOf<T>, n, world));
  expect_same_bits(in.values, before, label("input of reduce_scatter", kDTypeOf<T>, n, world));
  rig.run(
      [&] {
        launch(rig.stream(),
               ReduceScatter{.group = world, .in = in.tensor(), .out = in.tensor().slice(0, world.rank() * n, n)});
      },
      in);
  const T* own = in.values.data() + world.rank() * n;
  expect_same_bits(std::vector<T>(own, own + n), want, label("reduce_scatter in place", kDTypeOf<T>, n, world));
}

template <class T>
void all_gather_case(Communicator& world, Rig& rig, std::int64_t n) {
  auto in = rig.of_rank<T>(world.rank(), n);
  auto out = rig.empty<T>(n * world.size());
  std::vector<T> want;
  for (int r = 0; r < world.size(); ++r) {
    for (std::int64_t i = 0; i < n; ++i) want.push_back(value<T>(rig.form(), r, i));
  }
  rig.run([&] { launch(rig.stream(), AllGather{.group = world, .in = in.tensor(), .out = out.tensor()}); }, in, out);
  expect_same_bits(out.values, want, label("all_gather", kDTypeOf<T>, n, world));
  auto in_place = rig.empty<T>(n * world.size());
  if (n > 0) {
    std::memcpy(static_cast<void*>(in_place.values.data() + world.rank() * n), in.values.data(),
                static_cast<std::size_t>(n) * sizeof(T));
  }
  rig.run(
      [&] {
        launch(
            rig.stream(),
            AllGather{.group = world, .in = in_place.tensor().slice(0, world.rank() * n, n), .out = in_place.tensor()});
      },
      in_place);
  expect_same_bits(in_place.values, want, label("all_gather in place", kDTypeOf<T>, n, world));
}

template <class T>
void all_to_all_case(Communicator& world, Rig& rig, std::int64_t n) {
  auto in = rig.of_rank<T>(world.rank(), n * world.size());
  auto out = rig.empty<T>(n * world.size());
  std::vector<T> want;
  for (int r = 0; r < world.size(); ++r) {
    for (std::int64_t i = 0; i < n; ++i) want.push_back(value<T>(rig.form(), r, world.rank() * n + i));
  }
  rig.run([&] { launch(rig.stream(), AllToAll{.group = world, .in = in.tensor(), .out = out.tensor()}); }, in, out);
  expect_same_bits(out.values, want, label("all_to_all", kDTypeOf<T>, n, world));
}

// Rows that `from` sends to `to`: some zero, some many.
std::int64_t rows_between(int from, int to, int round) {
  const int h = (from * 7 + to * 3 + round) % 5;
  return h == 0 ? 0 : h * (round == 2 ? 6001 : 3);
}

template <class T>
void all_to_all_v_case(Communicator& world, Rig& rig, int round) {
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
  auto in = rig.of_rank<T>(world.rank(), (in_total + spare) * kColumns);
  auto out = rig.empty<T>((out_total + spare) * kColumns);
  std::vector<T> want = out.values;
  std::size_t at = 0;
  for (int from = 0; from < size; ++from) {
    std::int64_t first = 0;
    for (int to = 0; to < world.rank(); ++to) first += rows_between(from, to, round);
    for (std::int64_t i = 0; i < rows_between(from, world.rank(), round) * kColumns; ++i) {
      want[at++] = value<T>(rig.form(), from, first * kColumns + i);
    }
  }
  rig.run(
      [&] {
        launch(rig.stream(), AllToAll{.group = world,
                                      .in = in.tensor().view({in_total + spare, kColumns}),
                                      .out = out.tensor().view({out_total + spare, kColumns}),
                                      .in_rows = in_rows,
                                      .out_rows = out_rows});
      },
      in, out);
  expect_same_bits(out.values, want, label("all_to_all_v", kDTypeOf<T>, out_total, world));
}

template <class T>
void broadcast_case(Communicator& world, Rig& rig, std::int64_t n) {
  for (int root = 0; root < world.size(); ++root) {
    auto buffer = rig.of_rank<T>(world.rank() + 100, n);
    const auto want = rig.of_rank<T>(root + 100, n);
    rig.run([&] { launch(rig.stream(), Broadcast{.group = world, .buffer = buffer.tensor(), .root = root}); }, buffer);
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

}  // namespace

void check_all_reduce(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_reduce_case<T>(world, rig, n); });
  if (form.device == DeviceType::kCuda) {  // NCCL uses another protocol for large messages
    all_reduce_case<float>(world, rig, 5'000'011);
    all_reduce_case<bf16>(world, rig, 5'000'011);
  }
}

void check_reduce_scatter(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { reduce_scatter_case<T>(world, rig, n); });
}

void check_all_gather(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_gather_case<T>(world, rig, n); });
  all_gather_case<std::uint8_t>(world, rig, 1025);
}

void check_all_to_all(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { all_to_all_case<T>(world, rig, n); });
  all_to_all_case<std::uint8_t>(world, rig, 1025);
}

void check_all_to_all_v(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for (int round = 0; round < 3; ++round) {
    all_to_all_v_case<float>(world, rig, round);
    all_to_all_v_case<bf16>(world, rig, round);
    all_to_all_v_case<std::int64_t>(world, rig, round);
    all_to_all_v_case<std::uint8_t>(world, rig, round);
  }
}

void check_shift(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  const auto shift_case = [&]<class T>(std::int64_t n, int step) {
    auto in = rig.of_rank<T>(world.rank(), n);
    auto out = rig.empty<T>(n);
    rig.run([&] { launch(rig.stream(), Shift{.group = world, .in = in.tensor(), .out = out.tensor(), .step = step}); },
            in, out);
    const int from = (world.rank() - step + world.size()) % world.size();
    expect_same_bits(out.values, rig.of_rank<T>(from, n).values, label("shift", kDTypeOf<T>, n, world));
  };
  for (int step = 1; step < world.size(); ++step) {
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1025}, kLarge}) {
      shift_case.template operator()<float>(n, step);
      shift_case.template operator()<bf16>(n, step);
      shift_case.template operator()<std::uint8_t>(n, step);
    }
  }
}

void check_broadcast(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  const AbortOnUnwind guard(world);
  for_all_dtypes_and_sizes([&]<class T>(std::int64_t n) { broadcast_case<T>(world, rig, n); });
  broadcast_case<std::uint8_t>(world, rig, 1025);
}

void check_split(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
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
  all_reduce_case<float>(*half, rig, 1025);
  all_gather_case<std::int32_t>(*half, rig, 7);
  // All ranks except 0, which forms a separate group; then groups of one rank, inside that group.
  std::vector<int> ranks{0};
  if (world.rank() > 0) {
    ranks.resize(static_cast<std::size_t>(world.size()) - 1);
    std::iota(ranks.begin(), ranks.end(), 1);
  }
  const std::unique_ptr<Communicator> others = world.subgroup(ranks, "others");
  EXPECT_EQ(others->size(), static_cast<int>(ranks.size()));
  EXPECT_EQ(others->rank(), world.rank() == 0 ? 0 : world.rank() - 1);
  all_reduce_case<bf16>(*others, rig, 1025);
  const std::unique_ptr<Communicator> alone = others->split(others->rank(), 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  reduce_scatter_case<float>(*alone, rig, 7);
  all_to_all_case<float>(*alone, rig, 7);
  EXPECT_THROW(world.split(-1, 0, "none"), Error);
}

void check_concurrent_groups(Communicator& world, const CollectiveForm& form) {
  const std::unique_ptr<Communicator> first = world.duplicate("first");
  const std::unique_ptr<Communicator> second = world.split(0, -world.rank(), "second");
  Rig rig(form);
  Stream& a = rig.stream();
  Stream b(form.device, "b");
  const AbortOnUnwind guard(world);
  constexpr std::int64_t kCount = 5000;
  constexpr int kRounds = 20;
  all_reduce_case<float>(*first, rig, kCount);  // NCCL connects in these, so they have one order
  all_reduce_case<float>(*second, rig, kCount);
  std::vector<Buffer<float>> on_a;
  std::vector<Buffer<float>> on_b;
  for (int round = 0; round < kRounds; ++round) {
    on_a.push_back(rig.of_rank<float>(first->rank(), kCount));
    on_b.push_back(rig.of_rank<float>(second->rank(), kCount));
    on_a.back().upload(a);
    on_b.back().upload(b);
  }
  for (int round = 0; round < kRounds; ++round) {
    // The host enqueues in a different order on each rank.
    const auto index = static_cast<std::size_t>(round);
    if ((round + world.rank()) % 2 == 0) launch(a, AllReduce{.group = *first, .buffer = on_a[index].tensor()});
    launch(b, AllReduce{.group = *second, .buffer = on_b[index].tensor(), .op = ReduceOp::kMax});
    if ((round + world.rank()) % 2 != 0) launch(a, AllReduce{.group = *first, .buffer = on_a[index].tensor()});
    if (round % 5 == 0) world.host_barrier();
  }
  for (auto& buffer : on_a) buffer.download(a);
  for (auto& buffer : on_b) buffer.download(b);
  a.synchronize();
  b.synchronize();
  for (int round = 0; round < kRounds; ++round) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto r = static_cast<std::size_t>(round);
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(on_a[r].values[at], reduced<float>(form, ReduceOp::kSum, world.size(), i));
      ASSERT_EQ(on_b[r].values[at], reduced<float>(form, ReduceOp::kMax, world.size(), i));
    }
  }
}

void check_stats(Communicator& world, const CollectiveForm& form) {
  const std::unique_ptr<Communicator> group = world.duplicate("counted");
  Rig rig(form);
  Stream& stream = rig.stream();
  const AbortOnUnwind guard(world);
  auto buffer = rig.empty<float>(10);
  auto gathered = rig.empty<float>(10 * world.size());
  rig.run(
      [&] {
        launch(stream, AllReduce{.group = *group, .buffer = buffer.tensor()});
        launch(stream, AllGather{.group = *group, .in = buffer.tensor(), .out = gathered.tensor(), .label = "all"});
        launch(stream, Broadcast{.group = *group, .buffer = buffer.tensor()});
      },
      buffer, gathered);
  if (world.size() == 1) {
    EXPECT_EQ(group->stats().collectives, 0);
    EXPECT_EQ(group->stats().bytes, 0);
    return;
  }
  EXPECT_EQ(group->stats().collectives, rig.runs() * 3);
  EXPECT_EQ(group->stats().bytes, rig.runs() * (world.rank() == 0 ? 120 : 80));
  const std::vector<CollectiveCall> calls = group->recorder().last();
  ASSERT_EQ(calls.size(), static_cast<std::size_t>(rig.runs() * 3));
  EXPECT_EQ(to_string(calls[calls.size() - 2]),
            "all_gather #" + std::to_string(rig.runs() * 3 - 1) + " (all: fp32, 10 elements)");
  EXPECT_EQ(difference_of_sequences(*group), "");
}

}  // namespace megalith::test
