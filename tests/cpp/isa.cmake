# The same tests on lesser machines: with SPARSELOOM_ISA as a ceiling, and on older CPUs as qemu-user emulates them, where an
# instruction that the CPU lacks ends the process. What each run expects to find goes in by SPARSELOOM_TEST_ISA.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  return()
endif()
# Every product, epilogue and edge once, on few sizes: some seconds under an emulator.
set(small_tests "*/Products.SmallIntegersExactly/*:Epilogue.*:NotANumber.*:Threads.SkewedRowsAreRight:Kernels.*:Refusals.*"
                ":Rates.*:RatesOnDisk.AreMeasured*:MachineLine.*:*Isa.*:*/EveryKernel.*:Dense.*:Info.*:Fork.AfterUse*"
                ":Scaled.EveryScale*:Scaled.NoBlocks*:ScaledLinear.*")
list(JOIN small_tests "" small_tests)

foreach(isa generic avx2 avx512 avx512_vbmi2 avx512_vnni avx512_bf16)
  add_test(NAME forced_${isa} COMMAND sparseloom_tests --gtest_brief=1 --gtest_filter=${small_tests})
  set_tests_properties(forced_${isa} PROPERTIES
    ENVIRONMENT "SPARSELOOM_ISA=${isa};SPARSELOOM_TEST_ISA=${isa};SPARSELOOM_CACHE=${CMAKE_CURRENT_BINARY_DIR}/cache"
    # A CPU below the ceiling refuses it by name.
    SKIP_REGULAR_EXPRESSION "expected an instruction set this CPU runs")
endforeach()

if(SPARSELOOM_SANITIZE)
  return()  # ASan's shadow memory and qemu-user's layout of the address space do not agree
endif()
find_program(SPARSELOOM_QEMU qemu-x86_64 DOC "qemu-user: runs the C++ tests on emulated older CPUs")
foreach(machine Nehalem-generic Haswell-avx2)
  string(REPLACE "-" ";" machine ${machine})
  list(GET machine 0 cpu)
  list(GET machine 1 isa)
  if(SPARSELOOM_QEMU)
    add_test(NAME emulated_${cpu}
             COMMAND ${SPARSELOOM_QEMU} -cpu ${cpu} $<TARGET_FILE:sparseloom_tests> --gtest_brief=1 --gtest_filter=${small_tests})
    set_tests_properties(emulated_${cpu} PROPERTIES COST 100 ENVIRONMENT "SPARSELOOM_TEST_ISA=${isa};SPARSELOOM_CACHE=${CMAKE_CURRENT_BINARY_DIR}/cache" TIMEOUT 1500)
  else()
    add_test(NAME emulated_${cpu} COMMAND ${CMAKE_COMMAND} -E echo
             "SKIPPED: qemu-x86_64 was not found when this build was configured; Debian and Ubuntu: apt-get install qemu-user")
    set_tests_properties(emulated_${cpu} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
  endif()
endforeach()
