#include "parallel/data_parallel/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/layers/parameter.h"
#include "core/tensor/check.h"

namespace megalith {

std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> unit_numels, std::int64_t bucket_size) {
  if (bucket_size < 1) {
    refuse_usage("--ddp-bucket-size", {.expected = "at least 1 element", .got = fmt::format("{}", bucket_size)});
  }
  std::vector<std::vector<int>> buckets;
  std::int64_t filled = bucket_size;
  for (std::size_t unit = 0; unit < unit_numels.size(); ++unit) {
    if (unit_numels[unit] == 0) continue;
    if (filled >= bucket_size) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(static_cast<int>(unit));
    filled += unit_numels[unit];
  }
  return buckets;
}

std::vector<Tensor> flat_ranges(const std::vector<Tensor>& tensors, std::string_view name, int ranks) {
  std::vector<Tensor> ranges;
  for (const Tensor& tensor : tensors) {
    check_contiguous(tensor, name);
    require(tensor.numel() % ranks == 0, "a scattered or gathered range is a multiple of the ranks");
    if (tensor.numel() > 0) ranges.push_back(tensor.view({tensor.numel()}));
  }
  return ranges;
}

GradientReducer::GradientReducer(Communicator& group, const BucketStreams& streams,
                                 const std::vector<std::vector<Tensor>>& buckets, Result result,
                                 Communicator* instances)
    : compute_(streams.compute), lane_(group, streams.communication, "gradients"), result_(result) {
  add_buckets(group, buckets, instances);
}

void GradientReducer::add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                                  Communicator* instances) {
  require(instances == nullptr || result_ != Result::kWhole, "instances of shards without shards");
  for (const std::vector<Tensor>& tensors : buckets) {
    for (const Tensor& tensor : tensors) check_dtype(tensor, kFloatTypes, "main_grad");
    const int ranks = result_ == Result::kWhole   ? 1
                      : result_ == Result::kShard ? group.size()
                                                  : group.size() * instances->size();
    buckets_.push_back({.ranges = flat_ranges(tensors, "main_grad", ranks), .group = group, .instances = instances});
    require(!buckets_.back().ranges.empty(), "a gradient bucket without elements");
  }
}

void GradientReducer::reduce(int bucket) {
  require(bucket >= 0 && bucket < num_buckets(), "GradientReducer::reduce of an unknown bucket");
  Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  if (b.started) {
    fail({.subject = fmt::format("gradient bucket {}", bucket),
          .expected = "one reduction per step",
          .got = "a second one, which would count its gradients twice",
          .remedy = "enqueue one reduce action for each bucket"});
  }
  b.started = true;
  if (b.is_alone()) return;
  lane_.begin(compute_);
  for (const Tensor& range : b.ranges) reduce(b, range, fmt::format("gradients of bucket {}", bucket));
  lane_.end();
  ++buckets_reduced_;
}

void GradientReducer::reduce(const Bucket& bucket, const Tensor& range, const std::string& label) {
  bytes_reduced_ += static_cast<std::int64_t>(range.bytes());
  if (result_ == Result::kWhole) {
    launch(lane_.stream, AllReduce{.group = bucket.group, .buffer = range, .label = label});
    return;
  }
  const Tensor own = FlatShard{.rank = bucket.group.rank(), .ranks = bucket.group.size()}.of(range);
  if (bucket.group.size() > 1) {
    launch(lane_.stream, ReduceScatter{.group = bucket.group, .in = range, .out = own, .label = label});
    ++ranges_scattered_;
  }
  if (bucket.instances == nullptr) return;
  Communicator& instances = *bucket.instances;
  if (result_ == Result::kShard) {
    launch(lane_.stream, AllReduce{.group = instances, .buffer = own, .label = label});
    return;
  }
  const Tensor owned = FlatShard{.rank = instances.rank(), .ranks = instances.size()}.of(own);
  launch(lane_.stream, ReduceScatter{.group = instances, .in = own, .out = owned, .label = label});
}

void GradientReducer::finish() {
  const auto missing = std::find_if(buckets_.begin(), buckets_.end(), [](const Bucket& b) { return !b.started; });
  if (missing != buckets_.end()) {
    fail({.subject = fmt::format("gradient bucket {}", missing - buckets_.begin()),
          .expected = "its reduction before the step",
          .got = "none",
          .remedy = "enqueue one reduce action for each bucket"});
  }
  reset();
  lane_.wait(compute_);  // waits for the bucket started last
}

void GradientReducer::reset() {
  for (Bucket& bucket : buckets_) bucket.started = false;
}

}  // namespace megalith
