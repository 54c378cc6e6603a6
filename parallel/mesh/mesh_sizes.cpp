#include "parallel/mesh/mesh_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"

namespace megalith {

namespace {

// Axes from the fastest to the slowest.
constexpr std::array<Axis, 4> kDenseOrder = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
constexpr std::array<Axis, 4> kExpertOrder = {Axis::kEtp, Axis::kEp, Axis::kEdp, Axis::kPp};

bool contains(const std::array<Axis, 4>& order, Axis axis) {
  return std::find(order.begin(), order.end(), axis) != order.end();
}

int coordinate(const MeshSizes& sizes, int rank, Axis axis) {
  std::int64_t stride = 1;
  for (Axis a : contains(kDenseOrder, axis) ? kDenseOrder : kExpertOrder) {
    if (a == axis) break;
    stride *= sizes[a];
  }
  return static_cast<int>(rank / stride % sizes[axis]);
}

struct SizeFlag {
  std::string_view name;
  std::int64_t value;
};

// Requires that the world is a multiple of the product of a view's flags.
void check_divides(std::int64_t world, const std::vector<SizeFlag>& flags) {
  std::int64_t product = 1;
  std::string sizes;
  for (const SizeFlag& flag : flags) {
    if (flag.value < 1 || flag.value > (std::int64_t{1} << 31)) {
      refuse_usage(std::string(flag.name), {.expected = "a size from 1 to the number of ranks",
                                            .got = fmt::format("{}", flag.value),
                                            .remedy = "leave it out for 1"});
    }
    product = std::min(product * flag.value, std::int64_t{1} << 31);
    if (flag.value > 1) sizes += fmt::format("{}{} {}", sizes.empty() ? "" : " ", flag.name, flag.value);
  }
  if (world % product == 0) return;
  std::string remedy =
      world < product ? fmt::format("start {} or {} ranks", product, 2 * product)
                      : fmt::format("start {} or {} ranks", world / product * product, (world / product + 1) * product);
  for (const SizeFlag& flag : flags) {
    const std::int64_t others = product / flag.value;
    if (flag.value == 1 || world % others != 0) continue;
    std::vector<std::int64_t> fitting;
    for (std::int64_t v = 1; v <= world / others; ++v) {
      if (world / others % v == 0) fitting.push_back(v);
    }
    remedy += fmt::format(", or use {} {}", flag.name, fmt::join(fitting, " or "));
  }
  refuse_usage(sizes, {.expected = fmt::format("a number of ranks that is a multiple of {}", product),
                       .got = fmt::format("{}", world),
                       .remedy = remedy});
}

}  // namespace

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, kNumAxes> kNames = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"};
  return kNames[static_cast<std::size_t>(axis)];
}

std::int64_t MeshSizes::operator[](Axis axis) const {
  const std::array<std::int64_t, kNumAxes> all = {tp, cp, dp, pp, etp, ep, edp};
  return all[static_cast<std::size_t>(axis)];
}

int MeshCoordinates::operator[](Axis axis) const {
  const std::array<int, kNumAxes> all = {tp, cp, dp, pp, etp, ep, edp};
  return all[static_cast<std::size_t>(axis)];
}

MeshSizes make_mesh_sizes(const MeshRequest& request) {
  require(request.world_size > 0, "make_mesh_sizes without ranks");
  const SizeFlag tp{"--tensor-model-parallel-size", request.tensor_model_parallel_size};
  const SizeFlag cp{"--context-parallel-size", request.context_parallel_size};
  const SizeFlag pp{"--pipeline-model-parallel-size", request.pipeline_model_parallel_size};
  const SizeFlag ep{"--expert-model-parallel-size", request.expert_model_parallel_size};
  const SizeFlag etp{"--expert-tensor-parallel-size", request.expert_tensor_parallel_size};
  check_divides(request.world_size, {tp, cp, pp});
  check_divides(request.world_size, {etp, ep, pp});
  return {.tp = tp.value,
          .cp = cp.value,
          .dp = request.world_size / (tp.value * cp.value * pp.value),
          .pp = pp.value,
          .etp = etp.value,
          .ep = ep.value,
          .edp = request.world_size / (etp.value * ep.value * pp.value)};
}

MeshCoordinates coordinates_of(const MeshSizes& sizes, int rank) {
  require(rank >= 0 && rank < sizes.world(), "coordinates_of a rank outside the mesh");
  require(sizes.etp * sizes.ep * sizes.edp * sizes.pp == sizes.world(), "the two views of a mesh differ in size");
  return {.tp = coordinate(sizes, rank, Axis::kTp),
          .cp = coordinate(sizes, rank, Axis::kCp),
          .dp = coordinate(sizes, rank, Axis::kDp),
          .pp = coordinate(sizes, rank, Axis::kPp),
          .etp = coordinate(sizes, rank, Axis::kEtp),
          .ep = coordinate(sizes, rank, Axis::kEp),
          .edp = coordinate(sizes, rank, Axis::kEdp)};
}

std::vector<int> group_of(const MeshSizes& sizes, int rank, std::initializer_list<Axis> axes) {
  require(rank >= 0 && rank < sizes.world(), "group_of a rank outside the mesh");
  const auto within = [&](const std::array<Axis, 4>& order) {
    return std::all_of(axes.begin(), axes.end(), [&](Axis a) { return contains(order, a); });
  };
  require(within(kDenseOrder) || within(kExpertOrder), "group_of axes of different views");
  const std::array<Axis, 4>& order = within(kDenseOrder) ? kDenseOrder : kExpertOrder;
  std::vector<int> ranks;
  for (int other = 0; other < sizes.world(); ++other) {
    const bool differs = std::any_of(order.begin(), order.end(), [&](Axis axis) {
      const bool free = std::find(axes.begin(), axes.end(), axis) != axes.end();
      return !free && coordinate(sizes, other, axis) != coordinate(sizes, rank, axis);
    });
    if (!differs) ranks.push_back(other);
  }
  return ranks;
}

std::string rank_place(const MeshSizes& sizes, int rank) {
  const MeshCoordinates at = coordinates_of(sizes, rank);
  std::string text = fmt::format("dp {} pp {} tp {}", at.dp, at.pp, at.tp);
  if (sizes.cp > 1) text += fmt::format(" cp {}", at.cp);
  if (sizes.ep > 1) text += fmt::format(" ep {}", at.ep);
  if (sizes.etp > 1) text += fmt::format(" etp {}", at.etp);
  return text;
}

std::string rank_label(const MeshSizes& sizes, int rank) {
  return fmt::format("rank {}/{} ({})", rank, sizes.world(), rank_place(sizes, rank));
}

std::string describe_sizes(const MeshSizes& s) {
  return fmt::format("dense tp {} x cp {} x dp {} x pp {}, expert etp {} x ep {} x edp {} x pp {}", s.tp, s.cp, s.dp,
                     s.pp, s.etp, s.ep, s.edp, s.pp);
}

}  // namespace megalith
