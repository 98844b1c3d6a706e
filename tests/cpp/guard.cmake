# The products' tests once more, with a page that nobody may touch behind, and before, every operand, index and workspace
# (core/allocation.h): every row of the CPU by its name, in every family. Sanitizers guard memory themselves.
if(SPARSELOOM_SANITIZE)
  return()
endif()
set(guarded_tests
    "GuardPages.*:Cpu/Products.*:Accumulate.*:Threads.SkewedRows*:NotANumber.*:Epilogue.*:Residual.*:KTiles.*:ConvOnCpu.*"
    ":Scaled.*:*/ScaledBlocks.*:CsrProducts.*:Semi24*:TilesProducts.*:*/NmgProducts.*:Nm*:Gradient*:*/Gradient*:RecurrentCells*:UnitNorms.*"
    ":*/RecurrentCellsOf.*:*/Gates.*:*/EveryKernel.*:Dynamic.*:UnpackRows.*:BsrMatrix.*:CsrLayout.*:BlockScores.*"
    ":*Topology.*:*Blocks.*:*/Sparsify.*/bf16"
    # Long sums in fp64, and sizes that others have too.
    "-ConvOnCpu.ManyPixels*:ConvOnCpu.EveryBlock*:Semi24Products.AddLong*:Semi24Products.OpenOne*:TilesProducts.AddLong*:TilesProducts.*DeepW:Scaled.TheLongest*:Scaled.AnyNumber*"
    ":Scaled.Extremes*:Accumulate.AnyNumber*")
list(JOIN guarded_tests "" guarded_tests)
foreach(side behind before)
  add_test(NAME guard_${side} COMMAND sparseloom_tests --gtest_brief=1 --gtest_filter=${guarded_tests})
  set_tests_properties(guard_${side} PROPERTIES COST 100
    ENVIRONMENT "SPARSELOOM_TEST_GUARD=${side};SPARSELOOM_TEST_CASES=100;SPARSELOOM_CACHE=${CMAKE_CURRENT_BINARY_DIR}/cache")
endforeach()
