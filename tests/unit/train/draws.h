// Random legal runs: layouts and features of a table. Each is drawn, run and compared with the plain run of its class
// of bits and with one rank. A new feature is one row in draws_table.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/train/training_support.h"

namespace megalith::test {

enum class Bits {
  kModel,   // changes results: the plain run and the run of one rank have the same value
  kLayout,  // changes the order of sums: the plain run has the same value, the run of one rank has none
  kSame,    // changes no bit: the plain run has the value's `plain`, the run of one rank has none
};

struct Draw;

struct Row {
  struct Value {
    Words flags;
    int plain = 0;  // for kSame: number of the value that the plain run has instead
  };
  std::string name;
  Bits bits;
  std::vector<Value> values;                        // the first one: nothing of it
  std::function<bool(const Draw&)> fits = nullptr;  // given rows above; absent: always. The program checks the rest
  bool per_rank = false;                            // has another meaning on one rank, which is not compared then
};
const std::vector<Row>& rows();

struct Draw {
  int ranks = 1;
  std::vector<int> values;   // indexed by row
  std::vector<int> resumed;  // the same after a stop and a resume; empty: the run is not interrupted

  int at(std::string_view row) const;
  Words flags() const { return flags_of(values); }
  static Words flags_of(const std::vector<int>& values);
  bool operator<(const Draw& other) const;
};

Draw plain(const Draw& draw);           // in the same class of bits
Draw one_rank(const Draw& draw);        // with the same model
bool suits_one_rank(const Draw& draw);  // whether its losses can be compared with it

// Draw `number` of `seed`; `ranks` 0: 1, 2, 4 or 8.
struct DrawRequest {
  std::uint64_t seed = 1;
  int number = 0;
  int ranks = 0;
  std::string with = requested_row();  // row that must have a value; empty: any draw

  // Value of MEGALITH_DRAWS_WITH, for many draws of one feature.
  static std::string requested_row();
};

struct Outcome {
  bool refused = false;  // the program's checks of flags rejected it
  std::string problem;   // reason of the rejection or failure
  RunResult run;
};
// Runs these flags on the ranks of a world. All of its ranks call it, and get the same `refused` and `problem`.
using RunDraw = std::function<Outcome(const Words& flags, int ranks)>;

struct DrawTotals {
  int draws = 0, refused = 0, with_one_rank = 0, resumed = 0;
  int graphs = 0, offloads = 0, units = 0, regrows = 0, skips = 0, evaluations = 0;  // draws that did so
  std::map<std::string, int> refusals;                                               // key: reason, no digits
  std::map<std::string, int> values;                                                 // drawn, by row and number
};

class Draws {
 public:
  struct Way {
    RunDraw run;
    std::string folder;  // for checkpoints; emptied by `clear`
    std::function<void()> clear;
    bool takes_fewer_ranks = true;                                   // false: `run` has as many as the world
    bool has_metrics = true;                                         // false on ranks whose RunResult has no losses
    std::function<bool(bool)> any = [](bool here) { return here; };  // over the ranks of the world
  };
  explicit Draws(Way way) : way_(std::move(way)) {}

  // A legal draw, and "" or its problem, with the commands of its smallest part that has a problem too.
  std::string run(const DrawRequest& request);
  const DrawTotals& totals() const { return totals_; }

 private:
  Outcome run_whole(const Draw& draw);
  const Outcome& reference(const Draw& draw);
  std::string problem_of(const Draw& draw, bool& refused);
  Draw smallest(Draw draw, std::string& problem);
  void count(const Draw& draw, const RunResult& run);

  Way way_;
  DrawTotals totals_;
  std::map<Draw, Outcome> references_;
};

// Command as typed by a user; `flags` without tiny_flags().
std::string command_of(const Words& flags, int ranks);
std::string commands_of(const Draw& draw);  // two for a resumed one
// How a run differs from another one in bits, or is not in order; "": it does not and is.
std::string difference(const RunResult& run, const RunResult& want);
std::string text_of(const DrawTotals& totals);

}  // namespace megalith::test
