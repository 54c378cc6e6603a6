// The interpreter that has transformers: ${PYTHON:-python3}.
#pragma once

#include <string>

namespace megalith::test {

std::string python();
// Reason for skipping a test that needs torch and transformers 5; empty if both exist.
std::string missing_transformers();

}  // namespace megalith::test
