// What CMake asks of a target that holds a precompiled header: one source.
