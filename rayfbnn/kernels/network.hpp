// The sums of a network's pass over packs of cases.
//
//     multiply_add<UNITS>(...)       over source units for UNITS destinations and CASES lanes at once, forwards
//                                    (row_step = n_destinations, unit_step = 1) and backwards (row_step = 1,
//                                    unit_step = n_destinations) alike
//     add_products(...)              the gradient of a tile of weights, summed over the lanes of one thread
#ifndef RAYFBNN_NETWORK_HPP
#define RAYFBNN_NETWORK_HPP

#include "elementary.hpp"

namespace RAYFBNN_NAMESPACE {

// sums[m][p] += sum over k < n of weights[k * row_step + m * unit_step] * sources[k * stride + p]. With FETCHES a
// cache line of each row from `fetched` on is brought to the second cache meanwhile.
template <int UNITS, int CASES, class L, bool FETCHES = false>
RAYFBNN_INLINE void multiply_add(
    L (&sums)[UNITS][CASES],
    const typename Lane<L>::Scalar* weights,
    long row_step,
    long unit_step,
    int n,
    const L* sources,
    long stride,
    const L* fetched = nullptr) {
    for (int k = 0; k < n; ++k) {
        if (FETCHES) __builtin_prefetch(fetched + k * stride, 0, 2);
        L source[CASES];
#pragma GCC unroll 16
        for (int p = 0; p < CASES; ++p) source[p] = sources[p];
#pragma GCC unroll 16
        for (int m = 0; m < UNITS; ++m) {
            const L weight = splat<L>(weights[m * unit_step]);
#pragma GCC unroll 16
            for (int p = 0; p < CASES; ++p) sums[m][p] += weight * source[p];
        }
        sources += stride;
        weights += row_step;
    }
}

// gradient[i * row_step + j] += sum over p < n of sources[i * stride + p] * slopes[j * stride + p]; eqs. 50-57. With
// FETCHES the n packs from `fetched` on are brought to the second cache meanwhile.
template <int ROWS, int UNITS, class L, bool FETCHES = false>
RAYFBNN_INLINE void add_products(
    L* gradient,
    long row_step,
    int n,
    const L* sources,
    const L* slopes,
    long stride,
    const L* fetched = nullptr) {
    L sums[ROWS][UNITS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) sums[i][j] = gradient[i * row_step + j];
    for (int p = 0; p < n; ++p) {
        if (FETCHES) __builtin_prefetch(fetched + p, 0, 2);
        L slope[UNITS];
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) slope[j] = slopes[j * stride + p];
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            const L source = sources[i * stride + p];
#pragma GCC unroll 16
            for (int j = 0; j < UNITS; ++j) sums[i][j] += source * slope[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) gradient[i * row_step + j] = sums[i][j];
}

}  // namespace RAYFBNN_NAMESPACE
#endif
