// Packs: SIMD registers of numbers, written with the vector extensions of GCC and Clang.
#ifndef RAYFBNN_PACKS_HPP
#define RAYFBNN_PACKS_HPP

#include "shared/arithmetic.hpp"

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
typedef float HalfPackFloat __attribute__((vector_size(PACK_BYTES / 2)));
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

template <class L>
struct Places;
template <>
struct Places<PackFloat> {
    typedef float Scalar;
    typedef PackInt Integer;
    static constexpr int width = PACK_BYTES / 4;
};
template <>
struct Places<PackDouble> {
    typedef double Scalar;
    typedef PackLong Integer;
    static constexpr int width = PACK_BYTES / 8;
};

template <class L>
RAYFBNN_INLINE L splat(typename Places<L>::Scalar x) {
    return x - L{};  // the scalar x is taken to every place
}

// GCC 12 converts half a pack to double in two pieces.
#if defined(__AVX512F__)
RAYFBNN_INLINE PackDouble doubles_of(HalfPackFloat x) { return (PackDouble)_mm512_cvtps_pd((__m256)x); }
#elif defined(__AVX2__)
RAYFBNN_INLINE PackDouble doubles_of(HalfPackFloat x) { return (PackDouble)_mm256_cvtps_pd((__m128)x); }
#else
RAYFBNN_INLINE PackDouble doubles_of(HalfPackFloat x) { return __builtin_convertvector(x, PackDouble); }
#endif

// The first n numbers at `places`, followed by zeros.
RAYFBNN_INLINE PackDouble doubles_of(const double* places, int n) {
    PackDouble x = {};
    __builtin_memcpy(&x, places, n == Places<PackDouble>::width ? sizeof x : n * sizeof(double));
    return x;
}
RAYFBNN_INLINE PackDouble doubles_of(const float* places) {
    HalfPackFloat x;
    __builtin_memcpy(&x, places, sizeof x);
    return doubles_of(x);
}
RAYFBNN_INLINE PackDouble doubles_of(const double* places) { return doubles_of(places, Places<PackDouble>::width); }

// If either number is NaN, the result is b. These are single instructions where the processor has them.
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
#else
template <class L>
RAYFBNN_INLINE L smaller(L a, L b) {
    return a < b ? a : b;
}
template <class L>
RAYFBNN_INLINE L larger(L a, L b) {
    return a > b ? a : b;
}
#endif

// Estimates of 1/x and 1/sqrt(x), right to one part in 2700 or better; where a processor has none, the numbers
// themselves.
#if defined(__AVX512F__)
RAYFBNN_INLINE PackFloat estimated_reciprocal(PackFloat x) { return _mm512_rcp14_ps(x); }
RAYFBNN_INLINE PackFloat estimated_reciprocal_root(PackFloat x) { return _mm512_rsqrt14_ps(x); }
#elif defined(__AVX2__)
RAYFBNN_INLINE PackFloat estimated_reciprocal(PackFloat x) { return _mm256_rcp_ps(x); }
RAYFBNN_INLINE PackFloat estimated_reciprocal_root(PackFloat x) { return _mm256_rsqrt_ps(x); }
#elif defined(__SSE2__)
RAYFBNN_INLINE PackFloat estimated_reciprocal(PackFloat x) { return _mm_rcp_ps(x); }
RAYFBNN_INLINE PackFloat estimated_reciprocal_root(PackFloat x) { return _mm_rsqrt_ps(x); }
#else
RAYFBNN_INLINE PackFloat estimated_reciprocal(PackFloat x) { return 1 / x; }
RAYFBNN_INLINE PackFloat estimated_reciprocal_root(PackFloat x) {
    for (int k = 0; k < PACK_BYTES / 4; ++k) x[k] = 1 / __builtin_sqrtf(x[k]);
    return x;
}
#endif

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
    typedef Indices<I...> Type;
};

// The numbers of half a pack in double, and a pack of the numbers of two halves. Halves are shuffled, not copied: a
// pack that is written in two pieces to memory cannot be read from there as a whole without waiting.
template <int HALF, int... I>
RAYFBNN_INLINE PackDouble doubles_of_half(PackFloat x, Indices<I...>) {
    return doubles_of(__builtin_shufflevector(x, x, (HALF * int(sizeof...(I)) + I)...));
}
template <int HALF>
RAYFBNN_INLINE PackDouble doubles_of_half(PackFloat x) {
    return doubles_of_half<HALF>(x, typename MakeIndices<Places<PackDouble>::width>::Type());
}
template <int... I>
RAYFBNN_INLINE PackFloat singles_of(PackDouble x, PackDouble y, Indices<I...>) {
    return __builtin_shufflevector(
        __builtin_convertvector(x, HalfPackFloat), __builtin_convertvector(y, HalfPackFloat), I...);
}
RAYFBNN_INLINE PackFloat singles_of(PackDouble x, PackDouble y) {
    return singles_of(x, y, typename MakeIndices<Places<PackFloat>::width>::Type());
}

// Two halves of a pack as one.
template <class L, class HALF, int... I>
RAYFBNN_INLINE L side_by_side(HALF x, HALF y, Indices<I...>) {
    return __builtin_shufflevector(x, y, I...);
}

// One half of the places of x and y (PART = 0) or the other half (PART = 1), in pieces of G places. Pieces shorter than
// 16 bytes are taken from x and y in turn within every 16 bytes. Pieces of 16 bytes are first those of x and then those
// of y. These shuffles are one instruction each, unlike shuffles of single places across a wide pack.
template <int G, int PART, class L, int... I>
RAYFBNN_INLINE L part_of(L x, L y, Indices<I...>) {
    constexpr int W = Places<L>::width, E = 16 / sizeof(typename Places<L>::Scalar);
    if constexpr (G < E)
        return __builtin_shufflevector(
            x, y, (I % (2 * G) / G * W + I / E * E + I % E / (2 * G) * G + I % G + PART * E / 2)...);
    else
        return __builtin_shufflevector(x, y, ((2 * (I / E) + PART) * E + I % E)...);
}

// The sums over the places of N packs, by N - 1 additions. If N packs of places are less than 16 bytes, the sums of
// pack k are in the places k (mod N) of the result. If N is the width, the sums are in order.
template <int N, class L>
RAYFBNN_INLINE L sums_of(const L* packs) {
    if constexpr (N == 1) {
        return packs[0];
    } else {
        typedef typename MakeIndices<Places<L>::width>::Type All;
        constexpr int E = 16 / sizeof(typename Places<L>::Scalar), G = N / 2 < E ? N / 2 : E;
        const L x = sums_of<N / 2>(packs), y = sums_of<N / 2>(packs + N / 2);
        return part_of<G, 0>(x, y, All()) + part_of<G, 1>(x, y, All());
    }
}

// The 16 bytes at several places, side by side.
template <class L, int BYTES = sizeof(L)>
RAYFBNN_INLINE auto joined(const typename Places<L>::Scalar* const* places) {
    typedef typename Places<L>::Scalar S;
    typedef S Piece __attribute__((vector_size(BYTES)));
    if constexpr (BYTES == 16) {
        Piece piece;
        __builtin_memcpy(&piece, places[0], 16);
        return piece;
    } else {
        return side_by_side<Piece>(
            joined<L, BYTES / 2>(places), joined<L, BYTES / 2>(places + BYTES / 32),
            typename MakeIndices<BYTES / sizeof(S)>::Type());
    }
}

// Turns the rows of a square matrix of N = width packs into its columns. Smaller N are steps on the way.
template <int N, class L>
RAYFBNN_INLINE void turn(L* rows) {
    if constexpr (N > 1) {
        typedef typename MakeIndices<Places<L>::width>::Type All;
        constexpr int E = 16 / sizeof(typename Places<L>::Scalar), G = N / 2 < E ? N / 2 : E;
        turn<N / 2>(rows), turn<N / 2>(rows + N / 2);
        L to[N];
#pragma GCC unroll 16
        for (int k = 0; k < N / 2; ++k) {
            // Within 16 bytes the halves are neighbouring columns, and beyond they are half of all columns apart.
            const int first = G < E ? 2 * k : k, second = G < E ? first + 1 : first + N / 2;
            to[first] = part_of<G, 0>(rows[k], rows[k + N / 2], All());
            to[second] = part_of<G, 1>(rows[k], rows[k + N / 2], All());
        }
#pragma GCC unroll 16
        for (int k = 0; k < N; ++k) rows[k] = to[k];
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
