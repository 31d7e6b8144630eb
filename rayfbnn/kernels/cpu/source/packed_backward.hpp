// The backward pass: the derivatives of the potential by all hidden units (eqs. 41, 42), and the sums of the gradient
// that are made of them.
#ifndef RAYFBNN_PACKED_BACKWARD_HPP
#define RAYFBNN_PACKED_BACKWARD_HPP

#include "packed_blas.hpp"
#include "packed_gradient.hpp"
#include "packed_narrow.hpp"
#include "packed_tiles.hpp"

namespace RAYFBNN_NAMESPACE {

constexpr int GROUP = 8;  // hidden units whose derivatives are computed together and used at once

// A link out of the units from number i on, at packs from p0 on.
template <class S>
struct LinkBackward {
    typedef typename Pack<S>::Type L;
    const PackedNetwork<S>& network;
    const PackedLink<S>& link;
    int i;
    long p0;

    template <int M, int P>
    RAYFBNN_METHOD void add_products(L (&derivative)[M][P]) const {
        const int n = link.n_destinations;
        multiply_add(
            derivative, n, WeightRows<L>{network.q + link.start + long(i) * n, 1, n},
            ValueRows<L>{link.to->slopes + p0, network.stride});
    }
};

// Units from number i on of a hidden layer at packs from p0 on. This is a Tile as shared/network.hpp describes it.
template <class S>
struct TileBackward {
    typedef typename Pack<S>::Type L;
    const PackedNetwork<S>& network;
    const PackedLayer<S>& rows;
    int layer, i;
    long p0;

    template <int M, int P>
    RAYFBNN_METHOD void begin(L (&derivative)[M][P]) const {
        load_tile(derivative, rows.by_value ? rows.by_value + place(0) : nullptr, network.stride);
    }
    template <class F>
    RAYFBNN_METHOD void each_link(const F& f) const {
        for (int k = 0; k < network.net.n_links; ++k) {
            const PackedLink<S>& link = network.links[k];
            if (link.source == layer && !link.uses_blas && link.n_units > 0) f(LinkBackward<S>{network, link, i, p0});
        }
    }
    template <class F>
    RAYFBNN_METHOD void with_activation(const F& f) const {
        switch (network.net.activations[layer]) {
            case TANH: f(Number<TANH>()); break;
            case SIGMOID: f(Number<SIGMOID>()); break;
            case RELU: f(Number<RELU>()); break;
            case IDENTITY: f(Number<IDENTITY>()); break;
            default: f(Number<SIN>()); break;  // all activations that keep their slopes are alike here
        }
    }
    RAYFBNN_METHOD bool has(int) const { return true; }
    RAYFBNN_METHOD bool has_offsets() const { return network.net.offsets[layer] >= 0; }
    template <int M, int P>
    RAYFBNN_METHOD void keep_by_values(const L (&derivative)[M][P]) const {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) network.sums[rows.offset_sums + i + m] += derivative[m][p];
    }
    template <int A, int P>
    RAYFBNN_METHOD void load_slopes(Number<A>, int m, L (&slope)[P]) const {
        const L* v = rows.values + place(m);
        const L* kept = rows.slopes + place(m);
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) slope[p] = has_kept_slope(A) ? kept[p] : slope_of<Lane<L>>(A, v[p]);
    }
    template <int P>
    RAYFBNN_METHOD void keep(int m, const L (&derivative)[P]) const {
        store_packs(rows.slopes + place(m), derivative);
        L total = splat<L>(0);
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) total += derivative[p];
        if (rows.needs_unit_sums) network.sums[rows.unit_sums + i + m] += total;
    }
    RAYFBNN_METHOD long place(int m) const { return (i + m) * network.stride + p0; }
};

// The backward pass through one layer, for packed_tiles.hpp.
template <class S>
struct PassBackward {
    typedef typename Pack<S>::Type L;
    const PackedNetwork<S>& network;
    const PackedLayer<S>& rows;
    int layer;

    template <int M, int P>
    void tile(int unit, long p0) const {
        backward_tile<Lane<L>, M, P>(TileBackward<S>{network, rows, layer, unit, p0});
    }
    bool reads(const Link& link) const { return link.source == layer; }
    long n_sources(const Link& link) const { return link.n_destinations; }
};

// The sums in which no hidden unit takes part: biases of the outputs, and weights from inputs to outputs.
template <class S>
inline void sum_outputs(const PackedNetwork<S>& network) {
    typedef typename Pack<S>::Type L;
    const Network& net = network.net;
    const PackedLayer<S>& outputs = network.layers[network.last];
    for (int k = 0; k < net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        if (link.source == 0 && link.destination == network.last && !link.is_large)
            add_products_of(network, link, 0, link.n_units, 0, link.n_destinations);
    }
    const L* row = outputs.slopes;
    for (int j = 0; outputs.needs_unit_sums && j < net.units[network.last]; ++j, row += network.stride) {
        L total = network.sums[outputs.unit_sums + j];
        for (long p = 0; p < network.stride; ++p) total += row[p];
        network.sums[outputs.unit_sums + j] = total;
    }
}

// Units unit .. end - 1 of a hidden layer, and the links that are summed while their values and derivatives are in the
// first-level cache.
template <class S>
inline void backward_units(PackedNetwork<S>& network, int l, int unit, int end) {
    const Network& net = network.net;
    const PackedLink<S>* narrow_out = network.layers[l].narrow_out;
    if (narrow_out)
        narrow_layer(network, l, unit, end);
    else
        all_columns(network, PassBackward<S>{network, network.layers[l], l}, unit, end);
    for (int k = 0; k < net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        if (link.is_large || link.n_units == 0) continue;
        if (link.source == l && &link != narrow_out) add_products_of(network, link, unit, end, 0, link.n_destinations);
        if (link.source == 0 && link.destination == l) add_products_of(network, link, 0, link.n_units, unit, end);
    }
}

inline bool leaves_by_large(const Network& net, int l) {
    for (int k = 0; k < net.n_links; ++k)
        if (net.links[k].source == l && net.links[k].is_large) return true;
    return false;
}

// Goes from the derivatives by the outputs' summed inputs, in their slopes, to those of all hidden units, and adds the
// block's share of every sum of the gradient.
template <class S>
inline void backward(PackedNetwork<S>& network) {
    const Network& net = network.net;
    sum_outputs(network);
    for (int l = network.last - 1; l > 0; --l) {
        const PackedLayer<S>& layer = network.layers[l];
        if (layer.narrow_in) {
            narrow_layer(network, l, 0, net.units[l]);
            continue;
        }
        if (layer.by_value) begin_backward_by_blas(network, l);
        const int group = leaves_by_large(net, l) ? net.units[l] : GROUP;
        for (int unit = 0; unit < net.units[l]; unit += group)
            backward_units(network, l, unit, unit + group < net.units[l] ? unit + group : net.units[l]);
    }
    for (int k = 0; k < net.n_links; ++k)
        if (network.links[k].uses_blas)
            add_products_by_blas(network, network.links[k]);
        else if (network.links[k].is_large)
            add_folded_products_of(network, network.links[k]);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
