#include "apps/generate/continuation.h"

#include <algorithm>
#include <span>

namespace megalith {

std::string Continuation::add(std::int32_t token) {
  if (has_ended_) return {};
  ++tokens_;
  has_ended_ = token == rules_.eod;
  if (has_ended_) return std::exchange(held_, {});
  held_ += rules_.separator + stream_.push(tokenizer_.decode(std::span(&token, 1)));
  const std::string& stop = rules_.stop_text;
  std::size_t end = held_.size();
  if (!stop.empty()) {
    end = held_.find(stop);
    has_ended_ = end != std::string::npos;
    if (has_ended_) {
      held_.resize(end);
    } else {
      end = held_.size() - std::min(held_.size(), stop.size() - 1);
      while (!stop.starts_with(std::string_view(held_).substr(end))) ++end;
    }
  }
  std::string added = held_.substr(0, end);
  held_.erase(0, end);
  return added;
}

}  // namespace megalith
