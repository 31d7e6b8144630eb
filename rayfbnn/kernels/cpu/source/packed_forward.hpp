// The forward pass: the values of all units at a block of cases (eqs. 1-3).
#ifndef RAYFBNN_PACKED_FORWARD_HPP
#define RAYFBNN_PACKED_FORWARD_HPP

#include <string.h>

#include "packed_blas.hpp"
#include "packed_tiles.hpp"

namespace RAYFBNN_NAMESPACE {

// A link into the units from number j on, at packs from p0 on.
template <class S>
struct LinkForward {
    typedef typename Pack<S>::Type L;
    const PackedNetwork<S>& network;
    const PackedLink<S>& link;
    int j;
    long p0;

    template <int M, int P>
    RAYFBNN_METHOD void add_products(L (&u)[M][P]) const {
        const L* here = link.from->sources + p0;
        if (link.weights)
            add_packed(u, here);
        else if (!link.uses_blas)
            multiply_add(
                u, link.n_units, WeightRows<L>{weights(), link.n_destinations, 1}, ValueRows<L>{here, network.stride});
    }
    // Adds the products with the copied weights of a large link, for M units of one set. The inputs may have left the
    // caches since the last gradient, so the first tiles of a run of columns fetch those of the next run, which may
    // belong to the next block.
    template <int M, int P>
    RAYFBNN_METHOD void add_packed(L (&u)[M][P], const L* here) const {
        const Columns& columns = network.columns;
        const long stride = network.stride;
        const long ahead = p0 + columns.run < stride ? columns.run : link.n_units * stride - columns.run_start;
        const bool fetches = link.source == 0 && j / M < P;
        const WeightRows<L> rows = {link.weights + long(j / SET) * SET * link.n_units + j % SET, SET, 1};
        multiply_add(u, link.n_units, rows, ValueRows<L, true>{here, stride, here + (fetches ? ahead + j / M : 0)});
    }
    RAYFBNN_METHOD bool has_biases() const { return link.has_biases; }
    RAYFBNN_METHOD L bias(int m) const { return splat<L>(weights()[long(link.n_units) * link.n_destinations + m]); }
    RAYFBNN_METHOD const S* weights() const { return network.q + link.start + j; }
};

// Units from number j on of a layer at packs from p0 on, with links first_link .. end_link - 1 into them. This is a
// Tile as shared/network.hpp describes it.
template <class S>
struct TileForward {
    typedef typename Pack<S>::Type L;
    static constexpr bool WANTS_SLOPES = false;  // only the slopes that an activation keeps are wanted
    const PackedNetwork<S>& network;
    const PackedLayer<S>& rows;
    int layer, first_link, end_link, j;
    long p0;

    template <int M, int P>
    RAYFBNN_METHOD void begin(L (&u)[M][P]) const {
        load_tile(u, rows.begins_in_values ? rows.values + place(0) : nullptr, network.stride);
    }
    template <class F>
    RAYFBNN_METHOD void each_link(const F& f) const {
        for (int k = first_link; k < end_link; ++k)
            f(LinkForward<S>{network, network.links[k], j, p0});
    }
    template <class F>
    RAYFBNN_METHOD void with_activation(const F& f) const {
        switch (layer < network.last ? network.net.activations[layer] : int(IDENTITY)) {
            case TANH: f(Number<TANH>()); break;
            case SIGMOID: f(Number<SIGMOID>()); break;
            case RELU: f(Number<RELU>()); break;
            case SOFTPLUS: f(Number<SOFTPLUS>()); break;
            case SOFTPLUS0: f(Number<SOFTPLUS0>()); break;
            case SIN: f(Number<SIN>()); break;
            default: f(Number<IDENTITY>()); break;
        }
    }
    RAYFBNN_METHOD bool has(int) const { return true; }
    RAYFBNN_METHOD bool has_offsets() const { return layer < network.last && network.net.offsets[layer] >= 0; }
    RAYFBNN_METHOD L offset(int m) const { return splat<L>(network.q[network.net.offsets[layer] + j + m]); }
    template <int A, int P>
    RAYFBNN_METHOD void keep(Number<A>, int m, const L (&v)[P], const L (&seen)[P], const L (&slope)[P]) const {
        store_packs(rows.values + place(m), v);
        if (has_offsets()) store_packs(rows.sources + place(m), seen);
        if (has_kept_slope(A)) store_packs(rows.slopes + place(m), slope);
    }
    RAYFBNN_METHOD long place(int m) const { return (j + m) * network.stride + p0; }
};

// The forward pass through one layer, for packed_tiles.hpp.
template <class S>
struct PassForward {
    typedef typename Pack<S>::Type L;
    const PackedNetwork<S>& network;
    const PackedLayer<S>& rows;
    int layer, first_link, end_link;

    template <int M, int P>
    void tile(int unit, long p0) const {
        forward_tile<Lane<L>, M, P>(TileForward<S>{network, rows, layer, first_link, end_link, unit, p0});
    }
    bool reads(const Link& link) const { return link.destination == layer; }
    long n_sources(const Link& link) const { return link.n_units; }
};

template <class S>
inline void forward(PackedNetwork<S>& network) {
    int first = 0;
    for (int l = 1; l <= network.last; ++l) {
        int end = first;
        while (end < network.net.n_links && network.net.links[end].destination == l) ++end;
        if (network.layers[l].begins_in_values) begin_forward_by_blas(network, l, first, end);
        all_columns(network, PassForward<S>{network, network.layers[l], l, first, end}, 0, network.net.units[l]);
        first = end;
    }
}

// Copies the weights of large links at the current position, set by set.
template <class S>
inline void pack_weights(const PackedNetwork<S>& network) {
    for (int k = 0; k < network.net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        const int n = link.n_destinations;
        S* to = link.weights;
        for (int j = 0; to && j < n; j += SET)
            for (int i = 0; i < link.n_units; ++i, to += SET) {
                const S* from = network.q + link.start + long(i) * n + j;
                if (j + SET <= n)
                    memcpy(to, from, SET * sizeof(S));
                else
                    memcpy(to, from, (n - j) * sizeof(S));
            }
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
