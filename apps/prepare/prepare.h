// prepare turns text into the tokens that train reads, and shows what is in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/document_reader.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

// prepare --input FILE... --output-prefix P
struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  DocumentOptions documents;
  Tokenizer tokenizer;
  bool append_eod = false;
  std::int64_t max_bad_lines = 0;  // of JSON lines in all inputs, which are skipped
};

// prepare inspect P
struct InspectOptions {
  std::vector<std::string> data_path;  // PREFIX..., or WEIGHT PREFIX pairs, as train takes them
  Tokenizer tokenizer;
  std::int64_t documents = 3;   // shown of each data set
  std::int64_t samples = 0;     // 0: counts and documents; else the token ids of so many training samples
  std::int64_t seq_length = 0;  // the rest is read with samples > 0 alone, as train reads it
  std::int64_t seed = 1234;
  std::string split = "969,30,1";
  std::int64_t train_samples = 0;  // of the whole run, which decides the number of epochs; 0: `samples`
};

struct PrepareCommand {
  std::string print;  // not empty: help or version was asked for; print it and end
  bool inspect = false;
  PrepareOptions prepare_options;
  InspectOptions inspect_options;
};

// Error kUsage that names the flag. `arguments` without the program's name.
PrepareCommand parse_prepare_command(const std::vector<std::string>& arguments);

void prepare(const PrepareOptions& options);
void inspect(const InspectOptions& options);

}  // namespace megalith
