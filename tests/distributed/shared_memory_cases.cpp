// Collectives of ranks that read each other's memory.
#include "tests/distributed/collective_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/bf16.h"
#include "parallel/comm/memory_sharing.h"
#include "tests/distributed/collective_reference.h"

namespace megalith::test {

namespace {

// A shift overwrites the summed values after each sum; a lagging rank must still find values that it reads later.
template <class T>
void sum_of_shared_memory_case(Communicator& world, const CollectiveForm& form, std::int64_t n, std::int64_t of_peer) {
  const int size = world.size(), rank = world.rank();
  const std::int64_t half = n * size;
  Rig rig(form);
  auto memory = rig.of_rank<T>(rank, 2 * half), out = rig.empty<T>(n), copies = rig.empty<T>((size - 1) * of_peer);
  const std::unique_ptr<Communicator> group = world.duplicate("shared sum");
  const AbortOnUnwind guard(world);
  const Tensor all = memory.tensor(), first = all.slice(0, 0, half), second = all.slice(0, half, half);
  MemorySharing* const sharing = group->memory_sharing();
  const bool shared = sharing != nullptr && sharing->share_memory(all.data, all.bytes(), 1);
  rig.run(
      [&] {
        const auto sum = [&](const Tensor& to, bool accumulate) {
          if (shared) {
            launch(rig.stream(),
                   SharedReduceScatter{
                       .group = *group, .in = first, .out = to, .copies = copies.tensor(), .accumulate = accumulate});
          } else {
            launch(rig.stream(), ReduceScatter{.group = *group, .in = first, .out = to});
          }
        };
        sum(out.tensor(), false);
        launch(rig.stream(), Shift{.group = *group, .in = second, .out = first, .step = 1});
        sum(out.tensor(), true);
        sum(first.slice(0, rank * n, n), false);
      },
      memory, out, copies);
  std::vector<T> want_out, want_part;
  for (std::int64_t i = 0; i < n; ++i) {
    // The shift passes each rank's values on by one, so that the next sum has another order.
    std::vector<T> parts;
    for (int r = 0; r < size; ++r) parts.push_back(value<T>(form, (r + size - 1) % size, half + rank * n + i));
    want_part.push_back(sum_in_order(parts));
    want_out.push_back(want_part.back());
    if (!shared) continue;
    const T before = reduced<T>(form, ReduceOp::kSum, size, rank * n + i);
    want_out.back() = sum_in_order(std::vector<T>{before, want_part.back()});
  }
  expect_same_bits(out.values, want_out, label("sum of shared memory", kDTypeOf<T>, n, *group));
  const T* own = memory.values.data() + rank * n;
  expect_same_bits(std::vector<T>(own, own + n), want_part, label("the same in place", kDTypeOf<T>, n, *group));
  if (sharing != nullptr) sharing->unshare_memory();
  EXPECT_TRUE(shared || form.device != DeviceType::kCuda) << "these GPUs cannot read each other's memory";
}

// Parts of bf16 are summed in fp32, without rounding; the second of two sums is added to the first.
void widened_sum_of_shared_memory_case(Communicator& world, const CollectiveForm& form, std::int64_t n) {
  const int size = world.size(), rank = world.rank();
  Rig rig(form);
  auto memory = rig.of_rank<bf16>(rank, n * size), copies = rig.empty<bf16>((size - 1) * 1024);
  auto out = rig.empty<float>(n);
  const std::unique_ptr<Communicator> group = world.duplicate("widened sum");
  const AbortOnUnwind guard(world);
  MemorySharing* const sharing = group->memory_sharing();
  if (sharing == nullptr || !sharing->share_memory(memory.tensor().data, memory.tensor().bytes(), 1)) return;
  rig.run(
      [&] {
        SharedReduceScatter sum{.group = *group, .in = memory.tensor(), .out = out.tensor(), .copies = copies.tensor()};
        launch(rig.stream(), sum);
        sum.accumulate = true;
        launch(rig.stream(), sum);
      },
      memory, copies, out);
  std::vector<float> want;
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<float> parts;
    for (int r = 0; r < size; ++r) parts.push_back(to_float(value<bf16>(form, r, rank * n + i)));
    const float sum = sum_in_order(parts);
    want.push_back(sum + sum);
  }
  expect_same_bits(out.values, want, label("widened sum of shared memory", DType::kBf16, n, *group));
  sharing->unshare_memory();
}

}  // namespace

// Aligned and not, in one round and in several.
void check_sum_of_shared_memory(Communicator& world, const CollectiveForm& form) {
  if (world.size() == 1) return;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1024}, std::int64_t{70'001}, std::int64_t{262'144}}) {
    for (const std::int64_t of_peer : {8, 1024}) {  // elements of a copy: no second half, and two
      if (n > 2000 && of_peer == 8) continue;
      sum_of_shared_memory_case<float>(world, form, n, of_peer);
      sum_of_shared_memory_case<bf16>(world, form, n, of_peer);
    }
    widened_sum_of_shared_memory_case(world, form, n);
  }
}

// A shift overwrites the gathered values after the gather, as above.
void check_gather_of_shared_memory(Communicator& world, const CollectiveForm& form) {
  const int size = world.size(), rank = world.rank();
  if (size == 1) return;
  Rig rig(form);
  constexpr std::int64_t kPart = 70'001;
  auto memory = rig.of_rank<bf16>(rank, 2 * kPart), out = rig.empty<bf16>(2 * size * kPart);
  const std::unique_ptr<Communicator> group = world.duplicate("shared gather");
  const AbortOnUnwind guard(world);
  const Tensor all = memory.tensor(), first = all.slice(0, 0, kPart), second = all.slice(0, kPart, kPart);
  MemorySharing* const sharing = group->memory_sharing();
  const bool shared = sharing != nullptr && sharing->share_memory(all.data, all.bytes(), 1);
  const auto gather = [&](int which) {
    const Tensor to = out.tensor().slice(0, which * size * kPart, size * kPart);
    if (shared) {
      launch(rig.stream(), SharedAllGather{.group = *group, .in = first, .out = to});
    } else {
      launch(rig.stream(), AllGather{.group = *group, .in = first, .out = to});
    }
  };
  rig.run(
      [&] {
        gather(0);
        launch(rig.stream(), Shift{.group = *group, .in = second, .out = first, .step = 1});
        gather(1);
      },
      memory, out);
  std::vector<bf16> want;
  for (const bool shifted : {false, true}) {
    for (int r = 0; r < size; ++r) {
      for (std::int64_t i = 0; i < kPart; ++i)
        want.push_back(value<bf16>(form, shifted ? (r + size - 1) % size : r, shifted ? kPart + i : i));
    }
  }
  expect_same_bits(out.values, want, label("gather of shared memory", DType::kBf16, kPart, *group));
  if (sharing != nullptr) sharing->unshare_memory();
  EXPECT_TRUE(shared || form.device != DeviceType::kCuda) << "these GPUs cannot read each other's memory";
}

// The lower rank of a pair sends several messages into one buffer of the other, which keeps each. Then one returns. The
// ranks' memory has different sizes, and buffers at different offsets.
void check_messages_to_shared_memory(Communicator& world, const CollectiveForm& form) {
  const int size = world.size(), rank = world.rank(), peer = rank ^ 1;
  if (size == 1) return;
  Rig rig(form);
  constexpr std::int64_t kPart = 70'001;
  constexpr int kMessages = 5;
  const auto offset_of = [](int r) { return std::int64_t{128} * (r + 1); };  // elements
  auto memory = rig.empty<bf16>(2 * offset_of(rank) + kPart);
  auto sent = rig.of_rank<bf16>(rank, kMessages * kPart), kept = rig.empty<bf16>(kMessages * kPart);
  const std::unique_ptr<Communicator> group = world.duplicate("messages");
  const std::unique_ptr<Communicator> own = world.subgroup(std::vector<int>{rank}, "own");  // its gather is a copy
  const AbortOnUnwind guard(world);
  const Tensor all = memory.tensor(), buffer = all.slice(0, offset_of(rank), kPart);
  MemorySharing* const sharing = group->memory_sharing();
  const bool shared = sharing != nullptr && sharing->share_memory(all.data, all.bytes(), std::nullopt);
  const auto part = [](const Tensor& whole, int message) { return whole.slice(0, message * kPart, kPart); };
  const auto send = [&](int message) {
    Send op{.group = *group, .buffer = part(sent.tensor(), message), .peer = peer};
    if (shared) op.place = static_cast<std::size_t>(offset_of(peer)) * sizeof(bf16);
    launch(rig.stream(), op);
  };
  const auto receive = [&](int message) {
    launch(rig.stream(), Receive{.group = *group, .buffer = buffer, .peer = peer, .placed = shared});
    launch(rig.stream(), AllGather{.group = *own, .in = buffer, .out = part(kept.tensor(), message)});
  };
  const bool is_paired = peer < size, is_lower = rank < peer;
  const std::vector<bf16> before = kept.values;
  rig.run(
      [&] {
        if (!is_paired) return;
        for (int m = 0; m < kMessages; ++m) is_lower ? send(m) : receive(m);
        is_lower ? receive(0) : send(1);
      },
      memory, sent, kept);
  std::vector<bf16> want = before;
  const std::vector<bf16> theirs = rig.of_rank<bf16>(peer, kMessages * kPart).values;
  if (is_paired && is_lower) std::copy_n(theirs.begin() + kPart, kPart, want.begin());
  if (is_paired && !is_lower) want = theirs;
  expect_same_bits(kept.values, want, label("messages", DType::kBf16, kPart, *group));
  world.host_barrier();  // a late rank may still write
  if (sharing != nullptr) sharing->unshare_memory();
  if (form.device == DeviceType::kCuda && !shared) GTEST_SKIP() << "these GPUs cannot map each other's memory";
}

// A group whose ranks see each other's memory gathers with shifts only and, in the same run, shifts all results by one.
void check_shift_of_shared_memory(Communicator& world, const CollectiveForm& form) {
  const int size = world.size();
  if (size == 1) return;
  Rig rig(form);
  constexpr std::int64_t kPart = 70'001;
  auto memory = rig.empty<bf16>(3 * size * kPart);
  const std::unique_ptr<Communicator> group = world.duplicate("shared");
  const AbortOnUnwind guard(world);
  const Tensor all = memory.tensor();
  MemorySharing* const sharing = group->memory_sharing();
  const bool shared = sharing != nullptr && sharing->share_memory(all.data, all.bytes(), 1);
  const auto part = [&](int index) { return all.slice(0, index * kPart, kPart); };
  const auto below = [&](int step) { return (group->rank() - step + 2 * size) % size; };
  for (std::int64_t i = 0; i < kPart; ++i) {
    memory.values[static_cast<std::size_t>(i)] = value<bf16>(form, group->rank(), i);
  }
  auto want = memory.values;
  const auto expect = [&](int index, int from) {
    for (std::int64_t i = 0; i < kPart; ++i) {
      want[static_cast<std::size_t>(index * kPart + i)] = value<bf16>(form, from, i);
    }
  };
  for (int step = 1; step < size; ++step) expect(step, below(step));
  for (int step = 0; step < size; ++step) expect(size + step, below(step + 1));
  for (int step = 1; step < size; ++step) expect(2 * size + step, below(2 * step));
  const std::int64_t calls_before = group->stats().collectives;
  rig.run(
      [&] {
        for (int step = 1; step < size; ++step) {
          launch(
              rig.stream(),
              Shift{.group = *group, .in = part(0), .out = part(step), .step = step, .series = ShiftSeries::kOneInput});
        }
        for (int step = 0; step < size; ++step)
          launch(rig.stream(), Shift{.group = *group, .in = part(step), .out = part(size + step), .step = 1});
        for (int step = 1; step < size; ++step) {
          launch(rig.stream(), Shift{.group = *group,
                                     .in = part(step),
                                     .out = part(2 * size + step),
                                     .step = step,
                                     .series = ShiftSeries::kManyInputs});
        }
      },
      memory);
  expect_same_bits(memory.values, want, label("shifts", DType::kBf16, 3 * size * kPart, *group));
  EXPECT_EQ(group->stats().collectives - calls_before, rig.runs() * (3 * size - 2));

  if (sharing != nullptr) {
    sharing->unshare_memory();
    EXPECT_FALSE(sharing->share_memory(all.data, all.bytes(), static_cast<std::uint64_t>(group->rank())))
        << "what lies elsewhere on every rank";
  }
  if (form.device == DeviceType::kCuda && !shared) GTEST_SKIP() << "these GPUs cannot read each other's memory";
  EXPECT_EQ(shared, form.device == DeviceType::kCuda);
}

}  // namespace megalith::test
