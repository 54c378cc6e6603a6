// Words of a command line.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace megalith::test {

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Words of a line, separated by spaces.
inline Words words(const std::string& line) {
  std::istringstream stream(line);
  return Words(std::istream_iterator<std::string>(stream), {});
}

// Flags that move activations of these kinds, of any size.
inline Words offload(const Words& kinds) {
  return Words{"--fine-grained-activation-offloading", "--min-offload-bytes", "0", "--offload-modules"} + kinds;
}

// 2 layers, hidden 32, sequence 16, global batch 8 in micro batches of 2, 6 steps.
inline Words small_run() {
  return words(
      "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
      "--global-batch-size 8 --train-iters 6 --lr 1e-3 --eval-iters 0 --seed 11");
}

}  // namespace megalith::test
