#include "core/flags/values.h"

#include <fmt/format.h>

#include "core/base/text/text.h"

namespace megalith {

namespace {

// True if the type in the file suits the flag. A text is never a number, even if it reads like a number.
bool has_type(const RawValue& value, ValueKind kind) {
  if (value.type == RawType::kArgument) return true;
  switch (kind) {
    case ValueKind::kToggle: return value.type == RawType::kBoolean;
    case ValueKind::kInteger: return value.type == RawType::kInteger;
    case ValueKind::kReal: return value.type == RawType::kReal || value.type == RawType::kInteger;
    case ValueKind::kText:
    case ValueKind::kChoice: return value.type == RawType::kText;
    case ValueKind::kReals: return value.type == RawType::kArray || has_type(value, ValueKind::kReal);
    case ValueKind::kIntegers: return value.type == RawType::kArray;
    case ValueKind::kList: return value.type == RawType::kArray || value.type == RawType::kText;
  }
  return false;
}

}  // namespace

std::string prefix_of(const RawValue& value) {
  return value.file.empty() ? "--" : fmt::format("{}:{}:{}: ", value.file, value.line, value.column);
}

std::string shown(const RawValue& value) {
  const bool is_plain =
      value.type == RawType::kBoolean || value.type == RawType::kInteger || value.type == RawType::kReal;
  if (is_plain) return value.items[0];
  std::string out;
  for (const std::string& item : value.items) out += (out.empty() ? "" : ", ") + escaped_short(item);
  return value.type == RawType::kArray || value.items.size() > 1 ? "[" + out + "]" : out;
}

bool set_value(const Binding& binding, const RawValue& value) {
  return has_type(value, binding.kind) && binding.set(value.items);
}

}  // namespace megalith
