// Standard normal numbers of single precision, as `single_normal` of streams.py draws them.
//
// Number j * n_blocks + b of a request comes from block b of the counter, which makes four: two pairs of words, each by
// the Box-Muller transform. The blocks are worked on a pack at a time.
#ifndef RAYFBNN_NORMALS_HPP
#define RAYFBNN_NORMALS_HPP

#include <string.h>

#include "counters.hpp"
#include "elementary.hpp"

namespace RAYFBNN_NAMESPACE {

// (x + 1/2)/2**32 of the words x, rounded.
RAYFBNN_INLINE PackFloat fractions_of(PackWord x) {
    const PackFloat high = __builtin_convertvector((PackInt)(x >> 16), PackFloat);
    const PackFloat low = __builtin_convertvector((PackInt)(x & 0xFFFFu), PackFloat);
    return (high * 65536.0f + (low + 0.5f)) * 2.3283064365386963e-10f;
}

// Two normal numbers of each pair of words.
RAYFBNN_INLINE void box_muller(PackWord a, PackWord b, PackFloat& x, PackFloat& y) {
    typedef Lane<PackFloat> F;
    const PackFloat radius = F::root(-2.0f * F::log(fractions_of(a)));
    PackFloat cosine;
    const PackFloat sine = F::small_sine(fractions_of(b) * 6.2831853071795865f, cosine);
    x = radius * cosine, y = radius * sine;
}

// Writes the first n numbers of a pack, or all if it has no more.
RAYFBNN_INLINE void write_up_to(float* to, PackFloat numbers, long n) {
    if (n >= WORDS)
        memcpy(to, &numbers, sizeof numbers);
    else if (n > 0)
        memcpy(to, &numbers, n * sizeof(float));
}

// Writes n numbers for the chain with this number in the batch, at a step of the call. Words are drawn AT_ONCE packs
// ahead of the numbers: a processor works on several packs at once only if their instructions fit into its window.
inline void write_normals(const StreamPlace& place, int chain, long step, long n, float* to) {
    constexpr int AT_ONCE = 8;
    const long n_blocks = (n + 3) / 4;
    const Blocks blocks(place, chain, place.use + (unsigned(step) << 14), place.iteration);
    PackWord words[AT_ONCE][4];
    for (long begin = 0; begin < n_blocks; begin += AT_ONCE * WORDS) {
        const long end = begin + AT_ONCE * WORDS < n_blocks ? begin + AT_ONCE * WORDS : n_blocks;
        for (long first = begin; first < end; first += WORDS) blocks.words(first, words[(first - begin) / WORDS]);
        for (long first = begin; first < end; first += WORDS)
            for (int pair = 0; pair < 4; pair += 2) {
                const PackWord* given = words[(first - begin) / WORDS] + pair;
                PackFloat numbers[2];
                box_muller(given[0], given[1], numbers[0], numbers[1]);
                for (int j = 0; j < 2; ++j) {
                    const long place = (pair + j) * n_blocks + first;
                    write_up_to(to + place, numbers[j], end - first < n - place ? end - first : n - place);
                }
            }
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
