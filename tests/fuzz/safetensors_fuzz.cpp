// A safetensors file: its header, and the blocks of each tensor.
#include "core/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static const fuzz::ScratchFile scratch("model.safetensors");
  const fuzz::Input input(data, size);
  scratch.assign(input.rest());
  fuzz::expect_result_or_error([&] {
    const File file = File::open(scratch.path());
    const SafetensorsHeader header = read_safetensors_header(file);
    std::uint64_t next = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.begin != next || entry.end < entry.begin) fuzz::defect("entries that are not contiguous");
      next = entry.end;
      std::uint64_t seen = 0;
      read_blocks(file, header.data_start + entry.begin, header.data_start + entry.end,
                  [&](std::uint64_t, std::span<const std::byte> block) { seen += block.size(); });
      if (seen != entry.end - entry.begin) fuzz::defect("a tensor was not read whole");
    }
    if (header.data_start + next != file.size()) fuzz::defect("entries that do not end with the file");
  });
  return 0;
}
