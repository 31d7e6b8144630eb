// The data's part of a chain's potential and gradient: the network at one block of cases after another.
#ifndef RAYFBNN_DATA_POTENTIAL_HPP
#define RAYFBNN_DATA_POTENTIAL_HPP

#include <string.h>

#include "packed_backward.hpp"
#include "packed_forward.hpp"
#include "packed_outputs.hpp"
#include "regression_dual.hpp"
#include "regression_primal.hpp"

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
    // The cases of the current batch, and their number; null if all chains have the same cases.
    const int* cases = nullptr;
    int n_in_batch = 0;
    bool is_laid_out = false;  // whether the first layer's sources and `given` have the current batch, all of it
    const S* records = nullptr;  // the current chain's
    double terms = 0;  // the likelihood's terms, summed, or minus the regression's energy

    explicit DataPotential(const Job& job)
        : job(job), net(*job.network), network(job), given(job), regression(regression_of(job)) {}

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
        if (job.orders) records = static_cast<const S*>(job.records) + chain * job.records_step;
    }

    // Takes the cases of a step's batch, if the chains have batches. Batches of a pass differ by one case at most.
    void begin_batch(int chain, long step) {
        if (!job.orders) return;
        const long number = job.first_batch + step, pass = number / job.n_batches, piece = number % job.n_batches;
        const long n = job.n_all, begin = n * piece / job.n_batches, end = n * (piece + 1) / job.n_batches;
        cases = job.orders + (pass * job.n_chains + chain) * n + begin;
        n_in_batch = int(end - begin);
        is_laid_out = false;
        given.begin_batch(n_in_batch);
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
            if (cases && !is_laid_out) lay_out_cases(begin, end - begin, block_y, block_w);
            set_inputs(partition, begin, end);
            forward(network);
            if (regression) {
                terms -= regress();
                if (network.wants_gradient) backward(network);
                continue;
            }
            const int first = begin * W;
            const int n_cases = cases ? n_in_batch : partition.n_cases;
            const int n = (b + 1 < partition.n_blocks ? end * W : n_cases) - first;
            if (network.wants_terms) add_terms_of_block(partition.first + first, n, block_y, block_w);
            if (!network.wants_gradient) continue;
            slopes_of_outputs(network, given, block_y, block_w, n - (end - begin - 1) * W);
            backward(network);
        }
    }

    // Adds the terms of the block's n cases, of which the first has a number among all cases.
    void add_terms_of_block(long first, int n, const L* y, const L* w) {
        const S *targets = reinterpret_cast<const S*>(y), *weights = reinterpret_cast<const S*>(w);
        if (cases)
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
            if (!cases) lay_out_rows(partition, begin, n_packs);
            inputs = layer.sources;
        }
        is_laid_out = cases && partition.n_blocks == 1 && net.offsets[0] < 0;
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

    // Does the same with the cases of a batch, and writes a block's targets and weights to y and w. Places behind the last
    // case have copies of it.
    void lay_out_cases(int begin, long n_packs, L* y, L* w) {
        const long n_inputs = net.units[0], n_wide = n_inputs / W * W;
        if (n_wide > 0) lay_out_wide(begin, n_packs, n_wide);
        constexpr int E = 16 / sizeof(S);  // columns at a time
        const long n_columns = n_inputs + net.n_rows + (w ? net.n_targets : 0);
        for (long column = n_wide; column < n_columns; column += E) {
            L* to[E];  // rows of packs; columns that only fill up 16 bytes have none
            for (int e = 0; e < E; ++e) {
                const long place = column + e, of_target = place - n_inputs, of_weight = of_target - net.n_rows;
                to[e] = place >= n_columns ? nullptr  // without weights, w is null and has no places
                        : of_target < 0    ? network.layers[0].sources + place * n_packs
                        : of_weight < 0    ? y + of_target * n_packs
                                           : w + of_weight * n_packs;
            }
            for (long p = 0; p < n_packs; ++p) {
                const S* of[W];
                find_cases(begin + p, column, of);
                L rows[E];
                for (int e = 0; e < E; ++e) {
                    const S* pieces[W / E];
                    for (int k = 0; k < W / E; ++k) pieces[k] = of[E * k + e];
                    rows[e] = joined<L>(pieces);
                }
                turn<E>(rows);
                for (int e = 0; e < E; ++e)
                    if (to[e]) to[e][p] = rows[e];
            }
        }
    }

    // Lays out the first inputs, whole packs of them, a pack of cases at a time, while those of the next pack are asked
    // for. They are brought into the second-level cache, as the first is too small for both packs.
    void lay_out_wide(int begin, long n_packs, long n_wide) {
        L* place = network.layers[0].sources;
        const S *of[W], *of_next[W];
        find_cases(begin, 0, of);
        for (long p = 0; p < n_packs; ++p, ++place) {
            find_cases(begin + p + 1, 0, of_next);
            for (long i = 0; i < n_wide; i += W) {
                L rows[W];
                for (int k = 0; k < W; ++k) {
                    memcpy(&rows[k], of[k] + i, sizeof(L));
                    __builtin_prefetch(of_next[k] + i, 0, 2);
                }
                turn<W>(rows);
                for (int k = 0; k < W; ++k) place[(i + k) * n_packs] = rows[k];
            }
            memcpy(of, of_next, sizeof of);
        }
    }

    // Where the records of a pack of cases have a column.
    void find_cases(long pack, long column, const S** of) const {
        const int *numbers = cases + pack * W, n_left = n_in_batch - int(pack) * W;
        for (int k = 0; k < W; ++k) {
            const long row = numbers[k < n_left ? k : n_left - 1];
            of[k] = records + row * job.record_size + column;
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
