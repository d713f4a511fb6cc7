# zr_add_ticking(PROGRAM CORE): PROGRAM-ticking, whose clock is later at every look, so that what took
# place has taken time. For tests of its times, with ranks that are threads: processes would have a
# clock each.
function(zr_add_ticking program core)
  string(REPLACE "zero-" "" folder ${program})
  add_executable(${program}-ticking EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/${folder}/main.c
                                                     common/ticking_clock.c)
  target_link_libraries(${program}-ticking PRIVATE ${core})
  zr_wrap_for_common(${program}-ticking common/ticking_clock.c)
  set_target_properties(${program}-ticking PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# Programs are started under sanitizers by test_zero_train, its messages, ends and drives;
# what the others go through in the library, tests of the library go through as well.
zr_add_test(examples/test_args.c LINK examples_common)
zr_add_test(examples/test_options.c ${RANKS} LINK zero_train_core)
target_link_options(test_options PRIVATE LINKER:--wrap=zr_options)
zr_add_test(examples/test_data.c LINK zero_data)
zr_add_test(examples/test_documents.c LINK zero_data LABELS asan)
target_link_options(test_data PRIVATE LINKER:--wrap=pread,--wrap=pthread_join)
zr_add_test(examples/test_gpt_tensors.c LINK zero_models)
zr_add_test(examples/test_zero_checkpoint.c LABELS asan)
target_compile_definitions(test_zero_checkpoint PRIVATE
  ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>")
add_dependencies(test_zero_checkpoint zero-checkpoint)
if(TARGET zero-train)
  zr_add_ticking(zero-train zero_train_core)
  zr_add_test(examples/test_zero_train.c LABELS asan)
  target_compile_definitions(test_zero_train PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train-ticking>"
    CHECK_MEMORY_VIZ="${CMAKE_CURRENT_SOURCE_DIR}/allocator/check_memory_viz.py")
  add_dependencies(test_zero_train zero-train-ticking)
  zr_add_test(examples/test_zero_train_messages.c)
  target_compile_definitions(test_zero_train_messages PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>" FIELDS_DOC="${CMAKE_SOURCE_DIR}/docs/reference/json.md")
  add_dependencies(test_zero_train_messages zero-train)
  zr_add_test(examples/test_zero_train_trace.c common/trace_file.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_trace PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train-ticking>" ZERO_TRAIN_PROCESS="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>")
  add_dependencies(test_zero_train_trace zero-train zero-train-ticking zero-plan)
  zr_add_test(examples/test_zero_train_mpi.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_mpi PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
                                                         ZR_MPIRUN="${ZR_TEST_MPIRUN}"
                                                         ZR_MPICH_MPIRUN="${ZR_TEST_MPICH_MPIRUN}")
  set_tests_properties(test_zero_train_mpi PROPERTIES ENVIRONMENT "${ZR_TEST_MPI_ENVIRONMENT}")
  add_dependencies(test_zero_train_mpi zero-train)
  # The script that shows how a run goes on without a rank that died is a test of it as well.
  add_test(NAME test_elastic COMMAND bash ${CMAKE_SOURCE_DIR}/examples/elastic.sh)
  zr_test_properties(test_elastic NO_SANITIZERS)
  set_tests_properties(test_elastic PROPERTIES ENVIRONMENT "ZERO_TRAIN=$<TARGET_FILE:zero-train>")
  # Four hosts, which are namespaces; of the kinds of ends that four_hosts.sh knows, three.
  add_test(NAME test_four_hosts COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/examples/four_hosts.sh
    $<TARGET_FILE:zero-train> $<TARGET_FILE:zero-checkpoint> 3)
  zr_test_properties(test_four_hosts NO_SANITIZERS)
  # What a link between two hosts carries is what is counted.
  add_test(NAME test_two_levels COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/examples/two_levels.sh
    $<TARGET_FILE:zero-train>)
  zr_test_properties(test_two_levels NO_SANITIZERS)
  zr_add_test(examples/test_train_in_budget.c NO_SANITIZERS)
  target_compile_definitions(test_train_in_budget PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_train_in_budget zero-train)
  zr_add_test(examples/test_zero_train_ends.c)
  target_compile_definitions(test_zero_train_ends PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_zero_train_ends zero-train)
  zr_add_test(examples/test_zero_train_checkpoint.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_checkpoint PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>" ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>")
  add_dependencies(test_zero_train_checkpoint zero-train zero-checkpoint)
  zr_add_test(examples/test_zero_train_documents.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_documents PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>" ZERO_PLAN="$<TARGET_FILE:zero-plan>")
  add_dependencies(test_zero_train_documents zero-train zero-plan)
  add_test(NAME fuzz_options
           COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/examples/fuzz_options.py $<TARGET_FILE:zero-train>)
  zr_test_properties(fuzz_options NO_SANITIZERS)
  zr_add_python_test(test_make_documents_live examples/test_make_documents.py
                     $<TARGET_FILE:zero-train>)
  zr_add_test(examples/test_zero_train_evaluate.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_evaluate PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_zero_train_evaluate zero-train)
  zr_add_test(examples/test_zero_train_ranks.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_ranks PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>" ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>")
  add_dependencies(test_zero_train_ranks zero-train zero-checkpoint)
  zr_add_test(examples/test_zero_train_drive.c LABELS asan)
  target_compile_definitions(test_zero_train_drive PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_zero_train_drive zero-train)
  zr_add_test(examples/test_zero_train_alike.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_alike PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_zero_train_alike zero-train)
  zr_add_test(examples/test_zero_train_bits.c offload/fault_ring.c offload/store_fixture.c
              LINK zero_train_core LABELS asan)
  foreach(function zr_ring_open zr_ring_queue zr_ring_submit zr_ring_next zr_ring_register_buffers
                   zr_ring_register_files fallocate pwrite open fcntl)
    target_link_options(test_zero_train_bits PRIVATE LINKER:--wrap=${function})
  endforeach()
  zr_add_test(examples/test_plan_overlap.c LINK zero_train_core LABELS asan)
  zr_add_test(examples/test_train_slowest.c LINK zero_train_core)
  foreach(function clock_gettime data_reader_create data_reader_next zr_membership_arrive
                   pthread_mutex_unlock)
    target_link_options(test_train_slowest PRIVATE LINKER:--wrap=${function})
  endforeach()
  zr_add_test(examples/test_train_results.c LINK zero_train_core NO_SANITIZERS)
  target_link_options(test_train_results PRIVATE LINKER:--wrap=zr_stream_create)
  zr_add_test(examples/test_train_auto.c NO_SANITIZERS)
  target_compile_definitions(test_train_auto PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_train_auto zero-train)
  zr_add_test(examples/test_train_planned.c NO_SANITIZERS)
  target_compile_definitions(test_train_planned PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_train_planned zero-train)
  add_test(NAME test_train_planned_llama COMMAND test_train_planned llama)
  zr_test_properties(test_train_planned_llama NO_SANITIZERS)
  zr_add_test(examples/test_zero_train_models.c NO_SANITIZERS)
  target_compile_definitions(test_zero_train_models PRIVATE
    ZERO_TRAIN="$<TARGET_FILE:zero-train>" ZERO_PLAN="$<TARGET_FILE:zero-plan>"
    ZERO_CHECKPOINT="$<TARGET_FILE:zero-checkpoint>")
  add_dependencies(test_zero_train_models zero-train zero-plan zero-checkpoint)
  zr_add_test(examples/test_train_plan.c LINK zero_train_core LABELS asan)
  zr_add_test(examples/test_plan_line.c LINK zero_plan_core LABELS asan)
  zr_add_test(examples/test_limits.c LINK zero_plan_core LABELS asan)
  zr_add_test(examples/test_plan_cost.c LINK zero_plan_core NO_SANITIZERS)
  target_link_options(test_plan_cost PRIVATE LINKER:--wrap=zr_sim_clock_work
                                             LINKER:--wrap=zr_plan_offsets_in)
  # Their plans are made under the sanitizers by test_own_plan and test_place.
  zr_add_test(examples/test_zero_plan.c NO_SANITIZERS)
  target_compile_definitions(test_zero_plan PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>")
  add_dependencies(test_zero_plan zero-train zero-plan)
  zr_add_test(examples/test_zero_plan_calibrate.c NO_SANITIZERS)
  target_compile_definitions(test_zero_plan_calibrate PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>" HARDWARE="${CMAKE_SOURCE_DIR}/hardware"
    ZR_VTRAIN="${CMAKE_SOURCE_DIR}/../shared/data/vtrain")
  add_dependencies(test_zero_plan_calibrate zero-plan)
  zr_add_test(examples/test_zero_memory.c NO_SANITIZERS)
  target_compile_definitions(test_zero_memory PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>" ZERO_CAPACITY="$<TARGET_FILE:zero-capacity>")
  add_dependencies(test_zero_memory zero-train zero-plan zero-capacity)
  # A model that is larger than memory; `tests/offload_proof.py` alone takes 43 GiB of a drive.
  add_test(NAME test_offload_proof COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/offload_proof.py
    --build ${CMAKE_BINARY_DIR} --states 320MiB --device 48MiB --host 16MiB --room 336MiB
    --like "--seq 16 --vocab 256" --threads 1)
  zr_test_properties(test_offload_proof NO_SANITIZERS)
  zr_add_test(examples/test_zero_capacity.c LINK zero_capacity_core NO_SANITIZERS)
  target_compile_definitions(test_zero_capacity PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_CAPACITY="$<TARGET_FILE:zero-capacity>"
    FIELDS_DOC="${CMAKE_SOURCE_DIR}/docs/reference/json.md")
  add_dependencies(test_zero_capacity zero-train zero-capacity)
  zr_add_test(examples/test_plan_advice.c NO_SANITIZERS)
  target_compile_definitions(test_plan_advice PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>" HARDWARE="${CMAKE_SOURCE_DIR}/hardware")
  add_dependencies(test_plan_advice zero-train zero-plan)
  zr_add_test(examples/test_plan_fold.c NO_SANITIZERS)
  target_compile_definitions(test_plan_fold PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>"
    ZERO_PLAN="$<TARGET_FILE:zero-plan>")
  add_dependencies(test_plan_fold zero-train zero-plan)
  zr_add_test(examples/test_memory_plan.c NO_SANITIZERS)
  target_compile_definitions(test_memory_plan PRIVATE ZERO_TRAIN="$<TARGET_FILE:zero-train>")
  add_dependencies(test_memory_plan zero-train)
endif()
zr_add_test(examples/test_gpt_parity.c ${RANKS} LINK zero_models NO_SANITIZERS)
