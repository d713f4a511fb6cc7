set(STORE_FIXTURE offload/store_fixture.c offload/store_oracle.c)
zr_add_test(offload/test_store.c ${STORE_FIXTURE})
