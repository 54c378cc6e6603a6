// Check of the processor against x86-64-v3 (AVX2, FMA, BMI: Intel Haswell 2013, AMD Excavator 2015).
// On an older processor the first such instruction raises SIGILL without a message, so `main` calls this check first.
// This folder's cpu_check.cpp is compiled for plain x86-64. The file uses neither templates nor inline functions, since
// the linker might keep another file's copy of them.
#pragma once

namespace megalith {

struct CpuFeature {
  const char* name;
  bool present;
};

// Prints one line with the missing features and ends the process with exit code 2 if any is missing.
void require_cpu_baseline();

// Writes the message for missing features to `text` (at most `size` bytes with the final zero) and returns true.
// Returns false and leaves `text` unchanged if all `count` features are present.
bool describe_missing_cpu_features(const CpuFeature* features, int count, char* text, unsigned size);

}  // namespace megalith
