// Gradient reduction of data parallelism. Main gradients (fp32 | bf16) of all replicas are summed in buckets. A bucket
// starts when its last gradient is enqueued, concurrently with the backward pass of earlier layers (PyTorch DDP,
// arXiv:2006.15704). The sum is not divided: the loss is scaled by the global number of tokens. For a distributed
// optimizer (ZeRO, arXiv:1910.02054), each rank gets only its shard of the sum, with equal bits (except NCCL's). If
// several groups of ranks hold all shards (HSDP), the sums are then summed over the groups.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

// Unit indices of each bucket, which are consecutive. A bucket is closed when it holds at least `bucket_size` elements
// (--ddp-bucket-size). `unit_numels`: last layer first, as gradients become ready. Empty units are in no bucket.
std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> unit_numels, std::int64_t bucket_size);

// Tensors of a bucket as contiguous flat ranges, without empty ranges, in multiples of `ranks`. `name` is for errors.
std::vector<Tensor> flat_ranges(const std::vector<Tensor>& tensors, std::string_view name, int ranks);

struct BucketStreams {
  Stream& compute;        // writes and uses gradients and weights
  Stream& communication;  // only user of the group during the backward pass
};

class GradientReducer {
 public:
  enum class Result : std::uint8_t {
    kWhole,  // all-reduce: the sum on every rank
    kShard,  // reduce-scatter: each rank's part of each range; other parts are undefined
    kOwned,  // second reduce-scatter: the part that this instance's rank owns
  };

  // A bucket is a non-empty list of contiguous fp32 | bf16 ranges, equal on all ranks; one call reduces each range. For
  // kShard a range is a multiple of the group's size; for kOwned also of `instances` times that. `instances`: the ranks
  // with the same shards in other groups, or null. Groups and streams outlive the reducer.
  GradientReducer(Communicator& group, const BucketStreams& streams, const std::vector<std::vector<Tensor>>& buckets,
                  Result result = Result::kWhole, Communicator* instances = nullptr);
  // Appends buckets of units that other ranks replicate, on the same streams.
  void add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                   Communicator* instances = nullptr);

  int num_buckets() const { return static_cast<int>(buckets_.size()); }

  // Starts the reduction after the bucket's last gradient was enqueued on the compute stream. All ranks call it in the
  // same bucket order, once per bucket before finish().
  void reduce(int bucket);

  // Makes the compute stream wait for reduced gradients. All buckets must be started.
  void finish();
  // Marks all buckets as not started, after an aborted step.
  void reset();

  // Counts since construction; 0 for a single rank, where nothing is enqueued.
  std::int64_t buckets_reduced() const { return buckets_reduced_; }
  std::int64_t bytes_reduced() const { return bytes_reduced_; }
  std::int64_t ranges_scattered() const { return ranges_scattered_; }

 private:
  struct Bucket {
    std::vector<Tensor> ranges;
    Communicator& group;
    Communicator* instances;
    bool started = false;

    bool is_alone() const { return group.size() == 1 && instances == nullptr; }
  };

  void reduce(const Bucket& bucket, const Tensor& range, const std::string& label);

  Stream& compute_;
  CommLane lane_;
  Result result_;
  std::vector<Bucket> buckets_;
  std::int64_t buckets_reduced_ = 0;
  std::int64_t bytes_reduced_ = 0;
  std::int64_t ranges_scattered_ = 0;
};

}  // namespace megalith
