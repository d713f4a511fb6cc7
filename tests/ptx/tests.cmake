zr_add_test(ptx/test_races.cc ptx/races.cc LABELS asan)
