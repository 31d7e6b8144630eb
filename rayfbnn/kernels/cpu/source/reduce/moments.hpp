// The mean of the targets given each draw, and their variance.
#ifndef RAYFBNN_REDUCE_MOMENTS_HPP
#define RAYFBNN_REDUCE_MOMENTS_HPP

#include "block.hpp"
#include "shared/dispersed.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
class Moments : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    typedef Predictive<D> P;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit Moments(const Job& job) : Sums<S>(job) {
        const long size = here.wanted.n_values * here.most_places();
        shift = Buffer<double>(size), piece = Buffer<double>(size);
        squares = Buffer<double>(size), variances = Buffer<double>(size);
    }

   private:
    using Sums<S>::here;
    Buffer<double> shift, piece, squares, variances;

    void begin() override {
        const long size = here.wanted.n_values * here.places();
        here.take(shift.data(), here.wanted.shift, here.wanted.n_values);
        clear(piece, size), clear(squares, size), clear(variances, size);
    }

    void end() override {
        here.add_to(here.wanted.squares, squares, here.wanted.n_values);
        here.add_to(here.wanted.variances, variances, here.wanted.n_values);
    }

    void add() override {
        const bool are_counts = here.net.model == COUNT || here.net.model == DISPERSED_COUNT;
        if (here.net.model == BINARY || here.net.model == CLASS || are_counts) mark_infinities();
        if (here.net.model == CLASS) replace_by_probabilities();
        if (here.net.model == SURVIVAL) add_times();
        for (int k = 0; k < here.wanted.n_values; ++k) {
            const L* v = here.outputs() + k * here.n_packs;
            switch (here.net.model) {
                case BINARY: add_values(k, [&](long p) { return Doubles<S>(Lane<L>::logistic(v[p])); }); break;
                case COUNT:
                case DISPERSED_COUNT:
                    add_values(k, [&](long p) {
                        Doubles<S> x(v[p]);
                        for (PackDouble& part : x.part) part = D::exponential(part);
                        return x;
                    });
                    break;
                case SURVIVAL: break;
                default: add_values(k, [&](long p) { return Doubles<S>(v[p]); }); break;
            }
            if (here.net.model == HETEROSCEDASTIC) add_noise(k);
            if (here.net.model == DISPERSED_COUNT) add_dispersion(k);
        }
        const int* number = here.wanted.pieces + here.draw;
        if (here.draw + 1 == here.job.n_chains || number[1] != number[0]) {
            const long n_rows = here.wanted.n_values;
            here.add_to(here.wanted.sums + number[0] * n_rows * here.n_cases, piece, n_rows);
            clear(piece, here.wanted.n_values * here.places());
        }
    }

    // Adds a NaN to the variances where an output is not finite, and zero elsewhere.
    void mark_infinities() {
        double* sum = variances;
        const S* v = reinterpret_cast<const S*>(here.outputs());
        for (long k = 0; k < here.n_outputs * here.places(); ++k) sum[k] += double(v[k] * S(0));
    }

    // Replaces the outputs of classes by their probabilities.
    void replace_by_probabilities() {
        L* v = here.network.layers[here.network.last].values;
        for (long p = 0; p < here.n_packs; ++p, ++v) {
            L largest = v[0], sum = splat<L>(0);
            for (int o = 1; o < here.n_outputs; ++o) largest = Lane<L>::larger(largest, v[o * here.n_packs]);
            for (int o = 0; o < here.n_outputs; ++o) {
                v[o * here.n_packs] = Lane<L>::exp_of_negative(v[o * here.n_packs] - largest);
                sum += v[o * here.n_packs];
            }
            for (int o = 0; o < here.n_outputs; ++o) v[o * here.n_packs] /= sum;
        }
    }

    template <class F>
    RAYFBNN_METHOD void add_values(int k, const F& value) {
        for (long p = 0; p < here.n_packs; ++p) {
            const Doubles<S> x = value(p);
            for (int j = 0; j < N; ++j) add_value(k, p * N + j, x.part[j]);
        }
    }

    // Adds to the sums at the pack of doubles of a number.
    RAYFBNN_METHOD void add_value(int k, long number, PackDouble x) {
        const long at = k * here.places() + number * D::width;
        const PackDouble excess = x - *pack_at(shift, at);
        *pack_at(piece, at) += excess;
        *pack_at(squares, at) += excess * excess;
    }

    // Survival: means and variances of times. Outputs that are not finite make the variances NaN.
    void add_times() {
        const double* starts = here.wanted.starts;
        for (long c = 0; c < here.places(); c += D::width) {
            typename P::TimeMoments moments = {};
            PackDouble bad = {};
            for (int j = 0; j < here.wanted.n_cells; ++j) {
                const PackDouble v = here.log_hazard(j, c);
                bad += v * 0;
                const double length = j + 1 < here.wanted.n_cells ? starts[j + 1] - starts[j] : -1;
                P::add_piece(moments, P::bounded_log_hazard(v), starts[j], length);
            }
            add_value(0, c / D::width, moments.mean);
            *pack_at(variances, c) += D::at_least(moments.square - moments.mean * moments.mean, 0) + bad;
        }
    }

    // The variance exp(2 v)/r that dispersion adds.
    void add_dispersion(int k) {
        const L* v = here.outputs() + k * here.n_packs;
        PackDouble* sum = reinterpret_cast<PackDouble*>(variances.data() + k * here.places());
        const double r = here.wanted.shapes[(long(here.draw) * here.net.n_targets + k) * N_OF_SHAPE];
        for (long p = 0; p < here.n_packs; ++p) {
            const Doubles<S> x(v[p]);
            for (int j = 0; j < N; ++j) {
                const PackDouble mean = D::exponential(x.part[j]);
                sum[p * N + j] += mean * mean * (1 / r);
            }
        }
    }

    // The variance exp(-s) + floor**2 of the noise, with s within limits that double can hold.
    void add_noise(int k) {
        const L* s = here.outputs() + (here.n_outputs / 2 + k) * here.n_packs;
        PackDouble* sum = reinterpret_cast<PackDouble*>(variances.data() + k * here.places());
        const double floor = __builtin_exp(here.net.alpha);
        for (long p = 0; p < here.n_packs; ++p) {
            const Doubles<S> x(s[p]);
            for (int j = 0; j < N; ++j)
                sum[p * N + j] += D::exponential(-D::at_most(D::at_least(x.part[j], -MOST_LOG), MOST_LOG)) + floor;
        }
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
