// The inside of LoadedCheckpoint, for the code that opens one.
#pragma once

#include <map>
#include <string>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

struct LoadedCheckpoint::Impl {
  struct OpenFile {
    File file;
    std::uint64_t data_start = 0;
  };

  const OpenFile& file(int rank);

  Directory folder;
  Manifest manifest;
  TrainState state;
  std::map<int, OpenFile> open;  // by rank that wrote; a few at a time
};

}  // namespace megalith
