// Sums over draws, fused with the networks' forward pass: rayfbnn/reduce has what is done with them.
//
// A block of cases is laid out once, and every draw's network is evaluated at it. The sums of the block stay in cache.
#ifndef RAYFBNN_REDUCE_SUMS_HPP
#define RAYFBNN_REDUCE_SUMS_HPP

#include <string.h>

#include "packed_forward.hpp"
#include "packed_outputs.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Reduction;

// A pack of S as packs of doubles.
template <class S>
struct Doubles {
    static constexpr int N = sizeof(double) / sizeof(S);  // packs of doubles in a pack
    PackDouble part[N];

    RAYFBNN_METHOD explicit Doubles(const typename Pack<S>::Type& x) {
        if constexpr (N == 1)
            part[0] = x;
        else
            part[0] = doubles_of_half<0>(x), part[1] = doubles_of_half<1>(x);
    }
};

template <class S>
class Reducer {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit Reducer(const Job& job)
        : job(job), net(*job.network), wanted(*job.reduction), network(job), n_outputs(net.units[net.n_layers - 1]) {
        const long places = long(job.largest_block) * W;
        if (wanted.kind == Reduction::MOMENTS) {
            shift = Buffer<double>(wanted.n_values * places), piece = Buffer<double>(wanted.n_values * places);
            squares = Buffer<double>(wanted.n_values * places), variances = Buffer<double>(wanted.n_values * places);
        } else if (wanted.kind == Reduction::SCORES) {
            targets = Buffer<double>(net.n_rows * places), weights = Buffer<double>(net.n_targets * places);
            maxima = Buffer<double>(places), scaled = Buffer<double>(places);
        } else if (wanted.kind == Reduction::DISTRIBUTION) {
            const long size = long(wanted.n_guesses) * net.n_targets * places;
            guesses = Buffer<S>(size), partial = Buffer<S>(3 * size), totals = Buffer<double>(3 * size);
        }
    }

    void run() {
        const Partition& partition = job.partitions[0];
        for (int b = 0; b < partition.n_blocks; ++b) {
            const int begin = partition.block_starts[b], end = partition.block_starts[b + 1];
            n_packs = end - begin, first = long(begin) * W;
            const long left = partition.n_cases - first;
            n = left < n_packs * W ? left : n_packs * W;
            network.stride = n_packs;
            network.columns.cut(n_packs, network.has_large ? MOST_LARGE : MOST_PACKS);
            begin_block();
            for (draw = 0; draw < job.n_chains; ++draw) {
                network.q = static_cast<const S*>(job.position) + long(draw) * net.n_parameters;
                set_inputs(static_cast<const L*>(partition.inputs) + long(net.units[0]) * begin);
                pack_weights(network);
                forward(network);
                add_draw();
            }
            end_block();
        }
        if (!network.layers[0].own_sources) network.layers[0].sources = nullptr;
    }

   private:
    const Job& job;
    const Network& net;
    const Reduction& wanted;
    PackedNetwork<S> network;
    const int n_outputs;
    long n_packs = 0, first = 0, n = 0;  // packs of the block, its first case, and its cases
    int draw = 0;
    Buffer<double> shift, piece, squares, variances, targets, weights, maxima, scaled, totals;
    Buffer<S> guesses, partial;

    void set_inputs(const L* inputs) {
        PackedLayer<S>& layer = network.layers[0];
        if (net.offsets[0] < 0) {
            layer.sources = const_cast<L*>(inputs);  // which nothing writes to
            return;
        }
        for (int i = 0; i < net.units[0]; ++i)
            for (long p = 0; p < n_packs; ++p)
                layer.sources[i * n_packs + p] = inputs[i * n_packs + p] + network.q[net.offsets[0] + i];
    }

    long places() const { return n_packs * W; }
    const L* outputs() const { return network.layers[network.last].values; }

    // Rows of the block between the caller's arrays (n_rows, n_cases) and the block's own (n_rows, places).
    template <class T>
    void take(T* own, const T* given, long n_rows) const {
        for (long k = 0; k < n_rows; ++k)
            for (long c = 0; c < places(); ++c) own[k * places() + c] = given[k * job.n_cases + first + (c < n ? c : n - 1)];
    }
    void add_to(double* given, const double* own, long n_rows) const {
        for (long k = 0; k < n_rows; ++k)
            for (long c = 0; c < n; ++c) given[k * job.n_cases + first + c] += own[k * places() + c];
    }
    static void clear(double* own, long size) {
        for (long k = 0; k < size; ++k) own[k] = 0;
    }

    void begin_block() {
        if (wanted.kind == Reduction::MOMENTS) {
            take(shift.data(), wanted.shift, wanted.n_values);
            const long size = wanted.n_values * places();
            clear(piece, size), clear(squares, size), clear(variances, size);
        } else if (wanted.kind == Reduction::SCORES) {
            take(targets.data(), wanted.targets, net.n_rows);
            if (wanted.weights) take(weights.data(), wanted.weights, net.n_targets);
            take(maxima.data(), wanted.maxima, 1), take(scaled.data(), wanted.scaled, 1);
        } else if (wanted.kind == Reduction::DISTRIBUTION) {
            const long n_rows = long(wanted.n_guesses) * net.n_targets;
            take(guesses.data(), static_cast<const S*>(wanted.guesses), n_rows);
            clear(totals, 3 * n_rows * places());
            memset(partial.data(), 0, 3 * n_rows * places() * sizeof(S));
        }
    }

    void add_draw() {
        switch (wanted.kind) {
            case Reduction::OUTPUTS: copy_outputs(); break;
            case Reduction::MOMENTS: add_moments(); break;
            case Reduction::SCORES: add_scores(); break;
            default: add_distribution(); break;
        }
    }

    void end_block() {
        if (wanted.kind == Reduction::MOMENTS) {
            add_to(wanted.squares, squares, wanted.n_values);
            add_to(wanted.variances, variances, wanted.n_values);
        } else if (wanted.kind == Reduction::SCORES) {
            memcpy(wanted.maxima + first, maxima, n * sizeof(double));
            memcpy(wanted.scaled + first, scaled, n * sizeof(double));
        } else if (wanted.kind == Reduction::DISTRIBUTION) {
            add_to(wanted.sums, totals, 3L * wanted.n_guesses * net.n_targets);
        }
    }

    void copy_outputs() const {
        S* to = static_cast<S*>(wanted.outputs) + long(draw) * n_outputs * job.n_cases + first;
        for (int o = 0; o < n_outputs; ++o) memcpy(to + long(o) * job.n_cases, outputs() + o * n_packs, n * sizeof(S));
    }

    // --- the mean of the targets given each draw, and their variance ---

    void add_moments() {
        if (net.model == BINARY || net.model == CLASS || net.model == COUNT) mark_infinities();
        if (net.model == CLASS) replace_by_probabilities();
        for (int k = 0; k < wanted.n_values; ++k) {
            const L* v = outputs() + k * n_packs;
            switch (net.model) {
                case BINARY: add_values(k, [&](long p) { return Doubles<S>(Lane<L>::logistic(v[p])); }); break;
                case COUNT:
                    add_values(k, [&](long p) {
                        Doubles<S> x(v[p]);
                        for (PackDouble& part : x.part) part = D::exponential(part);
                        return x;
                    });
                    break;
                default: add_values(k, [&](long p) { return Doubles<S>(v[p]); }); break;
            }
            if (net.model == HETEROSCEDASTIC) add_noise(k);
        }
        if (draw + 1 == job.n_chains || wanted.pieces[draw + 1] != wanted.pieces[draw]) {
            add_to(wanted.sums + long(wanted.pieces[draw]) * wanted.n_values * job.n_cases, piece, wanted.n_values);
            clear(piece, wanted.n_values * places());
        }
    }

    // Adds a NaN to the variances where an output is not finite, and zero elsewhere.
    void mark_infinities() {
        double* sum = variances;
        const S* v = reinterpret_cast<const S*>(outputs());
        for (long k = 0; k < n_outputs * places(); ++k) sum[k] += double(v[k] * S(0));
    }

    // Replaces the outputs of classes by their probabilities.
    void replace_by_probabilities() {
        L* v = network.layers[network.last].values;
        for (long p = 0; p < n_packs; ++p, ++v) {
            L largest = v[0], sum = splat<L>(0);
            for (int o = 1; o < n_outputs; ++o) largest = Lane<L>::larger(largest, v[o * n_packs]);
            for (int o = 0; o < n_outputs; ++o) {
                v[o * n_packs] = Lane<L>::exp_of_negative(v[o * n_packs] - largest);
                sum += v[o * n_packs];
            }
            for (int o = 0; o < n_outputs; ++o) v[o * n_packs] /= sum;
        }
    }

    template <class F>
    RAYFBNN_METHOD void add_values(int k, const F& value) {
        const PackDouble* by = reinterpret_cast<const PackDouble*>(shift.data() + k * places());
        PackDouble* sum = reinterpret_cast<PackDouble*>(piece.data() + k * places());
        PackDouble* square = reinterpret_cast<PackDouble*>(squares.data() + k * places());
        for (long p = 0; p < n_packs; ++p) {
            const Doubles<S> x = value(p);
            for (int j = 0; j < N; ++j) {
                const PackDouble excess = x.part[j] - by[p * N + j];
                sum[p * N + j] += excess;
                square[p * N + j] += excess * excess;
            }
        }
    }

    // The variance exp(-s) + floor**2 of the noise, with s within limits that double can hold.
    void add_noise(int k) {
        const L* s = outputs() + (n_outputs / 2 + k) * n_packs;
        PackDouble* sum = reinterpret_cast<PackDouble*>(variances.data() + k * places());
        const double floor = __builtin_exp(net.alpha);
        for (long p = 0; p < n_packs; ++p) {
            const Doubles<S> x(s[p]);
            for (int j = 0; j < N; ++j)
                sum[p * N + j] += D::exponential(-D::at_most(D::at_least(x.part[j], -MOST_LOG), MOST_LOG)) + floor;
        }
    }
    static constexpr double MOST_LOG = 680;

    // --- the density of the targets: the logarithm of a sum over draws is maxima + log(scaled) ---

    void add_scores() {
        switch (net.model) {
            case GAUSSIAN: return add_scores_of<GAUSSIAN>();
            case STUDENT_T: return add_scores_of<STUDENT_T>();
            case BINARY: return add_scores_of<BINARY>();
            case COUNT: return add_scores_of<COUNT>();
            case SURVIVAL: return add_scores_of<SURVIVAL>();
            case HETEROSCEDASTIC: return add_scores_of<HETEROSCEDASTIC>();
            default: return add_scores_of<CLASS>();
        }
    }

    template <int MODEL>
    void add_scores_of() {
        const double* normalisers = wanted.normalisers + long(draw) * net.n_targets;
        const double* noise = wanted.noise ? wanted.noise + long(draw) * net.n_targets : nullptr;
        const double* w = wanted.weights ? weights.data() : nullptr;
        double constant = 0;
        for (int o = 0; o < net.n_targets; ++o) constant += normalisers[o];
        CasesOfPack<S, double> cases = {reinterpret_cast<const S*>(outputs()), targets, w, noise, places(), places(),
                                        net.n_targets, D::width, net.alpha};
        PackDouble* largest = reinterpret_cast<PackDouble*>(maxima.data());
        PackDouble* sum = reinterpret_cast<PackDouble*>(scaled.data());
        for (long c = 0; c < places(); c += D::width, ++largest, ++sum) {
            PackDouble density = log_likelihood_terms<D>(MODEL, n_outputs, cases);
            if (w)
                for (int o = 0; o < net.n_targets; ++o) density += cases.weight(o) * normalisers[o];
            else
                density += constant;
            const PackDouble before = *largest, now = D::larger(before, density);
            const PackDouble base = D::select(now < -1e300, D::splat(0), now);  // no draw has a density yet
            *sum = *sum * D::exp_of_negative(before - base) + D::exp_of_negative(density - base);
            *largest = now;
            cases.outputs += D::width, cases.targets += D::width;
            if (w) cases.weights += D::width;
        }
    }

    // --- the distribution function at guesses, with its derivatives ---

    void add_distribution() {
        for (int o = 0; o < net.n_targets; ++o) {
            if (net.model == HETEROSCEDASTIC)
                add_at_guesses(o, [&](long p) { return inverse_scale(o, p); });
            else {
                const L inverse = splat<L>(S(1 / wanted.sigmas[long(draw) * net.n_targets + o]));
                add_at_guesses(o, [&](long) { return inverse; });
            }
        }
        if (draw % DRAWS_IN_SINGLE == DRAWS_IN_SINGLE - 1 || draw + 1 == job.n_chains) flush();
    }
    static constexpr int DRAWS_IN_SINGLE = 64;  // whose sums are in the type of the outputs

    // exp(log precision / 2) of the noise.
    RAYFBNN_METHOD L inverse_scale(int o, long p) const {
        const Doubles<S> s(outputs()[(n_outputs / 2 + o) * n_packs + p]);
        L inverse;
        double found[W];
        for (int j = 0; j < N; ++j) {
            const PackDouble log_precision = s.part[j] - softplus<D>(s.part[j] + net.alpha);
            const PackDouble x = D::exponential(D::at_most(D::at_least(log_precision, -MOST_LOG), MOST_LOG) * 0.5);
            memcpy(found + j * D::width, &x, sizeof x);
        }
        for (int k = 0; k < W; ++k) inverse[k] = S(found[k]);
        return inverse;
    }

    template <class F>
    RAYFBNN_METHOD void add_at_guesses(int o, const F& inverse_at) {
        if (net.model == STUDENT_T)
            add_at_guesses<true>(o, inverse_at);
        else
            add_at_guesses<false>(o, inverse_at);
    }

    template <bool IS_T, class F>
    RAYFBNN_METHOD void add_at_guesses(int o, const F& inverse_at) {
        const L *v = outputs() + o * n_packs, *g = reinterpret_cast<const L*>(guesses.data()) + o * n_packs;
        L* sums = reinterpret_cast<L*>(partial.data()) + o * n_packs;
        const long step = net.n_targets * n_packs, part = wanted.n_guesses * step;
        for (long p = 0; p < n_packs; ++p) {
            const L inverse = inverse_at(p), mean = v[p];
            for (long q = 0; q < wanted.n_guesses; ++q) {
                L* const sum = sums + q * step + p;
                const L z = (g[q * step + p] - mean) * inverse;
                L cdf, density, slope;
                if constexpr (IS_T)
                    student_t(z, cdf, density, slope);
                else
                    normal(z, cdf, density, slope);
                density *= inverse;
                sum[0] += cdf;
                sum[part] += density;
                sum[2 * part] += slope * density * inverse;
            }
        }
    }

    // The distribution function and the density of a standard normal, and the density's relative slope. In float by
    // Abramowitz and Stegun (1964), 26.2.17, whose error is below 7.5e-8, and in double from the table.
    RAYFBNN_METHOD void normal(L z, L& cdf, L& density, L& slope) const {
        const L e = Lane<L>::exp_of_negative(S(-0.5) * z * z) * S(0.39894228040143268);
        density = e, slope = -z;
        if constexpr (sizeof(S) == sizeof(double)) {
            L of_cell;
            const L tail = tail_at(Lane<L>::absolute(z), of_cell);
            cdf = Lane<L>::select(z > 0, 1 - tail, tail);
            return;
        }
        const L t = Lane<L>::reciprocal(S(0.2316419) * Lane<L>::absolute(z) + S(1));
        L tail = splat<L>(S(1.330274429));
        tail = tail * t + S(-1.821255978);
        tail = tail * t + S(1.781477937);
        tail = tail * t + S(-0.356563782);
        tail = tail * t + S(0.319381530);
        tail *= t * e;
        cdf = Lane<L>::select(z > 0, S(1) - tail, tail);
    }

    // 1 - F at u >= 0 from the table, and its derivative by u.
    RAYFBNN_METHOD L tail_at(L u, L& derivative) const {
        const L place = Lane<L>::at_most(u * S(wanted.table_rate), S(wanted.n_cells) - S(0.01));
        L c0, c1, c2, c3, t;
        for (int k = 0; k < W; ++k) {
            const int cell = place[k] > 0 ? int(place[k]) : 0;
            const double* c = wanted.table + 4L * cell;
            t[k] = place[k] - S(cell), c0[k] = S(c[0]), c1[k] = S(c[1]), c2[k] = S(c[2]), c3[k] = S(c[3]);
        }
        derivative = (c1 + t * (S(2) * c2 + S(3) * t * c3)) * S(wanted.table_rate);
        return c0 + t * (c1 + t * (c2 + t * c3));
    }

    // The same for t noise, from a table of cubics in u = asinh(z / sqrt(df)).
    RAYFBNN_METHOD void student_t(L z, L& cdf, L& density, L& slope) const {
        const S df = S(net.alpha), scale = S(1 / __builtin_sqrt(net.alpha));
        const L a = Lane<L>::absolute(z) * scale, square = a * a + S(1);
        const L root = Lane<L>::quick_root(square);
        L by_u;
        const L tail = tail_at(Lane<L>::log(a + root), by_u);
        cdf = Lane<L>::select(z > 0, S(1) - tail, tail);
        density = -by_u * scale / root;
        slope = -z * (df + S(1)) / (df * square);
    }

    void flush() {
        const long size = 3L * wanted.n_guesses * net.n_targets * places();
        S* from = partial;
        double* to = totals;
        for (long k = 0; k < size; ++k) to[k] += double(from[k]), from[k] = 0;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
