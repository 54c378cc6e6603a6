// Coordinates of ranks, as pure functions of the mesh's sizes and a rank. The same ranks have two views:
//   dense:  world = tp x cp x dp x pp      expert: world = etp x ep x edp x pp
// The order is Megatron-LM's: tp (etp) varies fastest over ranks and pp slowest, so a stage's ranks are adjacent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// tp tensor, cp context, dp data, pp pipeline; etp tensor parallel inside an expert, ep expert, edp replicas of an
// expert.
enum class Axis : std::uint8_t { kTp, kCp, kDp, kPp, kEtp, kEp, kEdp };
inline constexpr int kNumAxes = 7;
std::string_view name_of(Axis axis);  // "tp"

struct MeshSizes {
  std::int64_t tp = 1;
  std::int64_t cp = 1;
  std::int64_t dp = 1;
  std::int64_t pp = 1;
  std::int64_t etp = 1;
  std::int64_t ep = 1;
  std::int64_t edp = 1;

  std::int64_t operator[](Axis axis) const;
  std::int64_t world() const { return tp * cp * dp * pp; }
};

// Values of the flags; dp and edp follow from the world size.
struct MeshRequest {
  std::int64_t world_size = 1;
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 1;
};

// Errors (exit code 2) list the flags, and valid world sizes or values.
MeshSizes make_mesh_sizes(const MeshRequest& request);

// Coordinate of a rank on each axis, in 0 .. size - 1.
struct MeshCoordinates {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  int etp = 0;
  int ep = 0;
  int edp = 0;

  int operator[](Axis axis) const;
};

MeshCoordinates coordinates_of(const MeshSizes& sizes, int rank);

// Ranks that differ from `rank` only along `axes`, ascending, including `rank`. All axes belong to one view: {tp, cp,
// dp, pp} or {etp, ep, edp, pp}.
std::vector<int> group_of(const MeshSizes& sizes, int rank, std::initializer_list<Axis> axes);

// "dp 0 pp 1 tp 1", and "rank 5/16 (dp 0 pp 1 tp 1)"; cp, ep and etp are printed if their size is not 1.
std::string rank_place(const MeshSizes& sizes, int rank);
std::string rank_label(const MeshSizes& sizes, int rank);

// "dense tp 2 x cp 1 x dp 2 x pp 1, expert ..."
std::string describe_sizes(const MeshSizes& sizes);

}  // namespace megalith
