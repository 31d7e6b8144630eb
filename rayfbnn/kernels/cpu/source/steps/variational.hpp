// Steps of Bayes by Backprop, of one start after the other.
#ifndef RAYFBNN_VARIATIONAL_HPP
#define RAYFBNN_VARIATIONAL_HPP

#include <string.h>

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct VariationalStep {
    typedef typename Pack<S>::Type L;
    typedef Lane<L> F;
    static constexpr int W = F::width;
    typedef double Wide __attribute__((vector_size(W * sizeof(double))));  // a pack of the state, which is in double

    const Job& job;
    const rayfbnn::Variational& fit;
    const long n, n_padded;  // parameters, and places for them in whole packs
    Trajectory<S> steps;
    Buffer<S> position;
    Buffer<float> normal;
    Buffer<S> sigma, by_mean, by_normal;  // the last two: sums over draws of the gradient g, and of g e

    explicit VariationalStep(const Job& job)
        : job(job),
          fit(*job.variational),
          n(job.network->n_parameters),
          n_padded((n + W - 1) / W * W),
          steps(job),
          position(n),
          normal(n * (fit.is_antithetic ? fit.n_draws / 2 : fit.n_draws)),
          sigma(n_padded),
          by_mean(n_padded),
          by_normal(n_padded) {}

    void run(int start) {
        steps.begin(start);
        for (int step = 0; step < job.n_steps; ++step) take(start, step);
    }

    void take(int start, int step) {
        const double *mean = fit.mean + start * n, *rho = fit.rho + start * n;
        const int n_different = fit.is_antithetic ? fit.n_draws / 2 : fit.n_draws;
        const long place = long(step) * job.n_chains + start;
        fit.log_widths[place] = set_sigma(rho);
        rayfbnn::NormalPlace normals = fit.normals;
        normals.iteration += unsigned(step);
        write_normals(normals, start, 0, n * n_different, normal);
        steps.data.begin_batch(start, step);
        for (int draw = 0; draw < fit.n_draws; ++draw) {
            const float* e = normal + long(draw % n_different) * n;
            const S sign = draw < n_different ? S(1) : S(-1);
            for (long k = 0; k < n; ++k) position[k] = S(mean[k] + double(sigma[k] * (sign * S(e[k]))));
            steps.data.evaluate(position, -1, true, true);
            job.terms[place * fit.n_draws + draw] = steps.data.terms;
            job.prior_energy[place * fit.n_draws + draw] =
                draw == 0 ? add_gradient<true>(e, sign) : add_gradient<false>(e, sign);
        }
        const double* rates = fit.rates + 3 * step;
        const long whole = n / W * W;
        for (long k = 0; k < whole; k += W) update<true>(start, rates, k);
        if (whole < n) update<false>(start, rates, whole);
    }

    // Sets sigma = log(1 + exp(rho)), and returns the sum of its logarithms.
    double set_sigma(const double* rho) {
        Wide total = {};
        const long whole = n / W * W;
        for (long k = 0; k < whole; k += W)
            total += __builtin_convertvector(F::log(set_sigma_at(reals(wide<true>(rho + k, k)), k)), Wide);
        double sums[W], sum = 0;
        memcpy(sums, &total, sizeof total);
        for (int place = 0; place < W; ++place) sum += sums[place];
        if (whole < n) {
            S last[W];
            const L logs = F::log(set_sigma_at(reals(wide<false>(rho + whole, whole)), whole));
            memcpy(last, &logs, sizeof logs);
            for (long place = 0; place < n - whole; ++place) sum += double(last[place]);
        }
        return sum;
    }

    L set_sigma_at(L rho, long k) {
        const L found = F::at_least(rho, 0) + F::log1p_of_fraction(F::exp_of_negative(-F::absolute(rho)));
        memcpy(sigma + k, &found, sizeof found);
        return found;
    }

    // The pack of parameters from number k on: all of it, or what is left of the parameters.
    template <bool IS_WHOLE>
    Wide wide(const double* from, long k) const {
        Wide x = {};
        memcpy(&x, from, IS_WHOLE ? sizeof x : size_t(n - k) * sizeof(double));
        return x;
    }
    template <bool IS_WHOLE>
    void write(double* to, Wide x, long k) const {
        memcpy(to, &x, IS_WHOLE ? sizeof x : size_t(n - k) * sizeof(double));
    }
    static L reals(Wide x) { return __builtin_convertvector(x, L); }
    static L reals(const S* from) {
        L x;
        memcpy(&x, from, sizeof x);
        return x;
    }

    // Adds a draw's gradient g, and g e, and returns the prior's energy.
    template <bool IS_FIRST>
    double add_gradient(const float* __restrict e, S sign) {
        S *__restrict by = by_mean, *__restrict times = by_normal;
        const S *__restrict data = steps.data.gradient(), *__restrict q = position;
        const double* __restrict tau = steps.taus;
        const Network& net = *job.network;
        const auto add = [=](int k, double slope) {
            const S gradient = data[k] + S(slope), product = gradient * (sign * S(e[k]));
            by[k] = IS_FIRST ? gradient : by[k] + gradient;
            times[k] = IS_FIRST ? product : times[k] + product;
        };
        double energy = 0;
        for (int s = 0; s < net.n_segments; ++s) {
            const rayfbnn::Segment& segment = net.segments[s];
            int k = segment.start;
            if (is_gaussian(segment.alpha)) {
                constexpr int N = 8;  // sums side by side, which compilers do not make of one
                double parts[N] = {};
                for (; k + N <= segment.stop; k += N)
                    for (int j = 0; j < N; ++j) {
                        const double w = double(q[k + j]), slope = tau[k + j] * w;
                        add(k + j, slope);
                        parts[j] += slope * w;
                    }
                for (int j = 0; j < N; ++j) energy += 0.5 * parts[j];
            }
            for (; k < segment.stop; ++k) {
                const double w = double(q[k]);
                add(k, prior_slope(w, tau[k], segment.alpha));
                energy += prior_term(w, tau[k], segment.alpha);
            }
        }
        return energy;
    }

    // Takes Adam's step in the parameters from number k on.
    template <bool IS_WHOLE>
    void update(int start, const double* rates, long k) {
        double *mean = fit.mean + start * n + k, *rho = fit.rho + start * n + k;
        const S share = S(1.0 / fit.n_draws);
        const L slope_of_sigma = reals(by_normal + k) * share - 1 / reals(sigma + k);
        const L slope_of_rho = slope_of_sigma * F::logistic(reals(wide<IS_WHOLE>(rho, k)));
        descend<IS_WHOLE>(rates, reals(by_mean + k) * share, mean, 2 * start * n + k, k);
        descend<IS_WHOLE>(rates, slope_of_rho, rho, (2 * start + 1) * n + k, k);
    }

    // Kingma and Ba (2015); `place` is that of the moments.
    template <bool IS_WHOLE>
    void descend(const double* rates, L slope, double* to, long place, long k) {
        L first = reals(wide<IS_WHOLE>(fit.first + place, k)), second = reals(wide<IS_WHOLE>(fit.second + place, k));
        first = S(fit.first_decay) * first + S(1 - fit.first_decay) * slope;
        second = S(fit.second_decay) * second + S(1 - fit.second_decay) * slope * slope;
        const L step = S(rates[0] / rates[1]) * first / (F::root(second * S(1 / rates[2])) + S(fit.small));
        write<IS_WHOLE>(to, wide<IS_WHOLE>(to, k) - __builtin_convertvector(step, Wide), k);
        write<IS_WHOLE>(fit.first + place, __builtin_convertvector(first, Wide), k);
        write<IS_WHOLE>(fit.second + place, __builtin_convertvector(second, Wide), k);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
