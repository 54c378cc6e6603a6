// Exit code of an exception: the code of an Error, kInternal for any other type.
#pragma once

#include <exception>

#include "core/base/error.h"

namespace megalith {

inline ExitCode code_of(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? known->code() : ExitCode::kInternal;
}

}  // namespace megalith
