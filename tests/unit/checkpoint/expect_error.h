// EXPECT_ERROR(code, "part of the message", statement)
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

#define EXPECT_ERROR(expected_code, part, ...)                                                    \
  do {                                                                                            \
    try {                                                                                         \
      __VA_ARGS__;                                                                                \
      ADD_FAILURE() << "no error, wanted: " << (part);                                            \
    } catch (const megalith::Error& error) {                                                      \
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(expected_code)) << error.what(); \
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)                          \
          << "message: " << error.what() << "\nwanted: " << (part);                               \
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();         \
    }                                                                                             \
  } while (false)
