// SIMD packs as lanes of network.hpp, which includes this, by the vector extensions of GCC and Clang.
#ifndef RAYFBNN_LANES_HPP
#define RAYFBNN_LANES_HPP

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace RAYFBNN_NAMESPACE {

#if defined(__AVX512F__)
constexpr int PACK_BYTES = 64;
#elif defined(__AVX2__)
constexpr int PACK_BYTES = 32;
#else
constexpr int PACK_BYTES = 16;  // SSE2 and NEON
#endif

typedef float PackFloat __attribute__((vector_size(PACK_BYTES)));
typedef double PackDouble __attribute__((vector_size(PACK_BYTES)));
typedef int PackInt __attribute__((vector_size(PACK_BYTES)));
typedef long long PackLong __attribute__((vector_size(PACK_BYTES)));

template <class S>
struct Pack;
template <>
struct Pack<float> {
    typedef PackFloat Type;
};
template <>
struct Pack<double> {
    typedef PackDouble Type;
};

template <>
struct Lane<PackFloat> {
    typedef float Scalar;
    typedef PackInt Integer;
    static constexpr int width = PACK_BYTES / 4;
};
template <>
struct Lane<PackDouble> {
    typedef double Scalar;
    typedef PackLong Integer;
    static constexpr int width = PACK_BYTES / 8;
};

// What a comparison gives is a pack of int, of long or of long long, as the compiler likes.
template <class M>
RAYFBNN_INLINE PackFloat select(M chosen, PackFloat a, PackFloat b) {
    return chosen ? a : b;
}
template <class M>
RAYFBNN_INLINE PackDouble select(M chosen, PackDouble a, PackDouble b) {
    return chosen ? a : b;
}
#if defined(__AVX512F__)
RAYFBNN_INLINE PackFloat smaller(PackFloat a, PackFloat b) { return _mm512_min_ps(a, b); }
RAYFBNN_INLINE PackFloat larger(PackFloat a, PackFloat b) { return _mm512_max_ps(a, b); }
RAYFBNN_INLINE PackDouble smaller(PackDouble a, PackDouble b) { return _mm512_min_pd(a, b); }
RAYFBNN_INLINE PackDouble larger(PackDouble a, PackDouble b) { return _mm512_max_pd(a, b); }
#elif defined(__AVX2__)
RAYFBNN_INLINE PackFloat smaller(PackFloat a, PackFloat b) { return _mm256_min_ps(a, b); }
RAYFBNN_INLINE PackFloat larger(PackFloat a, PackFloat b) { return _mm256_max_ps(a, b); }
RAYFBNN_INLINE PackDouble smaller(PackDouble a, PackDouble b) { return _mm256_min_pd(a, b); }
RAYFBNN_INLINE PackDouble larger(PackDouble a, PackDouble b) { return _mm256_max_pd(a, b); }
#elif defined(__SSE2__)
RAYFBNN_INLINE PackFloat smaller(PackFloat a, PackFloat b) { return _mm_min_ps(a, b); }
RAYFBNN_INLINE PackFloat larger(PackFloat a, PackFloat b) { return _mm_max_ps(a, b); }
RAYFBNN_INLINE PackDouble smaller(PackDouble a, PackDouble b) { return _mm_min_pd(a, b); }
RAYFBNN_INLINE PackDouble larger(PackDouble a, PackDouble b) { return _mm_max_pd(a, b); }
#endif
RAYFBNN_INLINE PackInt bits_of(PackFloat x) { return (PackInt)x; }
RAYFBNN_INLINE PackLong bits_of(PackDouble x) { return (PackLong)x; }
RAYFBNN_INLINE PackFloat value_of(PackInt bits) { return (PackFloat)bits; }
RAYFBNN_INLINE PackDouble value_of(PackLong bits) { return (PackDouble)bits; }

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
    typedef Indices<I...> Type;
};

// Place k of the result: x[k] + x[k ^ HALF] where k has the bit HALF clear, y[k] + y[k ^ HALF] where it is set.
template <int HALF, class L, int... I>
RAYFBNN_INLINE L fold(L x, L y, Indices<I...>) {
    constexpr int W = Lane<L>::width;
    return __builtin_shufflevector(x, y, ((I & HALF) ? W + I : I)...) +
           __builtin_shufflevector(x, y, ((I & HALF) ? W + (I ^ HALF) : (I ^ HALF))...);
}

// The sums over the places of N packs: place k of the result is that of pack k (mod N), over the places that
// agree with k in the bits not folded yet; all of them for N = width. A butterfly of N - 1 additions.
template <int N, class L>
RAYFBNN_INLINE L sums_of(const L* packs) {
    if constexpr (N == 1) {
        return packs[0];
    } else {
        typedef typename MakeIndices<Lane<L>::width>::Type All;
        return fold<N / 2>(sums_of<N / 2>(packs), sums_of<N / 2>(packs + N / 2), All());
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
