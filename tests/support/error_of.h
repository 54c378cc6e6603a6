// The messages of errors, to compare them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace megalith {

// Runs `action`, which must throw an Error of that exit code, and returns its message.
template <class Action>
std::string error_of(ExitCode code, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// The text that `action` returns, or the message of its Error of that exit code.
template <class Action>
std::string result_of(ExitCode code, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
}

}  // namespace megalith
