// Options of saving and loading.
#pragma once

#include <cstdint>
#include <string>

namespace megalith {

struct CheckpointOptions {
  std::string save;
  std::string load;
  std::int64_t save_interval = 0;         // steps; 0: only at the end
  bool async_save = false;                // a background thread writes a copy in host memory
  std::int64_t keep_last = 0;             // newest verified checkpoints kept when pruning; 0: all
  std::int64_t save_retain_interval = 0;  // steps whose multiples are never pruned; 0: none
  std::int64_t max_failed_saves = 3;      // consecutive failures that end the run; 0: never
  std::int64_t ckpt_step = 0;             // step to load; 0: the newest valid one
  bool finetune = false;                  // weights only, step count starts at 0
  bool no_load_optim = false;
  bool no_save_optim = false;
  bool use_checkpoint_args = false;  // model and tokenizer flags of the checkpoint of `load`

  // Newest checkpoints to keep; 0: all. With a retain interval Megatron-LM keeps one.
  std::int64_t number_to_keep() const { return keep_last == 0 && save_retain_interval > 0 ? 1 : keep_last; }
};

}  // namespace megalith
