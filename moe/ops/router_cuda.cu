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
using LongKey = unsigned long long;
template <class Real>
using Key = std::conditional_t<sizeof(Real) == 8, LongKey, unsigned>;
__device__ inline unsigned key_of(float score) {
  const unsigned bits = __float_as_uint(score + 0.0f);
  if (score != score) return kNotANumber;
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline LongKey key_of(double score) {
  const auto bits = static_cast<LongKey>(__double_as_longlong(score + 0.0));
  if (score != score) return kNotANumber;
  return bits ^ ((bits >> 63) != 0 ? ~LongKey{0} : LongKey{1} << 63);
}
__device__ inline float score_of(unsigned key) { return __uint_as_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key); }
__device__ inline double score_of(LongKey key) {
  return __longlong_as_double(static_cast<long long>((key >> 63) != 0 ? key ^ (LongKey{1} << 63) : ~key));
}
__device__ inline unsigned warp_max(unsigned key) { return __reduce_max_sync(kAllLanes, key); }
__device__ inline LongKey warp_max(LongKey key) {
  return warp_reduce(key, [](LongKey a, LongKey b) { return max(a, b); });
}

// Candidates of a lane, best first; on a tie, the lower expert is first.
template <class Key, int kOwn>
struct Sorted {
  static_assert(kOwn <= 8);
  Key key[kOwn];
  unsigned places = 0;  // position of each key among the lane's experts, 4 bits each

  __device__ explicit Sorted(const Key (&keys)[kOwn]) {
    unsigned place[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = keys[j], place[j] = static_cast<unsigned>(j);
#pragma unroll
    for (int end = kOwn - 1; end > 0; --end) {
#pragma unroll
      for (int j = 0; j < end; ++j) {
        const bool swap = key[j] < key[j + 1];  // adjacent swaps keep equal keys in order
        const Key low = min(key[j], key[j + 1]);
        const unsigned moved = place[j];
        key[j] = max(key[j], key[j + 1]);
        key[j + 1] = low;
        place[j] = swap ? place[j + 1] : moved;
        place[j + 1] = swap ? moved : place[j + 1];
      }
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) places |= place[j] << (4 * j);
  }
  __device__ Key best() const { return key[0]; }
  __device__ int place() const { return static_cast<int>(places & 15u); }
  __device__ void pop(bool wanted) {
#pragma unroll
    for (int j = 0; j + 1 < kOwn; ++j) key[j] = wanted ? key[j + 1] : key[j];
    key[kOwn - 1] = wanted ? Key{kNone} : key[kOwn - 1];
    places = wanted ? places >> 4 : places;
  }
};

// Alternative to Sorted for long lists, or for few rounds.
template <class Key, int kOwn>
struct Unsorted {
  Key key[kOwn];

  __device__ explicit Unsorted(const Key (&keys)[kOwn]) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = keys[j];
  }
  __device__ Key best() const {
    Key result = key[0];
#pragma unroll
    for (int j = 1; j < kOwn; ++j) result = max(result, key[j]);
    return result;
  }
  __device__ int place() const {
    const Key wanted = best();
    int result = kOwn - 1;
#pragma unroll
    for (int j = kOwn - 2; j >= 0; --j) result = key[j] == wanted ? j : result;
    return result;
  }
  __device__ void pop(bool wanted) {
    const int at = place();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = wanted && j == at ? Key{kNone} : key[j];
  }
};

template <class Key>
struct Taken {
  Key key;
  int lane;
};

// Pops the best candidate of the warp.
template <template <class, int> class List, class Key, int kOwn>
__device__ inline Taken<Key> take_best(List<Key, kOwn>& list, int lane, int* expert = nullptr) {
  const Key mine = list.best(), best = warp_max(mine);
  const int winner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine == best))) - 1;
  if (expert != nullptr) *expert = __shfl_sync(kAllLanes, lane * kOwn + list.place(), winner);
  list.pop(lane == winner);
  return {best, winner};
}

struct TopkArguments {
  const void* logits;             // of Real
  const float* bias;              // null: none
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
template <class Real>
__device__ inline Real group_term(const TopkArguments& a, Key<Real> key, const WarpSoftmax<Real>& softmax) {
  const Real score = score_of(key);
  if (a.score == RouterScore::kSoftmax) return softmax.of(score);
  return a.score == RouterScore::kSigmoid && a.bias == nullptr ? sigmoid(score) : score;
}

// Lane g returns the score of group g. Each group has `lanes` lanes, a power of two; all groups are processed at once.
template <class Real, int kOwn>
__device__ inline Real group_scores(const TopkArguments& a, int lane, int lanes, const WarpSoftmax<Real>& softmax,
                                    const Key<Real> (&key)[kOwn]) {
  const unsigned group = (kAllLanes >> (32 - lanes)) << (lane & -lanes);
  Unsorted<Key<Real>, kOwn> list(key);
  Real sum = 0;
  for (int i = 0; i < a.best_of_group; ++i) {
    const Key<Real> mine = list.best();
    const Key<Real> best = warp_reduce(
        mine, [](Key<Real> x, Key<Real> y) { return max(x, y); }, lanes);
    list.pop(__ffs(static_cast<int>(__ballot_sync(kAllLanes, mine == best) & group)) - 1 == lane);
    sum += group_term(a, best, softmax);
  }
  return __shfl_sync(kAllLanes, sum, lane * lanes % 32);
}

// The same for groups of any size, one group at a time.
template <class Real, int kOwn>
__device__ inline Real group_scores(const TopkArguments& a, int lane, const WarpSoftmax<Real>& softmax,
                                    const Key<Real> (&key)[kOwn]) {
  Real result = 0;
  for (int g = 0; g < a.groups; ++g) {
    Key<Real> inside[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const auto at = static_cast<unsigned>(lane * kOwn + j - g * a.experts_of_group);
      inside[j] = at < static_cast<unsigned>(a.experts_of_group) ? key[j] : Key<Real>{kNone};
    }
    Unsorted<Key<Real>, kOwn> list(inside);
    Real sum = 0;
    for (int i = 0; i < a.best_of_group; ++i) sum += group_term(a, take_best(list, lane).key, softmax);
    if (lane == g) result = sum;
  }
  return result;
}

// Removes the experts of all groups except the best.
template <class Real, int kOwn>
__device__ inline void close_groups(const TopkArguments& a, int lane, const WarpSoftmax<Real>& softmax,
                                    Key<Real> (&key)[kOwn]) {
  const int lanes = a.experts_of_group / kOwn;
  const bool whole_lanes = lanes * kOwn == a.experts_of_group && (lanes & (lanes - 1)) == 0;
  const Real score = whole_lanes ? group_scores(a, lane, lanes, softmax, key) : group_scores(a, lane, softmax, key);
  const Key<Real> group_key[1] = {lane < a.groups ? key_of(score) : Key<Real>{kNone}};
  Unsorted<Key<Real>, 1> list(group_key);
  unsigned open = 0;
  for (int i = 0; i < a.open_groups; ++i) open |= 1u << take_best(list, lane).lane;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const unsigned g = a.group_size.quotient(static_cast<unsigned>(lane * kOwn + j));
    if (g >= kMaxExpertGroups || (open >> g & 1u) == 0) key[j] = kNone;
  }
}

// Weight of lane k's choice with logit x; undefined for lanes from a.choices on.
template <class Real>
__device__ inline Real weight_of(const TopkArguments& a, bool live, Real x, const WarpSoftmax<Real>& softmax) {
  switch (a.score) {
    case RouterScore::kSoftmaxOfChosen: {
      const Real highest = __shfl_sync(kAllLanes, x, 0);  // the first choice is the best
      const Real relative = live ? exponential(x - highest) : Real{0};
      return relative / warp_sum(relative, kChoiceLanes);
    }
    case RouterScore::kSoftmax: return softmax.of(x);
    default: break;
  }
  const Real score = live ? sigmoid(x) : Real{0};
  return a.choices > 1 ? score / (warp_sum(score, kChoiceLanes) + kSigmoidEpsilon) : score;
}

template <class Real, int kOwn, bool kVector>
__global__ void __launch_bounds__(kRouterWarps * 32) router_topk_kernel(const TopkArguments a) {
  using List = std::conditional_t<kOwn <= 8, Sorted<Key<Real>, kOwn <= 8 ? kOwn : 8>, Unsorted<Key<Real>, kOwn>>;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane * kOwn;
  const std::int64_t token = std::int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / 32;
  if (token >= a.tokens) return;
  const Real* row = static_cast<const Real*>(a.logits) + token * a.experts;
  Real x[kOwn];
  load_logits<kOwn, kVector>(row, first, a.experts, x);
  WarpSoftmax<Real> softmax{};
  if (a.score == RouterScore::kSoftmax) softmax = warp_softmax(x);
  Key<Real> key[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const bool exists = first + j < a.experts;
    Real score = x[j];
    if (a.bias != nullptr && exists) score = sigmoid(x[j]) + a.bias[first + j];
    key[j] = exists ? key_of(score) : Key<Real>{kNone};
  }
  if (a.open_groups < a.groups) close_groups(a, lane, softmax, key);

  List list(key);
  int chosen = 0;
  Key<Real> best = 0;
  for (int k = 0; k < a.choices; ++k) {
    int expert;
    const Key<Real> taken = take_best(list, lane, &expert).key;
    if (k == 0) best = taken;
    if (lane == k) chosen = expert;
  }
  if (best == kNotANumber) chosen = static_cast<int>((token * a.choices + lane) * a.spread_step % a.experts);
  const bool live = lane < a.choices;
  Real weight = weight_of(a, live, live ? row[chosen] : static_cast<Real>(-INFINITY), softmax);
  if (!live) return;
  if (a.positions != nullptr && a.positions[token] < 0) {
    chosen = -1;
    weight = 0;
  }
  a.choice[token * a.choices + lane] = chosen;
  a.weight[token * a.choices + lane] = static_cast<float>(weight * a.scaling_factor);
}

}  // namespace

void run(CudaStream& stream, const RouterTopk& op) {
  const std::int64_t experts = op.logits.size(1), choices = op.choice.size(1), size = experts / op.num_groups;
  const TopkArguments a{.logits = op.logits.data,
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
  visit_router(op.logits.dtype, experts, starts_aligned(op.logits), [&](auto real, auto own, auto is_vector) {
    launch_kernel(stream, grid, router_topk_kernel<decltype(real), own(), is_vector()>, a);
  });
}

}  // namespace megalith
