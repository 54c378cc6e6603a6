// Datasets of a run from its start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/data_options.h"
#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/config/run_length.h"
#include "core/checkpoint/train_state.h"
#include "core/data/dataset.h"
#include "core/optim/lr_schedule.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct DataStart {
  RunProgress at;
  std::int64_t order_samples = 0;  // samples of the previous order; 0: no order
  friend bool operator==(const DataStart&, const DataStart&) = default;
};

DataStart data_start(const TrainState& state);
// TrainState::data_order_samples of a checkpoint. Earlier versions did not record it; their order follows from the
// steps and batch size of the configuration.
std::int64_t data_order_of(const TrainState& checkpoint);

struct RunData {
  Datasets sets;
  std::int64_t order_samples = 0;  // samples of the training order, which checkpoints record
  std::vector<std::string> notes;  // for the log
  std::string warning;             // about the order, for the log; may be empty
  std::optional<DataStart> built_for = {};
};

// Request to build the datasets in place, unless they were built for this start. A run that reads no more samples than
// the previous order has keeps this order, bit for bit; otherwise it gets a warning.
struct DataRequest {
  const Options& options;
  const Tokenizer& tokenizer;
  DataStart start;
};
void build_data(RunData& data, const DataRequest& request);

// Returns the words of --data-path, or those in the file of --data-args-path.
std::vector<std::string> data_path_of(const DataOptions& data);

// Sets the documents per sample from the index of the data, and from the samples if EOD tokens end documents, unless a
// flag gives their number. Also sets the cost of their attention.
void measure_documents(const Options& options, const RunData& data, MarkedSamples& marks);

}  // namespace megalith
