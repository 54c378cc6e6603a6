#include "parallel/mesh/mesh.h"

#include <fmt/format.h>

#include <vector>

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
  mesh.tp_ = mesh.make_group({Axis::kTp}, "tp");
  mesh.cp_ = mesh.make_group({Axis::kCp}, "cp");
  mesh.pp_ = mesh.make_group({Axis::kPp}, "pp");
  mesh.dp_cp_ = mesh.make_group({Axis::kCp, Axis::kDp}, sizes.cp > 1 ? "dp_cp" : "dp");
  mesh.dispatch_ = mesh.make_group({Axis::kEtp, Axis::kEp}, "dispatch");
  return mesh;
}

std::unique_ptr<Communicator> Mesh::make_group(std::initializer_list<Axis> axes, const std::string& name) const {
  const std::vector<int> ranks = group_of(sizes_, rank_, axes);
  if (ranks.size() == 1) return std::make_unique<SingleCommunicator>(name);
  return world_->subgroup(ranks, name);
}

}  // namespace megalith
