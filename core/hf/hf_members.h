// Members of an object of config.json, for the files core/hf/hf_*.cpp that read it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>

namespace megalith {

struct HfKeys;

inline constexpr std::int64_t kMaxHfInteger = std::int64_t{1} << 28;  // `validate` checks the bounds of each field
inline constexpr const char* kHfNotBuilt = "such a model cannot be converted yet";

// Returns a value as errors print it.
std::string show_json(const nlohmann::json& value);

// Reader of an object's members by name; null counts as absent, as in transformers.
class HfMembers {
 public:
  HfMembers(const nlohmann::json& value, std::string subject);

  std::string subject(const std::string& key) const { return subject_ + ": " + key; }

  const nlohmann::json* find(const std::string& key);  // null: absent
  const nlohmann::json& need(const std::string& key);
  std::int64_t integer(const std::string& key);
  std::int64_t integer_or(const std::string& key, std::int64_t absent);
  double positive(const std::string& key);
  double positive_or(const std::string& key, double absent);
  double at_least_0_or(const std::string& key, double absent);
  bool boolean_or(const std::string& key, bool absent);
  bool is_null(const std::string& key);
  std::string text(const std::string& key);
  // Rejects all values of a setting except `allowed`, the only supported one.
  void only(const std::string& key, const nlohmann::json& allowed, const std::string& why);

  // Rejects unknown keys. `keys`, for the top of the file, lists keys to ignore and receives the ignored ones.
  void refuse_unknown(HfKeys* keys = nullptr) const;

 private:
  void check_ignored(const HfKeys& keys) const;

  const nlohmann::json& value_;
  std::string subject_;
  std::set<std::string> known_;
};

}  // namespace megalith
