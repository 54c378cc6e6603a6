#include "parallel/data_parallel/replica_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint/hash.h"
#include "core/device/copy.h"

namespace megalith {

namespace {

constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kStagingBytes = std::size_t{64} << 20;

std::string hash_tensor(Stream& stream, const Tensor& tensor, std::vector<std::byte>& staging) {
  Hasher hasher;
  const auto* data = tensor.as<const std::byte>();
  if (stream.device() == DeviceType::kCpu) {
    hasher.update({data, tensor.bytes()});
    return to_hex(hasher.digest());
  }
  for (std::size_t begin = 0; begin < tensor.bytes(); begin += kStagingBytes) {
    const std::size_t bytes = std::min(kStagingBytes, tensor.bytes() - begin);
    staging.resize(std::max(staging.size(), bytes));
    copy_to_host(stream, staging.data(), data + begin, bytes);
    stream.synchronize();
    hasher.update({staging.data(), bytes});
  }
  return to_hex(hasher.digest());
}

bool all_equal(const std::vector<std::string>& hashes) {
  return std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes[0]; });
}

// Most frequent hash of the ranks, and whether more than half of them have it.
std::pair<std::string, bool> most_common(const std::vector<std::string>& hashes) {
  std::string best;
  std::ptrdiff_t count = 0;
  for (const std::string& hash : hashes) {
    const std::ptrdiff_t same = std::count(hashes.begin(), hashes.end(), hash);
    if (same <= count) continue;
    best = hash;
    count = same;
  }
  return {best, 2 * static_cast<std::size_t>(count) > hashes.size()};
}

ReplicaDifference describe(const std::string& name, const std::vector<std::string>& hashes, const std::string& group,
                           std::span<const int> world_ranks) {
  const auto [common, majority] = most_common(hashes);
  ReplicaDifference difference{.tensor = name, .ranks = {}, .majority = majority, .message = {}};
  std::string others;
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    if (majority && hashes[r] == common) continue;
    difference.ranks.push_back(world_ranks.empty() ? static_cast<int>(r) : world_ranks[r]);
    others += fmt::format("{}{} on rank {}", others.empty() ? "" : ", ", hashes[r], difference.ranks.back());
  }
  difference.message =
      fmt::format("{}: expected the same bytes on the {} ranks of group {}, got {}{}", name, hashes.size(), group,
                  majority ? "hash " + common + " on most and " : "no majority: hash ", others);
  return difference;
}

}  // namespace

std::optional<ReplicaDifference> compare_replicas(Communicator& group, Stream& stream,
                                                  std::span<const ReplicatedTensor> tensors,
                                                  std::span<const int> world_ranks) {
  if (group.size() == 1) return std::nullopt;
  stream.synchronize();
  std::vector<std::byte> staging;
  std::string mine;
  for (const ReplicatedTensor& entry : tensors) mine += hash_tensor(stream, entry.tensor, staging);
  const std::vector<std::string> totals = group.host_all_gather(to_hex(hash_of(mine)));
  if (all_equal(totals)) return std::nullopt;
  const std::vector<std::string> all = group.host_all_gather(mine);
  std::optional<ReplicaDifference> first;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::vector<std::string> hashes;
    hashes.reserve(all.size());
    for (const std::string& list : all) hashes.push_back(list.substr(i * kHashDigits, kHashDigits));
    if (all_equal(hashes)) continue;
    if (first) {
      ++first->more_tensors;
    } else {
      first = describe(tensors[i].name, hashes, group.name(), world_ranks);
    }
  }
  if (first && first->more_tensors > 0)
    first->message += fmt::format("; {} more {}", first->more_tensors,
                                  first->more_tensors == 1 ? "tensor differs" : "tensors differ");
  if (first) first->message += "; test that rank's memory, and resume from an earlier checkpoint";
  return first;
}

}  // namespace megalith
