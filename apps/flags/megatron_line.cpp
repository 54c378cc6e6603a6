#include "apps/flags/megatron_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "apps/config/optimizer_options.h"
#include "apps/config/parallel_options.h"
#include "core/base/take_part.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

// Flag on a command line with its values.
struct Given {
  std::string name;    // without leading dashes
  std::string prefix;  // --NAME as written
  std::vector<std::string> words;
};

std::string shown(const std::vector<std::string>& words) {
  if (words.empty()) return "no value";
  std::vector<std::string> texts;
  for (const std::string& word : words) texts.push_back(escaped_short(word));
  return fmt::format("{}", fmt::join(texts, " "));
}

class Reader {
 public:
  Reader(App app, const FlagTable& table) : app_(app), table_(table) {}

  void read(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size();) {
      Given given;
      std::size_t end = i + 1;
      if (arguments[i].starts_with("--")) {
        const std::size_t equals = std::min(arguments[i].find('='), arguments[i].size());
        given = {.name = arguments[i].substr(2, equals - 2), .prefix = arguments[i].substr(0, equals), .words = {}};
        if (equals < arguments[i].size()) given.words.push_back(arguments[i].substr(equals + 1));
        while (end < arguments.size() && !is_flag(arguments[end])) given.words.push_back(arguments[end++]);
      }
      if (given.name.empty() || is_own(given.name) || !replace(given))
        line.words.insert(line.words.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                          arguments.begin() + static_cast<std::ptrdiff_t>(end));
      i = end;
    }
  }

  MegatronLine line;

 private:
  const Flag* find(std::string_view name) const {
    const auto flag = std::ranges::find_if(
        table_, [&](const Flag& f) { return takes(f, app_) && !f.traits.positional && is_named(f, name); });
    return flag == table_.end() ? nullptr : &*flag;
  }
  bool is_own(std::string_view name) const { return find(name) != nullptr; }

  // False if the words stay, since the flag is unknown or its feature is missing.
  bool replace(const Given& given) {
    const std::vector<MegatronFlag> flags = find_megatron_flags(given.name, static_cast<unsigned>(app_));
    if (flags.empty()) return replace_opposite(given);
    const auto accepts = [&](const MegatronFlag& flag) {
      return flag.row->kind != MegatronKind::kSpelling && flag.takes(given.words);
    };
    if (std::ranges::any_of(flags, accepts)) return take(given);
    const auto rejects = [](const MegatronFlag& flag) {
      return flag.row->kind == MegatronKind::kFeature || flag.row->kind == MegatronKind::kReplaced;
    };
    if (std::ranges::any_of(flags, rejects)) return false;
    if (flags[0].row->kind == MegatronKind::kSpelling && has_form(flags[0], given)) return spell(*flags[0].row, given);
    line.problems.push_back({.name = given.name,
                             .shown = given.prefix,
                             .value = {.expected = flags[0].expected(),
                                       .got = shown(given.words),
                                       .remedy = fmt::format("remove it: {}", flags[0].row->text)}});
    return true;
  }

  static bool has_form(const MegatronFlag& flag, const Given& given) {
    return flag.is_toggle() ? given.words.empty() : flag.takes(given.words);
  }

  bool take(const Given& given) {
    line.is_megatrons = true;
    std::string text = given.prefix;
    for (const std::string& word : given.words) text += " " + (is_utf8(word) ? word : escaped_short(word));
    if (std::ranges::find(line.taken, text) == line.taken.end()) line.taken.push_back(std::move(text));
    return true;
  }

  bool spell(const MegatronRow& row, const Given& given) {
    line.is_megatrons = true;
    for (std::string_view rest = row.text; !rest.empty();) {
      const std::string_view word = take_part(rest, ' ');
      line.words.push_back(word == "{}" ? given.words[0] : std::string(word));
    }
    return true;
  }

  // --no-X of a toggle X of the program.
  bool replace_opposite(const Given& given) {
    constexpr std::string_view kNo = "no-";
    if (!given.name.starts_with(kNo) || !given.words.empty()) return false;
    const std::string name = given.name.substr(kNo.size());
    const Flag* const flag = find(name);
    if (flag == nullptr || flag->binding.kind != ValueKind::kToggle || flag->group == FlagGroup::kProgram) return false;
    line.words.push_back(fmt::format("--{}=false", name));
    return true;
  }

  App app_;
  const FlagTable& table_;
};

// "--hidden-dropout 0.1 (here 0)" of flags that are not given.
std::vector<std::string> other_defaults(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  std::vector<std::string> texts;
  for (const char* flag : {"hidden-dropout", "attention-dropout"})
    if (std::ranges::find(options.effective, flag, &ConfigEntry::name) != options.effective.end() &&
        options.is_default(flag))
      texts.push_back(fmt::format("--{} 0.1 (here 0)", flag));
  const std::int64_t tp = parallel.tensor_model_parallel_size;
  if (options.moe().num_experts > 0 && tp > 1 && options.is_default("expert-tensor-parallel-size"))
    texts.push_back(fmt::format("--expert-tensor-parallel-size {} (here 1)", tp));
  if (parallel.use_megatron_fsdp && options.is_default("data-parallel-sharding-strategy"))
    texts.emplace_back("--data-parallel-sharding-strategy optim_grads_params (here auto)");
  return texts;
}

}  // namespace

MegatronLine read_megatron_line(App app, const FlagTable& table, const std::vector<std::string>& arguments) {
  Reader reader(app, table);
  reader.read(arguments);
  return std::move(reader.line);
}

void check_taken(const MegatronNotes& notes, const Options& options) {
  const auto has = [&](std::string_view flag) { return std::ranges::find(notes.taken, flag) != notes.taken.end(); };
  constexpr const char *kPositions = "--no-position-embedding", *kSums = "--accumulate-allreduce-grads-in-fp32";
  const auto positions = std::ranges::find(options.effective, "position-embedding-type", &ConfigEntry::name);
  if (has(kPositions) && positions != options.effective.end() && positions->value == "\"learned_absolute\"")
    refuse_usage(fmt::format("{} and --position-embedding-type", kPositions),
                 {.expected = "rope or none", .got = "learned_absolute", .remedy = "use --position-embedding-type"});
  const OptimizerOptions& optimizer = options.optimizer;
  if (has(kSums) && optimizer.main_grads_dtype == DType::kBf16 && !optimizer.grad_reduce_in_bf16)
    refuse_usage(fmt::format("{} and --main-grads-dtype", kSums),
                 {.expected = "fp32", .got = "bf16", .remedy = "remove one of them"});
}

std::vector<std::string> notices_of(const MegatronNotes& notes, const Options& options) {
  std::vector<std::string> notices;
  const auto add = [&notices](const char* title, const std::vector<std::string>& texts) {
    if (!texts.empty()) notices.push_back(fmt::format("{}: {}", title, fmt::join(texts, ", ")));
  };
  add("no effect, as these flags ask for what is done in any case (docs/from-megatron.md)", notes.taken);
  add("no effect in this run", notes.idle);
  add("no effect on a plan", notes.unused);
  if (notes.is_megatrons) add("other defaults in Megatron-LM of flags that are not given", other_defaults(options));
  return notices;
}

}  // namespace megalith
