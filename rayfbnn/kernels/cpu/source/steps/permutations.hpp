// Random permutations, as `permutation` of streams.py draws them: the order of as many uniform numbers.
#ifndef RAYFBNN_PERMUTATIONS_HPP
#define RAYFBNN_PERMUTATIONS_HPP

#include <string.h>

#include "counters.hpp"
#include "memory.hpp"

namespace RAYFBNN_NAMESPACE {

// Sorts n numbers in a time proportional to n, with memory that is kept from one permutation to the next. A number goes
// to one of 2 n buckets by its upper half, and the few numbers of a bucket are sorted by insertion; n or 4 n buckets
// take a seventh longer. Equal numbers keep their order.
class Permutations {
   public:
    explicit Permutations(long n) : n_(n), drawn_(n + 2 * WORDS), sorted_(n), ends_(2 * n + 1) {}

    void write(const StreamPlace& place, int chain, unsigned iteration, int* order) {
        draw(Blocks(place, chain, place.use, iteration));
        memset(ends_, 0, (2 * n_ + 1) * sizeof(unsigned));
        for (long k = 0; k < n_; ++k) ++ends_[bucket(drawn_[k]) + 1];
        for (long b = 0; b < 2 * n_; ++b) ends_[b + 1] += ends_[b];
        for (long k = 0; k < n_; ++k) {
            const unsigned at = ends_[bucket(drawn_[k])]++;
            sorted_[at] = drawn_[k], order[at] = int(k);
        }
        for (long k = 1; k < n_; ++k)
            if (sorted_[k] < sorted_[k - 1]) insert(k, order);
    }

   private:
    static constexpr int HALF = 26;  // uniform numbers have 52 random bits, 26 of each of two words

    void draw(const Blocks& blocks) {
        for (long first = 0; 2 * first < n_; first += WORDS) {
            PackWord words[4];
            blocks.words(first, words);
            unsigned at[4][WORDS];
            memcpy(at, words, sizeof at);
            unsigned long long* to = drawn_ + 2 * first;
            for (int k = 0; k < WORDS; ++k)
                to[2 * k] = bits(at[0][k], at[1][k]), to[2 * k + 1] = bits(at[2][k], at[3][k]);
        }
    }
    static unsigned long long bits(unsigned high, unsigned low) {
        return (unsigned long long)(high >> 6) << HALF | low >> 6;
    }
    unsigned long long bucket(unsigned long long number) const { return (number >> HALF) * (2 * n_) >> HALF; }

    // Moves number k down to its place among those before it, which are in order.
    void insert(long k, int* order) {
        const unsigned long long number = sorted_[k];
        const int index = order[k];
        for (; k > 0 && number < sorted_[k - 1]; --k) sorted_[k] = sorted_[k - 1], order[k] = order[k - 1];
        sorted_[k] = number, order[k] = index;
    }

    const unsigned long long n_;
    Buffer<unsigned long long> drawn_, sorted_;
    Buffer<unsigned> ends_;  // of what is in each bucket so far
};

// Writes the permutations (n_passes, n_chains, n) of all chains, those of each pass in its own iteration.
inline void write_permutations(const StreamPlace& place, int n_chains, int n_passes, long n, int* to) {
    Permutations permutations(n);
    for (int pass = 0; pass < n_passes; ++pass)
        for (int chain = 0; chain < n_chains; ++chain, to += n)
            permutations.write(place, chain, place.iteration + unsigned(pass), to);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
