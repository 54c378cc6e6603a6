#include "apps/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/data_options.h"
#include "apps/config/program_options.h"
#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/prepare/encode_inputs.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/files/mapped_file.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/program.h"
#include "core/base/seconds_since.h"
#include "core/data/document_reader.h"
#include "core/data/indexed_dataset.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

// Fails now for unreadable inputs and missing folders, instead of after hours.
void check_paths(const PrepareOptions& options) {
  for (const std::string& input : options.inputs) {
    check_document_file(input);
    for (const char* end : {".bin", ".idx", ".tokenizer", "_mask.bin", "_mask.idx", ".packs"})
      require_other_file({"--output-prefix", options.output_prefix + end}, {"--input", input});
  }
  const std::string folder = std::filesystem::path(options.output_prefix).parent_path().string();
  const FaultScope scope("prepare.output");
  if (!folder.empty()) Directory::create(folder).check_writable();
}

DocumentOptions document_options(const Options& options) {
  DocumentOptions documents{.json_key = options.prepare.json_key, .document_start = options.prepare.document_start};
  if (!options.is_default("document-separator")) documents.document_separator = options.prepare.document_separator;
  return documents;
}

void encode_documents(const DocumentChunk& chunk, const DocumentOptions& documents, const Tokenizer& tokenizer,
                      bool append_eod, EncodedChunk& encoded) {
  std::vector<std::int32_t> ids;
  const auto encode = [&](std::string_view document) {
    ids.clear();
    tokenizer.encode(document, ids);
    if (ids.empty()) return;
    ids.insert(ids.begin(), tokenizer.begin().begin(), tokenizer.begin().end());
    if (append_eod) ids.push_back(tokenizer.eod());
    if (!std::in_range<std::int32_t>(ids.size()))
      refuse_format("text", "at most 2147483647 tokens", fmt::format("{}", ids.size()), "divide the document");
    encoded.words.insert(encoded.words.end(), ids.begin(), ids.end());
    encoded.lengths.push_back(static_cast<std::int32_t>(ids.size()));
    encoded.text_bytes += static_cast<std::int64_t>(document.size());
  };
  visit_documents(chunk, documents, encode, [&](const Error& error) { encoded.errors.push_back(error); });
}

void store_documents(const EncodedChunk& chunk, IndexedDatasetWriter& writer) {
  const std::vector<std::int32_t> ids(chunk.words.begin(), chunk.words.end());
  std::size_t begin = 0;
  for (const std::int32_t length : chunk.lengths) {
    writer.add_document(std::span(ids).subspan(begin, static_cast<std::size_t>(length)));
    begin += static_cast<std::size_t>(length);
  }
}

}  // namespace

void prepare(const Options& all) {
  const PrepareOptions& options = all.prepare;
  const Tokenizer tokenizer = make_tokenizer(tokenizer_options(all));
  check_paths(options);
  if (all.data.sft) return prepare_sft(all, tokenizer);
  const Clock::time_point start = Clock::now();
  IndexedDatasetWriter writer(options.output_prefix, token_type_for_vocab(tokenizer.vocab_size()),
                              tokenizer.identity());
  std::int64_t text_bytes = 0;
  const DocumentOptions documents = document_options(all);
  BadLines bad(options.max_bad_lines);
  const auto encode = [&](const DocumentChunk& chunk, const Tokenizer& own, EncodedChunk& encoded) {
    encode_documents(chunk, documents, own, options.append_eod, encoded);
  };
  const auto store = [&](const EncodedChunk& chunk) {
    store_documents(chunk, writer);
    text_bytes += chunk.text_bytes;
  };
  encode_inputs({.inputs = options.inputs,
                 .documents = documents,
                 .tokenizer = tokenizer,
                 .threads = num_workers(options.workers),
                 .encode = encode,
                 .store = store},
                bad);
  if (bad.skipped() > 0)
    log_warning(fmt::format("{} skipped (--max-bad-lines {}), the first: {}", counted(bad.skipped(), "bad line"),
                            options.max_bad_lines, bad.first()));
  if (writer.num_documents() == 0) {
    refuse_format(options.inputs.size() == 1 ? options.inputs[0] : "--input", "at least one document", "no text",
                  "check the files, and --document-start or --document-separator");
  }
  writer.commit();
  const double seconds = std::max(seconds_since(start), 1e-6);
  fmt::print(
      "{0}.bin, {0}.idx: {1}, {2} ({3}) from {4} with {5:.2f} MB of text in {6:.2f} s, "
      "{7:.1f} MB/s\n",
      options.output_prefix, counted(writer.num_documents(), "document"), counted(writer.num_tokens(), "token"),
      tokenizer.identity(), counted(options.inputs.size(), "file"), static_cast<double>(text_bytes) * 1e-6, seconds,
      static_cast<double>(text_bytes) * 1e-6 / seconds);
}

}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  end_on_lost_mappings();
  return run_program("prepare", [&] {
    if (argc > 1 && argv[1] == std::string_view("inspect")) {
      inspect(parse_options(App::kInspect, argc - 1, argv + 1));
    } else {
      prepare(parse_options(App::kPrepare, argc, argv));
    }
    return ExitCode::kOk;
  });
}
