#include "parallel/pipeline_parallel/layer_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::string_view kFlag = "--pipeline-model-parallel-layout";
constexpr std::size_t kMostText = 16384;     // characters as written
constexpr std::size_t kMaxExpanded = 65536;  // letters and bars after expansion
constexpr int kMaxRepeats = 10000;

// Parser that reads the text once and expands repeats.
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

  // Parses a letter or bar with its count.
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
    if (at_ == text_.size() || text_[at_] != '*') refuse("* and a count after ')'", here());
    return repeated(inside);
  }

  std::string repeated(const std::string& what) {
    if (at_ == text_.size() || text_[at_] != '*') return what;
    const std::size_t digits = ++at_;
    int count = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      count = std::min(count * 10 + (text_[at_++] - '0'), kMaxRepeats + 1);
    }
    if (count < 1 || count > kMaxRepeats) {
      const std::string got = at_ == digits ? here() : std::string(text_.substr(digits, at_ - digits));
      at_ = digits;
      refuse(fmt::format("a count from 1 to {} after *", kMaxRepeats), got);
    }
    std::string out;
    for (int i = 0; i < count; ++i) append(out, what);
    return out;
  }

  void append(std::string& out, const std::string& more) {
    if (out.size() + more.size() > kMaxExpanded)
      refuse(fmt::format("at most {} letters and bars once repeats are written out", kMaxExpanded), "more");
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

// Requires exactly one occurrence: E at the start of the first part, L at the end of the last.
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

namespace {

constexpr const char* kRemedy = "give --pipeline-model-parallel-layout";

// Number of layers that embedding and loss count as.
int extra_layers(const LayerSplit& split) { return split.account_for_embedding + split.account_for_loss; }

bool is_uneven(const LayerSplit& split) { return split.first_stage_layers != 0 || split.last_stage_layers != 0; }

std::string describe_extra(const LayerSplit& split) {
  if (extra_layers(split) == 0) return {};
  return fmt::format(", {} counted as {}",
                     extra_layers(split) == 2      ? "embedding and loss"
                     : split.account_for_embedding ? "embedding"
                                                   : "loss",
                     extra_layers(split) == 2 ? "layers" : "a layer");
}

void check_divides(const LayerSplit& split, int divisor, const std::string& divisor_is) {
  const int extra = extra_layers(split), total = split.num_layers + extra;
  if (total % divisor == 0) return;
  const int below = total / divisor * divisor - extra;
  refuse_usage(
      "--num-layers",
      {.expected = fmt::format("{}a multiple of {} ({}{})", extra > 0 ? fmt::format("{} less than ", extra) : "",
                               divisor, divisor_is, describe_extra(split)),
       .got = fmt::format("{}", split.num_layers),
       .remedy = fmt::format("{}{} would fit; or {}", below > 0 ? fmt::format("{} or ", below) : "", below + divisor,
                             kRemedy)});
}

std::string describe_parts(const Placement& placement) {
  const std::string stages = fmt::format("--pipeline-model-parallel-size {}", placement.num_stages);
  return placement.num_chunks == 1 ? stages : fmt::format("{} x {} chunks", stages, placement.num_chunks);
}

// Total layers of a stage, if the first or last stage has a separate number.
struct StageLayers {
  int first = 0;
  int others = 0;
  int last = 0;
};

StageLayers uneven_layers(const LayerSplit& split) {
  constexpr const char* kFlags = "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers";
  const Placement& placement = split.placement;
  const int chunks = placement.num_chunks;
  if (extra_layers(split) > 0) {
    refuse_usage(
        kFlags,
        {.expected = "none with --account-for-embedding-in-pipeline-split or --account-for-loss-in-pipeline-split",
         .got = "both",
         .remedy = kRemedy});
  }
  if (placement.num_stages == 1)
    refuse_usage(kFlags, {.expected = "--pipeline-model-parallel-size of at least 2", .got = "1"});
  for (const int layers : {split.first_stage_layers, split.last_stage_layers}) {
    if (layers >= 0 && layers % chunks == 0) continue;
    refuse_usage(kFlags, {.expected = fmt::format("multiples of the {} chunks per stage", chunks),
                          .got = fmt::format("{}", layers),
                          .remedy = kRemedy});
  }
  const int left = split.num_layers - split.first_stage_layers - split.last_stage_layers;
  const int stages = placement.num_stages - (split.first_stage_layers > 0) - (split.last_stage_layers > 0);
  const int divisor = stages * chunks;
  if (left < 0 || (stages == 0 ? left > 0 : left % divisor != 0)) {
    refuse_usage(
        fmt::format("{} with --num-layers {}", kFlags, split.num_layers),
        {.expected = stages == 0 ? "all layers in the two stages"
                                 : fmt::format("layers left for the other {} stages{} in a multiple of {}", stages,
                                               chunks == 1 ? "" : fmt::format(" of {} chunks", chunks), divisor),
         .got = fmt::format("{} left", left),
         .remedy = kRemedy});
  }
  const int others = stages == 0 ? 0 : left / stages;
  return {.first = split.first_stage_layers > 0 ? split.first_stage_layers : others,
          .others = others,
          .last = split.last_stage_layers > 0 ? split.last_stage_layers : others};
}

}  // namespace

LayerLayout split_layers(const LayerSplit& split) {
  const Placement& placement = split.placement;
  require(split.num_layers >= 1, "a model has layers");
  StageLayers stage_layers;
  if (is_uneven(split)) {
    stage_layers = uneven_layers(split);
  } else {
    check_divides(split, placement.num_parts(), describe_parts(placement));
    const int even = (split.num_layers + extra_layers(split)) / placement.num_stages;
    stage_layers = {.first = even, .others = even, .last = even};
  }
  LayerLayout layout;
  int next = 0;
  for (int i = 0; i < placement.num_parts(); ++i) {
    const int stage = placement.at(i).stage;
    PartLayers part{.first_layer = next, .has_embedding = i == 0, .has_loss = i == placement.num_parts() - 1};
    part.num_layers = (stage == 0                          ? stage_layers.first
                       : stage == placement.num_stages - 1 ? stage_layers.last
                                                           : stage_layers.others) /
                      placement.num_chunks;
    part.num_layers -= (part.has_embedding && split.account_for_embedding) + (part.has_loss && split.account_for_loss);
    next += part.num_layers;
    layout.push_back(part);
  }
  require(next == split.num_layers, "a split has all layers");
  return layout;
}

int chunks_of_virtual_stages(const LayerSplit& split, int num_layers_per_virtual_stage) {
  constexpr const char* kFlag = "--num-layers-per-virtual-pipeline-stage";
  const int stages = split.placement.num_stages;
  if (is_uneven(split)) {
    refuse_usage(kFlag,
                 {.expected = "none with --decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
                  .got = fmt::format("{}", num_layers_per_virtual_stage),
                  .remedy = kRemedy});
  }
  check_divides(split, stages, fmt::format("--pipeline-model-parallel-size {}", stages));
  const int per_stage = (split.num_layers + extra_layers(split)) / stages;
  if (num_layers_per_virtual_stage >= 1 && per_stage % num_layers_per_virtual_stage == 0)
    return per_stage / num_layers_per_virtual_stage;
  std::string divisors;
  for (int i = 1; i <= per_stage; ++i) {
    if (per_stage % i == 0) divisors += fmt::format("{}{}", divisors.empty() ? "" : ", ", i);
  }
  refuse_usage(kFlag, {.expected = fmt::format("a divisor of a stage's {} layers{}: {}", per_stage,
                                               describe_extra(split), divisors),
                       .got = fmt::format("{}", num_layers_per_virtual_stage)});
}

}  // namespace megalith
