// The mesh: which ranks work together on what, as groups of ranks (mesh_sizes.h says which rank is where).
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

// The groups of one rank. Groups of one rank cost nothing and are never null.
class Mesh {
 public:
  // Collective over `world`, whose size is sizes.world(); `world` outlives the mesh. Works with a PlanCommunicator.
  static Mesh create(Communicator& world, const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int rank() const { return rank_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  std::string label() const { return rank_label(sizes_, rank_); }

  Communicator& world() const { return *world_; }
  Communicator& axis(Axis axis) const { return *groups_[static_cast<std::size_t>(axis)]; }
  Communicator& tp() const { return axis(Axis::kTp); }
  Communicator& cp() const { return axis(Axis::kCp); }
  Communicator& dp() const { return axis(Axis::kDp); }
  Communicator& pp() const { return axis(Axis::kPp); }
  Communicator& edp() const { return axis(Axis::kEdp); }  // holders of the same experts, likewise
  Communicator& dp_cp() const { return *dp_cp_; }  // holders of the same dense weights: gradients are summed over it
  Communicator& model() const { return *model_; }  // tp x pp: together they hold one model
  // etp x ep: among them a token finds all experts of a layer. Rank ep x (etp ranks) + etp.
  Communicator& dispatch() const { return *dispatch_; }

 private:
  Mesh() = default;

  MeshSizes sizes_;
  int rank_ = 0;
  MeshCoordinates coordinates_;
  Communicator* world_ = nullptr;
  std::vector<std::unique_ptr<Communicator>> groups_;  // by axis
  std::unique_ptr<Communicator> dp_cp_;
  std::unique_ptr<Communicator> model_;
  std::unique_ptr<Communicator> dispatch_;
};

}  // namespace megalith
