// Standard normal numbers of single precision, as `single_normal` of streams.py draws them.
//
// Number j * n_blocks + b of a request comes from block b of the counter, which makes four: two pairs of words, each by
// the Box-Muller transform. The blocks are worked on a pack at a time.
#ifndef RAYFBNN_NORMALS_HPP
#define RAYFBNN_NORMALS_HPP

#include <string.h>

#include "elementary.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

typedef unsigned PackWord __attribute__((vector_size(PACK_BYTES)));
typedef unsigned long long PackProduct __attribute__((vector_size(PACK_BYTES)));

// The products of a constant and the even places of a pack.
RAYFBNN_INLINE PackProduct products(PackProduct x, unsigned by) {
#if defined(__AVX512F__)
    return (PackProduct)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(by));
#elif defined(__AVX2__)
    return (PackProduct)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(by));
#elif defined(__SSE2__)
    return (PackProduct)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x(by));
#else
    return (x & 0xFFFFFFFFull) * by;
#endif
}

// The high and the low words of the products of a constant and the words of a pack.
RAYFBNN_INLINE void multiply_words(PackWord x, unsigned by, PackWord& high, PackWord& low) {
    constexpr unsigned long long mask = 0xFFFFFFFFull;
    const PackProduct even = products((PackProduct)x, by), odd = products((PackProduct)x >> 32, by);
    high = (PackWord)(even >> 32 | (odd & ~mask));
    low = (PackWord)((even & mask) | odd << 32);
}

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

// Writes n numbers for the chain with this number in the batch, at a step of the call.
inline void write_normals(const rayfbnn::NormalPlace& place, int chain, long step, long n, float* to) {
    constexpr int W = Places<PackFloat>::width;
    const long n_blocks = (n + 3) / 4;
    const unsigned use = place.use + (unsigned(step) << 14);
    for (long first = 0; first < n_blocks; first += W) {
        PackWord c0 = {}, c1 = use - PackWord{}, c2 = place.operation - PackWord{}, c3 = place.iteration - PackWord{};
        for (int k = 0; k < W; ++k) c0[k] = unsigned(first + k);
        unsigned k0 = place.seed, k1 = unsigned(place.chains[chain]);
        for (int round = 0; round < 10; ++round) {
            PackWord high_0, low_0, high_1, low_1;
            multiply_words(c0, 0xD2511F53u, high_0, low_0);
            multiply_words(c2, 0xCD9E8D57u, high_1, low_1);
            c0 = high_1 ^ c1 ^ k0, c1 = low_1, c2 = high_0 ^ c3 ^ k1, c3 = low_0;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        PackFloat numbers[4];
        box_muller(c0, c1, numbers[0], numbers[1]);
        box_muller(c2, c3, numbers[2], numbers[3]);
        for (int j = 0; j < 4; ++j) {
            const long begin = j * n_blocks + first, left = n_blocks - first < n - begin ? n_blocks - first : n - begin;
            if (left > 0) memcpy(to + begin, &numbers[j], (left < W ? left : W) * sizeof(float));
        }
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
