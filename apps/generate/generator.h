// Continues prompts with a KV cache, on the same segments as training: one prefill, then one token of each prompt a
// step. What a step reads that varies lies on the device, the drawn tokens too, so that a step is one replayed graph
// and is enqueued before the host has seen the token of the step before.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "apps/config/options.h"
#include "core/device/graph.h"
#include "core/device/stream.h"
#include "core/memory/arena.h"
#include "core/memory/host_arena.h"
#include "core/memory/memory_pool.h"
#include "core/model/gpt.h"
#include "fsdp/sharded_forward.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

class Generator {
 public:
  struct Sizes {
    std::int64_t sequences = 1;  // side by side
    std::int64_t prompt = 0;     // tokens of each
    std::int64_t tokens = 0;     // likewise, with those that are drawn
  };
  struct Speed {
    std::int64_t tokens = 0;  // of all sequences, drawn while the clock ran
    double seconds = 0;
  };
  // Called with one token of each sequence, for each position; says whether to go on.
  using Emit = std::function<bool(std::span<const std::int32_t>)>;

  // `options.model` is resolved, vocabulary included; `most` bounds every call of generate(). `ranks`, or null: share
  // out the weights; all of them make the same calls, and no step is a graph.
  Generator(const Options& options, DeviceType device, const Sizes& most, Communicator* ranks = nullptr,
            Instruments instruments = {});

  ~Generator();

  // What a generator of so many ranks takes on each.
  struct Bytes {
    std::size_t weights = 0;   // shards, slots and what stays whole
    std::size_t kv_cache = 0;  // and what else lasts
    std::size_t arena = 0;     // of a step
    std::size_t total() const { return weights + kv_cache + arena; }
  };
  static Bytes bytes(const Options& options, const Sizes& most, int ranks);

  ParameterStore& parameters() { return *gpt_.parameters; }
  Stream& compute() { return compute_; }

  // `prompts` is [sizes.sequences, sizes.prompt], at least one token each.
  void generate(std::span<const std::int32_t> prompts, const Sizes& sizes, const Emit& emit);

  // Of the last generate(): of the steps behind the first few, which set libraries up and capture.
  Speed speed() const { return speed_; }
  // The captured step of so many sequences; null before there is one.
  const Graph* graph(std::int64_t sequences) const;
  const ShardedForward* shards() const { return shards_.get(); }  // null on one rank

 private:
  // What a call for so many sequences needs; kept, because its graph is.
  struct Batch {
    KvCache cache = {};
    ArenaPlan plan = {};  // of a step
    std::unique_ptr<Graph> graph = {};
    bool warm = false;  // a step ran eagerly
  };
  struct Numbers {          // on the device
    std::int32_t start;     // position of the step's first token
    std::int32_t position;  // of the token to be drawn
  };

  Batch& batch_of(std::int64_t sequences);
  ArenaPlan plan(const Sizes& sizes, bool prefill) const;
  // Reads `prompts`, draws the tokens that follow them.
  void prefill(std::span<const std::int32_t> prompts, const Sizes& sizes);
  // Reads the tokens drawn last, and draws the next: enqueues it, by the graph where there is one.
  void step(std::int64_t sequences);
  void enqueue(std::int64_t sequences, std::int64_t length, const Tensor& tokens);
  void copy_drawn(std::int64_t sequences, std::int64_t turn);  // to the host
  Tensor drawn(std::int64_t sequences) const { return drawn_.slice(0, 0, sequences); }

  const Options& options_;
  Sizes most_;
  MemoryPool pool_;
  Stream compute_;
  Arena arena_;
  GptModel gpt_;
  const Context ctx_;
  std::unique_ptr<SegmentRunner> runner_;
  std::unique_ptr<ShardedForward> shards_;
  std::vector<Tensor> keys_, values_;  // of the cache, by layer
  Numbers* numbers_;
  Tensor drawn_;  // [most sequences] int32
  HostArena host_;
  Numbers* host_numbers_;
  std::int32_t* host_prompts_;
  std::int32_t* host_drawn_[2];  // in turn
  Event read_[2] = {Event("token read"), Event("token read")};
  ArenaPlan prefill_plan_;
  std::map<std::int64_t, Batch> batches_;  // by the number of sequences
  Speed speed_;
};

// Exit code 6 where a rank's part of it is more than `free` bytes, with the ranks that would do; 0: nobody knows what
// is free.
void check_memory(const Options& options, const Generator::Sizes& most, int ranks, std::size_t free);

}  // namespace megalith
