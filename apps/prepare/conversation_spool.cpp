#include "apps/prepare/conversation_spool.h"

#include <fmt/format.h>

#include <random>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/output_file.h"

namespace megalith {

ConversationSpool::ConversationSpool(const std::string& prefix) {
  std::random_device device;
  const std::string path = fmt::format("{}.conversations.tmp-{:08x}{:08x}", prefix, device(), device());
  {
    const FaultScope scope("prepare.output");
    out_ = File::create_temporary(path, path, nullptr);
  }
  try {
    const FaultScope scope("prepare.input");
    in_ = File::open(path);
  } catch (const Error&) {
    remove_file(path);
    throw;
  }
  const FaultScope scope("prepare.output");
  remove_file(path);
}

void ConversationSpool::add(std::span<const std::uint32_t> words, std::span<const std::int32_t> lengths) {
  const FaultScope scope("prepare.output");
  out_.write(std::as_bytes(words));
  for (const std::int32_t length : lengths) {
    begin_.push_back(words_);
    lengths_.push_back(length);
    words_ += length;
  }
}

void ConversationSpool::read(std::int64_t conversation, std::span<std::uint32_t> words) const {
  const auto at = static_cast<std::size_t>(conversation);
  require(at < lengths_.size() && std::cmp_less_equal(words.size(), lengths_[at]),
          "ConversationSpool: beyond the conversation");
  const FaultScope scope("prepare.input");
  in_.read_at(static_cast<std::uint64_t>(begin_[at]) * sizeof(std::uint32_t), std::as_writable_bytes(words));
}

}  // namespace megalith
