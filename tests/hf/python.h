// The interpreter that has transformers: ${PYTHON:-python3}.
#pragma once

#include <string>

namespace megalith::test {

std::string python();
// Why a test that needs torch and transformers 5 is skipped; empty where they are there.
std::string missing_transformers();

}  // namespace megalith::test
