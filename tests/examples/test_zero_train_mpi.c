/*
 * zero-train with ranks that are processes on the host: started by hand, and by mpirun where there
 * is one. The weights are those of as many threads, bit for bit, at every stage and with offload;
 * rank 0 alone reports; a rank that is killed ends the others, by name; exit codes come through.
 */
#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"
#include "tests/zero/comm/free_port.h"

/* The number of threads is in the bits of matrix products. */
#define RUN TINY "--device host --threads 1 --dtype bf16 --steps 3 --grad-accum 2 --json "
/* All stages have the same bits then. */
#define SAME RUN "--reduce every-micro-batch "
#define OFFLOAD "--offload-optimizer cpu --sub-group 2048 "

static int run_by(const char *launcher, int n_ranks, const char *arguments) {
    char command[4096];
    snprintf(command, sizeof(command), "exec >out 2>err; %s -n %d '%s' %s", launcher, n_ranks,
             ZERO_TRAIN, arguments);
    return run_shell(command);
}

static int run_by_mpirun(int n_ranks, const char *arguments) {
    return run_by(ZR_MPIRUN, n_ranks, arguments);
}

static int run_by_mpich(int n_ranks, const char *arguments) {
    return run_by(ZR_MPICH_MPIRUN, n_ranks, arguments);
}

typedef int (*run_fn)(int n_ranks, const char *arguments);

static int run_threads(int n_ranks, const char *arguments) {
    char command[512];
    snprintf(command, sizeof(command), "%s --ranks %d", arguments, n_ranks);
    return run(command);
}

/* The weights' hash; one JSON object, of rank 0, is all that is printed. */
static void hash_of(run_fn run_ranks, int n_ranks, const char *arguments, char hash[17]) {
    int code = run_ranks(n_ranks, arguments);
    if (code != 0)
        fail_msg("%d ranks, %s: exit %d\n%s", n_ranks, arguments, code, err);
    json_t *object = kept_json(out);
    expect_fields(object, "ranks=%d", n_ranks);
    snprintf(hash, 17, "%s", text(object, "weights_xxh3"));
}

static void assert_same_hash(run_fn run_ranks, int n_ranks, const char *arguments,
                             const char *expected) {
    char hash[17];
    hash_of(run_ranks, n_ranks, arguments, hash);
    if (strcmp(hash, expected) != 0)
        fail_msg("%d ranks, %s: weights %s, not %s", n_ranks, arguments, hash, expected);
}

TEST(by_hand_as_threads) {
    for (int n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
        char expected[17];
        hash_of(run_threads, n_ranks, SAME "--stage 0 --master apart", expected);
        assert_same_hash(run_by_hand, n_ranks, SAME "--stage 0 --master split", expected);
        assert_same_hash(run_by_hand, n_ranks, SAME "--stage 1 " OFFLOAD, expected);
        assert_same_hash(run_by_hand, n_ranks, SAME "--stage 2 --master split", expected);
        assert_same_hash(run_by_hand, n_ranks, SAME "--stage 3 --offload-params cpu " OFFLOAD,
                         expected);
        hash_of(run_threads, n_ranks, RUN "--stage 1", expected);
        assert_same_hash(run_by_hand, n_ranks, RUN "--stage 1", expected);
    }
    read_file("out.1", out, sizeof(out));
    assert_string_equal(out, "");
}

/* Messages in other encodings, and groups that meet seldom: other weights, and the same on any
 * transport. */
TEST(encoded_as_threads) {
    static const char *const ways[] = {
        RUN "--stage 3 --gather-encoding 8bit --reduce-encoding 4bit",
        RUN "--stage 1 --shard-group-size 2 --reduce-encoding 8bit --error-feedback on",
        RUN "--stage 2 --shard-group-size 2 --outer-every 2 --gather-encoding 8bit"};
    char plain[17], expected[17];
    hash_of(run_threads, 4, RUN "--stage 1", plain);
    for (size_t i = 0; i < N_OF(ways); i++) {
        hash_of(run_threads, 4, ways[i], expected);
        assert_string_not_equal(expected, plain);
        assert_same_hash(run_by_hand, 4, ways[i], expected);
    }
}

/* Numbers of bytes, and of whatever else is counted: what is not a time, or where something is. */
static void assert_same_counts(const char *name, json_t *a, json_t *b) {
    const char *key;
    json_t *value;
    if (json_is_integer(a) && json_integer_value(a) != json_integer_value(b))
        fail_msg("%s is %lld with threads, and %lld with processes", name,
                 (long long)json_integer_value(a), (long long)json_integer_value(b));
    assert_true(a != NULL && b != NULL);
    json_object_foreach(a, key, value) {
        assert_same_counts(key, value, json_object_get(b, key));
    }
}

/* Each rank's own: bytes, of which the largest are those of all, and times. */
static void assert_ranks(json_t *object, bool are_processes) {
    static const char *const peaks[] = {"peak_bytes.device.live", "peak_bytes.device.reserved",
                                        "peak_bytes.host.live", "peak_bytes.host.reserved"};
    double most[N_OF(peaks)] = {0};
    size_t i;
    json_t *rank;
    json_array_foreach(field(object, "per_rank"), i, rank) {
        for (size_t k = 0; k < N_OF(peaks); k++)
            most[k] = fmax(most[k], number(rank, "%s", peaks[k]));
        expect_fields(rank, "rank=%zu", i);
        assert_true(number(rank, "step_ms") > 0 && number(rank, "own_ms") > 0);
        assert_true((field(rank, "peak_resident_bytes") != NULL) == are_processes);
        assert_true(i > 0 || number(rank, "step_ms") == number(object, "step_ms"));
    }
    for (size_t k = 0; k < N_OF(peaks); k++)
        assert_true(number(object, "%s", peaks[k]) == most[k]);
}

/* What is reported of all ranks is of all of them, be they threads or processes. */
TEST(results_as_threads) {
    static const char *const fields[] = {"offload", "peak_bytes", "comm_bytes", "checkpoint"};
    assert_int_equal(run_threads(3, RUN "--stage 3 " OFFLOAD "--checkpoint-dir threads"), 0);
    json_t *threads = kept_json(out);
    assert_int_equal(run_by_hand(3, RUN "--stage 3 " OFFLOAD "--checkpoint-dir processes"), 0);
    json_t *processes = kept_json(out);
    for (size_t i = 0; i < N_OF(fields); i++)
        assert_same_counts(fields[i], field(threads, "%s", fields[i]),
                           field(processes, "%s", fields[i]));
    assert_ranks(threads, false);
    assert_ranks(processes, true);
    assert_int_equal(json_array_size(field(processes, "per_rank")), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *thread = json_array_get(field(threads, "per_rank"), i);
        json_t *process = json_array_get(field(processes, "per_rank"), i);
        /* Threads share tables, of which each counts a part. */
        assert_true(number(thread, "metadata_bytes.live") < number(process, "metadata_bytes.live"));
        assert_int_equal(json_object_del(thread, "metadata_bytes"), 0);
        assert_same_counts("per_rank", thread, process);
    }
}

/* Groups of ranks, which have communicators of their own. */
TEST(groups_as_threads) {
    char expected[17];
    hash_of(run_threads, 4, SAME "--stage 0 --shard-group-size 2", expected);
    assert_same_hash(run_by_hand, 4, SAME "--stage 1 --shard-group-size 2", expected);
    assert_same_hash(run_by_hand, 4, SAME "--stage 3 --shard-group-size 2 " OFFLOAD, expected);
}

TEST(by_mpirun_as_threads) {
    if (ZR_MPIRUN[0] == '\0') {
        print_message("this build is without MPI, or mpirun is not found\n");
        skip();
    }
    for (int n_ranks = 1; n_ranks <= 4; n_ranks += 3) {
        char expected[17], arguments[512];
        hash_of(run_threads, n_ranks, SAME "--stage 0", expected);
        snprintf(arguments, sizeof(arguments), SAME "--comm processes --stage %d", n_ranks - 1);
        assert_same_hash(run_by_mpirun, n_ranks, arguments, expected);
        assert_same_hash(run_by_mpirun, n_ranks, SAME "--stage 3 " OFFLOAD, expected);
    }
    assert_int_equal(run_by_mpirun(2, TINY "--stage 4"), 2);
    assert_said("--stage 4", "--stage 4: allowed:");
    assert_int_equal(run_by_mpirun(2, TINY "--ranks 3"), 2);
    assert_said("--ranks 3", "--ranks 3: mpirun or srun has started 2 processes");
    assert_int_equal(run_by_mpirun(2, TINY "--steps 2 --device-memory 100KiB"), 1);
    assert_said("--device-memory", "device memory:");
}

TEST(by_mpich_as_threads) {
    char expected[17];
    if (ZR_MPICH_MPIRUN[0] == '\0') {
        print_message("this build is without MPICH\n");
        skip();
    }
    hash_of(run_threads, 3, SAME "--stage 0", expected);
    assert_same_hash(run_by_mpich, 3, SAME "--stage 3 " OFFLOAD, expected);
}

TEST(killed_rank) {
    kill_rank(TINY "--device host --threads 1 --steps 1000000 --stage 3");
}

#define HAVE_ENDED_BEFORE 7 /* an exit status of the shell */

/* Two ranks that train, of which one is stopped until the other has ended. HAVE_ENDED_BEFORE: the
 * machine has held one up for the time limit, so that it was all over before. */
static int stop_a_rank_and_wake_it(void) {
    char command[4096];
    snprintf(command, sizeof(command),
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; rm -f log.woken err err.1; "
             "A='" TINY "--device host --threads 1 --steps 1000000 --comm-timeout 5 --quiet'; "
             "RANK=1 LOCAL_RANK=1 '%s' $A 2>err.1 & odd=$!; "
             "RANK=0 LOCAL_RANK=0 '%s' $A --log log.woken >out 2>err & other=$!; "
             "until [ -s log.woken ] || [ -s err ] || [ -s err.1 ]; do sleep 0.05; done; "
             "kill -STOP $odd; "
             "if [ -s err ] || [ -s err.1 ]; then kill -KILL $odd; wait $odd $other; "
             "grep -qE '[0-9] ms|heard' err err.1 && exit %d; cat err err.1 >&2; exit 8; fi; "
             "wait $other; [ $? -eq 1 ] || exit 9; kill -CONT $odd; wait $odd",
             free_port(), ZERO_TRAIN, ZERO_TRAIN, HAVE_ENDED_BEFORE);
    return run_shell(command);
}

/* A rank that is stopped until the others have ended, and wakes, ends as they do, and knows why. */
TEST(a_stopped_rank_that_wakes) {
    int code = HAVE_ENDED_BEFORE;
    for (int i = 0; i < 10 && code == HAVE_ENDED_BEFORE; i++)
        code = stop_a_rank_and_wake_it();
    assert_int_equal(code, 1);
    assert_said("the other", "rank 1 has not been heard from for 3000 ms");
    read_file("err.1", err, sizeof(err));
    assert_said("woken", "error: rank 1:|; this process itself was stopped, or did not run, for ");
}

/* Rank 1 has other options than ranks 0 and 2; all end, and know in what. */
static void assert_difference(const char *common, const char *usual, const char *odd,
                              const char *expected) {
    char command[4096];
    snprintf(command, sizeof(command),
             "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; "
             "A='" TINY "--device host --threads 1 %s'; "
             "RANK=1 LOCAL_RANK=1 '%s' $A %s 2>err.1 & odd=$!; "
             "RANK=2 LOCAL_RANK=2 '%s' $A %s 2>err.2 & other=$!; "
             "RANK=0 LOCAL_RANK=0 '%s' $A %s >out 2>err; [ $? -eq 1 ] || exit 9; "
             "wait $odd; [ $? -eq 1 ] || exit 8; wait $other",
             free_port(), common, ZERO_TRAIN, odd, ZERO_TRAIN, usual, ZERO_TRAIN, usual);
    assert_int_equal(run_shell(command), 1);
    assert_said(odd, expected);
    read_file("err.1", err, sizeof(err));
    assert_said(odd, expected);
    read_file("err.2", err, sizeof(err));
    assert_said(odd, expected);
}

/* What ranks have to have in common, and what the message has of it. */
TEST(different_options) {
    assert_difference("", "--seed 7", "--seed 8",
                      "rank 1 has --seed 8, rank 0 has --seed 7; 2 of 3 ranks have the latter");
    assert_difference("", "--dtype fp32", "--dtype bf16", "rank 1 has --dtype bf16, rank 0 has");
    assert_difference("", "--steps 5", "--steps 6", "rank 1 has --steps 6, rank 0 has --steps 5");
    assert_difference("", "--lr 1e-3", "--lr 2e-3", "rank 1 has --lr 0.002, rank 0 has --lr 0.001");
    assert_difference("", "--stage 2", "--stage 3", "rank 1 has --stage 3, rank 0 has --stage 2");
    assert_difference("", "--stage 2", "--shard-group-size 1 --stage 2",
                      "rank 1 has --shard-group-size 1, rank 0 has --shard-group-size 3");
    assert_difference("", "--seq 16", "--model layers=3,channels=16,heads=2,seq=16,vocab=256",
                      "rank 1 has --model with layers=3, rank 0 has --model with layers=2");
    write_file("other", "another text, which is shorter than the one of the others", 57);
    assert_difference("", "", "--data other", "rank 1 has --data of ");
    assert_said("--data other", "tokens of kind text in ");
    write_file("one", "the same number of bytes, and not one bit more: 0123456789 abcde", 64);
    write_file("two", "the same number of bytes, and not one bit more: 0123456789 abcdf", 64);
    assert_difference("", "--data one", "--data two", "windows, which has hash ");
    assert_difference("", "--checkpoint-dir a", "--checkpoint-dir b",
                      "rank 1 has --checkpoint-dir b, rank 0 has --checkpoint-dir a");
    assert_difference("", "", "--checkpoint-dir a",
                      "rank 1 has --checkpoint-dir a, rank 0 has no --checkpoint-dir");
}

/* What a rank lacks before it trains, the others hear from it at once. */
TEST(rank_without_data) {
    char command[4096];
    snprintf(command, sizeof(command),
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; "
             "A='" TINY "--device host --threads 1'; "
             "RANK=1 LOCAL_RANK=1 '%s' $A --data nowhere 2>err.1 & other=$!; "
             "RANK=0 LOCAL_RANK=0 '%s' $A >out 2>err; [ $? -eq 1 ] || exit 9; wait $other",
             free_port(), ZERO_TRAIN, ZERO_TRAIN);
    assert_int_equal(run_shell(command), 2);
    assert_said("no data", "rank 1 gave up: |nowhere");
}

TEST(refusals) {
    assert_ran(2, TINY "--comm processes --ranks 2");
    assert_said("--comm processes", "--comm processes: ranks are processes, and this one was "
                                    "started alone: start it with mpirun -n 2");
    assert_ran(2, TINY "--comm mpi --ranks 2"); /* its former name */
    assert_said("--comm mpi", "--comm processes: ranks are processes, and this one was started");
    assert_ran(2, TINY "--comm process");
    assert_said("--comm process", "allowed: threads, nccl, processes");
    assert_ran(2, TINY "--comm processes --device cuda");
    assert_said("--comm processes",
                "--comm processes: it is for host memory, and --device is cuda");
    assert_int_equal(run_by_hand(2, TINY "--comm threads"), 2);
    assert_said("--comm threads", "--comm threads: WORLD_SIZE says that 2 processes");
    assert_int_equal(run_after("OMPI_COMM_WORLD_SIZE=2", TINY), 2);
    assert_said("mpirun", "OMPI_COMM_WORLD_RANK is not set; mpirun of Open MPI sets it");
    assert_int_equal(run_after("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=2", TINY), 2);
    assert_said("srun", "SLURM_PROCID=\"2\" in the environment: a whole number from 0 to 1");
    assert_int_equal(run_after("PMI_SIZE=3 PMI_RANK=x", TINY), 2);
    assert_said("mpirun", "PMI_RANK=\"x\"");
    assert_int_equal(run_after("WORLD_SIZE=1 OMPI_COMM_WORLD_SIZE=2", TINY "--steps 1"), 0);
}

/* Who asks for ranks that are processes, and has started one, is told so; who has asked for one is
 * not. */
TEST(one_process_alone) {
    static const char remark[] = "warning: --comm processes: this process was started alone, and "
                                 "is the only rank";
    assert_ran(0, TINY "--comm processes --steps 1 --quiet");
    assert_said("alone", remark);
    assert_int_equal(run_after("WORLD_SIZE=1", TINY "--comm processes --steps 1 --quiet"), 0);
    assert_not_said("one of one", remark);
    assert_ran(0, TINY "--steps 1 --quiet");
    assert_not_said("threads", remark);
}

/* A program that is not beside its modules says what is missing, and what to do. */
TEST(without_module) {
    char command[4096];
    snprintf(command, sizeof(command),
             "cp '%s' zero-train-copy; PMIX_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "
             "./zero-train-copy " TINY ">out 2>err",
             ZERO_TRAIN);
    assert_int_equal(run_shell(command), 2);
    assert_said("no module",
                "started by MPI's launcher, but no module for MPI was found|Install Open MPI");
}

const test_group_t test_group = {make_folder, leave_test_folder};
