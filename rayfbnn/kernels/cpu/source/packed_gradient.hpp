// Sums over cases: the data's part of the gradient by weights, biases and offsets (eqs. 43, 50-57).
//
// The gradient of a weight is the sum of a unit's value times another unit's derivative. For most links these sums are
// packs that last until all cases are done. The packs of large links would leave the cache between two blocks, so their
// places are added up after each block.
#ifndef RAYFBNN_PACKED_GRADIENT_HPP
#define RAYFBNN_PACKED_GRADIENT_HPP

#include <string.h>

#include "packed_layout.hpp"

namespace RAYFBNN_NAMESPACE {

// Rows of a register tile of the gradient with n columns, and rows and columns of one of a large link's gradient.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int most_rows(int) { return 5; }
constexpr int FOLDED_ROWS = 6, FOLDED_COLUMNS = 4;
#else
constexpr int most_rows(int n_units) { return n_units == 4 ? 2 : n_units == 2 ? 4 : 5; }
constexpr int FOLDED_ROWS = 4, FOLDED_COLUMNS = 3;
#endif

// Sets the sums to zero, and the gradient of large links, which is added to directly.
template <class S>
inline void begin_gradient(const PackedNetwork<S>& network) {
    memset(static_cast<void*>(network.sums), 0, network.n_sums * sizeof(*network.sums));
    for (int k = 0; k < network.net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        const long size = long(link.n_units) * link.n_destinations;
        if (link.is_large) memset(static_cast<void*>(network.data_gradient + link.start), 0, size * sizeof(S));
    }
}

// --- links that are not large ---

template <int ROWS, int UNITS, class S>
inline void product_tile(const PackedNetwork<S>& network, const PackedLink<S>& link, int i, int j) {
    add_products_to<ROWS, UNITS>(
        network.sums + link.sums + long(i) * link.n_destinations + j, link.n_destinations, int(network.stride),
        link.from->sources + i * network.stride, link.to->slopes + j * network.stride, network.stride);
}

// Rows i .. i_end - 1 of the gradient of the weights into UNITS units from j on, in tiles of nearly equal height.
template <int UNITS, class S>
inline void product_column(const PackedNetwork<S>& network, const PackedLink<S>& link, int i, int i_end, int j) {
    constexpr int MOST = most_rows(UNITS);
    const int n = i_end - i, n_tiles = (n + MOST - 1) / MOST;
    for (int t = 0; t < n_tiles; ++t) {
        const int begin = i + n * t / n_tiles;
        switch (i + n * (t + 1) / n_tiles - begin) {
            case 1: product_tile<1, UNITS>(network, link, begin, j); break;
            case 2: product_tile<2, UNITS>(network, link, begin, j); break;
            case 3: product_tile<MOST < 3 ? MOST : 3, UNITS>(network, link, begin, j); break;
            case 4: product_tile<MOST < 4 ? MOST : 4, UNITS>(network, link, begin, j); break;
            default: product_tile<MOST, UNITS>(network, link, begin, j); break;
        }
    }
}

// Adds the block's share of the gradient of the weights from units i .. i_end - 1 into units j .. j_end - 1.
template <class S>
inline void add_products_of(
    const PackedNetwork<S>& network, const PackedLink<S>& link, int i, int i_end, int j, int j_end) {
    for (; j + 4 <= j_end; j += 4) product_column<4>(network, link, i, i_end, j);
    if (j + 2 <= j_end) product_column<2>(network, link, i, i_end, j), j += 2;
    if (j < j_end) product_column<1>(network, link, i, i_end, j);
}

// --- large links ---

// The block's share of the gradient of a large link's weights, rows i .. i + ROWS - 1 and columns j .. j + UNITS - 1.
// Meanwhile one row of the next tile's sources is fetched to the second-level cache, the row with this tile's number.
template <int ROWS, int UNITS, class S>
RAYFBNN_METHOD void folded_tile(const PackedNetwork<S>& network, const PackedLink<S>& link, int i, int j, int number) {
    typedef typename Pack<S>::Type L;
    constexpr int W = Lane<L>::width, N = ROWS * UNITS, PADDED = (N + W - 1) / W * W;
    const long stride = network.stride;
    L parts[PADDED] = {};
    const L* here = link.from->sources + i * stride;
    const bool fetches = number < ROWS && i + ROWS + number < link.n_units;
    add_products_to<ROWS, UNITS, L, true>(
        parts, UNITS, int(stride), here, link.to->slopes + j * stride, stride,
        here + (fetches ? (ROWS + number) * stride : 0));
    S products[PADDED];
    for (int k = 0; k < PADDED; k += W) {
        const L total = sums_of<W>(parts + k);
        memcpy(products + k, &total, sizeof total);
    }
    S* to = network.data_gradient + link.start + long(i) * link.n_destinations + j;
    for (int r = 0; r < ROWS; ++r, to += link.n_destinations)
        for (int u = 0; u < UNITS; ++u) to[u] += products[r * UNITS + u];
}

template <int ROWS, class S>
inline void folded_rows(
    const PackedNetwork<S>& network, const PackedLink<S>& link, int i, int n_rows, int j, int j_end) {
    if constexpr (ROWS > 1)
        if (n_rows < ROWS) return folded_rows<ROWS - 1>(network, link, i, n_rows, j, j_end);
    int number = 0;
    for (; j + FOLDED_COLUMNS <= j_end; j += FOLDED_COLUMNS)
        folded_tile<ROWS, FOLDED_COLUMNS>(network, link, i, j, number++);
    if (j + 2 <= j_end) folded_tile<ROWS, 2>(network, link, i, j, number++), j += 2;
    if (j < j_end) folded_tile<ROWS, 1>(network, link, i, j, number);
}

// Adds the block's share of the gradient of a large link, in tiles of nearly equal height. Only as many columns are
// taken at a time as have their derivatives in the second-level cache.
template <class S>
inline void add_folded_products_of(const PackedNetwork<S>& network, const PackedLink<S>& link) {
    const long n = link.n_units, n_tiles = (n + FOLDED_ROWS - 1) / FOLDED_ROWS;
    const long row_bytes = network.stride * long(sizeof(typename Pack<S>::Type));
    const long cached = FACTOR_BYTES / row_bytes / FOLDED_COLUMNS * FOLDED_COLUMNS;
    const int n_columns = cached > FOLDED_COLUMNS ? int(cached) : FOLDED_COLUMNS;
    for (int j = 0; j < link.n_destinations; j += n_columns)
        for (long t = 0; t < n_tiles; ++t) {
            const int begin = int(n * t / n_tiles), end = int(n * (t + 1) / n_tiles);
            const int j_end = j + n_columns < link.n_destinations ? j + n_columns : link.n_destinations;
            folded_rows<FOLDED_ROWS>(network, link, begin, end - begin, j, j_end);
        }
}

// --- all cases ---

// Adds up the places of all sums and puts them where the gradient has them.
template <class S>
inline void collect_gradient(const PackedNetwork<S>& network) {
    typedef typename Pack<S>::Type L;
    constexpr int W = Lane<L>::width;
    const Network& net = network.net;
    S *const totals = network.totals, *const gradient = network.data_gradient;
    for (long k = 0; k < network.n_sums; k += W) {
        const L total = sums_of<W>(network.sums + k);
        memcpy(totals + k, &total, sizeof total);
    }
    if (network.is_in_order) return;
    S* input_offsets = net.offsets[0] >= 0 ? gradient + net.offsets[0] : nullptr;
    for (int i = 0; input_offsets && i < net.units[0]; ++i) input_offsets[i] = 0;
    for (int k = 0; k < net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        const int n = link.n_destinations;
        const long size = long(link.n_units) * n;
        if (!link.is_large) memcpy(gradient + link.start, totals + link.sums, size * sizeof(S));
        const S* by_unit = totals + link.to->unit_sums;
        if (link.has_biases) memcpy(gradient + link.start + size, by_unit, n * sizeof(S));
        if (input_offsets && link.source == 0)  // eqs. 43, 53: all cases share the weights
            for (int i = 0; i < link.n_units; ++i)
                for (int j = 0; j < n; ++j) input_offsets[i] += network.q[link.start + long(i) * n + j] * by_unit[j];
    }
    for (int l = 1; l < network.last; ++l)
        if (net.offsets[l] >= 0)
            memcpy(gradient + net.offsets[l], totals + network.layers[l].offset_sums, net.units[l] * sizeof(S));
}

}  // namespace RAYFBNN_NAMESPACE
#endif
