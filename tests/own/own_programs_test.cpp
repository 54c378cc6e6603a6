// The programs with an own.cpp of a user's: its flag, layer and hook in train, plan, generate and convert.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

class OwnPrograms : public testing::Test {
 protected:
  OwnPrograms() {
    folder_.make_text();
    folder_.write("own.toml", "[own]\nadapter-rank = 4\n");
  }

  Outcome run(const std::string& name, const Words& arguments) const {
    return test::run(program(name, arguments), folder_);
  }
  Outcome run_ok(const std::string& name, const Words& arguments) const {
    return test::run_ok(program(name, arguments), folder_);
  }
  Outcome train(const Words& flags) const {
    return run("own/train", tiny() + llama() +
                                words("--device cpu --data-path text --train-iters 4 --lr 1e-2 --log-interval 1000") +
                                flags);
  }
  // State of the only checkpoint.
  std::string state(const std::string& save) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path(save))) {
      if (entry.path().filename() == "state.json")
        return folder_.read(std::filesystem::relative(entry.path(), folder_.path("")).string());
    }
    return "";
  }

  Folder folder_;
};

TEST_F(OwnPrograms, HaveTheLayerAndItsFlag) {
  const Outcome trained = train(words("--config own.toml --adapter-says heard --save kept"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out + trained.err, HasSubstr("heard"));
  EXPECT_THAT(state("kept"), HasSubstr("\"adapter-rank\""));

  const Outcome other = train(words("--load kept --train-iters 6 --adapter-rank 8"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--adapter-rank 8"));
  const Outcome same = train(words("--load kept --train-iters 6 --use-checkpoint-args"));
  EXPECT_EQ(same.code, 0) << same.err;

  // A toggle that is on is no default of the checkpoint's flags, nor is a flag that it does not have.
  ASSERT_EQ(train(words("--config own.toml --adapter-pins-input --save pinned --exit-interval 2")).code, 75);
  const Outcome pinned = train(words("--config own.toml --adapter-pins-input --load pinned"));
  EXPECT_EQ(pinned.code, 0) << pinned.err;
  ASSERT_EQ(train(words("--save plain --exit-interval 2")).code, 75);
  const Outcome added = train(words("--config own.toml --load plain"));
  EXPECT_EQ(added.code, 2);
  EXPECT_THAT(added.err, HasSubstr("--adapter-rank 4"));

  const Words prompt = words("--device cpu --load kept --prompt It --max-new-tokens 8 --seed 3");
  const Outcome text = run_ok("own/generate", prompt);
  EXPECT_EQ(text.out.substr(0, 2), "It");
  const Outcome unknown = run("generate", prompt);
  EXPECT_EQ(unknown.code, 4);
  EXPECT_THAT(unknown.err, HasSubstr("adapter-"));

  const Outcome converted = run("own/convert", words("--from native --load kept --save hf"));
  EXPECT_EQ(converted.code, 4) << converted.err;
  EXPECT_THAT(converted.err, HasSubstr("decoder.layers.0.adapter.down.weight"));
}

TEST_F(OwnPrograms, ConvertWhatWasTrainedWithoutTheLayer) {
  ASSERT_EQ(train(words("--save kept")).code, 0);
  const Outcome out = run_ok("own/convert", words("--from native --load kept --save hf"));
  const Outcome back = run_ok("own/convert", words("--from hf --load hf --save back"));
  EXPECT_THAT(state("back"), HasSubstr("\"adapter-rank\""));
}

TEST_F(OwnPrograms, PlanCountsTheLayerAndHelpHasTheFlag) {
  const Words flags = tiny_mock() + words("--device cpu");
  const Words shape = words("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --device cpu");
  const Outcome plan = run_ok("own/plan", shape + words("--config own.toml"));
  EXPECT_THAT(plan.out, testing::ContainsRegex("\n  own +512\n"));  // 2 layers x 2 matrices of 4 x 32
  EXPECT_THAT(run("own/plan", shape).out, Not(testing::ContainsRegex("\n  own +")));
  for (const char* name : {"own/train", "own/plan"}) {
    const std::string help = run(name, {"--help"}).out;
    EXPECT_THAT(help, HasSubstr("\nOwn:\n  --adapter-rank N"));
    EXPECT_THAT(help, HasSubstr("width of the adapter behind each MLP"));
  }
  const Outcome printed = run("own/train", flags + words("--config own.toml --print-config"));
  EXPECT_THAT(printed.out, testing::ContainsRegex("\\[own\\]\nadapter-rank = 4 +# own.toml:2\n"));
  EXPECT_THAT(run("train", {"--help"}).out, Not(HasSubstr("\nOwn:")));
}

}  // namespace
}  // namespace megalith::test
