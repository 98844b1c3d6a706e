# A kernel, as Hugging Face's `kernels` loads them: one library with the operators in a namespace of its own, and with the core in it, so
# that a process takes it beside an installed Sparseloom of any version. It is made of the objects of both other libraries and of one more
# file. tools/make_hf_kernel.py sets the namespace and builds the target.
set(SPARSELOOM_TORCH_NAMESPACE "" CACHE STRING "Namespace of the operators in the target sparseloom_kernel: a C identifier")
if(SPARSELOOM_TORCH_NAMESPACE)
  if(NOT SPARSELOOM_TORCH_NAMESPACE MATCHES "^[A-Za-z_][A-Za-z0-9_]*$" OR SPARSELOOM_TORCH_NAMESPACE STREQUAL "sparseloom")
    message(FATAL_ERROR "SPARSELOOM_TORCH_NAMESPACE: expected a C identifier other than sparseloom, which is the installed library's, "
                        "got ${SPARSELOOM_TORCH_NAMESPACE}; tools/make_hf_kernel.py makes one")
  endif()
  if(NOT SPARSELOOM_HAVE_TORCH)
    message(FATAL_ERROR "SPARSELOOM_TORCH_NAMESPACE is of the PyTorch binding, which this build lacks; pass -DSPARSELOOM_TORCH=ON")
  endif()
  add_library(sparseloom_kernel SHARED EXCLUDE_FROM_ALL bindings/torch/namespace.cpp ${old_glibc_sources}
              "$<FILTER:$<TARGET_OBJECTS:sparseloom_torch>,EXCLUDE,/(namespace|old_glibc)\\.cpp>")
  target_compile_definitions(sparseloom_kernel PRIVATE SPARSELOOM_TORCH_NAMESPACE="${SPARSELOOM_TORCH_NAMESPACE}")
  target_link_libraries(sparseloom_kernel PRIVATE sparseloom_objects sparseloom_torch_headers Threads::Threads)
  target_link_options(sparseloom_kernel PRIVATE -Wl,-z,defs -Wl,--exclude-libs,ALL
                      -Wl,--version-script,${CMAKE_CURRENT_SOURCE_DIR}/cmake/torch_exports.map)
  set_target_properties(sparseloom_kernel PROPERTIES
    OUTPUT_NAME ${SPARSELOOM_TORCH_NAMESPACE}_torch LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/kernel)
endif()
