// Standard normal numbers of single precision, as `single_normal` of streams.py draws them.
//
// A block of the counter makes four numbers from two pairs of words, each by the Box-Muller transform. Numbers take the
// places of the words that they come from, in groups.
#ifndef RAYFBNN_NORMALS_HPP
#define RAYFBNN_NORMALS_HPP

#include <string.h>

#include "counters.hpp"
#include "elementary.hpp"

namespace RAYFBNN_NAMESPACE {

// sqrt(-2 log(u)) of u = (x/2 + 1/2)/2**31, where x/2 is rounded down, of the words x.
RAYFBNN_INLINE PackFloat radius_of(PackWord x) {
    typedef Lane<PackFloat> F;
    typedef Format<float> Bits;
    const PackFloat scaled = __builtin_convertvector((PackInt)(x >> 1), PackFloat) + 0.5f;  // 2**31 u
    // The logarithm is computed as in F::log: 2**31 u is 2**n m, and log(m) is 2 artanh((m - 1)/(m + 1)).
    const PackInt bits = bits_of(scaled), n = (bits - bits_of(0.70710678118654752f)) >> Bits::mantissa;
    const PackFloat m = value_of(bits - (n << Bits::mantissa));
    const PackFloat exponent = value_of(n + (bits_of(Bits::magic) - 31)) - Bits::magic;
    const PackFloat s = (m - 1) * F::reciprocal(m + 1), z = s * s;
    const PackFloat series = ((z * (1 / 7.0f) + 1 / 5.0f) * z + 1 / 3.0f) * z + 1;
    return F::root(exponent * -1.38629436f - 4 * s * series);
}

// sin(a) and cos(a) of a = v pi/2, v = (x, with its lowest bit set, as a signed integer)/2**31, where the lowest bit
// of the words x gives the cosine its sign. The series have errors of 7e-9 and 5e-8 at most.
RAYFBNN_INLINE PackFloat direction_of(PackWord x, PackFloat& cosine) {
    const PackFloat v = __builtin_convertvector((PackInt)(x | 1), PackFloat) * 4.65661287e-10f, z = v * v;
    PackFloat even = z * 8.5819056e-4f - 2.08106275e-2f;
    even = even * z + 0.253650745f;
    even = even * z - 1.23369821f;
    even = even * z + 0.99999995f;
    cosine = value_of(bits_of(even) ^ (PackInt)(x << 31));
    PackFloat odd = z * 1.51678622e-4f - 4.6741575e-3f;
    odd = odd * z + 7.96899269e-2f;
    odd = odd * z - 0.645963761f;
    odd = odd * z + 1.57079632f;
    return odd * v;
}

// Writes the first n numbers of a pack, or all if it has no more.
RAYFBNN_INLINE void write_up_to(float* to, PackFloat numbers, long n) {
    if (n >= WORDS)
        memcpy(to, &numbers, sizeof numbers);
    else if (n > 0)
        memcpy(to, &numbers, n * sizeof(float));
}

// The numbers for the chain with this number in the batch, at a step of the call.
class Normals {
   public:
    Normals(const StreamPlace& place, int chain, long step)
        : blocks_(place, chain, place.use + (unsigned(step) << 14), place.iteration) {}

    // Writes the numbers from begin, the first of a group, to end. Words are drawn AT_ONCE packs ahead of the numbers:
    // a processor works on several packs at once only if their instructions fit into its window.
    inline void write(long begin, long end, float* to) const {
        constexpr long AT_ONCE = 8, BLOCKS = GROUP_OF_WORDS / 4;
        const long last = (end + GROUP_OF_WORDS - 1) / GROUP_OF_WORDS * BLOCKS;
        PackWord words[AT_ONCE][4];
        for (long from = begin / 4; from < last; from += AT_ONCE * WORDS) {
            const long stop = from + AT_ONCE * WORDS < last ? from + AT_ONCE * WORDS : last;
            for (long first = from; first < stop; first += WORDS)
                blocks_.words<FEWER_ROUNDS>(first, words[(first - from) / WORDS]);
            for (long first = from; first < stop; first += WORDS)
                for (int pair = 0; pair < 4; pair += 2) {
                    const long place = first / BLOCKS * GROUP_OF_WORDS + pair * BLOCKS + first % BLOCKS;
                    if (place >= end) continue;
                    const PackWord* given = words[(first - from) / WORDS] + pair;
                    const PackFloat radius = radius_of(given[0]);
                    PackFloat cosine;
                    const PackFloat sine = direction_of(given[1], cosine);
                    write_up_to(to + (place - begin), radius * cosine, end - place);
                    write_up_to(to + (place + BLOCKS - begin), radius * sine, end - place - BLOCKS);
                }
        }
    }

   private:
    Blocks blocks_;
};

inline void write_normals(const StreamPlace& place, int chain, long step, long n, float* to) {
    Normals(place, chain, step).write(0, n, to);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
