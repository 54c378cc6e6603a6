// Options of generate, report, plan, convert and prepare in addition to the options of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/packing.h"

namespace megalith {

struct GenerateOptions {
  std::string prompt;
  std::string prompt_file;
  std::int64_t prompts_per_batch = 8;  // prompts of prompt_file in one batch
  std::int64_t num_samples = 1;        // continuations of a prompt, in one batch
  std::int64_t max_new_tokens = 256;
  double temperature = 1.0;
  std::int64_t top_k = 0;  // 0: all; 1: greedy
  double top_p = 0.0;      // 0: off
  bool print_speed = false;
  bool chat = false;
  std::int64_t max_chat_tokens = 4096;  // of a conversation with its answers
  std::string results;                  // file of JSON lines; empty: none
  // Of generate evaluate.
  std::string questions;  // file of JSON lines
  std::string target_delimiter = " ";
  std::int64_t batch_tokens = 4096;  // rows of a pass
};

struct ReportOptions {
  std::vector<std::string> inputs;  // metrics files
  std::string output;               // HTML
};

// Options of plan's forecast in addition to memory and work.
struct ForecastOptions {
  std::string rates;             // file (parallel/cost/rates.h); empty: no times
  bool suggest = false;          // list layouts for the world size, instead of the given layout
  double device_memory_gib = 0;  // 0: value of the rates
  std::string html;              // file to write; empty: none
  std::string json;              // file to write; empty: none
  std::string timeline;          // file to write; empty: none
  // Tokens of each document, if attention separates documents; 0: a sample is one document.
  std::int64_t document_length = 0;
};

struct ConvertOptions {
  std::string from;                             // hf or native; resolved: neither is empty
  std::string to;                               // the other format
  std::int64_t max_shard_size = 5'000'000'000;  // bytes of tensors per file, --to hf
  std::vector<std::string> ignore_config_keys;  // keys of config.json, --to native
};

enum class TrainedAnswers { kAll, kLast };  // order of the values of --sft-train

// Options of prepare and prepare inspect; DataOptions has data and tokenizer.
struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  std::string json_key = "text";
  std::vector<std::string> document_start;
  std::string document_separator;  // only if given, possibly empty
  bool append_eod = false;
  std::int64_t workers = 0;          // threads; 0: all processors
  std::int64_t max_bad_lines = 0;    // skipped JSON lines in all inputs
  std::int64_t pad_to_multiple = 1;  // this and the next four with DataOptions::sft
  LongDocuments sft_long = LongDocuments::kError;
  TrainedAnswers sft_train = TrainedAnswers::kAll;
  std::string sft_tokenizer_prompt_format;  // a name of Megatron-LM; excludes chat_template
  std::string chat_template;   // file or name of a template; empty: the tokenizer folder's. Also of generate
  std::int64_t documents = 3;  // documents or packs that inspect shows per dataset
  std::int64_t samples = 0;    // training samples whose ids inspect prints; 0: counts and documents instead
};

}  // namespace megalith
