#include "core/tokenizer/added_token_finder.h"

#include <algorithm>
#include <cstring>

namespace megalith {

AddedTokenFinder::AddedTokenFinder(std::vector<std::pair<std::string, std::int32_t>> tokens) {
  for (auto& [text, id] : tokens) std::ranges::reverse(text);
  std::ranges::stable_sort(tokens, {}, &std::pair<std::string, std::int32_t>::first);
  std::vector<std::string> backwards;
  for (auto& [text, id] : tokens) {
    if (!backwards.empty() && backwards.back() == text) {
      tokens_.back().id = id;
      continue;
    }
    longest_ = std::max(longest_, text.size());
    tokens_.push_back({.bytes = static_cast<std::uint32_t>(text.size()), .id = id});
    backwards.push_back(std::move(text));
  }
  if (empty()) return;
  build_states(backwards);
  build_links();
}

// Builds states: each is a range of the sorted tokens, those that begin with the bytes read so far.
void AddedTokenFinder::build_states(const std::vector<std::string>& backwards) {
  struct Range {
    std::uint32_t begin;
    std::uint32_t end;
  };
  std::vector<Range> ranges = {{0, static_cast<std::uint32_t>(backwards.size())}};
  byte_.push_back(0);
  std::size_t read = 0;       // bytes
  std::size_t next_read = 1;  // the first state with one more byte read
  for (std::size_t state = 0; state < ranges.size(); ++state) {
    if (state == next_read) {
      ++read;
      next_read = ranges.size();
    }
    auto [begin, end] = ranges[state];
    first_child_.push_back(static_cast<std::uint32_t>(ranges.size()));
    const bool is_token = backwards[begin].size() == read;
    match_.push_back(is_token ? begin : kNone);
    if (is_token) ++begin;
    while (begin < end) {
      const auto byte = static_cast<unsigned char>(backwards[begin][read]);
      std::uint32_t same = begin + 1;
      while (same < end && static_cast<unsigned char>(backwards[same][read]) == byte) ++same;
      ranges.push_back({begin, same});
      byte_.push_back(byte);
      begin = same;
    }
  }
  first_child_.push_back(static_cast<std::uint32_t>(ranges.size()));
}

void AddedTokenFinder::build_links() {
  shorter_.assign(match_.size(), 0);
  for (std::uint32_t state = first_child_[0]; state < first_child_[1]; ++state) after_none_[byte_[state]] = state;
  if (first_child_[1] == first_child_[0] + 1) last_byte_ = byte_[first_child_[0]];
  for (std::uint32_t state = 1; state < match_.size(); ++state) {  // shorter states already have links
    if (match_[state] == kNone) match_[state] = match_[shorter_[state]];
    for (std::uint32_t next = first_child_[state]; next < first_child_[state + 1]; ++next) {
      shorter_[next] = step(shorter_[state], byte_[next]);
    }
  }
}

inline std::uint32_t AddedTokenFinder::child(std::uint32_t state, unsigned char byte) const {
  const std::uint32_t first = first_child_[state];
  const void* found = std::memchr(byte_.data() + first, byte, first_child_[state + 1] - first);
  return found == nullptr ? 0 : static_cast<std::uint32_t>(static_cast<const unsigned char*>(found) - byte_.data());
}

inline std::uint32_t AddedTokenFinder::step(std::uint32_t state, unsigned char byte) const {
  for (; state != 0; state = shorter_[state]) {
    if (const std::uint32_t next = child(state, byte); next != 0) return next;
  }
  return after_none_[byte];
}

// Returns the end of the text that may end in a token, at most `at`; `begin` if there is none.
inline std::size_t AddedTokenFinder::skip(std::string_view text, std::size_t begin, std::size_t at) const {
  if (last_byte_) {
    const void* found = memrchr(text.data() + begin, *last_byte_, at - begin);
    return found == nullptr ? begin : static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) + 1;
  }
  while (at > begin && after_none_[static_cast<unsigned char>(text[at - 1])] == 0) --at;
  return at;
}

void AddedTokenFinder::find(std::string_view text, std::size_t begin, std::vector<Found>& found) const {
  const std::size_t end = std::min(begin + kBlock, text.size());
  std::uint32_t state = 0;
  for (std::size_t at = std::min(end + longest_ - 1, text.size()); at > begin;) {
    if (state == 0 && (at = skip(text, begin, at)) == begin) break;
    state = step(state, static_cast<unsigned char>(text[--at]));
    if (match_[state] != kNone && at < end) found.push_back({.at = at, .token = match_[state]});
  }
}

}  // namespace megalith
