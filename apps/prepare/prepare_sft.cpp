#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <vector>

#include "apps/config/program_options.h"
#include "apps/prepare/encode_conversations.h"
#include "apps/prepare/encode_inputs.h"
#include "apps/prepare/prepare.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/base/side_by_side.h"
#include "core/data/numpy_shuffle.h"
#include "core/data/pack_writer.h"
#include "core/data/packing.h"
#include "core/model/config.h"

namespace megalith {

namespace {

void check_inputs(const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (holds_json_lines(input)) continue;
    refuse_usage("--input", {.expected = "with --sft names in .jsonl or .json",
                             .got = input,
                             .remedy = "write one conversation per line as JSON: {\"messages\": [...]}"});
  }
}

// Packs in a random order, so that each range of packs, such as a split, is a sample of all of them.
std::vector<std::int64_t> shuffled_packs(std::int64_t count) {
  std::vector<std::int64_t> packs(static_cast<std::size_t>(count));
  std::iota(packs.begin(), packs.end(), 0);
  constexpr std::uint32_t kSeed = 0;
  NumpyRandomState(kSeed).shuffle(std::span(packs));
  return packs;
}

struct LoadedPack {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;
  std::vector<std::size_t> lengths;  // of its conversations, in order
};

LoadedPack load_pack(const ConversationSpool& spool, std::span<const std::int32_t> documents, std::int64_t max_tokens) {
  LoadedPack pack;
  std::vector<std::uint32_t> words;
  for (const std::int32_t document : documents) {
    const std::int64_t length = spool.lengths()[static_cast<std::size_t>(document)];
    words.resize(static_cast<std::size_t>(std::min(length, max_tokens)));
    spool.read(document, words);
    for (const std::uint32_t word : words) pack.ids.push_back(token_in(word));
    for (const std::uint32_t word : words) pack.trained.push_back(is_trained(word) ? 1 : 0);
    pack.lengths.push_back(words.size());
  }
  return pack;
}

void write_pack(const LoadedPack& pack, PackWriter& writer) {
  std::size_t begin = 0;
  for (const std::size_t length : pack.lengths) {
    writer.add_document(std::span(pack.ids).subspan(begin, length), std::span(pack.trained).subspan(begin, length));
    begin += length;
  }
  writer.end_pack();
}

// Writes some packs while the next ones are read.
void write_packs(const ConversationSpool& spool, const Packing& packing, std::size_t threads, PackWriter& writer) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 19;  // of the packs in memory, about
  const std::vector<std::int64_t> order = shuffled_packs(packing.num_packs());
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, kTokens / writer.record().seq_length));
  std::vector<LoadedPack> loaded;
  for (std::size_t begin = 0; begin < order.size() || !loaded.empty(); begin += most) {
    const std::size_t count = begin < order.size() ? std::min(most, order.size() - begin) : 0;
    std::vector<LoadedPack> next(count);
    side_by_side(count + 1, threads, [&](std::size_t i) {
      if (i == 0) {
        for (const LoadedPack& pack : loaded) write_pack(pack, writer);
      } else {
        next[i - 1] = load_pack(spool, packing.pack(order[begin + i - 1]), writer.record().seq_length);
      }
    });
    loaded = std::move(next);
  }
  writer.commit();
}

// Reports what a user may not expect.
void warn(const BadLines& bad, const EncodeCounts& counts, const Packing& packing, const Options& options) {
  if (bad.skipped() > 0)
    log_warning(fmt::format("{} skipped (--max-bad-lines {}), the first: {}", counted(bad.skipped(), "bad line"),
                            options.prepare.max_bad_lines, bad.first()));
  if (counts.untrained > 0)
    log_warning(fmt::format("{} without a trained token skipped", counted(counts.untrained, "conversation")));
  if (packing.num_long > 0)
    log_warning(fmt::format("{} above {} tokens {} (the longest has {})", counted(packing.num_long, "conversation"),
                            options.model.seq_length,
                            options.prepare.sft_long == LongDocuments::kDrop ? "skipped" : "truncated",
                            packing.longest));
}

}  // namespace

void prepare_sft(const Options& all, const Tokenizer& tokenizer) {
  const PrepareOptions& options = all.prepare;
  const auto start = std::chrono::steady_clock::now();
  const std::size_t threads = num_workers(options.workers);
  check_inputs(options.inputs);
  ConversationSpool spool(options.output_prefix);
  PackWriter writer(options.output_prefix, {.seq_length = all.model.seq_length,
                                            .pad_multiple = options.pad_to_multiple,
                                            .token_type = token_type_for_vocab(tokenizer.vocab_size()),
                                            .tokenizer = tokenizer.identity()});
  BadLines bad(options.max_bad_lines);
  const EncodeCounts counts =
      encode_conversations({.inputs = options.inputs,
                            .encoder = make_conversation_encoder(all),
                            .tokenizer = tokenizer,
                            .max_tokens = options.sft_long == LongDocuments::kTruncate ? all.model.seq_length : 0,
                            .threads = threads},
                           spool, bad);
  const Packing packing = pack_documents(spool.lengths(), {.seq_length = all.model.seq_length,
                                                           .pad_multiple = options.pad_to_multiple,
                                                           .long_documents = options.sft_long});
  warn(bad, counts, packing, all);
  if (packing.num_packs() == 0) {
    refuse_format(options.inputs.size() == 1 ? options.inputs[0] : "--input",
                  "at least one conversation with a trained token", "none", "check the files and the chat template");
  }
  write_packs(spool, packing, threads, writer);
  const PackingReport report = report_packing(packing, spool.lengths(), all.model.seq_length);
  const double seconds = std::max(seconds_since(start), 1e-6),
               megabytes = static_cast<double>(counts.text_bytes) * 1e-6;
  fmt::print(
      "{0}.bin, {0}_mask.bin, {0}.packs: {1} of {2} rows, {3}, {4}, {5} trained ({6}) from {7} with {8:.2f} MB of text "
      "in {9:.2f} s, {10:.1f} MB/s\n",
      options.output_prefix, counted(report.packs, "pack"), all.model.seq_length,
      counted(report.documents, "conversation"), counted(report.tokens, "token"), writer.record().trained,
      tokenizer.identity(), counted(options.inputs.size(), "file"), megabytes, seconds, megabytes / seconds);
  fmt::print(
      "  {:.1f} % of the rows are tokens; {:.1f} conversations per pack, at most {}; sum of squared lengths per pack: "
      "at most {:.2f} x the mean\n",
      100.0 * report.fill, report.mean_documents, report.max_documents, report.imbalance);
}

}  // namespace megalith
