// Whole trajectories of every chain, one chain after the other; compiled once for each instruction set, with
// RAYFBNN_NAMESPACE and RAYFBNN_KERNELS naming what it defines.
//
// A chain's working set stays in cache: values and derivatives of a block of cases at a time, and the sums of
// the gradient over the places of a pack, which are added up once for each gradient.
//
// Nothing of the standard library is used here: what the linker merges over files must not hold instructions
// that another machine lacks.
#include "trajectory.hpp"

#include <stdlib.h>
#include <string.h>

#define RAYFBNN_PACKS
#include "memory.hpp"
#include "network.hpp"
#include "regression.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Feature;
using rayfbnn::Gemm;
using rayfbnn::Integrated;
using rayfbnn::Job;
using rayfbnn::Link;
using rayfbnn::Network;
using rayfbnn::Partition;
using rayfbnn::Segment;

#define RAYFBNN_METHOD inline __attribute__((always_inline))

constexpr int MOST_PACKS = 5;  // of cases in a register tile

// Units in a register tile of n packs: as many sums as the registers hold beside a column of sources.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tile_units(int n_packs) { return n_packs <= 2 ? 8 : 4; }
#else
constexpr int tile_units(int n_packs) { return n_packs >= 4 ? 2 : n_packs == 3 ? 4 : n_packs == 2 ? 4 : 8; }
#endif

template <class S>
struct Worker {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const Network& net;
    const int last;  // the outputs' layer
    // Of each layer, rows of `stride` packs: a unit's values, the same with offsets, and derivatives of the
    // potential by its summed input (kept slopes until then; before that, of BLAS's links, by its value).
    L **values, **sources, **slopes, **by_value;
    bool *sums_forward, *sums_backward;  // whether BLAS has begun the sums into, out of the layer
    bool* needs_unit_sums;
    long *link_sums, *unit_sums, *offset_sums;  // places in `sums`
    long n_sums;
    L* sums;    // of the gradient over cases, a pack each
    S* totals;  // the same over the packs' places
    L *targets, *weights;  // as inputs, of all partitions after each other
    long stride = 0;
    const S* q = nullptr;
    S *scales, *taus;
    bool wants_terms = false, wants_gradient = true, is_first_block = true;
    double terms = 0;
    int chain = 0;
    S* data_gradient;
    double* taus_of_parameters;  // of the chain, those that are integrated out as at the last gradient
    RegressionWorker<S> regression;
    const bool ends_in_regression;

    explicit Worker(const Job& job)
        : job(job),
          net(*job.network),
          last(job.network->n_layers - 1),
          regression(job.regression, job.largest_block),
          ends_in_regression(job.regression.n_features > 0) {
        const int n = net.n_layers;
        const long block = job.largest_block;
        values = allocate<L*>(n), sources = allocate<L*>(n), slopes = allocate<L*>(n);
        by_value = allocate<L*>(n);
        sums_forward = allocate<bool>(n), sums_backward = allocate<bool>(n);
        needs_unit_sums = allocate<bool>(n);
        link_sums = allocate<long>(net.n_links), unit_sums = allocate<long>(n);
        offset_sums = allocate<long>(n);
        for (int l = 0; l < n; ++l) {
            sums_forward[l] = sums_backward[l] = needs_unit_sums[l] = false;
            const long size = net.units[l] * block;
            values[l] = l > 0 ? allocate<L>(size) : nullptr;
            slopes[l] = l == last ? values[l] : l > 0 ? allocate<L>(size) : nullptr;
            sources[l] = l < last && net.offsets[l] >= 0 ? allocate<L>(size) : values[l];
            by_value[l] = nullptr;
        }
        for (int k = 0; k < job.regression.n_features; ++k) {
            const int l = job.regression.features[k].layer;
            if (l > 0) begin_sums_backward(l);
        }
        long place = 0;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if (link.has_biases || (link.source == 0 && net.offsets[0] >= 0))
                needs_unit_sums[link.destination] = true;
            link_sums[k] = place;
            if (!link.uses_blas) {
                place += long(link.n_units) * link.n_destinations;
                continue;
            }
            sums_forward[link.destination] = true;
            if (link.source > 0) begin_sums_backward(link.source);
        }
        for (int l = 1; l < n; ++l) {
            unit_sums[l] = place;
            if (needs_unit_sums[l]) place += net.units[l];
            offset_sums[l] = place;
            if (l < last && net.offsets[l] >= 0) place += net.units[l];
        }
        n_sums = (place + W - 1) / W * W;
        sums = allocate<L>(n_sums), totals = allocate<S>(n_sums);
        long packs = 0;
        for (int k = 0; k < job.n_partitions; ++k) packs += job.partitions[k].n_packs;
        targets = allocate<L>(packs * net.units[last]);
        weights = job.weights ? allocate<L>(packs * net.n_targets) : nullptr;
        scales = allocate<S>(net.units[last]), taus = allocate<S>(net.units[last]);
        data_gradient = allocate<S>(net.n_parameters);
        taus_of_parameters = allocate<double>(net.n_parameters);
    }

    void begin_sums_backward(int layer) {
        if (sums_backward[layer]) return;
        sums_backward[layer] = true;
        by_value[layer] = allocate<L>(long(net.units[layer]) * job.largest_block);
    }

    ~Worker() {
        for (int l = 0; l < net.n_layers; ++l) {
            if (sources[l] != values[l]) free(sources[l]);
            if (l != last) free(slopes[l]);
            free(values[l]), free(by_value[l]);
        }
        free(values), free(sources), free(slopes), free(by_value);
        free(sums_forward), free(sums_backward), free(needs_unit_sums);
        free(link_sums), free(unit_sums), free(offset_sums);
        free(sums), free(totals), free(targets), free(weights);
        free(scales), free(taus), free(data_gradient), free(taus_of_parameters);
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // --- sums over sources, a register tile at a time ---

    template <int M, int P>
    RAYFBNN_METHOD void begin(L (&tile)[M][P], const L* begun) const {
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) tile[m][p] = begun ? begun[m * stride + p] : splat<L>(0);
    }

    template <int A, int M, int P>
    RAYFBNN_METHOD void activate_tile(L (&tile)[M][P], L* kept) const {
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) {
                L slope = splat<L>(0);
                tile[m][p] = activate<L>(A, tile[m][p], slope);
                if (has_kept_slope(A)) kept[m * stride + p] = slope;
            }
    }

    // Units j .. j + M - 1 of a layer at packs p0 .. p0 + P - 1; eqs. 1-3.
    template <int M, int P>
    void forward_tile(int layer, int first_link, int end_link, int j, long p0) {
        L tile[M][P];
        const long place = j * stride + p0;
        begin<M, P>(tile, sums_forward[layer] ? values[layer] + place : nullptr);
        for (int k = first_link; k < end_link; ++k) {
            const Link& link = net.links[k];
            const S* w = q + link.start + j;
            if (!link.uses_blas)
                multiply_add<M, P, L>(
                    tile, w, link.n_destinations, 1, link.n_units, source_of(link) + p0, stride);
            if (link.has_biases) {
                const S* biases = w + long(link.n_units) * link.n_destinations;
                for (int m = 0; m < M; ++m)
                    for (int p = 0; p < P; ++p) tile[m][p] += biases[m];
            }
        }
        if (layer < last) {
            L* kept = slopes[layer] + place;
            switch (net.activations[layer]) {
                case TANH: activate_tile<TANH, M, P>(tile, kept); break;
                case SIGMOID: activate_tile<SIGMOID, M, P>(tile, kept); break;
                case RELU: activate_tile<RELU, M, P>(tile, kept); break;
                case SOFTPLUS: activate_tile<SOFTPLUS, M, P>(tile, kept); break;
                case SOFTPLUS0: activate_tile<SOFTPLUS0, M, P>(tile, kept); break;
                case SIN: activate_tile<SIN, M, P>(tile, kept); break;
                default: break;
            }
        }
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) values[layer][place + m * stride + p] = tile[m][p];
        if (layer < last && net.offsets[layer] >= 0)
            for (int m = 0; m < M; ++m)
                for (int p = 0; p < P; ++p)
                    sources[layer][place + m * stride + p] = tile[m][p] + q[net.offsets[layer] + j + m];
    }

    template <int A, int M, int P>
    RAYFBNN_METHOD void multiply_by_slopes(L (&tile)[M][P], const L* v, const L* kept) const {
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p)
                tile[m][p] *= has_kept_slope(A) ? kept[m * stride + p] : slope_of<L>(A, v[m * stride + p]);
    }

    // Derivatives by the summed inputs of units i .. i + M - 1 of a hidden layer; eqs. 41, 42.
    template <int M, int P>
    void backward_tile(int layer, int, int, int i, long p0) {
        L tile[M][P];
        const long place = i * stride + p0;
        begin<M, P>(tile, sums_backward[layer] ? by_value[layer] + place : nullptr);
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if (link.source != layer || link.uses_blas || link.n_units == 0) continue;
            const int n = link.n_destinations;
            multiply_add<M, P, L>(
                tile, q + link.start + long(i) * n, 1, n, n, slopes[link.destination] + p0, stride);
        }
        if (net.offsets[layer] >= 0)
            for (int m = 0; m < M; ++m)
                for (int p = 0; p < P; ++p) sums[offset_sums[layer] + i + m] += tile[m][p];
        const L* v = values[layer] + place;
        L* kept = slopes[layer] + place;
        switch (net.activations[layer]) {
            case TANH: multiply_by_slopes<TANH, M, P>(tile, v, kept); break;
            case SIGMOID: multiply_by_slopes<SIGMOID, M, P>(tile, v, kept); break;
            case RELU: multiply_by_slopes<RELU, M, P>(tile, v, kept); break;
            case SOFTPLUS:
            case SOFTPLUS0:
            case SIN: multiply_by_slopes<SIN, M, P>(tile, v, kept); break;
            default: break;
        }
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) kept[m * stride + p] = tile[m][p];
    }

    template <bool FORWARD, int M, int P>
    RAYFBNN_METHOD void tile(int layer, int first_link, int end_link, int unit, long p0) {
        if constexpr (FORWARD)
            forward_tile<M, P>(layer, first_link, end_link, unit, p0);
        else
            backward_tile<M, P>(layer, first_link, end_link, unit, p0);
    }

    template <bool FORWARD, int P>
    void column(int layer, int first_link, int end_link, long p0) {
        constexpr int M = tile_units(P);
        const int n = net.units[layer];
        int unit = 0;
        for (; unit + M <= n; unit += M) tile<FORWARD, M, P>(layer, first_link, end_link, unit, p0);
        if constexpr (M > 4)
            if (unit + 4 <= n) tile<FORWARD, 4, P>(layer, first_link, end_link, unit, p0), unit += 4;
        if constexpr (M > 2)
            if (unit + 2 <= n) tile<FORWARD, 2, P>(layer, first_link, end_link, unit, p0), unit += 2;
        if (unit < n) tile<FORWARD, 1, P>(layer, first_link, end_link, unit, p0);
    }

    // All packs of the block, in columns of equal width as nearly as may be.
    template <bool FORWARD>
    void layer(int layer, int first_link, int end_link) {
        const long n_columns = (stride + MOST_PACKS - 1) / MOST_PACKS;
        for (long c = 0; c < n_columns; ++c) {
            const long p0 = stride * c / n_columns, p1 = stride * (c + 1) / n_columns;
            switch (p1 - p0) {
                case 1: column<FORWARD, 1>(layer, first_link, end_link, p0); break;
                case 2: column<FORWARD, 2>(layer, first_link, end_link, p0); break;
                case 3: column<FORWARD, 3>(layer, first_link, end_link, p0); break;
                case 4: column<FORWARD, 4>(layer, first_link, end_link, p0); break;
                default: column<FORWARD, 5>(layer, first_link, end_link, p0); break;
            }
        }
    }

    const L* source_of(const Link& link) const { return sources[link.source]; }

    void gemm(
        const char* a_form, const char* b_form, int m, int n, int k, const void* a, int a_step,
        const void* b, int b_step, S beta, void* c, int c_step) const {
        const S one = 1;
        job.gemm(a_form, b_form, &m, &n, &k, &one, a, &a_step, b, &b_step, &beta, c, &c_step);
    }

    // Values of all units at the block; a block's matrices are (units, cases), in Fortran's order (cases, units).
    void forward() {
        const int cases = int(stride * W);
        int first = 0;
        for (int l = 1; l <= last; ++l) {
            int end = first;
            bool begun = false;
            for (; end < net.n_links && net.links[end].destination == l; ++end) {
                const Link& link = net.links[end];
                if (!link.uses_blas) continue;
                gemm("N", "T", cases, link.n_destinations, link.n_units, source_of(link), cases,
                     q + link.start, link.n_destinations, S(begun), values[l], cases);
                begun = true;
            }
            layer<true>(l, first, end);
            first = end;
        }
    }

    // From derivatives by the summed inputs of the outputs, in slopes[last], to those of all hidden layers.
    void backward() {
        const int cases = int(stride * W);
        for (int l = last - 1; l > 0; --l) {
            bool begun = regression.has_features_of(l);
            for (int k = 0; k < net.n_links; ++k) {
                const Link& link = net.links[k];
                if (link.source != l || !link.uses_blas) continue;
                gemm("N", "N", cases, link.n_units, link.n_destinations, slopes[link.destination], cases,
                     q + link.start, link.n_destinations, S(begun), by_value[l], cases);
                begun = true;
            }
            layer<false>(l, 0, 0);
        }
    }

    // --- sums over cases: the gradient ---

    template <int ROWS, int UNITS>
    RAYFBNN_METHOD void products(const Link& link, L* gradient, int i, int j) const {
        add_products<ROWS, UNITS, L>(
            gradient + long(i) * link.n_destinations + j, link.n_destinations, int(stride),
            source_of(link) + i * stride, slopes[link.destination] + j * stride, stride);
    }

    template <int ROWS, int UNITS>
    void product_columns(const Link& link, L* gradient, int j) const {
        int i = 0;
        for (; i + ROWS <= link.n_units; i += ROWS) products<ROWS, UNITS>(link, gradient, i, j);
        if constexpr (ROWS > 4)
            if (i + 4 <= link.n_units) products<4, UNITS>(link, gradient, i, j), i += 4;
        if constexpr (ROWS > 2)
            if (i + 2 <= link.n_units) products<2, UNITS>(link, gradient, i, j), i += 2;
        if (i < link.n_units) products<1, UNITS>(link, gradient, i, j);
    }

    void weight_gradients() {
        const int cases = int(stride * W);
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            if (link.n_units == 0) continue;
            if (link.uses_blas) {
                gemm("T", "N", n, link.n_units, cases, slopes[link.destination], cases, source_of(link), cases,
                     S(!is_first_block), data_gradient + link.start, n);
                continue;
            }
            L* gradient = sums + link_sums[k];
            int j = 0;
            for (; j + 4 <= n; j += 4)
#if defined(__AVX512F__) || defined(__aarch64__)
                product_columns<4, 4>(link, gradient, j);
#else
                product_columns<2, 4>(link, gradient, j);
#endif
            if (j + 2 <= n) product_columns<4, 2>(link, gradient, j), j += 2;
            if (j < n) product_columns<8, 1>(link, gradient, j);
        }
        for (int l = 1; l <= last; ++l) {
            if (!needs_unit_sums[l]) continue;
            const L* row = slopes[l];
            for (int j = 0; j < net.units[l]; ++j, row += stride) {
                L total = sums[unit_sums[l] + j];
                for (long p = 0; p < stride; ++p) total += row[p];
                sums[unit_sums[l] + j] = total;
            }
        }
    }

    void collect_gradient() {
        for (long k = 0; k < n_sums; k += W) {
            const L total = sums_of<W>(sums + k);
            memcpy(totals + k, &total, sizeof total);
        }
        S* input_offsets = net.offsets[0] >= 0 ? data_gradient + net.offsets[0] : nullptr;
        for (int i = 0; input_offsets && i < net.units[0]; ++i) input_offsets[i] = 0;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            const long size = long(link.n_units) * n;
            if (!link.uses_blas) memcpy(data_gradient + link.start, totals + link_sums[k], size * sizeof(S));
            const S* by_unit = totals + unit_sums[link.destination];
            if (link.has_biases) memcpy(data_gradient + link.start + size, by_unit, n * sizeof(S));
            if (input_offsets && link.source == 0)  // eqs. 43, 53: all cases share the weights
                for (int i = 0; i < link.n_units; ++i)
                    for (int j = 0; j < n; ++j) input_offsets[i] += q[link.start + long(i) * n + j] * by_unit[j];
        }
        for (int l = 1; l < last; ++l)
            if (net.offsets[l] >= 0)
                memcpy(data_gradient + net.offsets[l], totals + offset_sums[l], net.units[l] * sizeof(S));
    }

    // --- the outputs ---

    void add_terms(int first, int n) {
        const S* v = reinterpret_cast<const S*>(values[last]);
        const double* y = job.targets + chain * job.targets_step + first;
        const double* w = job.weights ? job.weights + chain * job.weights_step + first : nullptr;
        const long step = stride * W;
        if (net.model == CLASS) {
            for (int c = 0; c < n; ++c)
                if (!w || w[c] != 0)
                    terms += class_term<S>(v + c, step, y + c, job.n_cases, net.units[last]) * (w ? w[c] : 1);
            return;
        }
        for (int o = 0; o < net.units[last]; ++o) {
            const double tau = net.model == BINARY ? 1 : job.noise[long(chain) * net.n_targets + o];
            for (int c = 0; c < n; ++c) {
                const double term =
                    log_likelihood_term(net.model, double(v[o * step + c]), y[long(o) * job.n_cases + c], tau, net.alpha);
                terms += w ? term * w[long(o) * job.n_cases + c] : term;
            }
        }
    }

    void slopes_of_outputs(const L* y, const L* w, bool has_filling, int n_filled) {
        L* v = values[last];
        const int n = net.units[last];
        for (long p = 0; p < stride; ++p)
            switch (net.model) {
                case GAUSSIAN: output_slopes<L>(GAUSSIAN, v + p, y + p, stride, n, scales, taus, S(net.alpha)); break;
                case STUDENT_T: output_slopes<L>(STUDENT_T, v + p, y + p, stride, n, scales, taus, S(net.alpha)); break;
                case BINARY: output_slopes<L>(BINARY, v + p, y + p, stride, n, scales, taus, S(net.alpha)); break;
                default: output_slopes<L>(CLASS, v + p, y + p, stride, n, scales, taus, S(net.alpha)); break;
            }
        if (w)
            for (int o = 0; o < n; ++o)
                for (long p = 0; p < stride; ++p) v[o * stride + p] *= w[(o % net.n_targets) * stride + p];
        if (has_filling) {
            S* places = reinterpret_cast<S*>(v);
            for (int o = 0; o < n; ++o)
                for (int c = n_filled; c < W; ++c) places[((o + 1) * stride - 1) * W + c] = 0;
        }
    }

    void pass(const Partition& partition, const L* y, const L* w) {
        const L* x = static_cast<const L*>(partition.inputs);
        for (int b = 0; b < partition.n_blocks; ++b) {
            const int begin = partition.block_starts[b], end = partition.block_starts[b + 1];
            stride = end - begin;
            if (net.offsets[0] < 0) {
                sources[0] = const_cast<L*>(x + long(net.units[0]) * begin);
                values[0] = sources[0];
            } else {
                const L* row = x + long(net.units[0]) * begin;
                for (int i = 0; i < net.units[0]; ++i)
                    for (long p = 0; p < stride; ++p)
                        sources[0][i * stride + p] = row[i * stride + p] + q[net.offsets[0] + i];
            }
            forward();
            if (ends_in_regression) {
                terms -= regress();
                if (!wants_gradient) continue;
                backward();
                weight_gradients();
                continue;
            }
            const int first = begin * W;
            const int n = (b + 1 < partition.n_blocks ? end * W : partition.n_cases) - first;
            if (wants_terms) add_terms(partition.first + first, n);
            if (!wants_gradient) continue;
            slopes_of_outputs(
                y + long(net.units[last]) * begin, w ? w + long(net.n_targets) * begin : nullptr,
                n < stride * W, n - int(stride - 1) * W);
            backward();
            weight_gradients();
            is_first_block = false;
        }
    }

    // The energy of the output layer's regression at the hidden units, and its slopes to `by_value`.
    double regress() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            const bool changes = feature.layer > 0 || net.offsets[0] >= 0;
            if (feature.row < 0) {
                if (regression.is_new_chain) regression.set_ones(k);
            } else if (changes || regression.is_new_chain) {
                regression.set_feature(k, sources[feature.layer] + feature.row * stride);
            }
        }
        regression.is_new_chain = false;
        const double energy = regression.evaluate(q + net.n_parameters - job.regression.n_moved, wants_terms, wants_gradient);
        if (!wants_gradient) return energy;
        for (int k = 0; k < job.regression.n_features;) {
            const Feature& feature = job.regression.features[k];
            int n = 1;  // consecutive units of one layer
            while (k + n < job.regression.n_features && job.regression.features[k + n].layer == feature.layer &&
                   job.regression.features[k + n].row == feature.row + n)
                ++n;
            if (feature.layer > 0 && feature.row >= 0)
                regression.slopes(k, n, by_value[feature.layer] + feature.row * stride);
            k += n;
        }
        return energy;
    }

    // Derivatives by the inputs' offsets through features that are inputs, and by what moves of the regression.
    void collect_regression() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            if (feature.layer == 0 && feature.row >= 0 && net.offsets[0] >= 0)
                data_gradient[net.offsets[0] + feature.row] += regression.sum_of_slopes(k);
        }
        S* moved = data_gradient + net.n_parameters - job.regression.n_moved;
        for (int k = 0; k < job.regression.n_moved; ++k) moved[k] = S(regression.moved_gradient[k]);
    }

    // Data part of the gradient at q, of one partition or, if it is -1, of all, to data_gradient.
    void evaluate(const S* position, int partition) {
        q = position;
        terms = 0;
        if (wants_gradient) memset(static_cast<void*>(sums), 0, n_sums * sizeof(L)), is_first_block = true;
        const L *y = targets, *w = weights;
        for (int k = 0; k < job.n_partitions; ++k) {
            if (partition < 0 || partition == k) pass(job.partitions[k], y, w);
            y += long(net.units[last]) * job.partitions[k].n_packs;
            if (w) w += long(net.n_targets) * job.partitions[k].n_packs;
        }
        if (wants_gradient) collect_gradient();
        if (wants_gradient && ends_in_regression) collect_regression();
        // Not left pointing into the inputs, which are the caller's.
        if (net.offsets[0] < 0) sources[0] = values[0] = nullptr;
    }

    // Rows (n, n_cases) as the inputs are laid out, the last pack filled up with the last case.
    void lay_out(L* packs, const double* rows, int n) const {
        S* place = reinterpret_cast<S*>(packs);
        for (int k = 0; k < job.n_partitions; ++k) {
            const Partition& partition = job.partitions[k];
            for (int b = 0; b < partition.n_blocks; ++b)
                for (int o = 0; o < n; ++o)
                    for (int c = partition.block_starts[b] * W; c < partition.block_starts[b + 1] * W; ++c) {
                        const int number = c < partition.n_cases ? c : partition.n_cases - 1;
                        *place++ = S(rows[long(o) * job.n_cases + partition.first + number]);
                    }
        }
    }

    void begin_chain(int number) {
        chain = number;
        const double factor = job.powers[chain] * job.n_partitions;
        for (int o = 0; o < net.units[last]; ++o) {
            const bool is_real = net.model == GAUSSIAN || net.model == STUDENT_T;
            const double tau = is_real ? job.noise[long(chain) * net.n_targets + o] : 1;
            scales[o] = S(factor * tau), taus[o] = S(tau);
        }
        if (chain == 0 || job.targets_step) lay_out(targets, job.targets + chain * job.targets_step, net.units[last]);
        if (weights && (chain == 0 || job.weights_step))
            lay_out(weights, job.weights + chain * job.weights_step, net.n_targets);
        memcpy(taus_of_parameters, job.precisions + long(chain) * net.n_parameters, net.n_parameters * sizeof(double));
        if (ends_in_regression) regression.begin_chain(chain);
    }

    // --- prior and leapfrog ---

    // alpha/omega + sum a w**2 of a group whose precision is integrated out; a in place of the precisions.
    double rate_of(const Integrated& group, const S* position) const {
        const double* a = job.precisions + long(chain) * net.n_parameters;
        double rate = group.rate;
        for (int k = group.start; k < group.stop; ++k) rate += a[k] * double(position[k]) * double(position[k]);
        return rate;
    }

    // The precisions that make a Gaussian prior's slopes those of what is left once a precision is integrated out.
    void set_integrated_taus(const S* position) {
        const double* a = job.precisions + long(chain) * net.n_parameters;
        for (int g = 0; g < net.n_integrated; ++g) {
            const Integrated& group = net.integrated[g];
            const double factor = group.shape / rate_of(group, position);
            for (int k = group.start; k < group.stop; ++k) taus_of_parameters[k] = factor * a[k];
        }
    }

    double prior_energy(const S* position) {
        const double* tau = taus_of_parameters;
        double total = 0;
        for (int g = 0; g < net.n_integrated; ++g) {
            const Integrated& group = net.integrated[g];
            total += group.shape / 2 * RAYFBNN_LOG(rate_of(group, position));
            for (int k = group.start; k < group.stop; ++k) taus_of_parameters[k] = 0;
        }
        for (int s = 0; s < net.n_segments; ++s)
            for (int k = net.segments[s].start; k < net.segments[s].stop; ++k)
                total += prior_term(double(position[k]), tau[k], net.segments[s].alpha);
        return total;
    }

    // p -= half or full step * gradient, and then, but for the last, q += full step * p.
    template <bool IS_LAST>
    void kick_and_drift(S* position, S* momentum, const S* kick, const S* drift) {
        set_integrated_taus(position);
        const double* tau = taus_of_parameters;
        for (int s = 0; s < net.n_segments; ++s) {
            const int stop = net.segments[s].stop;
            const double alpha = net.segments[s].alpha;
            if (alpha > 1e300) {
                for (int k = net.segments[s].start; k < stop; ++k) {
                    const S gradient = data_gradient[k] + S(tau[k] * double(position[k]));
                    momentum[k] -= kick[k] * gradient;
                    if (!IS_LAST) position[k] += drift[k] * momentum[k];
                }
            } else {
                for (int k = net.segments[s].start; k < stop; ++k) {
                    const S gradient = data_gradient[k] + S(prior_slope(double(position[k]), tau[k], alpha));
                    momentum[k] -= kick[k] * gradient;
                    if (!IS_LAST) position[k] += drift[k] * momentum[k];
                }
            }
        }
    }

    void gradient_of_chain() {
        const long n = net.n_parameters;
        const S* position = static_cast<const S*>(job.position) + chain * n;
        wants_terms = true;
        evaluate(position, -1);
        set_integrated_taus(position);
        const double* tau = taus_of_parameters;
        S* gradient = static_cast<S*>(job.new_momentum) + chain * n;
        for (int s = 0; s < net.n_segments; ++s)
            for (int k = net.segments[s].start; k < net.segments[s].stop; ++k)
                gradient[k] =
                    data_gradient[k] + S(prior_slope(double(position[k]), tau[k], net.segments[s].alpha));
        job.terms[chain] = terms;
        job.prior_energy[chain] = prior_energy(position);
    }

    void trajectory_of_chain(S* half, S* full) {
        const long n = net.n_parameters;
        S* position = static_cast<S*>(job.new_position) + chain * n;
        S* momentum = static_cast<S*>(job.new_momentum) + chain * n;
        memcpy(position, static_cast<const S*>(job.position) + chain * n, n * sizeof(S));
        memcpy(momentum, static_cast<const S*>(job.momentum) + chain * n, n * sizeof(S));
        const S* stepsizes = static_cast<const S*>(job.stepsizes) + chain * n;
        for (long k = 0; k < n; ++k) full[k] = stepsizes[k] / job.n_partitions, half[k] = full[k] / 2;
        const long long* order = job.order ? job.order + long(chain) * job.n_partitions : nullptr;
        const long n_gradients = long(job.n_steps) * job.n_partitions;
        for (long number = 0; number <= n_gradients; ++number) {
            const bool is_last = number == n_gradients;
            wants_terms = is_last && !order;
            evaluate(position, order ? int(order[number % job.n_partitions]) : -1);
            const S* kick = number == 0 || is_last ? half : full;
            if (is_last)
                kick_and_drift<true>(position, momentum, kick, full);
            else
                kick_and_drift<false>(position, momentum, kick, full);
        }
        if (order) {
            wants_terms = true, wants_gradient = false;
            evaluate(position, -1);
            wants_gradient = true;
        }
        job.terms[chain] = terms;
        job.prior_energy[chain] = prior_energy(position);
    }
};

template <class S>
void run(const Job& job) {
    Worker<S> worker(job);
    S* half = allocate<S>(job.network->n_parameters);
    S* full = allocate<S>(job.network->n_parameters);
    for (int chain = 0; chain < job.n_chains; ++chain) {
        worker.begin_chain(chain);
        if (job.momentum)
            worker.trajectory_of_chain(half, full);
        else
            worker.gradient_of_chain();
    }
    free(half), free(full);
}

}  // namespace RAYFBNN_NAMESPACE

namespace rayfbnn {

const Kernels& RAYFBNN_KERNELS() {
    using namespace RAYFBNN_NAMESPACE;
    static const Kernels kernels = {
        RAYFBNN_NAME,
        Lane<PackFloat>::width,
        Lane<PackDouble>::width,
        run<float>,
        run<double>,
    };
    return kernels;
}

}  // namespace rayfbnn
