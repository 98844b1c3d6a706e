# Finds torch's headers and libtorch_cpu.so without importing torch (and without find_package(Torch), which drags in CUDA and MKL
# checks and unstable headers). Only the stable ABI is used: TORCH_STABLE_ONLY turns any other include into an error.
set(SPARSELOOM_HAVE_TORCH OFF)
if(NOT SPARSELOOM_TORCH STREQUAL "OFF")
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/find_torch.py
      OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(torch_root AND EXISTS "${torch_root}/include/torch/csrc/stable/library.h")
    set(SPARSELOOM_HAVE_TORCH ON)
    add_library(sparseloom_torch_headers INTERFACE)
    target_include_directories(sparseloom_torch_headers SYSTEM INTERFACE ${torch_root}/include)
    # Built with any torch from 2.11 on, runs on any torch from 2.11 on.
    target_compile_definitions(sparseloom_torch_headers INTERFACE TORCH_STABLE_ONLY TORCH_TARGET_VERSION=0x020b000000000000ULL)
    # No RPATH: Python imports torch first, which has libtorch_cpu.so in the process by then.
    target_link_libraries(sparseloom_torch_headers INTERFACE ${torch_root}/lib/libtorch_cpu.so)
    message(STATUS "sparseloom: PyTorch binding ON (${torch_root})")
  elseif(SPARSELOOM_TORCH STREQUAL "ON")
    message(FATAL_ERROR "SPARSELOOM_TORCH=ON, but ${Python3_EXECUTABLE} finds no torch >= 2.11; install it there "
                        "first (pip install 'torch>=2.11'), then this again, or pass -DSPARSELOOM_TORCH=OFF for the C++ library alone")
  else()
    message(WARNING "sparseloom: NO PyTorch found by ${Python3_EXECUTABLE}: building the C++ library only")
  endif()
endif()
