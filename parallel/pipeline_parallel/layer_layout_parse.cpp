#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/layer_layout.h"

namespace megalith {

namespace {

constexpr std::string_view kFlag = "--pipeline-model-parallel-layout";
constexpr std::size_t kMostText = 16384;      // characters, as written
constexpr std::size_t kMostExpanded = 65536;  // letters and bars, repeats written out
constexpr int kMostRepeats = 10000;

// Reads the text once; letters come out with repeats written out.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  std::string read() {
    if (text_.size() > kMostText)
      refuse(fmt::format("a text of at most {} characters", kMostText), fmt::format("{}", text_.size()));
    std::string out;
    while (skip_commas()) {
      if (text_[at_] == '(') {
        append(out, group());
      } else {
        append(out, item());
      }
    }
    return out;
  }

 private:
  bool skip_commas() {
    while (at_ < text_.size() && text_[at_] == ',') ++at_;
    return at_ < text_.size();
  }

  // A letter or bar with its count.
  std::string item() {
    const char c = text_[at_];
    if (c == 'm') refuse("E, t, L or |", "m: multi-token prediction is not built yet");
    if (c == '\0' || std::string_view("EtL|").find(c) == std::string_view::npos)
      refuse(c == ')' ? "E, t, L, | or (" : "E, t, L, |, ( or a comma", fmt::format("'{}'", shown(c)));
    ++at_;
    return repeated(std::string(1, c));
  }

  std::string group() {
    const std::size_t open = at_++;
    std::string inside;
    while (skip_commas() && text_[at_] != ')') {
      if (text_[at_] == '(') refuse("E, t, L, | or )", "'(' inside brackets");
      append(inside, item());
    }
    if (at_ == text_.size()) {
      at_ = open;
      refuse("a bracket that is closed", "'(' without ')'");
    }
    if (inside.empty()) refuse("E, t, L or | inside brackets", "')'");
    ++at_;
    if (at_ == text_.size() || text_[at_] != '*') refuse("* and a count behind ')'", here());
    return repeated(inside);
  }

  std::string repeated(const std::string& what) {
    if (at_ == text_.size() || text_[at_] != '*') return what;
    const std::size_t digits = ++at_;
    int count = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      count = std::min(count * 10 + (text_[at_++] - '0'), kMostRepeats + 1);
    }
    if (count < 1 || count > kMostRepeats) {
      const std::string got = at_ == digits ? here() : std::string(text_.substr(digits, at_ - digits));
      at_ = digits;
      refuse(fmt::format("a count from 1 to {} behind *", kMostRepeats), got);
    }
    std::string out;
    for (int i = 0; i < count; ++i) append(out, what);
    return out;
  }

  void append(std::string& out, const std::string& more) {
    if (out.size() + more.size() > kMostExpanded)
      refuse(fmt::format("at most {} letters and bars once repeats are written out", kMostExpanded), "more");
    out += more;
  }

  static std::string shown(char c) {
    return std::isprint(static_cast<unsigned char>(c)) != 0 ? std::string(1, c)
                                                            : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  std::string here() const { return at_ == text_.size() ? "the end" : fmt::format("'{}'", shown(text_[at_])); }

  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    refuse_usage(fmt::format("{}, character {}", kFlag, at_ + 1), {.expected = expected, .got = got});
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The letter stands once: E at the front of the first part, L at the end of the last.
void check_end(const std::string& letters, char letter, bool is_there) {
  const auto times = std::count(letters.begin(), letters.end(), letter);
  if (times == 1 && is_there) return;
  const auto parts_before = times == 0 ? 0 : std::count(letters.data(), letters.data() + letters.find(letter), '|');
  refuse_usage(
      std::string(kFlag),
      {.expected = fmt::format("one {}, {}", letter, letter == 'E' ? "as the first letter" : "as the last letter"),
       .got = times == 1 ? fmt::format("it elsewhere, in part {}", 1 + parts_before) : fmt::format("{} of it", times)});
}

}  // namespace

LayerLayout parse_layer_layout(std::string_view text, int num_layers, int num_stages) {
  const std::string letters = LayoutReader(text).read();
  check_end(letters, 'E', !letters.empty() && letters.front() == 'E');
  check_end(letters, 'L', !letters.empty() && letters.back() == 'L');
  LayerLayout layout(1);
  for (const char letter : letters) {
    PartLayers& part = layout.back();
    if (letter == 'E') part.has_embedding = true;
    if (letter == 't') ++part.num_layers;
    if (letter == 'L') part.has_loss = true;
    if (letter == '|') layout.push_back({.first_layer = part.first_layer + part.num_layers});
  }
  const int layers = layout.back().first_layer + layout.back().num_layers;
  if (layers != num_layers) {
    refuse_usage(fmt::format("{} and --num-layers", kFlag),
                 {.expected = fmt::format("{} t for --num-layers", num_layers), .got = fmt::format("{}", layers)});
  }
  if (layout.size() % static_cast<std::size_t>(num_stages) != 0) {
    refuse_usage(fmt::format("{} and --pipeline-model-parallel-size", kFlag),
                 {.expected = fmt::format(
                      "parts, which | separates, in a multiple of --pipeline-model-parallel-size {}", num_stages),
                  .got = fmt::format("{}", layout.size())});
  }
  return layout;
}

std::string to_string(const LayerLayout& layout) {
  std::string text;
  for (const PartLayers& part : layout) {
    if (&part != &layout.front()) text += '|';
    if (part.has_embedding) text += 'E';
    if (part.num_layers > 0) text += 't';
    if (part.num_layers > 1) text += fmt::format("*{}", part.num_layers);
    if (part.has_loss) text += 'L';
  }
  return text;
}

}  // namespace megalith
