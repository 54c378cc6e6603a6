// The data sets of a run, from where it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/config/run_length.h"
#include "core/checkpoint/train_state.h"
#include "core/data/dataset.h"
#include "core/optim/lr_schedule.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct DataStart {
  RunProgress at;
  std::int64_t order_samples = 0;  // for which the order before it was built; 0: there is none
  friend bool operator==(const DataStart&, const DataStart&) = default;
};

DataStart data_start(const TrainState& state);
// TrainState::data_order_samples of a checkpoint. Where an earlier version did not record it: the steps and batch that
// its configuration has, which the order was built for.
std::int64_t data_order_of(const TrainState& checkpoint);

struct RunData {
  Datasets sets;
  std::int64_t order_samples = 0;  // training has the order for this number of samples, which checkpoints record
  std::vector<std::string> notes;  // for the log
  std::string warning;             // of the order, for the log; may be empty
  std::optional<DataStart> built_for = {};
};

// Builds the data sets in place; nothing is done where they were built for this start. A run that reads no more samples
// than the order before it was built for keeps that order, bit for bit; another one is warned of.
struct DataRequest {
  const Options& options;
  const Tokenizer& tokenizer;
  DataStart start;
};
void build_data(RunData& data, const DataRequest& request);

}  // namespace megalith
