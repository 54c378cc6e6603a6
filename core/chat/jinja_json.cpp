#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/chat/jinja_plain_json.h"
#include "core/chat/jinja_text.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/strict_json.h"

namespace megalith::jinja {

namespace {

// SAX handler that keeps the order of names. The names of the functions are those of nlohmann::json.
class ValueHandler {
 public:
  explicit ValueHandler(const std::string& subject) : subject_(subject) {}
  Value take() { return std::move(root_); }

  bool null() { return put(Value::none()); }
  bool boolean(bool value) { return put(Value::boolean(value)); }
  bool number_integer(std::int64_t value) { return put(Value::integer(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (!std::in_range<std::int64_t>(value)) refuse_content(subject_, "integers of 64 bits", std::to_string(value));
    return put(Value::integer(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string& spelling) {
    if (spelling.find_first_of(".eE") == std::string::npos) refuse_content(subject_, "integers of 64 bits", spelling);
    return put(Value::real(value));
  }
  bool string(std::string& value) { return put(Value::text(std::move(value))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }
  bool key(std::string& name) {
    if (open_.back().dict.find(name) != nullptr) refuse_content(subject_, "each name once", printable(name) + " twice");
    open_.back().key = std::move(name);
    return true;
  }
  bool start_object(std::size_t) { return open(true); }
  bool start_array(std::size_t) { return open(false); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    refuse_content(subject_, "UTF-8 JSON", fmt::format("something else at byte {}", position));
  }

 private:
  struct Open {
    bool is_object = false;
    std::string key;
    Dict dict;
    std::vector<Value> items;
  };

  bool put(Value value) {
    if (values_++ == kMaxJsonValues) refuse_content(subject_, fmt::format("at most {} values", kMaxJsonValues), "more");
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool is_object) {
    if (open_.size() == kMaxJsonDepth) {
      refuse_content(subject_, fmt::format("at most {} levels", kMaxJsonDepth), "more");
    }
    open_.push_back({.is_object = is_object, .key = {}, .dict = {}, .items = {}});
    return true;
  }
  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    return put(done.is_object ? Value::dict(std::move(done.dict)) : Value::list(std::move(done.items)));
  }

  const std::string& subject_;
  Value root_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
};

}  // namespace

Value parse_json(std::string_view text, const std::string& subject) {
  const bool is_small = text.size() <= kMaxJsonBytes;
  std::optional<Value> plain = is_small ? parse_plain_json(text) : std::nullopt;
  return plain ? *std::move(plain) : parse_any_json(text, subject);
}

Value parse_any_json(std::string_view text, const std::string& subject) {
  if (text.size() > kMaxJsonBytes) {
    refuse_content(subject, fmt::format("at most {} bytes", kMaxJsonBytes), std::to_string(text.size()));
  }
  // The JSON library ends its input at a NUL byte and would accept anything after it.
  if (text.find('\0') != std::string_view::npos) refuse_content(subject, "JSON text", "a NUL byte");
  ValueHandler handler(subject);
  nlohmann::json::sax_parse(text, &handler);
  return handler.take();
}

}  // namespace megalith::jinja
