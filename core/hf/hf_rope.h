// Settings of RoPE in config.json: rope_parameters of transformers 5, rope_theta and rope_scaling of 4.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "core/ops/attention/rope_frequency.h"

namespace megalith {

class HfMembers;

struct HfRope {
  double theta = 0;  // base of the frequencies
  RopeScaling scaling;
};

// `positions` is the file's max_position_embeddings, `usual_theta` the base of a file without one.
HfRope read_rope(HfMembers& file, std::int64_t positions, double usual_theta);

// Writes the keys of both versions.
void add_rope_keys(nlohmann::json& text, const HfRope& rope);

}  // namespace megalith
