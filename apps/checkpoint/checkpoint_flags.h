// Compares the flags of a run that loads a checkpoint with those of the run that saved it. What a difference means is
// in the table of flags (OnLoad).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/options.h"
#include "apps/flags/flags.h"

namespace megalith {

// Refuses (kUsage) model flags that differ from the checkpoint's, with both values. Under --finetune those that leave
// the tensors as they are may differ; returns them: "--rotary-base 500000 (was 10000), ...", or "". A flag that the
// checkpoint does not know has its default. `path` names the checkpoint, `saved` is its configuration.
std::string check_same_model(const Options& options, const std::string& path,
                             const std::map<std::string, std::string>& saved);

// Changed flags of training, optimizer and data, with which a resumed run is not the unbroken one; in the same form.
std::string changed_flags(const Options& options, const std::map<std::string, std::string>& saved);

// A checkpoint that was looked for before the run was set up.
struct FoundCheckpoint {
  std::optional<LoadedCheckpoint> checkpoint;
  CheckpointHistory history;
  bool searched = false;
};

// Collective: the flags of train after parser.read() gave `read`. Under --use-checkpoint-args the checkpoint of --load
// is looked for first, and left in `found`.
Parsed finish_flags(FlagParser& parser, const Parsed& read, Communicator& world, FoundCheckpoint& found);

// Collective: looks for the checkpoint of --load, unless that was done. It says from where on data are read, and has
// the tokenizer's files where ranks lack them.
void find_start(const Options& options, Communicator& world, FoundCheckpoint& found);

}  // namespace megalith
