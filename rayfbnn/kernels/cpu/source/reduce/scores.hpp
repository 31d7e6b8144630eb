// The density of the targets: the logarithm of a sum over draws is maxima + log(scaled).
#ifndef RAYFBNN_REDUCE_SCORES_HPP
#define RAYFBNN_REDUCE_SCORES_HPP

#include "block.hpp"
#include "packed_outputs.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
class Scores : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit Scores(const Job& job) : Sums<S>(job) {
        const long places = here.most_places();
        targets = Buffer<double>(here.net.n_rows * places * here.wanted.n_cells);
        weights = Buffer<double>(here.net.n_targets * places);
        maxima = Buffer<double>(places), scaled = Buffer<double>(places);
    }

   private:
    using Sums<S>::here;
    Buffer<double> targets, weights, maxima, scaled;

    void begin() override {
        take_targets();
        if (here.wanted.weights) here.take(weights.data(), here.wanted.weights, here.net.n_targets);
        here.take(maxima.data(), here.wanted.maxima, 1), here.take(scaled.data(), here.wanted.scaled, 1);
    }

    void end() override {
        memcpy(here.wanted.maxima + here.first, maxima, here.n * sizeof(double));
        memcpy(here.wanted.scaled + here.first, scaled, here.n * sizeof(double));
    }

    void add() override {
        switch (here.net.model) {
            case GAUSSIAN: return add_scores_of<GAUSSIAN>();
            case STUDENT_T: return add_scores_of<STUDENT_T>();
            case BINARY: return add_scores_of<BINARY>();
            case COUNT: return add_scores_of<COUNT>();
            case DISPERSED_COUNT: return add_scores_of<DISPERSED_COUNT>();
            case SURVIVAL: return add_scores_of<SURVIVAL>();
            case HETEROSCEDASTIC: return add_scores_of<HETEROSCEDASTIC>();
            default: return add_scores_of<CLASS>();
        }
    }

    // Targets of cells, in their own order.
    void take_targets() {
        const long n_cells = here.n_packs * W, from = here.first * here.wanted.n_cells;
        const long last = here.n * here.wanted.n_cells - 1;
        for (long k = 0; k < here.net.n_rows; ++k)
            for (long c = 0; c < n_cells; ++c)
                targets[k * n_cells + c] = here.wanted.targets[k * here.job.n_cases + from + (c < last ? c : last)];
    }

    template <int MODEL>
    void add_scores_of() {
        const double* normalisers = here.wanted.normalisers + long(here.draw) * here.net.n_targets;
        const double* noise = here.wanted.noise ? here.wanted.noise + long(here.draw) * here.net.n_targets : nullptr;
        const double* w = here.wanted.weights ? weights.data() : nullptr;
        double constant = 0;
        for (int o = 0; o < here.net.n_targets; ++o) constant += normalisers[o];
        const S* outputs = reinterpret_cast<const S*>(here.outputs());
        CasesOfPack<S, double> cases = {outputs, targets, w, noise, here.places(), here.places(),
                                        here.net.n_targets, D::width, here.net.alpha};
        for (long c = 0; c < here.places(); c += D::width) {
            if (MODEL == SURVIVAL && here.wanted.n_cells > 1) {
                add_density(c, density_of_cells(c));
                continue;
            }
            PackDouble density = log_likelihood_terms<D>(MODEL, here.n_outputs, cases);
            if (w)
                for (int o = 0; o < here.net.n_targets; ++o) density += cases.weight(o) * normalisers[o];
            else
                density += constant;
            add_density(c, density);
            cases.outputs += D::width, cases.targets += D::width;
            if (w) cases.weights += D::width;
        }
    }

    // Adds a log density; the smaller of the two numbers is the one that is scaled. NaN stays NaN.
    RAYFBNN_METHOD void add_density(long c, PackDouble density) {
        PackDouble &largest = *pack_at(maxima, c), &sum = *pack_at(scaled, c);
        PackDouble e = D::exp_of_negative(-D::absolute(density - largest));
        e = D::select(density < -1e300, D::splat(0), e);
        sum = D::select(density > largest, sum * e + 1, sum + e);
        largest = D::larger(largest, density);
    }

    PackDouble density_of_cells(long c) const {
        constexpr long group = Reduction::GROUP;
        PackDouble density = {};
        for (int j = 0; j < here.wanted.n_cells; ++j) {
            const PackDouble v = here.log_hazard(j, c);
            const double* target = targets + (c / group * here.wanted.n_cells + j) * group + c % group;
            const PackDouble event = doubles_of(target), log_time = doubles_of(target + here.n_packs * W);
            density += D::select(event > 0, v, D::splat(0)) - D::exponential(v + log_time);
        }
        return density;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
