#include "parallel/data_parallel/parameter_gatherer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/layers/parameter.h"

namespace megalith {

ParameterGatherer::ParameterGatherer(Communicator& group, const BucketStreams& streams,
                                     const std::vector<std::vector<Tensor>>& buckets, Communicator* instances)
    : compute_(streams.compute), lane_(group, streams.communication, "parameters") {
  add_buckets(group, buckets, instances);
}

void ParameterGatherer::add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                                    Communicator* instances) {
  const int ranks = group.size() * (instances == nullptr ? 1 : instances->size());
  for (const std::vector<Tensor>& tensors : buckets) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.ranges = flat_ranges(tensors, "weights", ranks);
    bucket.group = &group;
    bucket.instances = instances;
  }
}

bool ParameterGatherer::is_alone() const {
  return std::ranges::all_of(
      buckets_, [](const Bucket& bucket) { return bucket.group->size() == 1 && bucket.instances == nullptr; });
}

void ParameterGatherer::updated() {
  require(pending_.empty(), "ParameterGatherer::updated while parameters of the step before are gathered");
  if (!is_alone()) lane_.begin(compute_);
}

void ParameterGatherer::gather(int bucket) {
  require(bucket >= 0 && bucket < num_buckets(), "ParameterGatherer::gather of an unknown bucket");
  require(std::find(pending_.begin(), pending_.end(), bucket) == pending_.end(),
          "ParameterGatherer::gather of a bucket that is being gathered");
  if (is_alone()) return;
  Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  const auto gather = [&](Communicator& group, const Tensor& whole) {
    const Tensor own = FlatShard{.rank = group.rank(), .ranks = group.size()}.of(whole);
    launch(lane_.stream,
           AllGather{.group = group, .in = own, .out = whole, .label = fmt::format("parameters of bucket {}", bucket)});
    ++ranges_gathered_;
  };
  const FlatShard shard{.rank = b.group->rank(), .ranks = b.group->size()};
  for (const Tensor& range : b.ranges) {
    if (b.instances != nullptr) gather(*b.instances, shard.of(range));
    if (b.group->size() > 1) gather(*b.group, range);
  }
  lane_.stream.record(b.gathered);
  pending_.push_back(bucket);
  ++buckets_gathered_;
}

void ParameterGatherer::add_to(int bucket, const std::function<void(Stream&)>& enqueue) {
  require(std::find(pending_.begin(), pending_.end(), bucket) != pending_.end(),
          "ParameterGatherer::add_to a bucket that is not being gathered");
  enqueue(lane_.stream);
  lane_.stream.record(buckets_[static_cast<std::size_t>(bucket)].gathered);
}

void ParameterGatherer::wait(int bucket) {
  const auto found = std::find(pending_.begin(), pending_.end(), bucket);
  if (found == pending_.end()) return;
  compute_.wait(buckets_[static_cast<std::size_t>(bucket)].gathered);
  pending_.erase(pending_.begin(), found + 1);
}

void ParameterGatherer::wait_for_all() {
  if (!pending_.empty()) wait(pending_.back());
}

}  // namespace megalith
