#include "core/checkpoint/train_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/checkpoint/hash.h"
#include "core/checkpoint/strict_json.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

TrainState sample() {
  TrainState state;
  state.step = 100;
  state.consumed_samples = 3200;
  state.consumed_validation_samples = 64;
  state.data_order_samples = 6400;
  state.skipped_steps = 2;
  state.adam_count = 98;
  state.seed = 0xfedcba9876543210u;
  state.schedule = {{"num_steps", "100"}, {"learning_rate", "0x1.5p-12"}};
  state.tokenizer = "byte";
  state.program_version = "0.1.0";
  state.program_commit = "0123abcd";
  state.config = {{"hidden-size", "256"}, {"note", "quote \" and \xc3\xa9"}};
  return state;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TrainState, RoundTrip) {
  const TrainState state = sample();
  const TrainState back = train_state_from_json(to_json(state), "state.json");
  EXPECT_EQ(back.step, state.step);
  EXPECT_EQ(back.consumed_samples, state.consumed_samples);
  EXPECT_EQ(back.consumed_validation_samples, state.consumed_validation_samples);
  EXPECT_EQ(back.data_order_samples, state.data_order_samples);
  EXPECT_EQ(back.skipped_steps, state.skipped_steps);
  EXPECT_EQ(back.adam_count, state.adam_count);
  EXPECT_EQ(back.seed, state.seed);
  EXPECT_EQ(back.schedule, state.schedule);
  EXPECT_EQ(back.tokenizer, state.tokenizer);
  EXPECT_EQ(back.program_version, state.program_version);
  EXPECT_EQ(back.program_commit, state.program_commit);
  EXPECT_EQ(back.config, state.config);
  EXPECT_TRUE(back.gemm_algorithms.empty());
}

TEST(TrainState, ReadsWhatEarlierVersionsWrote) {
  const std::string text = replaced(to_json(sample()), "\"data_order_samples\": 6400,", "");
  EXPECT_EQ(train_state_from_json(text, "state.json").data_order_samples, 0);
}

TEST(TrainState, RefusesWhatIsNotExactlyItself) {
  const std::string good = to_json(sample());
  const auto expect_refused = [&](const std::string& from, const std::string& to, const std::string& message) {
    EXPECT_ERROR(ExitCode::kFormat, message, train_state_from_json(replaced(good, from, to), "state.json"));
  };
  expect_refused("\"step\": 100", "\"step\": -1", "step: expected an integer from 0");
  expect_refused("\"step\": 100", "\"step\": 1099511627777", "step: expected an integer from 0 to 1099511627776");
  expect_refused("\"tokenizer\": \"byte\"", "\"tokenizer\": \"" + std::string(70000, 'x') + "\"",
                 "tokenizer: expected a text of at most ");
  expect_refused("\"step\": 100", "\"step\": 1e2", "step: expected an integer");
  expect_refused("\"step\": 100", "\"step\": 99999999999999999999", "step: expected an integer");
  expect_refused("\"step\": 100", "\"step\": 18446744073709551615", "step: expected an integer");
  expect_refused("\"step\": 100", "\"step\": \"100\"", "step: expected an integer");
  expect_refused("\"step\": 100", "\"step\": NaN", "UTF-8 JSON");
  expect_refused("\"step\": 100", "\"step\": 100, \"step\": 100", "'step' twice");
  expect_refused("\"step\": 100", "\"step\": 100, \"more\": 1", "known keys only");
  expect_refused("\"step\": 100", "\"steps\": 100", "key step");
  expect_refused("\"data_order_samples\": 6400", "\"data_order_samples\": 281474976710657",
                 "data_order_samples: expected an integer from 0 to 281474976710656");
  expect_refused("\"seed\": 18364758544493064720", "\"seed\": -1", "seed: expected an unsigned");
  expect_refused("\"256\"", "\"512\"", "config_hash");
  expect_refused("\"256\"", "256", "'hidden-size': expected a text");
  expect_refused("\xc3\xa9", "\xc3\x28", "UTF-8 JSON");
  expect_refused("\"tokenizer\": \"byte\"", "\"tokenizer\": null", "tokenizer: expected a text");
}

TEST(TrainState, RefusesOtherDocuments) {
  const auto read = [](const std::string& text) { train_state_from_json(text, "state.json"); };
  EXPECT_ERROR(ExitCode::kFormat, "UTF-8 JSON", read(""));
  EXPECT_ERROR(ExitCode::kFormat, "expected an object", read("[]"));
  EXPECT_ERROR(ExitCode::kFormat, "expected an object", read("1"));
  EXPECT_ERROR(ExitCode::kFormat, "at most 32 levels", read(std::string(33, '[') + std::string(33, ']')));
  EXPECT_ERROR(ExitCode::kFormat, "a NUL byte", read(std::string("{}\0garbage", 10)));
  EXPECT_ERROR(ExitCode::kFormat, "UTF-8 JSON", read("{} {}"));
  EXPECT_ERROR(ExitCode::kFormat, "at most 67108864 bytes", read(std::string((64u << 20) + 1, ' ')));
}

TEST(StrictJson, BoundsTheNumberOfValues) {
  EXPECT_EQ(parse_strict_json(R"({"a": [0, {}], "b": null})", "x", 5).size(), 2u);
  EXPECT_ERROR(ExitCode::kFormat, "x: expected at most 4 values, got more",
               parse_strict_json(R"({"a": [0, {}], "b": null})", "x", 4));
}

TEST(TrainState, RefusesToWriteWhatItWouldNotRead) {
  TrainState state = sample();
  state.adam_count = -1;
  EXPECT_ERROR(ExitCode::kFormat, "adam_count", to_json(state));
}

TEST(ConfigHash, DistinguishesKeysFromValues) {
  EXPECT_EQ(config_hash({{"a", "b"}}).size(), 32u);
  EXPECT_NE(config_hash({{"a", "b"}}), config_hash({{"ab", ""}}));
  EXPECT_NE(config_hash({{"a", "1\n1:b=1:2"}}), config_hash({{"a", "1"}, {"b", "2"}}));
}

TEST(Hash, IsXxh3And128Bits) {
  EXPECT_EQ(to_hex(hash_of("")), "99aa06d3014798d86001c324468d497f");  // published test vector of XXH3-128, seed 0
  Hasher hasher;
  hasher.update(std::as_bytes(std::span("abc", 3)));
  hasher.update({});
  hasher.update(std::as_bytes(std::span("def", 3)));
  EXPECT_EQ(hasher.digest(), hash_of("abcdef"));
  EXPECT_EQ(hash_from_hex(to_hex(hash_of("abc"))), hash_of("abc"));
  EXPECT_FALSE(hash_from_hex("99AA06d3014798d86001c324468d497f").has_value());
  EXPECT_FALSE(hash_from_hex("99aa06d3014798d86001c324468d497").has_value());
  for (const std::size_t at : {0, 15, 16, 31}) {  // in either half
    std::string text = to_hex(hash_of("abc"));
    text[at] = 'g';
    EXPECT_FALSE(hash_from_hex(text).has_value()) << at;
  }
  EXPECT_FALSE(hash_from_hex("+9aa06d3014798d86001c324468d497f").has_value());
}

}  // namespace
}  // namespace megalith
