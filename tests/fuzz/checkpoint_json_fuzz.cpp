// manifest.json and state.json. The first byte selects one. If it is odd, the text gets its correct hash, so that code
// after the check of the hash is reached.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/checkpoint/hash.h"
#include "core/checkpoint/train_state.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace megalith;

std::string sealed_manifest(std::string body) {
  return body + ",\n\"manifest_xxh3_128\":\"" + to_hex(hash_of(body)) + "\"}\n";
}

std::string sealed_state(const std::string& text) {
  // The parser's own limits come first, so only small and flat text gets this far.
  if (text.size() > 4096 || std::count(text.begin(), text.end(), '[') + std::count(text.begin(), text.end(), '{') > 30)
    return text;
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object() || !value.contains("config") || !value["config"].is_object()) return text;
  std::map<std::string, std::string> config;
  for (const auto& [key, item] : value["config"].items()) {
    if (!item.is_string()) return text;
    config[key] = item.get<std::string>();
  }
  value["config_hash"] = config_hash(config);
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const int kind = input.byte() % 4;
  std::string text(input.rest());
  if (kind == 1) text = sealed_manifest(text);
  if (kind == 3) text = sealed_state(text);
  fuzz::expect_result_or_error([&] {
    if (kind < 2) {
      CheckpointId id{.step = 3, .hash = {}};
      lineage_from_text(text, id, "manifest.json");
      const Manifest manifest = manifest_from_text(text, "manifest.json");
      if (!cover_problem(manifest).empty()) fuzz::defect("a manifest whose chunks do not cover its tensors");
      manifest_from_text(to_text(manifest), "manifest.json, written again");
    } else {
      const TrainState state = train_state_from_json(text, "state.json");
      train_state_from_json(to_json(state), "state.json, written again");
    }
  });
  return 0;
}
