// Every call of every fault site of saving and loading fails once, in each way that it can.
#include <gtest/gtest.h>

#include <set>

#include "core/base/fault.h"
#include "tests/support/tier.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

class Faults {
 public:
  explicit Faults(std::vector<FaultRequest> requests, std::set<std::string>* reached = nullptr) {
    arm_faults(std::move(requests), reached);
  }
  ~Faults() { disarm_faults(); }
};

// A folder in some state, and whether a checkpoint of step 1 is in it.
struct Scenario {
  const char* name;
  std::function<void(const std::string& save)> prepare;
  std::int64_t before;  // step of the newest checkpoint in it, -1: none
};

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> kAll = {
      {"a new folder", [](const std::string&) {}, -1},
      {"an older checkpoint, one too many, and what dead saves left",
       [](const std::string& save) {
         EXPECT_TRUE(save_alone(save, 1).saved);
         fs::copy(save + "/step_0000001", save + "/step_0000000", fs::copy_options::recursive);
         fs::create_directory(save + "/step_0000002.tmp-dead");
         write_bytes(save + "/step_0000002.tmp-dead/file", "x");
         write_bytes(save + "/LATEST.tmp", "x");
       },
       1},
      {"the same step saved before",
       [](const std::string& save) {
         EXPECT_TRUE(save_alone(save, 1).saved);
         EXPECT_TRUE(save_alone(save, 2).saved);
       },
       2},
  };
  return kAll;
}

class CheckpointSites : public testing::Test {
 protected:
  std::string fresh(const Scenario& scenario) {
    fs::remove_all(folder_.path("top"));
    const std::string save = folder_.path("top/save");
    scenario.prepare(save);
    return save;
  }
  TestFolder folder_;
};

bool must_succeed(FaultKind kind) { return kind == FaultKind::kEintr || kind == FaultKind::kShort; }

const std::vector<FaultKind> kKinds = {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort};

std::vector<FaultRequest> requests_at(const std::string& site) {
  std::vector<FaultRequest> requests;
  for (const FaultKind kind : kKinds) {
    for (const int at : {1, 2}) {
      try {
        requests.push_back(parse_fault(site + ":" + std::to_string(at) + ":" + std::string(name_of(kind))));
      } catch (const Error&) {  // cannot happen there
      }
    }
  }
  return requests;
}

TEST_F(CheckpointSites, SaveSurvivesEveryFault) {
  std::set<std::string> all;
  int struck = 0, asked = 0;
  for (const Scenario& scenario : scenarios()) {
    std::set<std::string> reached;
    {
      const std::string save = fresh(scenario);
      const Faults recorded({}, &reached);
      EXPECT_TRUE(save_alone(save, 2, 2).saved);
    }
    for (const std::string& site : reached) {
      for (const FaultRequest& request : requests_at(site)) {
        if (asked++ % test::one_of(3) != 0) continue;
        const std::string save = fresh(scenario);
        SaveResult result;
        {
          const Faults faults({request});
          result = save_alone(save, 2, 2);
          if (faults_fired() == 0) continue;  // no second time
        }
        ++struck;
        const std::string where = std::string(scenario.name) + ": " + site + " " + std::string(name_of(request.kind)) +
                                  " at " + std::to_string(request.at) + ": " + result.message;
        if (must_succeed(request.kind)) {
          EXPECT_TRUE(result.saved && result.message.empty()) << where;
        } else if (!result.message.empty()) {
          EXPECT_NE(result.message.find(request.kind == FaultKind::kEio ? "(EIO)" : "(ENOSPC)"), std::string::npos)
              << where;
          EXPECT_NE(result.message.find("cannot "), std::string::npos) << where;
          EXPECT_NE(result.message.find(folder_.path()), std::string::npos) << where;
        } else {  // only what merely looks at older checkpoints may pass over it
          EXPECT_TRUE(site == "save.prune.open" || site == "save.prune.read") << where;
        }
        // A checkpoint that has its name, but perhaps not durably, counts as not saved, and is a good one all the same.
        const bool there = result.saved || (site == "save.parent.sync" && !must_succeed(request.kind));
        EXPECT_EQ(load_alone(save), there ? 2 : scenario.before) << where;
        const SaveResult next = save_alone(save, 3, 2);
        EXPECT_TRUE(next.saved && next.message.empty()) << where << "; then " << next.message;
        EXPECT_EQ(load_alone(save), 3) << where;
      }
    }
    all.insert(reached.begin(), reached.end());
  }
  EXPECT_GT(struck, 200 / test::one_of(3));
  // save.cleanup has its own test.
  for (const std::string& site : fault_sites()) {
    const bool counts = site.starts_with("save.") && !site.starts_with("save.cleanup");
    EXPECT_TRUE(!counts || all.contains(site)) << site;
  }
}

TEST_F(CheckpointSites, AFailedSaveThatCannotBeCleanedUp) {
  for (const char* operation : {"open", "list", "remove"}) {
    const std::string save = fresh(scenarios()[1]);
    {
      const Faults faults(
          {parse_fault("save.shard.write:2:enospc"), parse_fault(std::string("save.cleanup.") + operation + ":1:eio")});
      const SaveResult result = save_alone(save, 2, 1);
      EXPECT_FALSE(result.saved);
      EXPECT_NE(result.message.find("; and the temporary directory stays: "), std::string::npos) << result.message;
      EXPECT_EQ(faults_fired(), 2);
    }
    EXPECT_EQ(load_alone(save), 1);
    EXPECT_TRUE(save_alone(save, 3, 1).saved);
    EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000003"}));
  }
}

TEST_F(CheckpointSites, LoadFallsBackOrSaysWhy) {
  std::set<std::string> reached;
  const std::string save = folder_.path("save");
  ASSERT_TRUE(save_alone(save, 1).saved);
  ASSERT_TRUE(save_alone(save, 2).saved);
  {
    const Faults recorded({}, &reached);
    EXPECT_EQ(load_alone(save), 2);
  }
  int struck = 0;
  for (const std::string& site : reached) {
    for (const FaultRequest& request : requests_at(site)) {
      const std::string where = site + " " + std::string(name_of(request.kind)) + " at " + std::to_string(request.at);
      const Faults faults({request});
      testing::internal::CaptureStderr();
      std::int64_t step = -1;
      std::string message;
      try {
        step = load_alone(save);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kFileIo) << where;
        message = error.what();
      }
      message += testing::internal::GetCapturedStderr();
      if (faults_fired() == 0) continue;
      ++struck;
      if (must_succeed(request.kind)) {
        EXPECT_EQ(step, 2) << where;
        continue;
      }
      // The folder itself and tensors of a checkpoint that was found good are errors, else the older one is taken.
      const bool is_error = site.starts_with("load.root") || site.starts_with("load.tensor");
      EXPECT_EQ(step, is_error ? -1 : 1) << where;
      EXPECT_NE(message.find(request.kind == FaultKind::kEio ? "(EIO)" : "(ENOSPC)"), std::string::npos) << message;
      EXPECT_NE(message.find(save), std::string::npos) << message;
    }
  }
  EXPECT_GT(struck, 30);
  for (const std::string& site : fault_sites()) {
    // The points at the end of loading are the trainer's.
    const bool counts = site.starts_with("load.") && site != "load.end";
    EXPECT_TRUE(!counts || reached.contains(site)) << site;
  }
  EXPECT_EQ(load_alone(save), 2);  // nothing was changed
}

TEST_F(CheckpointSites, OutOfMemoryIsNotTakenForADamagedFile) {
  const std::string save = folder_.path("save");
  ASSERT_TRUE(save_alone(save, 1).saved);
  ASSERT_TRUE(save_alone(save, 2).saved);
  for (const std::string& site : fault_sites()) {
    if (!site.starts_with("load.") || site == "load.end") continue;
    const Faults faults({parse_fault(site + ":1:abort-alloc")});
    EXPECT_THROW(load_alone(save), std::bad_alloc) << site;
  }
  EXPECT_EQ(load_alone(save), 2);
  for (const char* site : {"save.shard.write", "save.manifest.sync", "save.begin"}) {
    const Faults faults({parse_fault(std::string(site) + ":1:abort-alloc")});
    EXPECT_THROW(save_alone(save, 3), std::bad_alloc) << site;
    EXPECT_EQ(load_alone(save), 2) << site;
  }
}

}  // namespace
}  // namespace megalith
