# Targets of fuzzing. In any build they are replayed on their corpus and on changes of it; with
# clang and -DZR_FUZZ=ON they are libFuzzer's: build-fuzz/tests/fuzz_manifest -max_total_time=600
# tests/fuzz/corpus/manifest
function(zr_add_fuzz name n_changes)
  cmake_parse_arguments(FUZZ "" "" "LINK" ${ARGN})
  add_executable(fuzz_${name} fuzz/fuzz_${name}.c fuzz/fuzz_json.c)
  target_link_libraries(fuzz_${name} PRIVATE ${FUZZ_LINK} zero)
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ZR_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  target_sources(fuzz_${name} PRIVATE fuzz/replay.c)
  add_test(NAME fuzz_${name} COMMAND fuzz_${name} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name}
                                     ${n_changes})
  zr_test_properties(fuzz_${name} LABELS asan)
  zr_leave_out_unlabelled(fuzz_${name})
endfunction()

zr_add_fuzz(manifest 4000)
zr_add_fuzz(peer 100000)
if(TARGET zero_weights)
  zr_add_fuzz(safetensors 10000 LINK zero_weights)
  zr_add_fuzz(hf_config 4000 LINK zero_weights)
  zr_add_fuzz(llmc 10000 LINK zero_weights)
endif()
if(TARGET zero_data)
  zr_add_fuzz(data 4000 LINK zero_data)
endif()
