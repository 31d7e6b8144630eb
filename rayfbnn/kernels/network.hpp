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

// sums[m][p] += sum over k < n of weights[k * row_step + m * unit_step] * sources[k * stride + p]
template <int UNITS, int CASES, class L>
RAYFBNN_INLINE void multiply_add(
    L (&sums)[UNITS][CASES],
    const typename Lane<L>::Scalar* weights,
    long row_step,
    long unit_step,
    int n,
    const L* sources,
    long stride) {
    for (int k = 0; k < n; ++k) {
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

// gradient[i * row_step + j] += sum over p < n of sources[i * stride + p] * slopes[j * stride + p]; eqs. 50-57
template <int ROWS, int UNITS, class L>
RAYFBNN_INLINE void add_products(
    L* gradient, long row_step, int n, const L* sources, const L* slopes, long stride) {
    L sums[ROWS][UNITS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) sums[i][j] = gradient[i * row_step + j];
    for (int p = 0; p < n; ++p) {
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
