// JSON from files that may come from anywhere: bounded size, depth and number of values, no duplicate names, no unknown
// keys, numbers range-checked. Every refusal is one Error (kFormat) that names the file and the key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

namespace megalith {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxJsonDepth = 32;
// Of any kind, objects and arrays included. An index of 1 M tensors, or a manifest of 300,000 tensors, stays below it.
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 22;

// What every check here ends in; its remedy is to mend the file or get it again.
[[noreturn]] void refuse_content(const std::string& subject, const std::string& expected, const std::string& got);

nlohmann::json parse_strict_json(std::string_view text, const std::string& subject,
                                 std::size_t max_values = kMaxJsonValues);

// The same for one large object of any size, of which no more than a member is held at a time, of at most `max_values`.
using MemberVisitor = std::function<void(const std::string& name, const nlohmann::json& value)>;
void for_each_member(std::string_view text, const std::string& subject, std::size_t max_values,
                     const MemberVisitor& visit);

// Takes an object's members one by one; `finish` refuses those that nobody asked for.
class JsonObject {
 public:
  // `value` must outlive this. Fails when it is not an object; `subject` is the file, with the key path so far.
  JsonObject(const nlohmann::json& value, std::string subject);

  bool has(const std::string& key) const;
  const nlohmann::json& member(const std::string& key);
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high);
  std::uint64_t unsigned_integer(const std::string& key);
  std::string text(const std::string& key, std::size_t max_bytes);
  const nlohmann::json& array(const std::string& key);
  std::map<std::string, std::string> texts(const std::string& key);  // an object of strings
  void finish() const;

 private:
  const nlohmann::json& value_;
  std::string subject_;
  std::set<std::string> taken_;
};

// The same checks for a bare value, such as an array's element.
std::int64_t json_integer(const nlohmann::json& value, std::int64_t low, std::int64_t high, const std::string& subject);
std::string json_text(const nlohmann::json& value, std::size_t max_bytes, const std::string& subject);
std::map<std::string, std::string> json_texts(const nlohmann::json& value, std::size_t max_bytes,
                                              const std::string& subject);
void require_array(const nlohmann::json& value, const std::string& subject);

}  // namespace megalith
