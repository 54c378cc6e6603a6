// The programs are compiled for x86-64-v3 (AVX2, FMA, BMI: Intel Haswell 2013, AMD Excavator 2015). On an older
// processor the first such instruction would end them by SIGILL without a word, so `main` calls this before anything
// else. This file's source alone is compiled for plain x86-64, and uses neither templates nor inline functions: the
// linker might keep another file's copy of those.
#pragma once

namespace megalith {

struct CpuFeature {
  const char* name;
  bool present;
};

// Prints one line that names what is missing and ends the process with exit code 2, or returns.
void require_cpu_baseline();

// Writes the message for the features that are not present to `text` (at most `size` bytes with the final zero) and
// returns true; returns false and leaves `text` alone when all are present. `count` features.
bool describe_missing_cpu_features(const CpuFeature* features, int count, char* text, unsigned size);

}  // namespace megalith
