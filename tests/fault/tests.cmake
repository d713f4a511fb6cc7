# A test with fault_wrap.c, which all these calls of its own and of the library go to.
function(zr_add_allocation_test source)
  zr_add_test(${source} fault/fault_wrap.c ${ARGN})
  get_filename_component(name ${source} NAME_WE)
  foreach(function malloc calloc realloc aligned_alloc posix_memalign strdup strndup asprintf
                   vasprintf free mmap munmap mprotect fopen fclose opendir fdopendir closedir
                   pthread_create pthread_join)
    target_link_options(${name} PRIVATE LINKER:--wrap=${function})
  endforeach()
endfunction()

if(TARGET zero_train_core)
  zr_add_allocation_test(fault/test_allocations.c LINK zero_train_core)
endif()
zr_add_allocation_test(fault/test_checkpoint_allocations.c LABELS asan)
