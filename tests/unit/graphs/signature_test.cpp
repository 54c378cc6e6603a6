// Tests of the properties that captured graphs depend on.
#include "graphs/signature.h"

#include <gtest/gtest.h>

#include <set>

#include "core/memory/memory_pool.h"

namespace megalith {
namespace {

TEST(GraphSignature, HasEachNumberOfAnAction) {
  const Action plain{.kind = ActionKind::kForward};
  std::set<std::uint64_t> digests = {digest_of({plain})};
  Action other = plain;
  other.kind = ActionKind::kBackwardData;
  digests.insert(digest_of({other}));
  for (int Action::*const number :
       {&Action::chunk, &Action::microbatch, &Action::segment, &Action::column, &Action::item, &Action::peer}) {
    other = plain;
    other.*number += 7;
    digests.insert(digest_of({other}));
  }
  EXPECT_EQ(digests.size(), 8u);
  EXPECT_NE(digest_of({plain, plain}), digest_of({plain}));
  EXPECT_EQ(digest_of({plain, other}), digest_of({plain, other}));
}

TEST(GraphSignature, HasEachHookPointOfEachSegment) {
  MemoryPool pool{DeviceType::kCpu};
  Stream stream{DeviceType::kCpu, "test", {}};
  Arena arena{pool, Arena::Mode::kUnplanned};
  const Context ctx{.compute = stream, .arena = arena};
  const auto digest = [&](int segment, int point) {
    SegmentRunner runner{ctx, {{.name = "first"}, {.name = "second"}}};
    if (segment >= 0) runner.hooks(segment).add(static_cast<HookPoint>(point), [](const HookContext&) {});
    return digest_of_hooks(runner);
  };
  std::set<std::uint64_t> digests = {digest(-1, 0)};
  for (int segment = 0; segment < 2; ++segment) {
    for (int point = 0; point < kNumHookPoints; ++point) digests.insert(digest(segment, point));
  }
  EXPECT_EQ(digests.size(), 1u + 2 * kNumHookPoints);
}

}  // namespace
}  // namespace megalith
