// Placement of the model's parts on stages. Parts are numbered in the model's order; a stage holds one per chunk.
#pragma once

namespace megalith {

struct StageChunk {
  int stage = 0;
  int chunk = 0;
  friend bool operator==(const StageChunk&, const StageChunk&) = default;
};

// Loop: part = chunk x stages + stage, as Megatron's virtual stages. V: odd chunks run from the last stage to the first
// (arXiv:2401.10241, section 6). The last part is then on stage 0, and the two parts at a turn share a stage.
struct Placement {
  int num_stages = 1;
  int num_chunks = 1;
  bool is_v = false;

  int num_parts() const { return num_stages * num_chunks; }
  int part(StageChunk at) const {
    return at.chunk * num_stages + (is_v && at.chunk % 2 == 1 ? num_stages - 1 - at.stage : at.stage);
  }
  StageChunk at(int part) const {
    const int chunk = part / num_stages, along = part % num_stages;
    return {.stage = is_v && chunk % 2 == 1 ? num_stages - 1 - along : along, .chunk = chunk};
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace megalith
