// Defaults of the sanitizers' runtimes, linked into every test program of a sanitizer build so that a program started
// by hand behaves as under ctest.
#if defined(__SANITIZE_ADDRESS__)
// An uninstrumented MPI keeps its global tables until the process ends.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\nleak:libopen-pal.so\nleak:libopen-rte.so\nleak:libpmix.so\nleak:libhwloc.so\n";
}
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=1:strict_string_checks=1"; }
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() { return "halt_on_error=1:second_deadlock_stack=1"; }
#endif
