#include "tests/hf/python.h"

#include <cstdlib>

namespace megalith::test {

std::string python() {
  const char* variable = std::getenv("PYTHON");
  return variable != nullptr ? variable : "python3";
}

std::string missing_transformers() {
  const std::string command =
      python() + " -c 'import torch, transformers as t; assert int(t.__version__.split(\".\")[0]) > 4' >/dev/null 2>&1";
  if (std::system(command.c_str()) == 0) return "";
  return python() + " has no torch and transformers 5; PYTHON names another interpreter";
}

}  // namespace megalith::test
