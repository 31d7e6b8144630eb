// The data's part of a chain's potential and gradient: the network at one block of cases after another.
#ifndef RAYFBNN_DATA_POTENTIAL_HPP
#define RAYFBNN_DATA_POTENTIAL_HPP

#include <string.h>

#include "packed_backward.hpp"
#include "packed_forward.hpp"
#include "packed_outputs.hpp"
#include "regression_dual.hpp"
#include "regression_primal.hpp"
#include "steps/batch.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct DataPotential {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const Network& net;
    PackedNetwork<S> network;
    PackedTargets<S> given;
    Owner<RegressionWorker<S>> regression;  // none if the network ends in outputs
    Batch<S> batch;
    bool is_laid_out = false;  // whether the first layer's sources and `given` have the current batch, all of it
    double terms = 0;  // the likelihood's terms, summed, or minus the regression's energy

    explicit DataPotential(const Job& job)
        : job(job), net(*job.network), network(job), given(job), regression(regression_of(job)), batch(job) {}

    static RegressionWorker<S>* regression_of(const Job& job) {
        if (job.regression.n_features == 0) return nullptr;
        if (job.regression.is_dual) return new DualRegression<S>(job.regression, job.largest_block);
        return new PrimalRegression<S>(job.regression, job.largest_block);
    }

    // (n_parameters,): the data's part of the gradient at the last position.
    const S* gradient() const { return network.data_gradient; }

    void begin_chain(int chain) {
        given.begin_chain(chain);
        if (regression) regression->begin_chain(chain);
        if (batch) batch.begin_chain(chain);
    }

    // Takes the cases of a step's batch, if the chains have batches.
    void begin_batch(long step) {
        if (!batch) return;
        batch.begin(step);
        is_laid_out = false;
        given.begin_batch(batch.n_cases);
    }

    // Evaluates `terms` and the gradient, each if it is wanted, at a position and the cases of one partition, or all
    // cases if the partition is -1.
    void evaluate(const S* position, int partition, bool wants_terms, bool wants_gradient) {
        network.q = position;
        network.wants_terms = wants_terms, network.wants_gradient = wants_gradient;
        terms = 0;
        pack_weights(network);
        if (wants_gradient) begin_gradient(network);
        L *y = given.targets, *w = given.weights;
        for (int k = 0; k < job.n_partitions; ++k) {
            if (partition < 0 || partition == k) add_partition(job.partitions[k], y, w);
            y += long(net.n_rows) * job.partitions[k].n_packs;
            if (w) w += long(net.n_targets) * job.partitions[k].n_packs;
        }
        if (wants_gradient) collect_gradient(network);
        if (wants_gradient && regression) collect_regression();
        // The inputs are the caller's, so nothing may go on pointing into them.
        if (!network.layers[0].own_sources) network.layers[0].sources = nullptr;
    }

    // y and w are the partition's targets and weights, w null without weights.
    void add_partition(const Partition& partition, L* y, L* w) {
        for (int b = 0; b < partition.n_blocks; ++b) {
            const int begin = partition.block_starts[b], end = partition.block_starts[b + 1];
            L* const block_y = y + long(net.n_rows) * begin;
            L* const block_w = w ? w + long(net.n_targets) * begin : nullptr;
            if (batch && !is_laid_out)
                batch.lay_out(begin, end - begin, network.layers[0].sources, block_y, block_w);
            set_inputs(partition, begin, end);
            forward(network);
            if (regression) {
                terms -= regress();
                if (network.wants_gradient) backward(network);
                continue;
            }
            const int first = begin * W;
            const int n_cases = batch ? batch.n_cases : partition.n_cases;
            const int n = (b + 1 < partition.n_blocks ? end * W : n_cases) - first;
            if (network.wants_terms) add_terms_of_block(partition.first + first, n, block_y, block_w);
            if (!network.wants_gradient) continue;
            slopes_of_outputs(network, given, block_y, block_w, n - (end - begin - 1) * W);
            backward(network);
        }
    }

    // Adds the terms of the block's n cases. `first` is the number of the first one among all cases.
    void add_terms_of_block(long first, int n, const L* y, const L* w) {
        if (batch && net.model == GAUSSIAN && !w) {
            terms += gaussian_terms(network, given, y, n);
            return;
        }
        const S *targets = reinterpret_cast<const S*>(y), *weights = reinterpret_cast<const S*>(w);
        if (batch)
            add_terms(network, given, targets, weights, network.stride * W, n, terms);
        else
            add_terms(
                network, given, given.given_targets + first, given.given_weights ? given.given_weights + first : nullptr,
                job.n_cases, n, terms);
    }

    // Makes the packs begin .. end - 1 of a partition the current block.
    void set_inputs(const Partition& partition, int begin, int end) {
        const long n_packs = end - begin;
        if (network.stride != n_packs) {
            network.stride = n_packs;
            network.columns.cut(n_packs, network.has_large ? MOST_LARGE : MOST_PACKS);
        }
        PackedLayer<S>& layer = network.layers[0];
        const L* inputs = static_cast<const L*>(partition.inputs);
        if (inputs) {
            inputs += long(net.units[0]) * begin;
        } else {
            if (!batch) lay_out_rows(partition, begin, n_packs);
            inputs = layer.sources;
        }
        is_laid_out = batch && partition.n_blocks == 1 && net.offsets[0] < 0;
        if (net.offsets[0] < 0) {
            layer.sources = const_cast<L*>(inputs);  // which nothing writes to
            return;
        }
        for (int i = 0; i < net.units[0]; ++i)
            for (long p = 0; p < n_packs; ++p)
                layer.sources[i * n_packs + p] = inputs[i * n_packs + p] + network.q[net.offsets[0] + i];
    }

    // Writes the inputs of a block to the sources of the first layer, in packs. This takes 1 % of a gradient of 10-100-1,
    // 5 % of 784-100-10, and 8 % of 100-8-1. Asking for rows ahead makes it no faster.
    void lay_out_rows(const Partition& partition, int begin, long n_packs) {
        const long first = long(begin) * W, n_left = partition.n_cases - first, n_places = n_packs * W;
        const long n = n_left < n_places ? n_left : n_places;
        S* place = reinterpret_cast<S*>(network.layers[0].sources);
        for (int i = 0; i < net.units[0]; ++i, place += n_places) {
            const S* row = static_cast<const S*>(job.rows) + long(i) * job.n_cases + partition.first + first;
            memcpy(place, row, n * sizeof(S));
            for (long c = n; c < n_places; ++c) place[c] = row[n - 1];
        }
    }

    // --- the regression of the targets on the values of units ---

    // The energy of the regression, and its slopes to `by_value` of the layers that have features.
    double regress() {
        set_features();
        const S* moved = network.q + net.n_parameters - job.regression.n_moved;
        const double energy = regression->evaluate(moved, network.wants_terms, network.wants_gradient);
        if (network.wants_gradient) set_slopes();
        return energy;
    }

    void set_features() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            const bool changes = feature.layer > 0 || net.offsets[0] >= 0;
            if (feature.row < 0) {
                if (regression->is_new_chain) regression->set_ones(k);
            } else if (changes || regression->is_new_chain) {
                regression->set_feature(k, network.layers[feature.layer].sources + feature.row * network.stride);
            }
        }
        regression->is_new_chain = false;
    }

    void set_slopes() {
        const Feature* features = job.regression.features;
        for (int k = 0, n; k < job.regression.n_features; k += n) {
            const Feature& first = features[k];
            n = 1;  // consecutive units of one layer
            while (k + n < job.regression.n_features && features[k + n].layer == first.layer &&
                   features[k + n].row == first.row + n)
                ++n;
            if (first.layer > 0 && first.row >= 0)
                regression->slopes(k, n, network.layers[first.layer].by_value + first.row * network.stride);
        }
    }

    // Derivatives by the inputs' offsets through features that are inputs, and by the regression's own coordinates.
    void collect_regression() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            if (feature.layer == 0 && feature.row >= 0 && net.offsets[0] >= 0)
                network.data_gradient[net.offsets[0] + feature.row] += regression->sum_of_slopes(k);
        }
        S* moved = network.data_gradient + net.n_parameters - job.regression.n_moved;
        for (int k = 0; k < job.regression.n_moved; ++k) moved[k] = S(regression->moved_gradient[k]);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
