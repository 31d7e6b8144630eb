// The generator of streams.py, Philox4x32-10, for a pack of blocks at a time.
#ifndef RAYFBNN_COUNTERS_HPP
#define RAYFBNN_COUNTERS_HPP

#include "packs.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::StreamPlace;

typedef unsigned PackWord __attribute__((vector_size(PACK_BYTES)));
// Words in places of 64 bits. The lower halves are the words; the upper halves may hold anything.
typedef unsigned long long PackHalves __attribute__((vector_size(PACK_BYTES)));

constexpr int WORDS = PACK_BYTES / 4;  // blocks of a pack
constexpr long GROUP_OF_WORDS = 64;    // from 16 blocks: word 16 j + i of a group is the j-th of its block i
constexpr int FEWER_ROUNDS = 7;        // with which Philox passes all tests of Salmon et al. (2011)
constexpr unsigned long long LOWER = 0xFFFFFFFFull;

RAYFBNN_INLINE PackHalves products(PackHalves x, unsigned by) {
#if defined(__AVX512F__)
    return (PackHalves)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(by));
#elif defined(__AVX2__)
    return (PackHalves)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(by));
#elif defined(__SSE2__)
    return (PackHalves)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x(by));
#else
    return (x & LOWER) * by;
#endif
}

// The blocks of one request of a chain.
class Blocks {
   public:
    Blocks(const StreamPlace& place, int chain, unsigned use, unsigned iteration)
        : use_(use), operation_(place.operation), iteration_(iteration) {
        unsigned k0 = place.seed, k1 = unsigned(place.chains[chain]);
        for (auto& keys : keys_) {
            keys[0] = k0, keys[1] = k1;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
    }

    // The four words of the blocks first .. first + WORDS - 1. Blocks of even and of odd numbers are worked on apart,
    // so that products of 64 bits stay where they are until the last round.
    template <int ROUNDS = 10>
    inline __attribute__((always_inline)) void words(long first, PackWord (&to)[4]) const {
        PackHalves even = {};
        for (int k = 0; k < WORDS / 2; ++k) even[k] = 2 * k;
        even += (unsigned long long)first;
        PackHalves of_even[4], of_odd[4];
        rounds<ROUNDS>(even, of_even);
        rounds<ROUNDS>(even + 1, of_odd);
        for (int j = 0; j < 4; ++j) to[j] = (PackWord)((of_even[j] & LOWER) | of_odd[j] << 32);
    }

   private:
    template <int ROUNDS>
    inline __attribute__((always_inline)) void rounds(PackHalves number, PackHalves (&c)[4]) const {
        const PackHalves zero = {};
        c[0] = number, c[1] = use_ + zero, c[2] = operation_ + zero, c[3] = iteration_ + zero;
#pragma GCC unroll 10
        for (int round = 0; round < ROUNDS; ++round) {
            const PackHalves first = products(c[0], 0xD2511F53u), second = products(c[2], 0xCD9E8D57u);
            c[0] = second >> 32 ^ c[1] ^ keys_[round][0], c[1] = second;
            c[2] = first >> 32 ^ c[3] ^ keys_[round][1], c[3] = first;
        }
    }

    unsigned long long use_, operation_, iteration_;
    unsigned long long keys_[10][2];
};

}  // namespace RAYFBNN_NAMESPACE
#endif
