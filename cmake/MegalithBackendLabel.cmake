# What a build with CUDA puts on the label list of one test: `cuda` where the test's name says so, else `twin`: the same
# test as in a build without CUDA, which runs it.
function(megalith_backend_label variable test_name)
  set(label "")
  if(MEGALITH_CUDA AND test_name MATCHES "[Cc]uda|[Nn]ccl")
    set(label cuda)
  elseif(MEGALITH_CUDA)
    set(label twin)
  endif()
  set(${variable} "${label}" PARENT_SCOPE)
endfunction()
