// Weight gather of a distributed optimizer (ZeRO-1, arXiv:1910.02054). Each rank has updated its shard of the weights
// (bf16 | fp32). All ranks gather the unsharded weights by bucket on the communication stream. The compute stream
// meanwhile runs the next forward pass, and waits for a bucket at its first use.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "parallel/data_parallel/gradient_reducer.h"

namespace megalith {

class ParameterGatherer {
 public:
  // A bucket is a list of contiguous ranges, each a multiple of the groups' sizes. `instances`, or null: ranks that
  // each updated a part of this rank's shard, which they gather first. Groups and streams outlive the gatherer.
  ParameterGatherer(Communicator& group, const BucketStreams& streams, const std::vector<std::vector<Tensor>>& buckets,
                    Communicator* instances = nullptr);
  // Appends buckets of units that other ranks replicate, on the same streams.
  void add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                   Communicator* instances = nullptr);

  int num_buckets() const { return static_cast<int>(buckets_.size()); }

  // Makes later gathers wait for the update of this rank's shards on the compute stream.
  void updated();
  // Starts a bucket. All ranks call it in the same bucket order, once per bucket and update.
  void gather(int bucket);
  // Calls `enqueue` for the communication stream, for extra work that a started bucket's weights require.
  void add_to(int bucket, const std::function<void(Stream&)>& enqueue);
  // Makes the compute stream wait for the bucket and for the buckets started before it. No effect if the bucket was not
  // started or was waited for already.
  void wait(int bucket);
  void wait_for_all();
  // Discards all gathers, after an aborted step. The streams must be idle.
  void reset() { pending_.clear(); }

  // Counts since construction; 0 if each group has one rank, where nothing is enqueued.
  std::int64_t buckets_gathered() const { return buckets_gathered_; }
  std::int64_t ranges_gathered() const { return ranges_gathered_; }

 private:
  struct Bucket {
    std::vector<Tensor> ranges;
    Communicator* group = nullptr;
    Communicator* instances = nullptr;
    Event gathered{"parameters gathered"};
  };

  bool is_alone() const;

  Stream& compute_;
  CommLane lane_;  // ends once per bucket
  std::deque<Bucket> buckets_;
  std::vector<int> pending_;  // started but not waited for, in the order of the communication stream
  std::int64_t buckets_gathered_ = 0;
  std::int64_t ranges_gathered_ = 0;
};

}  // namespace megalith
