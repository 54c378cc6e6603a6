// The second half of a distributed optimizer's step (ZeRO-1, arXiv:1910.02054): each rank has updated its shard of the
// weights (bf16 | fp32), and all ranks gather the whole, bucket by bucket on the communication stream, while the
// compute stream is already in the next forward pass and waits for a bucket where it first uses it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "parallel/data_parallel/gradient_reducer.h"

namespace megalith {

class ParameterGatherer {
 public:
  // A bucket is a list of contiguous ranges, each a multiple of the groups' sizes. `instances`, or null: the ranks that
  // have each updated a part of this rank's shard, which they gather first. Groups and streams outlive the gatherer.
  ParameterGatherer(Communicator& group, const BucketStreams& streams, const std::vector<std::vector<Tensor>>& buckets,
                    Communicator* instances = nullptr);
  // Behind those there are, of units whose copies other ranks hold, on the same streams.
  void add_buckets(Communicator& group, const std::vector<std::vector<Tensor>>& buckets,
                   Communicator* instances = nullptr);

  int num_buckets() const { return static_cast<int>(buckets_.size()); }

  // The update of this rank's shards was enqueued on the compute stream: what is gathered from here on is new.
  void updated();
  // Starts a bucket. All ranks must come here with the buckets in the same order, each once per update.
  void gather(int bucket);
  // `enqueue` puts on the communication stream what the weights of a started bucket also need.
  void add_to(int bucket, const std::function<void(Stream&)>& enqueue);
  // What is enqueued on the compute stream from here on sees the bucket's weights, and those of the buckets started
  // before it. Nothing where its gather was waited for already, or none was started.
  void wait(int bucket);
  void wait_for_all();
  // Nothing is being gathered; for a step that broke off. The streams are empty.
  void reset() { pending_.clear(); }

  // Since construction; they stay 0 where each group is of one rank, where nothing is enqueued.
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
  CommLane lane_;  // which ends bucket by bucket
  std::deque<Bucket> buckets_;
  std::vector<int> pending_;  // started and not waited for, in the order of the communication stream
  std::int64_t buckets_gathered_ = 0;
  std::int64_t ranges_gathered_ = 0;
};

}  // namespace megalith
