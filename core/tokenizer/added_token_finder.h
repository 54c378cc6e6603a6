// Search for a tokenizer's added tokens in a text: at each position the longest token, and the next from its end on, as
// in Hugging Face's tokenizers library.
//
// The search is the automaton of Aho and Corasick (1975) over reversed tokens, run over the text from its end. The
// state at each position identifies the longest token that begins there, so time is linear in the text. A forward
// search would rescan the text after each short token for a longer one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;  // finds nothing
  // Accepts pairs of non-empty text and id; the last of equal texts counts. Building uses 21 bytes per byte of the
  // texts; the result keeps 13.
  explicit AddedTokenFinder(std::vector<std::pair<std::string, std::int32_t>> tokens);

  bool empty() const { return tokens_.empty(); }

  // Cuts a text at its added tokens: calls part(std::string_view) for each non-empty piece between them and
  // token(id, begin), with the token's first byte in the text, in order.
  template <class Part, class Token>
  void cut(std::string_view text, Part&& part, Token&& token) const {
    std::vector<Found> found;
    std::size_t done = 0;
    for (std::size_t begin = 0; begin < text.size() && !empty(); begin += kBlock) {
      find(text, begin, found);
      for (auto at = found.rbegin(); at != found.rend(); ++at) {
        if (at->at < done) continue;  // within the previous token
        if (at->at > done) part(text.substr(done, at->at - done));
        token(tokens_[at->token].id, at->at);
        done = at->at + tokens_[at->token].bytes;
      }
      found.clear();
    }
    if (done < text.size()) part(text.substr(done));
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 16;  // bytes of text searched at a time
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Entry {
    std::uint32_t bytes;
    std::int32_t id;
  };
  struct Found {
    std::size_t at;
    std::uint32_t token;
  };

  void build_states(const std::vector<std::string>& backwards);
  void build_links();
  std::uint32_t child(std::uint32_t state, unsigned char byte) const;  // 0: none
  std::size_t skip(std::string_view text, std::size_t begin, std::size_t at) const;
  std::uint32_t step(std::uint32_t state, unsigned char byte) const;
  // Appends the longest token at each position of the block at `begin`, from the last position to the first.
  void find(std::string_view text, std::size_t begin, std::vector<Found>& found) const;

  std::vector<Entry> tokens_;
  std::size_t longest_ = 0;
  // States in breadth-first order; state 0 has read nothing. The states after s with one more byte are first_child_[s]
  // to first_child_[s + 1].
  std::array<std::uint32_t, 256> after_none_{};
  std::optional<unsigned char> last_byte_;  // of all tokens
  std::vector<std::uint32_t> first_child_;
  std::vector<unsigned char> byte_;     // the last byte read
  std::vector<std::uint32_t> shorter_;  // state of the longest proper suffix of the bytes read
  std::vector<std::uint32_t> match_;    // the longest token that is a suffix of the bytes read
};

}  // namespace megalith
