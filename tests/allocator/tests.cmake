zr_add_test(allocator/test_allocator_conformance.c allocator/fake_device.c)
