// Cases of messages between two ranks, calls of the host, and rejected calls.
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
#include "tests/distributed/collective_cases.h"
#include "tests/distributed/collective_reference.h"

namespace megalith::test {

void check_send_receive(Communicator& world, const CollectiveForm& form) {
  if (world.size() == 1) return;
  Rig rig(form);
  Stream other(form.device, "other");
  const std::unique_ptr<Communicator> back = world.duplicate("receiving side");
  const AbortOnUnwind guard(world);
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const auto ring_case = [&](Communicator& group, std::int64_t n) {
    // Even ranks send first, odd ones receive first; with an odd number of ranks, 0 waits for the last one at the end.
    auto out = rig.of_rank<float>(world.rank(), n);
    auto in = rig.empty<float>(n);
    rig.run(
        [&] {
          if (world.rank() % 2 == 0) launch(rig.stream(), Send{.group = group, .buffer = out.tensor(), .peer = next});
          launch(rig.stream(), Receive{.group = group, .buffer = in.tensor(), .peer = previous});
          if (world.rank() % 2 != 0) launch(rig.stream(), Send{.group = group, .buffer = out.tensor(), .peer = next});
        },
        out, in);
    expect_same_bits(in.values, rig.of_rank<float>(previous, n).values, label("ring", DType::kFp32, n, world));
  };
  for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1025}, kLarge}) {
    ring_case(world, n);
    ring_case(*back, n);
  }
  // Both directions at once, on two streams with a group each; two messages in a row arrive in order.
  if (world.rank() < 2) {
    Stream& sends = rig.stream();
    const int peer = 1 - world.rank();
    auto mine_first = rig.of_rank<double>(world.rank(), 5);
    auto mine_second = rig.of_rank<double>(world.rank() + 10, 5);
    auto first = rig.empty<double>(5);
    auto second = rig.empty<double>(5);
    mine_first.upload(sends);
    mine_second.upload(sends);
    Communicator& sending = world.rank() == 0 ? world : *back;
    Communicator& receiving = world.rank() == 0 ? *back : world;
    launch(sends, Send{.group = sending, .buffer = mine_first.tensor(), .peer = peer});
    launch(sends, Send{.group = sending, .buffer = mine_second.tensor(), .peer = peer});
    launch(other, Receive{.group = receiving, .buffer = first.tensor(), .peer = peer});
    launch(other, Receive{.group = receiving, .buffer = second.tensor(), .peer = peer});
    first.download(other);
    second.download(other);
    sends.synchronize();
    other.synchronize();
    expect_same_bits(first.values, rig.of_rank<double>(peer, 5).values, "first message");
    expect_same_bits(second.values, rig.of_rank<double>(peer + 10, 5).values, "second message");
  }
}

void check_host_calls(Communicator& world, const CollectiveForm&) {
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

void check_refused_calls(Communicator& world, const CollectiveForm& form) {
  Rig rig(form);
  Stream& stream = rig.stream();
  const AbortOnUnwind guard(world);
  const int size = world.size();
  auto small = rig.empty<float>(3);
  auto odd = rig.empty<float>(3 * size + 1);
  auto integers = rig.empty<std::int32_t>(3 * size);
  auto bytes = rig.empty<std::uint8_t>(3);
  EXPECT_THROW(launch(stream, AllReduce{.group = world, .buffer = bytes.tensor()}), Error);
  EXPECT_THROW(launch(stream, AllReduce{.group = world, .buffer = Tensor(nullptr, DType::kFp32, {3})}), Error);
  auto grid = rig.empty<float>(6);
  EXPECT_THROW(launch(stream, AllReduce{.group = world, .buffer = grid.tensor().view({2, 3}).slice(1, 0, 1)}), Error)
      << "strided";
  EXPECT_THROW(launch(stream, ReduceScatter{.group = world, .in = odd.tensor(), .out = small.tensor()}), Error);
  EXPECT_THROW(launch(stream, AllGather{.group = world, .in = small.tensor(), .out = odd.tensor()}), Error);
  EXPECT_THROW(launch(stream, AllGather{.group = world, .in = small.tensor(), .out = integers.tensor()}), Error);
  EXPECT_THROW(launch(stream, AllGather{.group = world,
                                        .in = odd.tensor().slice(0, world.rank() * 3 + 1, 3),
                                        .out = odd.tensor().slice(0, 0, 3 * size)}),
               Error)
      << "overlaps another rank's part, or begins inside its own";
  EXPECT_THROW(
      launch(stream, SharedAllGather{.group = world, .in = small.tensor(), .out = odd.tensor().slice(0, 0, 3 * size)}),
      Error)
      << "memory that the ranks do not share";
  EXPECT_THROW(launch(stream, AllToAll{.group = world, .in = small.tensor(), .out = small.tensor()}), Error)
      << "in and out overlap";
  EXPECT_THROW(
      launch(stream,
             AllToAll{.group = world, .in = small.tensor(), .out = odd.tensor(), .in_rows = {}, .out_rows = {}}),
      Error);
  const std::vector<std::int64_t> negative(static_cast<std::size_t>(size), -1);
  EXPECT_THROW(
      launch(stream,
             AllToAll{
                 .group = world, .in = small.tensor(), .out = odd.tensor(), .in_rows = negative, .out_rows = negative}),
      Error);
  const std::vector<std::int64_t> many(static_cast<std::size_t>(size), 4);
  EXPECT_THROW(
      launch(stream,
             AllToAll{.group = world, .in = small.tensor(), .out = odd.tensor(), .in_rows = many, .out_rows = many}),
      Error);
  EXPECT_THROW(launch(stream, Broadcast{.group = world, .buffer = small.tensor(), .root = size}), Error);
  EXPECT_THROW(launch(stream, Broadcast{.group = world, .buffer = small.tensor(), .root = -1}), Error);
  EXPECT_THROW(launch(stream, Send{.group = world, .buffer = small.tensor(), .peer = world.rank()}), Error);
  EXPECT_THROW(launch(stream, Receive{.group = world, .buffer = small.tensor(), .peer = world.rank()}), Error);
  EXPECT_THROW(launch(stream, Send{.group = world, .buffer = small.tensor(), .peer = size}), Error);
  check_broadcast(world, form);  // a call that is right still passes
}

}  // namespace megalith::test
