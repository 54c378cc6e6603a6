// Text generation with a KV cache, on the same segments as training: one prefill, then one token of each prompt per
// step. All varying inputs of a step are on the device, also the sampled tokens. A step thus is one replayed graph, and
// is enqueued ahead of the host's read of the previous token.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "apps/config/options.h"
#include "apps/generate/inference_model.h"
#include "core/device/graph.h"
#include "core/device/stream.h"
#include "core/memory/host_arena.h"

namespace megalith {

class Generator {
 public:
  struct Sizes {
    std::int64_t sequences = 1;  // generated in one batch
    std::int64_t prompt = 0;     // tokens per sequence
    std::int64_t tokens = 0;     // tokens per sequence, with the sampled tokens
  };
  struct Speed {
    std::int64_t tokens = 0;  // sampled tokens of all sequences, while the clock ran
    double seconds = 0;
  };
  // Callback with one token of each sequence, for each position; returns true to continue.
  using Emit = std::function<bool(std::span<const std::int32_t>)>;

  // `options.model` is resolved, with the vocabulary; `most` bounds every call of generate(). `ranks` shard the weights
  // and make the same calls, without graphs; null: one rank.
  Generator(const Options& options, DeviceType device, const Sizes& most, Communicator* ranks = nullptr,
            Instruments instruments = {});

  ~Generator();

  // Memory of a generator on each of a number of ranks.
  static InferenceBytes bytes(const Options& options, const Sizes& most, int ranks);

  ParameterStore& parameters() { return model_.parameters(); }
  Stream& compute() { return model_.compute(); }

  // Generates tokens; `prompts` is [sizes.sequences, sizes.prompt], at least one token each. `streams`: each sequence's
  // number for its draws, which do not depend on the other sequences; empty: its index.
  void generate(std::span<const std::int32_t> prompts, const Sizes& sizes, const Emit& emit,
                std::span<const std::int32_t> streams = {});

  // Speed of the last generate(), without the first steps, which set up libraries and capture.
  Speed speed() const { return speed_; }
  // Captured step for this number of sequences; null if there is none.
  const Graph* graph(std::int64_t sequences) const;
  const ShardedForward* shards() const { return model_.shards(); }  // null on one rank

 private:
  // State of calls for a number of sequences; kept, as its graph is kept.
  struct Batch {
    KvCache cache = {};
    ArenaPlan plan = {};  // of a step
    std::unique_ptr<Graph> graph = {};
    bool warm = false;  // a step ran eagerly
  };
  struct Numbers {          // on the device
    std::int32_t start;     // position of the step's first token
    std::int32_t position;  // position of the token to be sampled
  };

  Batch& batch_of(std::int64_t sequences);
  ArenaPlan plan(const Sizes& sizes, bool prefill) const;
  // Reads `prompts` and samples the next tokens.
  void prefill(std::span<const std::int32_t> prompts, const Sizes& sizes, std::span<const std::int32_t> streams);
  // Enqueues a step that reads the last tokens and samples the next, as a graph if there is one.
  void step(std::int64_t sequences);
  void enqueue(std::int64_t sequences, std::int64_t length, const Tensor& tokens);
  void copy_drawn(std::int64_t sequences, std::int64_t turn);  // to the host
  Tensor drawn(std::int64_t sequences) const { return drawn_.slice(0, 0, sequences); }

  const Options& options_;
  Sizes most_;
  InferenceModel model_;
  std::vector<Tensor> keys_, values_;  // of the cache, by layer
  Numbers* numbers_;
  Tensor drawn_, streams_;  // [most sequences] int32
  HostArena host_;
  Numbers* host_numbers_;
  std::int32_t* host_prompts_;
  std::int32_t* host_streams_;
  std::int32_t* host_drawn_[2];  // used alternately
  Event read_[2] = {Event("token read"), Event("token read")};
  ArenaPlan prefill_plan_;
  std::map<std::int64_t, Batch> batches_;  // by number of sequences
  Speed speed_;
};

// check_memory() of a generator.
void check_memory(const Options& options, const Generator::Sizes& most, int ranks, std::size_t free);

}  // namespace megalith
