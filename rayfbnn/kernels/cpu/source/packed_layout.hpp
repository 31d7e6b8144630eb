// The arrays that one chain's pass through a network works in, and their layout.
//
// The working set of a chain stays in cache: the values and derivatives of one block of cases at a time, and the
// gradient's sums, one pack for each parameter. The places of these packs are added up once for each gradient.
//
// Functions of the pass are declared inline throughout: GCC then inlines larger ones, without which networks of a few
// units were 5 % slower.
#ifndef RAYFBNN_PACKED_LAYOUT_HPP
#define RAYFBNN_PACKED_LAYOUT_HPP

#include "memory.hpp"
#include "rows.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Feature;
using rayfbnn::Job;
using rayfbnn::Link;
using rayfbnn::Network;
using rayfbnn::Partition;

constexpr int MOST_INPUTS = 10;  // inputs of a narrow layer whose gradient sums stay in registers
constexpr int SET = 8;           // destinations whose weights lie together in the copy of a large link

template <class S>
struct PackedLink;

// The arrays of one layer have one row for each unit. A row is the packs of the current block of cases.
template <class S>
struct PackedLayer {
    typedef typename Pack<S>::Type L;

    L* values = nullptr;   // the units' values
    L* sources = nullptr;  // the values plus offsets, which later layers read; the same rows if there are no offsets
    // The derivatives of the potential by the units' summed inputs. Until the backward pass replaces them, the slopes
    // of the activation if it keeps them. For the outputs, the same rows as `values`.
    L* slopes = nullptr;
    Buffer<L> own_values, own_sources, own_slopes;
    // The derivatives by the units' values so far, where a regression or BLAS computes a part of them. Otherwise null.
    Buffer<L> by_value;

    long unit_sums = -1;   // where the units' sums of derivatives begin in PackedNetwork::sums
    long offset_sums = 0;  // where the offsets' gradient begins there
    bool needs_unit_sums = false;
    bool begins_in_values = false;  // BLAS has put a part of the summed inputs into `values`

    // A narrow layer's link out, and its link in if one pass can use both. Otherwise null. See packed_narrow.hpp.
    const PackedLink<S>*narrow_out = nullptr, *narrow_in = nullptr;
};

template <class S>
struct PackedLink : Link {
    const PackedLayer<S>*from = nullptr, *to = nullptr;
    long sums = 0;  // where the weights' gradient begins in PackedNetwork::sums
    // The weights of a large link by sets of destinations, (n_sets, n_units, SET). Null for other links.
    Buffer<S> weights;
};

// The columns of packs that the current block is cut into: the first n_wide ones have `width` packs, the others one
// less.
struct Columns {
    long width = 0, n_wide = 0;
    // Where large links are worked through in runs of columns: the packs of the current run and its first pack.
    long run = 0, run_start = 0;

    void cut(long n_packs, int most) {
        const long n_columns = (n_packs + most - 1) / most;
        width = (n_packs + n_columns - 1) / n_columns;
        n_wide = n_packs - n_columns * (width - 1);
    }
    long start_of(long column) const { return column * width - (column > n_wide ? column - n_wide : 0); }
};

template <class S>
struct PackedNetwork {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const Network& net;
    const int last;          // number of the outputs' layer
    bool has_large = false;  // whether there is a large link
    Objects<PackedLayer<S>> layers;
    Objects<PackedLink<S>> links;

    long n_sums = 0;
    Buffer<L> sums;    // (n_sums,): the gradient's sums over cases, a pack each
    Buffer<S> totals;  // (n_sums,): the sums over the places of these packs
    bool is_in_order;  // whether `totals` is the gradient as it stands, parameter by parameter
    Buffer<S> own_gradient;
    S* data_gradient;  // (n_parameters,): the data's part of the gradient

    // The current block of cases, and what is wanted of it.
    const S* q = nullptr;  // the position
    long stride = 0;       // packs of the block, and so of a row
    Columns columns;
    bool wants_terms = false, wants_gradient = false;

    explicit PackedNetwork(const Job& job)
        : job(job),
          net(*job.network),
          last(job.network->n_layers - 1),
          layers(job.network->n_layers),
          links(job.network->n_links) {
        for (int k = 0; k < net.n_links; ++k) {
            static_cast<Link&>(links[k]) = net.links[k];
            links[k].from = &layers[links[k].source], links[k].to = &layers[links[k].destination];
        }
        allocate_layers();
        const long n_used = place_offset_sums(place_link_sums());
        for (int l = 1; l < last; ++l) find_narrow(l);
        n_sums = (n_used + W - 1) / W * W;
        sums = Buffer<L>(n_sums), totals = Buffer<S>(n_sums);
        if (!is_in_order) own_gradient = Buffer<S>(net.n_parameters);
        data_gradient = is_in_order ? totals : own_gradient;
    }

    // The hidden layers' and outputs' rows of a block that is as long as any.
    void allocate_layers() {
        for (int l = 1; l <= last; ++l) {
            PackedLayer<S>& layer = layers[l];
            const long size = long(net.units[l]) * job.largest_block;
            layer.own_values = Buffer<L>(size);
            layer.values = layer.sources = layer.slopes = layer.own_values;
            if (l == last) continue;
            layer.own_slopes = Buffer<L>(size);
            layer.slopes = layer.own_slopes;
            if (net.offsets[l] < 0) continue;
            layer.own_sources = Buffer<L>(size);
            layer.sources = layer.own_sources;
        }
        if (net.offsets[0] >= 0 || job.rows || job.shuffles) {
            layers[0].own_sources = Buffer<L>(long(net.units[0]) * job.largest_block);
            layers[0].sources = layers[0].own_sources;
        }
        for (int k = 0; k < job.regression.n_features; ++k)
            if (job.regression.features[k].row >= 0) begin_by_value(job.regression.features[k].layer);
        for (int k = 0; k < net.n_links; ++k)
            if (net.links[k].uses_blas) begin_by_value(net.links[k].source);
    }
    void begin_by_value(int l) {
        if (l > 0 && !layers[l].by_value) layers[l].by_value = Buffer<L>(long(net.units[l]) * job.largest_block);
    }

    // Gives the sums of all links their places, in the order of the parameters. The order is complete if there are no
    // parameters but those of links, and no link is large. Returns how many places are used.
    long place_link_sums() {
        long place = 0;
        is_in_order = net.n_links > 0;
        for (int k = 0; k < net.n_links; ++k) {
            PackedLink<S>& link = links[k];
            PackedLayer<S>& destination = layers[link.destination];
            if (link.has_biases || (link.source == 0 && net.offsets[0] >= 0)) destination.needs_unit_sums = true;
            link.sums = place;
            has_large |= link.is_large;
            destination.begins_in_values |= link.uses_blas;
            const long n_sets = (link.n_destinations + SET - 1) / SET;
            if (link.is_large && !link.uses_blas) link.weights = Buffer<S>(n_sets * SET * link.n_units);
            if (!link.is_large) place += long(link.n_units) * link.n_destinations;
            if (link.has_biases && destination.unit_sums < 0) {
                destination.unit_sums = place;
                place += link.n_destinations;
            }
            const long stop = k + 1 < net.n_links ? net.links[k + 1].start : net.n_parameters;
            is_in_order &= !link.is_large && link.sums == link.start && place == stop;
        }
        return place;
    }

    long place_offset_sums(long place) {
        for (int l = 1; l <= last; ++l) {
            PackedLayer<S>& layer = layers[l];
            if (layer.needs_unit_sums && layer.unit_sums < 0) {
                layer.unit_sums = place;
                place += net.units[l];
            }
            layer.offset_sums = place;
            if (l < last && net.offsets[l] >= 0) place += net.units[l];
        }
        return place;
    }

    // A hidden layer is narrow if its units are tanh units and one link leaves it, to one or two units. The pass
    // through it includes its link in if that is the only one, and comes from a few inputs.
    void find_narrow(int l) {
        if (net.activations[l] != TANH || net.offsets[l] >= 0 || layers[l].by_value) return;
        int n_in = 0, n_out = 0;
        const PackedLink<S>*in = nullptr, *out = nullptr;
        for (int k = 0; k < net.n_links; ++k) {
            const PackedLink<S>& link = links[k];
            if (link.source == l) out = &link, ++n_out;
            if (link.destination == l) in = &link, ++n_in;
        }
        if (n_out != 1 || out->is_large || out->n_units == 0 || out->n_destinations > 2) return;
        layers[l].narrow_out = out;
        if (n_in == 1 && in->source == 0 && !in->is_large && in->n_units >= 1 && in->n_units <= MOST_INPUTS)
            layers[l].narrow_in = in;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
