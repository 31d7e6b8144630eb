// How the units of a layer at a block of cases are cut into register tiles, for the forward and the backward pass.
//
// A tile is some units at some packs of cases. Tiles that lie at the same packs make a column.
#ifndef RAYFBNN_PACKED_TILES_HPP
#define RAYFBNN_PACKED_TILES_HPP

#include "packed_layout.hpp"

namespace RAYFBNN_NAMESPACE {

constexpr int MOST_PACKS = 5;  // packs of cases in a register tile
constexpr int MOST_LARGE = 3;  // the same where the weights of a large link are read set by set

// Units in a register tile of n packs: as many sums as the registers hold beside one column of sources.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tile_units(int n_packs) { return n_packs <= 3 ? 8 : 4; }
#else
constexpr int tile_units(int n_packs) { return n_packs >= 4 ? 2 : n_packs == 3 ? 4 : n_packs == 2 ? 4 : 8; }
#endif

// Starts the sums of a tile from rows in memory, or from zero if there are none.
template <class L, int M, int P>
RAYFBNN_METHOD void load_tile(L (&tile)[M][P], const L* rows, long stride) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) tile[m][p] = rows ? rows[m * stride + p] : splat<L>(0);
}

template <class L, int P>
RAYFBNN_METHOD void store_packs(L* to, const L (&packs)[P]) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) to[p] = packs[p];
}

// A pass through a layer is a struct `Pass` with
//
//     network              the PackedNetwork
//     tile<M, P>(unit, p0) computes units unit .. unit + M - 1 at packs p0 .. p0 + P - 1
//     reads(link)          whether the tiles read the link's weights
//     n_sources(link)      the rows that the sums through this link go over
//
// The functions below cut units unit .. n - 1 of the layer into such tiles.

template <int P, class Pass>
inline void column(const Pass& pass, int unit, int n, long p0) {
    constexpr int M = tile_units(P);
    for (; unit + M <= n; unit += M) pass.template tile<M, P>(unit, p0);
    if constexpr (M > 4)
        if (unit + 4 <= n) pass.template tile<4, P>(unit, p0), unit += 4;
    if constexpr (M > 2)
        if (unit + 2 <= n) pass.template tile<2, P>(unit, p0), unit += 2;
    if (unit < n) pass.template tile<1, P>(unit, p0);
}

template <class Pass>
RAYFBNN_METHOD void column_of_width(const Pass& pass, long width, int unit, int n, long p0) {
    switch (width) {
        case 1: column<1>(pass, unit, n, p0); break;
        case 2: column<2>(pass, unit, n, p0); break;
        case 3: column<3>(pass, unit, n, p0); break;
        case 4: column<4>(pass, unit, n, p0); break;
        default: column<MOST_PACKS>(pass, unit, n, p0); break;
    }
}

// How many columns are worked through together. One, if the layer's weights stay in the second-level cache from one
// column to the next. Otherwise as many as there is room for in that cache.
template <class Pass>
inline long columns_in_run(const Pass& pass) {
    const auto& network = pass.network;
    typedef typename Lane<typename Pass::L>::Scalar S;
    long n_weights = 0, n_rows = 1;
    for (int k = 0; k < network.net.n_links; ++k) {
        const Link& link = network.net.links[k];
        if (!pass.reads(link)) continue;
        const long n = pass.n_sources(link);
        n_weights += long(link.n_units) * link.n_destinations;
        n_rows = n > n_rows ? n : n_rows;
    }
    if (n_weights * long(sizeof(S)) <= FACTOR_BYTES) return 1;
    const long n_columns = FACTOR_BYTES / (n_rows * network.columns.width * long(sizeof(typename Pass::L)));
    return n_columns > 1 ? n_columns : 1;
}

// Goes through the columns in runs. Within a run of several columns, one set of units is computed at each of them
// before the next set of units.
template <class Network, class Pass>
inline void all_columns_in_runs(Network& network, const Pass& pass, int unit, int n) {
    Columns& columns = network.columns;
    const long n_packs = network.stride, in_run = columns_in_run(pass);
    const int group = in_run > 1 ? SET : n - unit;
    for (long c = 0, next; (columns.run_start = columns.start_of(c)) < n_packs; c = next) {
        next = c + in_run;
        columns.run = (columns.start_of(next) < n_packs ? columns.start_of(next) : n_packs) - columns.run_start;
        for (int j = unit; j < n; j += group)
            for (long k = c; k < next && columns.start_of(k) < n_packs; ++k)
                column_of_width(
                    pass, columns.start_of(k + 1) - columns.start_of(k), j, j + group < n ? j + group : n,
                    columns.start_of(k));
    }
}

// All columns of the block, which are of equal width as nearly as possible.
template <class Network, class Pass>
inline void all_columns(Network& network, const Pass& pass, int unit, int n) {
    if (network.has_large) return all_columns_in_runs(network, pass, unit, n);
    for (long c = 0, p0 = 0, width; p0 < network.stride; ++c, p0 += width) {
        width = c < network.columns.n_wide ? network.columns.width : network.columns.width - 1;
        column_of_width(pass, width, unit, n, p0);
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
