#include "parallel/comm/on_all_ranks.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <system_error>

namespace megalith {

void on_all_ranks(Communicator& group, const std::function<void()>& work) {
  if (const std::optional<RankFailure> first = failure_of_any(group, work)) throw EveryRankFailed(*first);
}

std::optional<RankFailure> failure_of_any(Communicator& group, const std::function<void()>& work) {
  const std::vector<RankFailure> failures = failures_on_all_ranks(group, work);
  return failures.empty() ? std::nullopt : std::optional(failures.front());
}

std::vector<RankFailure> failures_on_all_ranks(Communicator& group, const std::function<void()>& work) {
  ExitCode code = ExitCode::kOk;
  std::string message;
  try {
    work();
  } catch (const Error& error) {
    code = error.code();
    message = error.what();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error&) {
    throw;
  } catch (const std::exception& error) {
    code = ExitCode::kInternal;
    message = error.what();
  }
  if (!group.host_any(code != ExitCode::kOk)) return {};
  const std::vector<ExitCode> codes = group.host_gather(code);
  const std::vector<std::string> messages = group.host_all_gather(message);
  std::vector<RankFailure> failures;
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] != ExitCode::kOk)
      failures.push_back({.rank = static_cast<int>(rank), .code = codes[rank], .message = messages[rank]});
  }
  return failures;
}

std::string to_string(const std::vector<RankFailure>& failures, const Communicator& group) {
  constexpr std::size_t kMaxShown = 4;
  std::string text;
  for (std::size_t i = 0; i < failures.size() && i < kMaxShown; ++i) {
    if (i > 0) text += "; ";
    if (group.size() > 1) text += fmt::format("rank {}: ", failures[i].rank);
    text += failures[i].message;
  }
  if (failures.size() > kMaxShown) text += fmt::format("; and {} more ranks", failures.size() - kMaxShown);
  return text;
}

}  // namespace megalith
