// How fast a machine's kernels and links are: a small TOML file that tests/bench/rates.sh writes on the machine, and
// that plan turns into times. Keys are those of `kRateKeys` in rates.cpp, all of them needed, none twice; configs/rates
// has one with comments.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Units are those of SI: bytes/s, FLOP/s, seconds.
struct Rates {
  std::string device;
  double device_memory = 0;   // bytes
  double device_reserve = 0;  // bytes of it that libraries take, which plan does not count
  struct GemmPoint {
    double size = 0;  // (m n k)^(1/3)
    double flops = 0;
  };
  std::vector<GemmPoint> gemm;  // ascending sizes
  struct AttentionPoint {
    double width = 0;   // of a head
    double length = 0;  // tokens
    double forward = 0;
    double backward = 0;
  };
  std::vector<AttentionPoint> attention;               // ascending widths, and lengths within a width
  double memory = 0;                                   // bytes/s of a device copy, read and written
  std::map<std::string, double, std::less<>> kernels;  // bytes/s of ops that are slower, by their name
  double kernel_seconds = 0;                           // of a kernel with nothing to do, behind others
  double graph_kernel_seconds = 0;                     // the same in a captured graph
  double start_seconds = 0;                            // what an op with next to nothing to do takes beyond that
  std::map<std::string, double, std::less<>> starts;   // of ops that take another time, by their name
  double launch_seconds = 0;                           // of the host, for each op
  double graph_launch_seconds = 0;                     // of the host, for each replay of a graph
  int host_ranks = 1;                                  // GPUs of a host
  double host_memory = 0;                              // bytes of a host, which its ranks share
  struct Link {
    double bandwidth = 0;  // bus bandwidth of a rank
    double latency = 0;
  };
  Link host;         // within a host
  double busy = 0;   // bandwidth of gradients' and weights' collectives within a host while other kernels run
  Link peer;         // of rows that a kernel reads out of the memory of the host's other GPUs
  double units = 0;  // bytes/s of sharded units that copy engines read there
  Link network;      // between hosts, of each rank
  struct Copies {    // bytes/s between a device and pinned memory of its host
    double to_host = 0;
    double from_host = 0;
  };
  Copies alone;        // of one device of a host, one way at a time
  Copies all;          // of all devices of a host together, likewise; both ways at once get less than the sum
  double overlap = 1;  // share of a collective that slows no concurrent kernel

  // Share of its rate that a unit's copy has beside another: what the host's link has left.
  double left_beside_copies() const { return std::clamp(host.bandwidth / units - 1, 0.0, 1.0); }
  // Of each of so many ranks while all of them copy: what its own link has, or its share of what the host has.
  Copies copies(int ranks) const {
    const double of_host = std::min(ranks, host_ranks);
    return {.to_host = std::min(alone.to_host, all.to_host / of_host),
            .from_host = std::min(alone.from_host, all.from_host / of_host)};
  }
  // Between measured sizes linear in their logarithms, beyond them as the nearest.
  double gemm_rate(double size) const;
  // Of the nearest width; between lengths as above.
  AttentionPoint attention_rate(double width, double length) const;
};

// Anything but such a file is an Error with exit code 2 that names FILE:LINE:COLUMN, one that cannot be read with 3.
Rates read_rates(const std::string& path);
Rates parse_rates(std::string_view text, const std::string& file);

}  // namespace megalith
