#include "parallel/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "megalith-checkpoint";
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;
constexpr std::int64_t kMaxWorld = 1'000'000;
constexpr std::size_t kHexDigits = 32;
constexpr std::string_view kLineageStart = ",\n\"lineage\":";
constexpr std::string_view kHashKey = "manifest_xxh3_128";
constexpr std::string_view kTailStart = ",\n\"manifest_xxh3_128\":\"";
constexpr std::string_view kTailEnd = "\"}\n";

json file_json(const std::string& name, const ManifestFile& file) {
  return {{"name", name}, {"bytes", file.bytes}, {"xxh3_128", to_hex(file.hash)}};
}

Hash128 read_hash(const json& value, const std::string& subject) {
  const std::string text = json_text(value, kHexDigits, subject);
  const auto hash = hash_from_hex(text);
  if (!hash) refuse_format(subject, "32 hexadecimal digits", printable(text));
  return *hash;
}

ManifestFile read_file(const json& value, const std::string& name, const std::string& subject,
                       std::uint64_t max_bytes = kMaxInt) {
  JsonObject object(value, subject);
  const std::string stored = object.text("name", 256);
  if (stored != name) refuse_format(subject + ": name", name, printable(stored));
  ManifestFile file;
  file.bytes = static_cast<std::uint64_t>(object.integer("bytes", 0, static_cast<std::int64_t>(max_bytes)));
  file.hash = read_hash(object.member("xxh3_128"), subject + ": xxh3_128");
  object.finish();
  return file;
}

void read_files(const json& files, Manifest& manifest, std::int64_t world, const std::string& subject) {
  const auto count = static_cast<std::int64_t>(files.size());
  const std::int64_t most = world + 1 + static_cast<std::int64_t>(kMaxSmallFiles);
  if (count < world + 1)
    refuse_format(subject, fmt::format("{} files for {} ranks", world + 1, world), std::to_string(count));
  if (count > most) refuse_format(subject, fmt::format("at most {} files", most), std::to_string(count));
  for (int rank = 0; rank < world; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    manifest.rank_files.push_back(read_file(files[i], rank_file_name(rank, static_cast<int>(world)), subject));
  }
  auto next = static_cast<std::size_t>(world);
  manifest.state_file = read_file(files[next++], std::string(kStateName), subject);
  for (; next < files.size(); ++next) {
    const std::string name = JsonObject(files[next], subject).text("name", 256);
    const bool in_order = manifest.small_files.empty() || manifest.small_files.rbegin()->first < name;
    if (!is_small_file_name(name) || !in_order) {
      refuse_format(subject, "names of files in addition to the tensors, each once and in order", printable(name));
    }
    manifest.small_files[name] = read_file(files[next], name, subject, kMaxSmallFileBytes);
  }
}

using RankFiles = std::vector<ManifestFile>;

ManifestChunk read_chunk(const json& fields, const ManifestTensor& tensor, const RankFiles& files,
                         const std::string& subject) {
  require_array(fields, subject);
  if (fields.size() != 5) refuse_format(subject, "chunks of 5 values", std::to_string(fields.size()));
  ManifestChunk chunk;
  chunk.file = static_cast<int>(json_integer(fields[0], 0, std::ssize(files) - 1, subject + ": file"));
  chunk.begin = static_cast<std::uint64_t>(json_integer(fields[1], 0, kMaxInt, subject + ": begin"));
  chunk.bytes = static_cast<std::uint64_t>(json_integer(fields[2], 0, kMaxInt, subject + ": bytes"));
  const std::string text = json_text(fields[3], 256, subject + ": slice");
  const auto slice = slice_from_string(text);
  if (!slice) refuse_format(subject + ": slice", "[start:stop,...] or flat[start:stop]", printable(text));
  if (const std::string problem = slice_problem(tensor.shape, *slice); !problem.empty()) {
    refuse_format(subject, "slices of the tensor", problem);
  }
  chunk.slice = *slice;
  const auto bytes = static_cast<std::uint64_t>(slice->numel()) * size_of(tensor.dtype);
  if (chunk.bytes != bytes) refuse_format(subject + ": bytes", std::to_string(bytes), std::to_string(chunk.bytes));
  const std::uint64_t file_bytes = files[static_cast<std::size_t>(chunk.file)].bytes;
  if (chunk.bytes > file_bytes || chunk.begin > file_bytes - chunk.bytes) {
    refuse_format(subject, fmt::format("bytes of a file of {}", file_bytes),
                  fmt::format("{} from byte {}", chunk.bytes, chunk.begin));
  }
  chunk.hash = read_hash(fields[4], subject + ": xxh3_128");
  return chunk;
}

json tensors_json(const Manifest& manifest) {
  json tensors = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    json shape = json::array(), chunks = json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) shape.push_back(tensor.shape[d]);
    for (const ManifestChunk& chunk : tensor.chunks)
      chunks.push_back({chunk.file, chunk.begin, chunk.bytes, to_string(chunk.slice), to_hex(chunk.hash)});
    tensors[name] = {{"dtype", safetensors_name(tensor.dtype)}, {"shape", shape}, {"chunks", chunks}};
  }
  return tensors;
}

ManifestTensor read_tensor(const json& value, const RankFiles& files, const std::string& subject) {
  JsonObject object(value, subject);
  ManifestTensor tensor;
  const std::string dtype = object.text("dtype", 16);
  const auto known = dtype_from_safetensors(dtype);
  if (!known) refuse_format(subject + ": dtype", "F32, BF16, F64, I32, I64 or U8", printable(dtype));
  tensor.dtype = *known;
  const json& shape = object.array("shape");
  if (shape.size() > kMaxDims)
    refuse_format(subject + ": shape", fmt::format("at most {} dims", kMaxDims), std::to_string(shape.size()));
  for (const json& extent : shape) tensor.shape.push_back(json_integer(extent, 0, kMaxInt, subject + ": shape"));
  if (!checked_bytes(tensor.shape, tensor.dtype)) refuse_format(subject + ": shape", "a size within 63 bits", "more");
  for (const json& chunk : object.array("chunks"))
    tensor.chunks.push_back(read_chunk(chunk, tensor, files, subject + ": chunks"));
  object.finish();
  return tensor;
}

// Number of values that the parser counts in the text.
std::size_t json_values(const Manifest& manifest) {
  std::size_t values = 8 + 4 * (manifest.rank_files.size() + 1);
  for (const auto& [name, tensor] : manifest.tensors)
    values += 4 + static_cast<std::size_t>(tensor.shape.rank()) + 6 * tensor.chunks.size();
  return values;
}

// Returns the text ahead of its own hash, after a check of the hash, which is returned too.
std::string_view checked_body(std::string_view text, const std::string& subject, Hash128& hash) {
  const std::size_t tail = kTailStart.size() + kHexDigits + kTailEnd.size();
  if (text.size() > kMaxJsonBytes || text.size() < tail || !text.ends_with(kTailEnd) ||
      text.substr(text.size() - tail, kTailStart.size()) != kTailStart) {
    refuse_format(subject, "a manifest that ends in its own hash", fmt::format("{} bytes that do not", text.size()));
  }
  const std::string_view body = text.substr(0, text.size() - tail);
  const std::string_view stored = text.substr(body.size() + kTailStart.size(), kHexDigits);
  hash = hash_of(body);
  if (stored != to_hex(hash))
    refuse_format(subject, "hash " + std::string(stored), to_hex(hash) + " (the file is damaged)");
  return body;
}

json to_json(const Lineage& lineage, std::int64_t step) {
  json parent;
  if (lineage.parent) parent = {{"step", lineage.parent->step}, {kHashKey, to_hex(lineage.parent->hash)}};
  return {{"serial", lineage.serial}, {"step", step}, {"parent", parent}};
}

Lineage read_lineage(const json& value, std::int64_t step, const std::string& subject) {
  JsonObject object(value, subject);
  Lineage lineage;
  lineage.serial = object.integer("serial", 1, kMaxSerial);
  if (const std::int64_t own = object.integer("step", 0, kMaxStep); own != step)
    refuse_format(subject + ": step", std::to_string(step), std::to_string(own));
  if (const json& parent = object.member("parent"); !parent.is_null()) {
    JsonObject members(parent, subject + ": parent");
    lineage.parent = {.step = members.integer("step", 0, kMaxStep),
                      .hash = read_hash(members.member(std::string(kHashKey)), subject + ": parent")};
    members.finish();
  }
  object.finish();
  return lineage;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  require(json_values(manifest) <= kMaxJsonValues,
          "the manifest of this checkpoint would have too many values to read");
  json files = json::array();
  for (int rank = 0; rank < manifest.world(); ++rank) {
    files.push_back(
        file_json(rank_file_name(rank, manifest.world()), manifest.rank_files[static_cast<std::size_t>(rank)]));
  }
  files.push_back(file_json(std::string(kStateName), manifest.state_file));
  for (const auto& [name, file] : manifest.small_files) files.push_back(file_json(name, file));
  const json value = {{"format", kFormat},     {"version", kCheckpointVersion},
                      {"step", manifest.step}, {"world", manifest.world()},
                      {"files", files},        {"tensors", tensors_json(manifest)}};
  std::string text = value.dump();
  text.pop_back();  // the closing brace follows the hash
  if (manifest.lineage) text.append(kLineageStart).append(to_json(*manifest.lineage, manifest.step).dump());
  const std::string hash = to_hex(hash_of(text));
  text.append(kTailStart).append(hash).append(kTailEnd);
  require(text.size() <= kMaxJsonBytes, "the manifest of this checkpoint would exceed 64 MiB: too many slices");
  return text;
}

Manifest manifest_from_text(std::string_view text, const std::string& subject) {
  Manifest manifest;
  checked_body(text, subject, manifest.hash);
  json value = parse_strict_json(text, subject);
  JsonObject object(value, subject);
  if (const std::string format = object.text("format", 64); format != kFormat) {
    refuse_format(subject + ": format", std::string(kFormat), printable(format));
  }
  const std::int64_t version = object.integer("version", 0, kMaxInt);
  if (version != kCheckpointVersion) {
    refuse_format(subject + ": version", fmt::format("format version {}", kCheckpointVersion),
                  fmt::format("{}, written by another version of this program", version));
  }
  manifest.step = object.integer("step", 0, kMaxStep);
  const std::int64_t world = object.integer("world", 1, kMaxWorld);
  read_files(object.array("files"), manifest, world, subject + ": files");
  JsonObject tensors(object.member("tensors"), subject + ": tensors");
  for (auto& [name, tensor] : value["tensors"].items()) {
    if (!is_tensor_name(name)) refuse_format(subject + ": tensors", "names of printable ASCII", printable(name));
    manifest.tensors[name] = read_tensor(tensor, manifest.rank_files, subject + ": " + printable(name));
    tensor = nullptr;  // frees JSON memory while the manifest grows
  }
  if (object.has("lineage"))
    manifest.lineage = read_lineage(object.member("lineage"), manifest.step, subject + ": lineage");
  object.member(std::string(kHashKey));
  object.finish();
  if (const std::string problem = cover_problem(manifest); !problem.empty()) {
    refuse_format(subject, "each tensor covered exactly once", problem);
  }
  return manifest;
}

std::optional<Lineage> lineage_from_text(std::string_view text, CheckpointId& id, const std::string& subject) {
  const std::string_view body = checked_body(text, subject, id.hash);
  const std::size_t line = body.rfind('\n');
  if (line == std::string_view::npos || line == 0 || !body.substr(line - 1).starts_with(kLineageStart)) return {};
  const std::string place = subject + ": lineage";
  return read_lineage(parse_strict_json(body.substr(line - 1 + kLineageStart.size()), place), id.step, place);
}

void add_chunk(Manifest& manifest, const TensorSpec& spec, ManifestChunk chunk) {
  ManifestTensor& tensor =
      manifest.tensors.try_emplace(spec.name, ManifestTensor{spec.dtype, spec.shape, {}}).first->second;
  if (tensor.dtype != spec.dtype || !(tensor.shape == spec.shape))
    fail({.subject = "checkpoint: tensor " + spec.name, .expected = "one dtype and one global shape on all ranks"});
  tensor.chunks.push_back(std::move(chunk));
}

std::string part_text(const Manifest& part, int rank) {
  const ManifestFile& file = part.rank_files[static_cast<std::size_t>(rank)];
  return json{{"file", file_json(rank_file_name(rank, part.world()), file)}, {"tensors", tensors_json(part)}}.dump();
}

void add_part(Manifest& manifest, int rank, std::string_view text) {
  const std::string subject = fmt::format("what rank {} writes", rank);
  const json part = json::parse(text);
  manifest.rank_files[static_cast<std::size_t>(rank)] =
      read_file(part.at("file"), rank_file_name(rank, manifest.world()), subject);
  for (const auto& [name, value] : part.at("tensors").items()) {
    ManifestTensor tensor = read_tensor(value, manifest.rank_files, subject);
    for (ManifestChunk& chunk : tensor.chunks)
      add_chunk(manifest, {name, tensor.dtype, tensor.shape}, std::move(chunk));
  }
}

std::string cover_problem(const Manifest& manifest) {
  constexpr int kShown = 8;
  std::string problems;
  int bad = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<Slice> slices;
    for (const ManifestChunk& chunk : tensor.chunks) slices.push_back(chunk.slice);
    const std::string problem = tensor.chunks.empty() ? "it has no chunk" : cover_problem(tensor.shape, slices);
    if (problem.empty() || ++bad > kShown) continue;
    problems += fmt::format("{}{}: {}", bad > 1 ? "; " : "", name, problem);
  }
  return bad > kShown ? fmt::format("{}; and {}", problems, counted(bad - kShown, "more tensor")) : problems;
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("step_{:07}", step); }

std::optional<std::int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0 || checkpoint_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

bool is_temporary_name(std::string_view name) {
  const std::size_t mark = name.find(".tmp-");
  return mark != std::string_view::npos && step_of_name(name.substr(0, mark)).has_value();
}

std::string rank_file_name(int rank, int world) { return fmt::format("rank_{:04}_of_{:04}.safetensors", rank, world); }

bool is_small_file_name(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
  };
  return !name.empty() && name.size() <= kLongest && name.front() != '.' && std::ranges::all_of(name, is_plain) &&
         !name.starts_with("rank_") && !name.starts_with(kManifestName) && name != kStateName;
}

std::string entry_name(const std::string& tensor, const Shape& shape, const Slice& slice) {
  return slice == Slice::whole(shape) ? tensor : tensor + "@" + to_string(slice);
}

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() <= 512 && std::all_of(name.begin(), name.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '@' && c != '"' && c != '\\';
  });
}

}  // namespace megalith
