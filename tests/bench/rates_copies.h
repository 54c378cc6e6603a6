// Rates between devices and pinned memory of their host, for rates.cpp: each direction separately, both at once, of one
// rank and of all ranks together.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/device/copy.h"
#include "core/device/event.h"
#include "core/memory/host_arena.h"
#include "parallel/comm/communicator.h"
#include "tests/bench/rates_bench.h"

namespace megalith {

class CopyBench {
 public:
  explicit CopyBench(Bench& bench)
      : bench_(bench),
        bytes_(bench.is_cuda() ? std::size_t{256} << 20 : std::size_t{16} << 20),
        host_(bench.stream().device(), 2 * bytes_ + 512, "bench"),
        back_(bench.stream().device(), "bench back") {
    bench.reset();
    out_to_ = host_.allocate(bytes_);
    back_from_ = host_.allocate(bytes_);
    out_from_ = bench.allocate(bytes_);
    back_to_ = bench.allocate(bytes_);
  }

  struct Rates {  // GB/s; 0: not asked for
    double to_host = 0, from_host = 0;
  };
  Rates measure(bool out, bool back) {
    std::vector<double> to_host, from_host;
    for (int row = 0; row < kRows; ++row) {
      const Rates rates = once(out, back);
      if (row == 0) continue;  // warm
      to_host.push_back(rates.to_host);
      from_host.push_back(rates.from_host);
    }
    const auto median = [](std::vector<double>& rates) {
      std::ranges::sort(rates);
      return rates[rates.size() / 2];
    };
    return {.to_host = median(to_host), .from_host = median(from_host)};
  }

 private:
  static constexpr int kRows = 6, kCopies = 10;

  // Timed by events: if one direction ends sooner, the rest of the other runs alone, and counts too.
  Rates once(bool out, bool back) {
    Event out_begin("out", true), out_end("out", true), back_begin("back", true), back_end("back", true);
    bench_.stream().record(out_begin);
    back_.record(back_begin);
    for (int i = 0; i < kCopies; ++i) {
      if (out) copy_to_host(bench_.stream(), out_to_, out_from_, bytes_);
      if (back) copy_from_host(back_, back_to_, back_from_, bytes_);
    }
    bench_.stream().record(out_end);
    back_.record(back_end);
    bench_.stream().synchronize();
    back_.synchronize();
    const double gb = kCopies * static_cast<double>(bytes_) * 1e-9;
    return {.to_host = out ? gb / seconds_between(out_begin, out_end) : 0,
            .from_host = back ? gb / seconds_between(back_begin, back_end) : 0};
  }

  Bench& bench_;
  std::size_t bytes_;
  HostArena host_;
  Stream back_;
  void *out_to_ = nullptr, *out_from_ = nullptr, *back_to_ = nullptr, *back_from_ = nullptr;
};

// The slowest rank's.
inline void print_copies(Bench& bench, Communicator& world) {
  CopyBench copies(bench);
  struct All {
    CopyBench::Rates out, back, both;
  };
  const auto measure = [&](bool together) {
    const auto one = [&](bool out, bool back) {
      if (together) world.host_barrier();
      return copies.measure(out, back);
    };
    return All{.out = one(true, false), .back = one(false, true), .both = one(true, true)};
  };
  All alone{};
  if (world.rank() == 0) alone = measure(false);
  world.host_barrier();
  All together = measure(true);
  for (const All& each : world.host_gather(together)) {
    for (const auto way : {&All::out, &All::back, &All::both}) {
      (together.*way).to_host = std::min((together.*way).to_host, (each.*way).to_host);
      (together.*way).from_host = std::min((together.*way).from_host, (each.*way).from_host);
    }
  }
  if (world.rank() != 0) return;
  const int ranks = world.size();
  const auto line = [](const char* key, double rate, double of_both, const char* note = "") {
    fmt::print("{} = {:.4g}  # {}while the other way copies too: {:.4g}\n", key, rate, note, of_both);
  };
  line("copy-to-host-gbps", alone.out.to_host, alone.both.to_host);
  line("copy-from-host-gbps", alone.back.from_host, alone.both.from_host);
  const char* const note = ranks == 1 ? "a guess: run it by mpirun with the ranks of a host; " : "";
  line("copy-to-host-all-gbps", ranks * together.out.to_host, ranks * together.both.to_host, note);
  line("copy-from-host-all-gbps", ranks * together.back.from_host, ranks * together.both.from_host, note);
}

}  // namespace megalith
