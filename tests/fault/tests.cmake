if(TARGET zero_train_core)
  zr_add_test(fault/test_allocations.c fault/fault_wrap.c LINK zero_train_core)
  foreach(function malloc calloc realloc aligned_alloc posix_memalign strdup strndup asprintf
                   vasprintf free mmap munmap mprotect fopen fclose opendir closedir
                   pthread_create pthread_join)
    target_link_options(test_allocations PRIVATE LINKER:--wrap=${function})
  endforeach()
endif()
