/*
 * Where the ranks of one unique id meet, which may be threads or processes: memory that all of them
 * map. A rank posts each part of what has come to the head of its stream, the others look for the
 * counterpart, and data goes through the post of who gives it.
 *
 * The memory is a file that the maker of the id makes and the last rank to join removes. One lock
 * guards all but the data; that it outlives its owner is why a rank may be killed anywhere.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>

namespace emu {

enum kind_t { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, SEND, RECV };

/* What one rank asks of the others in one call. */
struct part_t {
    kind_t kind;
    int peer;        /* or root */
    uint64_t number; /* of the rank's collectives, or of its sends or receives with the peer */
    size_t count;
    int type; /* ncclDataType_t */
};

struct memory_t; /* what is shared */

class meeting_t {
  public:
    /* A new one, for ncclGetUniqueId. False: there can be none. */
    static bool make(std::string &name);
    /* Open one that was made. False: there is none. */
    bool open(const char *name);
    meeting_t() = default;
    meeting_t(const meeting_t &) = delete;
    ~meeting_t();

    /* Come in as a rank; once. False: another number of ranks, or the place is taken. */
    bool join(int rank, int n_ranks, int device);
    bool are_all_here() const;
    bool has_refused() const;   /* two ranks have one device */
    bool has_strangers() const; /* all are here, and one is another process */

    /* Post a part, whose number among the rank's posts this is. Ends the program when there are too
     * many. */
    int post(const part_t &part);
    /* The post with which a rank has come to a part; -1: not yet. A collective's kind is not looked
     * at: there is one of its number. */
    int find(int rank, kind_t kind, int peer, uint64_t number) const;
    const part_t &part_of(int rank, int post) const;
    /* Where the data of a post goes; at most most_bytes. */
    unsigned char *data_of(int rank, int post) const;
    /* The data of an own post is there, for this many to take. */
    void give(int post, int n_takers);
    bool is_given(int rank, int post) const;
    /* It was read, and its post may be used for another part. */
    void take(int rank, int post);
    /* A post that nobody takes from. */
    void withdraw(int post);

    static const size_t most_bytes = (size_t)64 << 20;

  private:
    memory_t *memory = NULL;
    int own_rank = -1;
};

} // namespace emu

