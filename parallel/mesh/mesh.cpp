#include "parallel/mesh/mesh.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {

Mesh Mesh::create(Communicator& world, const MeshSizes& sizes) {
  if (world.size() != sizes.world() || sizes.etp * sizes.ep * sizes.edp * sizes.pp != sizes.world()) {
    fail({.subject = "mesh", .expected = describe_sizes(sizes), .got = fmt::format("{} ranks", world.size())});
  }
  Mesh mesh;
  mesh.sizes_ = sizes;
  mesh.rank_ = world.rank();
  mesh.coordinates_ = coordinates_of(sizes, world.rank());
  mesh.world_ = &world;
  const auto make = [&](std::initializer_list<Axis> axes, const std::string& name) -> std::unique_ptr<Communicator> {
    const std::vector<int> ranks = group_of(sizes, world.rank(), axes);
    if (ranks.size() == 1) return std::make_unique<SingleCommunicator>(name);
    return world.subgroup(ranks, name);
  };
  for (int i = 0; i < kNumAxes; ++i)
    mesh.groups_.push_back(make({static_cast<Axis>(i)}, std::string(name_of(static_cast<Axis>(i)))));
  mesh.dp_cp_ = make({Axis::kCp, Axis::kDp}, "dp_cp");
  mesh.model_ = make({Axis::kTp, Axis::kPp}, "model");
  mesh.dispatch_ = make({Axis::kEtp, Axis::kEp}, "dispatch");
  return mesh;
}

}  // namespace megalith
