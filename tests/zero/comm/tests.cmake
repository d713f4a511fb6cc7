set(COMM_SUITE zero/comm/comm_suite.c zero/comm/comm_cases.c zero/comm/ranks.c)
zr_add_test(zero/comm/test_comm_threads.c ${COMM_SUITE})
