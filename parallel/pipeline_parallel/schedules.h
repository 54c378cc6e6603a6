// Schedules: one pure function per kind, from a stage to the order of its actions. make_schedule (schedule.h) calls
// them with checked sizes.
// p: stages, m: microbatches, v: chunks per stage, s: this stage, from 0. F, B, W: durations of one chunk's forward,
// backward_data and backward_weight. Bubble: duration of a step minus a stage's work, without transfer times. Stash:
// one chunk and microbatch, live from forward to the end of backward_weight.
#pragma once

#include <vector>

#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct StageShape {
  int num_stages = 1;
  int stage = 0;
  int num_chunks = 1;
  int num_microbatches = 1;
  int group = 1;           // of interleaved: microbatches that pass through a chunk before the next chunk
  int forwards_ahead = 0;  // of 1F1B and its interleaved form: more forwards first, so that pairs are independent
};

// All forwards, then all backwards; Huang et al. 2019, arXiv:1811.06965, section 2.3. Backwards, and so W, are in
// ascending order of microbatches. Bubble (p - 1)(F + B + W); m stashes.
std::vector<Action> gpipe(const StageShape& shape);

// Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1: min(p - s - 1, m) forwards, then alternating forwards and
// backwards, then the remaining backwards. Bubble (p - 1)(F + B + W); min(p - s, m) stashes.
std::vector<Action> one_forward_one_backward(const StageShape& shape);

// The same paper, section 2.2.2, in Megatron-LM's order (get_schedule_table). A group of n >= p microbatches passes
// through all chunks before the next; 2(p - s - 1) + (v - 1)n forwards come first. The last group has at least p
// microbatches. Bubble (p - 1)(F + B + W), with chunks of 1/v of 1F1B's; 2(p - s - 1) + (v - 1)n + 1 stashes, at most
// m v.
std::vector<Action> interleaved(const StageShape& shape);

// ZB-H1; Qi et al. 2024, arXiv:2401.10241, sections 2.1 and 2.3. Forwards and backwards are as in 1F1B, with W of stage
// s delayed by s microbatches. W then fills the time at the end, and all stages keep as many stashes as 1F1B's first.
// Bubble (p - 1)(F + B - W) for m >= p; min(p, m) stashes.
std::vector<Action> zb_h1(const StageShape& shape);

// ZB-V; the same paper, section 6: two chunks per stage placed as a V. If F = B = W and m >= 2p - 1, no stage waits
// between its first and last action. A step takes (p - 1)F longer than that work, since the last stage starts later.
// The paper does not count this, since its stages start the next step at different times. 2p stashes of half a stage:
// 1F1B's memory.
std::vector<Action> zb_v(const StageShape& shape);

// DualPipe-V: DualPipe (DeepSeek-V3, arXiv:2412.19437, section 3.2.1) cut in half by Sea AI Lab, as in
// github.com/deepseek-ai/DualPipe. Two chunks per stage placed as a V; a forward of one chunk runs next to a backward
// of the other. m >= 2p. Bubble, by the table there, (p - 1)(FB + (B + W) - 3W), with FB the duration of such a pair.
// Here it is (p - 1)(F + B - W) for W <= F = B: the two run serially, and the forward's output leaves before the
// backward. 2p + 1 stashes.
std::vector<Action> dualpipe_v(const StageShape& shape);

}  // namespace megalith
