# The CUDA rooms of src/kernels: one OBJECT library per architecture, so that sm_90a code is compiled for 90a alone and needs no #if.
# Nothing here looks for a GPU: a machine without one builds the same library, and a machine without a driver loads it.
include(${CMAKE_CURRENT_LIST_DIR}/instances.cmake)
set(SPARSELOOM_HAVE_CUDA OFF)
set(cuda_missing "")
if(SPARSELOOM_CUDA STREQUAL "OFF")
  message(STATUS "sparseloom: CUDA kernels OFF (SPARSELOOM_CUDA=OFF)")
else()
  include(CheckLanguage)
  # Per-target below; without this CMake 3.25 silently takes sm_75 for every target.
  set(CMAKE_CUDA_ARCHITECTURES 80)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(cuda_missing "no working nvcc was found on PATH, in CUDACXX or in CMAKE_CUDA_COMPILER")
  else()
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    # 12.0 is the first toolkit that knows sm_90a and C++20.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      set(cuda_missing "${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}, 12.0 or newer is needed")
    elseif(NOT TARGET CUDA::cudart_static)
      set(cuda_missing "the toolkit of ${CMAKE_CUDA_COMPILER} has no libcudart_static.a")
    endif()
  endif()
  if(cuda_missing AND SPARSELOOM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPARSELOOM_CUDA=ON, but ${cuda_missing}; install the CUDA toolkit or pass -DSPARSELOOM_CUDA=AUTO or OFF")
  elseif(cuda_missing)
    message(WARNING "sparseloom: NO CUDA KERNELS in this build: ${cuda_missing}. The CPU kernels are built; GPU tensors will raise an error.")
  else()
    set(SPARSELOOM_HAVE_CUDA ON)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know yet that nvcc speaks C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
  endif()
endif()

if(SPARSELOOM_HAVE_CUDA)
  # An interface over the object files: whoever links sparseloom_objects gets the device code and the runtime with it.
  add_library(sparseloom_cuda INTERFACE)
  target_include_directories(sparseloom_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # Static: a shared cudart would tie the wheel to one CUDA major (libcudart.so.N), and torch moves its own.
  target_link_libraries(sparseloom_cuda INTERFACE CUDA::cudart_static)

  # The .cu files below the folders that follow, and the units of their instances.def.
  function(sparseloom_cuda_room room architectures)
    set(sources "")
    foreach(folder IN LISTS ARGN)
      file(GLOB_RECURSE units CONFIGURE_DEPENDS ${folder}/*.cu)
      list(APPEND sources ${units})
      file(GLOB_RECURSE tables CONFIGURE_DEPENDS ${folder}/instances.def)
      foreach(table IN LISTS tables)
        cmake_path(GET table PARENT_PATH method)
        cmake_path(RELATIVE_PATH method BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
        sparseloom_instances(${table} ${CMAKE_CURRENT_BINARY_DIR}/instances/${method} sources)
      endforeach()
    endforeach()
    add_library(sparseloom_cuda_${room} OBJECT ${sources})
    target_include_directories(sparseloom_cuda_${room} PRIVATE include src)
    set_target_properties(sparseloom_cuda_${room} PROPERTIES
      CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
    # A spill is a performance bug, so it is shown, unless the kernels are compiled the fast way below. -Xcompiler keeps the host half
    # under the same warnings as the rest.
    set(effort -Xptxas=--warn-on-spills)
    if(room STREQUAL sm80 AND sm80_fast)
      set(effort --Ofast-compile=max)
    endif()
    target_compile_options(sparseloom_cuda_${room} PRIVATE ${effort} -Xcompiler=-Wall,-Wextra
      $<$<BOOL:${SPARSELOOM_WERROR}>:-Werror=all-warnings>
      $<$<VERSION_GREATER_EQUAL:${CMAKE_CUDA_COMPILER_VERSION},12.8>:--compress-mode=size>)
    target_link_libraries(sparseloom_cuda INTERFACE $<TARGET_OBJECTS:sparseloom_cuda_${room}>)
  endfunction()

  # sm_80 machine code runs on 8.x only, Hopper needs its own, newer GPUs compile the PTX. Who builds for one GPU can name it: 90-real
  # alone takes half of the time. A check where no GPU is would run none of them. It compiles them for sm_80 alone (nvcc 13.0, CPU
  # seconds: mma/forward 9.9 to 6.1, dw_small 14.4 to 7.9) and the fast way of nvcc 13 (all of them 382 to 239). What it then leaves to
  # every other build, tools/gpu_check's among them: that the sm80 kernels compile for sm_90, and spill nothing. The sm90 kernels are
  # compiled as ever: the fast way serialises their wgmma instructions.
  set(SPARSELOOM_SM80_ARCHITECTURES "80-real;90-real;80-virtual" CACHE STRING "machine code and PTX of the sm80 kernels")
  set(sm80_architectures "${SPARSELOOM_SM80_ARCHITECTURES}")
  set(sm80_fast OFF)
  if(SPARSELOOM_CUDA_CHECK)
    set(sm80_architectures "80-real")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
      set(sm80_fast ON)
    endif()
    message(STATUS "sparseloom: SPARSELOOM_CUDA_CHECK=ON, this build is not for use: its sm80 kernels are slow and run on GPUs of 8.x alone")
  endif()
  sparseloom_cuda_room(sm80 "${sm80_architectures}" src/kernels/shared/activation src/kernels/shared/bsr
                       src/kernels/shared/probes src/kernels/shared/sparsify src/kernels/bsr_linear/sm80
                       src/kernels/semi24_linear/sm80 src/kernels/csr_linear/sm80 src/kernels/bsr_conv/sm80
                       src/kernels/block_attention/sm80 src/kernels/tiles_linear/sm80
                       src/kernels/recurrent/sm80)
  sparseloom_cuda_room(sm90 "90a-real" src/kernels/shared/operands src/kernels/bsr_linear/sm90
                       src/kernels/semi24_linear/sm90 src/kernels/bsr_conv/sm90 src/kernels/block_attention/sm90
                       src/kernels/tiles_linear/sm90)
  set_property(TARGET sparseloom_cuda_sm90 PROPERTY
    CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_SOURCE_DIR}/cmake/refuse_serialized_wgmma.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
  message(STATUS "sparseloom: CUDA kernels ON (nvcc ${CMAKE_CUDA_COMPILER_VERSION})")
endif()
