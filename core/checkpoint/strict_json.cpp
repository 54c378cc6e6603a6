#include "core/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"

namespace megalith {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  if (value.is_string()) return "the text " + printable(value.get_ref<const std::string&>());
  return value.is_number()
             ? value.dump()
             : fmt::format("{} {}", value.is_null() || value.is_boolean() ? "a" : "an", value.type_name());
}

// Builds the document, counts depth and values, and rejects duplicate names. If `visit` is set, each member of the
// document is passed to it, and only the member's name is kept.
class DocumentHandler {
 public:
  DocumentHandler(const std::string& subject, std::size_t max_values, MemberVisitor visit = nullptr)
      : subject_(subject), max_values_(max_values), visit_(std::move(visit)) {}
  json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(std::vector<std::uint8_t>&) { return false; }
  bool key(std::string& name) {
    if (open_.back()->contains(name)) refuse_content(place(), "each name once", printable(name) + " twice");
    if (open_.size() == 1) member_ = name;
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    refuse_content(subject_, "UTF-8 JSON", fmt::format("something else at byte {}", position));
  }

 private:
  std::string place() const { return visit_ && open_.size() > 1 ? subject_ + ": " + printable(member_) : subject_; }
  json* add(json value) {
    if (values_++ == max_values_) refuse_content(place(), fmt::format("at most {} values", max_values_), "more");
    if (open_.empty()) return &(root_ = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  template <class Value>
  bool put(Value&& value) {
    add(json(std::forward<Value>(value)));
    return end_value();
  }
  bool open(json value) {
    if (open_.size() == kMaxJsonDepth) refuse_content(place(), fmt::format("at most {} levels", kMaxJsonDepth), "more");
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return end_value();
  }
  bool end_value() {
    if (!visit_ || open_.size() != 1) return true;
    json& value = root_[member_];
    visit_(member_, value);
    value = nullptr;
    values_ = 0;
    return true;
  }

  const std::string& subject_;
  json root_;
  std::vector<json*> open_;  // a parent's elements do not move while a child of it is open
  std::string key_, member_;
  const std::size_t max_values_;
  std::size_t values_ = 0;
  const MemberVisitor visit_;
};

void parse(std::string_view text, const std::string& subject, DocumentHandler& handler) {
  // The JSON library ends its input at a NUL byte and would accept anything after it.
  if (text.find('\0') != std::string_view::npos) refuse_content(subject, "JSON text", "a NUL byte");
  json::sax_parse(text, &handler);
}

}  // namespace

void refuse_content(const std::string& subject, const std::string& expected, const std::string& got) {
  refuse_format(subject, expected, got, "repair the file or get it again");
}

json parse_strict_json(std::string_view text, const std::string& subject, std::size_t max_values) {
  if (text.size() > kMaxJsonBytes) {
    refuse_content(subject, fmt::format("at most {} bytes", kMaxJsonBytes), std::to_string(text.size()));
  }
  DocumentHandler handler(subject, max_values);
  parse(text, subject, handler);
  return handler.take();
}

void for_each_member(std::string_view text, const std::string& subject, std::size_t max_values,
                     const MemberVisitor& visit) {
  DocumentHandler handler(subject, max_values, visit);
  parse(text, subject, handler);
}

JsonObject::JsonObject(const json& value, std::string subject) : value_(value), subject_(std::move(subject)) {
  if (!value_.is_object()) refuse_content(subject_, "an object", shown(value_));
}

bool JsonObject::has(const std::string& key) const { return value_.contains(key); }

const json& JsonObject::member(const std::string& key) {
  const auto found = value_.find(key);
  if (found == value_.end()) refuse_content(subject_, "key " + key, "none");
  taken_.insert(key);
  return *found;
}

std::int64_t JsonObject::integer(const std::string& key, std::int64_t low, std::int64_t high) {
  return json_integer(member(key), low, high, subject_ + ": " + key);
}

std::uint64_t JsonObject::unsigned_integer(const std::string& key) {
  const json& value = member(key);
  if (!value.is_number_unsigned()) refuse_content(subject_ + ": " + key, "an unsigned 64-bit integer", shown(value));
  return value.get<std::uint64_t>();
}

std::string JsonObject::text(const std::string& key, std::size_t max_bytes) {
  return json_text(member(key), max_bytes, subject_ + ": " + key);
}

const json& JsonObject::array(const std::string& key) {
  const json& value = member(key);
  require_array(value, subject_ + ": " + key);
  return value;
}

std::map<std::string, std::string> JsonObject::texts(const std::string& key) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  return json_texts(member(key), kMaxBytes, subject_ + ": " + key);
}

void JsonObject::finish() const {
  for (const auto& [name, value] : value_.items()) {
    if (!taken_.contains(name)) refuse_content(subject_, "known keys only", printable(name));
  }
}

std::int64_t json_integer(const json& value, std::int64_t low, std::int64_t high, const std::string& subject) {
  const bool fits = !value.is_number_unsigned() || std::in_range<std::int64_t>(value.get<std::uint64_t>());
  const std::int64_t number = value.is_number_integer() && fits ? value.get<std::int64_t>() : 0;
  if (!value.is_number_integer() || !fits || number < low || number > high)
    refuse_content(subject, fmt::format("an integer from {} to {}", low, high), shown(value));
  return number;
}

std::string json_text(const json& value, std::size_t max_bytes, const std::string& subject) {
  if (!value.is_string()) refuse_content(subject, "a text", shown(value));
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    refuse_content(subject, fmt::format("a text of at most {} bytes", max_bytes), fmt::format("{} bytes", text.size()));
  }
  return text;
}

std::map<std::string, std::string> json_texts(const json& value, std::size_t max_bytes, const std::string& subject) {
  if (!value.is_object()) refuse_content(subject, "an object of texts", shown(value));
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : value.items())
    texts[name] = json_text(text, max_bytes, subject + ": " + printable(name));
  return texts;
}

void require_array(const json& value, const std::string& subject) {
  if (!value.is_array()) refuse_content(subject, "an array", shown(value));
}

}  // namespace megalith
