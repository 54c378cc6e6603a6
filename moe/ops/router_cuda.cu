// A warp owns a token. The selection rounds are the bottleneck, ahead of memory. A round is a maximum over the warp
// (redux), a vote that finds its lane, and a step to the lane's next candidate. One pass: logits are read once, and
// those of the chosen experts again from L1.
#include "moe/ops/cuda_router.cuh"

namespace megalith {

namespace {

using namespace cuda;

// Unsigned keys in the order of scores. A NaN key is ahead only of kNone, which marks taken or missing experts. -0
// equals 0.
constexpr unsigned kNone = 0, kNotANumber = 1;
__device__ inline unsigned key_of(float score) {
  const unsigned bits = __float_as_uint(score + 0.0f);
  if (score != score) return kNotANumber;
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline float score_of(unsigned key) { return __uint_as_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key); }

// Candidates of a lane, best first; on a tie, the lower expert is first.
template <int kOwn>
struct Sorted {
  static_assert(kOwn <= 8);
  static constexpr int kCount = kOwn;
  unsigned key[kOwn];
  unsigned places = 0;  // position of each key among the lane's experts, 4 bits each

  __device__ explicit Sorted(const unsigned (&keys)[kOwn]) {
    unsigned place[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = keys[j], place[j] = static_cast<unsigned>(j);
#pragma unroll
    for (int end = kOwn - 1; end > 0; --end) {
#pragma unroll
      for (int j = 0; j < end; ++j) {
        const bool swap = key[j] < key[j + 1];  // adjacent swaps keep equal keys in order
        const unsigned low = min(key[j], key[j + 1]), moved = place[j];
        key[j] = max(key[j], key[j + 1]);
        key[j + 1] = low;
        place[j] = swap ? place[j + 1] : moved;
        place[j + 1] = swap ? moved : place[j + 1];
      }
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) places |= place[j] << (4 * j);
  }
  __device__ unsigned best() const { return key[0]; }
  __device__ int place() const { return static_cast<int>(places & 15u); }
  __device__ void pop(bool wanted) {
#pragma unroll
    for (int j = 0; j + 1 < kOwn; ++j) key[j] = wanted ? key[j + 1] : key[j];
    key[kOwn - 1] = wanted ? kNone : key[kOwn - 1];
    places = wanted ? places >> 4 : places;
  }
};

// Alternative to Sorted for long lists, or for few rounds.
template <int kOwn>
struct Unsorted {
  static constexpr int kCount = kOwn;
  unsigned key[kOwn];

  __device__ explicit Unsorted(const unsigned (&keys)[kOwn]) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = keys[j];
  }
  __device__ unsigned best() const {
    unsigned result = key[0];
#pragma unroll
    for (int j = 1; j < kOwn; ++j) result = max(result, key[j]);
    return result;
  }
  __device__ int place() const {
    const unsigned wanted = best();
    int result = kOwn - 1;
#pragma unroll
    for (int j = kOwn - 2; j >= 0; --j) result = key[j] == wanted ? j : result;
    return result;
  }
  __device__ void pop(bool wanted) {
    const int at = place();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = wanted && j == at ? kNone : key[j];
  }
};

struct Taken {
  unsigned key;
  int lane;
};

// Pops the best candidate of the warp.
template <class List>
__device__ inline Taken take_best(List& list, int lane, int* expert = nullptr) {
  const unsigned mine = list.best(), best = __reduce_max_sync(kAllLanes, mine);
  const int winner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine == best))) - 1;
  if (expert != nullptr) *expert = __shfl_sync(kAllLanes, lane * List::kCount + list.place(), winner);
  list.pop(lane == winner);
  return {best, winner};
}

struct TopkArguments {
  const float *logits, *bias;
  const std::int32_t* positions;  // null: no padding
  std::int32_t* choice;
  float* weight;
  std::int64_t tokens;
  int experts, choices, spread_step;
  RouterScore score;
  float scaling_factor;
  int groups, open_groups, best_of_group;  // unused for one group
  FastDivide group_size;
  int experts_of_group;
};

// Term of a group's score for one of its best experts.
__device__ inline float group_term(const TopkArguments& a, unsigned key, const WarpSoftmax& softmax) {
  const float score = score_of(key);
  if (a.score == RouterScore::kSoftmax) return softmax.of(score);
  return a.score == RouterScore::kSigmoid && a.bias == nullptr ? sigmoid(score) : score;
}

// Lane g returns the score of group g. Each group has `lanes` lanes, a power of two; all groups are processed at once.
template <int kOwn>
__device__ inline float group_scores(const TopkArguments& a, int lane, int lanes, const WarpSoftmax& softmax,
                                     const unsigned (&key)[kOwn]) {
  const unsigned group = (kAllLanes >> (32 - lanes)) << (lane & -lanes);
  Unsorted<kOwn> list(key);
  float sum = 0;
  for (int i = 0; i < a.best_of_group; ++i) {
    const unsigned mine = list.best();
    const unsigned best = warp_reduce(
        mine, [](unsigned x, unsigned y) { return max(x, y); }, lanes);
    list.pop(__ffs(static_cast<int>(__ballot_sync(kAllLanes, mine == best) & group)) - 1 == lane);
    sum += group_term(a, best, softmax);
  }
  return __shfl_sync(kAllLanes, sum, lane * lanes % 32);
}

// The same for groups of any size, one group at a time.
template <int kOwn>
__device__ inline float group_scores(const TopkArguments& a, int lane, const WarpSoftmax& softmax,
                                     const unsigned (&key)[kOwn]) {
  float result = 0;
  for (int g = 0; g < a.groups; ++g) {
    unsigned inside[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const auto at = static_cast<unsigned>(lane * kOwn + j - g * a.experts_of_group);
      inside[j] = at < static_cast<unsigned>(a.experts_of_group) ? key[j] : kNone;
    }
    Unsorted<kOwn> list(inside);
    float sum = 0;
    for (int i = 0; i < a.best_of_group; ++i) sum += group_term(a, take_best(list, lane).key, softmax);
    if (lane == g) result = sum;
  }
  return result;
}

// Removes the experts of all groups except the best.
template <int kOwn>
__device__ inline void close_groups(const TopkArguments& a, int lane, const WarpSoftmax& softmax,
                                    unsigned (&key)[kOwn]) {
  const int lanes = a.experts_of_group / kOwn;
  const bool whole_lanes = lanes * kOwn == a.experts_of_group && (lanes & (lanes - 1)) == 0;
  const float score = whole_lanes ? group_scores(a, lane, lanes, softmax, key) : group_scores(a, lane, softmax, key);
  const unsigned group_key[1] = {lane < a.groups ? key_of(score) : kNone};
  Unsorted<1> list(group_key);
  unsigned open = 0;
  for (int i = 0; i < a.open_groups; ++i) open |= 1u << take_best(list, lane).lane;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const unsigned g = a.group_size.quotient(static_cast<unsigned>(lane * kOwn + j));
    if (g >= kMaxExpertGroups || (open >> g & 1u) == 0) key[j] = kNone;
  }
}

// Weight of lane k's choice with logit x; undefined for lanes from a.choices on.
__device__ inline float weight_of(const TopkArguments& a, bool live, float x, const WarpSoftmax& softmax) {
  switch (a.score) {
    case RouterScore::kSoftmaxOfChosen: {
      const float highest = __shfl_sync(kAllLanes, x, 0);  // the first choice is the best
      const float exponential = live ? expf(x - highest) : 0.0f;
      return exponential / warp_sum(exponential, kChoiceLanes);
    }
    case RouterScore::kSoftmax: return softmax.of(x);
    default: break;
  }
  const float score = live ? sigmoid(x) : 0.0f;
  return a.choices > 1 ? score / (warp_sum(score, kChoiceLanes) + kSigmoidEpsilon) : score;
}

template <int kOwn, bool kVector>
__global__ void __launch_bounds__(kRouterWarps * 32) router_topk_kernel(const TopkArguments a) {
  using List = std::conditional_t<kOwn <= 8, Sorted<kOwn <= 8 ? kOwn : 8>, Unsorted<kOwn>>;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane * kOwn;
  const std::int64_t token = std::int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / 32;
  if (token >= a.tokens) return;
  const float* row = a.logits + token * a.experts;
  float x[kOwn];
  load_logits<kOwn, kVector>(row, first, a.experts, x);
  WarpSoftmax softmax{};
  if (a.score == RouterScore::kSoftmax) softmax = warp_softmax(x);
  unsigned key[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const bool exists = first + j < a.experts;
    const float score = a.bias != nullptr && exists ? sigmoid(x[j]) + a.bias[first + j] : x[j];
    key[j] = exists ? key_of(score) : kNone;
  }
  if (a.open_groups < a.groups) close_groups(a, lane, softmax, key);

  List list(key);
  int chosen = 0;
  unsigned best = 0;
  for (int k = 0; k < a.choices; ++k) {
    int expert;
    const unsigned taken = take_best(list, lane, &expert).key;
    if (k == 0) best = taken;
    if (lane == k) chosen = expert;
  }
  if (best == kNotANumber) chosen = static_cast<int>((token * a.choices + lane) * a.spread_step % a.experts);
  const bool live = lane < a.choices;
  float weight = weight_of(a, live, live ? row[chosen] : -INFINITY, softmax);
  if (!live) return;
  if (a.positions != nullptr && a.positions[token] < 0) {
    chosen = -1;
    weight = 0;
  }
  a.choice[token * a.choices + lane] = chosen;
  a.weight[token * a.choices + lane] = weight * a.scaling_factor;
}

}  // namespace

void run(CudaStream& stream, const RouterTopk& op) {
  const std::int64_t experts = op.logits.size(1), choices = op.choice.size(1), size = experts / op.num_groups;
  const TopkArguments a{.logits = op.logits.as<const float>(),
                        .bias = op.expert_bias.as<const float>(),
                        .positions = op.positions.as<const std::int32_t>(),
                        .choice = op.choice.as<std::int32_t>(),
                        .weight = op.weight.as<float>(),
                        .tokens = op.logits.size(0),
                        .experts = static_cast<int>(experts),
                        .choices = static_cast<int>(choices),
                        .spread_step = static_cast<int>(spread_step(experts)),
                        .score = op.score,
                        .scaling_factor = op.scaling_factor,
                        .groups = static_cast<int>(op.num_groups),
                        .open_groups = static_cast<int>(op.group_topk),
                        .best_of_group = static_cast<int>(choices / op.group_topk),
                        .group_size = FastDivide(size),
                        .experts_of_group = static_cast<int>(size)};
  const Grid grid{blocks_for(a.tokens, kRouterWarps), kRouterWarps * 32};
  visit_router(experts, starts_aligned(op.logits), [&](auto own, auto is_vector) {
    launch_kernel(stream, grid, router_topk_kernel<own(), is_vector()>, a);
  });
}

}  // namespace megalith
