// Rows of packs and of numbers in memory, in the form that the tiles of shared/network.hpp read them.
#ifndef RAYFBNN_ROWS_HPP
#define RAYFBNN_ROWS_HPP

#include "elementary.hpp"
#include "shared/network.hpp"

#define RAYFBNN_METHOD inline __attribute__((always_inline))

namespace RAYFBNN_NAMESPACE {

// Weights of a link. Forward, row_step is n_destinations and unit_step is 1; backward, the two are exchanged.
template <class L>
struct WeightRows {
    const typename Lane<L>::Scalar* weights;
    long row_step, unit_step;

    RAYFBNN_METHOD L at(int m) const { return splat<L>(weights[m * unit_step]); }
    RAYFBNN_METHOD void step() { weights += row_step; }
};

// CASES packs of each row. With FETCHES, one cache line of each row from `fetched` on is brought to the second-level
// cache.
template <class L, bool FETCHES = false>
struct ValueRows {
    const L* values;
    long stride;
    const L* fetched = nullptr;

    template <int CASES>
    RAYFBNN_METHOD void load(L (&to)[CASES]) const {
        if (FETCHES) __builtin_prefetch(fetched, 0, 2);
#pragma GCC unroll 16
        for (int p = 0; p < CASES; ++p) to[p] = values[p];
    }
    RAYFBNN_METHOD void step() {
        values += stride;
        if (FETCHES) fetched += stride;
    }
};

// Several rows side by side, one pack of each at a time. With FETCHES, the packs from `fetched` on are brought to the
// second-level cache.
template <class L, bool FETCHES = false>
struct PackColumns {
    const L* rows;
    long stride;
    const L* fetched = nullptr;

    RAYFBNN_METHOD void load(int row, L (&to)[1]) const { to[0] = rows[row * stride]; }
    RAYFBNN_METHOD void step() {
        ++rows;
        if (FETCHES) __builtin_prefetch(fetched++, 0, 2);
    }
};

// Adds products to a tile of sums in memory. The UNITS sums of a row lie side by side.
template <int ROWS, int UNITS, class L, bool FETCHES = false>
RAYFBNN_INLINE void add_products_to(
    L* sums, long row_step, int n, const L* values, const L* slopes, long stride, const L* fetched = nullptr) {
    L tile[ROWS][UNITS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) tile[i][j] = sums[i * row_step + j];
    add_products<1>(tile, n, PackColumns<L, FETCHES>{values, stride, fetched}, PackColumns<L>{slopes, stride});
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) sums[i * row_step + j] = tile[i][j];
}

}  // namespace RAYFBNN_NAMESPACE
#endif
