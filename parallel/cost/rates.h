// Rates of a machine's kernels and links, in a TOML file that tests/bench/rates.sh writes and that plan reads. Keys are
// those of `kRateKeys` in rates.cpp; each is required exactly once. configs/rates has a commented example.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// SI units: bytes/s, FLOP/s, seconds.
struct Rates {
  std::string device;
  double device_memory = 0;   // bytes
  double device_reserve = 0;  // bytes that libraries use and that plan does not count
  struct GemmPoint {
    double size = 0;  // (m n k)^(1/3)
    double flops = 0;
  };
  std::vector<GemmPoint> gemm;  // sorted by size
  struct AttentionPoint {
    double width = 0;   // of a head
    double length = 0;  // tokens
    double forward = 0;
    double backward = 0;
  };
  std::vector<AttentionPoint> attention;               // sorted by width, then length
  double memory = 0;                                   // bytes/s of a device copy, read plus written
  std::map<std::string, double, std::less<>> kernels;  // bytes/s of slower ops, by name
  double kernel_seconds = 0;                           // of an empty kernel after others
  double graph_kernel_seconds = 0;                     // the same in a captured graph
  double start_seconds = 0;                            // minimum duration of an op beyond kernel_seconds
  std::map<std::string, double, std::less<>> starts;   // of ops with another minimum, by name
  double launch_seconds = 0;                           // host time per op
  double graph_launch_seconds = 0;                     // host time per graph replay
  int host_ranks = 1;                                  // GPUs per host
  double host_memory = 0;                              // bytes per host, shared by its ranks
  struct Link {
    double bandwidth = 0;  // bus bandwidth of a rank
    double latency = 0;
  };
  Link host;         // within a host
  double busy = 0;   // bandwidth of gradient and weight collectives within a host, concurrent with kernels
  Link peer;         // rows that a kernel reads from other GPUs of the host
  double units = 0;  // bytes/s of sharded units and of pipelines' messages, moved by copy engines
  Link network;      // between hosts, per rank
  struct Copies {    // bytes/s between a device and pinned memory of its host
    double to_host = 0;
    double from_host = 0;
  };
  Copies alone;        // one device of a host, one direction at a time
  Copies all;          // all devices of a host together, one direction at a time; both directions get less than the sum
  double overlap = 1;  // share of a collective that does not slow concurrent kernels

  // Share of a collective's rate that is left next to a unit's copy, by the host link.
  double left_during_copies() const { return std::clamp(host.bandwidth / units - 1, 0.0, 1.0); }
  // Rates per rank while all ranks copy: its own link's rate, or its share of the host's.
  Copies copies(int ranks) const {
    const double of_host = std::min(ranks, host_ranks);
    return {.to_host = std::min(alone.to_host, all.to_host / of_host),
            .from_host = std::min(alone.from_host, all.from_host / of_host)};
  }
  // Linear between measured sizes in their logarithms; beyond them, the nearest rate.
  double gemm_rate(double size) const;
  // Rates of the nearest width; lengths are interpolated as above.
  AttentionPoint attention_rate(double width, double length) const;
};

// Exit code 2, with FILE:LINE:COLUMN, for invalid content; 3 for an unreadable file.
Rates read_rates(const std::string& path);
Rates parse_rates(std::string_view text, const std::string& file);

}  // namespace megalith
