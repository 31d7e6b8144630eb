// The uniform numbers of streams.py, bit for bit.
//
// The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011), with the key (seed, chain) and the counter
// (block, use, operation, iteration). A block is the four words of one counter, which make two numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace RAYFBNN_NAMESPACE {

// The words that a request's numbers have in common: seed, and the counter without the number of the block.
struct Place {
    uint32_t seed, use, operation, iteration;
};

struct Words {
    uint32_t at[4];
};

inline Words philox(Words counter, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t product_0 = uint64_t(0xD2511F53u) * counter.at[0];
        const uint64_t product_1 = uint64_t(0xCD9E8D57u) * counter.at[2];
        counter = Words{{uint32_t(product_1 >> 32) ^ counter.at[1] ^ k0, uint32_t(product_1),
                         uint32_t(product_0 >> 32) ^ counter.at[3] ^ k1, uint32_t(product_0)}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

// Return 52 bits of two words and a half, divided by 2**52: neither 0 nor 1, and exact in a double.
inline double uniform(uint32_t high, uint32_t low) {
    return (double(high >> 6) * 67108864.0 + double(low >> 6) + 0.5) / 4503599627370496.0;
}

// Write n numbers of one chain.
inline void uniforms(const Place& place, uint32_t chain, size_t n, double* values) {
    for (size_t first = 0; first < n; first += 2) {
        const Words counter{{uint32_t(first / 2), place.use, place.operation, place.iteration}};
        const Words words = philox(counter, place.seed, chain);
        values[first] = uniform(words.at[0], words.at[1]);
        if (first + 1 < n) values[first + 1] = uniform(words.at[2], words.at[3]);
    }
}

}  // namespace RAYFBNN_NAMESPACE
