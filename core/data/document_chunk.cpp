#include "core/data/document_chunk.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace megalith {

namespace {

constexpr int kMaxDepth = 32;

// SAX handler that reads one member of the outermost object, so that no tree is built. The names of the functions are
// those of nlohmann::json.
class TextMember {
 public:
  explicit TextMember(const std::string& key) : key_(key) {}

  std::optional<std::string> text;
  std::string problem;

  bool null() { return other("null"); }
  bool boolean(bool) { return other("a boolean"); }
  bool number_integer(std::int64_t) { return other("a number"); }
  bool number_unsigned(std::uint64_t) { return other("a number"); }
  bool number_float(double, const std::string&) { return other("a number"); }
  bool binary(nlohmann::json::binary_t&) { return other("binary"); }
  bool string(std::string& value) {
    if (depth_ == 0) return other("a string");
    if (at_key_) text = std::move(value);
    at_key_ = false;
    return true;
  }
  bool key(std::string& name) {
    at_key_ = depth_ == 1 && name == key_;
    return true;
  }
  bool start_object(std::size_t) { return (depth_ == 0 || other("an object")) && enter(); }
  bool start_array(std::size_t) { return other("an array") && enter(); }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t detail = what.rfind(" - ");
    problem = fmt::format("byte {}: {}", position, detail == std::string_view::npos ? what : what.substr(detail + 3));
    return false;
  }

 private:
  // Handles a value that is neither the outermost object nor a string; invalid only as the document or the text.
  bool other(std::string_view what) {
    if (depth_ == 0 || at_key_) problem = depth_ == 0 ? std::string(what) : fmt::format("{} under '{}'", what, key_);
    return problem.empty();
  }
  bool enter() {
    if (++depth_ > kMaxDepth) problem = "deeper nesting";
    return problem.empty();
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& key_;
  int depth_ = 0;
  bool at_key_ = false;
};

std::string parse_text(std::string_view line, bool is_too_long, const std::string& place, const std::string& json_key) {
  TextMember member(json_key);
  if (is_too_long) {
    member.problem = "a longer line";
  } else if (nlohmann::json::sax_parse(line, &member) && !member.text) {
    member.problem = fmt::format("an object without '{}'", json_key);
  }
  if (!member.problem.empty()) {
    refuse_format(
        place,
        fmt::format("a JSON object of at most 64 MiB and {} levels with a string under '{}'", kMaxDepth, json_key),
        member.problem,
        "correct or remove the line, name its text with --json-keys, or skip such lines with --max-bad-lines");
  }
  return std::move(*member.text);
}

}  // namespace

std::string DocumentChunk::place_of(const Document& document) const {
  return holds_json ? fmt::format("{}:{}", path, document.number)
                    : fmt::format("{}: document {}", path, document.number);
}

void visit_documents(const DocumentChunk& chunk, const DocumentOptions& options,
                     const std::function<void(std::string_view)>& visit, const std::function<void(const Error&)>& bad) {
  for (const DocumentChunk::Document& document : chunk.documents) {
    std::string parsed;
    if (chunk.holds_json) {
      try {
        parsed = parse_text(chunk.text_of(document), document.is_too_long, chunk.place_of(document), options.json_key);
      } catch (const Error& error) {
        bad(error);
      }
      if (parsed.empty()) continue;
    }
    try {
      visit(chunk.holds_json ? std::string_view(parsed) : chunk.text_of(document));
    } catch (const Error& error) {
      if (error.code() != ExitCode::kFormat) throw;
      const Error placed(error.code(), fmt::format("{}: {}", chunk.place_of(document), error.what()));
      if (!chunk.holds_json) throw placed;
      bad(placed);
    }
  }
}

}  // namespace megalith
