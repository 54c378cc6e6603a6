// The schedules: for each kind a pure function from a stage to the order of its actions. make_schedule (schedule.h)
// calls them with sizes that it has checked.
//
// p: stages, m: microbatches, v: chunks per stage, s: this stage, from 0. F, B, W: the time of one chunk's forward,
// backward_data and backward_weight. The bubble is the time of a step less a stage's work, transfers taking no time.
// A stash is one chunk's of one microbatch, alive from its forward to the end of its backward_weight.
#pragma once

#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct StageShape {
  int num_stages = 1;
  int stage = 0;
  int num_chunks = 1;
  int num_microbatches = 1;
};

// All forwards, then all backwards; Huang et al. 2019, arXiv:1811.06965, section 2.3. Backwards ascend here, so that W
// does. Bubble (p - 1)(F + B + W); m stashes.
std::vector<Action> gpipe(const StageShape& shape);

// Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1: min(p - s - 1, m) forwards, then a forward and a backward in
// turn, then the backwards left. Bubble (p - 1)(F + B + W); min(p - s, m) stashes.
std::vector<Action> one_forward_one_backward(const StageShape& shape);

// The same, section 2.2.2, in Megatron-LM's order (get_schedule_table, with groups of p microbatches): a group passes
// through all chunks before the next; 2(p - s - 1) + (v - 1)p forwards come first. m is a multiple of p. Bubble
// (p - 1)(F + B + W), of chunks that are 1/v of 1F1B's; 2(p - s - 1) + (v - 1)p + 1 stashes, or m v.
std::vector<Action> interleaved(const StageShape& shape);

// ZB-H1; Qi et al. 2024, arXiv:2401.10241, sections 2.1 and 2.3: 1F1B's forwards and backwards, with W of stage s
// held back by s microbatches, so that it fills the time at the end and all stages keep as many stashes as 1F1B's
// first. Bubble (p - 1)(F + B - W) where m >= p; min(p, m) stashes.
std::vector<Action> zb_h1(const StageShape& shape);

// ZB-V; the same paper, section 6: two chunks a stage placed as a V. At F = B = W no stage waits between its first and
// its last action where m >= 2p - 1; a step lasts (p - 1)F beyond that work, since the last stage starts so much later
// (the paper does not count this, as its stages begin the next step apart). 2p stashes of half a stage: 1F1B's memory.
std::vector<Action> zb_v(const StageShape& shape);

// DualPipe-V: DualPipe (DeepSeek-V3, arXiv:2412.19437, section 3.2.1) cut in half by Sea AI Lab, as in
// github.com/deepseek-ai/DualPipe: two chunks a stage placed as a V, a forward of one chunk next to a backward of the
// other. m >= 2p. Bubble, by the table there, (p - 1)(FB + (B + W) - 3W), FB being the time of such a pair. Here it is
// (p - 1)(F + B - W) at W <= F = B: the two run one after the other, and the forward's output leaves before the
// backward. 2p + 1 stashes.
std::vector<Action> dualpipe_v(const StageShape& shape);

}  // namespace megalith
