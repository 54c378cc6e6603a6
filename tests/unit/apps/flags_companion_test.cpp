// What the rows say of other flags: these exist, and a flag without what it needs, or with what it excludes, is
// refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/flags/flags_table.h"
#include "core/base/take_part.h"
#include "tests/support/matchers.h"
#include "tests/support/words.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

class Companions : public testing::Test {
 protected:
  const Flag* find(std::string_view name) const {
    const auto flag = std::ranges::find(table_, name, &Flag::name);
    return flag == table_.end() ? nullptr : &*flag;
  }
  // With the example of its row; of a flag of experts with the value alone, as the others need --num-experts too.
  static void give(const Flag& flag, Words& words) {
    words.push_back(fmt::format("--{}", flag.name));
    for (const std::string& word : test::words(std::string(flag.traits.example))) {
      if (flag.group == FlagGroup::kMoe && word.starts_with("--")) break;
      words.push_back(word);
    }
  }

  Options options_;
  Requests requests_;
  const FlagTable table_ = make_table(options_, requests_);
};

TEST_F(Companions, AreFlagsOfTheTableWithSuchValues) {
  int others = 0;
  for (const Flag& flag : table_) {
    for (const auto* list : {&flag.traits.needs, &flag.traits.excludes}) {
      for (const OtherFlag& other : *list) {
        ++others;
        SCOPED_TRACE(fmt::format("--{} and --{}", flag.name, other.flag));
        const Flag* const named = find(other.flag);
        ASSERT_NE(named, nullptr) << "no such flag";
        EXPECT_NE(flag.apps & named->apps & other.apps, 0u) << "no program takes both";
        if (named->binding.kind != ValueKind::kChoice) continue;
        const std::vector<std::string>& choices = named->binding.choices;
        for (std::string_view values = other.value; !values.empty();) {
          const std::string_view value = take_part(values, ' ');
          EXPECT_TRUE(value == "or" || std::ranges::find(choices, value) != choices.end()) << value;
        }
        EXPECT_TRUE(other.also.empty() || std::ranges::find(choices, other.also) != choices.end()) << other.also;
      }
    }
  }
  EXPECT_GE(others, 80);
}

TEST_F(Companions, AFlagWithoutWhatItNeedsIsRefused) {
  // The default of --eval-iters is above 0, that of --fsdp-reduce-grads each, and that of --device is cuda on a machine
  // with a GPU.
  const std::set<std::string_view> satisfied = {"skip-train", "full-validation", "profile", "fsdp-gradient-slots"};
  int refused = 0;
  for (const Flag& flag : table_) {
    const auto need = std::ranges::find_if(flag.traits.needs, [](const auto& n) { return (n.apps & kTrainApp) != 0; });
    if (!takes(flag, App::kTrain) || need == flag.traits.needs.end() || satisfied.contains(flag.name)) continue;
    Words words;
    give(flag, words);
    EXPECT_THAT(test::train_outcome(words),
                HasSubstr(fmt::format("--{} and --{}: expected --{} only with", flag.name, need->flag, flag.name)));
    ++refused;
  }
  EXPECT_GE(refused, 40);
}

TEST_F(Companions, AFlagWithWhatItExcludesIsRefused) {
  int refused = 0;
  for (const Flag& flag : table_) {
    for (const OtherFlag& excluded : flag.traits.excludes) {
      const Flag& other = *find(excluded.flag);
      if ((flag.apps & other.apps & excluded.apps & kTrainApp) == 0) continue;
      const bool has_schedule = flag.name == "step-batch-size-schedule" || other.name == "step-batch-size-schedule";
      Words words = {"--fine-grained-activation-offloading",
                     "--offload-modules",
                     "act",
                     "--global-batch-size",
                     "32",
                     "--lr-decay-style",
                     "WSD",
                     "--position-embedding-type",
                     "rope"};
      give(flag, words);
      if (other.name != "mock-data") {
        give(other, words);
        const bool replaces_mock = std::ranges::count(flag.traits.excludes, "mock-data", &OtherFlag::flag) > 0;
        if (replaces_mock) words.emplace_back("--mock-data=false");
      }
      for (std::size_t i = 0; has_schedule && i + 1 < words.size(); ++i)
        if (words[i] == "--global-batch-size") words[i + 1] = "16";  // the schedule's last size
      // A ramp without --train-samples is refused ahead of the schedule next to it.
      EXPECT_THAT(test::train_outcome(words),
                  HasSubstr(has_schedule
                                ? "--rampup-batch-size and --train-samples: expected"
                                : fmt::format("--{} and --{}: expected one of them, got both", flag.name, other.name)));
      ++refused;
    }
  }
  EXPECT_GE(refused, 10);
}

}  // namespace
}  // namespace megalith
