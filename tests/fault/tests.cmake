# A test with fault_wrap.c, which all these calls of its own and of the library go to.
function(zr_add_allocation_test source)
  zr_add_test(${source} fault/fault_wrap.c ${ARGN})
  get_filename_component(name ${source} NAME_WE)
  zr_wrap_allocations(${name})
  foreach(function aligned_alloc posix_memalign strdup strndup asprintf
                   vasprintf free mmap munmap mprotect fopen fclose opendir fdopendir closedir
                   pthread_create pthread_join)
    target_link_options(${name} PRIVATE LINKER:--wrap=${function})
  endforeach()
endfunction()

zr_add_allocation_test(fault/test_allocations.c LINK zero_train_core)
# zero-checkpoint, but for its beginning
set(CHECKPOINT_MAIN ${CMAKE_SOURCE_DIR}/examples/checkpoint/main.c)
set_source_files_properties(${CHECKPOINT_MAIN} PROPERTIES
                            COMPILE_OPTIONS "-Dmain=begin_program;-Wno-missing-prototypes")
zr_add_allocation_test(fault/test_checkpoint_allocations.c ${CHECKPOINT_MAIN}
                       LINK zero_checkpoint_core LABELS asan)
zr_add_allocation_test(fault/test_checkpoint_faults.c zero/toy.c ${RANKS} LABELS asan)
foreach(function open openat mkdirat unlinkat rename renameat renameat2 fsync ftruncate
                 fallocate pread pwrite zr_allocate zr_runtime_commit zr_runtime_save zr_runtime_save_begin
                 zr_runtime_save_end zr_save_writer_create zr_save_writer_finish zr_ring_open
                 zr_ring_register_files zr_ring_register_buffers zr_ring_submit zr_ring_queue
                 zr_ring_next)
  target_link_options(test_checkpoint_faults PRIVATE LINKER:--wrap=${function})
endforeach()
zr_add_allocation_test(fault/test_comm_allocations.c LABELS asan)
foreach(function socket socketpair pipe2 memfd_create)
  target_link_options(test_comm_allocations PRIVATE LINKER:--wrap=${function})
endforeach()
