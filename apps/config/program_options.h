// What generate, report, plan, convert and prepare take in addition to the options of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

struct GenerateOptions {
  std::string prompt;
  std::int64_t num_samples = 1;  // continuations of it, side by side
  std::int64_t max_new_tokens = 256;
  double temperature = 1.0;
  std::int64_t top_k = 0;  // 0: all; 1: greedy
  double top_p = 0.0;      // 0: off
  bool print_speed = false;
};

struct ReportOptions {
  std::vector<std::string> inputs;  // metrics files
  std::string output;               // HTML
};

// What plan forecasts in addition to memory and work.
struct ForecastOptions {
  std::string rates;             // file (parallel/cost/rates.h); empty: no times
  bool suggest = false;          // layouts for the world size, in place of the one given
  double device_memory_gib = 0;  // 0: as the rates say
  std::string html;              // file to write; empty: none
  std::string json;              // likewise
};

struct ConvertOptions {
  std::string from;                             // hf or native; resolved: neither is empty
  std::string to;                               // the other one
  std::int64_t max_shard_size = 5'000'000'000;  // bytes of tensors per file, --to hf
  std::vector<std::string> ignore_config_keys;  // of config.json, --to native
};

// prepare and prepare inspect; which data and tokenizer is in DataOptions.
struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  std::string json_key = "text";
  std::vector<std::string> document_start;
  std::string document_separator;  // where it is given, empty or not
  bool append_eod = false;
  std::int64_t max_bad_lines = 0;  // of JSON lines in all inputs, which are skipped
  std::int64_t documents = 3;      // that inspect shows of each dataset
  std::int64_t samples = 0;        // 0: inspect shows counts and documents; else the ids of this many training samples
};

}  // namespace megalith
