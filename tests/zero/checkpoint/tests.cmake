set(SAMPLE zero/checkpoint/sample.c)
zr_add_test(zero/checkpoint/test_manifest.c ${SAMPLE} LABELS asan)
