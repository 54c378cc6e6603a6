#include "apps/prepare/encode_inputs.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "apps/prepare/prepare_progress.h"
#include "core/base/side_by_side.h"

namespace megalith {

namespace {

constexpr std::size_t kRoundBytes = std::size_t{1} << 20;  // per thread

// One tokenizer for each thread that asks at the same time.
class TokenizerPool {
 public:
  explicit TokenizerPool(const Tokenizer& tokenizer) : original_(tokenizer) {}

  std::unique_ptr<Tokenizer> take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) return std::make_unique<Tokenizer>(original_);
    std::unique_ptr<Tokenizer> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void give(std::unique_ptr<Tokenizer> tokenizer) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(tokenizer));
  }

 private:
  std::mutex mutex_;
  const Tokenizer& original_;
  std::vector<std::unique_ptr<Tokenizer>> free_;
};

EncodedChunk encode_chunk(const DocumentChunk& chunk, const EncodeInputs& work, TokenizerPool& tokenizers) {
  EncodedChunk encoded;
  std::unique_ptr<Tokenizer> tokenizer = tokenizers.take();
  try {
    work.encode(chunk, *tokenizer, encoded);
    encoded.error = chunk.error;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kFormat) throw;
    encoded.error = error;
  }
  tokenizers.give(std::move(tokenizer));
  return encoded;
}

}  // namespace

void encode_inputs(const EncodeInputs& work, BadLines& bad) {
  DocumentReader reader(work.inputs, work.documents);
  TokenizerPool tokenizers(work.tokenizer);
  PrepareProgress progress(reader.bytes_of_files());
  const std::size_t round = work.threads * kRoundBytes;
  std::vector<DocumentChunk> current = reader.read(round), next;
  std::vector<EncodedChunk> done, encoded;
  const auto store = [&] {
    for (const EncodedChunk& chunk : done) {
      for (const Error& error : chunk.errors) bad.add(error);
      work.store(chunk);
      progress.add(chunk.lengths.size(), chunk.text_bytes);
      if (chunk.error) throw *chunk.error;
    }
  };
  while (!done.empty() || !current.empty()) {
    const bool waits = !current.empty() && current.back().ends_in_long_line();  // it may be the last of an endless file
    // Stores the last chunks and reads the next ones while the current ones are encoded.
    encoded = std::vector<EncodedChunk>(current.size());
    side_by_side(current.size() + 2, work.threads, [&](std::size_t i) {
      if (i == 0) return store();
      if (i == 1) {
        if (!waits) next = reader.read(round);
      } else {
        encoded[i - 2] = encode_chunk(current[i - 2], work, tokenizers);
      }
    });
    progress.show(reader.bytes_read());
    done = std::move(encoded);
    current = std::move(next);
    next.clear();
    if (!waits) continue;
    store();
    done.clear();
    current = reader.read(round);
  }
}

std::size_t num_workers(std::int64_t workers) {
  return workers > 0 ? static_cast<std::size_t>(workers) : std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace megalith
