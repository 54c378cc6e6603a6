#include "core/base/machine/cpu_check.h"

#include <cstdio>
#include <cstdlib>

namespace megalith {

namespace {

unsigned append(char* text, unsigned size, unsigned used, const char* part) {
  while (*part != '\0' && used + 1 < size) text[used++] = *part++;
  text[used] = '\0';
  return used;
}

}  // namespace

bool describe_missing_cpu_features(const CpuFeature* features, int count, char* text, unsigned size) {
  unsigned used = 0;
  for (int i = 0; i < count; ++i) {
    if (features[i].present) continue;
    used = append(text, size, used, used == 0 ? "processor: expected x86-64-v3, got one without" : "");
    used = append(text, size, used, " ");
    used = append(text, size, used, features[i].name);
  }
  if (used == 0) return false;
  append(text, size, used, "; run on a processor with AVX2 (2015 or newer), or in an emulator that offers it");
  return true;
}

void require_cpu_baseline() {
  __builtin_cpu_init();
  const CpuFeature features[] = {
      {"avx", __builtin_cpu_supports("avx") != 0},     {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"bmi", __builtin_cpu_supports("bmi") != 0},     {"bmi2", __builtin_cpu_supports("bmi2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
#ifndef __clang__  // tests/coverage.sh builds with one that does not know these names
      {"f16c", __builtin_cpu_supports("f16c") != 0},   {"lzcnt", __builtin_cpu_supports("lzcnt") != 0},
      {"movbe", __builtin_cpu_supports("movbe") != 0},
#endif
  };
  char text[256];
  if (!describe_missing_cpu_features(features, static_cast<int>(sizeof(features) / sizeof(features[0])), text,
                                     sizeof(text))) {
    return;
  }
  std::fprintf(stderr, "megalith: %s\n", text);
  std::exit(2);
}

}  // namespace megalith
