// Strict JSON for untrusted files: bounded size, depth and number of values, no duplicate names, no unknown keys,
// numbers checked against their range. Each violation is an Error (kFormat) with the file and the key.
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
// Limit of values of any kind. Indices of 1 M tensors and manifests of 300,000 tensors stay below the limit.
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 22;

// Throws the Error (kFormat) of every check here; its remedy is to repair the file or get it again.
[[noreturn]] void refuse_content(const std::string& subject, const std::string& expected, const std::string& got);

nlohmann::json parse_strict_json(std::string_view text, const std::string& subject,
                                 std::size_t max_values = kMaxJsonValues);

// Parses one large object of any size; memory holds one member at a time, of at most `max_values` values.
using MemberVisitor = std::function<void(const std::string& name, const nlohmann::json& value)>;
void for_each_member(std::string_view text, const std::string& subject, std::size_t max_values,
                     const MemberVisitor& visit);

// Reader of an object's members; `finish` rejects members that were not read.
class JsonObject {
 public:
  // `value` must outlive this object. Fails if `value` is no object; `subject` is the file and the key path so far.
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

// Checks of a single value, such as an array's element.
std::int64_t json_integer(const nlohmann::json& value, std::int64_t low, std::int64_t high, const std::string& subject);
std::string json_text(const nlohmann::json& value, std::size_t max_bytes, const std::string& subject);
std::map<std::string, std::string> json_texts(const nlohmann::json& value, std::size_t max_bytes,
                                              const std::string& subject);
void require_array(const nlohmann::json& value, const std::string& subject);

}  // namespace megalith
