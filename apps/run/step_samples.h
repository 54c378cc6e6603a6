// Samples of a run's steps on this rank. The next step's samples are read ahead of the ranks' decision to run it, so
// that unreadable or changed data end the run in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "apps/config/run_config.h"
#include "apps/run/staging.h"
#include "core/data/dataset.h"
#include "core/optim/lr_schedule.h"
#include "parallel/mesh/mesh.h"

namespace megalith {

class StepSamples {
 public:
  // `mesh` and `data` outlive this object.
  StepSamples(const Options& options, const RunConfig& config, const Mesh& mesh, const Datasets& data);

  // Read training samples; an Error in either ends the run.
  void read_next(const RunProgress& before);   // throws the error
  void read_ahead(const RunProgress& before);  // keeps the error
  const StepInput& next() const { return next_; }
  // Counts the tokens of all ranks' next samples. Collective, with marks only; no rank may have failed to read.
  void count_next(Communicator& world) { count(world, next_); }
  // Microbatches per rank of the training step after this number of samples.
  std::int64_t microbatches_after(std::int64_t consumed_samples) const;

  // Input of a training step that runs again after `before`, and of an evaluation; valid until the next call. They
  // throw like read_next. After the last sample of `from`, evaluations begin again with the first, and the log reports
  // it; if they read `once`, samples after the last have no loss. Both need count().
  StepInput again(const RunProgress& before);
  struct Evaluated {
    const Dataset& from;
    bool once = false;
  };
  StepInput evaluation(const Evaluated& set, std::int64_t consumed_samples, std::int64_t iteration);
  const Datasets& data() const { return data_; }
  void count(Communicator& world, StepInput& input) const;

  // Checks that all files are unchanged since they were opened, and keeps the error. The check is rare enough to cost
  // nothing.
  void check_files();
  bool failed() const { return error_ != nullptr; }
  void rethrow() const;  // the kept error, if any

 private:
  struct Place {
    std::int64_t consumed_samples, microbatches;
  };
  struct Samples {
    std::vector<std::int32_t> tokens;
    std::vector<SampleMarks> marks;
  };
  // Reads its tokens and the samples that they belong to.
  StepInput read(const Evaluated& set, const Place& at, Samples& samples) const;
  StepInput read_training(const RunProgress& before, Samples& samples) const;
  void read_sample(const Evaluated& set, std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const;
  std::vector<std::int64_t> balanced_order(const Dataset& dataset, std::int64_t first, std::int64_t count) const;
  void check_documents(const SampleMarks& marks, std::int64_t sample) const;  // fails for more than planned

  const Options& options_;
  RunConfig config_;
  const Mesh& mesh_;
  const Datasets& data_;
  StepInput next_;
  Samples next_samples_, samples_;
  bool warned_of_wrap_ = false;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point next_check_{};
};

}  // namespace megalith
