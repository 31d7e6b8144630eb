// Random orders, as `shuffle` of streams.py draws them: one number after the other is swapped into its place.
#ifndef RAYFBNN_SHUFFLES_HPP
#define RAYFBNN_SHUFFLES_HPP

#include <string.h>

#include "counters.hpp"

namespace RAYFBNN_NAMESPACE {

class Shuffle {
   public:
    Shuffle(const StreamPlace& place, int chain, unsigned iteration) : blocks_(place, chain, place.use, iteration) {}

    // Writes the item of each number below n, in random order.
    template <class T, class ItemOf>
    void write(long n, const ItemOf& item_of, T* to) const {
        unsigned places[TILE];
        for (long begin = 0; begin < n; begin += TILE) {
            const long n_here = n - begin < TILE ? n - begin : TILE;
            draw(begin, n_here, places);
            for (long k = 0; k < n_here; ++k) {
                T& at = to[places[k]];
                to[begin + k] = at;
                at = item_of(begin + k);
            }
        }
    }

   private:
    static constexpr long TILE = 16 * GROUP_OF_WORDS;

    // The places of n numbers from `begin` on: that of number k is from 0 to k.
    void draw(long begin, long n, unsigned (&places)[TILE]) const {
        unsigned words[TILE];
        for (long number = 0; number < n; number += GROUP_OF_WORDS)
            for (long block = 0; block < GROUP_OF_WORDS / 4; block += WORDS) {
                PackWord of_blocks[4];
                blocks_.words<FEWER_ROUNDS>((begin + number) / 4 + block, of_blocks);
                for (int j = 0; j < 4; ++j)
                    memcpy(words + number + j * (GROUP_OF_WORDS / 4) + block, &of_blocks[j], sizeof(PackWord));
            }
        for (long k = 0; k < n; ++k) places[k] = unsigned((unsigned long long)words[k] * unsigned(begin + k + 1) >> 32);
    }

    Blocks blocks_;
};

// Writes the orders (n_passes, n_chains, n) of all chains, those of each pass in its own iteration.
inline void write_shuffles(const StreamPlace& place, int n_chains, int n_passes, long n, int* to) {
    for (int pass = 0; pass < n_passes; ++pass)
        for (int chain = 0; chain < n_chains; ++chain, to += n)
            Shuffle(place, chain, place.iteration + unsigned(pass)).write(n, [](long k) { return int(k); }, to);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
