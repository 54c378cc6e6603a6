#include "parallel/mesh/instance_groups.h"

#include <string>
#include <vector>

#include "parallel/comm/single_communicator.h"

namespace megalith {

InstanceGroups split_into_instances(Communicator& group, int instances) {
  require(instances > 0 && group.size() % instances == 0, "split_into_instances of ranks that they do not divide");
  const int size = group.size() / instances;
  const auto make = [&](int first, int count, int stride, const std::string& name) -> std::unique_ptr<Communicator> {
    if (count == 1) return std::make_unique<SingleCommunicator>(name);
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
    return group.subgroup(ranks, name);
  };
  InstanceGroups groups;
  groups.shards = make(group.rank() / size * size, size, 1, group.name() + "_inner");
  groups.instances = make(group.rank() % size, instances, size, group.name() + "_outer");
  return groups;
}

}  // namespace megalith
