// Comparison of the flags of a run with those of the loaded checkpoint; the table of flags gives the meaning of a
// difference (OnLoad).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/options.h"
#include "apps/flags/flags.h"

namespace megalith {

// Rejects (kUsage) model flags that differ from the checkpoint's, with both values. With --finetune, flags that keep
// the tensors may differ; returns these: "--rotary-base 500000 (was 10000), ...", or "". A flag unknown to the
// checkpoint has its default. `path`: path of the checkpoint. `saved`: its configuration.
std::string check_same_model(const Options& options, const std::string& path,
                             const std::map<std::string, std::string>& saved);

// Changed flags of training, optimizer and data that break exact continuation, in the same form.
std::string changed_flags(const Options& options, const std::map<std::string, std::string>& saved);

// Checkpoint that was found ahead of the run's setup.
struct FoundCheckpoint {
  std::optional<LoadedCheckpoint> checkpoint;
  CheckpointHistory history;
  bool searched = false;
};

// Flags of train after parser.read() returned `read`; collective. With --use-checkpoint-args it first finds the
// checkpoint of --load and leaves it in `found`.
Parsed finish_flags(FlagParser& parser, const Parsed& read, Communicator& world, FoundCheckpoint& found);

// Finds the checkpoint of --load unless it was already found; collective. The checkpoint gives the position in the
// data, and the tokenizer's files for ranks without them.
void find_start(const Options& options, Communicator& world, FoundCheckpoint& found);

}  // namespace megalith
