// Which rank is what: pure functions of the mesh's sizes and a rank. Two views of the same ranks,
//   dense:  world = tp x cp x dp x pp      expert: world = etp x ep x edp x pp
// in Megatron's order: tp (etp) varies fastest from rank to rank, pp slowest, so that a stage's ranks are neighbours.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// tp tensor, cp context, dp data, pp pipeline; etp tensor parallel inside an expert, ep expert, edp data parallel among
// the replicas of an expert.
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

// What the flags say; dp and edp follow from the world size.
struct MeshRequest {
  std::int64_t world_size = 1;
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 1;
};

// Errors (exit code 2) name the flags, and the world sizes or values that would fit.
MeshSizes make_mesh_sizes(const MeshRequest& request);

// A rank's coordinate on each axis, in 0 .. size - 1.
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

// The ranks that differ from `rank` only along `axes`, ascending, `rank` among them. All axes are of one view: of
// {tp, cp, dp, pp} or of {etp, ep, edp, pp}.
std::vector<int> group_of(const MeshSizes& sizes, int rank, std::initializer_list<Axis> axes);

// "dp 0 pp 1 tp 1", and "rank 5/16 (dp 0 pp 1 tp 1)"; cp, ep and etp are said where their size is not 1.
std::string rank_place(const MeshSizes& sizes, int rank);
std::string rank_label(const MeshSizes& sizes, int rank);

// "dense tp 2 x cp 1 x dp 2 x pp 1, expert ..."
std::string describe_sizes(const MeshSizes& sizes);

}  // namespace megalith
