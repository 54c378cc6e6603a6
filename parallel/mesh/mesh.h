// Mesh of ranks: the groups of ranks that work together (mesh_sizes.h maps ranks to coordinates).
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

// Groups of one rank that layers and steps use. Each group costs a communicator and its start-up time, except groups of
// one rank. Groups are never null.
class Mesh {
 public:
  // Collective over `world`, whose size is sizes.world(); `world` outlives the mesh. Works with a PlanCommunicator.
  static Mesh create(Communicator& world, const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int rank() const { return rank_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  std::string label() const { return rank_label(sizes_, rank_); }

  Communicator& world() const { return *world_; }
  Communicator& tp() const { return *tp_; }
  Communicator& cp() const { return *cp_; }
  // For sums on the compute stream; messages between stages have separate groups.
  Communicator& pp() const { return *pp_; }
  // Holders of the same dense weights, over which gradients are summed. The name is "dp" if cp is 1.
  Communicator& dp_cp() const { return *dp_cp_; }
  // etp x ep ranks, which together hold all experts of a layer. Rank: ep x (etp ranks) + etp.
  Communicator& dispatch() const { return *dispatch_; }

  // Creates a group of the ranks that differ along `axes` (group_of). Collective over the world.
  std::unique_ptr<Communicator> make_group(std::initializer_list<Axis> axes, const std::string& name) const;

 private:
  Mesh() = default;

  MeshSizes sizes_;
  int rank_ = 0;
  MeshCoordinates coordinates_;
  Communicator* world_ = nullptr;
  std::unique_ptr<Communicator> tp_, cp_, pp_, dp_cp_, dispatch_;
};

}  // namespace megalith
