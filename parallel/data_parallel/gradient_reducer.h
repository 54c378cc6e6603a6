// Data parallelism: the main gradients (fp32 | bf16) of all replicas are summed in buckets, each as soon as its last
// gradient was enqueued, while the backward pass of earlier layers still computes (PyTorch DDP, arXiv:2006.15704). The
// sum is not divided: the loss is scaled by the global number of tokens. For a distributed optimizer (ZeRO,
// arXiv:1910.02054) each rank gets its shard of the sum alone, with the same bits (NCCL's may differ). Where groups of
// ranks hold all shards each (HSDP), these sums are then summed over the groups.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

// The indices of the units of each bucket, which are consecutive: a bucket is closed when it holds at least
// `bucket_size` elements (--ddp-bucket-size). `unit_numels`: last layer first, as gradients become ready. Empty units
// are in none.
std::vector<std::vector<int>> assign_buckets(std::span<const std::int64_t> unit_numels, std::int64_t bucket_size);

// The tensors of a bucket as flat ranges, without empty ones: contiguous, and multiples of `ranks`. `name` is for
// errors.
std::vector<Tensor> flat_ranges(const std::vector<Tensor>& tensors, std::string_view name, int ranks);

struct BucketStreams {
  Stream& compute;        // writes and uses gradients and weights
  Stream& communication;  // the only one that uses the group during the backward pass
};

class GradientReducer {
 public:
  enum class Result : std::uint8_t {
    kWhole,  // on every rank: all_reduce
    kShard,  // on each rank its part of each range, the others are then of no meaning: reduce_scatter
    kOwned,  // of that part what this instance's rank owns: a second one
  };

  // A bucket is a list of contiguous fp32 | bf16 ranges, not empty, the same on all ranks; a call reduces each. With
  // shards each is a multiple of the group's size, with kOwned also times that of `instances`: the ranks that have the
  // same shards in other groups, or null. The groups and the streams outlive the reducer.
  GradientReducer(Communicator& group, const BucketStreams& streams, const std::vector<std::vector<Tensor>>& buckets,
                  Result result = Result::kWhole, Communicator* instances = nullptr);
  // Behind those there are, of units whose copies other ranks hold, on the same streams.
  void add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                   Communicator* instances = nullptr);

  int num_buckets() const { return static_cast<int>(buckets_.size()); }

  // The last gradient of the bucket was enqueued on the compute stream: starts its reduction. All ranks must come here
  // with the buckets in the same order, each once before finish().
  void reduce(int bucket);

  // What is enqueued on the compute stream from here on sees reduced gradients. All buckets have been started.
  void finish();
  // No bucket was started; for a step that broke off.
  void reset();

  // Since construction; they stay 0 where one rank is alone and nothing is enqueued.
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
