// The backward pass through narrow layers: tanh units whose only link goes to one or two units.
//
// One pass over the cases makes the derivatives of a few units and every sum of the gradient that they take part in.
// The derivatives are not even stored if the link into the layer is part of the same pass.
#ifndef RAYFBNN_PACKED_NARROW_HPP
#define RAYFBNN_PACKED_NARROW_HPP

#include "packed_layout.hpp"

namespace RAYFBNN_NAMESPACE {

// Units in a register tile in which each unit has n sums.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int narrow_units(int n_sums) { return n_sums <= 5 ? 4 : 2; }
#else
constexpr int narrow_units(int n_sums) { return n_sums <= 5 ? 2 : 1; }
#endif

// Derivatives (eqs. 41, 42) of units i .. i + M - 1 of layer l, and their sums over cases (eqs. 50-57). The link out of
// the layer goes to D units, and the link into it comes from ROWS inputs. With ROWS = 0 other code handles the link in,
// and the derivatives are stored for it.
template <int M, int D, int ROWS, class S>
inline void narrow_tile(const PackedNetwork<S>& network, int l, int i) {
    typedef typename Pack<S>::Type L;
    const PackedLayer<S>& layer = network.layers[l];
    const PackedLink<S>& out = *layer.narrow_out;
    const long stride = network.stride;
    const S* w = network.q + out.start + long(i) * D;
    const L *above = out.to->slopes, *below = network.layers[0].sources, *v = layer.values + i * stride;
    L by_unit[M], by_out[M][D], by_in[M][ROWS + 1];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        by_unit[m] = splat<L>(0);
#pragma GCC unroll 16
        for (int d = 0; d < D; ++d) by_out[m][d] = splat<L>(0);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) by_in[m][r] = splat<L>(0);
    }
    for (long p = 0; p < stride; ++p) {
        L slope[M];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const L value = v[m * stride + p];
            if constexpr (D == 1) {  // the weight is the same for all cases and is multiplied in last
                const L product = value * above[p];
                by_out[m][0] += product;
                slope[m] = above[p] - product * value;
                if (ROWS == 0) slope[m] *= w[m];
            } else {
                slope[m] = (w[2 * m] * above[p] + w[2 * m + 1] * above[stride + p]) * slope_of<Lane<L>>(TANH, value);
                by_out[m][0] += value * above[p];
                by_out[m][1] += value * above[stride + p];
            }
            by_unit[m] += slope[m];
            if (ROWS == 0) layer.slopes[(i + m) * stride + p] = slope[m];
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) by_in[m][r] += below[r * stride + p] * slope[m];
    }
    L* to_out = network.sums + out.sums + long(i) * D;
    L* to_in = ROWS ? network.sums + layer.narrow_in->sums + i : nullptr;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const S factor = D == 1 && ROWS > 0 ? w[m] : S(1);
        if (layer.needs_unit_sums) network.sums[layer.unit_sums + i + m] += by_unit[m] * factor;
#pragma GCC unroll 16
        for (int d = 0; d < D; ++d) to_out[m * D + d] += by_out[m][d];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) to_in[long(r) * network.net.units[l] + m] += by_in[m][r] * factor;
    }
}

template <int D, int ROWS, class S>
inline void narrow_tiles(const PackedNetwork<S>& network, int l, int i, int end) {
    constexpr int M = narrow_units(1 + D + ROWS);
    for (; i + M <= end; i += M) narrow_tile<M, D, ROWS>(network, l, i);
    for (; i < end; ++i) narrow_tile<1, D, ROWS>(network, l, i);
}

template <int D, int ROWS, class S>
inline void narrow_rows(const PackedNetwork<S>& network, int l, int n_rows, int i, int end) {
    if (n_rows == ROWS)
        narrow_tiles<D, ROWS>(network, l, i, end);
    else if constexpr (ROWS > 0)
        narrow_rows<D, ROWS - 1>(network, l, n_rows, i, end);
}

// Units i .. end - 1 of a narrow layer at the block.
template <class S>
inline void narrow_layer(const PackedNetwork<S>& network, int l, int i, int end) {
    const PackedLayer<S>& layer = network.layers[l];
    const int n_rows = layer.narrow_in ? layer.narrow_in->n_units : 0;
    if (layer.narrow_out->n_destinations == 1)
        narrow_rows<1, MOST_INPUTS>(network, l, n_rows, i, end);
    else
        narrow_rows<2, MOST_INPUTS>(network, l, n_rows, i, end);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
