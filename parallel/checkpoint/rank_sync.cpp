#include "parallel/checkpoint/rank_sync.h"

#include <utility>

namespace megalith {

RankSync one_rank() {
  return {.rank = 0,
          .world = 1,
          .any = [](bool value) { return value; },
          .broadcast = [](std::string text) { return text; },
          .gather = [](std::string text) { return std::vector<std::string>{std::move(text)}; }};
}

}  // namespace megalith
