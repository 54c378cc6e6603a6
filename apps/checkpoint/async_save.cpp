#include "apps/checkpoint/async_save.h"

#include <cstring>
#include <utility>

#include "core/device/copy.h"
#include "core/device/cuda_device.h"

namespace megalith {

namespace {

constexpr std::size_t kAlignment = 256;  // alignment of HostArena

Instruments instruments_of(const Stream& stream) {
  Instruments instruments = stream.instruments();
  instruments.observer = nullptr;  // a checkpoint may hold values that a step's check would reject
  return instruments;
}

}  // namespace

std::size_t staging_bytes(const std::vector<WrittenShard>& shards) {
  std::size_t bytes = 0;
  for (const WrittenShard& shard : shards) bytes += (shard.tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  return bytes;
}

AsyncSave::AsyncSave(Rank& rank, Step& step, Communicator& writers)
    : rank_(rank),
      step_of_run_(step),
      writers_(writers),
      shards_(shards_to_write(rank)),
      staging_(rank.memory.pool.device(), staging_bytes(shards_), "checkpoint staging (--async-save)"),
      stream_(rank.memory.pool.device(), "checkpoint", instruments_of(rank.streams.compute)) {
  for (WrittenShard& each : shards_) {
    const std::size_t bytes = each.tensor.bytes();
    host_.push_back(staging_.allocate_as<std::byte>(bytes));
    if (!staging_.pinned()) std::memset(host_.back(), 0, bytes);  // the system maps pages at first touch
    each.shard.data = {host_.back(), bytes};
  }
}

void AsyncSave::begin(SaveRequest request) {
  require(!pending(), "AsyncSave::begin: a save is pending");
  if (copied_.recorded()) {  // for the hazard checker: work of the previous save's thread
    stream_.synchronize_host(copied_);
    Access read("write the checkpoint");
    for (const WrittenShard& each : shards_) read.add(each.shard.data.data(), each.shard.data.size(), false);
    stream_.announce_host(read);
  }
  rank_.wait_for_parameters();
  rank_.streams.compute.record(updated_);
  stream_.wait(updated_);
  stream_.record(copy_begun_);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    copy_to_host(stream_, host_[i], shards_[i].tensor.data, shards_[i].tensor.bytes());
    request.shards.push_back(shards_[i].shard);
  }
  stream_.record(copied_);
  step_of_run_.hold_update(copied_);
  request.ranks = &writers_;
  writer_.begin(std::move(request), [this] {
    if (stream_.device() == DeviceType::kCuda) use_cuda_device();
    copied_.wait_on_host();  // not on the stream, whose instruments belong to the run's thread
  });
}

}  // namespace megalith
