#include "parallel/data_parallel/parameter_gatherer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/layers/flat_shard.h"
#include "core/tensor/check.h"

namespace megalith {

ParameterGatherer::ParameterGatherer(Communicator& group, const Streams& streams,
                                     const std::vector<std::vector<Tensor>>& buckets)
    : group_(group), streams_(streams), buckets_(buckets.size()) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const Tensor& tensor : buckets[b]) {
      check_contiguous(tensor, "weights");
      require(tensor.numel() % group.size() == 0, "a gathered range is a multiple of the ranks");
      if (tensor.numel() > 0) buckets_[b].ranges.push_back(tensor.view({tensor.numel()}));
    }
  }
}

void ParameterGatherer::updated() {
  require(pending_.empty(), "ParameterGatherer::updated while parameters of the step before are gathered");
  if (group_.size() == 1 || buckets_.empty()) return;
  streams_.compute.record(updated_);
  streams_.communication.wait(updated_);
}

void ParameterGatherer::gather(int bucket) {
  require(bucket >= 0 && bucket < num_buckets(), "ParameterGatherer::gather of an unknown bucket");
  require(std::find(pending_.begin(), pending_.end(), bucket) == pending_.end(),
          "ParameterGatherer::gather of a bucket that is being gathered");
  if (group_.size() == 1) return;
  Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  const FlatShard own{.rank = group_.rank(), .ranks = group_.size()};
  for (const Tensor& range : b.ranges) {
    group_.label_next(fmt::format("parameters of bucket {}", bucket));
    group_.all_gather(streams_.communication, own.of(range), range);
    ++ranges_gathered_;
  }
  streams_.communication.record(b.gathered);
  pending_.push_back(bucket);
  ++buckets_gathered_;
}

void ParameterGatherer::add_to(int bucket, const std::function<void(Stream&)>& enqueue) {
  require(std::find(pending_.begin(), pending_.end(), bucket) != pending_.end(),
          "ParameterGatherer::add_to a bucket that is not being gathered");
  enqueue(streams_.communication);
  streams_.communication.record(buckets_[static_cast<std::size_t>(bucket)].gathered);
}

void ParameterGatherer::wait(int bucket) {
  const auto found = std::find(pending_.begin(), pending_.end(), bucket);
  if (found == pending_.end()) return;
  streams_.compute.wait(buckets_[static_cast<std::size_t>(bucket)].gathered);
  pending_.erase(pending_.begin(), found + 1);
}

void ParameterGatherer::wait_for_all() {
  if (!pending_.empty()) wait(pending_.back());
}

}  // namespace megalith
