// The samples of a run's steps on this rank. Those of the next step are read before the ranks agree on whether there is
// one, so that data that cannot be read, or that change under the run, end it in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "apps/config/run_config.h"
#include "apps/run/staging.h"
#include "core/checkpoint/train_state.h"
#include "core/data/dataset.h"
#include "core/optim/lr_schedule.h"
#include "parallel/mesh/mesh.h"

namespace megalith {

class StepSamples {
 public:
  // `mesh` and `data` outlive this object.
  StepSamples(const Options& options, const RunConfig& config, const Mesh& mesh, const Datasets& data);

  // An Error of these two ends the run.
  void read_next(const TrainState& state);   // throws it
  void read_ahead(const TrainState& state);  // keeps it
  const StepInput& next() const { return next_; }
  // The training step after this number of samples, per rank.
  std::int64_t microbatches_after(std::int64_t consumed_samples) const;

  // A training step that is run again, after `before`, and an evaluation; valid until the next of these. Throw as
  // read_next. After the last sample evaluations begin with the first one again, and the log says so.
  StepInput again(const RunProgress& before);
  StepInput validation(std::int64_t consumed_samples, std::int64_t iteration);

  // That the files are as they were opened, also those that no sample is read from; keeps the error. Rarely enough to
  // cost nothing.
  void check_files();
  bool failed() const { return error_ != nullptr; }
  void rethrow() const;  // what was kept, if anything

 private:
  struct Place {
    std::int64_t consumed_samples, microbatches;
  };
  // Its tokens and the samples that they are of.
  StepInput read(const Dataset& dataset, const Place& at, std::vector<std::int32_t>& tokens) const;
  StepInput read_training(const RunProgress& before, std::vector<std::int32_t>& tokens) const;

  const Options& options_;
  RunConfig config_;
  const Mesh& mesh_;
  const Datasets& data_;
  StepInput next_;
  std::vector<std::int32_t> next_tokens_, tokens_;
  bool told_of_wrap_ = false;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point next_check_{};
};

}  // namespace megalith
