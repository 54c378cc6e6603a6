// Finds the added tokens of a tokenizer in a text: at each place the longest one, and the next from its end on, as
// Hugging Face's tokenizers library does.
//
// By the automaton of Aho and Corasick (1975) over the tokens spelled backwards, which runs over the text from its end:
// at each place its state knows the longest token that begins there. So time is linear in the text, whatever the tokens
// are, where a search from the front looks at the text behind a short token again and again for a longer one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;  // finds nothing
  // Text, not empty, and id; of equal texts the last one counts. Takes 21 bytes a byte of theirs while it is built, and
  // keeps 13.
  explicit AddedTokenFinder(std::vector<std::pair<std::string, std::int32_t>> tokens);

  bool empty() const { return tokens_.empty(); }

  // Cuts a text at its added tokens: part(std::string_view) for what is between them, never empty, and token(id), in
  // order.
  template <class Part, class Token>
  void cut(std::string_view text, Part&& part, Token&& token) const {
    std::vector<Found> found;
    std::size_t done = 0;
    for (std::size_t begin = 0; begin < text.size() && !empty(); begin += kBlock) {
      find(text, begin, found);
      for (auto at = found.rbegin(); at != found.rend(); ++at) {
        if (at->at < done) continue;  // within the token before
        if (at->at > done) part(text.substr(done, at->at - done));
        token(tokens_[at->token].id);
        done = at->at + tokens_[at->token].bytes;
      }
      found.clear();
    }
    if (done < text.size()) part(text.substr(done));
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 16;  // bytes of text that are searched at a time
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
  std::uint32_t step(std::uint32_t state, unsigned char byte) const;
  // Appends the longest token of each place of the block that begins at `begin`, from its last place to its first.
  void find(std::string_view text, std::size_t begin, std::vector<Found>& found) const;

  std::vector<Entry> tokens_;
  std::size_t longest_ = 0;
  // States in breadth-first order, 0 for nothing read: those after state s by one more byte are first_child_[s] to
  // first_child_[s + 1].
  std::array<std::uint32_t, 256> after_none_{};
  std::vector<std::uint32_t> first_child_;
  std::vector<unsigned char> byte_;     // the last one read
  std::vector<std::uint32_t> shorter_;  // the state of the longest proper end of what was read
  std::vector<std::uint32_t> match_;    // the longest token that what was read ends in
};

}  // namespace megalith
