// A network at packs of cases: the likelihood's terms and the data's part of the gradient, for one chain at a time.
//
// A chain's working set stays in cache: values and derivatives of a block of cases at a time, and the sums of
// the gradient over the places of a pack, which are added up once for each gradient.
#ifndef RAYFBNN_PACKED_NETWORK_HPP
#define RAYFBNN_PACKED_NETWORK_HPP

#include <string.h>

#include "memory.hpp"
#include "regression_dual.hpp"
#include "regression_primal.hpp"
#include "rows.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Feature;
using rayfbnn::Job;
using rayfbnn::Link;
using rayfbnn::Network;
using rayfbnn::Partition;

constexpr int MOST_PACKS = 5;    // of cases in a register tile
constexpr int GROUP = 8;         // hidden units whose derivatives are computed and used together
constexpr int MOST_INPUTS = 10;  // whose products with derivatives are summed while these are in registers
constexpr int MOST_LARGE = 3;    // of MOST_PACKS, where weights of a large link come in by sets
constexpr int SET = 8;           // destinations whose weights lie together in a large link's copy

// Units in a register tile of n packs, and rows of the gradient in one of n units: as many sums as the registers
// hold beside a column of sources.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tile_units(int n_packs) { return n_packs <= 3 ? 8 : 4; }
constexpr int most_rows(int) { return 5; }
constexpr int FOLDED_ROWS = 6, FOLDED_COLUMNS = 4;  // of a register tile of the gradient of a large link
constexpr int narrow_units(int n_sums) { return n_sums <= 5 ? 4 : 2; }  // of n sums each
#else
constexpr int tile_units(int n_packs) { return n_packs >= 4 ? 2 : n_packs == 3 ? 4 : n_packs == 2 ? 4 : 8; }
constexpr int narrow_units(int n_sums) { return n_sums <= 5 ? 2 : 1; }
constexpr int most_rows(int n_units) { return n_units == 4 ? 2 : n_units == 2 ? 4 : 5; }
constexpr int FOLDED_ROWS = 4, FOLDED_COLUMNS = 3;
#endif

template <class S>
struct PackedNetwork {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const Network& net;
    const int last;  // the outputs' layer
    // Of each layer, rows of `stride` packs: a unit's values, the same with offsets, and derivatives of the
    // potential by its summed input (kept slopes until then). by_value: those by the values of units, as far as a
    // regression or BLAS has begun them, else null.
    L **values, **sources, **slopes, **by_value;
    bool *needs_unit_sums, *begins_in_values;  // the latter: BLAS has begun the sums into the layer there
    bool has_large = false;  // links
    // Of a hidden layer whose derivatives and gradient one pass gives: its link out, and in if there is one to
    // be in that pass; else null.
    const Link **narrow_out, **narrow_in;
    long *link_sums, *unit_sums, *offset_sums;  // places in `sums`
    long n_sums;
    L* sums;    // of the gradient over cases, a pack each
    S* totals;  // the same over the packs' places
    S** packed;  // of each large link, its weights by sets of destinations: (sets, n_units, SET); else null
    L *targets, *weights;  // as inputs, of all partitions after each other
    long stride = 0;                          // of the block at hand
    long most_width = 0, n_wide_columns = 0;  // of its columns of packs; the others are one narrower
    long run = 0, run_start = 0;  // packs of the columns at hand, and the first of them
    const S* q = nullptr;
    S *scales, *taus;
    bool wants_terms = false, wants_gradient = false;
    double terms = 0;
    int chain = 0;
    bool is_in_order;  // whether totals are those of the parameters, one by one
    S* data_gradient;
    RegressionWorker<S>* regression;  // null where the network ends in outputs

    explicit PackedNetwork(const Job& job)
        : job(job),
          net(*job.network),
          last(job.network->n_layers - 1),
          regression(regression_of(job)) {
        const int n = net.n_layers;
        const long block = job.largest_block;
        values = allocate<L*>(n), sources = allocate<L*>(n), slopes = allocate<L*>(n);
        by_value = allocate<L*>(n), packed = allocate<S*>(net.n_links);
        needs_unit_sums = allocate<bool>(n), begins_in_values = allocate<bool>(n);
        link_sums = allocate<long>(net.n_links), unit_sums = allocate<long>(n);
        offset_sums = allocate<long>(n);
        for (int l = 0; l < n; ++l) {
            needs_unit_sums[l] = begins_in_values[l] = false;
            const long size = net.units[l] * block;
            values[l] = l > 0 ? allocate<L>(size) : nullptr;
            slopes[l] = l == last ? values[l] : l > 0 ? allocate<L>(size) : nullptr;
            sources[l] = l < last && net.offsets[l] >= 0 ? allocate<L>(size) : values[l];
            by_value[l] = nullptr;
            unit_sums[l] = -1;
        }
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            L*& begun = by_value[feature.layer];
            if (feature.layer > 0 && feature.row >= 0 && !begun) begun = allocate<L>(net.units[feature.layer] * block);
        }
        // In the order of the parameters, where these are of links alone, none of them large.
        long place = 0;
        is_in_order = net.n_links > 0;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if (link.has_biases || (link.source == 0 && net.offsets[0] >= 0))
                needs_unit_sums[link.destination] = true;
            link_sums[k] = place;
            const long n_sets = (link.n_destinations + SET - 1) / SET;
            has_large |= link.is_large;
            packed[k] = link.is_large && !link.uses_blas ? allocate<S>(n_sets * SET * link.n_units) : nullptr;
            begins_in_values[link.destination] |= link.uses_blas;
            L*& begun = by_value[link.source];
            if (link.uses_blas && link.source > 0 && !begun) begun = allocate<L>(net.units[link.source] * block);
            if (!link.is_large) place += long(link.n_units) * link.n_destinations;
            if (link.has_biases && unit_sums[link.destination] < 0) {
                unit_sums[link.destination] = place;
                place += link.n_destinations;
            }
            const long stop = k + 1 < net.n_links ? net.links[k + 1].start : net.n_parameters;
            is_in_order &= !link.is_large && link_sums[k] == link.start && place == stop;
        }
        for (int l = 1; l < n; ++l) {
            if (needs_unit_sums[l] && unit_sums[l] < 0) {
                unit_sums[l] = place;
                place += net.units[l];
            }
            offset_sums[l] = place;
            if (l < last && net.offsets[l] >= 0) place += net.units[l];
        }
        narrow_out = allocate<const Link*>(n), narrow_in = allocate<const Link*>(n);
        for (int l = 0; l < n; ++l) find_narrow(l);
        n_sums = (place + W - 1) / W * W;
        sums = allocate<L>(n_sums), totals = allocate<S>(n_sums);
        long packs = 0;
        for (int k = 0; k < job.n_partitions; ++k) packs += job.partitions[k].n_packs;
        targets = allocate<L>(packs * net.units[last]);
        weights = job.weights ? allocate<L>(packs * net.n_targets) : nullptr;
        scales = allocate<S>(net.units[last]), taus = allocate<S>(net.units[last]);
        data_gradient = is_in_order ? totals : allocate<S>(net.n_parameters);
    }

    static RegressionWorker<S>* regression_of(const Job& job) {
        if (job.regression.n_features == 0) return nullptr;
        if (job.regression.is_dual) return new DualRegression<S>(job.regression, job.largest_block);
        return new PrimalRegression<S>(job.regression, job.largest_block);
    }

    ~PackedNetwork() {
        for (int l = 0; l < net.n_layers; ++l) {
            if (sources[l] != values[l]) free(sources[l]);
            if (l != last) free(slopes[l]);
            free(values[l]), free(by_value[l]);
        }
        for (int k = 0; k < net.n_links; ++k) free(packed[k]);
        free(values), free(sources), free(slopes), free(by_value), free(packed);
        free(needs_unit_sums), free(begins_in_values), free(narrow_out), free(narrow_in);
        free(link_sums), free(unit_sums), free(offset_sums);
        if (!is_in_order) free(data_gradient);
        free(sums), free(totals), free(targets), free(weights);
        free(scales), free(taus);
        delete regression;
    }
    PackedNetwork(const PackedNetwork&) = delete;
    PackedNetwork& operator=(const PackedNetwork&) = delete;

    // Whether a layer is of tanh units that only one link leaves, to one or two units; and whether all that comes
    // in is one link, from a few inputs.
    void find_narrow(int l) {
        narrow_out[l] = narrow_in[l] = nullptr;
        if (l == 0 || l == last || net.activations[l] != TANH || net.offsets[l] >= 0 || by_value[l]) return;
        int n_in = 0, n_out = 0;
        const Link *in = nullptr, *out = nullptr;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if (link.source == l) out = &link, ++n_out;
            if (link.destination == l) in = &link, ++n_in;
        }
        if (n_out != 1 || out->is_large || out->n_units == 0 || out->n_destinations > 2) return;
        narrow_out[l] = out;
        if (n_in == 1 && in->source == 0 && !in->is_large && in->n_units >= 1 && in->n_units <= MOST_INPUTS)
            narrow_in[l] = in;
    }

    // --- sums over sources, a register tile at a time ---

    // A link into the units from number j on, at packs from p0 on.
    struct LinkForward {
        const PackedNetwork& pass;
        const Link& link;
        const S* packed;
        int j;
        long p0;

        template <int M, int P>
        RAYFBNN_METHOD void add_products(L (&u)[M][P]) const {
            const L* here = pass.source_of(link) + p0;
            if (packed)
                pass.add_packed(u, packed, link, here, j, p0);
            else if (!link.uses_blas)
                multiply_add(
                    u, link.n_units, WeightRows<L>{weights(), link.n_destinations, 1}, ValueRows<L>{here, pass.stride});
        }
        RAYFBNN_METHOD bool has_biases() const { return link.has_biases; }
        RAYFBNN_METHOD L bias(int m) const {
            return splat<L>(weights()[long(link.n_units) * link.n_destinations + m]);
        }
        RAYFBNN_METHOD const S* weights() const { return pass.q + link.start + j; }
    };

    // The sums over a large link's sources, for M units from number j on, all of one set. Inputs may have left the
    // caches since the last gradient: the first tiles of a run of columns bring those of the next one.
    template <int M, int P>
    RAYFBNN_METHOD void add_packed(L (&u)[M][P], const S* weights, const Link& link, const L* here, int j, long p0) const {
        const long ahead = p0 + run < stride ? run : link.n_units * stride - run_start;  // or those of the next block
        const bool fetches = link.source == 0 && j / M < P;
        const WeightRows<L> rows = {weights + long(j / SET) * SET * link.n_units + j % SET, SET, 1};
        multiply_add(u, link.n_units, rows, ValueRows<L, true>{here, stride, here + (fetches ? ahead + j / M : 0)});
    }

    void pack_weights() {
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            S* to = packed[k];
            for (int j = 0; to && j < n; j += SET)
                for (int i = 0; i < link.n_units; ++i, to += SET) {
                    const S* from = q + link.start + long(i) * n + j;
                    if (j + SET <= n)
                        memcpy(to, from, SET * sizeof(S));
                    else
                        memcpy(to, from, (n - j) * sizeof(S));
                }
        }
    }

    // Units from number j on of a layer at packs from p0 on, with the links first_link .. end_link - 1 into it.
    struct TileForward {
        static constexpr bool WANTS_SLOPES = false;  // beside those that are kept
        const PackedNetwork& pass;
        int layer, first_link, end_link, j;
        long p0;

        template <int M, int P>
        RAYFBNN_METHOD void begin(L (&u)[M][P]) const {
            pass.begin(u, pass.begins_in_values[layer] ? pass.values[layer] + place(0) : nullptr);
        }
        template <class F>
        RAYFBNN_METHOD void each_link(const F& f) const {
            for (int k = first_link; k < end_link; ++k)
                f(LinkForward{pass, pass.net.links[k], pass.packed[k], j, p0});
        }
        template <class F>
        RAYFBNN_METHOD void with_activation(const F& f) const {
            switch (layer < pass.last ? pass.net.activations[layer] : int(IDENTITY)) {
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
        RAYFBNN_METHOD bool has_offsets() const { return layer < pass.last && pass.net.offsets[layer] >= 0; }
        RAYFBNN_METHOD L offset(int m) const { return splat<L>(pass.q[pass.net.offsets[layer] + j + m]); }
        template <int A, int P>
        RAYFBNN_METHOD void keep(Number<A>, int m, const L (&v)[P], const L (&seen)[P], const L (&slope)[P]) const {
            pass.store(pass.values[layer] + place(m), v);
            if (has_offsets()) pass.store(pass.sources[layer] + place(m), seen);
            if (has_kept_slope(A)) pass.store(pass.slopes[layer] + place(m), slope);
        }
        RAYFBNN_METHOD long place(int m) const { return (j + m) * pass.stride + p0; }
    };

    // A link out of the units from number i on, at packs from p0 on.
    struct LinkBackward {
        const PackedNetwork& pass;
        const Link& link;
        int i;
        long p0;

        template <int M, int P>
        RAYFBNN_METHOD void add_products(L (&derivative)[M][P]) const {
            const int n = link.n_destinations;
            multiply_add(
                derivative, n, WeightRows<L>{pass.q + link.start + long(i) * n, 1, n},
                ValueRows<L>{pass.slopes[link.destination] + p0, pass.stride});
        }
    };

    // Units from number i on of a hidden layer at packs from p0 on.
    struct TileBackward {
        const PackedNetwork& pass;
        int layer, i;
        long p0;

        template <int M, int P>
        RAYFBNN_METHOD void begin(L (&derivative)[M][P]) const {
            pass.begin(derivative, pass.by_value[layer] ? pass.by_value[layer] + place(0) : nullptr);
        }
        template <class F>
        RAYFBNN_METHOD void each_link(const F& f) const {
            for (int k = 0; k < pass.net.n_links; ++k) {
                const Link& link = pass.net.links[k];
                if (link.source == layer && !link.uses_blas && link.n_units > 0) f(LinkBackward{pass, link, i, p0});
            }
        }
        template <class F>
        RAYFBNN_METHOD void with_activation(const F& f) const {
            switch (pass.net.activations[layer]) {
                case TANH: f(Number<TANH>()); break;
                case SIGMOID: f(Number<SIGMOID>()); break;
                case RELU: f(Number<RELU>()); break;
                case IDENTITY: f(Number<IDENTITY>()); break;
                default: f(Number<SIN>()); break;  // all with kept slopes are alike here
            }
        }
        RAYFBNN_METHOD bool has(int) const { return true; }
        RAYFBNN_METHOD bool has_offsets() const { return pass.net.offsets[layer] >= 0; }
        template <int M, int P>
        RAYFBNN_METHOD void keep_by_values(const L (&derivative)[M][P]) const {
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) pass.sums[pass.offset_sums[layer] + i + m] += derivative[m][p];
        }
        template <int A, int P>
        RAYFBNN_METHOD void load_slopes(Number<A>, int m, L (&slope)[P]) const {
            const L* v = pass.values[layer] + place(m);
            const L* kept = pass.slopes[layer] + place(m);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) slope[p] = has_kept_slope(A) ? kept[p] : slope_of<Lane<L>>(A, v[p]);
        }
        template <int P>
        RAYFBNN_METHOD void keep(int m, const L (&derivative)[P]) const {
            pass.store(pass.slopes[layer] + place(m), derivative);
            L total = splat<L>(0);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) total += derivative[p];
            if (pass.needs_unit_sums[layer]) pass.sums[pass.unit_sums[layer] + i + m] += total;
        }
        RAYFBNN_METHOD long place(int m) const { return (i + m) * pass.stride + p0; }
    };

    template <int M, int P>
    RAYFBNN_METHOD void begin(L (&tile)[M][P], const L* begun) const {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) tile[m][p] = begun ? begun[m * stride + p] : splat<L>(0);
    }
    template <int P>
    RAYFBNN_METHOD void store(L* to, const L (&packs)[P]) const {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) to[p] = packs[p];
    }

    template <int M, int P>
    void tile_forward(int layer, int first_link, int end_link, int j, long p0) const {
        forward_tile<Lane<L>, M, P>(TileForward{*this, layer, first_link, end_link, j, p0});
    }
    template <int M, int P>
    void tile_backward(int layer, int i, long p0) const {
        backward_tile<Lane<L>, M, P>(TileBackward{*this, layer, i, p0});
    }

    template <bool FORWARD, int M, int P>
    RAYFBNN_METHOD void tile(int layer, int first_link, int end_link, int unit, long p0) {
        if constexpr (FORWARD)
            tile_forward<M, P>(layer, first_link, end_link, unit, p0);
        else
            tile_backward<M, P>(layer, unit, p0);
    }

    template <bool FORWARD, int P>
    void column(int layer, int first_link, int end_link, int unit, int n, long p0) {
        constexpr int M = tile_units(P);
        for (; unit + M <= n; unit += M) tile<FORWARD, M, P>(layer, first_link, end_link, unit, p0);
        if constexpr (M > 4)
            if (unit + 4 <= n) tile<FORWARD, 4, P>(layer, first_link, end_link, unit, p0), unit += 4;
        if constexpr (M > 2)
            if (unit + 2 <= n) tile<FORWARD, 2, P>(layer, first_link, end_link, unit, p0), unit += 2;
        if (unit < n) tile<FORWARD, 1, P>(layer, first_link, end_link, unit, p0);
    }

    template <bool FORWARD>
    RAYFBNN_METHOD void column_of(
        long width, int layer, int first_link, int end_link, int unit, int n, long p0) {
        switch (width) {
            case 1: column<FORWARD, 1>(layer, first_link, end_link, unit, n, p0); break;
            case 2: column<FORWARD, 2>(layer, first_link, end_link, unit, n, p0); break;
            case 3: column<FORWARD, 3>(layer, first_link, end_link, unit, n, p0); break;
            case 4: column<FORWARD, 4>(layer, first_link, end_link, unit, n, p0); break;
            default: column<FORWARD, 5>(layer, first_link, end_link, unit, n, p0); break;
        }
    }

    // Units `unit` .. n - 1 at all packs of the block, in columns of equal width as nearly as may be.
    template <bool FORWARD>
    void layer(int layer, int first_link, int end_link, int unit, int n) {
        if (has_large) return layer_in_runs<FORWARD>(layer, first_link, end_link, unit, n);
        for (long c = 0, p0 = 0, width; p0 < stride; ++c, p0 += width) {
            width = c < n_wide_columns ? most_width : most_width - 1;
            column_of<FORWARD>(width, layer, first_link, end_link, unit, n, p0);
        }
    }

    // The same, a run of columns at a time: of one column, or, where weights would leave the second cache from one
    // to the next, of as many as there is room for, with a set of units at each of them before the next set.
    template <bool FORWARD>
    void layer_in_runs(int layer, int first_link, int end_link, int unit, int n) {
        const long in_run = columns_in_run(layer, FORWARD);
        const int group = in_run > 1 ? SET : n - unit;
        for (long c = 0, next; (run_start = start_of(c)) < stride; c = next) {
            next = c + in_run;
            run = (start_of(next) < stride ? start_of(next) : stride) - run_start;
            for (int j = unit; j < n; j += group)
                for (long k = c; k < next && start_of(k) < stride; ++k)
                    column_of<FORWARD>(
                        start_of(k + 1) - start_of(k), layer, first_link, end_link, j, j + group < n ? j + group : n,
                        start_of(k));
        }
    }

    // Where a column of packs begins.
    long start_of(long column) const {
        return column * most_width - (column > n_wide_columns ? column - n_wide_columns : 0);
    }

    long columns_in_run(int layer, bool is_forward) const {
        long n_weights = 0, n_rows = 1;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if ((is_forward ? link.destination : link.source) != layer) continue;
            const long n = is_forward ? link.n_units : link.n_destinations;
            n_weights += long(link.n_units) * link.n_destinations;
            n_rows = n > n_rows ? n : n_rows;
        }
        if (n_weights * long(sizeof(S)) <= FACTOR_BYTES) return 1;
        const long n_columns = FACTOR_BYTES / (n_rows * most_width * long(sizeof(L)));
        return n_columns > 1 ? n_columns : 1;
    }

    const L* source_of(const Link& link) const { return sources[link.source]; }

    // --- products left to BLAS ---

    // c = a b, added to c or in its place; in Fortran's order, where a block's matrices are (cases, units).
    void gemm(
        const char* a_form, const char* b_form, int m, int n, int k, const void* a, int a_step,
        const void* b, int b_step, bool is_added, void* c, int c_step) const {
        const S one = 1, beta = S(is_added);
        job.gemm(a_form, b_form, &m, &n, &k, &one, a, &a_step, b, &b_step, &beta, c, &c_step);
    }

    void begin_forward(int l, int first_link, int end_link) const {
        const int n_cases = int(stride * W);
        bool is_begun = false;
        for (int k = first_link; k < end_link; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            if (!link.uses_blas) continue;
            gemm("N", "T", n_cases, n, link.n_units, source_of(link), n_cases, q + link.start, n, is_begun, values[l], n_cases);
            is_begun = true;
        }
    }

    void begin_backward(int l) const {
        const int n_cases = int(stride * W);
        bool is_begun = false;
        for (int k = 0; k < job.regression.n_features; ++k)
            is_begun |= job.regression.features[k].layer == l && job.regression.features[k].row >= 0;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            if (link.source != l || !link.uses_blas) continue;
            gemm("N", "N", n_cases, link.n_units, n, slopes[link.destination], n_cases, q + link.start, n, is_begun,
                 by_value[l], n_cases);
            is_begun = true;
        }
    }

    void add_products_by_blas(const Link& link) const {
        const int n_cases = int(stride * W), n = link.n_destinations;
        gemm("T", "N", n, link.n_units, n_cases, slopes[link.destination], n_cases, source_of(link), n_cases, true,
             data_gradient + link.start, n);
    }

    // --- layers ---

    // Values of all units at the block.
    void forward() {
        int first = 0;
        for (int l = 1; l <= last; ++l) {
            int end = first;
            while (end < net.n_links && net.links[end].destination == l) ++end;
            if (begins_in_values[l]) begin_forward(l, first, end);
            layer<true>(l, first, end, 0, net.units[l]);
            first = end;
        }
    }

    // --- sums over cases: the gradient ---

    // From derivatives by the summed inputs of the outputs, in slopes[last], to those of all hidden units and the
    // sums of the gradient. A few hidden units at a time: their values and derivatives are in the first cache
    // for all that they are needed for.
    void backward() {
        sum_outputs();
        for (int l = last - 1; l > 0; --l) {
            if (narrow_in[l]) {
                narrow_layer(l, 0, net.units[l]);
                continue;
            }
            if (by_value[l]) begin_backward(l);
            const int group = leaves_by_large(l) ? net.units[l] : GROUP;
            for (int unit = 0; unit < net.units[l]; unit += group) {
                const int end = unit + group < net.units[l] ? unit + group : net.units[l];
                if (narrow_out[l])
                    narrow_layer(l, unit, end);
                else
                    layer<false>(l, 0, 0, unit, end);
                for (int k = 0; k < net.n_links; ++k) {
                    const Link& link = net.links[k];
                    if (link.is_large || link.n_units == 0) continue;
                    if (link.source == l && &link != narrow_out[l]) products(link, unit, end, 0, link.n_destinations);
                    if (link.source == 0 && link.destination == l) products(link, 0, link.n_units, unit, end);
                }
            }
        }
        for (int k = 0; k < net.n_links; ++k)
            if (net.links[k].uses_blas)
                add_products_by_blas(net.links[k]);
            else if (net.links[k].is_large)
                folded_products(net.links[k]);
    }

    bool leaves_by_large(int l) const {
        for (int k = 0; k < net.n_links; ++k)
            if (net.links[k].source == l && net.links[k].is_large) return true;
        return false;
    }

    // What has no hidden units at either end.
    void sum_outputs() {
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            if (link.source == 0 && link.destination == last && !link.is_large)
                products(link, 0, link.n_units, 0, link.n_destinations);
        }
        const L* row = slopes[last];
        for (int j = 0; needs_unit_sums[last] && j < net.units[last]; ++j, row += stride) {
            L total = sums[unit_sums[last] + j];
            for (long p = 0; p < stride; ++p) total += row[p];
            sums[unit_sums[last] + j] = total;
        }
    }

    // Units i .. i + M - 1 of a narrow layer: their derivatives (eqs. 41, 42), which are not kept if there are
    // ROWS inputs to multiply them by, and the sums over cases of all that they are in (eqs. 50-57).
    template <int M, int D, int ROWS>
    void narrow_tile(int l, int i) const {
        const Link& out = *narrow_out[l];
        const S* w = q + out.start + long(i) * D;
        const L *above = slopes[out.destination], *below = sources[0], *v = values[l] + i * stride;
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
                if constexpr (D == 1) {  // the weight, the same for all cases, comes in last
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
                if (ROWS == 0) slopes[l][(i + m) * stride + p] = slope[m];
            }
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
                for (int m = 0; m < M; ++m) by_in[m][r] += below[r * stride + p] * slope[m];
        }
        L* to_out = sums + link_sums[&out - net.links] + long(i) * D;
        L* to_in = ROWS ? sums + link_sums[narrow_in[l] - net.links] + i : nullptr;
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const S factor = D == 1 && ROWS > 0 ? w[m] : S(1);
            if (needs_unit_sums[l]) sums[unit_sums[l] + i + m] += by_unit[m] * factor;
#pragma GCC unroll 16
            for (int d = 0; d < D; ++d) to_out[m * D + d] += by_out[m][d];
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) to_in[long(r) * net.units[l] + m] += by_in[m][r] * factor;
        }
    }

    template <int D, int ROWS>
    void narrow_tiles(int l, int i, int end) const {
        constexpr int M = narrow_units(1 + D + ROWS);
        for (; i + M <= end; i += M) narrow_tile<M, D, ROWS>(l, i);
        for (; i < end; ++i) narrow_tile<1, D, ROWS>(l, i);
    }

    template <int D, int ROWS>
    void narrow_rows(int l, int n_rows, int i, int end) const {
        if (n_rows == ROWS)
            narrow_tiles<D, ROWS>(l, i, end);
        else if constexpr (ROWS > 0)
            narrow_rows<D, ROWS - 1>(l, n_rows, i, end);
    }

    void narrow_layer(int l, int i, int end) const {
        const int n_rows = narrow_in[l] ? narrow_in[l]->n_units : 0;
        if (narrow_out[l]->n_destinations == 1)
            narrow_rows<1, MOST_INPUTS>(l, n_rows, i, end);
        else
            narrow_rows<2, MOST_INPUTS>(l, n_rows, i, end);
    }

    template <int ROWS, int UNITS>
    void product_tile(const Link& link, int i, int j) const {
        add_products_to<ROWS, UNITS>(
            sums + link_sums[&link - net.links] + long(i) * link.n_destinations + j, link.n_destinations,
            int(stride), source_of(link) + i * stride, slopes[link.destination] + j * stride, stride);
    }

    // Rows i .. i_end - 1 of the gradient of the weights into UNITS units from j on, in tiles of equal height as
    // nearly as may be.
    template <int UNITS>
    void product_column(const Link& link, int i, int i_end, int j) const {
        constexpr int MOST = most_rows(UNITS);
        const int n = i_end - i, n_tiles = (n + MOST - 1) / MOST;
        for (int t = 0; t < n_tiles; ++t) {
            const int begin = i + n * t / n_tiles;
            switch (i + n * (t + 1) / n_tiles - begin) {
                case 1: product_tile<1, UNITS>(link, begin, j); break;
                case 2: product_tile<2, UNITS>(link, begin, j); break;
                case 3: product_tile<MOST < 3 ? MOST : 3, UNITS>(link, begin, j); break;
                case 4: product_tile<MOST < 4 ? MOST : 4, UNITS>(link, begin, j); break;
                default: product_tile<MOST, UNITS>(link, begin, j); break;
            }
        }
    }

    void products(const Link& link, int i, int i_end, int j, int j_end) const {
        for (; j + 4 <= j_end; j += 4) product_column<4>(link, i, i_end, j);
        if (j + 2 <= j_end) product_column<2>(link, i, i_end, j), j += 2;
        if (j < j_end) product_column<1>(link, i, i_end, j);
    }

    // A block's share of the gradient of a large link's weights, rows i .. and columns j ..: summed over the
    // places of packs at once, as a pack for each weight would leave the cache before the next block. Meanwhile a row
    // of the next tile's comes to the second cache, the one with the tile's number.
    template <int ROWS, int UNITS>
    RAYFBNN_METHOD void folded_tile(const Link& link, int i, int j, int number) const {
        constexpr int N = ROWS * UNITS, PADDED = (N + W - 1) / W * W;
        L parts[PADDED] = {};
        const L* here = source_of(link) + i * stride;
        const bool fetches = number < ROWS && i + ROWS + number < link.n_units;
        add_products_to<ROWS, UNITS, L, true>(
            parts, UNITS, int(stride), here, slopes[link.destination] + j * stride, stride,
            here + (fetches ? (ROWS + number) * stride : 0));
        S found[PADDED];
        for (int k = 0; k < PADDED; k += W) {
            const L total = sums_of<W>(parts + k);
            memcpy(found + k, &total, sizeof total);
        }
        S* to = data_gradient + link.start + long(i) * link.n_destinations + j;
        for (int r = 0; r < ROWS; ++r, to += link.n_destinations)
            for (int u = 0; u < UNITS; ++u) to[u] += found[r * UNITS + u];
    }
    template <int ROWS>
    void folded_rows(const Link& link, int i, int n_rows, int j, int j_end) const {
        if constexpr (ROWS > 1)
            if (n_rows < ROWS) return folded_rows<ROWS - 1>(link, i, n_rows, j, j_end);
        int number = 0;
        for (; j + FOLDED_COLUMNS <= j_end; j += FOLDED_COLUMNS)
            folded_tile<ROWS, FOLDED_COLUMNS>(link, i, j, number++);
        if (j + 2 <= j_end) folded_tile<ROWS, 2>(link, i, j, number++), j += 2;
        if (j < j_end) folded_tile<ROWS, 1>(link, i, j, number);
    }
    // In tiles of equal height as nearly as may be, at as many columns as have their slopes in the second cache.
    void folded_products(const Link& link) const {
        const long n = link.n_units, n_tiles = (n + FOLDED_ROWS - 1) / FOLDED_ROWS;
        const long cached = FACTOR_BYTES / (stride * long(sizeof(L))) / FOLDED_COLUMNS * FOLDED_COLUMNS;
        const int n_columns = cached > FOLDED_COLUMNS ? int(cached) : FOLDED_COLUMNS;
        for (int j = 0; j < link.n_destinations; j += n_columns)
            for (long t = 0; t < n_tiles; ++t) {
                const int begin = int(n * t / n_tiles), end = int(n * (t + 1) / n_tiles);
                const int j_end = j + n_columns < link.n_destinations ? j + n_columns : link.n_destinations;
                folded_rows<FOLDED_ROWS>(link, begin, end - begin, j, j_end);
            }
    }

    void collect_gradient() {
        for (long k = 0; k < n_sums; k += W) {
            const L total = sums_of<W>(sums + k);
            memcpy(totals + k, &total, sizeof total);
        }
        if (is_in_order) return;
        S* input_offsets = net.offsets[0] >= 0 ? data_gradient + net.offsets[0] : nullptr;
        for (int i = 0; input_offsets && i < net.units[0]; ++i) input_offsets[i] = 0;
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const int n = link.n_destinations;
            const long size = long(link.n_units) * n;
            if (!link.is_large) memcpy(data_gradient + link.start, totals + link_sums[k], size * sizeof(S));
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

    // As log_likelihood_terms wants them: n_here cases from number c of the block on, the others zeros or copies of cases.
    struct CasesOfPack {
        const S* outputs;
        const double *targets, *weights;
        const double* noise;
        long step, n_cases;
        int n_targets, n_here;
        double noise_alpha;

        RAYFBNN_METHOD PackDouble output(int o) const { return doubles_of(outputs + o * step); }
        RAYFBNN_METHOD PackDouble target(int o) const { return doubles_of(targets + o * n_cases, n_here); }
        RAYFBNN_METHOD PackDouble weight(int o) const {
            return weights ? doubles_of(weights + (o % n_targets) * n_cases, n_here) : splat<PackDouble>(1);
        }
        RAYFBNN_METHOD double tau(int o) const { return noise[o]; }
        RAYFBNN_METHOD double alpha() const { return noise_alpha; }
    };

    // Those of the n cases of the block at hand, the first of which is number `first` of all.
    void add_terms(int first, int n) {
        typedef Lane<PackDouble> D;
        const double* noise = job.noise + long(chain) * net.n_targets;
        const double* y = job.targets + chain * job.targets_step + first;
        const double* w = job.weights ? job.weights + chain * job.weights_step + first : nullptr;
        const S* v = reinterpret_cast<const S*>(values[last]);
        PackDouble sum = {};
        for (int c = 0; c < n; c += D::width) {
            const int n_here = n - c < D::width ? n - c : D::width;
            const CasesOfPack given = {
                v + c, y + c, w ? w + c : nullptr, noise, stride * W, job.n_cases, net.n_targets, n_here, net.alpha};
            PackDouble found;
            switch (net.model) {
                case GAUSSIAN: found = log_likelihood_terms<D>(GAUSSIAN, net.units[last], given); break;
                case STUDENT_T: found = log_likelihood_terms<D>(STUDENT_T, net.units[last], given); break;
                case BINARY: found = log_likelihood_terms<D>(BINARY, net.units[last], given); break;
                default: found = log_likelihood_terms<D>(CLASS, net.units[last], given); break;
            }
            PackDouble kept = {};
            memcpy(&kept, &found, n_here * sizeof(double));
            sum += kept;
        }
        for (int k = 0; k < D::width; ++k) terms += sum[k];
    }

    // As output_slopes wants targets.
    struct TargetsOfPack {
        const L* targets;
        long stride;
        const S *scales, *taus;
        S noise_alpha;

        RAYFBNN_METHOD L target(int o) const { return targets[o * stride]; }
        RAYFBNN_METHOD S scale(int o) const { return scales[o]; }
        RAYFBNN_METHOD S tau(int o) const { return taus[o]; }
        RAYFBNN_METHOD S alpha() const { return noise_alpha; }
    };
    RAYFBNN_METHOD TargetsOfPack of_pack(const L* y) const { return {y, stride, scales, taus, S(net.alpha)}; }

    void slopes_of_outputs(const L* y, const L* w, bool has_filling, int n_filled) {
        L* v = values[last];
        const int n = net.units[last];
        for (long p = 0; p < stride; ++p)
            switch (net.model) {
                case GAUSSIAN: output_slopes<Lane<L>>(GAUSSIAN, v + p, stride, n, of_pack(y + p)); break;
                case STUDENT_T: output_slopes<Lane<L>>(STUDENT_T, v + p, stride, n, of_pack(y + p)); break;
                case BINARY: output_slopes<Lane<L>>(BINARY, v + p, stride, n, of_pack(y + p)); break;
                default: output_slopes<Lane<L>>(CLASS, v + p, stride, n, of_pack(y + p)); break;
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
            if (stride != end - begin) {
                stride = end - begin;
                const int most = has_large ? MOST_LARGE : MOST_PACKS;
                const long n_columns = (stride + most - 1) / most;
                most_width = (stride + n_columns - 1) / n_columns;
                n_wide_columns = stride - n_columns * (most_width - 1);
            }
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
            if (regression) {
                terms -= regress();
                if (!wants_gradient) continue;
                backward();
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
        }
    }

    // The energy of the output layer's regression at the hidden units, and its slopes to `by_value`.
    double regress() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            const bool changes = feature.layer > 0 || net.offsets[0] >= 0;
            if (feature.row < 0) {
                if (regression->is_new_chain) regression->set_ones(k);
            } else if (changes || regression->is_new_chain) {
                regression->set_feature(k, sources[feature.layer] + feature.row * stride);
            }
        }
        regression->is_new_chain = false;
        const double energy = regression->evaluate(q + net.n_parameters - job.regression.n_moved, wants_terms, wants_gradient);
        if (!wants_gradient) return energy;
        for (int k = 0; k < job.regression.n_features;) {
            const Feature& feature = job.regression.features[k];
            int n = 1;  // consecutive units of one layer
            while (k + n < job.regression.n_features && job.regression.features[k + n].layer == feature.layer &&
                   job.regression.features[k + n].row == feature.row + n)
                ++n;
            if (feature.layer > 0 && feature.row >= 0)
                regression->slopes(k, n, by_value[feature.layer] + feature.row * stride);
            k += n;
        }
        return energy;
    }

    // Derivatives by the inputs' offsets through features that are inputs, and by what moves of the regression.
    void collect_regression() {
        for (int k = 0; k < job.regression.n_features; ++k) {
            const Feature& feature = job.regression.features[k];
            if (feature.layer == 0 && feature.row >= 0 && net.offsets[0] >= 0)
                data_gradient[net.offsets[0] + feature.row] += regression->sum_of_slopes(k);
        }
        S* moved = data_gradient + net.n_parameters - job.regression.n_moved;
        for (int k = 0; k < job.regression.n_moved; ++k) moved[k] = S(regression->moved_gradient[k]);
    }

    void begin_gradient() {
        memset(static_cast<void*>(sums), 0, n_sums * sizeof(L));
        for (int k = 0; k < net.n_links; ++k) {
            const Link& link = net.links[k];
            const long size = long(link.n_units) * link.n_destinations;
            if (link.is_large) memset(static_cast<void*>(data_gradient + link.start), 0, size * sizeof(S));
        }
    }

    // At a position and all cases, or those of one partition if it is not -1: the likelihood's terms to `terms` and the
    // data's part of the gradient to data_gradient, as they are wanted.
    void evaluate(const S* position, int partition, bool terms_too, bool gradient_too) {
        q = position;
        terms = 0;
        wants_terms = terms_too, wants_gradient = gradient_too;
        pack_weights();
        if (wants_gradient) begin_gradient();
        const L *y = targets, *w = weights;
        for (int k = 0; k < job.n_partitions; ++k) {
            if (partition < 0 || partition == k) pass(job.partitions[k], y, w);
            y += long(net.units[last]) * job.partitions[k].n_packs;
            if (w) w += long(net.n_targets) * job.partitions[k].n_packs;
        }
        if (wants_gradient) collect_gradient();
        if (wants_gradient && regression) collect_regression();
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
        if (regression) regression->begin_chain(chain);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
