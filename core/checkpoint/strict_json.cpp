#include "core/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"

namespace megalith {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;  // of one string in an object of strings

std::string shown(const json& value) {
  if (value.is_string()) return "the text " + printable(value.get_ref<const std::string&>());
  return value.is_number() ? value.dump() : fmt::format("{} {}", value.is_null() ? "a" : "an", value.type_name());
}

// Builds the document while it counts depth and values and refuses duplicate names.
class DocumentHandler {
 public:
  DocumentHandler(const std::string& subject, std::size_t max_values) : subject_(subject), max_values_(max_values) {}
  json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(std::vector<std::uint8_t>&) { return false; }
  bool key(std::string& name) {
    if (open_.back()->contains(name)) refuse_content(subject_, "each name once", printable(name) + " twice");
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
  json* place(json value) {
    if (values_++ == max_values_) refuse_content(subject_, fmt::format("at most {} values", max_values_), "more");
    if (open_.empty()) return &(root_ = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  template <class Value>
  bool put(Value&& value) {
    place(json(std::forward<Value>(value)));
    return true;
  }
  bool open(json value) {
    if (open_.size() == kMaxJsonDepth)
      refuse_content(subject_, fmt::format("at most {} levels", kMaxJsonDepth), "more");
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& subject_;
  json root_;
  std::vector<json*> open_;  // a parent's elements do not move while a child of it is open
  std::string key_;
  const std::size_t max_values_;
  std::size_t values_ = 0;
};

}  // namespace

void refuse_content(const std::string& subject, const std::string& expected, const std::string& got) {
  refuse_format(subject, expected, got, "mend the file or get it again");
}

json parse_strict_json(std::string_view text, const std::string& subject, std::size_t max_values) {
  if (text.size() > kMaxJsonBytes) {
    refuse_content(subject, fmt::format("at most {} bytes", kMaxJsonBytes), std::to_string(text.size()));
  }
  // The JSON library takes a NUL for the end of its input and would accept anything after it.
  if (text.find('\0') != std::string_view::npos) refuse_content(subject, "JSON text", "a NUL byte");
  DocumentHandler handler(subject, max_values);
  json::sax_parse(text, &handler);
  return handler.take();
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

std::map<std::string, std::string> JsonObject::texts(const std::string& key) {
  const json& value = member(key);
  if (!value.is_object()) refuse_content(subject_ + ": " + key, "an object of texts", shown(value));
  std::map<std::string, std::string> result;
  for (const auto& [name, text] : value.items()) {
    result[name] = json_text(text, kMaxTextBytes, subject_ + ": " + key + ": " + printable(name));
  }
  return result;
}

void JsonObject::finish() const {
  for (const auto& [name, value] : value_.items()) {
    if (!taken_.contains(name)) refuse_content(subject_, "known keys only", printable(name));
  }
}

std::int64_t json_integer(const json& value, std::int64_t low, std::int64_t high, const std::string& subject) {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  if (!value.is_number_integer()) refuse_content(subject, expected, shown(value));
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse_content(subject, expected, shown(value));
  }
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) refuse_content(subject, expected, shown(value));
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

void require_array(const json& value, const std::string& subject) {
  if (!value.is_array()) refuse_content(subject, "an array", shown(value));
}

}  // namespace megalith
