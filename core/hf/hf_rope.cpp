#include "core/hf/hf_rope.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"
#include "core/hf/hf_members.h"

namespace megalith {

namespace {

using nlohmann::json;

// One of the two objects.
struct RopeObject {
  std::optional<double> theta;
  RopeScaling scaling;
};

std::string read_type(HfMembers& object) {
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {  // rope_type overrides type
    if (object.find(key) == nullptr) continue;
    type = object.text(key);
    if (type != "default" && type != "linear" && type != "yarn" && type != "llama3")
      refuse_format(object.subject(key), "default, linear, yarn or llama3: RoPE scaled in another way is not built",
                    printable(type), kHfNotBuilt);
  }
  return type;
}

// Reads YaRN as transformers 5 does: 0 counts as absent, a null `truncate` as false, a null `factor` as the ratio of
// the positions, and mscale counts only together with mscale_all_dim.
RopeScaling read_yarn(HfMembers& object, std::int64_t positions) {
  RopeScaling yarn{.kind = RopeScalingKind::kYarn};
  yarn.original_max_position_embeddings = object.integer_or("original_max_position_embeddings", positions);
  yarn.factor = object.is_null("factor")
                    ? static_cast<double>(positions) / static_cast<double>(yarn.original_max_position_embeddings)
                    : object.positive("factor");
  const double fast = object.at_least_0_or("beta_fast", 0), slow = object.at_least_0_or("beta_slow", 0);
  if (fast > 0) yarn.beta_fast = fast;
  if (slow > 0) yarn.beta_slow = slow;
  yarn.truncate = !object.is_null("truncate") && object.boolean_or("truncate", true);
  const double mscale = object.at_least_0_or("mscale", 0), all_dim = object.at_least_0_or("mscale_all_dim", 0);
  if (mscale > 0 && all_dim > 0) {
    yarn.mscale = mscale;
    yarn.mscale_all_dim = all_dim;
  }
  if (object.find("attention_factor") != nullptr) yarn.attention_factor = object.positive("attention_factor");
  return yarn;
}

RopeObject read_object(const json& value, const std::string& subject, std::int64_t positions) {
  HfMembers object(value, subject);
  const std::string type = read_type(object);
  RopeObject rope;
  if (object.find("rope_theta") != nullptr) rope.theta = object.positive("rope_theta");
  object.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  if (type == "llama3") {
    rope.scaling = {
        .kind = RopeScalingKind::kLlama3,
        .factor = object.positive("factor"),
        .low_freq_factor = object.positive("low_freq_factor"),
        .high_freq_factor = object.positive("high_freq_factor"),
        .original_max_position_embeddings = object.integer_or("original_max_position_embeddings", positions)};
  } else if (type == "linear") {
    rope.scaling = {.kind = RopeScalingKind::kLinear, .factor = object.positive("factor")};
  } else if (type == "yarn") {
    rope.scaling = read_yarn(object, positions);
  }
  object.refuse_unknown();
  return rope;
}

json yarn_keys(const RopeScaling& yarn) {
  json keys = {{"rope_type", "yarn"},
               {"factor", yarn.factor},
               {"original_max_position_embeddings", yarn.original_max_position_embeddings},
               {"beta_fast", yarn.beta_fast},
               {"beta_slow", yarn.beta_slow}};
  if (!yarn.truncate) keys["truncate"] = false;
  const bool has_both = yarn.mscale > 0 && yarn.mscale_all_dim > 0;
  if (has_both) {
    keys["mscale"] = yarn.mscale;
    keys["mscale_all_dim"] = yarn.mscale_all_dim;
  }
  // Transformers ignores one of the two alone.
  const bool is_derived = yarn.attention_factor == 0 && (has_both || (yarn.mscale == 1 && yarn.mscale_all_dim == 0));
  if (!is_derived) keys["attention_factor"] = rope_attention_factor(yarn);
  return keys;
}

json scaling_keys(const RopeScaling& scaling) {
  if (scaling.kind == RopeScalingKind::kYarn) return yarn_keys(scaling);
  if (scaling.kind == RopeScalingKind::kLinear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
}

}  // namespace

HfRope read_rope(HfMembers& file, std::int64_t positions, double usual_theta) {
  std::optional<RopeObject> seen;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* value = file.find(key);
    if (value == nullptr) continue;
    const RopeObject rope = read_object(*value, file.subject(key), positions);
    if (seen && seen->theta && rope.theta && *seen->theta != *rope.theta) {
      refuse_content(file.subject(key) + ": rope_theta", "the value that rope_scaling has",
                     fmt::format("{} and {}", *rope.theta, *seen->theta));
    }
    if (seen && seen->scaling != rope.scaling) {
      refuse_content(file.subject(key), "the rope_type and factors that rope_scaling has", "others");
    }
    seen = {rope.theta ? rope.theta : seen ? seen->theta : std::nullopt, rope.scaling};
  }
  const std::optional<double> inner = seen ? seen->theta : std::nullopt;
  const double theta = file.positive_or("rope_theta", inner.value_or(usual_theta));
  if (inner && *inner != theta) {
    refuse_content(file.subject("rope_theta"), "the value that rope_parameters has",
                   fmt::format("{} and {}", theta, *inner));
  }
  file.only("partial_rotary_factor", 1.0, "RoPE turns whole heads");
  return {.theta = theta, .scaling = seen ? seen->scaling : RopeScaling{}};
}

void add_rope_keys(json& text, const HfRope& rope) {
  text["rope_theta"] = rope.theta;
  json keys = {{"rope_type", "default"}};
  if (rope.scaling.kind != RopeScalingKind::kNone) {
    keys = scaling_keys(rope.scaling);
    text["rope_scaling"] = keys;  // for transformers 4
  }
  keys["rope_theta"] = rope.theta;
  text["rope_parameters"] = keys;
}

}  // namespace megalith
