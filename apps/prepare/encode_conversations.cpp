#include "apps/prepare/encode_conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/base/side_by_side.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
constexpr std::size_t kChunkBytes = std::size_t{32} << 10;  // of lines that a thread encodes at a time
constexpr std::size_t kRoundBytes = std::size_t{1} << 20;   // per thread
constexpr double kSecondsBetweenReports = 5.0;

// Consecutive lines of one file, and what they become.
struct Chunk {
  struct Line {
    std::size_t begin;
    std::size_t bytes;
    std::int64_t number;
    bool is_too_long;
  };
  std::string path;
  std::string text;
  std::vector<Line> lines;

  std::vector<std::uint32_t> words;
  std::vector<std::int32_t> lengths;
  std::vector<Error> errors;  // of invalid lines, in order
  std::int64_t untrained = 0;
};

class ChunkReader {
 public:
  explicit ChunkReader(const std::vector<std::string>& inputs) : inputs_(inputs) {}

  // Returns about `bytes` of the next lines; nothing at the end.
  std::vector<Chunk> read(std::size_t bytes) {
    const FaultScope scope("prepare.input");
    std::vector<Chunk> chunks;
    std::size_t read = 0;
    while (read < bytes) {
      if (!lines_) {
        if (next_ == inputs_.size()) break;
        lines_ = std::make_unique<LineReader>(inputs_[next_++], LineReader::Limits{.line_bytes = kMaxLineBytes});
      }
      Chunk chunk = read_chunk();
      read += chunk.text.size();
      if (!chunk.lines.empty()) chunks.push_back(std::move(chunk));
    }
    return chunks;
  }

 private:
  // Returns lines of the current file, which is closed at its end.
  Chunk read_chunk() {
    Chunk chunk{.path = lines_->path()};
    while (chunk.text.size() < kChunkBytes) {
      const std::optional<LineReader::Line> line = lines_->next();
      if (!line) {
        lines_.reset();
        break;
      }
      if (!line->is_too_long && line->text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string_view text = line->is_too_long ? std::string_view() : line->text;
      chunk.lines.push_back({.begin = chunk.text.size(),
                             .bytes = text.size(),
                             .number = lines_->number(),
                             .is_too_long = line->is_too_long});
      chunk.text += text;
    }
    return chunk;
  }

  const std::vector<std::string>& inputs_;
  std::size_t next_ = 0;
  std::unique_ptr<LineReader> lines_;
};

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

void add_conversation(const ChatTokens& conversation, std::int64_t max_tokens, Chunk& chunk) {
  const std::size_t size = conversation.ids.size();
  require(conversation.trained.size() == size && std::in_range<std::int32_t>(size), "prepare: a mark per token");
  const std::size_t kept = max_tokens > 0 ? std::min(size, static_cast<std::size_t>(max_tokens)) : size;
  const std::span<const std::uint8_t> marks = std::span(conversation.trained).first(kept);
  // No row predicts the first token.
  if (kept < 2 || std::ranges::all_of(marks.subspan(1), [](std::uint8_t mark) { return mark == 0; })) {
    ++chunk.untrained;
    return;
  }
  const std::size_t at = chunk.words.size();
  chunk.words.resize(at + size);
  for (std::size_t i = 0; i < size; ++i)
    chunk.words[at + i] = marked_token(conversation.ids[i], conversation.trained[i] != 0);
  chunk.lengths.push_back(static_cast<std::int32_t>(size));
}

void encode_chunk(Chunk& chunk, const EncodeRequest& request, const Tokenizer& tokenizer) {
  for (const Chunk::Line& line : chunk.lines) {
    const std::string place = fmt::format("{}:{}", chunk.path, line.number);
    try {
      if (line.is_too_long) refuse_format(place, "a line of at most 64 MiB", "a longer one", "remove it or divide it");
      const std::string_view text = std::string_view(chunk.text).substr(line.begin, line.bytes);
      add_conversation(request.encoder(tokenizer, text, place), request.max_tokens, chunk);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kFormat) throw;
      chunk.errors.push_back(error);
    }
  }
}

}  // namespace

EncodeCounts encode_conversations(const EncodeRequest& request, ConversationSpool& spool, BadLines& bad) {
  EncodeCounts counts;
  ChunkReader reader(request.inputs);
  TokenizerPool tokenizers(request.tokenizer);
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double next_report = kSecondsBetweenReports;
  const auto store = [&](const std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) {
      for (const Error& error : chunk.errors) bad.add(error);
      if (!chunk.lengths.empty()) spool.add(chunk.words, chunk.lengths);
      counts.text_bytes += static_cast<std::int64_t>(chunk.text.size());
      counts.untrained += chunk.untrained;
    }
    if (seconds_since(start) < next_report) return;
    next_report = seconds_since(start) + kSecondsBetweenReports;
    log_info(fmt::format("{}, {:.1f} MB of text so far", counted(spool.lengths().size(), "conversation"),
                         static_cast<double>(counts.text_bytes) * 1e-6));
  };
  const std::size_t round = request.threads * kRoundBytes;
  std::vector<Chunk> done, current = reader.read(round), next;
  while (!done.empty() || !current.empty()) {
    // Stores the last chunks and reads the next ones while the current ones are encoded.
    side_by_side(current.size() + 2, request.threads, [&](std::size_t i) {
      if (i == 0) return store(done);
      if (i == 1) {
        next = reader.read(round);
        return;
      }
      std::unique_ptr<Tokenizer> tokenizer = tokenizers.take();
      encode_chunk(current[i - 2], request, *tokenizer);
      tokenizers.give(std::move(tokenizer));
    });
    done = std::move(current);
    current = std::move(next);
    next.clear();
  }
  return counts;
}

}  // namespace megalith
