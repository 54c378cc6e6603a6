// Text generation with a KV cache: one prefill of the prompt, then one token a step, on the same segments as training.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/options.h"
#include "core/device/arena.h"
#include "core/device/host_arena.h"
#include "core/device/memory_pool.h"
#include "core/device/stream.h"
#include "core/model/gpt.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

class Generator {
 public:
  // `options.model` is resolved, vocabulary included. Room for `max_tokens` positions, prompt included.
  Generator(const Options& options, DeviceType device, std::int64_t max_tokens, Instruments instruments = {});

  ParameterStore& parameters() { return *gpt_.parameters; }
  Stream& compute() { return compute_; }

  // Continues `prompt` (at least one token) by up to `count` tokens; `emit` gets each and says whether to go on.
  void generate(std::span<const std::int32_t> prompt, std::int64_t count,
                const std::function<bool(std::int32_t)>& emit);

 private:
  // Runs `tokens` at positions start.. and draws the token that follows them.
  void step(std::span<const std::int32_t> tokens, std::int64_t start);
  std::int32_t drawn();
  ArenaPlan plan(std::int64_t tokens) const;

  const Options& options_;
  std::int64_t max_tokens_;
  MemoryPool pool_;
  Stream compute_;
  Arena arena_;
  GptModel gpt_;
  KvCache cache_;
  const Context ctx_;
  std::unique_ptr<SegmentRunner> runner_;
  // What the stream copies from and to.
  struct Numbers {
    std::int32_t start;     // position of the step's first token
    std::int32_t position;  // of the token to be drawn
    std::int32_t next;      // the token drawn
  };
  Numbers* numbers_;  // device
  HostArena host_;
  Numbers* host_numbers_;
  std::int32_t* host_tokens_;  // [max_tokens]
};

}  // namespace megalith
