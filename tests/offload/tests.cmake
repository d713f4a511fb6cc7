set(STORE_FIXTURE offload/store_fixture.c offload/store_oracle.c)
zr_add_test(offload/test_store.c common/ticking_clock.c ${STORE_FIXTURE})
zr_add_test(offload/test_store_uring.c ${STORE_FIXTURE} LABELS asan)
zr_add_test(offload/test_store_faults.c offload/fault_ring.c ${STORE_FIXTURE} LABELS asan)
foreach(function zr_ring_open zr_ring_queue zr_ring_submit zr_ring_next zr_ring_register_buffers
                 zr_ring_register_files fallocate pwrite open fcntl)
  target_link_options(test_store_faults PRIVATE LINKER:--wrap=${function})
endforeach()
zr_add_test(offload/test_store_memory.c allocator/fail_malloc.c ${STORE_FIXTURE} LABELS asan)
zr_add_test(offload/test_checksum.c)
zr_add_test(offload/test_store_sim.c LABELS asan)
zr_add_test(offload/test_placement.c)
zr_add_test(offload/test_swap.c offload/store_fixture.c common/late_device.c)
zr_add_test(offload/test_stash.c offload/fault_ring.c offload/store_fixture.c
            common/late_device.c LABELS asan)
foreach(function zr_ring_open zr_ring_queue zr_ring_submit zr_ring_next zr_ring_register_buffers
                 zr_ring_register_files fallocate pwrite open fcntl)
  target_link_options(test_stash PRIVATE LINKER:--wrap=${function})
endforeach()
