// Layers over the parts of a pipeline: the layout's text, and splits without one.
#include "parallel/pipeline_parallel/layer_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

std::string parsed(const std::string& text, int num_layers, int num_stages) {
  return result_of(ExitCode::kUsage, [&] { return to_string(parse_layer_layout(text, num_layers, num_stages)); });
}
std::string split(const LayerSplit& spec) {
  return result_of(ExitCode::kUsage, [&] { return to_string(split_layers(spec)); });
}
std::string virtual_stages(const LayerSplit& spec, int layers) {
  return result_of(ExitCode::kUsage, [&] { return std::to_string(chunks_of_virtual_stages(spec, layers)); });
}

TEST(LayerLayout, ReadsMegatronsForm) {
  EXPECT_EQ(parsed("Et*3|t*4|t*4|tL", 12, 4), "Et*3|t*4|t*4|tL");
  EXPECT_EQ(
      parsed("Ettt|(tt|)*29,L", 61, 31), "Et*3|" + [] {
        std::string bars;
        for (int i = 0; i < 29; ++i) bars += "t*2|";
        return bars;
      }() + "L");
  EXPECT_EQ(parsed("E,t*2,|(t*2|t,t)*2,L", 10, 4), "Et*2|t*2|t*4|t*2L");
  EXPECT_EQ(parsed("E|t|*2tL", 2, 4), "E|t||tL");  // a bar repeats too; the third part has no layer
  EXPECT_EQ(parsed("Et*2L", 2, 1), "Et*2L");
  EXPECT_THAT(parse_layer_layout("Et|t*2|t*3|L", 6, 2),
              ElementsAre(PartLayers{.first_layer = 0, .num_layers = 1, .has_embedding = true},
                          PartLayers{.first_layer = 1, .num_layers = 2}, PartLayers{.first_layer = 3, .num_layers = 3},
                          PartLayers{.first_layer = 6, .num_layers = 0, .has_loss = true}));
}

TEST(LayerLayout, ErrorsNameTheirPlace) {
  const std::string flag = "--pipeline-model-parallel-layout";
  EXPECT_EQ(parsed("Et*3|x|L", 4, 3), flag + ", character 6: expected E, t, L, |, ( or a comma, got 'x'");
  EXPECT_EQ(parsed("Et*|L", 4, 2), flag + ", character 4: expected a count from 1 to 10000 after *, got '|'");
  EXPECT_EQ(parsed("Et*", 4, 2), flag + ", character 4: expected a count from 1 to 10000 after *, got the end");
  EXPECT_EQ(parsed("Et*0|L", 4, 2), flag + ", character 4: expected a count from 1 to 10000 after *, got 0");
  EXPECT_EQ(parsed("Et*99999999999|L", 4, 2),
            flag + ", character 4: expected a count from 1 to 10000 after *, got 99999999999");
  EXPECT_EQ(parsed("Et*1,2L", 12, 1), flag + ", character 6: expected E, t, L, |, ( or a comma, got '2'");
  EXPECT_EQ(parsed("E(tt|*2L", 4, 3), flag + ", character 2: expected a bracket that is closed, got '(' without ')'");
  EXPECT_EQ(parsed("E(tt|)L", 4, 3), flag + ", character 7: expected * and a count after ')', got 'L'");
  EXPECT_EQ(parsed("E(t(t|)*2)*2L", 4, 3), flag + ", character 4: expected E, t, L, | or ), got '(' inside brackets");
  EXPECT_EQ(parsed("E()*2tL", 1, 1), flag + ", character 3: expected E, t, L or | inside brackets, got ')'");
  EXPECT_EQ(parsed("Et)L", 1, 1), flag + ", character 3: expected E, t, L, | or (, got ')'");
  EXPECT_EQ(parsed("Et|mL", 1, 2),
            flag + ", character 4: expected E, t, L or |, got m: multi-token prediction is not built yet");
  EXPECT_EQ(parsed(std::string("Et\0L", 4), 1, 1),
            flag + ", character 3: expected E, t, L, |, ( or a comma, got '\\x00'");
  EXPECT_EQ(parsed("E(t*10000)*10000L", 1, 1),
            flag + ", character 17: expected at most 65536 letters and bars once repeats are written out, got more");
  EXPECT_EQ(parsed(std::string(20000, 't'), 1, 1),
            flag + ", character 1: expected a text of at most 16384 characters, got 20000");
}

TEST(LayerLayout, ErrorsOfTheWholeNameWhatItMustFit) {
  const std::string flag = "--pipeline-model-parallel-layout";
  EXPECT_EQ(parsed("", 1, 1), flag + ": expected one E, as the first letter, got 0 of it");
  EXPECT_EQ(parsed("tE|L", 1, 2), flag + ": expected one E, as the first letter, got it elsewhere, in part 1");
  EXPECT_EQ(parsed("t|EL", 1, 2), flag + ": expected one E, as the first letter, got it elsewhere, in part 2");
  EXPECT_EQ(parsed("Et|EL", 1, 2), flag + ": expected one E, as the first letter, got 2 of it");
  EXPECT_EQ(parsed("Et|L|", 1, 3), flag + ": expected one L, as the last letter, got it elsewhere, in part 2");
  EXPECT_EQ(parsed("Et*3|L", 4, 2), flag + " and --num-layers: expected 4 t for --num-layers, got 3");
  EXPECT_EQ(parsed("Et|t|L", 2, 2), flag +
                                        " and --pipeline-model-parallel-size: expected parts, which | separates, in a "
                                        "multiple of --pipeline-model-parallel-size 2, got 3");
}

TEST(LayerLayout, AnyTextIsReadOrRefusedInOneLine) {
  std::mt19937 random(7);
  const std::string letters = "EtL|()*,0123mx ";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = i % 2 == 0 ? "Et" : "";
    for (auto n = random() % 12; n > 0; --n) text += letters[random() % letters.size()];
    if (i % 2 == 0) text += "|L";
    for (const int layers : {1, 2, 3}) {
      const std::string result = parsed(text, layers, 1);
      EXPECT_EQ(result.find('\n'), std::string::npos) << text;
      if (result.starts_with("--")) continue;
      EXPECT_EQ(parsed(result, layers, 1), result) << text;  // the printed text parses to an equal result
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 50);
}

TEST(LayerLayout, SplitsEvenly) {
  EXPECT_EQ(split({.num_layers = 12, .placement = {.num_stages = 4}}), "Et*3|t*3|t*3|t*3L");
  EXPECT_EQ(split({.num_layers = 8, .placement = {.num_stages = 2, .num_chunks = 2}}), "Et*2|t*2|t*2|t*2L");
  EXPECT_EQ(split({.num_layers = 5}), "Et*5L");
  EXPECT_EQ(split({.num_layers = 30, .placement = {.num_stages = 4, .num_chunks = 2}}),
            "--num-layers: expected a multiple of 8 (--pipeline-model-parallel-size 4 x 2 chunks), got 30; 24 or 32 "
            "would fit; or give --pipeline-model-parallel-layout");
  EXPECT_THAT(split({.num_layers = 3, .placement = {.num_stages = 4}}), HasSubstr("got 3; 4 would fit"));
}

TEST(LayerLayout, CountsEmbeddingAndLossAsLayers) {
  const Placement four{.num_stages = 4};
  EXPECT_EQ(split({.num_layers = 11, .placement = four, .account_for_embedding = true}), "Et*2|t*3|t*3|t*3L");
  EXPECT_EQ(split({.num_layers = 11, .placement = four, .account_for_loss = true}), "Et*3|t*3|t*3|t*2L");
  const LayerSplit both{.num_layers = 10, .placement = four, .account_for_embedding = true, .account_for_loss = true};
  EXPECT_EQ(split(both), "Et*2|t*3|t*3|t*2L");
  // The first and last part of a V are on one stage.
  EXPECT_EQ(split({.num_layers = 6,
                   .placement = {.num_stages = 2, .num_chunks = 2, .is_v = true},
                   .account_for_embedding = true,
                   .account_for_loss = true}),
            "Et|t*2|t*2|tL");
  EXPECT_EQ(split({.num_layers = 2, .placement = four, .account_for_embedding = true, .account_for_loss = true}),
            "E|t|t|L");
  EXPECT_EQ(split({.num_layers = 12, .placement = four, .account_for_embedding = true, .account_for_loss = true}),
            "--num-layers: expected 2 less than a multiple of 4 (--pipeline-model-parallel-size 4, embedding and loss "
            "counted as layers), got 12; 10 or 14 would fit; or give --pipeline-model-parallel-layout");
}

TEST(LayerLayout, FirstAndLastStageMayHaveTheirOwnNumber) {
  const Placement four{.num_stages = 4};
  EXPECT_EQ(split({.num_layers = 13, .placement = four, .first_stage_layers = 3, .last_stage_layers = 2}),
            "Et*3|t*4|t*4|t*2L");
  EXPECT_EQ(split({.num_layers = 14, .placement = four, .first_stage_layers = 2}), "Et*2|t*4|t*4|t*4L");
  EXPECT_EQ(split({.num_layers = 14, .placement = four, .last_stage_layers = 2}), "Et*4|t*4|t*4|t*2L");
  EXPECT_EQ(split({.num_layers = 5, .placement = {.num_stages = 2}, .first_stage_layers = 2, .last_stage_layers = 3}),
            "Et*2|t*3L");
  EXPECT_EQ(split({.num_layers = 14, .placement = {.num_stages = 3, .num_chunks = 2}, .last_stage_layers = 2}),
            "Et*3|t*3|t|t*3|t*3|tL");
  EXPECT_EQ(
      split({.num_layers = 14, .placement = {.num_stages = 3, .num_chunks = 2, .is_v = true}, .first_stage_layers = 2}),
      "Et|t*3|t*3|t*3|t*3|tL");

  EXPECT_THAT(split({.num_layers = 14, .placement = four, .first_stage_layers = 3, .last_stage_layers = 2}),
              HasSubstr("layers left for the other 2 stages in a multiple of 2, got 9 left; give "));
  EXPECT_THAT(split({.num_layers = 4, .placement = four, .first_stage_layers = 3, .last_stage_layers = 2}),
              HasSubstr("got -1 left"));
  EXPECT_THAT(split({.num_layers = 6, .placement = {.num_stages = 2}, .first_stage_layers = 2, .last_stage_layers = 3}),
              HasSubstr("expected all layers in the two stages, got 1 left"));
  EXPECT_THAT(split({.num_layers = 14, .placement = {.num_stages = 3, .num_chunks = 2}, .last_stage_layers = 3}),
              HasSubstr("expected multiples of the 2 chunks per stage, got 3"));
  EXPECT_THAT(split({.num_layers = 14, .placement = {.num_stages = 1}, .last_stage_layers = 3}),
              HasSubstr("expected --pipeline-model-parallel-size of at least 2, got 1"));
  EXPECT_THAT(split({.num_layers = 14, .placement = four, .account_for_loss = true, .last_stage_layers = 3}),
              HasSubstr("none with --account-for-embedding-in-pipeline-split"));
}

// Every accepted split holds every layer once, in order.
TEST(LayerLayout, EverySplitHoldsEachLayerOnce) {
  int accepted = 0;
  for (int bits = 0; bits < 8; ++bits) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        for (int layers = 1; layers <= 40; ++layers) {
          const LayerSplit spec{.num_layers = layers,
                                .placement = {.num_stages = stages, .num_chunks = chunks, .is_v = bits % 2 == 1},
                                .account_for_embedding = (bits & 2) != 0,
                                .account_for_loss = (bits & 4) != 0};
          const std::string text = split(spec);
          if (text.starts_with("--")) continue;
          const LayerLayout layout = split_layers(spec);
          ASSERT_EQ(layout.size(), static_cast<std::size_t>(stages * chunks));
          ASSERT_EQ(parse_layer_layout(text, layers, stages), layout) << text;
          ++accepted;
        }
      }
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(LayerLayout, VirtualStagesAreCountedInLayers) {
  const Placement four{.num_stages = 4};
  EXPECT_EQ(virtual_stages({.num_layers = 16, .placement = four}, 2), "2");
  EXPECT_EQ(virtual_stages({.num_layers = 16, .placement = four}, 4), "1");
  EXPECT_EQ(virtual_stages({.num_layers = 15, .placement = four, .account_for_loss = true}, 1), "4");
  EXPECT_EQ(virtual_stages({.num_layers = 24, .placement = four}, 4),
            "--num-layers-per-virtual-pipeline-stage: expected a divisor of a stage's 6 layers: 1, 2, 3, 6, got 4");
  EXPECT_THAT(virtual_stages({.num_layers = 15, .placement = four}, 1), HasSubstr("got 15; 12 or 16 would fit"));
  EXPECT_THAT(virtual_stages({.num_layers = 16, .placement = four, .first_stage_layers = 1}, 1),
              HasSubstr("expected none with --decoder-first-pipeline-num-layers"));
  EXPECT_THAT(virtual_stages({.num_layers = 16, .placement = four}, 0), HasSubstr("1, 2, 4, got 0"));
}

TEST(Placement, IsItsOwnInverse) {
  for (const bool is_v : {false, true}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        const Placement placement{.num_stages = stages, .num_chunks = chunks, .is_v = is_v};
        for (int part = 0; part < placement.num_parts(); ++part) ASSERT_EQ(placement.part(placement.at(part)), part);
        if (is_v && chunks > 1) {
          EXPECT_EQ(placement.at(stages).stage, stages - 1);  // the turn stays on a stage
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith
