#include "core/model/layer_pattern.h"

#include <fmt/format.h>

#include <charconv>

namespace megalith {

namespace {

constexpr std::size_t kMostLayers = 10'000;

std::optional<std::size_t> number_at(std::string_view text, std::size_t& at) {
  std::size_t value = 0;
  const char* const begin = text.data() + at;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  at += static_cast<std::size_t>(end - begin);
  return value;
}

class LayerPattern {
 public:
  explicit LayerPattern(std::string_view text) {
    for (const char c : text) {
      if (c != ' ') text_ += c;
    }
  }

  std::vector<bool> read() {
    const List list = sum(0);
    return list && at_ == text_.size() ? *list : std::vector<bool>{};
  }

 private:
  using List = std::optional<std::vector<bool>>;

  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  List sum(int depth) {
    std::vector<bool> all;
    do {
      const List one = term(depth);
      if (!one || all.size() + one->size() > kMostLayers) return std::nullopt;
      all.insert(all.end(), one->begin(), one->end());
    } while (take('+'));
    return all;
  }

  List term(int depth) {
    List one = list(depth);
    if (!one || !take('*')) return one;
    const auto times = number_at(text_, at_);
    if (!times || *times > kMostLayers || *times * one->size() > kMostLayers) return std::nullopt;
    std::vector<bool> all;
    for (std::size_t i = 0; i < *times; ++i) all.insert(all.end(), one->begin(), one->end());
    return all;
  }

  List list(int depth) {
    if (take('(')) {
      const List inner = depth < kMaxParentheses ? sum(depth + 1) : std::nullopt;
      return take(')') ? inner : std::nullopt;
    }
    if (!take('[')) return std::nullopt;
    std::vector<bool> layers;
    do {
      const auto layer = number_at(text_, at_);
      if (!layer || *layer > 1) return std::nullopt;
      layers.push_back(*layer == 1);
    } while (take(','));
    return take(']') ? List(layers) : std::nullopt;
  }

  static constexpr int kMaxParentheses = 8;
  std::string text_;
  std::size_t at_ = 0;
};

}  // namespace

bool is_layer_pattern(std::string_view text) { return text.find('[') != std::string_view::npos; }

std::vector<bool> parse_layer_pattern(std::string_view text) { return LayerPattern(text).read(); }

std::optional<std::size_t> parse_layer_frequency(std::string_view text) {
  std::size_t at = 0;
  const auto every = number_at(text, at);
  return every && *every > 0 && at == text.size() ? every : std::nullopt;
}

std::string layer_pattern(const std::vector<bool>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t run = 1;
    while (i + run < layers.size() && layers[i + run] == layers[i]) ++run;
    text += fmt::format("{}[{:d}]{}", i == 0 ? "" : "+", static_cast<bool>(layers[i]),
                        run == 1 ? "" : fmt::format("*{}", run));
    i += run;
  }
  return text;
}

}  // namespace megalith
