// A run of generate on one rank: flags, checkpoint, tokenizer, device and ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/flags/flags.h"
#include "core/device/stream.h"
#include "core/layers/parameter.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

class Session {
 public:
  // Parses the flags and reads the checkpoint's configuration. Collective. For a single process `mpi` is null and
  // `world` has one rank.
  Session(App app, const std::vector<std::string>& arguments, Communicator& world, MpiRuntime* mpi);

  const std::string& print() const { return print_; }  // of --help and the like; not empty: there is no more to do
  const Options& options() const { return options_; }  // the checkpoint's model with the flags of the command line
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool shows() const { return world_.rank() == 0; }  // one rank prints and writes files
  int ranks() const { return world_.size(); }

  // Runs `work` on all ranks; an error of one is an error of all.
  template <class Work>
  void together(const Work& work) const {
    on_all_ranks(world_, work);
  }

  // Number of tokens after a prompt of a given length: --max-new-tokens; by default up to the last position. `place` is
  // the flag or line of the prompt.
  std::int64_t new_tokens(std::int64_t prompt, const std::string& place = "--prompt") const;

  // Folder of the tokenizer's files: the checkpoint's copies, or that of --tokenizer-model.
  std::string tokenizer_folder() const;

  // Returns the first rank's value. Collective.
  std::string broadcast(const std::string& value) const { return world_.host_broadcast(value, 0); }

  // Free memory of the rank's device, which is selected; 0: unknown.
  std::size_t free_bytes() const;
  // Returns the ranks that shard the weights. Collective.
  Communicator& connect();
  // Loads the weights. Collective.
  void load(ParameterStore& parameters, Stream& stream);

 private:
  void read_checkpoint();

  Communicator& world_;
  MpiRuntime* mpi_;
  std::string print_;
  Options command_line_, options_;
  std::optional<LoadedCheckpoint> checkpoint_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Communicator> gpus_;
};

}  // namespace megalith
