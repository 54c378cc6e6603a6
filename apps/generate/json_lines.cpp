#include "apps/generate/json_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
constexpr const char* kOutputScope = "generate.output";

}  // namespace

void for_each_line(const std::string& path,
                   const std::function<void(std::string_view line, const std::string& place)>& visit) {
  const FaultScope scope("generate.input");
  LineReader lines(path, {.line_bytes = kMaxLineBytes});
  while (const std::optional<LineReader::Line> line = lines.next()) {
    const std::string place = fmt::format("{}:{}", lines.path(), lines.number());
    if (line->is_too_long) refuse_format(place, "a line of at most 64 MiB", "a longer line", "remove or divide it");
    std::string_view text = line->text;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t\r\f\v") != std::string_view::npos) visit(text, place);
  }
}

nlohmann::json parse_line(std::string_view line, const std::string& place) {
  nlohmann::json value = parse_strict_json(line, place);
  if (!value.is_object()) refuse_format(place, "a JSON object", value.type_name(), "correct or remove the line");
  return value;
}

std::string text_under(const nlohmann::json& object, const std::string& key, const std::string& place,
                       bool may_be_empty) {
  const auto member = object.find(key);
  const std::string expected = fmt::format("a {}text under '{}'", may_be_empty ? "" : "non-empty ", key);
  constexpr const char* kRemedy = "correct or remove the line";
  if (member == object.end()) refuse_format(place, expected, "none", kRemedy);
  if (!member->is_string()) refuse_format(place, expected, member->type_name(), kRemedy);
  std::string text = member->get<std::string>();
  if (text.empty() && !may_be_empty) refuse_format(place, expected, "an empty text", kRemedy);
  return text;
}

ResultsFile::ResultsFile(const std::string& path) {
  if (path.empty()) return;
  const FaultScope scope(kOutputScope);
  try {
    const std::optional<NameInfo> before = look_at_name(path);
    if (before && before->type != EntryType::kFile) {  // a device or a link (/dev/stdout) is never replaced
      stream_ = File::create(path);
    } else {
      atomic_ = std::make_unique<OutputFile>(path, kOutputScope);
    }
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--results: {}", error.what()));
  }
}

void ResultsFile::add(const nlohmann::ordered_json& result) {
  if (!is_open()) return;
  const FaultScope scope(kOutputScope);
  // Bytes that are not UTF-8 become U+FFFD.
  const std::string line = result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (atomic_) return atomic_->write(line);
  stream_.write(line);
}

void ResultsFile::finish() {
  const FaultScope scope(kOutputScope);
  if (atomic_) atomic_->commit();
  if (stream_.is_open()) stream_.close();
}

}  // namespace megalith
